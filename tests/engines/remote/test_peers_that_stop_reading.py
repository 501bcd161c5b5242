"""A peer that sends and reads nothing: it is given up before what waits for it fills the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from clean_run import until
from conformance import speak
from engine_servers import attached

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.remote import connection, server
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.messages import (
    METHOD,
    PROTOCOL,
    SERVICE,
    Attach,
    Attached,
    EngineStatus,
    KeepAlive,
    Speak,
    encode,
)
from telephony_tts.engines.remote.server import EngineServer
from telephony_tts.runtime.errors import ReplicaLost

pytestmark = pytest.mark.slow

LONG = "Thank you for calling, how can I help you today? " * 60


def run(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


def test_an_engine_server_that_stops_reading_loses_its_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES", 1_000_000)

    async def behave(_: Any, context: Any) -> None:
        await context.read()
        await context.write(encode(Attached(PROTOCOL, "fake", False)))
        while True:
            await context.write(encode(EngineStatus(0, EngineStats(), voices=FakeEngine().voices)))
            await asyncio.sleep(0.1)

    async def work() -> None:
        peer = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(behave)
        peer.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Attach": handler}),))
        address = f"unix:{tmp_path}/peer.sock"
        peer.add_insecure_port(address)
        await peer.start()
        try:
            async with attached(address) as engine:
                asked = (speak(engine, Utterance(str(n), "a" * 100_000)) for n in range(150))
                ends = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(end, ReplicaLost) for end in ends)
                assert "it reads nothing" in str(ends[0])
        finally:
            await peer.stop(None)

    run(work)


def test_a_front_that_stops_reading_loses_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_UNREAD_BYTES", 300_000)

    async def work() -> None:
        engine = FakeEngine(speed=20.0)  # else all may be over before the first look at it
        await engine.start()
        serving = EngineServer(engine)
        address = str(await serving.listen(parse_address("127.0.0.1:0")))
        serving.engine_is_loaded()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                call = channel.stream_stream(METHOD)()
                await call.write(encode(Attach(PROTOCOL, "front", 10_000)))
                await call.read()
                for key in range(1, 40):
                    await call.write(encode(Speak(key, Utterance(str(key), LONG))))
                await until(lambda: serving.n_utterances > 0, "sentences")

                async def keep_alive() -> None:
                    while True:
                        await call.write(encode(KeepAlive(1)))
                        await asyncio.sleep(0.1)

                alive = asyncio.create_task(keep_alive())
                await until(lambda: serving.n_clients == 0, "the front is given up", 20)
                assert serving.n_utterances == 0 and engine.stats() == EngineStats()
                alive.cancel()
                await asyncio.gather(alive, return_exceptions=True)
        finally:
            await serving.close()
            await engine.close()

    run(work)
