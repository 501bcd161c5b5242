"""Compares received speech with sent speech: how similar they are, and where something is missing, added or repeated.

The judgement is of one delay over the whole: a frame that is lost or said again ruins the correlation, as it should,
and a second look, stretch by stretch, says where and what.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import soxr

from telephony_tts.audio.g711 import Pcm

Samples = npt.NDArray[np.float64]

_BLOCK = 80
"""Samples compared at a time: 10 ms at 8 kHz."""
_PROBE, _HOP = 400, 100
"""Length in samples of a probe, which finds the delay at its place, and the distance between two probes."""
_REACH = 8000
"""How far speech may have moved at a break, in samples."""
_ALIKE, _SURE = 0.9, 0.98
"""The correlation from which a probe counts as found, and the one from which the search for a better place ends."""
_QUIET = 30.0
"""The RMS, in 16-bit steps, below which a stretch is too quiet to be placed: the lowest steps of mu-law."""
_OFF = 0.5
"""The share of the speech's RMS that may differ. More is a replacement; less is noise, reported as the SNR."""
_ABOVE_NOISE = 4.0
"""A replaced part differs by this many times more than the rest."""


class Kind(enum.Enum):
    """What happened to the stream at one place."""

    MISSING = "missing"
    """Sent and not received; the rest comes earlier by that much."""
    REPLACED = "replaced"
    """Sent, and replaced by silence or something else; the rest is in its place."""
    REPEATED = "repeated"
    """The same samples again; the rest comes later."""
    INSERTED = "inserted"
    """Silence or something else that was not sent; the rest comes later."""


@dataclass(frozen=True)
class Break:
    """One place where the received and the sent speech differ; `at` is a sample of the sent speech."""

    kind: Kind
    at: int
    n_samples: int


@dataclass(frozen=True)
class Comparison:
    """How the received speech (heard) relates to the sent speech (said). Lengths and positions are in samples."""

    delay: int
    """The sample of the received signal at which the sent speech begins; negative if its beginning is missing."""
    correlation: float
    """Normalised correlation at this delay, over all the sent speech."""
    gain_db: float
    """The level of the received speech relative to the sent speech."""
    snr_db: float
    """The sent speech, at the received gain, over the difference; infinite without a difference."""
    breaks: list[Break] = field(default_factory=list)

    @property
    def holes(self) -> list[Break]:
        """Stretches that are missing or delay the rest."""
        return [found for found in self.breaks if found.kind is not Kind.REPEATED]

    @property
    def repeats(self) -> list[Break]:
        """Stretches that were received twice."""
        return [found for found in self.breaks if found.kind is Kind.REPEATED]

    def require(self, correlation: float = 0.999, snr_db: float = 30.0) -> None:
        """Raise AssertionError, with all differences, unless the received speech equals the sent speech."""
        assert not self.breaks and self.correlation >= correlation and self.snr_db >= snr_db, str(self)


def compare(heard: Pcm, said: Pcm) -> Comparison:
    """Compare two signals of one rate. `heard` may have anything before and after the speech of `said`.

    Raises ValueError if there is nothing to compare: either is empty, or nothing was said but silence.
    """
    ours, theirs = said.astype(np.float64), heard.astype(np.float64)
    if not len(ours) or not len(theirs) or _rms(ours) < _QUIET:
        raise ValueError(f"nothing to compare: {len(ours)} samples said, {len(theirs)} heard, or only silence said")
    delay = best_delay(theirs, ours)
    there = _cut(theirs, delay, len(ours))
    energy, cross, their_energy = float(ours @ ours), float(ours @ there), float(there @ there)
    gain = cross / energy
    rest = there - gain * ours
    # The sum of squares of a difference of equals is a rounding error, which would read as 300 dB.
    noise = float(rest @ rest) if not np.allclose(rest, 0.0, atol=1e-6) else 0.0
    return Comparison(
        delay,
        cross / math.sqrt(energy * their_energy) if their_energy else 0.0,
        20 * math.log10(gain) if gain > 0 else -math.inf,
        10 * math.log10(gain * gain * energy / noise) if noise and gain else (math.inf if gain else -math.inf),
        _breaks(theirs, ours, delay),
    )


def likeliest(heard: Pcm, said: Sequence[Pcm]) -> int:
    """Which of several signals was received, whatever else is in it. A quick guess."""
    n = 1 << (len(heard) + max(map(len, said))).bit_length()
    spectrum = np.fft.rfft(heard.astype(np.float64), n)

    def peak(one: Pcm) -> float:
        ours = one.astype(np.float64)
        likeness = np.fft.irfft(spectrum * np.conj(np.fft.rfft(ours, n)), n)
        return float(likeness.max() / math.sqrt(ours @ ours))

    return max(range(len(said)), key=lambda i: peak(said[i]))


