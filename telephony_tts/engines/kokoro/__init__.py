"""Kokoro: the embedded Mandarin voice, and voices of seven other languages."""
