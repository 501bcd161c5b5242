"""A started engine and its parts, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from conformance import Subject
from speaking import n_empty

from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.hosting.process_host import ProcessHost
from telephony_tts.engines.cosyvoice2.hosting.thread_host import ThreadHost
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits

WAIT_S = 60.0
BRIEF = Subject("Thank you for calling.", "It left on Tuesday.", n_most=6)
"""Sentences of several chunks. A random model stops at its limit, so each word adds half a second."""
FEW_SLOTS = EngineLimits(n_slots=2)
"""For the contract, whose three utterances at once and six cancelled ones exceed it."""


def started(engine: CosyVoice2Engine, use: Callable[[CosyVoice2Engine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def host_of(engine: CosyVoice2Engine) -> ProcessHost:
    assert isinstance(engine._host, ProcessHost)
    return engine._host


async def until(is_so: Callable[[], bool], what: str) -> None:
    """Return when `is_so` holds. It polls, because another process reports no event here."""
    for _ in range(int(WAIT_S * 100)):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {WAIT_S:g} s: {what}")


def core_of(engine: CosyVoice2Engine) -> Core:
    assert isinstance(engine._host, ThreadHost) and engine._host.core is not None
    return engine._host.core


def n_free(engine: CosyVoice2Engine) -> int:
    return n_empty(core_of(engine).runner.model.cache)
