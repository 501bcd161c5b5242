"""Faults of peers end only their own call: garbage, floods, peers that do not read, servers that refuse or die."""

from __future__ import annotations

import asyncio
import gc
import socket
import uuid
from http import HTTPStatus

import pytest
from bridge_rig import EndReasons, bridging, count_sockets, noise, run, until
from standin_asterisk import StandinPhone, phone, raw_connection, read_to_end
from standin_server import ServedCall, StandinServer, standin_server

from sip_bridge import metrics
from sip_bridge.audiosocket.call import AudioSocketCall

pytestmark = pytest.mark.timed


def bad_input(kind: str) -> float:
    return metrics.value("telephony_sip_bridge_bad_input_total", kind=kind)


async def still_speaks(call: ServedCall, up: StandinPhone, seed: int) -> None:
    """Check that a live call works in both directions."""
    frames, said = noise(5, seed), noise(5, seed + 1000)
    n_heard, n_said = len(up.speech), len(call.audio)
    await call.speak(frames)
    await up.talk(said)
    await up.hears(n_heard + 5)
    await call.until(lambda: len(call.audio) >= n_said + 1600, "the caller's audio")
    assert up.speech[n_heard:] == frames and call.audio[n_said:] == b"".join(said)


# -------------------------------------------------------------- garbage on the port


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100ee010000ea0303") + bytes(200),
        b"\xff" * 50_000,
        b"\n",
    ],
    ids=["http", "tls", "ff", "one byte"],
)
def test_garbage_ends_its_own_connection_only(data: bytes) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url, audiosocket__uuid_timeout_s=0.3) as rig:
            async with phone(rig.port) as up, raw_connection(rig.port) as sock:
                call = await server.call(up.name)
                await asyncio.get_running_loop().sock_sendall(sock, data)
                assert await read_to_end(sock) in (b"", b"\0\0\0"), "nothing is said to it but that it is over"
                await still_speaks(call, up, 1)
            assert list(server.calls) == [up.name]
        assert set(ended.counts) <= {"bad_peer", "no_uuid", "hangup"} and sum(ended.counts.values()) == 2

    run(main)


def test_frames_in_pieces_are_heard_whole() -> None:
    said = noise(6, 20)

    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig, phone(rig.port) as up:
            call = await server.call(up.name)
            for frame in said:
                data = b"\x10\x01\x40" + frame
                for piece in (data[:1], data[1:2], data[2:150], data[150:]):
                    up.send_bytes(piece)
                    await asyncio.sleep(0.003)
            await call.until(lambda: bytes(call.audio) == b"".join(said), "all of it")
            assert rig.bridge.n_calls == 1, "and the call goes on"

    run(main)


def test_a_connection_that_ends_inside_a_frame_is_a_hang_up() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig:
            for leave in (StandinPhone.hang_up, StandinPhone.vanish):
                async with phone(rig.port) as up:
                    call = await server.call(up.name)
                    up.send_bytes(b"\x10\x01\x40" + bytes(99))
                    await up.hears_any(len(up.heard) + 2)
                    leave(up)
                    await call.gone()
                    assert call.of("stop") == [{"type": "stop", "reason": "hangup"}] and not call.audio
        assert ended.counts == {"hangup": 2}

    run(main)


def test_bad_frames_in_a_call_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        kinds = ("unknown_kind", "empty_audio", "odd_audio", "second_uuid", "bad_digit", "asterisk_error")
        before = [bad_input(kind) for kind in kinds]
        async with standin_server() as server, bridging(server.url) as rig, phone(rig.port) as up:
            call = await server.call(up.name)
            for _ in range(3):
                up.send(0x42, b"what is this")
                up.send(0x10, b"")
                up.send(0x10, bytes(321))
                up.send(0x01, uuid.uuid4().bytes)
                up.send(0x03, b"12")
                up.send(0xFF, b"\x04")
            await still_speaks(call, up, 2)
            assert call.of("dtmf") == []
        assert [bad_input(kind) for kind in kinds] == [n + 3 for n in before]
        told = [record for record in caplog.records if record.message == "bad_input"]
        assert len(told) == len(kinds), "each said once per call, not once per frame"
        assert all(record.fields["call"] == up.name for record in told)  # type: ignore[attr-defined]

    run(main)


