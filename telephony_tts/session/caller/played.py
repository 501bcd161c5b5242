"""What we played: the frames that were sent, by when they are heard, as one wave at 8 kHz.

Frames are decoded only when the wave is asked for, so that a caller who is silent costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.voice_activity import RATE_HZ

Wave = npt.NDArray[np.float32]
"""Samples at 8 kHz on the int16 scale, shape [n_samples]."""

NS_PER_SAMPLE = 1_000_000_000 // RATE_HZ


class _Frame:
    """Speech that is heard at `heard_ns`, in `codec` at `rate_hz` until its wave is asked for."""

    __slots__ = ("heard_ns", "payload", "spoken", "wave")

    def __init__(self, heard_ns: int, payload: bytes, spoken: tuple[str, int]) -> None:
        self.heard_ns = heard_ns
        self.payload = payload
        self.spoken = spoken
        self.wave: Pcm | None = None

    def decoded(self) -> Pcm:
        """At 8 kHz."""
        if self.wave is None:
            codec, rate_hz = self.spoken
            pcm = CODECS[codec].decode(self.payload)
            if rate_hz == RATE_HZ:
                self.wave = pcm
            else:
                # The mean of the samples that become one. What it leaves above 4 kHz is weak in speech.
                n = len(pcm) * RATE_HZ // rate_hz
                begins = np.arange(n + 1) * len(pcm) // max(1, n)
                sums = np.concatenate(([0], np.cumsum(pcm, dtype=np.int64)))[begins]
                self.wave = (np.diff(sums) / np.diff(begins)).astype(np.int16)
            self.payload = b""
        return self.wave


def _heard_ns(frame: _Frame) -> int:
    return frame.heard_ns


class Played:
    """Times are nanoseconds on the session's clock. Places in the wave are those times in samples."""

    def __init__(self, kept_ns: int) -> None:
        self._kept_ns = kept_ns
        """How long a frame is kept after it was heard."""
        self.spoken = ("ulaw", RATE_HZ)
        """The codec and the rate of the frames that come."""
        self._frames: deque[_Frame] = deque()

    def __len__(self) -> int:
        """The number of frames that are kept."""
        return len(self._frames)

    def add(self, payload: bytes, heard_ns: int) -> None:
        """A frame was sent that is heard at `heard_ns`."""
        self._frames.append(_Frame(heard_ns, payload, self.spoken))

    def forget(self, now_ns: int) -> None:
        """Drop frames that were heard so long ago that no echo of them can come."""
        frames, oldest_ns = self._frames, now_ns - self._kept_ns
        while frames and frames[0].heard_ns < oldest_ns:
            frames.popleft()

    def emptied(self, now_ns: int) -> None:
        """The peer's buffer was emptied: frames that were not heard yet never will be."""
        while self._frames and self._frames[-1].heard_ns > now_ns:
            self._frames.pop()

    def moved(self, late_ns: int) -> None:
        """Frames that are playing or still to be played are heard `late_ns` later."""
        for frame in self._frames:
            frame.heard_ns += late_ns

    def is_silent_since(self, at_ns: int) -> bool:
        """Whether no frame began after `at_ns`."""
        return not self._frames or self._frames[-1].heard_ns < at_ns

    def wave(self, begin: int, n_samples: int) -> Wave:
        """`n_samples` from the place `begin` on. Where nothing was played it is silent."""
        wave = np.zeros(n_samples, np.float32)
        # A peer may have a minute of speech that is not due yet.
        n = bisect_left(self._frames, (begin + n_samples) * NS_PER_SAMPLE, key=_heard_ns)
        for at in range(n - 1, -1, -1):
            frame = self._frames[at]
            part, start = frame.decoded(), frame.heard_ns // NS_PER_SAMPLE - begin
            if start + len(part) <= 0:
                break
            part = part[max(0, -start) : n_samples - start]
            wave[max(0, start) : max(0, start) + len(part)] = part
        return wave
