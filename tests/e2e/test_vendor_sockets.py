"""Sockets of vendors' clients that read too slowly, and sockets on which nothing happens."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from log_lines import lines
from neighbour import neighbour
from raw_peer import raw_peer
from rig import Tones, run, serving, speech_settings, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from telephony_tts.session.settings import CallLimits

pytestmark = pytest.mark.timed

LONG = "All our lines are busy at the moment, and an agent will be with you as soon as they possibly can. " * 20
AUDIO = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 48_000}
TASK = {"task_id": "1" * 32, "streaming": "duplex"}


def dashscope(action: str, content: dict[str, Any]) -> dict[str, Any]:
    parameters = {"voice": "tone", "format": "pcm", "sample_rate": 48_000}
    return {"header": {**TASK, "action": action}, "payload": {"parameters": parameters, "input": content}}


DOORS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "deepgram": ("/v1/speak?sample_rate=48000", [{"type": "Speak", "text": LONG[:1900]}, {"type": "Flush"}]),
    "flux": ("/v2/speak?sample_rate=48000", [{"type": "Speak", "text": LONG}, {"type": "Flush"}]),
    "elevenlabs": ("/v1/text-to-speech/tone/multi-stream-input?output_format=pcm_48000",
                   [{"text": LONG, "context_id": "a"}, {"context_id": "a", "flush": True}]),
    "cartesia": ("/tts/websocket", [{"context_id": "a", "voice": {"mode": "id", "id": "tone"}, "output_format": AUDIO,
                                     "transcript": LONG, "continue": False}]),
    "dashscope": ("/api-ws/v1/inference", [dashscope("run-task", {}), dashscope("continue-task", {"text": LONG})]),
    "jambonz": ("/jambonz/tts?sampleRate=48000", [{"type": "stream", "text": LONG[:1900]}, {"type": "flush"}]),
}  # fmt: skip
each_door = pytest.mark.parametrize("door", DOORS)


@each_door
def test_a_reader_of_a_byte_a_second_is_dropped(door: str, caplog: pytest.LogCaptureFixture) -> None:
    path, messages = DOORS[door]

    async def main() -> None:
        engine = Tones()
        async with (
            serving(engine, slow_reader_s=1.0, burst_ahead_s=60.0) as rig,
            neighbour(rig),
            raw_peer(rig.port, path, receive_buffer=4096) as peer,
        ):
            for message in messages:
                await peer.send(message)
            begun_s = time.monotonic()
            await until(lambda: len(rig.server.registry) == 2, "the call")
            while len(rig.server.registry) == 2:
                assert time.monotonic() - begun_s < 8, "the reader is still served"
                await peer.read(1)
                await asyncio.sleep(1)
            assert not [text for text in engine.spoken if text in LONG][20:], "little was spoken that is not read"

    run(main)
    (line,) = lines(caplog, "slow_reader")
    assert line["unsent_bytes"] > 0 and line["call"]


@each_door
def test_an_idle_socket_is_closed_after_the_servers_time_and_not_before(door: str) -> None:
    """The default is an hour. A ping is no message, so a framework that only pings is idle too."""
    path, _ = DOORS[door]

    async def main() -> None:
        speech = speech_settings(limits=CallLimits(idle_s=2))
        async with (
            serving(speech=speech, burst_ahead_s=60.0) as rig,
            connect(rig.url(path), proxy=None, max_queue=None, ping_interval=0.3) as socket,
        ):
            opened_s = time.monotonic()
            reading = asyncio.create_task(_read(socket))
            await asyncio.sleep(1.2)
            await socket.send(json.dumps(_sign_of_life(door)))
            await asyncio.sleep(1.2)
            assert not reading.done(), "the message counts"
            await asyncio.wait_for(reading, 5)
            assert 3.0 < time.monotonic() - opened_s < 4.5
            assert socket.close_code == 1008

    run(main)


async def _read(socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for _ in socket:
            pass


def _sign_of_life(door: str) -> dict[str, Any]:
    """A message that begins no speech."""
    return {
        "deepgram": {"type": "Flush"}, "flux": {"type": "Configure", "speed": 1.0},
        "elevenlabs": {"text": " ", "context_id": "a"}, "cartesia": {"context_id": "a", "cancel": True},
        "dashscope": dashscope("continue-task", {"text": "No task has begun."}), "jambonz": {"type": "keepalive"},
    }[door]  # fmt: skip
