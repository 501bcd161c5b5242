"""`telephony-tts voices pull` where npm fails or gives something else, and from a hub on the loopback by its client.
tests/peers has the real npm."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_rig import FakeHub, serving

from telephony_tts.cli.main import main
from telephony_tts.engines.kokoro import commands as kokoro_commands
from telephony_tts.engines.kokoro import styles as kokoro_styles

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
    error = capsys.readouterr().err
    assert "npm is not installed: apt-get install npm, take --source huggingface, or fetch them on another" in error


def test_the_list_says_which_voices_are_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "list", "--set", f"engines.kokoro.voices={tmp_path}"]) == 0
    told = capsys.readouterr()
    present, _, absent = told.out.partition("not here yet: ")
    assert "kokoro/zm_yunxi" in present and "kokoro/af_heart" not in present and told.err == ""
    assert "kokoro's zf_xiaobei, zf_xiaoni" in absent and "telephony-tts voices pull zh" in absent
    assert "jf_alpha" in absent and "telephony-tts voices pull ja" in absent


# ------------------------------------------------------------------------- from the hub

NAMES = ("jf_alpha", "jm_kumo")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Has two voices with contents of their own, whose checksums count as the known ones."""
    import huggingface_hub.constants

    contents = {name: name.encode().ljust(len(YUNXI), b"\0") for name in NAMES}
    known = dict(kokoro_styles.known_voices())
    known |= {name: (known[name][0], hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    for module in (kokoro_styles, kokoro_commands):
        monkeypatch.setattr(module, "known_voices", lambda: known)
    made = FakeHub(kokoro_styles.HUB_REPO, {f"voices/{name}.bin": content for name, content in contents.items()})
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # of the client, before it tries again
    with serving(made):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", made.url)
        template = made.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield made


def pull(folder: Path, *names: str) -> int:
    return main(["voices", "pull", *names, "--source", "huggingface", "--voices", str(folder)])


@pytest.mark.parametrize("redirects", [False, True])
def test_the_hub_brings_voices_and_a_broken_line_is_continued(hub: FakeHub, redirects: bool, tmp_path: Path) -> None:
    hub.redirects = redirects
    hub.cut = {"voices/jm_kumo.bin": 300_000}
    folder = tmp_path / "voices"
    assert pull(folder, *NAMES) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name.removeprefix("voices/"): content for name, content in hub.files.items()
    }
    begun, continued = hub.fetched("voices/jm_kumo.bin")
    assert begun == "" and 200_000 < int(continued.removeprefix("bytes=").rstrip("-")) <= 300_000
    hub.requests.clear()
    assert pull(folder, *NAMES) == 0 and hub.requests == []


def test_what_came_before_a_dead_line_stays_and_the_next_pull_fetches_the_rest(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.failing = {"voices/jm_kumo.bin": 100}
    assert pull(tmp_path, *NAMES) == 1
    error = capsys.readouterr().err
    assert "voices/jm_kumo.bin could not be fetched (HTTP status 503)" in error and "HF_ENDPOINT" in error
    assert [path.name for path in tmp_path.glob("*.bin*")] == ["jf_alpha.bin"], "and no part of the other one"
    hub.failing = {}
    hub.requests.clear()
    assert pull(tmp_path, *NAMES) == 0
    assert "1 voices fetched, 1 were already there" in capsys.readouterr().out
    assert hub.requests == [("voices/jm_kumo.bin", "")]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("changed", "jf_alpha.bin from huggingface has another checksum, so it was not stored"),
        ("short", "jf_alpha.bin from huggingface has 5 bytes, so it was not stored"),
        ("long", "voices/jf_alpha.bin could not be fetched (it has more than 522240 bytes)"),
        ("absent", f"no file voices/jf_alpha.bin in {kokoro_styles.HUB_REPO}"),
    ],
)
def test_a_wrong_file_of_the_hub_is_not_stored(
    damage: str, message: str, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "voices/jf_alpha.bin"
    if damage == "changed":
        hub.wrong = {name}
    elif damage == "absent":
        del hub.files[name]
    else:
        hub.files[name] = b"short" if damage == "short" else hub.files[name] * 3
    assert pull(tmp_path, "jf_alpha") == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.bin*"))


def test_models_pull_kokoro_does_not_fetch_another_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["models", "pull", "kokoro"]) == 2
    assert "kokoro's model is part of the installation, and `.venv/bin/telephony-tts voices pull`" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "kokoro").exists()


def test_the_hub_is_the_one_that_hf_endpoint_names(tmp_path: Path) -> None:
    """In a process of its own, because the client reads the variable when it is imported."""
    hub = FakeHub(kokoro_styles.HUB_REPO, {"voices/jf_alpha.bin": bytes(len(YUNXI))})
    command = [sys.executable, "-m", "telephony_tts", "voices", "pull", "jf_alpha", "--source", "huggingface"]
    with serving(hub):
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
        ended = subprocess.run(
            [*command, "--voices", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
        )
    assert ended.returncode == 1 and "jf_alpha.bin from huggingface has another checksum" in ended.stderr
    assert hub.requests == [("voices/jf_alpha.bin", "")]
