"""Speech of the server that waits for the phone: a queue of samples at the phone's rate, with marks. Pure."""

from __future__ import annotations

from collections import deque

import numpy as np

from telephony_tts.audio.resampler import Resampler, n_resampled, to_pcm

SAMPLE_BYTES = 2


def resampled(resampler: Resampler, pcm: bytes) -> bytes:
    """`pcm` after the resampler, both s16 little-endian."""
    return to_pcm(resampler.feed(np.frombuffer(pcm, "<i2").astype(np.int16))).astype("<i2").tobytes()


class SpeechQueue:
    """`in_hz` is the server's rate, `out_hz` the phone's. If they differ, one resampler processes all of the speech.

    A resampler holds samples back. They are flushed when the queue would run empty (`take`), so that the end of a turn
    is not cut off. A mark has a place in the samples: it is reached when all samples before it were taken.
    """

    def __init__(self, in_hz: int, out_hz: int) -> None:
        self.in_hz = in_hz
        self.out_hz = out_hz
        self._held = bytearray()
        self._n_taken = 0
        self._marks: deque[tuple[int, str]] = deque()
        self._resampler = self._new_resampler()

    def _new_resampler(self) -> Resampler | None:
        return None if self.in_hz == self.out_hz else Resampler(self.in_hz, self.out_hz)

    @property
    def n_queued(self) -> int:
        """Samples that were added and not taken yet, at the phone's rate."""
        return len(self._held) // SAMPLE_BYTES + (self._resampler.lag if self._resampler is not None else 0)

    @property
    def queued_ms(self) -> float:
        return self.n_queued * 1000 / self.out_hz

    @property
    def n_marks(self) -> int:
        return len(self._marks)

    def add(self, pcm: bytes) -> None:
        """Queue speech, s16 little-endian at `in_hz`."""
        self._held += pcm if self._resampler is None else resampled(self._resampler, pcm)

    def mark(self, name: str) -> None:
        """Set a mark behind everything that was added so far."""
        self._marks.append((self._n_taken + self.n_queued, name))

    def clear(self) -> None:
        """Drop the speech, its marks, and the state of the resampler."""
        self._held.clear()
        self._marks.clear()
        self._resampler = self._new_resampler()

    def take(self, n_samples: int) -> bytes:
        """The next samples; fewer than `n_samples` only at the end of the speech."""
        n_bytes = n_samples * SAMPLE_BYTES
        if self._resampler is not None and self._resampler.lag and len(self._held) < n_bytes:
            self._flush(self._resampler)
        taken = bytes(self._held[:n_bytes])
        del self._held[:n_bytes]
        self._n_taken += len(taken) // SAMPLE_BYTES
        return taken

    def reached(self) -> list[str]:
        """The marks that were reached since the last call, in order."""
        names = []
        while self._marks and self._marks[0][0] <= self._n_taken:
            names.append(self._marks.popleft()[1])
        return names

    def change_rate(self, out_hz: int) -> None:
        """Take samples at another rate from now on. Queued speech is resampled and kept."""
        if self._resampler is not None:
            self._flush(self._resampler)
        old_hz, self.out_hz = self.out_hz, out_hz
        whole = Resampler(old_hz, out_hz)
        self._held = bytearray(resampled(whole, bytes(self._held)) + to_pcm(whole.finish()).astype("<i2").tobytes())
        places = [n_resampled(max(0, at - self._n_taken), old_hz, out_hz) for at, _ in self._marks]
        self._marks = deque((self._n_taken + n, name) for n, (_, name) in zip(places, self._marks, strict=True))
        self._resampler = self._new_resampler()

    def _flush(self, resampler: Resampler) -> None:
        """Queue what the resampler holds back. The next speech gets a new resampler."""
        self._held += to_pcm(resampler.finish()).astype("<i2").tobytes()
        self._resampler = self._new_resampler()
