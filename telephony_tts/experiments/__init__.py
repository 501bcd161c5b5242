"""Which calls get another voice, engine or setting, and the report of what came of it."""
