"""Calls of the real core on a virtual clock: `Call`, `Session` and the fake engine without sockets. Hours take seconds.

Messages take no time here, so the oracle allows for nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from virtual_loop import clock, run

from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake import FakeEngine
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport import call as call_module
from telephony_tts.transport.call import Call
from telephony_tts.transport.stream_leg import ready
from telephony_tts.wire.native import NativeCodec
from torture.histories import CallHistory, Step, make_call
from torture.letters import FrameReader
from torture.oracle import NativeOracle
from torture.script import Script
from torture.violations import Stops, Tally

MS = 1_000_000
_STEPS_PER_MINUTE, _WAITING_SHARE = 24, 0.8
_LEADS_MS = (0, 60, 200, 1000)


class VirtualLink:
    """Both ends of a bot's socket: what the bot sends is decoded at once, and what it gets is encoded and read."""

    def __init__(self, call: Call, oracle: NativeOracle, codec: NativeCodec, stops: Stops) -> None:
        self._call = call
        self._oracle = oracle
        self._codec = codec
        self._stops = stops
        self.close_code: int | None = None

    # the bot's side
    def send(self, message: dict[str, Any]) -> None:
        self.send_raw(json.dumps(message).encode(), is_text=True)

    def send_raw(self, payload: bytes, *, is_text: bool) -> None:
        self._call.receive(self._codec.decode(payload, is_text))

    async def stop_reading(self, ms: int) -> None:
        """The socket of the server is full for some time: frames wait in the session."""
        begin_ns = clock()
        self._call.writable(False)
        await asyncio.sleep(ms / 1000)
        self._call.writable(True)
        self._stops.add(begin_ns, clock())

    # the server's side
    def send_now(self, payload: bytes, is_text: bool) -> None:
        now_ns = clock()
        if is_text:
            self._oracle.event(json.loads(payload), now_ns)
        else:
            self._oracle.frame(payload, now_ns)

    def end(self, code: int, reason: str) -> None:
        if self.close_code is None:
            self.close_code = code


async def _run_call(history: CallHistory, number: int, tally: Tally, catalog: Catalog, reader: FrameReader) -> None:
    choose = random.Random(f"{history.seed} virtual")
    lead_ms = choose.choice(_LEADS_MS)
    settings = SessionSettings(
        call=f"c{number}", lead_ms=lead_ms, words=True, detect_language=False,
        first_clause_chars=choose.choice([0, 24]),
    )  # fmt: skip
    call = Call(Session(settings, clock()), catalog, "stream")
    stops = Stops()
    oracle = NativeOracle(tally, stops, call=number, lead_ns=lead_ms * MS, reader=reader, is_exact=True)
    codec = NativeCodec("binary", settings.call)
    link = VirtualLink(call, oracle, codec, stops)
    running = asyncio.create_task(call.run())
    await call.started.wait()
    call.frames_to_bot(link, codec.encode)
    call.join_bot(link, codec.encode, ready(call))
    script = Script(history, link, oracle, clock)
    await script.perform(lambda: call.over)
    if history.end == "close_now":
        script.send({"type": "close", "now": True})
    elif history.end == "close":
        script.send({"type": "close"})
    else:
        call.bot_left(link, "gone")
    await running
    is_torn = history.end not in ("close", "close_now")
    oracle.finish(clock(), is_torn=is_torn)
    tally.counts["virtual seconds"] += clock() // 1_000_000_000


@contextmanager
def virtual_clock() -> Iterator[None]:
    logger = logging.getLogger("telephony_tts")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # refusals are expected here, and their lines cost time
    try:
        with mock.patch.object(call_module, "monotonic_ns", clock):
            yield
    finally:
        logger.setLevel(level)


def call_of_minutes(seed: int, minutes: float) -> CallHistory:
    """A call of about this length: short turns, and silence between them."""
    choose = random.Random(f"{seed} length")
    history = make_call(seed, ("native",), n_steps=round(minutes * _STEPS_PER_MINUTE))
    wait_ms = 60_000 / _STEPS_PER_MINUTE / _WAITING_SHARE
    steps = tuple(
        Step(
            step.after_ms + round(choose.expovariate(1 / wait_ms)) * (choose.random() < _WAITING_SHARE),
            step.do,
            min(step.n, choose.choice([1, 1, 1, 2])),
        )
        for step in history.steps
    )
    return replace(history, steps=steps)


def run_calls(seeds: range, minutes: float, *, at_once: int = 1) -> Tally:
    """Calls of these seeds, `at_once` beside each other on one engine."""
    tally = Tally()
    engine = FakeEngine()
    catalog = Catalog([engine])
    reader = FrameReader()

    async def main(some: list[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for seed in some:
                group.create_task(_run_call(call_of_minutes(seed, minutes), seed, tally, catalog, reader))
        assert engine.n_live == 0, "the engine still speaks"

    everything = list(seeds)
    with virtual_clock():
        for at in range(0, len(everything), at_once):
            run(main(everything[at : at + at_once]))
    return tally
