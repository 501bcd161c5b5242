"""What a caller heard of the fake engine's tones, as text: each run of a tone is one letter."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.fake.engine import tone_hz

_WINDOW_MS = 10
_MIN_WINDOWS = 2
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def tone_text(pcm: Pcm, rate_hz: int = 8000, alphabet: str = ALPHABET) -> str:
    """The letters in `pcm` in order, a blank for silence. A tone that goes on is one letter; below 20 ms it is not."""
    n_window = rate_hz * _WINDOW_MS // 1000
    n_windows = len(pcm) // n_window
    windows = pcm[: n_windows * n_window].astype(np.float64).reshape(n_windows, n_window)
    phase = np.arange(n_window)[:, None] * (-2j * np.pi / rate_hz)
    strengths = np.abs(windows @ np.exp(phase * np.array([tone_hz(char) for char in alphabet])))
    loud = np.sqrt(np.mean(np.square(windows), axis=1)) > 500
    letters = [alphabet[best] if is_loud else " " for best, is_loud in zip(strengths.argmax(1), loud, strict=True)]
    runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
    sure = [letter for letter, n in runs if n >= _MIN_WINDOWS]
    return "".join(letter for letter, _ in groupby(sure)).strip()
