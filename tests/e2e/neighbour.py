"""An undisturbed call beside one that misbehaves. It checks afterwards that its audio was complete and on time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rig import FRAME_MS, Bot, Rig

TEXT = "Hi you."
LEAD_MS = 200
_alone: list[bytes] = []
"""The frames of `TEXT` in a quiet server, kept for the whole test run."""


@asynccontextmanager
async def neighbour(rig: Rig, **options: Any) -> AsyncIterator[Bot]:
    """A bot that speaks over and over during the body. Each turn must be bit-exact, and every frame must be on time:
    a player that starts with the first frame has no underrun. `options` are added to its address."""
    rig.make_http()  # not while the bot speaks
    async with rig.bot(audio="binary", lead_ms=LEAD_MS, **options) as bot:
        if not _alone:
            _alone.extend((await _turn(bot, "alone"))[1])
        stop = asyncio.Event()
        turns: list[tuple[list[float], list[bytes]]] = []

        async def speak() -> None:
            while not stop.is_set() or not turns:
                turns.append(await _turn(bot, f"n{len(turns)}"))

        speaking = asyncio.create_task(speak())
        try:
            yield bot
        finally:
            stop.set()
            await speaking
        for times, frames in turns:
            assert frames == _alone, "the neighbour's audio changed"
            late_ms = max((at - times[0]) * 1000 - n * FRAME_MS for n, at in enumerate(times))
            assert late_ms <= 0, f"the neighbour heard a gap of {late_ms:.0f} ms"


async def _turn(bot: Bot, turn: str) -> tuple[list[float], list[bytes]]:
    n_before = len(bot.log)
    begun: dict[str, Any] = {"type": "say", "turn": turn, "text": TEXT}
    await bot.send(begun)
    await bot.event("done", turn=turn)
    heard = [(at, entry) for at, entry in bot.log[n_before:] if isinstance(entry, bytes)]
    assert time.monotonic() > heard[0][0]
    return [at for at, _ in heard], [entry for _, entry in heard]
