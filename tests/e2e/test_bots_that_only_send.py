"""Bots that send text and never read, with their real libraries. Their audio goes to a telephone, or nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
from log_lines import lines
from neighbour import neighbour
from raw_peer import RawPeer, frame, raw_peer
from rig import Tones, correlation, decoded, rendering, run, serving, until
from twilio_peer import calling
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Opcode

pytestmark = pytest.mark.timed

Send = Callable[[dict[str, Any]], Awaitable[None]]
PING_S = 0.3
SLOW_S = 0.3


@asynccontextmanager
async def with_websockets(url: str) -> AsyncIterator[Send]:
    """It stops reading behind 16 messages. Its own pings would then end the connection, so it sends none."""
    async with connect(url, proxy=None, ping_interval=None, close_timeout=0.1) as socket:
        yield lambda message: socket.send(json.dumps(message))


@asynccontextmanager
async def with_aiohttp(url: str) -> AsyncIterator[Send]:
    """It answers pings only while `receive` runs."""
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=0.1))
        yield socket.send_json
        await socket.close()


CLIENTS = {"websockets": with_websockets, "aiohttp": with_aiohttp}
each_client = pytest.mark.parametrize("client", CLIENTS)


def messages(peer: RawPeer) -> list[dict[str, Any]]:
    """The whole JSON messages that the peer has read."""
    found, at = [], 0
    while at + 2 <= len(peer.data):
        opcode, length, begin = peer.data[at] & 15, peer.data[at + 1], at + 2
        if length == 126:
            length, begin = int.from_bytes(peer.data[at + 2 : at + 4], "big"), at + 4
        elif length == 127:
            length, begin = int.from_bytes(peer.data[at + 2 : at + 10], "big"), at + 10
        at = begin + length
        if opcode == Opcode.TEXT and at <= len(peer.data):
            found.append(json.loads(peer.data[begin:at]))
    return found


def close_reason(peer: RawPeer) -> str:
    at = peer.data.rindex(b"\x03" + bytes((peer.close_code & 255,)))  # type: ignore[operator]
    return peer.data[at + 2 :].decode()


@each_client
def test_a_bot_that_only_sends_stays(client: str) -> None:
    """Its turns run by the clock. It answers no ping for twenty times the time that a silent bot has."""

    async def main() -> None:
        engine = Tones()
        async with (
            serving(engine, ping_interval_s=PING_S, slow_reader_s=SLOW_S) as rig,
            CLIENTS[client](rig.url(audio="none")) as send,
        ):
            for _ in range(30):
                await send({"type": "say", "text": "Hi."})
                await asyncio.sleep(0.2)
            assert len(engine.spoken) >= 29
            assert len(rig.server.registry) == 1

    run(main)


@each_client
def test_the_caller_hears_a_bot_that_only_sends(client: str) -> None:
    async def main() -> None:
        texts = [f"This is the {nth} sentence." for nth in ("first", "second", "third", "fourth")]
        async with (
            serving(ping_interval_s=PING_S, slow_reader_s=SLOW_S) as rig,
            calling(rig.url("/media/twilio"), "CA1") as phone,
            CLIENTS[client](rig.url(call="CA1")) as send,
        ):
            await phone.start()
            wanted = rendering(texts)
            await send({"type": "config", "words": "on"})
            for text in texts:
                await send({"type": "say", "text": text})
            while len(phone.played) < len(wanted) // 160:
                await send({"type": "status"})
                await asyncio.sleep(0.05)
                assert phone.closed is None
            assert correlation(decoded(phone.played), wanted) > 0.9
            await phone.hang_up()

    run(main)


def test_a_bot_that_begins_to_read_is_told_how_many_events_it_has_lost(caplog: pytest.LogCaptureFixture) -> None:
    """It asks for more than 2 MB of answers and reads nothing. Then it reads: the oldest answers, one warning with the
    number of those that were dropped, and the next ones."""

    async def main() -> None:
        path, n_asked = "/v1/stream?audio=none", 12_000
        async with (
            serving(slow_reader_s=SLOW_S, ping_interval_s=60) as rig,
            neighbour(rig),
            raw_peer(rig.port, path, 4096) as peer,
        ):
            connection = next(c for c in rig.server._connections if c.request and c.request.path == path)
            most = 0
            for n in range(n_asked // 100):
                asked = [frame({"type": "ping", "id": f"{at}".zfill(120)}) for at in range(100 * n, 100 * n + 100)]
                await peer.send_bytes(b"".join(asked))
                await asyncio.sleep(0.02)
                most = max(most, connection.transport.get_write_buffer_size())
            await peer.send({"type": "say", "text": "Hi.", "turn": "a"})
            await asyncio.sleep(2 * SLOW_S)  # its `done` is dropped too
            assert most < 1 << 20, f"{most} bytes are kept for it"
            await peer.read_until(b'"events_lost"')
            await peer.send({"type": "say", "text": "Go.", "turn": "b"})
            await peer.read_until(b'"done"')
            got = messages(peer)
            at = next(at for at, each in enumerate(got) if each.get("code") == "events_lost")
            pongs = [int(each["id"]) for each in got if each["type"] == "pong"]
            assert pongs == list(range(len(pongs))) and len(pongs) < n_asked
            assert [each["type"] for each in got[:at]] == ["ready"] + ["pong"] * len(pongs)
            assert [each["type"] for each in got[at:]] == ["warning", "started", "sentence", "done"]
            assert got[at]["lost_events"] == n_asked - len(pongs) + 3  # and those of the turn
            assert f"{got[at]['lost_events']} events" in got[at]["message"]

    run(main)
    (line,) = lines(caplog, "events_dropped")
    assert line["call"] and line["unsent_bytes"] > 900_000


@pytest.mark.parametrize("is_full", [False, True], ids=["idle", "with a full socket"])
def test_a_bot_that_is_gone_is_noticed(is_full: bool) -> None:
    """Without a FIN, as a machine that lost its power. Its text has stopped."""

    async def main() -> None:
        path = "/v1/stream?audio=none"
        async with serving(ping_interval_s=PING_S) as rig, raw_peer(rig.port, path, 4096) as peer:
            for _ in range(6):
                await peer.send_bytes(frame({"type": "status"}) * (500 if is_full else 1))
                await asyncio.sleep(PING_S / 2)
            assert len(rig.server.registry) == 1
            gone_s = asyncio.get_running_loop().time()
            await until(lambda: not len(rig.server.registry), "it is gone", 5)
            assert asyncio.get_running_loop().time() - gone_s < 2 * PING_S + 0.3

    run(main)


def test_a_bot_that_answers_no_ping_is_told_to_read() -> None:
    async def main() -> None:
        async with serving(ping_interval_s=PING_S) as rig, raw_peer(rig.port, "/v1/stream?audio=none") as peer:
            assert await peer.read_to_close() == 1011
            assert close_reason(peer) == "read from the socket: a ping was not answered for 0.3 s"

    run(main)


@pytest.mark.parametrize("options", ["audio=base64", "audio=none&inbound=base64&call=CA1"])
def test_a_bot_with_audio_is_told_to_read(options: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its own speech, or the caller's voice. It sends text all the time."""

    async def main() -> None:
        async with (
            serving(slow_reader_s=SLOW_S) as rig,
            calling(rig.url("/media/twilio"), "CA1") as phone,
            raw_peer(rig.port, f"/v1/stream?{options}&pace=burst&codec=pcm&rate=48000", 4096) as peer,
        ):
            if "call" in options:
                await phone.start()
            n_calls = len(rig.server.registry)
            left = asyncio.create_task(until(lambda: len(rig.server.registry) < n_calls, "it is closed"))
            loud = '{"event":"media","media":{"track":"inbound","payload":"' + "A" * 30_000 + '"}}'
            while not left.done():
                await peer.send({"type": "say", "text": "A sentence that has some length, so that it fills a socket."})
                if "call" in options:
                    with suppress(ConnectionClosed):
                        await phone.socket.send(loud)
                await asyncio.sleep(0.05)
            assert await peer.read_to_close() == 1008
            assert close_reason(peer) == "read from the socket: what was sent was not read for 0.3 s"

    run(main)
    (line,) = lines(caplog, "slow_reader")
    assert line["unsent_bytes"] > 0


