"""How the server stops: after a drain, at once on a second signal, or before it has begun to listen."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest
from rig import Bot, Tones, correlation, decoded, get, greeted, rendering, run, serving, speech_settings, until
from served import process
from server_settings import transport_settings
from twilio_peer import calling
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from telephony_tts.engines.catalog import Catalog
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.timed

MEDIA = "/media/twilio"


def test_draining_lets_speech_finish_and_refuses_what_is_new() -> None:
    async def main() -> None:
        engine = Tones()
        settings = transport_settings(speech=speech_settings(), port=0, drain_s=10, max_frame_lateness_ms=60_000)
        server = Server(settings, _catalog(engine))
        async with server.running():
            port = server.port
            address = f"ws://127.0.0.1:{port}/v1/stream?audio=binary"
            sockets = [await connect(address, proxy=None, max_queue=None) for _ in range(2)]
            speaking, idle = (Bot(socket) for socket in sockets)
            media = calling(f"ws://127.0.0.1:{port}{MEDIA}", "CA9")
            peer = await media.__aenter__()
            await peer.start()
            await until(lambda: len(server.registry) == 3, "three calls, one of them without its bot")
            await speaking.say("This is said to the end.", "a")
            await speaking.event("started", turn="a")
            draining = asyncio.create_task(server.drain())
            assert (await idle.gone())[0] == 1001
            assert (await peer.gone())[0] == 1001, "a call without a bot has nothing to finish"
            assert (await get(port, "/readyz"))[0] == 503 and (await get(port, "/healthz"))[0] == 200
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://127.0.0.1:{port}/v1/stream", proxy=None)
            assert refused.value.response.status_code == 503 and "Retry-After" in refused.value.response.headers
            await speaking.event("done", turn="a")
            assert (await speaking.gone())[0] == 1001
            assert correlation(decoded(speaking.frames), rendering(["This is said to the end."])) >= 0.99
            await draining
            for bot in (speaking, idle):
                await bot.aclose()
            await media.__aexit__(None, None, None)
        assert engine.n_live == 0

    run(main, plain_loop=True)


def _catalog(engine: Tones) -> Any:
    from telephony_tts.engines.catalog import Catalog

    return Catalog([engine])


def test_a_drain_times_out_and_reports_what_was_heard() -> None:
    async def main() -> None:
        server = Server(transport_settings(speech=speech_settings(), port=0, drain_s=0.3), _catalog(Tones(hangs=True)))
        async with server.running():
            socket = await connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None)
            bot = Bot(socket)
            await bot.say("Nobody ever says this.", "a")
            await bot.event("ready")
            await asyncio.sleep(0.05)
            await server.drain()
            cleared = await bot.event("cleared", turn="a")
            assert cleared["reason"] == "drain" and cleared["unheard_text"] == "Nobody ever says this."
            assert (await bot.gone())[0] == 1001
            await bot.aclose()

    run(main, plain_loop=True)


def test_calls_go_on_until_they_end_if_the_drain_waits_for_them() -> None:
    """`drain_calls_s`: a conversation, and the leg that joins it, outlive the signal; a new call does not begin."""

    async def main() -> None:
        settings = transport_settings(speech=speech_settings(), port=0, drain_calls_s=30, max_frame_lateness_ms=60_000)
        server = Server(settings, _catalog(Tones()))
        async with server.running():
            port = server.port
            address = f"ws://127.0.0.1:{port}/v1/stream"
            bot = Bot(await connect(f"{address}?call=CA7", proxy=None, max_queue=None))
            await bot.event("ready")
            draining = asyncio.create_task(server.drain())
            await until(lambda: server.draining, "the drain")
            assert (await get(port, "/readyz"))[0] == 503
            with pytest.raises(InvalidStatus) as refused:
                await connect(address, proxy=None)
            assert refused.value.response.status_code == 503
            async with calling(f"ws://127.0.0.1:{port}{MEDIA}", "CA7") as peer:
                await peer.start()
                await bot.event("call")
                for turn in ("a", "b"):
                    await bot.say("This turn begins after the signal.", turn)
                    await bot.event("done", turn=turn)
                assert not draining.done()
            await bot.event("hangup")
            assert (await bot.gone())[0] == 1000, "the call's own end, not the drain's"
            await asyncio.wait_for(draining, 2)
            await bot.aclose()

    run(main)


def test_calls_that_outlast_the_drain_finish_their_speech_and_end() -> None:
    async def main() -> None:
        settings = transport_settings(speech=speech_settings(), port=0, drain_calls_s=0.3, drain_s=10)
        server = Server(settings, _catalog(Tones()))
        async with server.running():
            bot = Bot(await connect(f"ws://127.0.0.1:{server.port}/v1/stream?audio=binary", proxy=None, max_queue=None))
            await bot.say("This is said to the end, and it takes longer than the calls may go on.", "a")
            await bot.event("started", turn="a")
            await server.drain()
            await bot.event("done", turn="a")
            assert (await bot.gone())[0] == 1001
            await bot.aclose()

    run(main)


def test_a_second_signal_ends_calls_that_go_on() -> None:
    async def main() -> None:
        server = Server(transport_settings(speech=speech_settings(), port=0, drain_calls_s=60), _catalog(Tones()))
        async with server.running():
            bot = Bot(await connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None, max_queue=None))
            await bot.event("ready")
            draining = asyncio.create_task(server.drain())
            await until(lambda: server.draining, "the drain")
            server.stop_at_once()
            await asyncio.wait_for(draining, 2)
            assert (await bot.gone())[0] == 1001
            await bot.aclose()

    run(main)


def test_a_second_signal_right_after_the_first_is_not_lost() -> None:
    """It may arrive before the drain has begun."""

    async def main() -> None:
        server = Server(transport_settings(speech=speech_settings(), port=0, drain_s=30), _catalog(Tones()))
        async with server.running():
            bot = Bot(await connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None, max_queue=None))
            await bot.say("A long one that takes its time to tell. " * 20, "a")
            await bot.event("started", turn="a")
            server.stop_at_once()
            stopped_s = time.monotonic()
        assert time.monotonic() - stopped_s < 2
        assert (await bot.gone())[0] == 1001 and bot.terminals("a") == ["cleared"]
        await bot.aclose()

    run(main)


def test_a_second_signal_behind_the_drain_is_no_error() -> None:
    """The server may still be closing. Pinned: it raised RuntimeError in the signal's handler."""

    async def main() -> None:
        server = Server(transport_settings(speech=speech_settings(), port=0, drain_calls_s=60), _catalog(Tones()))
        async with server.running():
            bot = Bot(await connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None, max_queue=None))
            await bot.event("ready")
            draining = asyncio.create_task(server.drain())
            await until(lambda: server.draining, "the drain")
            await bot.aclose()
            await asyncio.wait_for(draining, 2)
            server.stop_at_once()

    run(main)


