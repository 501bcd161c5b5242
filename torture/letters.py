"""Texts whose audio tells which turn it belongs to: each turn of a call speaks words of one letter.

The fake engine speaks each letter as a tone of its own, so a frame's bytes name its turn. A check that trusted the
server's events would not notice late audio of a turn that is over.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.g711 import decode_alaw, decode_ulaw
from telephony_tts.engines.fake import MS_PER_CHAR, tone_hz

LETTERS = "adgjmpsvy"
"""Their tones are 108 Hz apart."""
MS_PER_LETTER = MS_PER_CHAR
_QUIETEST = 300
_KEPT = 20_000


def sentence(choose: random.Random, letter: str, n_words: int) -> str:
    """A sentence of words of three to six times the same letter. Shorter words would be read as abbreviations."""
    words = [letter * choose.randint(3, 6) for _ in range(n_words)]
    if n_words > 3 and choose.random() < 0.3:
        words[n_words // 2] += ","
    return " ".join(words) + choose.choice(".!?")


class FrameReader:
    """Tells the letter that is heard in a frame."""

    def __init__(self, codec: str = "ulaw", rate_hz: int = 8000) -> None:
        self._codec = codec
        self._rate_hz = rate_hz
        self._waves: dict[int, npt.NDArray[np.complex128]] = {}
        self._known: dict[bytes, str] = {}

    def letter(self, payload: bytes) -> str:
        """The letter of a frame; "" for silence and for what is too short to tell."""
        found = self._known.get(payload)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[payload] = self._listen(payload)
        return found

    def _listen(self, payload: bytes) -> str:
        if self._codec == "pcm":
            samples = np.frombuffer(payload[: len(payload) // 2 * 2], "<i2").astype(np.float64)
        else:
            samples = (decode_ulaw if self._codec == "ulaw" else decode_alaw)(payload).astype(np.float64)
        loud = np.flatnonzero(np.abs(samples) > _QUIETEST)
        if len(loud) < self._rate_hz // 200:
            return ""
        waves = self._waves.get(len(samples))
        if waves is None:
            at = np.arange(len(samples)) / self._rate_hz
            waves = np.exp(-2j * np.pi * np.outer([tone_hz(letter) for letter in LETTERS], at))
            self._waves[len(samples)] = waves
        return LETTERS[int(np.abs(waves @ samples).argmax())]