# ----------------------------------------------------------------------- vendors' bots in a call

DEEPGRAM = "/v1/speak?encoding=linear16&sample_rate=48000"
ELEVENLABS = "/v1/text-to-speech/tone/multi-stream-input?output_format=pcm_48000"
CARTESIA_AUDIO = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 48_000}


def deepgram(texts: list[str]) -> list[dict[str, Any]]:
    return [{"type": "Speak", "text": text} for text in texts] + [{"type": "Flush"}]


def elevenlabs(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": f"{text} ", "context_id": "a"} for text in texts] + [
        {"context_id": "a", "flush": True}, {"context_id": "a", "close_context": True},
    ]  # fmt: skip


def cartesia(texts: list[str]) -> list[dict[str, Any]]:
    voice = {"mode": "id", "id": "tone"}
    return [
        {"context_id": "a", "voice": voice, "output_format": CARTESIA_AUDIO, "transcript": f"{text} ",
         "continue": text is not texts[-1]}
        for text in texts
    ]  # fmt: skip


def dashscope(texts: list[str]) -> list[dict[str, Any]]:
    def action(name: str, content: dict[str, Any]) -> dict[str, Any]:
        header = {"action": name, "task_id": "1" * 32, "streaming": "duplex"}
        parameters = {"voice": "tone", "format": "pcm", "sample_rate": 48_000}
        return {"header": header, "payload": {"parameters": parameters, "input": content}}

    return [action("run-task", {}), *[action("continue-task", {"text": t}) for t in texts], action("finish-task", {})]


