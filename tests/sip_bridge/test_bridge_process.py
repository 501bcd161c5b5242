"""The bridge as a process: its flags, its errors, its signals and what it exits with."""

from __future__ import annotations

import asyncio
import re
import signal
import socket

import pytest
from bridge_rig import get, noise, run
from process_rig import command, running
from standin_asterisk import phone
from standin_server import ServedCall, standin_server

from sip_bridge.cli import _announce as announce
from sip_bridge.config import BridgeConfig, load

pytestmark = pytest.mark.timed


def test_sigterm_lets_calls_finish_and_exits_with_0() -> None:
    frames = noise(40, 1)

    async def main() -> None:
        async def script(call: ServedCall) -> None:
            await call.speak(frames)
            await call.socket.close(1000)

        async with standin_server(script) as server, running(server.url) as (process, port, http_port):
            async with phone(port) as up:
                await up.hears(5)
                process.send_signal(signal.SIGTERM)
                status = 0
                while status != 503:
                    status, body = await get(http_port, "/readyz")
                assert body == "draining\n"
                with pytest.raises(ConnectionRefusedError):
                    async with phone(port):
                        pass
                assert await up.is_over() == "hung up by the peer"
                assert up.speech == frames
            assert process.stderr is not None
            log = (await asyncio.wait_for(process.stderr.read(), 8)).decode()
            assert await process.wait() == 0
            events = re.findall(r'"event": "(\w+)"', log)
            assert events == ["ready", "call_started", "joined", "stopping", "draining", "call_ended", "stopped"]
            assert f'"call": "{up.name}"' in log and '"reason": "finished"' in log

    run(main)


def test_a_second_signal_ends_live_calls_at_once() -> None:
    async def main() -> None:
        async with standin_server() as server, running(server.url) as (process, port, _), phone(port) as up:
            call = await server.call(up.name)
            process.send_signal(signal.SIGINT)
            await up.hears_any(len(up.heard) + 3)
            process.send_signal(signal.SIGINT)  # within 0.3 s: make or a shell sends the first one again
            await up.hears_any(len(up.heard) + 20)
            assert process.returncode is None
            process.send_signal(signal.SIGINT)
            assert await up.is_over() == "hung up by the peer"
            await call.gone()
            assert call.of("stop") == [{"type": "stop", "reason": "drain"}]
            assert await asyncio.wait_for(process.wait(), 8) == 0

    run(main)


def test_repeated_sigterm_during_a_drain_ends_it_once() -> None:
    async def main() -> None:
        async with standin_server() as server, running(server.url) as (process, port, http_port), phone(port) as up:
            call = await server.call(up.name)
            process.send_signal(signal.SIGTERM)
            while (await get(http_port, "/readyz"))[0] != 503:
                pass
            await up.hears_any(len(up.heard) + 20)
            assert process.returncode is None and up.ended is None, "the call goes on"
            for _ in range(5):
                process.send_signal(signal.SIGTERM)
            assert await up.is_over() == "hung up by the peer"
            await call.gone()
            assert process.stderr is not None
            log = (await asyncio.wait_for(process.stderr.read(), 8)).decode()
            assert await process.wait() == 0 and "Traceback" not in log
            events = re.findall(r'"event": "(\w+)"', log)
            assert events[:5] == ["ready", "call_started", "joined", "stopping", "draining"]
            assert events[-2:] == ["call_ended", "stopped"] and "stopping_at_once" in events
            assert '"reason": "drain"' in log

    run(main)


def test_a_port_in_use_is_reported_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for section, other in (("audiosocket", "http"), ("http", "audiosocket")):
            done = command("--set", f"{section}.port={port}", "--set", f"{other}.port=0")
            assert done.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}" in done.stderr and f"set {section}.port" in done.stderr
            assert "Traceback" not in done.stderr


def test_check_prints_the_configuration_without_secrets() -> None:
    url = "wss://user:s3cret@voice.example.com/media/native?token=s3cret"
    done = command("--config", "configs/sip_bridge.yaml", "--check", "--set", f"server.url={url}")
    assert done.returncode == 0 and done.stderr == ""
    assert "127.0.0.1:9092" in done.stdout and "wss://voice.example.com/media/native" in done.stdout
    assert "s3cret" not in done.stdout


def test_the_start_message_lists_every_way_in_and_the_readiness_url(
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce(1, 2, BridgeConfig())
    alone = capsys.readouterr().out
    assert "127.0.0.1:1" in alone and "http://127.0.0.1:2/metrics" in alone
    assert "readyz" not in alone, "AudioSocket is open as soon as it is said"
    ways = {"ari.enabled": True, "ari.password": "s3cret", "freeswitch.enabled": True, "freeswitch.password": "s3cret"}
    announce(1, 2, load(None, ways, {}))
    told = capsys.readouterr().out
    assert "Stasis(telephony-tts)" in told and "event socket at 127.0.0.1:8021" in told
    assert "http://127.0.0.1:2/readyz" in told and "s3cret" not in told


def test_wrong_settings_and_flags_exit_with_2() -> None:
    done = command("--check", "--set", "audiosocket.prot=1")
    assert done.returncode == 2 and 'Did you mean "port"?' in done.stderr
    assert command("--nonsense").returncode == 2
    assert command("--set", "drain_s").returncode == 2


def test_the_help_shows_how_to_begin() -> None:
    done = command("--help")
    assert done.returncode == 0
    words = ("--config", "--check", "AudioSocket(${CALL_UUID}", "TELEPHONY_SIP_BRIDGE_TOKEN", "/v1/stream?call=UUID")
    assert [word for word in words if word not in done.stdout] == []
