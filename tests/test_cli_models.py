"""`telephony-tts models`: fetching a model with the hubs' real clients, from a hub on the loopback."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_rig import COMMIT, FakeHub, serving

from telephony_tts.cli.main import main
from telephony_tts.engines.cosyvoice2.checkpoint import download
from telephony_tts.engines.cosyvoice2.checkpoint.download import NEEDED, OFFICIAL_REPOS
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

SOURCES = ("huggingface", "modelscope")
UNWANTED = ("CosyVoice-BlankEN/model.safetensors", "flow.decoder.estimator.fp32.onnx", "README.md")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A repository with the official names: a tiny model, and files that must not be fetched."""
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path)
    there = [name for name in (*NEEDED, "spk2info.pt") if (path / name).exists()]
    found = {name: (path / name).read_bytes() for name in there}
    return {**found, "CosyVoice-BlankEN/generation_config.json": b"{}", **dict.fromkeys(UNWANTED, b"unwanted")}


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of the clients go into a temporary folder."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("HF_HOME", "MODELSCOPE_HOME", "MODELSCOPE_CACHE"):
        monkeypatch.setenv(name, str(folder / name))
    for name in ("HF_TOKEN", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(params=SOURCES)
def hub(
    request: pytest.FixtureRequest, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    made = FakeHub(OFFICIAL_REPOS[request.param], dict(files), frozenset({"cosyvoice2.yaml"}))
    with serving(made):
        point_at(made.url, monkeypatch)
        yield made


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes both clients use this endpoint, without a pause between attempts."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", url)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def source_of(hub: FakeHub) -> list[str]:
    return ["--source", next(source for source in SOURCES if OFFICIAL_REPOS[source] == hub.repo)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wanted(hub: FakeHub) -> dict[str, bytes]:
    return {name: data for name, data in hub.files.items() if name not in UNWANTED}


# ------------------------------------------------------------------------------- happy


def test_a_model_is_fetched_checked_and_speaks(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "deep" / "model"
    assert main(["models", "pull", str(model), *source_of(hub)]) == 0
    told = capsys.readouterr()
    assert contents(model) == wanted(hub)
    assert told.out.splitlines()[-1] == f"{model}: complete and compatible"
    assert f"{len(wanted(hub))} files fetched, 0 were already there" in told.out
    assert "llm.pt (3.8 MB) fetched and verified" in told.err.splitlines()
    assert "\r" not in told.err, "no bar outside a terminal"
    say = ["say", "Hi.", str(tmp_path / "a.wav"), "--engine", "cosyvoice2", "--model", str(model)]
    assert main([*say, "--set", "engines.cosyvoice2.isolation=thread"]) == 0


def test_a_right_file_is_not_fetched_again(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "pull", str(tmp_path / "m"), *source_of(hub)]) == 0
    hub.requests.clear()
    (tmp_path / "m" / "campplus.onnx").unlink()
    data = bytearray(hub.files["hift.pt"])
    data[1000] ^= 1
    (tmp_path / "m" / "hift.pt").write_bytes(data)
    (tmp_path / "m" / "cosyvoice2.yaml").write_bytes(b"x" * len(hub.files["cosyvoice2.yaml"]))
    capsys.readouterr()
    assert main(["models", "pull", str(tmp_path / "m"), *source_of(hub)]) == 0
    told = capsys.readouterr()
    assert sorted(name for name, _ in hub.requests) == ["campplus.onnx", "cosyvoice2.yaml", "hift.pt"]
    assert "hift.pt differs from the hub's and is replaced" in told.err
    assert f"3 files fetched, {len(wanted(hub)) - 3} were already there" in told.out
    assert contents(tmp_path / "m") == wanted(hub)


def test_a_revision_is_fetched_by_name(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", str(tmp_path), *source_of(hub), "--revision", "v1"]) == 0
    out = capsys.readouterr().out
    assert f"at {COMMIT if hub.repo.startswith('Fun') else 'v1'}" in out


# ------------------------------------------------------------------------ interruption


def test_a_download_continues_after_a_broken_connection(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut = {"llm.pt": 1_000_000}
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    first, second = hub.fetched("llm.pt")
    start = int(second.removeprefix("bytes=").removesuffix("-"))
    assert first == "" and 900_000 < start <= 1_000_000
    assert contents(tmp_path) == wanted(hub)


def test_a_redirect_gets_the_range_and_not_the_token(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(OFFICIAL_REPOS["huggingface"], dict(files), redirects=True, cut={"llm.pt": 1_000_000})
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(hub):
        point_at(hub.url, monkeypatch)
        assert main(["models", "pull", str(tmp_path)]) == 0
    assert [bool(asked) for asked in hub.fetched("llm.pt")] == [False, True]
    assert set(hub.tokens) == {""} and contents(tmp_path) == wanted(hub)


def test_a_hub_without_ranges_starts_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut, hub.ignores_range = {"llm.pt": 1_000_000}, True
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    assert contents(tmp_path) == wanted(hub)


def test_a_dead_line_ends_the_pull_and_the_next_pull_continues(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Deaf(dict[str, int]):
        """After its first break the file is cut at once, each time."""

        def pop(self, name: str, default: int | None = None) -> int | None:  # type: ignore[override]
            if name != "llm.pt":
                return default
            asked = hub.fetched(name)
            return 1_000_000 if len(asked) == 1 else int(asked[-1].removeprefix("bytes=").removesuffix("-") or 0)

    hub.cut = Deaf()
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "llm.pt could not be fetched" in error and "is there a network?" in error
    assert not (tmp_path / "llm.pt").exists() and (tmp_path / "flow.pt").read_bytes() == hub.files["flow.pt"]
    hub.cut = {}
    hub.requests.clear()
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    ((name, asked),) = hub.requests
    assert name == "llm.pt" and 900_000 < int(asked.removeprefix("bytes=").removesuffix("-")) <= 1_000_000
    assert contents(tmp_path) == wanted(hub), "no part is left"


@pytest.mark.parametrize("source", SOURCES)
def test_ctrl_c_leaves_a_directory_that_the_next_pull_continues(
    source: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    """The pull runs in a separate process, which gets the hub's address from the environment."""
    hub = FakeHub(OFFICIAL_REPOS[source], dict(files), stall={"llm.pt": 2_000_000})
    command = [sys.executable, "-m", "telephony_tts", "models", "pull", str(tmp_path), "--source", source]
    with serving(hub):
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "MODELSCOPE_ENDPOINT": hub.url}
        pull = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            assert hub.stalled.wait(60)
            wait_for_part(tmp_path)
            pull.send_signal(signal.SIGINT)
            _, error = pull.communicate(timeout=30)
        finally:
            pull.kill()
            pull.wait()
        assert pull.returncode == 130 and error.splitlines()[-1].endswith("repeat the command to continue")
        assert not (tmp_path / "llm.pt").exists()
        hub.stall.clear()
        hub.requests.clear()
        again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 0, again.stderr
        ((name, asked),) = hub.requests
        assert name == "llm.pt" and int(asked.removeprefix("bytes=").removesuffix("-")) > 1_000_000
    assert contents(tmp_path) == wanted(hub)


def wait_for_part(folder: Path) -> None:
    """Waits until most of the bytes that were sent are on the disk."""
    for _ in range(200):
        if any(part.stat().st_size > 1_000_000 for part in folder.glob(".llm.pt.*.part")):
            return
        threading.Event().wait(0.05)
    raise AssertionError("nothing was written")


def test_without_torch_it_is_fetched_and_not_checked(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    assert "not checked further: .venv/bin/pip install -e '.[cosyvoice]'" in capsys.readouterr().out
    assert main(["models", "check", str(tmp_path)]) == 2
    assert "needs PyTorch" in capsys.readouterr().err


# ------------------------------------------------------------------------------- wrong


def test_wrong_bytes_are_removed_and_reported(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.wrong = {"flow.pt"}
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "flow.pt: its SHA-256 is" in error and hub.sha256("flow.pt") in error and "removed" in error
    assert not list(tmp_path.glob("*flow.pt*")) and (tmp_path / "hift.pt").exists()
    hub.wrong = set()
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    assert contents(tmp_path) == wanted(hub)


def test_a_wrong_git_file_is_found_too(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.wrong = {"cosyvoice2.yaml"}
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 1
    error = capsys.readouterr().err
    kind = "git hash" if hub.repo.startswith("Fun") else "SHA-256"
    assert f"cosyvoice2.yaml: its {kind} is" in error and "and should be" in error
    assert not list(tmp_path.glob("*cosyvoice2.yaml*"))


def test_without_a_hash_from_the_hub_the_known_hash_counts(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hub.repo.startswith("iic"):
        hub.sha256 = lambda name: ""  # type: ignore[method-assign]
    hub.tells_no_hash = True
    known = {name: (len(hub.files[name]), hashlib.sha256(hub.files[name]).hexdigest()) for name in NEEDED}
    monkeypatch.setattr(download, "KNOWN", known)
    assert main(["models", "pull", str(tmp_path / "good"), *source_of(hub)]) == 0
    assert "another release" not in capsys.readouterr().err
    hub.wrong = {"flow.pt"}
    assert main(["models", "pull", str(tmp_path / "bad"), *source_of(hub)]) == 1
    assert "flow.pt: its SHA-256 is" in capsys.readouterr().err


def test_another_release_is_a_warning(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: (len(hub.files[name]), hashlib.sha256(hub.files[name]).hexdigest()) for name in NEEDED}
    monkeypatch.setattr(download, "KNOWN", {**known, "flow.pt": (known["flow.pt"][0], "0" * 64)})
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "another release" in line]
    assert "made for: flow.pt; --source huggingface --revision eec1ae6c" in warning


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--repo", "no/such"], ["has no model no/such", "--repo"]),
        (["--revision", "v9"], ["v9", "--revision"]),
        (["--repo", "no such"], ["no such"]),
    ],
)
def test_a_repository_that_does_not_exist(
    flags: list[str], words: list[str], hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "pull", str(tmp_path / "m"), *source_of(hub), *flags]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error
    assert not (tmp_path / "m").exists()


def test_a_repository_of_another_model(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del hub.files["flow.pt"], hub.files["speech_tokenizer_v2.onnx"]
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 1
    assert "lacks flow.pt, speech_tokenizer_v2.onnx" in capsys.readouterr().err and contents(tmp_path) == {}


def test_a_busy_hub_is_asked_again_a_few_times(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.failing = {"flow.pt": 2}
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 0
    hub.failing = {"campplus.onnx": 1000}
    (tmp_path / "campplus.onnx").unlink()
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 1
    assert "campplus.onnx could not be fetched (HTTP status 503)" in capsys.readouterr().err
    assert 950 < hub.failing["campplus.onnx"] < 1000


@pytest.mark.parametrize("source", SOURCES)
def test_no_network(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(FakeHub("a/b", {})) as gone:
        pass
    point_at(gone.url, monkeypatch)
    assert main(["models", "pull", str(tmp_path / "m"), "--source", source]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Connection refused" in error and "is there a network?" in error
    assert not (tmp_path / "m").exists()


def test_a_disk_that_is_too_small_is_reported_first(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=51_000_000))
    assert main(["models", "pull", str(tmp_path / "m"), *source_of(hub)]) == 2
    assert "51.0 MB free" in (error := capsys.readouterr().err) and "are needed: free 5.5 MB" in error
    assert hub.requests == [] and not (tmp_path / "m").exists()


def test_a_full_disk_is_not_reported_as_a_network_error(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object, data: bytes) -> int:
        self.failure = OSError(28, "No space left on device")  # type: ignore[attr-defined]
        raise self.failure  # type: ignore[attr-defined]

    monkeypatch.setattr(download._CountedSink, "write", fails)
    assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 2
    assert "cannot be written to (No space left on device)" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "words"), [("file", "is not a directory"), ("random", "or delete it")])
def test_another_directory_is_not_changed(
    kind: str, words: str, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "file":
        (tmp_path / "m").write_text("mine")
    else:
        write_random_checkpoint(tmp_path / "m")
    before = contents(tmp_path)
    assert main(["models", "pull", str(tmp_path / "m"), *source_of(hub)]) == 2
    assert words in capsys.readouterr().err and hub.requests == [] and contents(tmp_path) == before


def test_two_pulls_do_not_mix(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "cosyvoice2.yaml"
    mark = hub.git_sha1(name) if hub.repo.startswith("Fun") else hub.sha256(name)
    with download._locked(tmp_path / f".{name}.{mark[:12]}.part"):
        assert main(["models", "pull", str(tmp_path), *source_of(hub)]) == 2
    assert "another pull" in capsys.readouterr().err


@pytest.mark.parametrize(("source", "package"), [("huggingface", "huggingface_hub"), ("modelscope", "modelscope_hub")])
def test_a_missing_client_says_how_to_get_it(
    source: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    assert main(["models", "pull", str(tmp_path / "m"), "--source", source]) == 2
    assert f"needs the package {package}: .venv/bin/pip install -e '.[hub]'" in capsys.readouterr().err


# -------------------------------------------------------------------------------- help


@pytest.mark.parametrize("action", [[], ["pull"], ["check"], ["random"]])
def test_help_has_usage(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["models", *action, "--help"])
    assert ended.value.code == 0 and "usage: telephony-tts models" in capsys.readouterr().out
