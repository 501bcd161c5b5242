"""A call with legs that record what they are sent, and an engine that keeps its slot until a test releases it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.call import Call, Wire
from telephony_tts.transport.registry import Registry
from telephony_tts.wire import messages as m


def run(main: Callable[[], Coroutine[Any, Any, None]], within_s: float = 15) -> None:
    """Run a test's coroutine; no task may be left after it."""

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await main()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


async def until(true: Callable[[], object], what: str, within_s: float = 5) -> None:
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.002)


async def started(registry: Registry, call: Call) -> None:
    """Begin a call, and wait until it runs."""
    registry.begin(call)
    await call.started.wait()


class RecordingLeg:
    """A leg of a call that records: `sent` has all messages that it was given to send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended: list[tuple[int, str]] = []

    def encode(self, message: Any) -> Wire:
        self.sent.append(message)
        return b"", True

    def send_now(self, payload: bytes, is_text: bool) -> None:
        assert not self.ended, "sent after its end"

    def end(self, code: int, reason: str) -> None:
        self.ended.append((code, reason))

    def got(self, kind: type) -> list[Any]:
        return [message for message in self.sent if type(message) is kind]


class ClingingEngine(FakeEngine):
    """Keeps its slot after a cancel until `let_go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()
        self.n_held = 0

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.n_held += 1
        try:
            async for chunk in super().synthesize(utterance):
                yield chunk
        finally:
            await self.let_go.wait()
            self.n_held -= 1


def new_call(engine: FakeEngine | None = None, *, call: str = "c1", media: bool = True) -> Call:
    settings = SessionSettings(call=call, session=f"s-{call}", first_clause_chars=0)
    kind = "stream" if media else "twilio"
    return Call(Session(settings, monotonic_ns(), media=media), Catalog([engine or FakeEngine()]), kind)


READY = m.Ready("s", "c1", "ulaw", 8000, 20, "realtime", 200, "tone", "off", {})
