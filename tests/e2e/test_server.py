"""The server as its operator sees it: health, metrics, tokens, limits, TLS, and how it stops."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig import Bot, Tones, correlation, decoded, get, rendering, run, serving, speech_settings, until
from server_settings import transport_settings
from twilio_peer import calling
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from telephony_tts.engines.api import EngineStats
from telephony_tts.engines.catalog import Catalog
from telephony_tts.fronts.supervisor import listen
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.alone

MEDIA = "/media/twilio"


async def figures(port: int) -> dict[str, float]:
    _, _, body = await get(port, "/metrics")
    lines = [line.rsplit(" ", 1) for line in body.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_health_readiness_and_what_is_not_there() -> None:
    async def main() -> None:
        async with serving() as rig:
            status, headers, body = await get(rig.port, "/healthz")
            assert (status, body) == (200, "ok\n") and headers["connection"] == "close"
            assert (await get(rig.port, "/readyz?x=1"))[0] == 200
            status, _, body = await get(rig.port, "/nothing")
            assert status == 404 and "/v1/stream" in body
            assert (await get(rig.port, "/v1/stream"))[0] == 426
            port = rig.port
        with pytest.raises(ConnectionRefusedError):
            await get(port, "/healthz")

    run(main, plain_loop=True)


@pytest.mark.parametrize("is_front", [False, True])
def test_many_connections_may_wait_to_be_accepted(is_front: bool) -> None:
    """Pinned: the loop called `listen` once more, with 100, on the sockets that the supervisor had made."""

    at_most = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii"))

    async def main() -> None:
        sockets = listen("127.0.0.1", 0) if is_front else []
        server = Server(transport_settings(), Catalog([Tones()]))
        async with server.running(sockets=sockets):
            assert server._listener is not None
            (listener,) = server._listener.sockets
            told = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert struct.unpack_from("I", told, 28) == (min(1024, at_most),), "tcpi_sacked: of a listener, its backlog"

    run(main)


def test_a_blocked_loop_while_engines_load_refuses_no_calls() -> None:
    async def main() -> None:
        catalog = Catalog([Tones()])
        await catalog.start()
        server = Server(transport_settings(speech=speech_settings()), catalog)

        async def be_looked_at() -> None:
            """Wait for one whole period of the server's check of its event loop."""
            name = "telephony_tts_event_loop_lag_ms_count"
            before = (await figures(server.port))[name]
            while (await figures(server.port))[name] < before + 2:
                pass

        async def stand_still() -> None:
            await be_looked_at()
            asyncio.get_running_loop().call_soon(time.sleep, 1.0)  # as the import of an engine does
            await be_looked_at()

        async with server.running(ready=False):
            await stand_still()
            server.ready = True
            assert server.admission.lateness_ms(monotonic_ns()) < 500
            await stand_still()
            assert server.admission.lateness_ms(monotonic_ns()) > 500
        await catalog.close()

    run(main)


def test_metrics_count_calls_turns_and_marks() -> None:
    async def main() -> None:
        async with serving() as rig:
            before = await figures(rig.port)
            async with rig.bot(audio="binary") as bot:
                await bot.say("One turn.", "a")
                await bot.send({"type": "mark", "turn": "a", "name": "m"})
                await bot.event("done", turn="a")
                await bot.say("Another turn, cleared.", "b")
                await bot.frames_to(30)
                await bot.send({"type": "clear"})
                await bot.event("cleared", turn="b")
                assert (await figures(rig.port))['telephony_tts_calls_live{media="stream"}'] == 1
                n_bytes = sum(len(frame) for frame in bot.frames)
            await rig.empty()
            after = await figures(rig.port)
            moved = {name: after[name] - before.get(name, 0) for name in after}
            assert after['telephony_tts_calls_live{media="stream"}'] == 0
            assert moved['telephony_tts_calls_total{media="stream"}'] == 1
            assert moved['telephony_tts_turns_total{door="native",outcome="done"}'] == 1
            assert moved['telephony_tts_turns_total{door="native",outcome="cleared"}'] == 1
            assert moved['telephony_tts_marks_total{state="played"}'] == 1
            assert moved["telephony_tts_text_characters_total"] == len("One turn.Another turn, cleared.")
            assert moved['telephony_tts_first_audio_ms_count{door="native"}'] == 2
            assert moved["telephony_tts_cancel_to_silence_ms_count"] == 1
            assert moved["telephony_tts_frame_lateness_ms_count"] >= len(bot.frames) - 1
            assert moved['telephony_tts_sent_bytes_total{leg="media"}'] == n_bytes
            assert moved['telephony_tts_received_bytes_total{leg="bot"}'] > 100
            assert after['telephony_tts_engine_running{engine="fake"}'] == 0

    run(main)


