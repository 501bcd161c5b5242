"""Peers that misbehave at each door, beside a call that speaks: it has no late frame, and nothing of them is left.

Each case also leaves lines in the log, and not more than their limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from binary_carriers import GenesysPeer, VonagePeer, platform
from http_peer import ask, http_peer
from log_lines import lines
from neighbour import neighbour
from rig import Rig, run, serving, until
from test_http_voices import BAD, add, voiced
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.transport.settings import ServerSettings

pytestmark = pytest.mark.timed

N = 10_000
MULTI = "/v1/text-to-speech/tone/multi-stream-input?output_format=pcm_8000"
AUDIO = {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
CONTEXT = {"voice": {"mode": "id", "id": "tone"}, "output_format": AUDIO, "continue": True}
MOST_LINES = 130
"""Twice the lines that a call may have at once: a flood may take some seconds, with five lines in each."""


_sent: Counter[int] = Counter()


async def in_turn(peer: object) -> None:
    """A peer in this process must not keep the event loop to itself: then the neighbour would wait for the test."""
    _sent[id(peer)] += 1
    if _sent[id(peer)] % 4 == 0:
        await asyncio.sleep(0)


class Client:
    """A socket that reads what comes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: list[str] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(ConnectionClosed):
            async for message in self.socket:
                self.heard.append(message if isinstance(message, str) else "")

    async def send(self, message: Any) -> None:
        with suppress(ConnectionClosed):
            await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
        await in_turn(self)

    def n_of(self, told: str) -> int:
        return sum(told in message for message in self.heard)


async def with_client(rig: Rig, path: str, misbehave: Callable[[Client], Awaitable[None]]) -> None:
    async with connect(rig.url(path), proxy=None, max_queue=None) as socket:
        client = Client(socket)
        await misbehave(client)
        await socket.close()
        await client.reading


