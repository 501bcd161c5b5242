"""The events of a run's turns, and the figures computed from them. Pure: all times are arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
LONG_UNDERRUN_MS = 100
"""A listener takes a longer silence within a sentence for its end."""

Figure = float | int | None


@dataclass(slots=True)
class TurnRecord:
    """The times of one utterance since it was asked for, in nanoseconds of one clock.

    `arrivals` are (when a piece of audio came, its length). A cancelled turn has `cancel_ns`, the time of the cancel;
    its `ended_ns` is the time at which the engine had released it. A turn that was active at the end of the run has no
    `ended_ns`.
    """

    asked_ns: int
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    audible_ns: int | None = None
    """When the listener first hears something. None if nothing so far is loud enough."""
    ended_ns: int | None = None
    cancel_ns: int | None = None
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the turn was spoken to its end."""
        return bool(self.arrivals) and self.ended_ns is not None and self.cancel_ns is None and self.error is None

    @property
    def sound_ns(self) -> int:
        return sum(sound_ns for _, sound_ns in self.arrivals)


class Listener:
    """Hears the first audio when it comes, then silence wherever the next audio is late: an underrun."""

    def __init__(self) -> None:
        self.until_ns: int | None = None
        """When all audio so far will have been heard; None before the first."""
        self.underruns_ns: list[int] = []

    def arrive(self, now_ns: int, sound_ns: int) -> int:
        """Take audio of a length. Returns when the listener begins to hear it."""
        if self.until_ns is not None and now_ns > self.until_ns:
            self.underruns_ns.append(now_ns - self.until_ns)
        begins_ns = max(now_ns, self.until_ns or now_ns)
        self.until_ns = begins_ns + sound_ns
        return begins_ns


def underruns_ms(turn: TurnRecord) -> list[float]:
    """The lengths of the silences that a listener heard within the turn."""
    listener = Listener()
    for now_ns, sound_ns in turn.arrivals:
        listener.arrive(now_ns, sound_ns)
    return [silence_ns / NS_PER_MS for silence_ns in listener.underruns_ns]


def percentile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank: the smallest value that `share` of all values do not exceed. None for no values."""
    if not values:
        return None
    rank = math.ceil(round(share * len(values), 9))  # 0.95 * 20 is slightly more than 19
    return sorted(values)[max(0, rank - 1)]


def holds(row: Mapping[str, object]) -> bool:
    """Whether a load went well by the strict measure: no turn failed or was silent, and no listener heard a gap of any
    length."""
    is_whole = bool(row["turns"]) and not row.get("interrupted")
    return is_whole and not row["failed"] and not row["silent"] and not row["underruns"]


def _spread(name: str, values: Sequence[float]) -> dict[str, Figure]:
    """p50, p95, p99, and the interquartile range: p75 - p25."""
    low, high = percentile(values, 0.25), percentile(values, 0.75)
    spread = None if low is None or high is None else high - low
    shares = {f"{name}_p{n}": _rounded(percentile(values, n / 100)) for n in (50, 95, 99)}
    return {**shares, f"{name}_iqr": _rounded(spread)}


def figures(turns: Sequence[TurnRecord]) -> dict[str, Figure]:
    """The figures of a run. A figure is None without data, such as the first audio if all turns failed.

    first_gap       the first silence within a turn, as long as its listener hears it; 0 for a turn without one
    rtf             seconds from the request to the last audio ÷ seconds of audio, for turns spoken to their end
    c100            share of turns without an underrun above 100 ms. A failed turn counts as one with an underrun. A
                    cancelled turn counts by what was heard of it
    silent          turns spoken to their end in which nothing was loud enough to be heard
    """
    whole = [turn for turn in turns if turn.is_whole]
    audible_ms = [(turn.audible_ns - turn.asked_ns) / NS_PER_MS for turn in turns if turn.audible_ns is not None]
    first_ms = [(turn.arrivals[0][0] - turn.asked_ns) / NS_PER_MS for turn in turns if turn.arrivals]
    of_turns = [underruns_ms(turn) for turn in turns]
    silences = [silence for of_turn in of_turns for silence in of_turn]
    first_gaps = [next(iter(gaps), 0.0) for turn, gaps in zip(turns, of_turns, strict=True) if turn.arrivals]
    cancelled = [turn for turn in turns if turn.cancel_ns is not None]
    cancel_ms = [
        (turn.ended_ns - turn.cancel_ns) / NS_PER_MS
        for turn in cancelled
        if turn.ended_ns is not None and turn.cancel_ns is not None
    ]
    # A turn that was active at the end of the run counts like a cancelled one.
    judged = [turn for turn in turns if turn.arrivals or turn.error is not None]
    n_smooth = sum(turn.error is None and max(underruns_ms(turn), default=0) <= LONG_UNDERRUN_MS for turn in judged)
    ends_ns = [turn.ended_ns for turn in turns if turn.ended_ns is not None]
    ends_ns += [turn.arrivals[-1][0] for turn in turns if turn.arrivals]
    wall_ns = max(ends_ns) - min(turn.asked_ns for turn in turns) if ends_ns else 0
    sound_ns = sum(turn.sound_ns for turn in turns)
    turns_ns = sum(turn.arrivals[-1][0] - turn.asked_ns for turn in whole)
    return {
        "turns": len(turns),
        "failed": sum(turn.error is not None for turn in turns),
        "silent": sum(turn.audible_ns is None for turn in whole),
        "cancelled": len(cancelled),
        **_spread("first_audio_ms", first_ms),
        **_spread("audible_ms", audible_ms),
        "first_gap_ms_p50": _rounded(percentile(first_gaps, 0.5)),
        "first_gap_ms_max": _rounded(max(first_gaps, default=None)),
        "rtf": _ratio(turns_ns, sum(turn.sound_ns for turn in whole)),
        "audio_seconds_per_second": _ratio(sound_ns, wall_ns),
        "c100": _ratio(n_smooth, len(judged)),
        "underruns": len(silences),
        "underrun_ms_max": _rounded(max(silences, default=None)),
        "cancel_ms_p50": _rounded(percentile(cancel_ms, 0.5)),
        "cancel_ms_p95": _rounded(percentile(cancel_ms, 0.95)),
        "audio_s": round(sound_ns / NS_PER_S, 3),
        "wall_s": round(wall_ns / NS_PER_S, 3),
    }


def errors(turns: Sequence[TurnRecord], n_max: int = 3) -> list[str]:
    """The messages of failed turns, each once, at most `n_max`."""
    return list(dict.fromkeys(turn.error for turn in turns if turn.error is not None))[:n_max]


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