DOORS: dict[str, tuple[str, Callable[[list[str]], list[dict[str, Any]]], bytes]] = {
    "deepgram": (DEEPGRAM, deepgram, b'"Flushed"'),
    "flux": (DEEPGRAM.replace("v1", "v2"), deepgram, b'"SpeechMetadata"'),
    "elevenlabs": (ELEVENLABS, elevenlabs, b'"isFinal":true'),
    "cartesia": ("/tts/websocket", cartesia, b'"done":true'),
    "dashscope": ("/api-ws/v1/inference", dashscope, b'"task-finished"'),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_caller_hears_a_vendors_bot_that_does_not_read(door: str) -> None:
    """Its socket gets silence for ten seconds of speech, 1 MB or more. Behind that it reads: less silence, and the end
    of its speech."""
    path, asked, end = DOORS[door]

    async def main() -> None:
        texts = [f"This is the {nth} sentence, and it is a long one." for nth in ("first", "second", "third")]
        async with (
            serving(ping_interval_s=PING_S, slow_reader_s=SLOW_S) as rig,
            calling(rig.url("/media/twilio"), "CA1") as phone,
            raw_peer(rig.port, f"/calls/CA1{path}", 4096) as peer,
        ):
            await phone.start()
            for message in asked(texts):
                await peer.send(message)
            wanted = rendering(texts)
            while len(phone.played) < len(wanted) // 160:
                await peer.send(b"", Opcode.PONG)  # alive: it sends, and reads nothing
                await asyncio.sleep(0.1)
                assert phone.closed is None, "the call has ended"
            assert correlation(decoded(phone.played), wanted) > 0.9
            own = next(c for c in rig.server._connections if c.request and path in c.request.path)
            n_unread = own.transport.get_write_buffer_size()
            assert n_unread < 200_000, f"{n_unread} bytes of silence are kept for it"
            await peer.read_until(end)
            await phone.hang_up()

    run(main)
