"""The commands of `telephony-tts`. `main.py` reads the command line, and has `serve`, `doctor` and `sounds`."""
