"""The soak: many long calls of the core on a virtual clock, in several processes, and the slope of their memory. With
`--real` a real server is called for some minutes instead."""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import queue
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess

from harness.process import give_back_unused, resident_kib
from harness.report import table

from torture import report
from torture import violations as v
from torture.histories import make_round, only
from torture.memory import ALLOWED_GROWTH, ProcessMemory, growth_interval, slope
from torture.violations import CHECKS, Tally, Violation

_BATCH = 20
"""Calls between two samples of the memory."""
_ALLOCATOR = "PYTHONMALLOC", "malloc"
"""Python's own allocator takes memory in pieces of 1 MiB, and one small object that stays keeps a whole one: 1.4 % of
such a process. The C library gives each free page back."""
_SAY_S, _LOOK_S = 60.0, 5.0
"""Between two lines of progress, and between two looks whether a process has died."""
_MOST_SHOWN = 20
"""So many violations are shown when they are found. The result counts all."""
_ROUND_STEPS, _ROUND_S = 5, 3.0
"""Of a round of a real server, between two samples of its memory."""
_PEAK = 2
"""So many times more calls at once are in the first round, before the first sample. An allocator keeps what the busiest
moment needed, and no later round shall be as busy."""


@dataclass
class Share:
    """What one process has done."""

    tally: Tally
    resident_kib: list[int]
    """After each batch."""


def run_soak(chosen: argparse.Namespace) -> int:
    """Run the calls, print and keep what was found. 1 if something did not hold."""
    begun_s = time.monotonic()
    n_each = math.ceil(chosen.calls / chosen.processes)
    parts = [
        range(chosen.seed * 1_000_000 + at * n_each, chosen.seed * 1_000_000 + min((at + 1) * n_each, chosen.calls))
        for at in range(chosen.processes)
    ]
    shares = soak(parts, chosen.call_minutes, lambda line: print(line, flush=True))
    tally = Tally()
    for share in shares:
        tally.add(share.tally)
    slopes = [slope(share.resident_kib, _BATCH) for share in shares]
    seconds = time.monotonic() - begun_s
    hours = tally.counts["virtual seconds"] / 3600
    rows = [(check, f"{tally.n_checked[check]:,}", n_wrong(tally, check)) for check in CHECKS if tally.n_checked[check]]
    table("what must hold", ("check", "judged", "did not hold"), rows)
    figures = {
        "calls": tally.counts["calls"], "hours of calls": round(hours), "turns": tally.counts["turns"],
        "frames": tally.counts["frames"], "seconds": round(seconds),
    }  # fmt: skip
    table("what was tried", ("what", "n"), [(name, f"{n:,}") for name, n in figures.items()])
    for at, found in enumerate(slopes):
        grown, steepness, error = found.values()
        print(f"process {at}: the memory of the last quarter against the second: {grown:+.2f} %")
        print(f"process {at}: {steepness:.0f} ± {error:.0f} KiB per 1000 calls")
    limits = [growth_interval(share.resident_kib)[1] for share in shares]
    is_grown = any(most > ALLOWED_GROWTH for most in limits if math.isfinite(most))
    if not all(map(math.isfinite, limits)):
        print(f"the memory was not judged: that needs {8 * _BATCH} calls for each process")
    if chosen.json is not None:
        report.save(chosen, "soak", {
            "held": not tally.violations and not is_grown, "figures": figures, "checks": report.checks(tally),
            "counts": dict(sorted(tally.counts.items())), "heard": report.heard(tally), "memory": slopes,
            "resident_kib": [share.resident_kib for share in shares],
        })  # fmt: skip
    return 1 if tally.violations or is_grown else 0


def run_server_soak(chosen: argparse.Namespace) -> int:
    """Call a real server for some minutes, round after round, and judge what its processes hold after each. 1 if they
    grow."""
    begun_s = time.monotonic()
    shape = chosen.shape or "one"
    tally, memories = soak_server(
        shape, chosen.seed, chosen.per_round, lambda n: time.monotonic() < begun_s + chosen.minutes * 60,
        chosen.defect, are_short=chosen.short,
    )  # fmt: skip
    figures = {
        "calls": tally.counts["calls"], "turns": tally.counts["turns"], "rounds": tally.counts["rounds"],
        "seconds": round(time.monotonic() - begun_s),
    }  # fmt: skip
    kind = f"{shape}, short calls" if chosen.short else shape
    table(f"a real server, {kind}", ("what", "n"), list(figures.items()))
    told = {memory.name: memory.figures() for memory in memories}
    for name, of_process in told.items():
        shown = [(what, value) for what, value in of_process.items() if what != "resident_kib"]
        table(name, ("memory", "figure"), shown)
    for each in tally.violations[:8]:
        print(f"  {each.check}: {each.what}")
    if chosen.json is not None:
        report.save(chosen, f"server soak, {kind}", {
            "held": not tally.violations, "figures": figures, "memory": told, "checks": report.checks(tally),
            "found": [f"{each.check}: {each.what}" for each in tally.violations[:20]],
        })  # fmt: skip
    return 1 if tally.violations else 0


