"""No secret of the operator is ever printed: not in the most talkative log, and not in an error."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest
from raw_peer import raw_peer
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from sip_bridge import config as bridge_config
from telephony_tts.app import config
from telephony_tts.runtime.errors import ConfigError

pytestmark = pytest.mark.slow

TOKEN = "tok3n-0f-the-0perat0r"
WRONG = "wr0ng-t0ken-0f-a-str4nger"
SECRETS = {
    "twilio": {"auth_token": "tw1lio-s3cret"},
    "plivo": {"auth_token": "pl1vo-s3cret"},
    "vonage": {"signature_secret": "v0nage-s3cret"},
    "genesys": {"api_key": "gen-k3y", "client_secret": "Z2VuLXMzY3JldA=="},
    "bot": {"url": "ws://127.0.0.1:9/bot?key=b0t-url-s3cret", "token": "b0t-t0ken"},
    "asterisk": {"dial": ["ws://127.0.0.1:9/media/"]},
}
HIDDEN = (
    TOKEN,
    WRONG,
    "tw1lio-s3cret",
    "pl1vo-s3cret",
    "v0nage-s3cret",
    "Z2VuLXMzY3JldA==",
    "b0t-url-s3cret",
    "b0t-t0ken",
)


_UNLIMITED = """
from telephony_tts.cli import main as cli
from telephony_tts.runtime import logs
logs.LineLimit.outside_calls = classmethod(lambda kind: kind(1_000_000, 1_000_000))
cli.main()
"""
"""The server without its limit on lines, which would hide most of what is looked for."""


async def _everywhere(port: int) -> None:
    """A right and a wrong token in every place where clients put one, at every door."""
    for token in (TOKEN, WRONG):
        bearer = {"Authorization": f"Bearer {token}"}
        for path, headers in (
            ("/v1/stream?audio=none", bearer),
            (f"/v1/stream?audio=none&token={token}", {}),
            (f"/v1/stream?audio=none&token={token}&codec=wrong", {}),
            (f"/v1/stream?token={token}{'x' * 3_000}", {}),
            (f"/v1/speak?api_key={token}", {}),
            ("/v1/speak", {"Sec-WebSocket-Protocol": f"token, {token}"}),
            ("/v1/text-to-speech/x/stream-input", {"xi-api-key": token}),
            ("/tts/websocket", {"X-API-Key": token}),
            (f"/tts/websocket?api_key={token}", {}),
            ("/api-ws/v1/inference", {"Authorization": f"bearer {token}"}),
            ("/media/native", bearer),
            ("/media/twilio", {"X-Twilio-Signature": token}),
            ("/media/vonage", bearer),
            ("/media/genesys", {"X-API-KEY": token, "Signature": token, "Signature-Input": token}),
            (f"/media/asterisk?dial={quote(f'ws://127.0.0.1:9/media/{token}', safe='')}", bearer),
            (f"/media/asterisk?dial={quote(f'ws://evil.example/{token}', safe='')}", bearer),
            (f"/no/such/path?token={token}", bearer),
        ):
            try:
                async with connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers, proxy=None) as peer:
                    await peer.send('{"type":"say","text":"Hi."}')
                    async with asyncio.timeout(0.3):
                        await peer.recv()
            except (WebSocketException, OSError, TimeoutError):
                pass
        async with raw_peer(port, f"/v1/stream?audio=none&token={TOKEN}") as peer:
            await peer.send_bytes(b"\xff\xff" + token.encode())
            await peer.read_to_end()
        await asyncio.to_thread(_over_http, port, token)


def _wait_until_ready(port: int) -> None:
    end_s = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).close()
            return
        except OSError as error:
            getattr(error, "close", lambda: None)()
            assert time.monotonic() < end_s, error
            time.sleep(0.1)


def _over_http(port: int, token: str) -> None:
    for path, headers in (
        (f"/metrics?token={token}", {}),
        ("/metrics", {"Authorization": f"Basic {token}"}),
        (f"/v1/voices?api_key={token}", {}),
        ("/v1/audio/speech", {"Authorization": f"Bearer {token}"}),
        (f"/calls/{token}/v1/speak?api_key={token}&x=%ff", {}),
        ("/docs", {"Cookie": token}),
    ):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        try:
            urllib.request.urlopen(request, timeout=3).close()
        except (urllib.error.HTTPError, OSError) as error:
            getattr(error, "close", lambda: None)()


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_talkative_server_prints_no_secret(form: str, tmp_path: Path) -> None:
    settings = {
        "server": {"tokens": [TOKEN], "metrics_without_token": False},
        **SECRETS,
        "log": {"level": "debug", "format": form},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        _UNLIMITED,
        "serve",
        "--port",
        str(port),
        "--config",
        str(tmp_path / "config.yaml"),
    ]
    with open(log, "w") as file:
        served = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            _wait_until_ready(port)
            asyncio.run(_everywhere(port))
            served.terminate()
            served.wait(timeout=30)
        finally:
            served.kill()
            served.wait()
    told = log.read_text()
    assert "unauthorized" in told and "dial_refused" in told, "the doors were not reached"
    found = [secret for secret in HIDDEN if secret in told]
    assert not found, [line for line in told.splitlines() if any(secret in line for secret in found)][:3]


def test_no_secret_is_in_the_settings_as_they_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({**SECRETS, "server": {"tokens": [TOKEN]}, "engines": {"remote": {"token": WRONG}}}))
    shown = repr(config.load(str(file), environ={}))
    assert not [secret for secret in HIDDEN if secret in shown]
    file.write_text(
        json.dumps(
            {
                "server": {"token": TOKEN, "url": f"ws://x/?key={WRONG}"},
                "ari": {"password": "b0t-t0ken"},
                "freeswitch": {"password": "tw1lio-s3cret"},
            }
        )
    )
    shown = repr(bridge_config.load(str(file), environ={}))
    assert not [secret for secret in HIDDEN if secret in shown]


@pytest.mark.parametrize("wrong", [[TOKEN], {"a": TOKEN}, 7])
def test_a_secret_of_the_wrong_form_is_not_quoted(wrong: object, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for section, key in (
        ("twilio", "auth_token"),
        ("bot", "token"),
        ("bot", "url"),
        ("genesys", "client_secret"),
        ("server", "tokens"),
    ):
        file.write_text(json.dumps({section: {key: {"x": [wrong]}}}))
        with pytest.raises(ConfigError) as error:
            config.load(str(file), environ={})
        assert TOKEN not in error.value.message and f"{section}.{key}" in error.value.message