def test_frames_without_audio_never_end_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """A jitter buffer in Asterisk makes one for each packet that is missing."""

    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig, phone(rig.port) as up:
            call = await server.call(up.name)
            for _ in range(500):
                up.send(0x10, b"")
            await still_speaks(call, up, 2)
        told = [record for record in caplog.records if record.message == "bad_input"]
        assert len(told) == 1, "once a call"

    run(main)


# ------------------------------------------------------------- which addresses are allowed


def test_other_addresses_and_calls_over_the_limit_are_refused() -> None:
    async def main() -> None:
        async with standin_server() as server:
            how = {"audiosocket__allowed": ["127.0.0.1"], "audiosocket__max_calls": 1}
            async with bridging(server.url, **how) as rig, phone(rig.port) as up:
                call = await server.call(up.name)
                for source, reason in (("127.0.0.2", "not_allowed"), ("127.0.0.1", "busy")):
                    before = metrics.value("telephony_sip_bridge_refused_total", reason=reason)
                    async with phone(rig.port, source=source) as other:
                        assert await other.is_over() == "closed" and not other.heard
                    assert metrics.value("telephony_sip_bridge_refused_total", reason=reason) == before + 1
                await still_speaks(call, up, 3)

    run(main)


def test_a_uuid_that_no_bot_claims_is_hung_up() -> None:
    async def main() -> None:
        ended = EndReasons()

        async def no_bot_comes(call: ServedCall) -> None:
            await asyncio.sleep(0.1)
            await call.socket.close(4404, "no bot leg came")

        async with standin_server(no_bot_comes) as server, bridging(server.url) as rig, phone(rig.port) as up:
            assert await up.is_over() == "hung up by the peer"
            assert len(up.heard) >= 4, "silence while it was waited for"
        assert ended.counts == {"server_refused": 1}

    run(main)


# ------------------------------------------------------------------------- servers


