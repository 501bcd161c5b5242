"""The engine under load, as `bench engine` measures it, with one start of the engine for all loads of a precision.

    closed N     N callers, each with a few turns; all begin at once
    callers N    the same, for the search of the most callers without a gap
    rate R       R turns a second at Poisson times, for the search of the highest rate without a gap
    open R       the same at low rates
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gpu.check import Check
from gpu.side import PROMPT_S
from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog
from telephony_tts.bench import machine, runs
from telephony_tts.bench.load import Callers, Load
from telephony_tts.bench.report import write_result
from telephony_tts.engines.api import Engine, Utterance
from telephony_tts.engines.cosyvoice2 import random_speech
from telephony_tts.runtime import event_loop
from telephony_tts.runtime.errors import EngineError

LOAD_LIMIT_S = 60.0
"""A load that takes longer has failed: the engine hangs."""


def run(check: Check) -> None:
    """See the module. Every load is a unit; the JSON of `bench engine` is written at the end of the part."""
    with (
        event_loop.quick_turns(),
        random_speech.random_model(check.size, PROMPT_S, check.weights / check.size) as directory,
    ):
        settings = config.load(
            None,
            {
                "engines.default": "cosyvoice2",
                "engines.cosyvoice2.model": str(directory),
                "engines.cosyvoice2.device": check.device.engine_device,
                "engines.cosyvoice2.dtype": check.dtype,
                "engines.cosyvoice2.slots": check.plan.slots,
            },
        )
        # The engine's counters are not read, and waiting for them would take 3 s of each load.
        runs.TOLD_WITHIN_S = 0.0
        try:
            asyncio.run(_measure(check, settings))
        finally:
            write_document(check)


async def _measure(check: Check, settings: config.Config) -> None:
    plan, part = check.plan, check.run
    seconds = random_speech.random_seconds(plan.seconds)
    engine = next(engine for engine in build_catalog(settings).engines if engine.name == "cosyvoice2")
    say = utterances(plan.seconds)
    with part.unit("start") as found:
        part.tell("the engine starts")
        await engine.start()
        warming = Callers(engine, say, Load(1, 1, seconds).warm_up())
        await warming.run()
        if warming.turns[0].error is not None:
            raise EngineError(f"the first turn failed: {warming.turns[0].error}")
        found({"slots": plan.slots, "turn_s": seconds})
    if "start" in part.failed:
        await engine.close()
        return
    measured = LoadRows(check, engine, say)
    try:
        for n, n_turns in plan.closed:
            await measured.row(f"closed {n}", Load(n, n_turns, seconds))
        # The loads above are tries as well: numbers of callers that held need no second look.
        tries = {float(n): await measured.holds(f"closed {n}") for n, _ in plan.closed}

        async def callers_hold(n: float) -> bool:
            return await measured.holds(f"callers {n:g}", Load(int(n), plan.search_turns, seconds))

        await most(callers_hold, plan.callers, plan.closeness, tries)

        async def rate_holds(rate: float) -> bool:
            return await measured.holds(f"rate {rate:g}", Load.at_rate(rate, plan.search_turns, seconds))

        await most(rate_holds, plan.rates, plan.closeness, {})
        for n, n_turns in plan.closed_later:
            await measured.row(f"closed {n}", Load(n, n_turns, seconds))
        for rate in plan.open_rates:
            await measured.row(f"open {rate:g}", Load.at_rate(rate, plan.open_turns, seconds))
    finally:
        await engine.close()


class LoadRows:
    """The loads of a part, each measured once."""

    def __init__(self, check: Check, engine: Engine, say: Callable[[int, int], Utterance]) -> None:
        self._check, self._engine, self._say = check, engine, say

    async def row(self, unit: str, load: Load | None = None) -> dict[str, Any] | None:
        """The row of a load; None if it could not be measured."""
        part = self._check.run
        if load is not None and part.wants(unit):
            with part.unit(unit) as found:
                rows: list[dict[str, Any]] = []
                work = runs.run(self._engine, self._say, load, self._check.device.engine_device, rows, part.tell)
                await asyncio.wait_for(work, LOAD_LIMIT_S)
                rows[0].pop("counters", None)
                found({"row": rows[0]})
        line = part.results.result(part.part, unit)
        return None if line is None else dict(line["row"])

    async def holds(self, unit: str, load: Load | None = None) -> bool:
        row = await self.row(unit, load)
        return row is not None and bool(row["holds"])


async def most(
    holds: Callable[[float], Awaitable[bool]],
    ladder: Sequence[float],
    closeness: float,
    known: dict[float, bool],
) -> float | None:
    """The highest value that holds, up to the ladder's last: first the ladder's values, then between the highest that
    held and the lowest that did not, until they are within a factor of `closeness`. None if no value holds.

    `known` has values that were tried before. No value above one that failed is tried."""
    high = min((value for value, held in known.items() if not held), default=None)
    low = max((value for value, held in known.items() if held and (high is None or value < high)), default=None)
    for value in ladder:
        if high is not None and value >= high:
            break
        if await holds(value):
            low = value if low is None else max(low, value)
        else:
            high = value
    while high is not None and low is not None and high / low > closeness:
        middle = float(round((low * high) ** 0.5)) if high - low > 2 else (low + high) / 2
        if middle in (low, high) or (float(high).is_integer() and float(low).is_integer() and high - low <= 1):
            break
        if await holds(middle):
            low = middle
        else:
            high = middle
    return low


def utterances(seconds: float) -> Callable[[int, int], Utterance]:
    """A function that makes the utterance of a turn of the random model."""
    text, voice = random_speech.random_text(seconds), random_speech.random_voice(PROMPT_S)

    def say(index: int, now_ns: int) -> Utterance:
        return Utterance(f"turn {index}", text, voice=voice, seed=index, deadline_ns=now_ns)

    return say


def rows_of(lines: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a part's units, in the order in which they were measured."""
    return [line["row"] for line in lines.values() if "row" in line]


def write_document(check: Check) -> None:
    """The rows so far in the form of `bench engine --json`, for `bench plot`."""
    rows = rows_of(check.run.results.units(check.run.part))
    if rows:
        settings: dict[str, Any] = {"model": f"random {check.size}", "dtype": check.dtype}
        settings |= {"device": check.device.engine_device}
        settings |= {"seconds": random_speech.random_seconds(check.plan.seconds), "slots": check.plan.slots}
        write_result(
            check.out / f"loads-{check.dtype}.json",
            machine=machine.machine(check.device.engine_device),
            commit=machine.commit(),
            settings=settings,
            results=rows,
        )
