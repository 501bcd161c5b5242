"""Text to phonemes of English, Mandarin, Japanese and Korean, for several engines."""