def soak_server(
    shape: str, seed: int, n_calls: int, goes_on: Callable[[int], bool], defects: Sequence[str] = (), *,
    are_short: bool = False,
) -> tuple[Tally, list[ProcessMemory]]:  # fmt: skip
    """Rounds of `n_calls` without faults, as long as `goes_on(number)`, after a first round of more calls at once. What
    did not hold, and the memory of each process after each round but the first."""
    from torture.round_run import judge_end, judge_rest, run_round, warm_up
    from torture.runner import in_loop
    from torture.short_calls import AT_ONCE as SHORT_AT_ONCE
    from torture.short_calls import run_short_calls
    from torture.subject import Subject

    tally, number = Tally(), 0
    with Subject(shape, defects=defects, keeps_sounds=True) as subject:
        before = in_loop(warm_up(subject))
        memories = {pid: ProcessMemory(name, n_calls) for name, pid in _numbered(subject.processes()).items()}

        def round_of(number: int, times: int = 1) -> Tally:
            """A round of `times` as many calls at once. Numbers of 0 and more are those of the rounds that count."""
            if are_short:
                ports = subject.port, subject.media_port
                found = in_loop(run_short_calls(shape, *ports, times * n_calls, at_once=times * SHORT_AT_ONCE))
            else:
                whole = make_round(
                    seed, number, shape=shape, n_calls=times * n_calls, seconds=_ROUND_S, most_steps=_ROUND_STEPS
                )
                found = in_loop(run_round(only(whole, list(whole.calls), []), subject))
            in_loop(judge_rest(subject, before, found))
            return found

        tally.violations += round_of(-1, _PEAK).violations
        while goes_on(number):
            found = round_of(number)
            for pid, memory in memories.items():
                if (told := subject.look_inside(pid)) is None:
                    found.violations.append(Violation(v.LEAKS, f"{memory.name} does not tell what it holds"))
                else:
                    memory.add(told)
            tally.add(found)
            number += 1
        ending = Tally()
        judge_end(subject, ending, may_fail=False)
        tally.add(ending)
    for memory in memories.values():
        tally.n_checked[v.LEAKS] += 1
        tally.violations += [Violation(v.LEAKS, problem) for problem in memory.problems()]
    return tally, list(memories.values())


def _numbered(processes: Mapping[str, int]) -> dict[str, int]:
    """The same processes, with names that are alike in all runs: "front 1" for "front 20713"."""
    seen: Counter[str] = Counter()
    named = {}
    for name, pid in processes.items():
        kind = name.partition(" ")[0]
        seen[kind] += 1
        named[f"{kind} {seen[kind]}" if kind == "front" else kind] = pid
    return named


def soak(parts: Sequence[range], minutes: float, say: Callable[[str], None], *, batch: int = _BATCH) -> list[Share]:
    """Run the calls of these seeds, each part in a process. Show the first violations at once, and say every minute
    how far they are. Ctrl-C ends it: the calls of whole batches count. Raises RuntimeError if a process ends early."""
    context = multiprocessing.get_context("spawn")
    done: multiprocessing.Queue[tuple[int, Tally, int]] = context.Queue()
    processes = [
        context.Process(target=run_part, args=(at, part, batch, minutes, done), daemon=True)
        for at, part in enumerate(parts)
    ]
    shares = [Share(Tally(), []) for _ in parts]
    n_left = sum(len(range(0, len(part), batch)) for part in parts)
    n_shown = _MOST_SHOWN
    begun_s = said_s = time.monotonic()
    try:
        _start(processes)
        while n_left:
            try:
                at, found, size_kib = done.get(timeout=_LOOK_S)
            except queue.Empty:
                ended = [process.exitcode for process in processes]
                if any(ended) or None not in ended:
                    raise RuntimeError("a process of the soak ended early; its error is above") from None
                continue
            n_left -= 1
            shares[at].tally.add(found)
            shares[at].resident_kib.append(size_kib)
            for each in found.violations[: max(0, n_shown)]:
                say(f"  {each.check}: {each.what} (seed {each.call})")
            n_shown -= len(found.violations)
            if time.monotonic() > said_s + _SAY_S or not n_left:
                said_s = time.monotonic()
                say(_progress(shares, sum(map(len, parts)), said_s - begun_s))
    except KeyboardInterrupt:
        say("stopped: what follows is of the calls that were judged before")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
    return shares


def _start(processes: Sequence[SpawnProcess]) -> None:
    """Start them with `_ALLOCATOR`."""
    name, allocator = _ALLOCATOR
    before = os.environ.get(name)
    os.environ[name] = allocator
    try:
        for process in processes:
            process.start()
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _progress(shares: Sequence[Share], n_calls: int, seconds: float) -> str:
    counts = sum((share.tally.counts for share in shares), Counter[str]())
    n_violations = sum(len(share.tally.violations) for share in shares)
    return (
        f"{seconds / 60:6.1f} min: {counts['calls']:,} of {n_calls:,} calls, {counts['turns']:,} turns, "
        f"{n_violations} violations"
    )


def run_part(
    at: int, seeds: range, batch: int, minutes: float, done: multiprocessing.Queue[tuple[int, Tally, int]]
) -> None:
    """The main function of a process of the soak: the calls of these seeds. After each batch, what was found and the
    memory go to `done`."""
    from torture.virtual_calls import run_calls

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    gc.set_threshold(50_000)  # a collection after each batch finds what is left
    for first in range(0, len(seeds), batch):
        found = run_calls(seeds[first : first + batch], minutes, at_once=4)
        gc.collect()
        give_back_unused()
        done.put((at, found, resident_kib(os.getpid())))


def n_wrong(tally: Tally, check: str) -> int:
    return sum(each.check == check for each in tally.violations)
