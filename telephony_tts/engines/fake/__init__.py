"""Tones, for tests and load."""