def test_a_connection_needs_the_token() -> None:
    async def main() -> None:
        async with serving(tokens=("secret one", "two", "geheim-é"), metrics_without_token=False) as rig:
            for headers in ({"Authorization": "Bearer secret one"}, {"Authorization": "token two"}):
                async with rig.bot(headers=headers):
                    pass
            for token in ("secret%20one", "geheim-%C3%A9"):
                async with rig.bot(token=token):
                    pass
            wrong: list[tuple[dict[str, str], dict[str, str]]] = [
                ({}, {}),
                ({"Authorization": "Bearer wrong"}, {}),
                ({"Authorization": "Bearer "}, {}),
                ({"Authorization": "Basic dHdv"}, {}),
                ({}, {"token": "secret"}),
                ({"Authorization": "Bearer wrong"}, {"token": "two"}),
            ]
            for bad, options in wrong:
                with pytest.raises(InvalidStatus) as refused:
                    async with rig.bot(headers=bad, **options):
                        pass
                assert refused.value.response.status_code == 401
                assert refused.value.response.headers["WWW-Authenticate"] == "Bearer"
            assert (await get(rig.port, "/metrics"))[0] == 401
            assert (await get(rig.port, "/metrics", ("Authorization: Bearer two",)))[0] == 200
            # Bytes that are not text, and a header given twice, are wrong tokens and not an error of the server.
            upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
                       "Sec-WebSocket-Version: 13")  # fmt: skip
            assert (await get(rig.port, "/v1/stream", (*upgrade, "Authorization: Bearer \xe9\xff")))[0] == 401
            assert (await get(rig.port, "/metrics", ("Authorization: Bearer geheim-\xc3\xa9",)))[0] == 200
            twice = ("Authorization: Bearer two",) * 2
            assert (await get(rig.port, "/v1/stream", (*upgrade, *twice)))[0] == 401

    run(main)


@pytest.mark.parametrize("offered", [[], ["tts"], ["v2.tts", "v1.tts"]])
def test_a_subprotocol_is_accepted_but_not_required(offered: list[str]) -> None:
    async def main() -> None:
        async with serving() as rig:
            subprotocols: Any = offered or None
            async with connect(rig.url(), subprotocols=subprotocols, proxy=None) as socket:
                assert socket.subprotocol == (offered[0] if offered else None)
                assert json.loads(await socket.recv())["type"] == "ready"

    run(main)


def test_an_engine_that_is_not_ready_says_when_to_retry() -> None:
    """In the answer to a new call, and in /readyz. A media leg whose bot is waiting is accepted."""

    class Restarting(Tones):
        is_ready = True

        def stats(self) -> EngineStats:
            return replace(super().stats(), is_ready=self.is_ready, retry_after_ms=0 if self.is_ready else 7100)

    async def main() -> None:
        engine = Restarting()
        async with serving(engine) as rig, rig.bot(call="CA1") as waiting:
            engine.is_ready = False
            assert (await get(rig.port, "/readyz"))[0] == 503
            with pytest.raises(InvalidStatus) as refused:
                async with rig.bot():
                    pass
            assert refused.value.response.status_code == 503
            assert refused.value.response.headers["Retry-After"] == "8"
            async with calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await waiting.event("call")
            engine.is_ready = True
            assert (await get(rig.port, "/readyz"))[0] == 200

    run(main)


def test_beyond_the_call_limit_it_is_busy_and_says_when_to_retry() -> None:
    async def main() -> None:
        async with serving(calls=2) as rig, rig.bot() as first, rig.bot(call="CA1") as waiting:
            with pytest.raises(InvalidStatus) as refused:
                async with rig.bot():
                    pass
            response = refused.value.response
            assert response.status_code == 503 and int(response.headers["Retry-After"]) >= 1
            assert response.body is not None and response.body.startswith(b"busy: 2 calls are live")
            # The media leg of a call that is counted already is no further call.
            async with calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await waiting.event("call")
                await waiting.say("You are through.", "a")
                await waiting.event("done", turn="a")
                with pytest.raises(InvalidStatus):
                    async with calling(rig.url(MEDIA), "CA2"):
                        pass
            await waiting.gone()
            await first.socket.close()
            await until(lambda: len(rig.server.registry) == 0, "the calls are over")
            async with rig.bot():
                pass

    run(main)


def test_another_call_cannot_take_the_place_kept_for_a_media_leg() -> None:
    async def main() -> None:
        async with serving(calls=1) as rig, rig.bot(call="CA1") as bot:
            async with calling(rig.url(MEDIA), "CA2") as other_call:
                await other_call.start()
                assert (await other_call.gone())[0] == 1013
            async with calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await bot.event("call")

    run(main)


def test_media_legs_that_name_no_call_count_as_calls() -> None:
    async def main() -> None:
        async with serving(calls=2) as rig, calling(rig.url(MEDIA), "CA1"), calling(rig.url(MEDIA), "CA2"):
            await until(lambda: rig.server.registry.n_arriving == 2, "two legs")
            with pytest.raises(InvalidStatus) as refused:
                async with calling(rig.url(MEDIA), "CA3"):
                    pass
            assert refused.value.response.status_code == 503

    run(main)


def test_the_same_audio_over_tls(certificate: tuple[Path, Path]) -> None:
    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        async with serving(tls=context) as rig:
            address = f"wss://localhost:{rig.port}/v1/stream?audio=binary"
            async with connect(address, ssl=trusting, proxy=None, max_queue=None) as socket:
                bot = Bot(socket)
                await bot.event("ready")
                await bot.say("In confidence.", "a")
                await bot.event("done", turn="a")
                assert correlation(decoded(bot.frames), rendering(["In confidence."])) >= 0.99
                await bot.aclose()
            with pytest.raises((OSError, InvalidMessage)):
                async with rig.bot():
                    pass

    run(main)


def test_a_certificate_from_the_configuration(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    from telephony_tts.app import config
    from telephony_tts.app.settings import transport_settings

    cert, key = certificate
    settings = config.load(None, {"server.tls.cert": str(cert), "server.tls.key": str(key)}, {})
    assert transport_settings(settings).tls is not None
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    command = [sys.executable, "-m", "telephony_tts", "serve", "--set", f"server.tls.cert={broken}",
               "--set", f"server.tls.key={key}"]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2 and "server.tls" in ended.stderr and "Traceback" not in ended.stderr
