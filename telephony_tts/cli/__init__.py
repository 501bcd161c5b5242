"""The commands of `telephony-tts`, a file each; `main.py` has `serve`, `doctor`, `sounds` and `bench`."""
