"""Many connections that are not AudioSocket calls: live calls go on, new calls come in, and the log stays bounded."""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from bridge_rig import BridgeRig, EndReasons, bridging, noise, run, until
from half_open import HalfOpen, crowd_beside
from log_lines import lines
from standin_asterisk import StandinPhone, phone, raw_connection, read_to_end
from standin_server import ServedCall, StandinServer, standin_server

from sip_bridge import app, metrics

pytestmark = pytest.mark.timed

UUID_HEADER = b"\x01\x00\x10"


@asynccontextmanager
async def beside(server: StandinServer, rig: BridgeRig) -> AsyncIterator[None]:
    """A call that is up during the body. Each of its frames must arrive in both directions, exactly and in order."""
    async with phone(rig.port) as up:
        call = await server.call(up.name)
        n, stop = 0, asyncio.Event()
        said: list[bytes] = []

        async def talk() -> None:
            nonlocal n
            while not stop.is_set() or n < 3:
                n += 1
                await both(call, up, 7000 + n, said)

        talking = asyncio.create_task(talk())
        try:
            yield
        finally:
            stop.set()
            await talking
        assert up.ended is None
        assert up.speech == [frame for k in range(1, n + 1) for frame in noise(5, 7000 + k)], "what the phone heard"
        assert bytes(call.audio) == b"".join(said), "what the server heard"


async def both(call: ServedCall, up: StandinPhone, seed: int, said: list[bytes]) -> None:
    """Send five frames in each direction."""
    frames, own = noise(5, seed), noise(5, seed + 1000)
    said += own
    n_heard = len(up.speech)
    await call.speak(frames)
    await up.talk(own)
    await up.hears(n_heard + 5)
    await call.until(lambda: len(call.audio) >= 320 * len(said), "the caller's audio")


async def new_call_works(server: StandinServer, rig: BridgeRig, seed: int) -> None:
    async with phone(rig.port) as up:
        await both(await server.call(up.name), up, seed, [])


# --------------------------------------------------------------------- without a UUID


async def connect_for_ever(port: int, held: deque[socket.socket]) -> None:
    """Open connections that send nothing, and hold the latest 400 of them."""
    while True:
        sock = socket.socket()
        sock.setblocking(False)
        held.append(sock)
        with suppress(OSError):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        if len(held) > 400:
            held.popleft().close()


