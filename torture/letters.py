"""Texts whose audio tells which turn it belongs to: each turn of a call speaks words of one letter.

The fake engine speaks each letter as a tone of its own, so a frame's bytes name its turn. A check that trusted the
server's events would not notice late audio of a turn that is over.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.dtmf import LOW_HZ
from telephony_tts.audio.g711 import decode_alaw, decode_ulaw
from telephony_tts.engines.fake.engine import MS_PER_CHAR, tone_hz

LETTERS = "adgjmpsvy"
"""Their tones are 108 Hz apart."""
MS_PER_LETTER = MS_PER_CHAR
MISSING_MS = 2 * MS_PER_LETTER
"""The last word may end with silence that is not sent."""
SLOWEST = 0.5
"""The slowest speed of speech that clients ask for."""
_QUIETEST = 300
_BLOCK_MS = 10
_LEAST_PURE = 0.8
"""How much of the energy of a frame must be in the tone of a letter. Sounds have less."""
_MOST_KEY = 0.4
"""With more than this in the low tone of a key a frame is of that key, in which it is about 0.6. The high tone of "*"
is near a letter's, and in a frame of 10 ms with a sound under it as pure as that."""
_KEPT = 20_000


def sentence(choose: random.Random, letter: str, n_words: int) -> str:
    """A sentence of words of three to six times the same letter. Shorter words would be read as abbreviations."""
    words = [letter * choose.randint(3, 6) for _ in range(n_words)]
    if n_words > 3 and choose.random() < 0.3:
        words[n_words // 2] += ","
    return " ".join(words) + choose.choice(".!?")


def markup(choose: random.Random, letter: str, n_words: int, mark: str) -> str:
    """The same as SSML, with a pause, another speed and a mark in it."""
    first, second = sentence(choose, letter, n_words), sentence(choose, letter, 2)
    rate = choose.choice(["fast", "slow", "80%"])
    middle = choose.choice([
        '<break time="200ms"/>', f'<prosody rate="{rate}">{sentence(choose, letter, 1)}</prosody> ',
        f'<voice name="bell">{sentence(choose, letter, 1)}</voice> ', "<p/>", "",
    ])  # fmt: skip
    return f'<speak>{first} {middle}<mark name="{mark}"/>{second}</speak>'


class FrameReader:
    """Tells the letter that is heard in a frame."""

    def __init__(self, codec: str = "ulaw", rate_hz: int = 8000) -> None:
        self._codec = codec
        self._rate_hz = rate_hz
        self._waves: npt.NDArray[np.complex128] | None = None
        self._known: dict[bytes, str] = {}

    def letter(self, payload: bytes) -> str:
        """The letter of a frame; "" for silence and for what is too short to tell."""
        found = self._known.get(payload)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[payload] = self._listen(payload)
        return found

    def pcm(self, payload: bytes) -> bytes:
        """The samples of a frame, 16 bits each."""
        return self._samples(payload).astype("<i2").tobytes()

    def sounds(self, payload: bytes) -> bool:
        """Whether a frame is no silence."""
        return self._is_loud(self._samples(payload))

    def _samples(self, payload: bytes) -> npt.NDArray[np.float64]:
        if self._codec == "pcm":
            return np.frombuffer(payload[: len(payload) // 2 * 2], "<i2").astype(np.float64)
        return (decode_ulaw if self._codec == "ulaw" else decode_alaw)(payload).astype(np.float64)

    def _is_loud(self, samples: npt.NDArray[np.float64]) -> bool:
        return int(np.count_nonzero(np.abs(samples) > _QUIETEST)) >= self._rate_hz // 200

    def _listen(self, payload: bytes) -> str:
        samples = self._samples(payload)
        if not self._is_loud(samples):
            return ""
        # In blocks, because the tone begins anew with each letter of a word.
        n_block = self._rate_hz * _BLOCK_MS // 1000
        n_blocks = len(samples) // n_block
        blocks = samples[: n_blocks * n_block].reshape(n_blocks, n_block)
        if self._waves is None:
            at = np.arange(n_block) / self._rate_hz
            tones_hz = [*map(tone_hz, LETTERS), *LOW_HZ]
            self._waves = np.exp(-2j * np.pi * np.outer(at, tones_hz))
        strengths, keys = np.split(np.abs(blocks @ self._waves).sum(axis=0), [len(LETTERS)])
        best = int(strengths.argmax())
        whole = float(np.sqrt((blocks * blocks).sum(axis=1) * n_block / 2).sum())
        is_letter = strengths[best] > _LEAST_PURE * whole and keys.max() < _MOST_KEY * whole
        return LETTERS[best] if is_letter else ""
