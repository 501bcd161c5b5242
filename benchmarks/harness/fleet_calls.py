"""Scenarios for `fleet_local.py`: calls that speak while something happens to an engine server or a front."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.calls import TURNS, BotPeer
from harness.lateness import frame_lateness_ms, watch_timers
from harness.report import percentiles

_TURN_END_S = 60.0
_TICK_S = 0.005
_STALL_NS = 10_000_000
_AHEAD_NS = 1_000_000_000


async def watched_speech(spec: dict[str, Any]) -> dict[str, Any]:
    """Calls that speak all the time while something happens to the engines between `from_ns` and `to_ns`.

    Both are times of the monotonic clock, which all processes of the machine share. For each call: how late its frames
    were before, and how much later after `from_ns`: the silence that it heard. The schedule of a call runs on from its
    first frame, so a silence stays visible. Frames that came while this process itself stood still are not judged.
    """
    bots: list[BotPeer] = []
    events: list[list[dict[str, Any]]] = []
    for at in range(spec["calls"]):
        bot = BotPeer(f"watched-{at}", audio="base64")
        await bot.connect(spec["port"])
        seen: list[dict[str, Any]] = []
        bot.talk_without_end(at)
        bot.on_event = _noting(bot.on_event, seen)
        bots.append(bot)
        events.append(seen)
        await asyncio.sleep(1.0 / spec["calls"])  # their frames do not coincide
    lag_ms: list[float] = []
    still: list[tuple[int, int]] = []
    watching = [asyncio.create_task(watch_timers(lag_ms)), asyncio.create_task(_note_stalls(still))]
    await asyncio.sleep(max(0.0, (spec["end_ns"] - time.monotonic_ns()) / 1e9))
    for watch in watching:
        watch.cancel()
    calls = []
    for bot, seen in zip(bots, events, strict=True):
        begin_ns = spec["from_ns"] - spec["before_ns"]
        before = _judged_ms(bot.arrivals_ns, begin_ns, spec["from_ns"], spec["lead_ms"], still)
        after = _judged_ms(bot.arrivals_ns, spec["from_ns"], spec["end_ns"], spec["lead_ms"], still)
        calls.append(
            {
                "frames_before": len(before),
                "frames_after": len(after),
                "late_before_ms": round(max(before, default=0.0), 1),
                "silence_ms": round(max(0.0, max(after, default=1e6) - max(before, default=0.0)), 1),
                "over_20_ms": sum(late > 20 for late in after),
                "done": sum(event["type"] == "done" for event in seen),
                "underruns": sum(event.get("underruns", 0) for event in seen if event["type"] == "done"),
                "replaced": [event["engines"] for event in seen if event["type"] == "done" and event.get("engines")],
                "errors": [event["code"] for event in seen if event["type"] == "error"],
                "is_open": not bot.closed.done(),
            }
        )
        bot.hang_up()
    await asyncio.sleep(0.3)
    stalls_ms = [round((end_ns - begin_ns) / 1e6, 1) for begin_ns, end_ns in still]
    return {"calls": calls, "generator_lag_ms": percentiles(lag_ms), "generator_stalls_ms": stalls_ms}


async def calls_through_restarts(spec: dict[str, Any]) -> dict[str, Any]:
    """`lines` telephone lines with one call after the other, each of about `call_s`, until `end_ns`.

    A bot that begins a call reads the ports of the fronts from the file `ports`. If one front refuses the call, it asks
    the next one. Each call speaks without a pause, and ends when it has spoken for its time and its turn is over. Like
    `watched_speech`, this does not judge frames that came while this process itself stood still.
    """
    found: dict[str, Any] = {"calls": 0, "done": 0, "frames": 0, "refused": 0, "over_20_ms": 0, "cut": [], "late": []}
    lag_ms: list[float] = []
    still: list[tuple[int, int]] = []
    watching = [asyncio.create_task(watch_timers(lag_ms)), asyncio.create_task(_note_stalls(still))]
    async with asyncio.TaskGroup() as group:
        for at in range(spec["lines"]):
            group.create_task(_line(at, spec, still, found))
    for watch in watching:
        watch.cancel()
    stalls_ms = [round((end_ns - begin_ns) / 1e6, 1) for begin_ns, end_ns in still]
    return {**found, "generator_lag_ms": percentiles(lag_ms), "generator_stalls_ms": stalls_ms}


async def _line(at: int, spec: dict[str, Any], still: list[tuple[int, int]], found: dict[str, Any]) -> None:
    await asyncio.sleep(at / spec["lines"])
    number = at
    while time.monotonic_ns() < spec["end_ns"]:
        ports = _open_ports(spec["ports"])
        bot = await _connected(
            f"line-{at}-{number}", [*ports[number % len(ports) :], *ports[: number % len(ports)]], found
        )
        await _speak_for(bot, number, spec["call_s"] * (0.5 + number % 7 / 6), found)
        # Until the engine is `lead_ms` ahead of the first turn, no frame can come as early as the schedule says.
        begin_ns = bot.arrivals_ns[0] + _AHEAD_NS if bot.arrivals_ns else 0
        late_ms = _judged_ms(bot.arrivals_ns, begin_ns, 2 * spec["end_ns"], spec["lead_ms"], still)
        found["calls"] += 1
        found["frames"] += len(late_ms)
        if n_late := sum(late > 20 for late in late_ms):
            found["over_20_ms"] += n_late
            found["late"].append({"call": bot.call, "frames": n_late, "most_ms": round(max(late_ms), 1)})
        number += spec["lines"] + 1


def _open_ports(path: str) -> list[int]:
    ports: list[int] = json.loads(Path(path).read_text(encoding="utf-8"))
    return ports


async def _connected(call: str, ports: Sequence[int], found: dict[str, Any]) -> BotPeer:
    """A bot at the first of these fronts that takes it. Raises ConnectionError if none does."""
    for port in ports:
        bot = BotPeer(call, audio="base64")
        try:
            await bot.connect(port)
        except ConnectionError:
            found["refused"] += 1
            continue
        return bot
    raise ConnectionError(f"no front takes {call}")


async def _speak_for(bot: BotPeer, first: int, seconds: float, found: dict[str, Any]) -> None:
    """Say one turn after the other without a pause, until `seconds` have passed and what was said is over."""
    until_ns = time.monotonic_ns() + round(seconds * 1e9)
    n_said, n_done, over = 0, 0, asyncio.get_running_loop().create_future()

    def say_next() -> None:
        nonlocal n_said
        bot.send({"type": "say", "text": TURNS[(first + n_said) % len(TURNS)]})
        n_said += 1

    def on_event(event: dict[str, Any], _at_ns: int) -> None:
        nonlocal n_done
        if event["type"] in ("cleared", "error"):
            found["cut"].append(
                {"call": bot.call, "event": event["type"], "why": event.get("reason", event.get("code"))}
            )
        if event["type"] != "done":
            return
        n_done += 1
        if time.monotonic_ns() < until_ns:
            say_next()
        elif n_done == n_said and not over.done():
            over.set_result(None)

    bot.on_event = on_event
    say_next()
    say_next()
    done, _ = await asyncio.wait([over, bot.closed], timeout=seconds + _TURN_END_S, return_when=asyncio.FIRST_COMPLETED)
    if over not in done:
        found["cut"].append({"call": bot.call, "event": "closed" if done else "no end", "why": None})
        over.cancel()
    found["done"] += n_done
    bot.hang_up()


async def _note_stalls(still: list[tuple[int, int]]) -> None:
    """Note when this process stood still for more than `_STALL_NS`, until cancelled."""
    while True:
        asked_ns = time.monotonic_ns()
        await asyncio.sleep(_TICK_S)
        woke_ns = time.monotonic_ns()
        if woke_ns - asked_ns > _STALL_NS:
            still.append((asked_ns, woke_ns))


def _judged_ms(
    arrivals_ns: Sequence[int], begin_ns: int, end_ns: int, lead_ms: int, still: Sequence[tuple[int, int]]
) -> list[float]:
    """`frame_lateness_ms` without the frames that waited in the socket while this process stood still."""
    late_ms = frame_lateness_ms(arrivals_ns, begin_ns, end_ns, lead_ms)
    came = [at_ns for at_ns in arrivals_ns if begin_ns <= at_ns < end_ns]
    return [
        late
        for at_ns, late in zip(came, late_ms, strict=True)
        if not any(from_ns <= at_ns <= to_ns + _STALL_NS for from_ns, to_ns in still)
    ]


def _noting(
    inner: Callable[[dict[str, Any], int], None] | None, seen: list[dict[str, Any]]
) -> Callable[[dict[str, Any], int], None]:
    def on_event(event: dict[str, Any], at_ns: int) -> None:
        seen.append(event)
        if inner is not None:
            inner(event, at_ns)

    return on_event
