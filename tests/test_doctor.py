"""`telephony-tts doctor` on the network that tells the caller's voice."""

from __future__ import annotations

import importlib.metadata
from functools import partial
from pathlib import Path

import pytest

from telephony_tts import app, doctor
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.cli import main

pytestmark = pytest.mark.slow

FLAGS = ("doctor", "--set", "engines.default=fake", "--set", "server.port=0", "--set")


@pytest.fixture(autouse=True)
def tones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other engine is installed, which would be loaded and speak each time."""
    monkeypatch.setattr(app, "installed", lambda engine: False)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on it."""
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "barge-in by voice" in line]
    return line


@pytest.mark.parametrize(
    ("enabled", "says"),
    [("true", "true: on unless a bot turns it off"), ("false", "false: off unless a bot asks for it")],
)
def test_it_loads_and_who_has_to_ask_for_it_is_told(
    enabled: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FLAGS, f"barge_in.enabled={enabled}"]) == 0
    line = told(capsys)
    assert line.startswith("ok ") and line.endswith(f"its network loads; barge_in.enabled is {says}")


@pytest.mark.parametrize(("enabled", "status"), [("true", 1), ("false", 0)])
def test_without_it_a_server_that_is_to_listen_to_all_would_not_start(
    enabled: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "VoiceModel", partial(VoiceModel, tmp_path / "none.onnx"))
    assert main([*FLAGS, f"barge_in.enabled={enabled}"]) == status
    line = told(capsys)
    assert line.startswith("broken ") and "none.onnx" in line and "install telephony-tts again" in line


# ------------------------------------------------------------ the language of Latin text


def test_the_detector_of_languages_is_told_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def line_of_detector() -> str:
        assert main([*FLAGS, "speech.speed=1.0"]) == 0, "a server starts without it"
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "py3langid" in line]
        return line

    assert line_of_detector().startswith("ok ")
    versions = importlib.metadata.version

    def without(package: str) -> str:
        if package == "py3langid":
            raise importlib.metadata.PackageNotFoundError(package)
        return versions(package)

    monkeypatch.setattr(importlib.metadata, "version", without)
    line = line_of_detector()
    assert line.startswith("missing ") and "German" in line and "pip install -e '.[lang]'" in line