def test_connections_without_a_uuid_do_not_block_calls(caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: they counted as calls. With 200 of them, calls were refused as busy until they timed out."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig, beside(server, rig):
            held: deque[socket.socket] = deque()
            flooding = [asyncio.create_task(connect_for_ever(rig.port, held)) for _ in range(4)]
            try:
                await until(lambda: len(held) >= 400, "400 connections without a word")
                for seed in range(3):
                    await new_call_works(server, rig, seed)
                assert rig.bridge.n_calls <= app._MAX_WITHOUT_UUID + 60, "those that wait, and those just being ended"
            finally:
                for each in flooding:
                    each.cancel()
                await asyncio.wait(flooding)
                for sock in held:
                    sock.close()
        counts = ended.counts
        assert counts.pop("hangup") == 4 and set(counts) == {"no_uuid"}

    run(main, within_s=60)
    told = lines(caplog, "no_uuid")
    assert told[0] == {"peer": "127.0.0.1", "why": "256 connections have sent no UUID: are they Asterisk's?"}
    # 20 at once and one per second, of two kinds; four calls log three lines each.
    assert len(caplog.records) < 20 + 60 + 4 * 3 + 10
    assert sum(line.get("left_out", 0) for line in [*told, *lines(caplog, "call_ended")]) > 50


def test_a_flood_from_one_address_drops_no_slow_call_from_another() -> None:
    """Pinned: the oldest of all connections was dropped, also when another address had opened the rest."""

    async def main() -> None:
        async with standin_server() as server, bridging(server.url, audiosocket__uuid_timeout_s=30) as rig:
            loop, name = asyncio.get_running_loop(), uuid.uuid4()
            with socket.socket() as slow:
                slow.bind(("127.0.0.2", 0))
                slow.setblocking(False)
                await loop.sock_connect(slow, ("127.0.0.1", rig.port))
                async with crowd_beside(rig.port, 400, HalfOpen()) as many:
                    await until(lambda: sum(many.is_open()) == 255, "the crowd has dropped its own")
                    await loop.sock_sendall(slow, UUID_HEADER + name.bytes)
                    await server.call(str(name))

    run(main)


def test_a_call_over_the_limit_is_refused_after_its_uuid(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url, audiosocket__max_calls=1) as rig:
            loop = asyncio.get_running_loop()
            async with raw_connection(rig.port) as first, raw_connection(rig.port) as second:
                await until(lambda: rig.bridge.n_calls == 2, "both are there, and neither counts")
                name, other = uuid.uuid4(), uuid.uuid4()
                await loop.sock_sendall(first, UUID_HEADER + name.bytes)
                await server.call(str(name))
                await loop.sock_sendall(second, UUID_HEADER + other.bytes)
                assert await read_to_end(second) == b"\0\0\0", "it is over, and no audio came before"
                assert list(server.calls) == [str(name)]
                assert lines(caplog, "refused") == [
                    {"peer": "127.0.0.1", "call": str(other), "reason": "busy", "setting": "audiosocket.max_calls"}
                ]
            await until(lambda: not rig.bridge.n_calls, "both are over")
            await new_call_works(server, rig, 1)
        assert ended.counts == {"hangup": 2, "refused": 1}

    run(main)


def test_single_bytes_do_not_extend_the_time_for_the_uuid(caplog: pytest.LogCaptureFixture) -> None:
    """Half a header, the other half, then half a UUID: the timeout runs from the connection's start."""

    async def main() -> None:
        ended = EndReasons()
        how = {"audiosocket__uuid_timeout_s": 0.4}
        async with (
            standin_server() as server, bridging(server.url, **how) as rig, beside(server, rig),
            raw_connection(rig.port) as sock,
        ):  # fmt: skip
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            reading = asyncio.create_task(read_to_end(sock))
            for byte in UUID_HEADER + uuid.uuid4().bytes[:-1]:
                with suppress(OSError):
                    await loop.sock_sendall(sock, bytes((byte,)))
                await asyncio.sleep(0.05)
                if reading.done():
                    break
            assert await reading == b"\0\0\0" and 0.35 <= loop.time() - begun_s < 0.9
        assert ended.counts == {"no_uuid": 1, "hangup": 1}

    run(main)
    (line,) = lines(caplog, "no_uuid")
    assert line == {"peer": "127.0.0.1", "why": "no UUID within 0.4 s: is this Asterisk?"}


def test_refused_addresses_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        how = {"audiosocket__allowed": ["127.0.0.1"]}
        async with standin_server() as server, bridging(server.url, **how) as rig, beside(server, rig):
            before = metrics.value("telephony_sip_bridge_refused_total", reason="not_allowed")
            for _ in range(300):
                _, writer = await asyncio.open_connection("127.0.0.1", rig.port, local_addr=("127.0.0.2", 0))
                writer.transport.abort()
            refused = "telephony_sip_bridge_refused_total"
            await until(lambda: metrics.value(refused, reason="not_allowed") == before + 300, "each was refused")

    run(main)
    told = lines(caplog, "refused")
    assert told[0] == {"peer": "127.0.0.2", "reason": "not_allowed", "setting": "audiosocket.allowed"}
    assert 20 <= len(told) <= 40
    (last,) = lines(caplog, "lines_left_out")
    assert len(told) + last["lines_left_out"] == 300


def test_calls_over_the_limit_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each has a UUID and none becomes a call. They log two lines each: 20 at once, then one per second."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with standin_server() as server, bridging(server.url, audiosocket__max_calls=1) as rig:
            loop = asyncio.get_running_loop()
            async with AsyncExitStack() as stack:
                early = [await stack.enter_async_context(raw_connection(rig.port)) for _ in range(60)]
                await until(lambda: rig.bridge.n_calls == 60, "they are let in, as none has a name yet")
                up = await stack.enter_async_context(phone(rig.port))
                await server.call(up.name)
                for sock in early:
                    await loop.sock_sendall(sock, UUID_HEADER + uuid.uuid4().bytes)
                    await read_to_end(sock)
            await until(lambda: not rig.bridge.n_calls, "all are over")

    run(main)
    (last,) = lines(caplog, "lines_left_out")
    told = [*lines(caplog, "refused"), *(line for line in lines(caplog, "call_ended") if line["reason"] == "refused")]
    assert 20 <= len(told) <= 40 and len(told) + last["lines_left_out"] == 120


# -------------------------------------------------------------------- garbage and incomplete frames


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "got 47 4554: is this Asterisk?"),
        (bytes.fromhex("16030100ee010000ea0303") + bytes(200), "got 16 0301: is this Asterisk?"),
        (b"\xff" * 50_000, "no UUID within 0.3 s: is this Asterisk?"),
        (b"\n\n", "no UUID within 0.3 s: is this Asterisk?"),
        (b"\x10\x01\x40" + bytes(320), "got 10 0140: is this Asterisk?"),
        (b"\x01\x00\x0f" + bytes(15), "got 01 000f: is this Asterisk?"),
    ],
    ids=["http", "tls", "ff", "half a header", "audio first", "a short UUID"],
)
def test_the_log_quotes_the_beginning_of_garbage(data: bytes, says: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url, audiosocket__uuid_timeout_s=0.3) as rig:
            async with beside(server, rig), raw_connection(rig.port) as sock:
                await asyncio.get_running_loop().sock_sendall(sock, data)
                assert await read_to_end(sock) in (b"", b"\0\0\0")
            assert len(server.calls) == 1

    run(main)
    told = [*lines(caplog, "no_uuid"), *lines(caplog, "bad_peer")]
    assert len(told) == 1 and told[0]["why"].endswith(says) and told[0]["peer"] == "127.0.0.1"


