"""The soak: many long calls of the core on a virtual clock, in several processes, and the slope of their memory. With
`--real` a real server is called for some minutes instead."""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import time
from dataclasses import dataclass

import numpy as np
from harness.process import give_back_unused, resident_kib
from harness.report import table

from torture import report
from torture.histories import make_round, only
from torture.violations import CHECKS, Tally

_BATCH = 20
"""Calls between two samples of the memory."""
_ROUND_CALLS, _ROUND_STEPS, _ROUND_S = 24, 8, 3.0
"""Of a round of a real server, between two samples of its memory."""
_ALLOWED_GROWTH = 0.5
"""Percent, of the last quarter against the second."""


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
        (chosen.seed * 1_000_000 + at * n_each, min(n_each, chosen.calls - at * n_each), chosen.call_minutes)
        for at in range(chosen.processes)
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        shares = pool.starmap(soak, parts)
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
    for each in tally.violations[:5]:
        print(f"  {each.check}: {each.what} (seed {each.call})")
    is_grown = any(each["last quarter vs second, %"] > _ALLOWED_GROWTH for each in slopes)
    if chosen.json is not None:
        report.save(chosen, "soak", {
            "held": not tally.violations and not is_grown, "figures": figures, "checks": report.checks(tally),
            "counts": dict(sorted(tally.counts.items())), "heard": report.heard(tally), "memory": slopes,
            "resident_kib": [share.resident_kib for share in shares],
        })  # fmt: skip
    return 1 if tally.violations or is_grown else 0


def run_server_soak(chosen: argparse.Namespace) -> int:
    """Call a real server for some minutes, round after round, and judge what it holds after each. 1 if it grows."""
    from torture.round_run import judge_rest, run_round, warm_up
    from torture.runner import in_loop
    from torture.subject import Subject

    tally, sizes = Tally(), []
    begun_s = time.monotonic()
    with Subject("one") as subject:
        before = in_loop(warm_up(subject))
        number = 0
        while time.monotonic() < begun_s + chosen.minutes * 60:
            whole = make_round(
                chosen.seed, number, shape="one", n_calls=_ROUND_CALLS, seconds=_ROUND_S, most_steps=_ROUND_STEPS
            )
            found = in_loop(run_round(only(whole, list(whole.calls), []), subject))
            sizes.append(in_loop(judge_rest(subject, before, found)).resident_kib)
            tally.add(found)
            number += 1
        subject.drain()
    grown = slope(sizes, _ROUND_CALLS)
    seconds = round(time.monotonic() - begun_s)
    figures = {"calls": tally.counts["calls"], "turns": tally.counts["turns"], "rounds": number, "seconds": seconds}
    table("a real server", ("what", "n"), [*figures.items(), *grown.items()])
    for each in tally.violations[:5]:
        print(f"  {each.check}: {each.what}")
    is_grown = not grown["last quarter vs second, %"] <= _ALLOWED_GROWTH
    if chosen.json is not None:
        report.save(chosen, "server soak", {
            "held": not tally.violations and not is_grown, "figures": figures, "memory": grown,
            "checks": report.checks(tally), "resident_kib": sizes,
        })  # fmt: skip
    return 1 if tally.violations or is_grown else 0


def soak(first: int, n_calls: int, minutes: float) -> Share:
    """The calls of these seeds."""
    from torture.virtual_calls import run_calls

    share = Share(Tally(), [])
    gc.set_threshold(50_000)  # a collection after each batch finds what is left
    for at in range(first, first + n_calls, _BATCH):
        share.tally.add(run_calls(range(at, min(at + _BATCH, first + n_calls)), minutes, at_once=4))
        gc.collect()
        give_back_unused()
        share.resident_kib.append(resident_kib(multiprocessing.current_process().pid or 0))
    return share


def slope(sizes: list[int], n_calls: int) -> dict[str, float]:
    """How memory grew, of which there is a sample after each `n_calls`: the last quarter against the second in percent,
    and a line through the last three quarters with the confidence of its slope."""
    quarter = len(sizes) // 4
    if quarter < 2:
        return {"last quarter vs second, %": math.nan, "KiB per 1000 calls": math.nan, "confidence 95 %": math.nan}
    settled = np.array(sizes[quarter:], float)
    at = np.arange(len(settled)) * n_calls / 1000
    steepness, start = np.polyfit(at, settled, 1)
    rest = settled - (steepness * at + start)
    error = math.sqrt(float((rest**2).sum()) / max(1, len(at) - 2) / float(((at - at.mean()) ** 2).sum()))
    second, last = np.mean(sizes[quarter : 2 * quarter]), np.mean(sizes[-quarter:])
    return {
        "last quarter vs second, %": round(float((last / second - 1) * 100), 3),
        "KiB per 1000 calls": round(float(steepness), 1),
        "confidence 95 %": round(1.96 * error, 1),
    }


def n_wrong(tally: Tally, check: str) -> int:
    return sum(each.check == check for each in tally.violations)
