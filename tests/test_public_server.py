"""A server that others can reach asks for a token, unless `server.open` says that it need not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telephony_tts.app.config import Config, load
from telephony_tts.app.settings import transport_settings
from telephony_tts.cli.main import main
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.transport.settings import ServerSettings

pytestmark = pytest.mark.slow

TONES = ("--set", "engines.default=fake")
SECRET = {"TELEPHONY_TTS_TWILIO_AUTH_TOKEN": "of-the-carrier"}
TOKEN = {"TELEPHONY_TTS_TOKENS": "of-the-bot"}
PUBLIC = ("0.0.0.0", "::", "192.0.2.7", "2001:db8::1", "voice.example.com", "localhost.example.com", "128.0.0.1")
LOCAL = ("127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST")


def settings(environ: dict[str, str], **server: Any) -> Config:
    return load(None, {f"server.{name}": value for name, value in server.items()}, environ)


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRET, *TOKEN):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("host", PUBLIC)
def test_without_a_token_a_public_address_is_refused_with_the_remedy(host: str) -> None:
    with pytest.raises(ConfigError) as refused:
        transport_settings(settings({}, host=host))
    told = refused.value.message
    assert told.startswith(f"server.host is {host}, ") and "\n" not in told
    remedies = ("openssl rand -hex 32", "TELEPHONY_TTS_TOKENS", "server.tokens_file", "--set server.open=true")
    assert all(remedy in told for remedy in remedies)
    assert transport_settings(settings(TOKEN, host=host)).server.tokens == ("of-the-bot",)
    assert transport_settings(settings({}, host=host, open=True)).server.tokens == ()


@pytest.mark.parametrize("host", LOCAL)
def test_a_local_server_needs_no_token_until_it_has_a_carriers_secret(host: str) -> None:
    """Pinned: the carrier's secret protects only the carrier's connections, and /v1/stream was open to everyone."""
    assert transport_settings(settings({}, host=host)).server.host == host
    with pytest.raises(ConfigError, match=r"^twilio\.auth_token is set, .*server\.tokens_file") as refused:
        transport_settings(settings(SECRET, host=host))
    assert "of-the-carrier" not in refused.value.message
    with_token = settings({**SECRET, **TOKEN}, host=host)
    assert transport_settings(with_token).sections["twilio"].auth_token == "of-the-carrier"
    assert transport_settings(settings(SECRET, host=host, open=True)).sections["twilio"].auth_token == "of-the-carrier"


@pytest.mark.parametrize(
    ("name", "secrets"),
    [
        ("vonage.signature_secret", {"TELEPHONY_TTS_VONAGE_SIGNATURE_SECRET": "of-the-carrier"}),
        (
            "genesys.client_secret",
            {"TELEPHONY_TTS_GENESYS_API_KEY": "k", "TELEPHONY_TTS_GENESYS_CLIENT_SECRET": "b2YtdGhlLWNhcnJpZXI="},
        ),
    ],
)
def test_the_secrets_of_other_carriers_too_make_a_server_public(name: str, secrets: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is set, .*server\.tokens_file"):
        transport_settings(settings(secrets))
    transport_settings(settings({**secrets, **TOKEN}))


@pytest.mark.parametrize("public_url", ["wss://voice.example.com", "https://192.0.2.7:8443/x"])
def test_a_public_url_makes_a_local_server_public(public_url: str) -> None:
    """A proxy or a tunnel leads to it."""
    with pytest.raises(ConfigError, match=r"^server\.public_url is .*server\.tokens_file"):
        transport_settings(settings({}, public_url=public_url))
    assert transport_settings(settings(TOKEN, public_url=public_url)).server.public_url == public_url
    assert transport_settings(settings({}, public_url=public_url, open=True)).server.tokens == ()
    for local in ("ws://localhost:8080", "http://127.0.0.1:9000", "ws://[::1]:8080"):
        assert transport_settings(settings({}, public_url=local)).server.public_url == local


def test_an_empty_host_is_public() -> None:
    assert not ServerSettings(host="").is_on_loopback, "it listens on every address"


def test_serve_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "0.0.0.0", "--port", "0", *TONES]) == 2
    told = capsys.readouterr().err
    assert told.startswith("telephony-tts: server.host is 0.0.0.0, ") and told.count("\n") == 1


def test_other_commands_need_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = (*TONES, "--set", "server.host=0.0.0.0")
    assert main(["say", "Hello.", str(tmp_path / "out.wav"), *public]) == 0
    assert main(["voices", *public]) == 0
    assert "fake/tone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        ((), 0, "ok       server                 without a token, open to programs on this machine"),
        (("server.tokens=['a']", "server.host=0.0.0.0"), 0, "ok       server                 asks for a token"),
        (("server.host=0.0.0.0",), 1, "broken   server                 server.host is 0.0.0.0, "),
        (
            ("server.host=0.0.0.0", "server.open=true"), 0,
            "ok       server                 without a token, open to everyone who can reach it",
        ),
    ],
)  # fmt: skip
def test_doctor_reports_whether_a_token_is_needed(
    flags: tuple[str, ...], status: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda engine: False)
    given = [part for flag in flags for part in ("--set", flag)]
    assert main(["doctor", *TONES, "--set", "server.port=0", *given]) == status
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " server  " in line]
    assert line.startswith(says)
