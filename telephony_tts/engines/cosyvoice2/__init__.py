"""CosyVoice2 and CosyVoice-300M: any voice from a short recording."""
