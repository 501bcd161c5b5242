"""Keys of the telephone inside a turn: an insert that is their tones, or silence while the platform sends them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from telephony_tts.audio.dtmf import PAUSE, duration_ms, tones
from telephony_tts.engines.api import Chunk
from telephony_tts.engines.inserts import Silence
from telephony_tts.wire.messages import MediaTones

_PLATFORM_MS = 100
"""How much later than we ask for them a platform may send its tones."""
_BEFORE_MS = 40
"""Silence before the first tone. A bed fades out in its first half (bed.py)."""
_LEAST_TONE_MS = 40
"""A receiver takes a tone of this length for a key (ITU-T Q.24)."""


@dataclass(slots=True, eq=False)
class Digits:
    """The tones of one request, as an insert of a turn at `rate_hz`."""

    digits: str
    rate_hz: int
    on_ms: int
    off_ms: int
    by_message: bool
    is_sent: bool = False
    """The platform has the message."""
    _ends_ms: list[int] = field(init=False)
    """When each digit is over."""

    def __post_init__(self) -> None:
        self._ends_ms = [
            _BEFORE_MS + duration_ms(self.digits[: n + 1], self.on_ms, self.off_ms) - (digit != PAUSE) * self.off_ms
            for n, digit in enumerate(self.digits)
        ]

    @property
    def message(self) -> MediaTones:
        return MediaTones(self.digits, self.on_ms, self.off_ms)

    @property
    def length_ms(self) -> int:
        return duration_ms(self.digits, self.on_ms, self.off_ms) + self.by_message * _PLATFORM_MS

    def chunks(self) -> Iterator[Chunk]:
        if self.by_message:
            yield from Silence(self.length_ms).chunks()
            return
        yield Chunk(np.zeros(self.rate_hz * _BEFORE_MS // 1000, np.int16), self.rate_hz)
        for pcm in tones(self.digits, self.rate_hz, self.on_ms, self.off_ms):
            yield Chunk(pcm, self.rate_hz)

    def resume_ms(self, heard_ms: int) -> int:
        """Where tones go on after a pause. A tone that a receiver may have taken for a key is not repeated; a shorter
        one begins again, with silence before it."""
        if self.by_message:
            return heard_ms
        for digit, end_ms in zip(self.digits, self._ends_ms, strict=True):
            begin_ms = end_ms - self.on_ms
            if digit != PAUSE and begin_ms - _BEFORE_MS < heard_ms < end_ms:
                return end_ms if heard_ms - begin_ms >= _LEAST_TONE_MS else begin_ms - _BEFORE_MS
        return heard_ms

    def unsent(self, heard_ms: int) -> str:
        """The digits that were not sent when so much of the insert was heard."""
        if self.by_message:
            return "" if self.is_sent else self.digits
        return self.digits[sum(end_ms <= heard_ms for end_ms in self._ends_ms) :]
