"""The echo gate: what of the caller's audio is the caller, and not line noise or our own speech that comes back.

We know what we played, so an echo is found by likeness (docs/adr/0033-echo-by-likeness.md). The last quarter of a
second of the caller's audio is compared with what we played in the second before, at every delay. If enough of its
energy is what we played at one delay, through a short filter, that is our echo. Only what is left over can be the
caller. What is learned of the line (the delay, the gain, and how much of an echo is usually left over) only helps a
comparison, and each comparison can refute it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.voice_activity import WINDOW_SAMPLES, level_dbov
from telephony_tts.session.caller.noise_floor import NoiseFloor
from telephony_tts.session.caller.played import NS_PER_SAMPLE, Played, Wave

N_COMPARED = 8
"""Windows that are compared together. A single syllable of anybody resembles some syllable of ours."""
_REACH = 8_800
"""Samples. An echo comes back at most so much later than our schedule: 1.1 s."""
_EARLY = 1_280
"""And this much sooner: a peer may play before it reports, and packets of the caller come irregularly."""
_SELDOM_WINDOWS = 32
_N_FFT = 12_288
"""At least all of that and the windows, with small factors."""
_N_TAPS = 16
"""The filter from what we played to its echo spans 2 ms: telephones colour it, and delays are no whole samples."""
_N_LIKELY = 3
"""Delays that are tried: in a short voice, its pitch makes several alike."""
_RIDGE = 1e-4
"""Keeps the filter small where what we played has no energy."""
_SURELY_ALIKE = 0.7
_ALIKE, _ALIKE_AGAIN = 0.4, 0.25
"""The share of the energy that must be ours to be an echo: at any of 10,000 delays, and at the last echo's. Of a
caller's quarter of a second, less than 0.34 is alike by chance in 99 of 100 cases (docs/experiments.md)."""
_LESS_ALIKE = 0.1
"""The rest behind an echo must be more alike by this for each window that it has less: a short sound easily is."""
_WEAKEST_DBOV = -55.0
"""Speech of ours below this level has no echo that matters."""
_MOST_LEFT_DB, _LEAST_LEFT_DB = 3.0, -10.0
"""What is left over counts as the caller if it is so much louder than the echo: as long as the line is not known, and
on a line that gives an exact echo."""
_LEFT_MARGIN_DB = 6.0
_EXACT_DB, _COVERED = -12.0, 4.0
"""On a line that leaves more over than this, a caller must be louder than the echo can be: four times its mean."""
_TAIL = 0.4
"""How much of the energy of an echo a room still gives back 32 ms later."""
_MOST_LATE_NS = 3_000_000_000
_MOST_LATE_PACKETS, _MOST_EARLY_PACKETS = 800, 400
"""Samples. The caller's audio is on a clock of its own, unless its packets come so much later (some were lost
without notice), or earlier (those before were late)."""

_Energies = npt.NDArray[np.float32]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Match:
    """Energies of each window: of what was heard, of what we had played, of its echo, and of what is left over."""

    heard: _Energies
    played: _Energies
    echo: _Energies
    left: _Energies
    delay: int
    """The delay at which it fits best."""

    @property
    def share(self) -> float:
        """The share of the energy that is our echo."""
        return 1 - float(self.left.sum()) / (float(self.heard.sum()) + 1)


def _share(match: _Match) -> float:
    return match.share


def _energies(windows: Wave) -> _Energies:
    energies: _Energies = np.einsum("ij,ij->i", windows, windows)
    return energies


def _with_tail(energies: _Energies) -> _Energies:
    """Each window with what a room still gives back of the windows before it."""
    tail = energies.copy()
    for n in range(1, len(tail)):
        tail[n] = max(tail[n], _TAIL * tail[n - 1])
    return tail


def _sounds(flags: _Flags) -> list[_Flags]:
    """The runs of windows with the flag, each as flags of all windows."""
    numbers = np.cumsum(np.diff(flags, prepend=False) & flags)
    return [flags & (numbers == number) for number in range(1, int(numbers[-1]) + 1)]


