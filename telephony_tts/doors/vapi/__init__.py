"""Vapi's custom voices over HTTP, for bots."""