def test_a_port_in_use_is_an_error_of_the_system_not_a_group() -> None:
    async def main() -> None:
        async with serving() as rig:
            second = Server(transport_settings(port=rig.port), rig.server.catalog)
            with pytest.raises(OSError, match="in use"):
                async with second.running():
                    pass

    run(main)


def _wait(served: subprocess.Popen[str], within_s: float) -> tuple[int, str, str]:
    out, err = served.communicate(timeout=within_s)
    return served.returncode, out, err


def test_sigterm_while_speaking_finishes_the_speech_and_exits_with_0() -> None:
    with process() as (served, port):

        async def main() -> None:
            async with greeted(f"ws://127.0.0.1:{port}/v1/stream?audio=binary") as bot:
                await bot.say("The last word is heard.", "a")
                await bot.event("started", turn="a")
                served.send_signal(signal.SIGTERM)
                await until(lambda: _refused(port), "new calls are refused")
                await bot.event("done", turn="a")
                assert (await bot.gone())[0] == 1001
                assert correlation(decoded(bot.frames), rendering(["The last word is heard."])) >= 0.99

        run(main)
        code, out, err = _wait(served, 10)
    assert code == 0, err
    assert "Traceback" not in err and "Warning" not in err, err
    assert "is ready at" in out
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["event"] for line in lines][-1] == "stopped"
    assert "The last word" not in err, "spoken text must not be logged"


def _refused(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_for_speech(number: signal.Signals) -> None:
    with process() as (served, port):

        async def main() -> None:
            async with greeted(f"ws://127.0.0.1:{port}/v1/stream?audio=none") as bot:
                await bot.say("A long one that takes its time to tell. " * 20, "a")
                await bot.event("started", turn="a")
                served.send_signal(number)
                served.send_signal(number)  # twice, as make and a shell pass it on: still one request
                await until(lambda: _refused(port), "draining")
                with pytest.raises(AssertionError, match="no cleared"):
                    await bot.event("cleared", turn="a", within_s=0.5)
                served.send_signal(number)
                cleared = await bot.event("cleared", turn="a", within_s=3)
                assert cleared["reason"] == "drain"
                assert (await bot.gone())[0] == 1001

        run(main)
        code, _, err = _wait(served, 5)
    assert code == 0 and "Traceback" not in err, err


def test_a_port_in_use_is_one_line_on_stderr() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "telephony_tts", "serve", "--port", str(port), "--set",
                   "engines.default=fake"]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode != 0
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1 and str(port) in lines[0] and "in use" in lines[0], ended.stderr


def test_a_connection_without_a_handshake_does_not_delay_the_exit() -> None:
    """Pinned: the server waited ten seconds for its handshake."""

    async def main() -> None:
        server = Server(transport_settings(port=0, drain_s=1), Catalog([Tones()]))
        async with server.running():
            _, silent = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.sleep(0.05)
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 3
        silent.close()

    run(main)
