"""Callers of the demo: each call says a few turns, and some callers interrupt."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

TURNS = (
    "Thank you for calling.",
    "Your order was sent this morning.",
    "Good bye.",
)
ANSWER_S = 30.0
INTERRUPTED = 0.25
"""The share of the turns that the caller interrupts."""


@dataclass(slots=True)
class Calls:
    """What came of all calls so far."""

    n_done: int = 0
    by_arm: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


async def make_calls(url: str, token: str, n_calls: int, at_once: int) -> Calls:
    """Make `n_calls` calls, `at_once` at a time."""
    calls, room = Calls(), asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with room:
            try:
                await _call(f"{url}/v1/stream?audio=binary&pace=burst&call=demo-{number}", token, number, calls)
            except (OSError, TimeoutError, WebSocketException) as error:
                calls.errors.append(f"call demo-{number}: {error or type(error).__name__}")

    async with asyncio.TaskGroup() as group:
        for number in range(n_calls):
            group.create_task(one(number))
    return calls


async def _call(address: str, token: str, number: int, calls: Calls) -> None:
    habit = random.Random(number)
    async with connect(address, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as bot:
        ready = await _event(bot, "ready")
        arm = str(ready.get("arm", "in no experiment"))
        calls.by_arm[arm] = calls.by_arm.get(arm, 0) + 1
        for n, text in enumerate(TURNS):
            await bot.send(json.dumps({"type": "say", "text": text, "turn": f"t{n}"}))
            if habit.random() < INTERRUPTED:
                await _event(bot, "started", f"t{n}")
                await bot.send(json.dumps({"type": "clear"}))
            event = await _event(bot, "done", f"t{n}")
            if event["type"] == "error":
                calls.errors.append(f"call demo-{number}: {event['message']}")
    calls.n_done += 1


async def _event(bot: ClientConnection, wanted: str, turn: str | None = None) -> dict[str, str]:
    """The next event of this type, or what ends its turn instead."""
    ends = ("error", "done", "cleared") if turn is not None else ("error",)
    async with asyncio.timeout(ANSWER_S):
        while True:
            message = await bot.recv()
            if isinstance(message, bytes):
                continue
            event: dict[str, str] = json.loads(message)
            if event["type"] == wanted or (event["type"] in ends and event.get("turn") == turn):
                return event