def moved(said: Pcm, heard: Pcm, steps: int = 12) -> Pcm:
    """The said, moved by the part of a sample, in `steps` of it, at which it agrees best with the heard.

    A stream that was resampled twice and begun at any place between has its samples between ours: a third of one off,
    the same speech reads as 15 dB of noise.
    """
    fine = soxr.resample(said.astype(np.float64), 1, steps, quality="VHQ")
    each = [np.rint(fine[first::steps]).astype(np.int16) for first in range(steps)]
    return each[likeliest(heard, each)]


def best_delay(heard: Samples, said: Samples) -> int:
    """The lag at which they agree best, by cross-correlation normalised by the energy of `heard` at that place.

    Without that a louder place of the heard would win over the right one.
    """
    n = 1 << (len(heard) + len(said) - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(heard, n) * np.conj(np.fft.rfft(said, n)), n)
    lags = np.arange(-(len(said) - 1), len(heard))
    cross = product[lags]
    sums = np.concatenate([[0.0], np.cumsum(heard**2)])
    inside = sums[np.clip(lags + len(said), 0, len(heard))] - sums[np.clip(lags, 0, len(heard))]
    # Over the energy of all that was said, the same everywhere, so that a small overlap counts little however well it
    # agrees. An RMS of one step stays below the root: where nothing is heard a rounding error is like anything.
    return int(lags[np.argmax(cross / np.sqrt(np.maximum(inside, len(said))))])


# ------------------------------------------------------------------ where they differ


@dataclass(frozen=True)
class _Stretch:
    """The part of the sent speech from `start` to `end`, which was received at one delay."""

    start: int
    end: int
    delay: int


def _breaks(heard: Samples, said: Samples, overall_delay: int) -> list[Break]:
    found = _delays(heard, said, overall_delay)
    if not found:
        return [Break(Kind.REPLACED, 0, len(said))]
    gain = _gain(heard, said, found)
    stretches, breaks = _joined(heard, said, found, gain)
    breaks += _replaced(heard, said, stretches, gain)
    return sorted(breaks, key=lambda one: one.at)


def _delays(heard: Samples, said: Samples, overall_delay: int) -> list[tuple[int, int]]:
    """(start of a probe, its delay), in order. A delay that only one probe has is taken for chance."""
    found: list[tuple[int, int]] = []
    delay = overall_delay
    for start in range(0, max(1, len(said) - _PROBE + 1), _HOP):
        probe = said[start : start + _PROBE]
        if _rms(probe) >= _QUIET and (at := _find(heard, probe, start, delay)) is not None:
            found.append((start, at))
            delay = at
    if len(found) == 1:
        return found
    delays = [None, *(delay for _, delay in found), None]
    return [one for one, *beside in zip(found, delays, delays[2:], strict=False) if one[1] in beside]


def _find(heard: Samples, probe: Samples, start: int, delay: int) -> int | None:
    """The delay of the probe, preferably the one before; None if it was not received."""
    if _alike(_cut(heard, start + delay, len(probe)), probe) >= _SURE:
        return delay
    area = _cut(heard, start + delay - _REACH, len(probe) + 2 * _REACH)
    n = 1 << (len(area) + len(probe)).bit_length()
    cross = np.fft.irfft(np.fft.rfft(area, n) * np.conj(np.fft.rfft(probe, n)), n)[: 2 * _REACH + 1]
    sums = np.concatenate([[0.0], np.cumsum(area**2)])
    energy = sums[len(probe) :] - sums[: -len(probe)]
    # Where nothing is heard, a rounding error is like anything.
    alike = cross / np.sqrt(np.maximum(energy, len(probe)) * float(probe @ probe))
    best = float(alike.max())
    if best < _ALIKE:
        return None
    # Of places as good as one another, as in a tone, the nearest; from there to the top of its hill.
    good = np.flatnonzero(alike >= best - 0.001)
    at = int(good[np.argmin(np.abs(good - _REACH))])
    while 0 < at < 2 * _REACH and max(alike[at - 1], alike[at + 1]) > alike[at]:
        at += 1 if alike[at + 1] > alike[at - 1] else -1
    return at - _REACH + delay


def _gain(heard: Samples, said: Samples, found: list[tuple[int, int]]) -> float:
    """The gain over the received parts. The overall gain is too small if much is lost."""
    gains = []
    for start, delay in found:
        probe = said[start : start + _PROBE]
        gains.append(float(probe @ _cut(heard, start + delay, len(probe))) / float(probe @ probe))
    return float(np.median(gains))