class EchoGate:
    """The echo gate of one call. Levels are in dBov, times in nanoseconds on the session's clock."""

    def __init__(self, floor_dbov: float) -> None:
        self.played = Played(_MOST_LATE_NS + (_REACH + N_COMPARED * WINDOW_SAMPLES) * NS_PER_SAMPLE)
        self.noise = NoiseFloor(floor_dbov)
        self.late_ns = 0
        """How much later than our schedule the peer plays, by its own reports."""
        self._level_dbov = -100.0
        self._windows: deque[Pcm] = deque(maxlen=N_COMPARED)
        self._end = 0
        """The place in what we played at which the last window ended, for a delay of 0."""
        self._delay: int | None = None
        """The delay of the last echo, in samples."""
        self._left_db = _MOST_LEFT_DB
        """How much of an echo is usually left over, relative to the echo."""
        self._gain = 0.0
        """The energy of the last echo, relative to what we played."""
        self._is_judged = False
        self._callers: list[bool] = []
        """The judgement on the windows, once it was asked for."""
        self._n_since_search = 0
        """Windows since it was judged with a search for other delays."""

    def peer_is_late(self, late_ns: int) -> None:
        """The peer reports that it plays `late_ns` later than our schedule."""
        self.late_ns = max(0, min(late_ns, _MOST_LATE_NS))

    def lost(self, ms: int) -> None:
        """So much of the caller's audio is missing before the next window. What is before it cannot be compared now."""
        self._end += ms * 1_000_000 // NS_PER_SAMPLE
        self._windows.clear()

    def take(self, pcm: Pcm, now_ns: int) -> bool:
        """Take the next window, which ended now. Whether it is louder than the line's noise."""
        self._end += WINDOW_SAMPLES
        late = now_ns // NS_PER_SAMPLE - self._end
        if late > _MOST_LATE_PACKETS:
            self._windows.clear()
            self._end += late
        elif late < -_MOST_EARLY_PACKETS:
            self._end += late
        self._windows.append(pcm)
        self._is_judged = False
        self._n_since_search += 1
        self._level_dbov = level_dbov(pcm)
        return self._level_dbov >= self.noise.floor_dbov

    def not_voice(self) -> None:
        """The last window was no voice, so it is noise of the line."""
        self.noise.learn(self._level_dbov)

    def callers(self, n_windows: int, now_ns: int, is_speaking: bool = False) -> list[bool]:
        """For each of the last windows, at most `N_COMPARED`: whether it has sound that is not our echo. False too if
        it cannot be compared, because packets were lost behind it. While the caller `is_speaking` other delays are
        searched seldom: that costs several times as much as the network."""
        if not self._is_judged:
            self._is_judged = True
            may_search = not is_speaking or self._n_since_search >= _SELDOM_WINDOWS
            is_silent = self.played.is_silent_since(now_ns - self.late_ns - (_REACH + 2 * _EARLY) * NS_PER_SAMPLE)
            self._callers = [True] * len(self._windows) if is_silent else self._judge(may_search, is_speaking)
            self._n_since_search = 0 if may_search else self._n_since_search
        return [False] * (n_windows - len(self._callers)) + self._callers[-n_windows:]

    def _judge(self, may_search: bool, is_speaking: bool) -> list[bool]:
        if self._delay is None and not may_search:
            return [True] * len(self._windows)
        heard = np.concatenate(self._windows).astype(np.float32)
        match = None if self._delay is None else self._matched(heard, self._delay)
        if may_search and (match is None or match.share < _SURELY_ALIKE):
            found = self._best(heard)
            if found is not None and found.share >= max(_ALIKE, 0.0 if match is None else match.share):
                match = found
        callers: _Flags = _energies(heard.reshape(-1, WINDOW_SAMPLES)) > self._least_energy()
        is_alike = match is not None and match.share >= _ALIKE_AGAIN
        if match is not None and is_alike:
            callers = self._told_apart(match)
        elif match is not None:
            # Mostly the caller. Some windows may still be an echo, which the caller's energy drowns in the sum.
            quiet = match.heard <= _COVERED * self._gain * _with_tail(match.played)
            if quiet.any() and self._matched(heard, match.delay, quiet).share >= _ALIKE:
                callers &= ~quiet
        sounds = _sounds(callers)
        if not is_speaking and (is_alike or len(sounds) > 1):
            # A sound of the rest may be an echo with another delay: of the sentence before, or of the next.
            for sound in sounds:
                rest = self._best(heard, sound)
                if rest is not None and rest.share >= max(_ALIKE, 1 - _LESS_ALIKE * int(sound.sum())):
                    match = rest
                    callers[sound] = self._told_apart(rest)
        if match is not None and match.share >= _SURELY_ALIKE:
            self._delay = match.delay  # always a little new, as clocks drift
        return [bool(each) for each in callers]

    def _least_energy(self) -> float:
        """Of a window that is louder than the noise."""
        return float(WINDOW_SAMPLES * 32768.0**2 * 10 ** (self.noise.floor_dbov / 10))

    def _told_apart(self, match: _Match) -> _Flags:
        """For each window: whether it has more than the echo that was found."""
        left_db = 10 * np.log10((match.left + 1) / (_with_tail(match.echo) + 1))
        limit_db = min(_MOST_LEFT_DB, max(_LEAST_LEFT_DB, self._left_db + _LEFT_MARGIN_DB))
        callers: _Flags = (match.left > self._least_energy()) & (left_db > limit_db)
        gain = float(match.echo.sum() / (match.played.sum() + 1))
        if self._left_db > _EXACT_DB:
            callers &= match.heard > _COVERED * gain * _with_tail(match.played)
        if not callers.any():
            self._gain = gain
            usual_db = 10 * float(np.log10((match.left.sum() + 1) / (match.echo.sum() + 1)))
            self._left_db += (0.3 if usual_db > self._left_db else 0.1) * (usual_db - self._left_db)
        return callers

    def _best(self, heard: Wave, among: _Flags | None = None) -> _Match | None:
        """Our echo at the delay at which these windows, or all, are most like it. None if nothing was played."""
        sought = heard if among is None else heard * np.repeat(among, WINDOW_SAMPLES)
        return max((self._matched(heard, delay, among) for delay in self._likely(sought)), key=_share, default=None)

    def _likely(self, heard: Wave) -> list[int]:
        """The delays, in samples, at which what we played is most like `heard`. None if nothing was played."""
        begin = self._end - len(heard) - self.late_ns // NS_PER_SAMPLE - _REACH
        played = self.played.wave(begin, len(heard) + _REACH + _EARLY)
        n = len(heard)
        energy = np.concatenate(([0.0], np.cumsum(np.square(played), dtype=np.float64)))
        energies = energy[n:] - energy[:-n]
        if energies.max() < n * 32768.0**2 * 10 ** (_WEAKEST_DBOV / 10):
            return []
        spectrum = np.fft.rfft(played, _N_FFT) * np.fft.rfft(heard, _N_FFT).conj()
        alike = np.fft.irfft(spectrum, _N_FFT)[: len(energies)]
        likeness = np.square(alike) / (energies + energies.max() / 1000)
        places = []
        for _ in range(_N_LIKELY):
            places.append(int(likeness.argmax()))
            likeness[max(0, places[-1] - _N_TAPS // 2) : places[-1] + _N_TAPS // 2 + 1] = 0
        return [self._end - n - (begin + place) for place in places]

    def _matched(self, heard: Wave, delay: int, among: _Flags | None = None) -> _Match:
        """Our echo at this delay, `among` these windows or all."""
        half = _N_TAPS // 2
        played = self.played.wave(self._end - len(heard) - delay - half, len(heard) + _N_TAPS - 1)
        delayed = np.ascontiguousarray(sliding_window_view(played, len(heard)))
        if among is not None:
            chosen = np.repeat(among, WINDOW_SAMPLES)
            delayed, heard = delayed[:, chosen], heard[chosen]
        likeness = (delayed @ delayed.T).astype(np.float64)
        likeness[_DIAGONAL] += likeness.trace() * _RIDGE + 1.0
        taps = np.linalg.solve(likeness, delayed @ heard).astype(np.float32)
        windows, echo = heard.reshape(-1, WINDOW_SAMPLES), (taps @ delayed).reshape(-1, WINDOW_SAMPLES)
        return _Match(
            heard=_energies(windows),
            played=_energies(delayed[half].reshape(windows.shape)),
            echo=_energies(echo),
            left=_energies(windows - echo),
            delay=delay + half - int(np.abs(taps).argmax()),
        )


_DIAGONAL = np.diag_indices(_N_TAPS)
