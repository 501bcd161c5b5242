"""The HTTP routes of CosyVoice's own server, for bots."""