def test_an_incomplete_frame_leaves_its_call_up(caplog: pytest.LogCaptureFixture) -> None:
    """A muted caller sends nothing either. The phone still hears the bot."""

    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig, beside(server, rig), phone(rig.port) as up:
            call = await server.call(up.name)
            up.send_bytes(b"\x10\x01")
            await asyncio.sleep(0.2)
            frames = noise(5, 3)
            await call.speak(frames)
            await up.hears(5)
            up.send_bytes(b"\x40" + frames[0][:99])
            await call.speak(frames)
            await up.hears(10)
            assert up.speech == frames * 2 and not call.audio
            up.send_bytes(frames[0][99:])
            await call.until(lambda: bytes(call.audio) == frames[0], "the whole frame")
        assert ended.counts == {"hangup": 2}

    run(main)
    assert [record.message for record in caplog.records] == [], "nothing is wrong yet"


def test_unknown_kinds_are_named_in_the_log_and_their_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig, beside(server, rig), phone(rig.port) as up:
            call = await server.call(up.name)
            for kind in (0x42, 0x19, 0x02, 0x42):
                up.send(kind, b"what is this")
            await both(call, up, 4, [])
            (line,) = lines(caplog, "bad_input")
            assert line == {
                "peer": "127.0.0.1", "call": up.name, "kind": "unknown_kind",
                "why": "frame kind 42 (of 12 bytes) is not known",
            }  # fmt: skip

    run(main)


def test_fifty_bad_frames_in_a_row_end_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig, beside(server, rig), phone(rig.port) as up:
            call = await server.call(up.name)
            await up.send_all(b"\x42\x00\x01x" * 50)
            assert await up.is_over() == "hung up by the peer"
            await call.gone()
            assert lines(caplog, "bad_peer") == [
                {"peer": "127.0.0.1", "call": up.name, "why": "frame kind 42 (of 1 bytes) is not known"}
            ]
        assert ended.counts == {"bad_peer": 1, "hangup": 1}

    run(main)


# ------------------------------------------------------------------ peers that do not read


def test_a_peer_that_reads_nothing_is_logged_with_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """2,000 frames for an Asterisk that does not read, and 2,000 for a server that does not."""
    name, unheard = uuid.uuid4(), uuid.uuid4()

    async def script(call: ServedCall) -> None:
        if call.name == str(unheard):
            call.stop_reading()

    async def main() -> None:
        ended = EndReasons()
        how = {"audiosocket__slow_reader_s": 0.4, "server__slow_reader_s": 0.4}
        async with (
            StandinServer(script).running(receive_buffer=4096) as server, bridging(server.url, **how) as rig,
            beside(server, rig), raw_connection(rig.port, receive_buffer=4096) as deaf,
        ):  # fmt: skip
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(deaf, UUID_HEADER + name.bytes + b"\x18\x00\x04abcd")  # 192 kHz: full soon
            await until(lambda: ended.counts, "the end of the call", 30)
            async with phone(rig.port, unheard) as up:
                await server.call(up.name)
                await up.send_all((b"\x10\x01\x40" + bytes(320)) * 2000)
                assert await up.is_over() == "hung up by the peer"
        assert ended.counts == {"slow_reader": 1, "server_lost": 1, "hangup": 1}

    run(main, within_s=60)
    deaf, of_server = lines(caplog, "slow_reader")
    assert deaf == {"peer": "127.0.0.1", "call": str(name), "why": "Asterisk has not read for 0.4 s"}
    assert of_server["for_s"] == 0.4 and of_server["unsent_bytes"] > 0
    (lost,) = lines(caplog, "server_lost")
    assert lost["call"] == str(unheard) and lost["why"].startswith("closed by us: 1008 read from the socket")


def test_a_too_long_message_of_the_server_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig, beside(server, rig), phone(rig.port) as up:
            call = await server.call(up.name)
            await call.socket.send(bytes(1_000_000))
            assert await up.is_over() == "hung up by the peer"
            (line,) = lines(caplog, "server_lost")
            assert line["call"] == up.name
            assert line["why"] == "closed by us: 1009 frame with 1000000 bytes exceeds limit of 65536 bytes"
        assert ended.counts == {"server_lost": 1, "hangup": 1}

    run(main)


def test_2000_frames_of_speech_at_once_end_their_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig, beside(server, rig), phone(rig.port) as up:
            call = await server.call(up.name)
            for frame in noise(2000, 1):
                await call.socket.send(frame)
            assert await up.is_over() == "hung up by the peer"
            (line,) = lines(caplog, "queue_overflow")
            assert line["call"] == up.name and "ms of speech wait for Asterisk" in line["why"]
        assert ended.counts == {"queue_overflow": 1, "hangup": 1}

    run(main)
