"""Calls of the real core on a virtual clock: `Call`, `Session` and the fake engine without sockets. Hours take seconds.

Messages take no time here, so the oracle allows for nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast
from unittest import mock

import numpy as np
import numpy.typing as npt
from virtual_loop import clock, run

from telephony_tts.audio.g711 import encode_ulaw
from telephony_tts.audio.sound import Sound, new_sound
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import SoundError
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport import call as call_module
from telephony_tts.transport.call import Call
from telephony_tts.transport.stream_leg import ready
from telephony_tts.wire.messages import MediaAudio
from telephony_tts.wire.native import NativeCodec
from torture.dialects import DIALECTS, Lateness, more_error_ms
from torture.histories import INTERRUPTIONS, LONG_CALL_STEPS, CallHistory, Step, make_call
from torture.letters import FrameReader
from torture.oracle import NativeOracle
from torture.platforms import Platform, virtual_legs
from torture.script import Script
from torture.sound_rules import kind_of
from torture.sound_server import BAD
from torture.violations import Stops, Tally

MS = 1_000_000
_STEPS_PER_MINUTE, _INTERRUPTED_PER_MINUTE, _WAITING_SHARE = 36, 50, 0.8
_LEADS_MS = (0, 60, 200, 1000)
_PTIMES_MS = (10, 20, 40, 60)


_VOICE = np.random.default_rng(1).normal(0, 8000, 160).clip(-32000, 32000).astype(np.int16)
_VOICE_DBOV = -30.0


class LoudVoice:
    """Stands for the network that detects the caller's voice: what is loud is a voice."""

    def __call__(self, window: npt.NDArray[np.float32], state: Any) -> tuple[float, Any]:
        level = float(np.sqrt(np.mean(np.square(window)))) + 1e-9
        return (1.0 if 20 * math.log10(level) > _VOICE_DBOV else 0.0), state


class NoiseSource:
    """A sound of `play`: noise, which no letter sounds like. What is bad of the torture's server is bad here."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def load(self, rate_hz: int) -> Sound:
        if kind_of(self._name) in BAD:
            raise SoundError("it cannot be played")
        return _noise(rate_hz)


@lru_cache
def _noise(rate_hz: int) -> Sound:
    return new_sound(np.random.default_rng(2).normal(0, 4000, 5600).astype(np.float32), 8000).at(rate_hz)


class VirtualLink:
    """Both ends of a bot's socket: what the bot sends is decoded at once, and what it gets is encoded and read."""

    def __init__(self, call: Call, oracle: NativeOracle, codec: NativeCodec, stops: Stops) -> None:
        self._call = call
        self._oracle = oracle
        self._codec = codec
        self._stops = stops
        self.close_code: int | None = None
        self.hears: bytes | None = None
        """20 ms of the caller's voice, if there is a caller."""

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

    async def caller_speaks(self, ms: int) -> None:
        """The caller is heard by the server, if the call has a telephone."""
        if self.hears is None:
            return
        self._oracle.caller_speaks(clock(), ms)
        for _ in range(0, ms, 20):
            self._call.receive(MediaAudio(self.hears))
            await asyncio.sleep(0.02)
        self._oracle.caller_spoke(clock())

    def telephone_errs(self, n: int) -> None:
        """Platforms on the virtual clock make no mistakes."""

    # the server's side
    def send_now(self, payload: bytes, is_text: bool) -> None:
        now_ns = clock()
        if is_text:
            self._oracle.event(json.loads(payload), now_ns)
        else:
            self._oracle.frame(payload, now_ns)

    def end(self, code: int, reason: str) -> None:
        self._oracle.closed()
        if self.close_code is None:
            self.close_code = code


async def _run_call(
    history: CallHistory, number: int, tally: Tally, catalog: Catalog, reader: FrameReader, late: str
) -> None:
    if history.door in DIALECTS:
        await _run_media_call(history, number, tally, catalog, late)
    else:
        await _run_native_call(history, number, tally, catalog, reader)


async def _run_native_call(
    history: CallHistory, number: int, tally: Tally, catalog: Catalog, reader: FrameReader
) -> None:
    choose = random.Random(f"{history.seed} virtual")
    lead_ms, ptime_ms = choose.choice(_LEADS_MS), choose.choice(_PTIMES_MS)
    settings = SessionSettings(
        call=f"c{number}", lead_ms=lead_ms, ptime_ms=ptime_ms, words=True, detect_language=False,
        first_clause_chars=choose.choice([0, 24]), text_mode=choose.choice(["sentence", "sentence", "interleaved"]),
    )  # fmt: skip
    session = Session(settings, clock(), find_sound=NoiseSource, knows_voice=catalog.knows_voice)
    call = Call(session, catalog, "stream")
    stops = Stops()
    oracle = NativeOracle(
        tally, stops, call=number, lead_ns=lead_ms * MS, reader=reader, is_exact=True, ptime_ms=ptime_ms,
        frame_bytes=8 * ptime_ms,
    )  # fmt: skip
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


