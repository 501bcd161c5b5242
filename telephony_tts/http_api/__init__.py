"""Speech, voices and the console's requests over HTTP."""
