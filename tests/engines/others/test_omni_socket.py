"""The WebSocket stream of vLLM-Omni and SGLang-Omni: what is asked, when a cancel is seen, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from http_stand_ins import until, wait_until
from others_rig import speak, started
from socket_stand_ins import SocketStandIn, socket_stand_in

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.others.other_engine import OtherEngine
from telephony_tts.runtime.errors import EngineError, ReplicaLost

pytestmark = pytest.mark.slow

TEXT = "hello there my friend"
WAVE = render(TEXT).astype("<i2").tobytes()


def run(
    work: Callable[[OtherEngine, SocketStandIn], Coroutine[Any, Any, None]], habits: dict[str, Any], **given: Any
) -> None:
    async def main(server: SocketStandIn) -> None:
        defaults = {"kind": "vllm_omni", "url": server.url, "websocket": True}
        async with started(**{**defaults, **given}) as their_engine, asyncio.timeout(20):
            await work(their_engine, server)
            assert their_engine.stats() == EngineStats()

    with socket_stand_in(**habits) as server:
        asyncio.run(main(server))
        wait_until(lambda: server.n_live == 0)


def heard(chunks: list[Any]) -> bytes:
    return b"".join(chunk.pcm.tobytes() for chunk in chunks)


def test_what_the_server_is_asked() -> None:
    async def work(their_engine: OtherEngine, server: SocketStandIn) -> None:
        assert [voice.name for voice in their_engine.voices] == ["vivian", "ours"]
        assert heard(await speak(their_engine, TEXT, voice="ours", seed=5)) == WAVE
        assert server.configs == [
            {
                "type": "session.config", "model": "m", "voice": "ours", "response_format": "pcm", "stream_audio": True,
                "split_granularity": "none", "seed": 5, "task_type": "CustomVoice",
            }
        ]  # fmt: skip
        assert server.texts == [TEXT] and server.headers[0]["authorization"] == "Bearer secret"

    run(work, {}, model="m", key="secret", fields={"task_type": "CustomVoice"})


def test_the_server_sees_a_cancel() -> None:
    async def work(their_engine: OtherEngine, server: SocketStandIn) -> None:
        stream = their_engine.synthesize(Utterance("u", TEXT))
        await anext(stream)
        await stream.aclose()
        assert their_engine.stats() == EngineStats()
        await until(lambda: server.n_left == 1)

    run(work, {"pause_s": 0.05})


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("error", EngineError, "the server says: voice not found"),
        ("not_json", EngineError, "a message that is no object: 'hello'"),
        ("wrong_rate", EngineError, r"sends 48000 Hz, and engines\.others\.theirs\.rate_hz is 24000"),
        ("break", ReplicaLost, "broke|closed the stream"),
        ("silent", EngineError, "gave no audio within"),
        ("refuse", EngineError, r"is busy \(429"),
    ],
)
def test_faults(fault: str, error: type[EngineError], words: str) -> None:
    async def work(their_engine: OtherEngine, server: SocketStandIn) -> None:
        server.fault = fault
        with pytest.raises(error, match=words) as caught:
            await speak(their_engine, TEXT)
        assert type(caught.value) is ReplicaLost or error is EngineError
        server.fault = ""
        assert heard(await speak(their_engine, TEXT)) == WAVE

    run(work, {}, audio_timeout_s=1.5)


def test_a_server_that_closes_after_its_last_message_is_no_fault() -> None:
    async def work(their_engine: OtherEngine, server: SocketStandIn) -> None:
        assert heard(await speak(their_engine, TEXT)) == WAVE

    run(work, {"fault": "early_close", "greets": True}, kind="sglang_omni")
