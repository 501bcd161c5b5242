"""Whether what comes from the caller's line can be the caller, or only noise or our own speech come back, by level.

An echo is our speech, later and weaker. How much later and how much weaker is learned while we speak: for each delay,
the most that the line was ever above (below, in numbers) what was playing that long ago. The delay at which it was
least is the echo's, and a window opens the gate only if it is louder than the loudest echo at that delay. Before that
is known it has to be louder than the loudest echo that there may be of anything played lately.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

_SLOT_NS = 20_000_000
_N_EARLY = 3
"""Slots ahead of our schedule that are looked at: a peer may play a little before it says."""
_N_SLOTS = _N_EARLY + 18
"""An echo comes back at most 360 ms after the moment at which the peer plays what it is of."""
_REACH_NS = (_N_SLOTS + 3) * _SLOT_NS
_N_AROUND = 2
"""Slots to both sides that count as one delay: windows and frames do not begin together, and rooms ring."""
_LOUDEST_ECHO_DB = -7.5
"""Echoes up to -10 dB must not open the gate, and a window of one is now and then above its average."""
_LOUDEST_LEARNED_DB = -6.0
_MARGIN_DB = 4.0
_PLAYING_DBOV = -45.0
"""Below it what we play has no echo to speak of."""
_STRONG_DBOV = -30.0
_LEARNING_WINDOWS = 32
"""About a second of strong speech, after which what was learned counts."""
_LEAST_ECHO_DB = -40.0
_RISE_DB, _FALL_DB = 0.25, 0.03
"""Per window, after that: a caller who talks over us is not taken for an echo within a quarter of a second."""
_NOISE_WINDOWS = 48
"""The quietest of a second and a half is the line's noise: nobody speaks so long without a gap."""
_ABOVE_NOISE_DB = 8.0
_HIGHEST_FLOOR_DBOV = -28.0
"""However loud the noise is, a caller may shout it down."""
_MOST_LATE_NS = 3_000_000_000
_LATE_GRAIN_NS = 150_000_000
_SILENCE_DBOV = -100.0

Levels = npt.NDArray[np.float64]


class EchoGate:
    """One call's. Levels are in dBov, times in nanoseconds on the session's clock."""

    def __init__(self, floor_dbov: float) -> None:
        self._floor_dbov = floor_dbov
        self._played: deque[tuple[int, float]] = deque()
        """(when it is heard, level) of each slot of ours, in order."""
        self.late_ns = 0
        """How much later than our schedule the peer plays, roughly and by its own account."""
        self.hears_more_than_noise = False
        """Of the last window: the caller, or our echo."""
        self._seen_db: Levels = np.full(_N_SLOTS, _LEAST_ECHO_DB)
        self._n_learned = 0
        self._lately_dbov: deque[float] = deque(maxlen=_NOISE_WINDOWS)

    def playing(self, heard_ns: int, level_dbov: float) -> None:
        """At most 20 ms were sent that are heard at `heard_ns`."""
        self._played.append((heard_ns, level_dbov))

    def emptied(self, now_ns: int) -> None:
        """What was not heard yet never will be."""
        while self._played and self._played[-1][0] > now_ns:
            self._played.pop()

    def moved(self, late_ns: int) -> None:
        """What is playing, and what is still to be played, is so much later."""
        self._played = deque((at_ns + late_ns, level) for at_ns, level in self._played)

    def peer_is_late(self, late_ns: int) -> None:
        """The peer says that it plays so much later than our schedule has it. A little is a delay as any other; where
        it is much, other delays are looked at, and what was learned of the old ones is void."""
        late_ns = max(0, min(late_ns, _MOST_LATE_NS) - _LATE_GRAIN_NS // 2)
        if abs(late_ns - self.late_ns) >= _LATE_GRAIN_NS:
            self.late_ns = late_ns
            self._seen_db.fill(_LEAST_ECHO_DB)
            self._n_learned = 0

    def opens(self, level_dbov: float, now_ns: int) -> bool:
        """Whether a window of this level, that ended now, is louder than line noise and any echo. For every window."""
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
            # All this says is that the echo is no louder than the floor.
            self._seen_db -= np.clip(self._seen_db - (floor_dbov - played), 0, _FALL_DB)
            return False
        if is_learning:
            self._seen_db = np.maximum(self._seen_db, above_db)
            return level_dbov - loudest > _LOUDEST_ECHO_DB
        self._seen_db += np.clip(above_db - self._seen_db, -_FALL_DB, _RISE_DB)
        return float(above_db[delay]) > limit_db

    def _is_silent(self, now_ns: int) -> bool:
        """Nothing of ours was played lately."""
        return not self._played or self._played[-1][0] < now_ns - self.late_ns - _REACH_NS

    def _opens_in_silence(self, level_dbov: float, is_loud: bool) -> bool:
        if len(self._lately_dbov) < _NOISE_WINDOWS:
            # It may have been a voice all the time; what is only noise is left to the network.
            is_loud = self.hears_more_than_noise = level_dbov >= self._floor_dbov
        return is_loud

    def _floor(self, level_dbov: float) -> float:
        """What a window must reach to be more than the noise of the line."""
        self._lately_dbov.append(level_dbov)
        return min(_HIGHEST_FLOOR_DBOV, max(self._floor_dbov, min(self._lately_dbov) + _ABOVE_NOISE_DB))

    def _lately(self, now_ns: int) -> Levels:
        """What was playing, by how long ago: the loudest of each slot and its neighbours."""
        end_ns = now_ns - self.late_ns + _N_EARLY * _SLOT_NS
        levels = [_SILENCE_DBOV] * (_N_SLOTS + 2 * _N_AROUND)
        played = self._played
        oldest_ns = now_ns - _MOST_LATE_NS - _N_SLOTS * _SLOT_NS
        while played and played[0][0] < oldest_ns:
            played.popleft()
        for heard_ns, level_dbov in reversed(played):
            slot = (end_ns - heard_ns) // _SLOT_NS + _N_AROUND
            if slot >= len(levels):
                break
            if slot >= 0 and level_dbov > levels[slot]:
                levels[slot] = level_dbov
        around: Levels = sliding_window_view(np.array(levels), 2 * _N_AROUND + 1).max(axis=1)
        return around
