"""What happened in the turns of a run, and the figures that follow from it. Pure: times come from outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
LONG_UNDERRUN_MS = 100
"""A listener takes a longer silence within a sentence for the end of it."""

Figure = float | int | None


@dataclass(slots=True)
class TurnRecord:
    """One utterance, from when it was asked for; all times in nanoseconds of one clock.

    `arrivals` are (when a piece of sound came, how long it sounds). A turn that was cancelled has `cancel_ns`, when the
    engine was told, and in `ended_ns` when it had let go. One that the end of the run broke off has no `ended_ns`.
    """

    asked_ns: int
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    ended_ns: int | None = None
    cancel_ns: int | None = None
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it was spoken to its end."""
        return bool(self.arrivals) and self.ended_ns is not None and self.cancel_ns is None and self.error is None

    @property
    def sound_ns(self) -> int:
        return sum(sound_ns for _, sound_ns in self.arrivals)


class Listener:
    """A listener: hears the first sound when it comes, and silence wherever the next one is late."""

    def __init__(self) -> None:
        self.until_ns: int | None = None
        """When all that has come will have been heard; None before the first sound."""
        self.underruns_ns: list[int] = []

    def arrive(self, now_ns: int, sound_ns: int) -> None:
        if self.until_ns is not None and now_ns > self.until_ns:
            self.underruns_ns.append(now_ns - self.until_ns)
        self.until_ns = max(now_ns, self.until_ns or now_ns) + sound_ns


def underruns_ms(turn: TurnRecord) -> list[float]:
    """The silences that a listener of the turn heard within it."""
    listener = Listener()
    for now_ns, sound_ns in turn.arrivals:
        listener.arrive(now_ns, sound_ns)
    return [silence_ns / NS_PER_MS for silence_ns in listener.underruns_ns]


def percentile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank: the least value that `share` of all do not exceed. None of no values."""
    if not values:
        return None
    rank = math.ceil(round(share * len(values), 9))  # 0.95 * 20 is a hair more than 19
    return sorted(values)[max(0, rank - 1)]


def figures(turns: Sequence[TurnRecord]) -> dict[str, Figure]:
    """The figures of a run; None where nothing tells, such as the first audio of turns that all failed.

    rtf             seconds from asking to the last sound ÷ seconds of sound, of turns spoken to their end
    c100            share of turns without an underrun above 100 ms; one that failed counts against it, one that was
                    cancelled is judged by what was heard of it
    """
    whole = [turn for turn in turns if turn.is_whole]
    first_ms = [(turn.arrivals[0][0] - turn.asked_ns) / NS_PER_MS for turn in turns if turn.arrivals]
    silences = [silence for turn in turns for silence in underruns_ms(turn)]
    cancelled = [turn for turn in turns if turn.cancel_ns is not None]
    cancel_ms = [
        (turn.ended_ns - turn.cancel_ns) / NS_PER_MS
        for turn in cancelled
        if turn.ended_ns is not None and turn.cancel_ns is not None
    ]
    # One that the end of the run broke off is judged like a cancelled one.
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
        "cancelled": len(cancelled),
        **{f"first_audio_ms_p{n}": _rounded(percentile(first_ms, n / 100)) for n in (50, 95, 99)},
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


def errors(turns: Sequence[TurnRecord], n_most: int = 3) -> list[str]:
    """What the failed turns said, each thing once."""
    return list(dict.fromkeys(turn.error for turn in turns if turn.error is not None))[:n_most]


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
