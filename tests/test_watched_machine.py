"""What the server tells of its machine: disks, the certificate, and a package that traces need."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from telephony_tts.app import config
from telephony_tts.app.disks import watch_disks
from telephony_tts.app.settings import transport_settings
from telephony_tts.app.spans import open_tracing
from telephony_tts.ops.certificate import expires_s
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.metrics import value


def settings(**given: object) -> config.Config:
    return config.load(None, {name.replace("__", "."): each for name, each in given.items()}, environ={})


def watched(watching: config.Config, monkeypatch: pytest.MonkeyPatch, until_s: float = 0.2) -> None:
    """Let the disks be measured a few times."""
    monkeypatch.setattr("telephony_tts.app.disks._DISK_CHECK_S", 0.01)

    async def main() -> None:
        task = asyncio.create_task(watch_disks(watching))
        await asyncio.wait((task,), timeout=until_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_the_space_of_the_folders_that_are_written_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings, phrases = tmp_path / "recordings", tmp_path / "phrases"
    recordings.mkdir()
    usage = shutil.disk_usage(recordings)
    asked: list[str] = []

    def disk_usage(folder: str) -> object:
        asked.append(folder)
        if not Path(folder).exists():
            raise FileNotFoundError(folder)
        return usage._replace(free=123_456)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    folders = {"recordings__folder": str(recordings), "phrases__folder": str(phrases)}
    watched(settings(**folders, phrases__enabled=True), monkeypatch)
    assert value("telephony_tts_disk_free_bytes", folder="recordings") == 123_456
    assert value("telephony_tts_disk_size_bytes", folder="recordings") == usage.total
    assert set(asked) == {str(recordings), str(phrases)}, "a folder that is not there yet is asked for again"
    assert asked.count(str(phrases)) > 1
    with pytest.raises(KeyError):
        value("telephony_tts_disk_free_bytes", folder="phrases")


def test_a_server_that_writes_nothing_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: pytest.fail(f"{folder} was measured"))
    watched(settings(phrases__folder="/nowhere"), monkeypatch)


@pytest.mark.slow
def test_the_end_of_the_certificate_is_that_of_the_loaded_file(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=localhost", "-keyout",
         str(key), "-out", str(cert)],
        capture_output=True, check=True,
    )  # fmt: skip
    transport_settings(settings(server__tls__cert=str(cert), server__tls__key=str(key)))
    told_s = value("telephony_tts_certificate_expires_timestamp_seconds", setting="server.tls.cert")
    assert told_s == expires_s(str(cert)) > 0


def test_an_endpoint_without_its_package_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracing(settings()) is None
    monkeypatch.setattr("telephony_tts.app.spans.installed", lambda part: False)
    with pytest.raises(ConfigError, match=r"tracing\.endpoint .*\[otel\]"):
        open_tracing(settings(tracing__endpoint="http://127.0.0.1:4318/v1/traces"))


@pytest.mark.parametrize(
    ("given", "names"),
    [({"tracing__endpoint": "collector:4317"}, "tracing.endpoint"), ({"tracing__share": 1.5}, "tracing.share")],
)
def test_wrong_settings_are_named(given: dict[str, object], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        settings(**given)