async def _run_media_call(history: CallHistory, number: int, tally: Tally, catalog: Catalog, late: str) -> None:
    """A call whose bot and telephone have a leg each. The telephone platform plays late."""
    dialect = DIALECTS[history.door]()
    is_pcm = dialect.codec == "pcm"
    more_ms = more_error_ms(late)
    settings = SessionSettings(call=f"c{number}", words=True, detect_language=False, codec=dialect.codec)
    session = Session(
        settings, clock(), media=False, find_sound=NoiseSource, knows_voice=catalog.knows_voice,
        voice_model=cast(Any, LoudVoice),
    )  # fmt: skip
    call = Call(session, catalog, "native")
    oracle = NativeOracle(
        tally, Stops(), call=number, lead_ns=None, has_media=True, is_exact=True,
        most_error_ns=(dialect.most_error_ms + more_ms) * MS, most_lost_ns=(dialect.most_lost_ms + more_ms) * MS,
        frame_bytes=dialect.frame_bytes, reader=FrameReader(dialect.codec),
    )  # fmt: skip
    codec = NativeCodec("none", settings.call)
    link = VirtualLink(call, oracle, codec, Stops())
    running = asyncio.create_task(call.run())
    await call.started.wait()
    platform = Platform(history.door, call, oracle, Lateness(late, history.seed, dialect.most_late_ms))
    platform.join()
    link.hears = _VOICE.tobytes() if is_pcm else encode_ulaw(_VOICE)
    call.join_bot(link, codec.encode, ready(call))
    await Script(history, link, oracle, clock).perform(lambda: call.over)
    if not call.over:
        message = {"type": "close", **({"now": True} if history.end == "close_now" else {})}
        oracle.sent(message, clock())
        link.send(message)
    await running
    platform.hang_up()
    oracle.finish(clock(), is_torn=False)
    tally.counts["virtual seconds"] += clock() // 1_000_000_000


@contextmanager
def virtual_clock() -> Iterator[None]:
    logger = logging.getLogger("telephony_tts")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # refusals are expected here, and their lines cost time
    try:
        with mock.patch.object(call_module, "monotonic_ns", clock), virtual_legs():
            yield
    finally:
        logger.setLevel(level)


def call_of_minutes(seed: int, minutes: float) -> CallHistory:
    """A native call of about this length: short turns, and silence between them."""
    whole = make_call(seed, ("native",), n_steps=round(minutes * _STEPS_PER_MINUTE), weights=LONG_CALL_STEPS)
    return _spread(whole, _STEPS_PER_MINUTE)


def interrupted_call(seed: int, door: str, minutes: float = 1) -> CallHistory:
    """A call in which much is interrupted, through this dialect of telephone platforms."""
    n_steps = round(minutes * _INTERRUPTED_PER_MINUTE)
    return _spread(make_call(seed, (door,), n_steps=n_steps, weights=INTERRUPTIONS), _INTERRUPTED_PER_MINUTE)


def _spread(history: CallHistory, n_per_minute: int) -> CallHistory:
    """The same steps, so far apart that there are about so many in a minute."""
    choose = random.Random(f"{history.seed} length")
    wait_ms = 60_000 / n_per_minute / _WAITING_SHARE
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
    """Native calls of these seeds, `at_once` beside each other on one engine."""
    return _run(((seed, call_of_minutes(seed, minutes)) for seed in seeds), at_once)


def run_late_calls(seeds: range, door: str, late: str) -> Tally:
    """Calls with many interruptions, through a dialect of telephone platforms that are late as `late` says."""
    return _run(((seed, interrupted_call(seed, door)) for seed in seeds), 1, late)


def _run(histories: Iterable[tuple[int, CallHistory]], at_once: int, late: str = "fixed") -> Tally:
    tally = Tally()
    engine = FakeEngine(voice_names=("tone", "bell"))
    catalog = Catalog([engine])
    reader = FrameReader()

    async def main(some: list[tuple[int, CallHistory]]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, history in some:
                group.create_task(_run_call(history, number, tally, catalog, reader, late))
        assert engine.n_live == 0, "the engine still speaks"

    waiting = iter(histories)
    with virtual_clock():
        while some := list(itertools.islice(waiting, at_once)):
            run(main(some))
    return tally
