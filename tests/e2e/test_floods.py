"""Floods of messages, and peers that do not read: only their own call suffers, not the neighbouring one."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from log_lines import lines
from neighbour import neighbour
from raw_peer import frame, raw_peer
from rig import run, serving, until
from websockets.frames import Opcode

pytestmark = pytest.mark.alone

MEDIA = "/media/twilio"
GREEDY = "/v1/stream?codec=pcm&rate=24000&pace=burst"
LONG = "This is a long story, and it will not be heard to its end. " * 20


@pytest.mark.parametrize(
    "message",
    [{"type": "clear"}, {"type": "ping", "id": 1}, {"type": "shout"}, "", {"type": "mark", "name": "m"}],
)
def test_ten_thousand_tiny_messages(message: dict[str, Any] | str) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig):
            flooder = await asyncio.create_subprocess_exec(
                sys.executable, str(Path(__file__).with_name("flooder.py")),
                rig.url("/v1/stream?audio=none"), json.dumps(message), "10000",
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(30):
                out, _ = await flooder.communicate()
            assert flooder.returncode == 0 and int(out) >= 10_000, "each has its answer"

    run(main)


def test_a_flood_of_mistakes_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(audio="none") as bot:
            bot.socket.transport.write(frame({"type": "shout"}) * 1000 + frame({"type": "ping", "id": "end"}))
            await bot.event("pong", id="end")
            assert len([e for e in bot.events if e["type"] == "error"]) == 1000

    run(main)
    assert 1 <= len([record for record in caplog.records if record.message == "error"]) <= 100


def test_ten_thousand_say_and_clear_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """A barge-in in the same packet as its turn: the engine's task is cancelled before its first step."""
    caplog.set_level(logging.INFO)
    flooder = ""

    async def main() -> None:
        async with serving() as rig, neighbour(rig), rig.bot(audio="none") as bot:
            pair = frame({"type": "say", "text": "Yes."}) + frame({"type": "clear"})
            for _ in range(10):
                bot.socket.transport.write(pair * 100 + frame({"type": "ping", "id": "end"}))
                await bot.event("pong", id="end", within_s=15)
            kinds = [e["type"] for e in bot.events]
            assert kinds.count("cleared") == 1000 and kinds.count("done") == 0
            nonlocal flooder
            flooder = bot.ready["call"]
            call = rig.server.registry.find(flooder)
            assert call is not None
            assert not call._runs

    run(main)
    (*told, ended, _audit) = [line for line in lines(caplog) if line.get("call") == flooder]
    assert len(told) < 300 and len(told) + ended["lines_left_out"] >= 1000, "turns too, each of which is a line"


def test_a_reader_that_reads_nothing_is_dropped_and_its_speech_stops() -> None:
    async def main() -> None:
        async with serving(slow_reader_s=0.3) as rig, neighbour(rig), raw_peer(rig.port, GREEDY, 4096) as peer:
            await peer.send(LONG)
            await until(lambda: rig.engine.n_live or len(rig.server.registry) == 2, "its speech")
            await until(lambda: len(rig.server.registry) == 1, "a call whose peer reads nothing", 6)
            await peer.read_to_end()
            assert b'"started"' in peer.data and b'"internal"' not in peer.data and peer.close_code == 1008

    run(main)


def test_a_reader_of_one_byte_a_second_is_disconnected() -> None:
    async def main() -> None:
        async with serving(slow_reader_s=0.5) as rig, neighbour(rig), raw_peer(rig.port, GREEDY, 4096) as peer:
            await peer.send(LONG)
            begun_s = time.monotonic()
            while len(rig.server.registry) > 1:
                await peer.read(1)
                await asyncio.sleep(0.1)
                assert time.monotonic() - begun_s < 6, "it is still served"
            assert time.monotonic() - begun_s > 0.5, "that was something else"

    run(main)


def test_clear_reaches_the_audio_that_a_slow_reader_has_not_read() -> None:
    """A burst of megabytes waits in the server, where a clear can drop it; kernel buffers would not."""

    async def main() -> None:
        path = "/v1/stream?pace=burst&audio=binary"
        async with serving(slow_reader_s=5) as rig, raw_peer(rig.port, path, 4096) as peer:
            await peer.send(LONG)
            await asyncio.sleep(0.3)
            await peer.send({"type": "clear"})
            await asyncio.sleep(0.1)
            await peer.read_until(b'"cleared"')
            n_all = len(LONG) * 60 * 8
            assert len(peer.data) < n_all / 4, f"{len(peer.data)} of {n_all} bytes were beyond reach"

    run(main)


def test_memory_is_bounded_for_a_bot_that_asks_and_never_reads() -> None:
    async def main() -> None:
        """With `audio=none` answers are dropped instead: test_bots_that_only_send.py."""
        path = "/v1/stream"
        async with serving(slow_reader_s=60) as rig, neighbour(rig), raw_peer(rig.port, path, 4096) as peer:
            status = frame({"type": "status"}) * 500
            # The server reads at its own pace, and the kernel takes answers before the server has to hold any.
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(45):
                    while True:
                        await peer.send_bytes(status)
                        await asyncio.sleep(0.005)

    run(main, within_s=60)


def test_memory_is_bounded_for_a_bot_that_pings_and_never_reads(caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: the library answers each ping by itself, and 58 MB of answers waited for one peer."""

    async def main() -> None:
        path = "/v1/stream?audio=none"
        async with serving(slow_reader_s=60) as rig, neighbour(rig), raw_peer(rig.port, path, 4096) as peer:
            connection = next(c for c in rig.server._connections if c.request and c.request.path == path)
            pings = frame(b"x" * 125, Opcode.PING) * 500
            most = 0
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(10):
                    while True:
                        await peer.send_bytes(pings)
                        await asyncio.sleep(0)
                        most = max(most, connection.transport.get_write_buffer_size())
            assert 100_000 < most < 1.1 * 2**20

    run(main)
    assert len([record for record in caplog.records if record.message == "reads_nothing"]) == 1
