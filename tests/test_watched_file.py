"""A settings file is read again when it changed, and stays as it was if it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from log_lines import lines

from telephony_tts.ops import watched_file
from telephony_tts.ops.watched_file import WatchedFile
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import ConfigError


def number_in(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no number") from error


def reloads(outcome: str) -> float:
    return metrics.value("telephony_tts_file_reloads_total", file="keys", outcome=outcome)


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    watched = WatchedFile("keys", path, number_in)
    before = reloads("loaded")
    assert watched.content == 1 and watched.reload() is None
    path.write_text("20")
    assert watched.reload() == 20 and watched.content == 20 and watched.reload() is None
    other = tmp_path / "other"
    other.write_text("30")
    os.replace(other, path)
    assert watched.reload() == 30 and reloads("loaded") == before + 2


def test_a_broken_file_changes_nothing_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    watched = WatchedFile("keys", path, number_in)
    before = reloads("failed")
    path.write_text("broken")
    assert watched.reload() is None and watched.reload() is None and watched.content == 1
    path.unlink()
    assert watched.reload() is None and watched.content == 1
    (broken, gone) = lines(caplog, "file_kept")
    assert broken == {"file": "keys", "why": f"{path}: no number"} == gone and reloads("failed") == before + 2
    path.write_text("2")
    assert watched.reload() == 2


def test_a_file_is_used_as_soon_as_a_cause_outside_of_it_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file itself stays as it is, for example when its permissions are mended."""
    path = tmp_path / "n"
    path.write_text("1")
    why = [""]

    def read(path: Path) -> int:
        if why[-1]:
            raise ConfigError(why[-1])
        return number_in(path)

    watched = WatchedFile("keys", path, read)
    before = reloads("failed")
    path.write_text("20")
    for each in ("no permission", "no permission", "no disk", "no disk"):
        why.append(each)
        assert watched.reload() is None and watched.content == 1
    assert [line["why"] for line in lines(caplog, "file_kept")] == ["no permission", "no disk"]
    assert reloads("failed") == before + 2
    why.append("")
    assert watched.reload() == 20 and watched.content == 20 and watched.reload() is None


def test_content_is_returned_again_if_its_line_could_not_be_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    watched = WatchedFile("keys", path, number_in)
    path.write_text("20")

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as now:
        now.setattr(watched_file._log, "info", refuse)
        with pytest.raises(MemoryError):
            watched.reload()
    assert watched.reload() == 20 and watched.reload() is None


def test_a_file_that_is_broken_from_the_beginning_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no number"):
        WatchedFile("keys", tmp_path / "gone", number_in)
