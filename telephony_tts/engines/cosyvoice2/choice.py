"""What `auto` becomes: the precision of each network, and how many lanes compute, from measured timings. Pure.

    timings   seconds of one core for a second of speech, by network and precision (`device.cpu_timing`)
    share     the cores that this process may use (`runtime.machine_limits`)
    need      bytes of memory for each precision, against what is free (`MemoryNeed`)

A setting that is not `auto` is kept, whatever the timings say. An accelerator needs no timings: there `auto` is float32
and one lane.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from telephony_tts.engines.cosyvoice2.settings import AUTO, INT8, MIXED, Precision
from telephony_tts.runtime.machine_limits import CpuShare

NETWORKS = ("lm", "flow", "vocoder")
BY_EXACTNESS = ("float32", "bfloat16", MIXED, INT8)
"""Precisions that `auto` considers on a CPU, the most exact first."""
WORTH = 1.1
"""A more exact precision is taken if it costs at most this many times as much as the fastest."""
MOST_LANES = 8
"""`auto` takes no more: lanes share the interpreter's lock, and no machine with more cores was measured yet."""
LANE_GAIN = 1.05
"""A further lane is taken if all lanes together then make at least this many times as much speech."""
THREADS_GAIN = 0.7
"""Two threads in each lane are taken if they need at most this share of the time of one."""


@dataclass(frozen=True, slots=True)
class CpuTimings:
    """Seconds of one core for a second of speech, by precision. Without the precisions that the machine lacks."""

    lm: Mapping[str, float]
    """If one stream draws ids."""
    lm_shared: Mapping[str, float]
    """Of each of four streams that draw their ids together."""
    flow: Mapping[str, float]
    vocoder: Mapping[str, float]
    slowdown: float
    """How much longer a lane computes for the same work while a second lane computes: 1 no longer, 2 twice as long."""
    two_threads: float = 1.0
    """Time of the flow with two threads, divided by that with one."""

    def __post_init__(self) -> None:
        """Raises ValueError for timings that cannot be right."""
        numbers = [*self.lm.values(), *self.lm_shared.values(), *self.flow.values(), *self.vocoder.values()]
        numbers += [self.slowdown, self.two_threads]
        if not all(isinstance(n, float | int) and math.isfinite(n) and n > 0 for n in numbers):
            raise ValueError("a timing is not a positive number")
        if set(self.lm) != set(self.lm_shared) or any("float32" not in each for each in (self.lm, self.flow)):
            raise ValueError("a timing is missing")
        if "float32" not in self.vocoder:
            raise ValueError("a timing is missing")

    def without_int8(self) -> CpuTimings:
        """For an engine that cannot compute in int8 (`kernels.library.problem`)."""

        def floats(table: Mapping[str, float]) -> dict[str, float]:
            return {name: seconds for name, seconds in table.items() if name != INT8}

        return replace(self, lm=floats(self.lm), lm_shared=floats(self.lm_shared), flow=floats(self.flow))

    def of(self, network: str) -> Mapping[str, float]:
        """Seconds by precision, with one caller."""
        found: Mapping[str, float] = getattr(self, network)
        return found

    def weighed(self, network: str) -> Mapping[str, float]:
        """Seconds by precision, by which a precision is chosen: of the language model the mean of alone and shared."""
        if network == "lm":
            return {name: (alone + self.lm_shared[name]) / 2 for name, alone in self.lm.items()}
        return self.of(network)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the engine computes with. No value is `auto`."""

    precision: Precision = field(default_factory=Precision)
    n_lanes: int = 1
    n_threads: int = 1
    reasons: tuple[str, ...] = ()
    """One line for each decision, with its figures."""
    warnings: tuple[str, ...] = ()
    """What the operator should know, one line each."""
    timings: CpuTimings | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the settings in the result of a benchmark."""
        return {
            "precision": asdict(self.precision), "workers": self.n_lanes, "threads": self.n_threads,
            "choice": {
                "reasons": list(self.reasons), "warnings": list(self.warnings),
                "timings": None if self.timings is None else asdict(self.timings),
            },
        }  # fmt: skip


def is_auto(precision: Precision, n_lanes: int | None, n_threads: int | None) -> bool:
    """Whether anything is left to choose."""
    return AUTO in (precision.lm, precision.flow, precision.vocoder) or n_lanes is None or n_threads is None


def without_timings(precision: Precision, n_lanes: int | None, n_threads: int | None) -> EngineChoice:
    """float32 and one lane in place of `auto`, as on an accelerator: batches fill it, so a second lane would wait."""
    chosen = Precision(*("float32" if each == AUTO else each for each in _parts(precision)))
    return EngineChoice(chosen, n_lanes or 1, n_threads or 1)


