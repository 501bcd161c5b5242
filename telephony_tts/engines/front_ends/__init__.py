"""Text to phonemes of English, Mandarin, Japanese and, by espeak, others, for several engines."""
