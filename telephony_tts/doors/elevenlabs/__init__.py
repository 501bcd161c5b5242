"""ElevenLabs' WebSockets, for bots."""
