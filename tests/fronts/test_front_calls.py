"""Calls whose two legs came to different processes of the server: each is as on a server with one process.

A front that is stopped accepts nothing, so the test decides which front a connection comes to.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from binary_carriers import GenesysPeer, JambonzPeer, PlayingPeer, VonagePeer, platform
from carrier_peers import ExotelPeer, PlivoPeer, SignalWirePeer, TelnyxPeer
from forked_process import ForkServer
from front_server import FrontServer, free_port, front_server
from media_peer import MEDIA_START, START, leg, waiting_asterisk
from rig import Bot, correlation, decoded, greeted, rendering, run, serving, until
from test_vendor_rejoin import DOORS
from twilio_peer import TwilioPeer, calling, dialling
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.utils import accept_key

from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.fronts.socket_mover import SocketMover
from telephony_tts.transport.fronts import MAX_MOVED_BYTES, MovedSocket

pytestmark = pytest.mark.timed

T = TypeVar("T")
SENTENCE = "Your parcel left the depot on Tuesday."
SHORT = "On Tuesday."


@pytest.fixture(scope="module")
def server(short_of_module: Path, forks: ForkServer) -> Iterator[FrontServer]:
    port = free_port()
    dial = f"asterisk.dial=['ws://127.0.0.1:{port}/']"
    with front_server(short_of_module, dial, "limits.call_claim_s=8", forks=forks) as server:
        server.dial_port = port
        yield server


@asynccontextmanager
async def bot_first(server: FrontServer, call: str, **options: Any) -> AsyncIterator[tuple[Bot, int]]:
    """A bot that waits for its media leg, and the front that has the call."""
    async with greeted(server.url(call=call, **options)) as bot:
        owner = server.owner(call)
        assert owner is not None
        yield bot, owner


@asynccontextmanager
async def at_other(server: FrontServer, owner: int, entering: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter `entering`, which connects, while only the other front accepts connections."""
    async with AsyncExitStack() as stack:
        with server.stopped(owner):
            entered = await stack.enter_async_context(entering)
        yield entered


async def spoken(bot: Bot, text: str = SHORT) -> None:
    await bot.say(text, "a")
    await bot.event("done", turn="a")


# ------------------------------------------- the call is known from its first messages

CARRIERS: dict[str, tuple[type[TwilioPeer], dict[str, Any]]] = {
    "twilio": (TwilioPeer, {}),
    "telnyx": (TelnyxPeer, {}),
    "plivo": (PlivoPeer, {}),
    "signalwire": (SignalWirePeer, {}),
    "exotel": (ExotelPeer, {"codec": "pcm"}),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_carrier_joins_the_bot_of_another_front(server: FrontServer, carrier: str) -> None:
    """The keys that the caller presses come right behind the start, in the same segment as it."""
    kind, how = CARRIERS[carrier]
    call = f"CA-{carrier}"

    async def main() -> None:
        n_moved = server.moved("start")
        async with bot_first(server, call) as (bot, owner):
            dialled = dialling(kind, server.url(f"/media/{carrier}"), call, **how)
            async with at_other(server, owner, dialled) as peer:
                await peer.start(plan="gold")
                for digit in "123456789*0#":
                    await peer.press(digit)
                told = await bot.event("call")
                assert told["parameters"]["plan"] == "gold" and server.owner(call) == owner
                for digit in "123456789*0#":
                    assert (await bot.event("dtmf"))["digit"] == digit
                await spoken(bot)
                assert correlation(decoded(peer.played, how.get("codec", "ulaw")), rendering([SHORT])) > 0.98
                assert peer.marks, "the marks come back to the front that has the call"
                assert server.moved("start") == n_moved + 1
                await peer.hang_up()
                await bot.gone()
        await until(lambda: server.owner(call) is None, "the claim is gone")

    run(main)


def test_the_frames_are_those_of_one_process(server: FrontServer) -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(call="c1") as bot, leg(rig, "/media/native") as peer:  # type: ignore[arg-type]
            await peer.tell(START)
            await bot.event("call")
            await spoken(bot, SENTENCE)
            alone = list(peer.frames)
        async with (
            bot_first(server, "c1") as (bot, owner),
            at_other(server, owner, leg(server, "/media/native")) as peer,  # type: ignore[arg-type]
        ):
            await peer.tell(START, {"type": "dtmf", "digit": "7"})
            await bot.event("call")
            assert (await bot.event("dtmf"))["digit"] == "7"
            await spoken(bot, SENTENCE)
            assert len(alone) > 50 and peer.frames == alone
            await bot.send({"type": "close"})
            await bot.gone()

    run(main)


HANG_UPS = {
    "stop": [Frame(Opcode.TEXT, b'{"event":"stop","sequenceNumber":"3","streamSid":"MZ1","stop":{"callSid":"left"}}')],
    "close": [Frame(Opcode.CLOSE, (1000).to_bytes(2, "big"))],
    "nothing": [],
}


@pytest.mark.parametrize("how", HANG_UPS)
def test_a_caller_who_hangs_up_at_once_ends_the_call_of_another_front(server: FrontServer, how: str) -> None:
    """The first front reads all that the platform sends before it learns whose call it is."""
    call = f"left-{how}"
    begin = [
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": {
            "streamSid": "MZ1", "accountSid": "AC1", "callSid": call, "tracks": ["inbound"], "customParameters": {},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}}},
    ]  # fmt: skip
    frames = [*(Frame(Opcode.TEXT, json.dumps(each).encode()) for each in begin), *HANG_UPS[how]]
    blob = b"".join(frame.serialize(mask=True, extensions=[]) for frame in frames)

    async def main() -> None:
        async with (
            bot_first(server, call) as (bot, owner),
            at_other(server, owner, connect(server.url("/media/twilio"), proxy=None)) as socket,
        ):
            socket.transport.write(blob)
            socket.transport.write_eof()
            await bot.event("hangup", within_s=4)
            assert (await bot.gone())[0] == 1000
        await until(lambda: server.owner(call) is None, "the claim is gone")

    run(main)


