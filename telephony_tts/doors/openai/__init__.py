"""OpenAI's speech route over HTTP, for bots."""
