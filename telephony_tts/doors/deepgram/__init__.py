"""Deepgram's Speak and Flux, for bots."""
