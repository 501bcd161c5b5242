"""Our own CPU kernels in C++, which CosyVoice2 and kokoro compute with."""
