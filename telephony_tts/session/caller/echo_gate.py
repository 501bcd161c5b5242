"""The echo gate: whether the caller's audio is loud enough to be the caller, and not line noise or our own echo.

An echo is our speech, later and weaker. The gate learns its delay and its level while we speak. For each delay it
keeps how far the line ever was above the speech played that long ago (a negative number). The delay with the smallest
value is the echo's delay. A window opens the gate only if it is louder than the loudest echo at that delay. Until the
delay is known, the window must be louder than the loudest possible echo of anything played recently.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

_SLOT_NS = 20_000_000
_N_EARLY = 3
"""Slots ahead of our schedule that are compared too: a peer may play a little before it reports."""
_N_SLOTS = _N_EARLY + 18
"""An echo comes back at most 360 ms after the peer plays the speech."""
_REACH_NS = (_N_SLOTS + 3) * _SLOT_NS
_N_AROUND = 2
"""Slots to both sides that count as one delay: windows and frames do not begin together, and rooms reverberate."""
_LOUDEST_ECHO_DB = -7.5
"""Echoes up to -10 dB must not open the gate, and single windows of an echo are above its average."""
_LOUDEST_LEARNED_DB = -6.0
_MARGIN_DB = 4.0
_PLAYING_DBOV = -45.0
"""Speech of ours below this level has no echo that matters."""
_STRONG_DBOV = -30.0
_LEARNING_WINDOWS = 32
"""About a second of strong speech. After that the learned echo counts."""
_LEAST_ECHO_DB = -40.0
_RISE_DB, _FALL_DB = 0.25, 0.03
"""Per window, after that: so slow that a quarter of a second of the caller's voice is not learned as an echo."""
_NOISE_WINDOWS = 48
"""The quietest window of a second and a half is the line's noise: speech without a gap is shorter."""
_ABOVE_NOISE_DB = 8.0
_HIGHEST_FLOOR_DBOV = -28.0
"""However loud the noise is, a loud caller opens the gate."""
_MOST_LATE_NS = 3_000_000_000
_LATE_GRAIN_NS = 150_000_000
_SILENCE_DBOV = -100.0

Levels = npt.NDArray[np.float64]


class EchoGate:
    """The echo gate of one call. Levels are in dBov, times in nanoseconds on the session's clock."""

    def __init__(self, floor_dbov: float) -> None:
        self._floor_dbov = floor_dbov
        self._played: deque[tuple[int, float]] = deque()
        """(when it is heard, level) of each slot that we sent, in order."""
        self.late_ns = 0
        """How much later than our schedule the peer plays, roughly, by its own reports."""
        self.hears_more_than_noise = False
        """Whether the last window was the caller or our echo."""
        self._seen_db: Levels = np.full(_N_SLOTS, _LEAST_ECHO_DB)
        self._n_learned = 0
        self._lately_dbov: deque[float] = deque(maxlen=_NOISE_WINDOWS)

    def playing(self, heard_ns: int, level_dbov: float) -> None:
        """At most 20 ms of speech were sent. They are heard at `heard_ns`."""
        self._played.append((heard_ns, level_dbov))

    def forget_heard(self, now_ns: int) -> None:
        """Drop speech that was heard so long ago that no echo of it can come, however late the peer plays."""
        oldest_ns = now_ns - _MOST_LATE_NS - _N_SLOTS * _SLOT_NS
        while self._played and self._played[0][0] < oldest_ns:
            self._played.popleft()

    def emptied(self, now_ns: int) -> None:
        """The peer's buffer was emptied: speech that was not heard yet never will be."""
        while self._played and self._played[-1][0] > now_ns:
            self._played.pop()

    def moved(self, late_ns: int) -> None:
        """Speech that is playing or still to be played is `late_ns` later."""
        self._played = deque((at_ns + late_ns, level) for at_ns, level in self._played)

    def peer_is_late(self, late_ns: int) -> None:
        """The peer reports that it plays `late_ns` later than our schedule. A small lateness is part of the echo's
        delay. After a large change other delays are compared, and the gate learns anew."""
        late_ns = max(0, min(late_ns, _MOST_LATE_NS) - _LATE_GRAIN_NS // 2)
        if abs(late_ns - self.late_ns) >= _LATE_GRAIN_NS:
            self.late_ns = late_ns
            self._seen_db.fill(_LEAST_ECHO_DB)
            self._n_learned = 0

    def opens(self, level_dbov: float, now_ns: int) -> bool:
        """Whether a window of this level, which ended now, is louder than line noise and any echo. Call it for each
        window."""
        floor_dbov = self._floor(level_dbov)
        is_loud = self.hears_more_than_noise = level_dbov >= floor_dbov
        if self._is_silent(now_ns):
            return self._opens_in_silence(level_dbov, is_loud)
        played = self._lately(now_ns)
        loudest = float(played.max())
        if loudest < _PLAYING_DBOV:
            return self._opens_in_silence(level_dbov, is_loud)
        delay = int(self._seen_db.argmin())
        limit_db = min(_LOUDEST_LEARNED_DB, float(self._seen_db[delay]) + _MARGIN_DB)
        above_db = level_dbov - np.maximum(played, floor_dbov - 20)
        is_learning = self._n_learned < _LEARNING_WINDOWS
        self._n_learned += loudest > _STRONG_DBOV
        if not is_loud:
            # This only shows that the echo is no louder than the floor.
            self._seen_db -= np.clip(self._seen_db - (floor_dbov - played), 0, _FALL_DB)
            return False
        if is_learning:
            self._seen_db = np.maximum(self._seen_db, above_db)
            return level_dbov - loudest > _LOUDEST_ECHO_DB
        self._seen_db += np.clip(above_db - self._seen_db, -_FALL_DB, _RISE_DB)
        return float(above_db[delay]) > limit_db

    def _is_silent(self, now_ns: int) -> bool:
        """Whether we played nothing recently."""
        return not self._played or self._played[-1][0] < now_ns - self.late_ns - _REACH_NS

    def _opens_in_silence(self, level_dbov: float, is_loud: bool) -> bool:
        if len(self._lately_dbov) < _NOISE_WINDOWS:
            # All windows so far may have been voice. The network then tells noise from voice.
            is_loud = self.hears_more_than_noise = level_dbov >= self._floor_dbov
        return is_loud

    def _floor(self, level_dbov: float) -> float:
        """The level above which a window is more than the noise of the line."""
        self._lately_dbov.append(level_dbov)
        return min(_HIGHEST_FLOOR_DBOV, max(self._floor_dbov, min(self._lately_dbov) + _ABOVE_NOISE_DB))

    def _lately(self, now_ns: int) -> Levels:
        """The level of our speech by how long ago it played: the loudest of each slot and its neighbours."""
        end_ns = now_ns - self.late_ns + _N_EARLY * _SLOT_NS
        levels = [_SILENCE_DBOV] * (_N_SLOTS + 2 * _N_AROUND)
        self.forget_heard(now_ns)
        # A peer may have a minute of speech that is not due yet.
        n_due = bisect_right(self._played, end_ns + _N_AROUND * _SLOT_NS, key=itemgetter(0))
        for n in range(n_due - 1, -1, -1):
            heard_ns, level_dbov = self._played[n]
            slot = (end_ns - heard_ns) // _SLOT_NS + _N_AROUND
            if slot >= len(levels):
                break
            if slot >= 0 and level_dbov > levels[slot]:
                levels[slot] = level_dbov
        around: Levels = sliding_window_view(np.array(levels), 2 * _N_AROUND + 1).max(axis=1)
        return around