async def elevenlabs_without_text(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(N):
            await client.send({"text": " ", "context_id": f"c{n}"})
        await client.send({"text": "Hello. ", "context_id": "last", "flush": True})
        await until(lambda: client.n_of('"contextId":"last"'), "the last context is spoken")

    await with_client(rig, MULTI, misbehave)


async def elevenlabs_with_text(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(N):
            await client.send({"text": "Hello. ", "context_id": f"c{n}"})
        await asyncio.wait_for(client.reading, 10)
        assert client.n_of("max_active_conversations") == 1 and client.socket.close_code == 1008

    await with_client(rig, MULTI, misbehave)


async def elevenlabs_closed_twice(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(500):
            for message in ({"text": "Hello. "}, {"close_context": True}, {"close_context": True}, {"text": "More. "}):
                await client.send({**message, "context_id": f"c{n}"})
        await until(lambda: client.n_of("context_closed") == 500, "an error for each late text")

    await with_client(rig, MULTI, misbehave)


async def cartesia_without_text(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(N):
            await client.send({**CONTEXT, "context_id": f"c{n}", "transcript": ""})
        await until(lambda: client.n_of('"done"') == N - 1_000, "the oldest are forgotten")

    await with_client(rig, "/tts/websocket", misbehave)


async def cartesia_with_text(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(N // 8):
            await client.send({**CONTEXT, "context_id": f"c{n}", "transcript": "Hello there my friend. " * 9})
        await until(lambda: client.n_of('"status_code":429') > N // 8 - 500, "refusals", 20)

    await with_client(rig, "/tts/websocket", misbehave)


async def dashscope_tasks(rig: Rig) -> None:
    def message(n: int, action: str) -> dict[str, Any]:
        header = {"action": action, "task_id": f"{n:032}", "streaming": "duplex"}
        return {"header": header, "payload": {"parameters": {"format": "pcm", "voice": "tone"}, "input": {}}}

    async def misbehave(client: Client) -> None:
        for n in range(N // 4):
            await client.send(message(n, "run-task"))
            await client.send(message(n + N, "finish-task"))
        await until(lambda: client.n_of("task-failed") >= N // 2 - 100, "refusals")

    await with_client(rig, "/api-ws/v1/inference", misbehave)


async def jambonz_messages(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(N):
            await client.send([{"type": "sing"}, "{", {"type": "flush"}, {"type": "stream", "text": 5}][n % 4])
        await until(lambda: client.n_of('"error"') == N * 3 // 4, "an error for each")

    await with_client(rig, "/jambonz/tts", misbehave)


async def deepgram_messages(rig: Rig) -> None:
    async def misbehave(client: Client) -> None:
        for n in range(N):
            await client.send({"type": ("Flush", "Clear")[n % 2]})
        await until(lambda: client.n_of('"Cleared"') == N // 2, "an answer to each")

    await with_client(rig, "/v1/speak", misbehave)
    for bad in ("{", b"\0", {"type": "Speak", "text": 5}, {"type": "Sing"}):

        async def one(client: Client, bad: Any = bad) -> None:
            await client.send(bad)
            await asyncio.wait_for(client.reading, 5)
            assert client.socket.close_code in (1003, 1008, 1009)

        for path in ("/v1/speak", "/v2/speak"):
            await with_client(rig, path, one)


async def vonage_messages(rig: Rig) -> None:
    async with platform(VonagePeer, rig.url("/media/vonage", call="v0")) as peer:
        await peer.tell(b"\0" * 320)  # audio before the start
        await until(lambda: rig.server.registry.n_arriving == 1, "it is a leg without a call")
    async with platform(VonagePeer, rig.url("/media/vonage", call="v1")) as peer:
        await peer.connected()
        for n in range(N):
            await peer.tell((b"\0" * 321, "{", {"event": "websocket:sing"}, {"event": "websocket:dtmf"})[n % 4])
            await in_turn(peer)
        await peer.tell({"event": "websocket:dtmf", "digit": "5"})
        async with rig.bot(call="v1") as bot:
            await bot.event("dtmf", digit="5")  # the call goes on


async def genesys_gaps(rig: Rig) -> None:
    for _ in range(20):
        async with platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            await peer.open()
            await peer.gets(type="opened")
            await peer.tell(*[b"\xff" * 160] * 50, b"\xff" * 70_000)
            peer.seq += 5
            with suppress(AssertionError):  # the peer expects no end
                await peer.tell(peer.message("ping"))
            await peer.gone()
    async with platform(GenesysPeer, rig.url("/media/genesys")) as peer:
        await peer.tell(b"\xff" * 160)
        await until(lambda: rig.server.registry.n_arriving == 1, "it is a leg without a call")


async def half_bodies(rig: Rig) -> None:
    paths = ("/tts/stream", "/v1/audio/speech", "/v1/speak", "/tts/bytes", "/v1/text-to-speech/tone", "/vapi/voice",
             "/inference_zero_shot")  # fmt: skip

    async def one(n: int) -> None:
        async with http_peer(rig.port) as peer:
            body = b'{"text":"Hello there'
            headers = {"Content_Type": "application/json", "Content_Length": "2000"}
            await peer.send("POST", f"{('', '/calls/h')[n % 2]}{paths[n % len(paths)]}", body, **headers)
            await asyncio.sleep(0.01 * (n % 5))
            if n % 3:
                peer.reset()

    for first in range(0, 420, 14):
        await asyncio.gather(*(one(n) for n in range(first, first + 14)))
    await until(lambda: rig.server.registry.n_requests == 0, "requests are left")


KEY = "s3cret"


async def wrong_keys(rig: Rig) -> None:
    doors = ("/v1/stream", "/v1/speak", "/v2/speak", "/tts/websocket", "/api-ws/v1/inference", "/jambonz/tts",
             "/media/vonage?call=a")  # fmt: skip

    async def one(n: int) -> None:
        wrong = {"Authorization": f"Bearer {n}", "X-API-Key": "no", "xi-api-key": "s3cre"}
        with pytest.raises(InvalidStatus) as refused:
            async with connect(rig.url(doors[n % len(doors)]), additional_headers=wrong, proxy=None):
                pass
        assert refused.value.response.status_code == 401
        got = await ask(rig.port, "POST", "/v1/audio/speech", b"{}", X_API_Key="no", Content_Type="application/json")
        assert got.status == 401
        async with connect(rig.url(MULTI), proxy=None) as socket:  # ElevenLabs' key may come in the first message
            await socket.send(json.dumps({"text": " ", "xi_api_key": "no"}))
            with suppress(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 5)
            assert socket.close_code == 1008

    for _ in range(10):
        await asyncio.gather(*(one(n) for n in range(14)))


@dataclass(frozen=True)
class Case:
    """What a peer does, and the log events of which at least one line must be there."""

    misbehave: Callable[[Rig], Awaitable[None]]
    logged: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


LOCKED = {"server": ServerSettings(host="127.0.0.1", port=0, tokens=(KEY,))}
CASES = [
    Case(elevenlabs_without_text),
    Case(elevenlabs_with_text, ("vendor_message_refused",)),
    Case(elevenlabs_closed_twice, ("vendor_message_refused",)),
    Case(cartesia_without_text),
    Case(cartesia_with_text, ("error",)),
    Case(dashscope_tasks, ("vendor_message_refused",)),
    Case(jambonz_messages, ("vendor_message_refused",)),
    Case(deepgram_messages, ("vendor_message_refused",)),
    Case(vonage_messages, ("media_message_refused",)),
    Case(genesys_gaps, ("media_message_refused",)),
    Case(half_bodies),
    Case(wrong_keys, ("refused",), LOCKED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.misbehave.__name__)
def test_a_peer_that_misbehaves_delays_no_other_call(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "telephony_tts")

    async def main() -> None:
        token = {"token": KEY} if case.settings else {}
        async with serving(**case.settings) as rig:
            async with neighbour(rig, **token) as bot:
                await case.misbehave(rig)
                call = bot.ready["call"]
            await rig.empty()
        others = [each for each in lines(caplog) if each.get("call") != call]
        per_call: dict[Any, int] = {}
        for each in others:
            per_call[each.get("call")] = per_call.get(each.get("call"), 0) + 1
        assert max(per_call.values(), default=0) <= MOST_LINES, per_call

    run(main, within_s=60)
    logged = {record.getMessage() for record in caplog.records}
    assert not case.logged or set(case.logged) & logged, logged
    assert not [record for record in caplog.records if record.exc_info], "no internal error"


@pytest.mark.usefixtures("forked_makers")
def test_bad_recordings_delay_no_other_call(tmp_path: Path) -> None:
    """A FLAC file of two hours, a renamed PNG, five channels: they are read in a process of their own."""
    write_random_checkpoint(tmp_path / "model")

    async def main() -> None:
        async with voiced(tmp_path / "model", tmp_path / "voices", with_engine=False) as place:
            async with neighbour(place.rig):
                for what in ("a FLAC bomb", "a PNG", "5 channels", "61 s", "silence", "half a WAV"):
                    answer = await add(place.rig, BAD[what][0](), name="anna", text="Some words.")
                    assert answer.error == (400, "bad_audio"), what
            assert place.files() == []

    run(main, within_s=60)