def test_a_flood_behind_the_start_moves_in_order(server: FrontServer) -> None:
    """It comes in one piece, of which the first front has parsed a part when it learns whose call it is."""
    digits = [str(n % 10) for n in range(4000)]
    messages = [START | {"call": "flood"}, *({"type": "dtmf", "digit": digit} for digit in digits)]
    blob = b"".join(
        Frame(Opcode.TEXT, json.dumps(each).encode()).serialize(mask=True, extensions=[]) for each in messages
    )
    assert 100_000 < len(blob) < MAX_MOVED_BYTES

    async def main() -> None:
        async with (
            bot_first(server, "flood") as (bot, owner),
            at_other(server, owner, connect(server.url("/media/native"), proxy=None)) as socket,
        ):
            socket.transport.write(blob)
            await until(lambda: sum(event["type"] == "dtmf" for event in bot.events) == len(digits), "all keys")
            assert [event["digit"] for event in bot.events if event["type"] == "dtmf"] == digits
            await bot.send({"type": "close"})
            await bot.gone()

    run(main)


def test_a_peer_that_sends_too_much_before_its_start_is_refused(server: FrontServer) -> None:
    async def main() -> None:
        async with (
            bot_first(server, "much") as (_, owner),
            at_other(server, owner, connect(server.url("/media/native"), proxy=None)) as socket,
        ):
            for _ in range(MAX_MOVED_BYTES // 60_000 + 1):
                await socket.send(bytes(60_000))
            await socket.send(json.dumps(START | {"call": "much"}))
            await socket.wait_closed()
            assert socket.close_code == 1013 and "before its call was known" in (socket.close_reason or "")

    run(main)


async def _vonage(peer: Any, call: str) -> None:
    await peer.connected(8000, call=call)


async def _genesys(peer: Any, call: str) -> None:
    await peer.tell(peer.message("ping", rtt="PT0.1S"))  # the first front answers it
    await peer.open(call)
    await peer.tell(peer.message("ping", rtt="PT0.2S"))  # in the same segment; who answers it is not decided


async def _jambonz(peer: Any, call: str) -> None:
    await peer.begin(callSid=call)


BINARY: dict[str, tuple[type[PlayingPeer], Callable[[Any, str], Any], str]] = {
    "vonage": (VonagePeer, _vonage, "pcm"),
    "genesys": (GenesysPeer, _genesys, "ulaw"),
    "jambonz": (JambonzPeer, _jambonz, "pcm"),
}


@pytest.mark.parametrize("name", BINARY)
def test_a_platform_joins_the_bot_of_another_front(server: FrontServer, name: str) -> None:
    kind, begin, codec = BINARY[name]
    call = f"B-{name}"

    async def main() -> None:
        async with (
            bot_first(server, call) as (bot, owner),
            at_other(server, owner, platform(kind, server.url(f"/media/{name}"))) as peer,
        ):
            await begin(peer, call)
            await bot.event("call")
            await spoken(bot)
            heard = decoded([bytes(peer.heard)], codec)
            assert correlation(heard, rendering([SHORT])) > 0.98
            if name == "genesys":
                assert len(peer.of(type="pong")) == 2, "each ping has one answer"
            await bot.send({"type": "close"})
            await peer.gone()

    run(main)


def test_asterisk_joins_the_bot_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        async with (
            bot_first(server, "1.2") as (bot, owner),
            at_other(server, owner, leg(server, "/media/asterisk")) as peer,  # type: ignore[arg-type]
        ):
            await peer.tell(MEDIA_START, {"event": "DTMF_END", "digit": "4", "duration_ms": 100})
            await bot.event("call")
            assert (await bot.event("dtmf"))["digit"] == "4"
            await bot.say(f"{SENTENCE} {SENTENCE}", "a")
            await bot.event("started")
            n_heard = sum(map(len, peer.frames))
            await until(lambda: sum(map(len, peer.frames)) >= n_heard + 8000, "a second of speech")
            await bot.send({"type": "clear"})
            await bot.event("cleared", turn="a")
            await peer.hears("FLUSH_MEDIA", within="the clear")
            heard = decoded([b"".join(peer.frames)])
            begin = next(at for at in range(0, len(heard), 160) if abs(heard[at : at + 160]).max() > 300)
            assert correlation(heard[begin : begin + 8000], rendering([SENTENCE])) > 0.98
            await bot.send({"type": "close"})
            await bot.gone()

    run(main)


def test_freeswitch_joins_the_bot_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        async with bot_first(server, "F1") as (bot, owner):
            dialled = connect(server.url("/media/freeswitch"), proxy=None, max_queue=None)
            async with at_other(server, owner, dialled) as socket:
                await socket.send(json.dumps({"uuid": "F1", "sampleRate": 8000}))
                await bot.event("call")
                await bot.say(SENTENCE, "a")
                file = await _file(socket, "streamAudio")
                audio = base64.b64decode(file["audioData"])
                assert correlation(decoded([audio], "pcm"), rendering([SENTENCE])) > 0.98
                await bot.send({"type": "clear"})
                await bot.event("cleared")
                await bot.send({"type": "close"})
                await bot.gone()

    run(main)


def test_a_fork_of_freeswitch_keeps_its_subprotocol(server: FrontServer) -> None:
    """mod_audio_fork, which the server knows by it, gets other messages than mod_audio_stream."""

    async def main() -> None:
        async with bot_first(server, "F2") as (bot, owner):
            fork = Subprotocol("audio.drachtio.org")
            dialled = connect(server.url("/media/freeswitch"), proxy=None, max_queue=None, subprotocols=[fork])
            async with at_other(server, owner, dialled) as socket:
                assert socket.subprotocol == fork
                await socket.send(json.dumps({"call": "F2", "sampleRate": 8000}))
                await bot.event("call")
                await bot.say(SENTENCE, "a")
                await _file(socket, "playAudio")
                await bot.send({"type": "clear"})
                await bot.event("cleared")
                await bot.send({"type": "close"})
                await bot.gone()

    run(main)


async def _file(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The first file that FreeSWITCH gets."""
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), 8))
        assert message["type"] in ("json", kind)
        if message["type"] == kind:
            data: dict[str, Any] = message["data"]
            return data


# ------------------------------------------------------ the call is in the address


def test_a_bot_joins_the_call_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        n_moved = server.moved("call")
        async with calling(server.url("/media/twilio"), "CA-later") as peer:
            await peer.start()
            await until(lambda: server.owner("CA-later") is not None, "the call")
            owner = server.owner("CA-later")
            assert owner is not None
            with server.stopped(owner):
                joining = asyncio.ensure_future(connect(server.url(call="CA-later"), proxy=None, max_queue=None))
                await asyncio.sleep(0.3)
                assert not joining.done(), "the front that has the call answers the handshake"
            bot = Bot(await joining)
            await bot.event("ready")
            await spoken(bot)
            assert correlation(decoded(peer.played), rendering([SHORT])) > 0.98
            assert server.moved("call") == n_moved + 1
            await bot.send({"type": "close"})
            await bot.aclose()

    run(main)


def test_an_http_request_joins_the_call_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        n_moved = server.moved("call")
        async with calling(server.url("/media/twilio"), "CA-http") as peer:
            await peer.start()
            await until(lambda: server.owner("CA-http") is not None, "the call")
            owner = server.owner("CA-http")
            assert owner is not None
            with server.stopped(owner):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                body = json.dumps({"input": SHORT, "model": "tts-1", "voice": "alloy", "response_format": "pcm"})
                writer.write(
                    b"POST /calls/CA-http/v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body.encode()) + body.encode()
                )
                await asyncio.sleep(0.3)
            answer = await asyncio.wait_for(reader.read(), 15)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n"), answer[:200]
            samples = rendering([SHORT])
            await until(lambda: sum(map(len, peer.played)) >= 0.95 * len(samples), "the speech at the telephone")
            assert correlation(decoded(peer.played), samples) > 0.98
            assert server.moved("call") == n_moved + 1

    run(main)


def test_what_comes_to_the_front_of_its_call_stays_there(server: FrontServer) -> None:
    """Pinned: a request for a call of this front went to another one that had fewer connections, which sent it back."""
    body = json.dumps({"input": SHORT, "model": "tts-1", "voice": "alloy", "response_format": "pcm"}).encode()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            with server.stopped(1):
                await asyncio.sleep(0.3)  # now it gets no connections from the other one
                for n in range(3):
                    await stack.enter_async_context(greeted(server.url(call=f"CA-here{n}")))
                peer = await stack.enter_async_context(calling(server.url("/media/twilio"), "CA-here"))
                await peer.start()
                await until(lambda: server.owner("CA-here") == 0, "the call")
            await asyncio.sleep(0.3)  # it is known again, and has four connections less
            n_silent = len(server.logged("front_silent"))
            with server.stopped(1):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(
                    b"POST /calls/CA-here/v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                answer = await asyncio.wait_for(reader.read(), 15)
                writer.close()
            assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n"), answer[:200]
            assert len(server.logged("front_silent")) == n_silent, "no other front was asked"

    run(main)


def test_an_http_request_and_a_telephone_begin_one_call_at_two_fronts(server: FrontServer) -> None:
    """The front that has the head of the request keeps the call for it, until it has answered. The telephone comes to
    the other front, before the body."""
    body = json.dumps({"input": SHORT, "model": "tts-1", "voice": "alloy", "response_format": "pcm"}).encode()

    async def main() -> None:
        n_moved = server.moved("start")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /calls/CA-body/v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        await until(lambda: server.owner("CA-body") is not None, "the claim of the request")
        owner = server.owner("CA-body")
        assert owner is not None
        async with at_other(server, owner, calling(server.url("/media/twilio"), "CA-body")) as peer:
            await peer.start()
            await until(lambda: server.moved("start") == n_moved + 1, "the telephone at the front of the request")
            writer.write(body)
            answer = await asyncio.wait_for(reader.read(), 15)
            assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n"), answer[:200]
            samples = rendering([SHORT])
            await until(lambda: sum(map(len, peer.played)) >= 0.95 * len(samples), "the speech at the telephone")
            assert correlation(decoded(peer.played), samples) > 0.98
            assert server.owner("CA-body") == owner
        writer.close()
        await until(lambda: server.owner("CA-body") is None, "the claim is gone")

    run(main)


@pytest.mark.parametrize("how", ["answered", "lost"])
def test_a_request_that_is_over_keeps_no_call(server: FrontServer, how: str) -> None:
    """A request on a connection that stays open, and a connection that is lost before the body."""

    async def main() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if how == "answered":
            writer.write(b"GET /calls/CA-over/v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        else:
            writer.write(b"POST /calls/CA-over/v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
            await until(lambda: server.owner("CA-over") is not None, "the claim of the request")
            writer.transport.abort()
        await until(lambda: server.owner("CA-over") is None, "the claim is gone")
        writer.close()

    run(main)


@pytest.mark.parametrize("door", DOORS)
def test_a_bot_of_a_vendor_comes_back_through_another_front(server: FrontServer, door: str) -> None:
    path, messages = DOORS[door]
    call = f"CA-{door}"

    async def main() -> None:
        async with calling(server.url("/media/twilio"), call) as phone:
            await phone.start()
            await until(lambda: server.owner(call) is not None, "the call")
            owner = server.owner(call)
            assert owner is not None
            for text in ("Goodbye.", "Hello again."):
                n_before = len(phone.played)
                with server.stopped(owner):
                    url = server.url(f"/calls/{call}{path}")
                    joining = asyncio.ensure_future(connect(url, proxy=None, max_queue=None))
                    await asyncio.sleep(0.1)
                socket = await joining
                for message in messages(text):
                    await socket.send(json.dumps(message))
                wanted = rendering([text])
                await phone.hears(n_before + len(wanted) // 160)
                assert correlation(decoded(phone.played[n_before:]), wanted) > 0.98
                assert server.owner(call) == owner
                await socket.close()
            await phone.hang_up()

    run(main)


def test_asterisk_is_dialled_by_the_front_that_has_the_call(server: FrontServer) -> None:
    async def main() -> None:
        async with waiting_asterisk(server.dial_port) as (url, came), bot_first(server, "1.2") as (bot, owner):
            asked = f"/media/asterisk?dial={url}1&call=1.2"
            with server.stopped(owner):
                asking = asyncio.ensure_future(connect(server.url(asked), proxy=None))
                await asyncio.sleep(0.1)
            control = await asking
            asterisk = await asyncio.wait_for(came.get(), 5)
            await asterisk.tell(MEDIA_START)
            await bot.event("call")
            await bot.say(SENTENCE, "a")
            await bot.event("started")
            await until(lambda: sum(map(len, asterisk.frames)) > 8000, "speech")
            await bot.send({"type": "close"})
            await bot.gone()
            await control.wait_closed()
            assert control.close_code == 1000

    run(main)


def test_a_dial_that_does_not_name_its_call_says_what_to_do(server: FrontServer) -> None:
    async def main() -> None:
        async with waiting_asterisk(server.dial_port) as (url, came), bot_first(server, "1.2") as (_, owner):
            with server.stopped(owner):
                control = await connect(server.url(f"/media/asterisk?dial={url}1"), proxy=None)
            await (await asyncio.wait_for(came.get(), 5)).tell(MEDIA_START)
            await control.wait_closed()
            assert control.close_code == 1013 and "call=ID" in (control.close_reason or "")

    run(main)
    (line,) = [line for line in server.logged("refused") if line["call"] == "1.2"]
    assert "call=ID" in line["why"]


def test_a_second_bot_is_refused_by_whichever_front_it_comes_to(server: FrontServer) -> None:
    async def main() -> None:
        async with bot_first(server, "CA-two") as (_, owner):
            with server.stopped(owner):
                second = asyncio.ensure_future(connect(server.url(call="CA-two"), proxy=None))
                await asyncio.sleep(0.1)
            link = await second
            told = json.loads(await asyncio.wait_for(link.recv(), 5))
            assert (told["type"], told["code"]) == ("error", "call_taken")
            await link.wait_closed()
            assert link.close_code == 4409

    run(main)


# ------------------------------------------- the handshake was answered by another front


async def moved_after_handshake(server: FrontServer, front: int, call: str, messages: list[dict[str, Any]]) -> Bot:
    """A bot whose handshake and `messages` another front has read before it moves the connection to `front`: while it
    waited for a front that was stopped, that one got the call's other leg."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        opening = asyncio.ensure_future(connect(f"ws://127.0.0.1:{port}/v1/stream?call={call}", proxy=None))
        taken, address = await loop.sock_accept(listener)
        taken.setblocking(False)
        head = await loop.sock_recv(taken, 65_536)
        key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        accepted = accept_key(key.partition(b":")[2].strip().decode())
        answer = f"HTTP/1.1 101 Go on\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accepted}"
        await loop.sock_sendall(taken, f"{answer}\r\n\r\n".encode())
        bot = Bot(await opening)
        for message in messages:
            await bot.send(message)
        read = b""
        while read.count(b"\x81") < len(messages):
            read += await loop.sock_recv(taken, 65_536)
        cut = len(read) // 2 if len(messages) > 1 else len(read)
        moved = MovedSocket("leg", 1, ("127.0.0.1", port), address, read[:cut], head, read[cut:], True)
        folder = RuntimeFolder(server.runtime)
        try:
            mover = SocketMover(folder.socket_of, "9.1")
            await mover.move(f"{front}.1", taken, moved, may_stay=False)
        finally:
            folder.close()
    return bot


@pytest.mark.parametrize("front", [0, 1])
def test_a_bot_that_moves_after_its_handshake_gets_every_answer(server: FrontServer, front: int) -> None:
    async def main() -> None:
        call = f"CA-late-{front}"
        first = [{"type": "ping", "id": 1}, {"type": "say", "turn": "a", "text": SHORT}, {"type": "status"}]
        bot = await moved_after_handshake(server, front, call, first)
        assert (await bot.event("ready"))["call"] == call
        assert (await bot.event("pong"))["id"] == 1
        assert (await bot.event("status"))["call"] == call
        assert server.owner(call) == front
        async with calling(server.url("/media/twilio"), call) as peer:
            await peer.start()
            await bot.event("done", turn="a")
            assert correlation(decoded(peer.played), rendering([SHORT])) > 0.98
        await bot.aclose()

    run(main)


def test_a_bot_that_moves_after_its_handshake_is_refused_with_the_reason(server: FrontServer) -> None:
    async def main() -> None:
        async with bot_first(server, "CA-full") as (_, owner):
            second = await moved_after_handshake(server, owner, "CA-full", [{"type": "ping", "id": 1}])
            assert (await second.event("error"))["code"] == "call_taken"
            assert (await second.gone(within_s=2))[0] == 4409
            await second.aclose()

    run(main)


# --------------------------------------------------------------- many calls at once


def test_the_two_legs_of_many_calls_come_at_the_same_instant(server: FrontServer) -> None:
    """Each call gets both, whatever each leg's front was; and no call has two owners."""

    async def one(n: int, go: asyncio.Event) -> None:
        call = f"CA-same-{n}"
        await go.wait()

        async def bot_side() -> Bot:
            bot = Bot(await connect(server.url(call=call), proxy=None, max_queue=None))
            await bot.event("ready")
            return bot

        async def media_side() -> tuple[Any, TwilioPeer]:
            media = calling(server.url("/media/twilio"), call)
            peer = await media.__aenter__()
            await peer.start()
            return media, peer

        bot, (media, peer) = await asyncio.gather(bot_side(), media_side())
        await bot.event("call")
        await bot.say("Hi there.", "a")
        await bot.event("done", turn="a")
        assert correlation(decoded(peer.played), rendering(["Hi there."])) > 0.97
        await peer.hang_up()
        await bot.gone()
        await bot.aclose()
        await media.__aexit__(None, None, None)

    async def main() -> None:
        go = asyncio.Event()
        calls = [asyncio.create_task(one(n, go)) for n in range(40)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*calls)

    run(main, within_s=60)
    by_front: dict[int, int] = {}
    for line in server.logged("call_started"):
        if line["call"].startswith("CA-same-"):
            by_front[line["front"]] = by_front.get(line["front"], 0) + 1
    assert sum(by_front.values()) == 40, "each call has begun once"
    assert min(by_front.get(0, 0), by_front.get(1, 0)) >= 8, f"both fronts have calls: {by_front}"
    assert server.claims == []


# ------------------------------------------------------------------ whichever front answers


def test_readiness_is_that_of_the_address(server: FrontServer) -> None:
    for front in (0, 1):
        with server.stopped(front):
            for path in ("readyz", "healthz"):
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/{path}", timeout=5) as answer:
                    assert answer.status == 200


def test_speech_over_http_is_the_same_from_each_front(server: FrontServer) -> None:
    voices, speech = [], []
    for front in (0, 1):
        with server.stopped(front):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/voices", timeout=5) as answer:
                voices.append(json.load(answer))
            body = json.dumps({"input": SENTENCE, "voice": "tone", "model": "x", "response_format": "pcm"}).encode()
            asked = urllib.request.Request(
                f"http://127.0.0.1:{server.port}/v1/audio/speech", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=10) as answer:
                speech.append(answer.read())
    assert voices[0] == voices[1] and voices[0]["voices"]
    assert speech[0] == speech[1] and len(speech[0]) > 50_000


def test_nothing_went_wrong_meanwhile(server: FrontServer) -> None:
    """The last test of this file: what the server has logged."""
    bad = [line for line in server.log if line["level"] in ("error", "critical")]
    assert [line for line in bad if line["event"] != "refused"] == []
    warnings = [line for line in server.log if line["level"] == "warning"]
    # A front that was stopped, or got no core for 250 ms while many connections came, is silent. What then becomes of
    # the connections is judged above.
    assert {line["event"] for line in warnings} <= {"refused", "unclaimed", "media_message_refused", "front_silent"}