@pytest.mark.parametrize(
    ("status", "says"), [(503, "503"), (401, "TELEPHONY_SIP_BRIDGE_TOKEN"), (404, "/media/native")]
)
def test_a_server_that_refuses_is_asked_once_and_the_log_says_what_to_do(
    status: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig:
            server.refusal = (HTTPStatus(status), "so it is\n")
            async with phone(rig.port) as up:
                assert await up.is_over() == "hung up by the peer"
            assert len(server.headers) == 1
            server.refusal = None
            async with phone(rig.port) as up:
                await still_speaks(await server.call(up.name), up, 4)
        assert ended.counts == {"server_refused": 1, "hangup": 1}

    run(main)
    (told,) = [record for record in caplog.records if record.message == "server_refused"]
    assert says in told.fields["why"]  # type: ignore[attr-defined]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_a_server_that_starts_late_is_reached_while_the_caller_waits() -> None:
    async def main() -> None:
        port, retries = free_port(), metrics.value("telephony_sip_bridge_connect_retries_total")
        async with bridging(f"ws://127.0.0.1:{port}/media/native") as rig, phone(rig.port) as up:
            await up.hears_any(20)
            async with StandinServer(None).running(port) as server:
                await still_speaks(await server.call(up.name), up, 5)
                up.hang_up()
        assert 2 <= metrics.value("telephony_sip_bridge_connect_retries_total") - retries <= 5

    run(main)


def test_an_unreachable_server_ends_the_call_after_a_bounded_time() -> None:
    async def main() -> None:
        ended = EndReasons()
        with socket.create_server(("127.0.0.1", 0)) as mute:
            for port in (free_port(), mute.getsockname()[1]):
                url = f"ws://127.0.0.1:{port}/media/native"
                async with bridging(url, server__connect_timeout_s=0.8) as rig, phone(rig.port) as up:
                    assert await up.is_over() == "hung up by the peer"
                    assert 15 <= len(up.heard) <= 60
        assert ended.counts == {"server_unreachable": 2}

    run(main)


def test_a_server_that_dies_ends_its_calls_and_the_next_call_finds_the_new_server() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server, bridging(server.url) as rig:
            async with phone(rig.port) as first, phone(rig.port) as second:
                call, other = await server.call(first.name), await server.call(second.name)
                call.socket.transport.abort()
                assert await first.is_over() == "hung up by the peer"
                await still_speaks(other, second, 6)
                server.die()
                assert await second.is_over() == "hung up by the peer"
            async with phone(rig.port) as third:
                await still_speaks(await server.call(third.name), third, 7)
        assert ended.counts == {"server_lost": 2, "hangup": 1}

    run(main)


def test_bad_messages_of_the_server_are_ignored() -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig, phone(rig.port) as up:
            call = await server.call(up.name)
            before = bad_input("server_message"), bad_input("server_audio")
            wrong = ("{", "[]", '"x"', "1", '{"type":"mark"}', '{"type":"mark","name":5}', '{"type":7}', "[" * 5000)
            for text in wrong:
                await call.socket.send(text)
            await call.socket.send('{"type":"error","code":"bad","message":"you said it wrong"}')
            await call.socket.send(b"odd")
            await call.socket.send(b"")
            await still_speaks(call, up, 8)
            assert (bad_input("server_message"), bad_input("server_audio")) == (before[0] + 8, before[1] + 2)

    run(main)


# ------------------------------------------------------------------ peers that do not read


def test_the_call_of_an_asterisk_that_does_not_read_ends() -> None:
    async def main() -> None:
        ended = EndReasons()
        how = {"audiosocket__slow_reader_s": 0.5}
        async with (
            standin_server() as server, bridging(server.url, **how) as rig, phone(rig.port) as up,
            raw_connection(rig.port, receive_buffer=4096) as deaf,
        ):  # fmt: skip
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(deaf, b"\x01\x00\x10" + uuid.uuid4().bytes + b"\x12\x00\x04abcd")
            call = await server.call(up.name)
            await until(lambda: ended.counts, "the end of the call")
            await still_speaks(call, up, 9)
        assert ended.counts == {"slow_reader": 1, "hangup": 1}

    run(main)


def test_an_asterisk_that_still_sends_gets_the_hang_up_frame_and_a_clean_end() -> None:
    async def main() -> None:
        async def leaves(call: ServedCall) -> None:
            await call.socket.close(1000)

        async with standin_server(leaves) as server, bridging(server.url) as rig, raw_connection(rig.port) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, b"\x01\x00\x10" + uuid.uuid4().bytes)
            for _ in range(15):
                await loop.sock_sendall(sock, b"\x10\x01\x40" + bytes(320))
                await asyncio.sleep(0.02)
            data = b""
            while piece := await loop.sock_recv(sock, 65_536):  # a reset would be an error here
                data += piece
            assert data.endswith(b"\0\0\0")

    run(main)


def test_a_connection_that_asterisk_does_not_close_is_aborted() -> None:
    async def main() -> None:
        async def leaves(call: ServedCall) -> None:
            await call.socket.close(1000)

        async with standin_server(leaves) as server, bridging(server.url) as rig, raw_connection(rig.port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, b"\x01\x00\x10" + uuid.uuid4().bytes)
            assert (await read_to_end(sock)).endswith(b"\0\0\0")
            await until(lambda: not rig.bridge.n_calls, "the end of the call")

    run(main)


def test_2000_frames_for_a_server_that_reads_nothing_are_dropped_and_the_call_ends() -> None:
    async def main() -> None:
        ended = EndReasons()
        dropped = metrics.value("telephony_sip_bridge_caller_bytes_dropped_total")

        unheard = uuid.uuid4()

        async def script(call: ServedCall) -> None:
            if call.name == str(unheard):
                call.stop_reading()

        async with (
            StandinServer(script).running(receive_buffer=4096) as server,
            bridging(server.url, server__slow_reader_s=0.5) as rig,
            phone(rig.port) as up, phone(rig.port, unheard) as flood,
        ):  # fmt: skip
            call = await server.call(up.name)
            await server.call(flood.name)
            await flood.send_all((b"\x10\x01\x40" + bytes(320)) * 2000)
            assert await flood.is_over() == "hung up by the peer"
            await still_speaks(call, up, 10)
        assert ended.counts == {"server_lost": 1, "hangup": 1}
        assert metrics.value("telephony_sip_bridge_caller_bytes_dropped_total") - dropped > 300_000

    run(main)


# --------------------------------------------------------------- many calls


