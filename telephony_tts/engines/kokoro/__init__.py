"""Kokoro: the embedded Mandarin voice, and voices of eight languages more."""