def _joined(
    heard: Samples, said: Samples, found: list[tuple[int, int]], gain: float
) -> tuple[list[_Stretch], list[Break]]:
    """The stretches of one delay each, and the breaks between them, placed where both sides differ least."""
    stretches: list[_Stretch] = []
    breaks: list[Break] = []
    begun, delay = 0, found[0][1]
    last = found[0][0]
    for start, new_delay in found:
        if new_delay != delay:
            missing, put_in = max(0, delay - new_delay), max(0, new_delay - delay)
            first, end = max(begun, last), max(start + _PROBE, last + missing)
            end = min(end, len(said))
            before = _difference(heard, said, first, end, delay, gain)
            after = _difference(heard, said, first, end, new_delay, gain)
            # cost[i]: what differs if the one delay holds up to i samples from `first`, and then the other
            kept = np.concatenate([[0.0], np.cumsum(before**2)])
            rest = np.concatenate([np.cumsum(after[::-1] ** 2)[::-1], [0.0]])
            n = max(1, len(kept) - missing)
            cost = kept[:n] + rest[missing : missing + n]
            at = first + int(np.argmin(cost))
            stretches.append(_Stretch(begun, at, delay))
            breaks.append(_break(heard, at, delay, missing, put_in))
            begun, delay = at + missing, new_delay
        last = start
    stretches.append(_Stretch(begun, len(said), delay))
    return stretches, breaks


def _break(heard: Samples, at: int, delay: int, missing: int, put_in: int) -> Break:
    if missing:
        return Break(Kind.MISSING, at, missing)
    # Said twice and then cut at any place between, what was put in equals at first what follows it, and from some
    # sample on what was before it.
    extra = _cut(heard, at + delay, put_in)
    off_after = np.cumsum((extra - _cut(heard, at + delay + put_in, put_in)) ** 2)
    off_before = np.cumsum(((extra - _cut(heard, at + delay - put_in, put_in)) ** 2)[::-1])[::-1]
    off = np.concatenate([[0.0], off_after]) + np.concatenate([off_before, [0.0]])
    turn = int(np.argmin(off))
    twice = _rms(extra) >= _QUIET and off[turn] <= _OFF**2 * float(extra @ extra)
    return Break(Kind.REPEATED, at + turn - put_in, put_in) if twice else Break(Kind.INSERTED, at, put_in)


def _replaced(heard: Samples, said: Samples, stretches: list[_Stretch], gain: float) -> list[Break]:
    """Where something else was received instead, or nothing because the recording begins later or ends earlier."""
    breaks: list[Break] = []
    # Per stretch, the whole of what differs.
    differences = [_difference(heard, said, one.start, one.end, one.delay, gain) for one in stretches]
    blocks = [_rms(rest[at : at + _BLOCK]) for rest in differences for at in range(0, len(rest), _BLOCK)]
    noise = float(np.median(blocks)) if blocks else 0.0
    for one, rest in zip(stretches, differences, strict=True):
        wrong: list[int] = []
        for at in range(0, len(rest), _BLOCK):
            start = one.start + at
            # A quiet block beside a loud one is judged by the louder: what a codec or a filter adds spills over.
            level = gain * _rms(said[max(0, start - _BLOCK) : start + 2 * _BLOCK])
            allowed = max(_QUIET, _OFF * level, _ABOVE_NOISE * noise)
            outside = start + one.delay < 0 or start + _BLOCK + one.delay > len(heard) + _BLOCK // 2
            if _rms(rest[at : at + _BLOCK]) > (min(allowed, _QUIET) if outside else allowed):
                wrong.append(at)
        for first, last in _runs(wrong):
            part = np.abs(rest[max(0, first - _BLOCK) : last + 2 * _BLOCK])
            large = np.flatnonzero(part > max(_QUIET, _ABOVE_NOISE * noise, 0.1 * float(part.max())))
            if not len(large):  # a quiet end that is missing, beside a codec's noise
                large = np.arange(min(first, _BLOCK), min(len(part), min(first, _BLOCK) + last - first + _BLOCK))
            begun = one.start + max(0, first - _BLOCK) + int(large[0])
            n = int(large[-1] - large[0]) + 1
            lacks = begun + one.delay < 0 or begun + n + one.delay > len(heard)
            breaks.append(Break(Kind.MISSING if lacks else Kind.REPLACED, begun, n))
    return breaks


def _runs(blocks: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive blocks."""
    runs: list[tuple[int, int]] = []
    for at in blocks:
        if runs and at - runs[-1][1] <= 2 * _BLOCK:
            runs[-1] = (runs[-1][0], at)
        else:
            runs.append((at, at))
    return runs


def _difference(heard: Samples, said: Samples, start: int, end: int, delay: int, gain: float) -> Samples:
    difference: Samples = _cut(heard, start + delay, max(0, end - start)) - gain * said[start : max(start, end)]
    return difference


def _alike(there: Samples, probe: Samples) -> float:
    energy = float(there @ there)
    return float(there @ probe) / math.sqrt(energy * float(probe @ probe)) if energy else 0.0


def _cut(signal: Samples, start: int, n: int) -> Samples:
    """`n` samples from `start`, zeros outside the signal."""
    cut = np.zeros(n)
    begin, end = max(0, start), min(len(signal), start + n)
    if begin < end:
        cut[begin - start : end - start] = signal[begin:end]
    return cut


def _rms(signal: Samples) -> float:
    return float(np.sqrt(np.mean(signal**2))) if len(signal) else 0.0