@pytest.mark.alone
def test_50_calls_at_once_and_one_that_misbehaves() -> None:
    n, n_frames = 50, 60
    spoken = {k: noise(n_frames, 100 + k) for k in range(n)}

    async def main() -> None:
        names: dict[str, int] = {}
        ended = EndReasons()

        async def script(call: ServedCall) -> None:
            if call.name in names:
                await call.speak(spoken[names[call.name]])

        async with standin_server(script) as server, bridging(server.url) as rig:

            async def one(k: int) -> None:
                call = uuid.uuid4()
                names[str(call)] = k
                async with phone(rig.port, call) as up:
                    await up.talk(spoken[k])
                    await up.hears(n_frames)
                    first = next(i for i, frame in enumerate(up.frames) if any(frame))
                    heard = up.frames[first:]
                    while heard and not any(heard[-1]):
                        heard.pop()
                    assert [f for f in heard if any(f)] == spoken[k], "every frame of its own call, in order"
                    assert bytes(server.calls[up.name].audio)[-3200:] == b"".join(spoken[k])[-3200:]

            async def vandal() -> None:
                async with phone(rig.port) as up:
                    await server.call(up.name)
                    audio, digit, empty = b"\x10\x00\x02ab", b"\x03\x00\x011", b"\x10\x00\x00"
                    for data in (audio * 20_000, empty * 48 + audio, digit * 100_000):
                        assert up.ended is None
                        await up.send_all(data)
                        await asyncio.sleep(0.2)
                    await up.is_over()

            await asyncio.gather(vandal(), *[one(k) for k in range(n)])
        assert ended.counts == {"bad_peer": 1, "hangup": n}

    run(main)


@pytest.mark.alone
@pytest.mark.parametrize("n_calls", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_calls_in_sequence_leave_nothing_behind(n_calls: int) -> None:
    async def main() -> None:
        async def script(call: ServedCall) -> None:
            await call.socket.send(bytes([7, 0]) * 160)
            await call.mark("m")

        async with standin_server(script) as server, bridging(server.url) as rig:
            n_sockets = n_tasks = 0

            for k in range(n_calls):
                async with phone(rig.port) as up:
                    up.send(0x10, bytes(320))
                    await up.hears(1)
                    if k % 4 == 3:
                        up.vanish()
                    elif k % 4 == 2:
                        up.send(0x00, b"")
                    elif k % 4 == 1:
                        await server.calls[up.name].socket.close(1011)
                        await up.is_over()
                await until(lambda: not rig.bridge.n_calls and not server.n_connections, "the end")
                server.calls.clear()
                if k == 20:
                    n_sockets, n_tasks = count_sockets(), len(asyncio.all_tasks())
            assert (count_sockets(), len(asyncio.all_tasks())) == (n_sockets, n_tasks)
            gc.collect()
            assert sum(type(thing) is AudioSocketCall for thing in gc.get_objects()) == 0

    run(main)


# ------------------------------------------------------------------------- draining


def test_a_drain_lets_calls_finish_and_takes_no_new_ones() -> None:
    frames = noise(30, 11)

    async def main() -> None:
        ended = EndReasons()

        async def script(call: ServedCall) -> None:
            await call.speak(frames)
            await call.socket.close(1000)

        async with standin_server(script) as server:
            up: StandinPhone
            async with bridging(server.url, drain_s=10) as rig:
                connection = phone(rig.port)
                up = await connection.__aenter__()
                await up.hears(5)
            with pytest.raises(ConnectionRefusedError):
                async with phone(rig.port):
                    pass
            assert await up.is_over() == "hung up by the peer" and up.speech == frames
            await connection.__aexit__(None, None, None)
        assert ended.counts == {"finished": 1}

    run(main)


def test_a_drain_ends_calls_that_last_too_long() -> None:
    async def main() -> None:
        ended = EndReasons()
        async with standin_server() as server:
            async with bridging(server.url, drain_s=0.3) as rig:
                connection = phone(rig.port)
                up = await connection.__aenter__()
                call = await server.call(up.name)
            assert await up.is_over() == "hung up by the peer"
            await call.gone()
            assert call.of("stop") == [{"type": "stop", "reason": "drain"}]
            await connection.__aexit__(None, None, None)
        assert ended.counts == {"drain": 1}

    run(main)