def choose(
    precision: Precision,
    n_lanes: int | None,
    n_threads: int | None,
    timings: CpuTimings,
    share: CpuShare,
    fits: Callable[[Precision], bool] = lambda _: True,
    int8_problem: str | None = None,
) -> EngineChoice:
    """The settings with a value in place of each `auto` (None for lanes and threads).

    Per network the most exact precision that is within 10 % of the fastest. If that does not `fit` into memory, the
    fastest combination that does; if none does, the choice is as if all did, and the caller says so.
    `int8_problem`: why int8 is missing in `timings`.
    """
    wished = Precision(*(_best(timings, network, pinned) for network, pinned in _by_network(precision)))
    chosen = wished
    if not fits(wished):
        chosen = next((each for each in _by_time(timings, precision) if fits(each)), wished)
    lanes = n_lanes or _lanes(timings, share)
    threads = n_threads or _threads(timings, share, lanes)
    reasons = [
        _why(network, part, pinned, timings, int8_problem)
        for (network, pinned), part in zip(_by_network(precision), _parts(chosen), strict=True)
    ]
    if chosen != wished:
        reasons.append(f"{'/'.join(_parts(wished))} would be faster, but does not fit into memory")
    reasons.append(_why_lanes(lanes, threads, n_lanes, n_threads, timings, share))
    warnings = []
    alone = alone_s(timings, chosen, lanes, share)
    if not math.isnan(alone):
        reasons.append(f"a second of speech takes about {alone:.2f} s for one caller")
        if alone > 1:
            warnings.append(
                f"a second of speech takes {alone:.1f} s on {share}: callers hear gaps. Use more or faster cores, a "
                "GPU, or the embedded voice (engines.default: hibari)"
            )
    return EngineChoice(chosen, lanes, threads, tuple(reasons), tuple(warnings), timings)


def alone_s(timings: CpuTimings, precision: Precision, n_lanes: int, share: CpuShare) -> float:
    """Seconds that a second of speech takes for a single caller. NaN if a precision was not timed.

    Two lanes work for one stream, one of them at its ids. A stream has no work for a third.
    """
    seconds = [timings.of(network).get(part, math.nan) for network, part in _by_network(precision)]
    total, busy = sum(seconds), min(n_lanes, 2)
    taken = total if busy == 1 else max(seconds[0], total / 2) * timings.slowdown
    return taken * max(1.0, busy / share.usable)


def speed_of_lanes(n: int, slowdown: float) -> float:
    """Work that `n` lanes do in the time of one, from the slow-down of two.

    The share s of a lane's work that it cannot do while another one does the same, such as reading memory, limits
    them: n / (1 + s (n - 1)), which is Amdahl's law.
    """
    return n / (1 + max(0.0, slowdown - 1) * (n - 1))


def _parts(precision: Precision) -> tuple[str, str, str]:
    return precision.lm, precision.flow, precision.vocoder


def _by_network(precision: Precision) -> list[tuple[str, str]]:
    return list(zip(NETWORKS, _parts(precision), strict=True))


def _best(timings: CpuTimings, network: str, pinned: str) -> str:
    if pinned != AUTO:
        return pinned
    seconds = timings.weighed(network)
    least = min(seconds.values())
    return next(name for name in BY_EXACTNESS if name in seconds and seconds[name] <= WORTH * least)


def _by_time(timings: CpuTimings, precision: Precision) -> Iterator[Precision]:
    """All precisions of the three networks that the settings allow, the fastest first."""
    options = [[part] if part != AUTO else list(timings.of(network)) for network, part in _by_network(precision)]

    def seconds(parts: tuple[str, ...]) -> float:
        return sum(timings.weighed(network).get(part, 0.0) for network, part in zip(NETWORKS, parts, strict=True))

    return (Precision(*parts) for parts in sorted(itertools.product(*options), key=seconds))


def most_lanes(share: CpuShare) -> int:
    """Lanes that may compute at once.

    A part of a core is left to the server: a group that has used up its quota stops until the next period, and the
    server with it. Two logical processors of one core count as one, unless there are only two: then the measured
    slow-down tells what the second one is worth.
    """
    return max(1, min(math.floor(share.usable), max(2, share.n_cores), MOST_LANES))


def _lanes(timings: CpuTimings, share: CpuShare) -> int:
    n = 1
    while n < most_lanes(share):
        gain = speed_of_lanes(n + 1, timings.slowdown) / speed_of_lanes(n, timings.slowdown)
        if gain < LANE_GAIN:
            break
        n += 1
    return n


def _threads(timings: CpuTimings, share: CpuShare, n_lanes: int) -> int:
    has_room = min(math.floor(share.usable), share.n_cores) >= 2 * n_lanes
    return 2 if has_room and timings.two_threads <= THREADS_GAIN else 1


NAMES = {"lm": "language model", "flow": "flow", "vocoder": "vocoder"}


def _why(network: str, chosen: str, setting: str, timings: CpuTimings, int8_problem: str | None) -> str:
    seconds = timings.of(network)
    figures = ", ".join(f"{name} {seconds[name]:.2f}" for name in BY_EXACTNESS if name in seconds)
    if network == "lm":
        together = ", ".join(f"{timings.lm_shared[name]:.2f}" for name in BY_EXACTNESS if name in seconds)
        figures += f"; four callers at once {together}"
    why = f"{NAMES[network]}: {chosen}{'' if setting == AUTO else ' as set'} (seconds for a second of speech: {figures}"
    if int8_problem is not None and network != "vocoder":
        why += f"; no int8: {int8_problem}"
    return why + ")"


def _why_lanes(
    lanes: int, threads: int, n_lanes: int | None, n_threads: int | None, timings: CpuTimings, share: CpuShare
) -> str:
    workers = f"workers: {lanes}{' as set' if n_lanes else ''}, threads: {threads}{' as set' if n_threads else ''}"
    both = f"; two workers at once do the work of {2 / timings.slowdown:.2f}" if most_lanes(share) > 1 else ""
    return f"{workers} ({share}{both})"
