"""`telephony-tts doctor`: the network that detects the caller's voice, and the detector of languages."""

from __future__ import annotations

import importlib.metadata
from functools import partial
from pathlib import Path

import pytest

from telephony_tts.app import doctor
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.cli.main import main
from telephony_tts.engines.kokoro import model as kokoro_model

pytestmark = pytest.mark.slow

FLAGS = ("doctor", "--set", "engines.default=fake", "--set", "server.port=0", "--set")


@pytest.fixture(autouse=True)
def tones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the other engines, which would load and speak in each test."""
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda engine: False)


def line_of(capsys: pytest.CaptureFixture[str], part: str) -> str:
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == part]
    return " ".join(line.split())


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The line about the network."""
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "barge-in by voice" in line]
    return line


@pytest.mark.parametrize(
    ("enabled", "says"),
    [("true", "true: on unless a bot turns it off"), ("false", "false: off unless a bot asks for it")],
)
def test_it_loads_and_the_line_says_whether_bots_must_ask_for_it(
    enabled: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FLAGS, f"barge_in.enabled={enabled}"]) == 0
    line = told(capsys)
    assert line.startswith("ok ") and line.endswith(f"its network loads; barge_in.enabled is {says}")


@pytest.mark.parametrize(("enabled", "status"), [("true", 1), ("false", 0)])
def test_without_it_a_server_with_barge_in_would_not_start(
    enabled: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "VoiceModel", partial(VoiceModel, tmp_path / "none.onnx"))
    assert main([*FLAGS, f"barge_in.enabled={enabled}"]) == status
    line = told(capsys)
    assert line.startswith("broken ") and "none.onnx" in line and "install telephony-tts again" in line


# ------------------------------------------------------------ the language of Latin text


def test_the_detector_of_languages_is_listed_with_its_extra(
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
    assert line.startswith("optional ") and "German" in line and ".venv/bin/pip install -e '.[lang]'" in line


# ------------------------------------------------------------ folders and small extras


@pytest.mark.parametrize(
    ("part", "flags"), [("phrases.folder", ["--set", "phrases.enabled=true"]), ("recordings.folder", [])]
)
def test_a_folder_that_is_missing_or_a_file(
    part: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serve` makes its folders, but not where a file is in the way. The doctor only looks."""

    def examined(folder: Path) -> tuple[int, str]:
        status = main([*FLAGS, f"{part}={folder}", *flags])
        return status, line_of(capsys, part)

    folder = tmp_path / "kept"
    assert examined(folder) == (0, f"missing {part} {folder}: serve makes it")
    assert not folder.exists(), "the doctor makes nothing"
    folder.mkdir()
    assert examined(folder) == (0, f"ok {part} {folder}")
    assert not list(folder.iterdir())
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert examined(in_the_way) == (1, f"broken {part} {in_the_way} is not a folder")


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("diskcache", "phrases kept on disk", "phrases"),
        ("google-re2", "patterns in lexicons", "lexicon"),
        ("pypinyin", "polyphones: true in lexicons", "pinyin"),
        ("av", "mp3, opus", "formats"),
    ],
)
def test_a_small_extra_is_named_with_its_use(
    package: str, use: str, extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = importlib.metadata.version

    def without(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    assert main([*FLAGS, "speech.speed=1.0"]) == 0, "a server starts without it"
    line = line_of(capsys, package)
    assert line.startswith("optional ") and use in line
    assert line.endswith(f".venv/bin/pip install -e '.[{extra}]'")


# ------------------------------------------------------------------------- the Mandarin voice


@pytest.mark.parametrize(("lang", "status"), [("en", 0), ("zh", 1)])
def test_a_damaged_model_of_the_mandarin_voice_is_found_before_its_first_text(
    lang: str, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telephony_tts.app.engines.installed", lambda part: part == "kokoro")
    assert main([*FLAGS, "engines.kokoro.workers=1"]) == 0
    assert line_of(capsys, "kokoro") == (
        "ok kokoro the Mandarin voice's model is complete, with the right checksum"
    )
    monkeypatch.setattr(kokoro_model, "SHA256", "0" * 64)
    assert main([*FLAGS, f"speech.lang={lang}"]) == status, "a server loads it at its start if it speaks Mandarin"
    assert line_of(capsys, "kokoro").startswith("broken kokoro kokoro's model is damaged")
