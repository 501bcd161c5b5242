"""CosyVoice-300M on the command line: make it, check it, speak with it, fetch it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_rig import FakeHub, serving
from test_cli_models import contents, point_at

from telephony_tts.audio.wav import read_wav
from telephony_tts.cli.main import main
from telephony_tts.engines.cosyvoice2.checkpoint import download
from telephony_tts.engines.cosyvoice2.checkpoint.download import NEEDED_300M, OFFICIAL_REPOS_300M

pytestmark = pytest.mark.slow

UNUSED = ("campplus.onnx", "speech_tokenizer_v1.onnx", "llm.llm.fp16.zip", "flow.decoder.estimator.fp32.onnx")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "model"
    assert main(["models", "random", str(path), "--family", "300m", "--size", "tiny"]) == 0
    return path


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of the hubs' clients go into a temporary folder."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("HF_HOME", "MODELSCOPE_HOME", "MODELSCOPE_CACHE"):
        monkeypatch.setenv(name, str(folder / name))
    for name in ("HF_TOKEN", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def test_a_random_model_is_checked_and_speaks(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "check", str(model)]) == 0
    assert capsys.readouterr().out == f"{model}: complete and compatible\n"
    say = ["say", "Hello there.", str(tmp_path / "x.wav"), "--engine", "cosyvoice2", "--model", str(model)]
    assert main([*say, "--set", "engines.cosyvoice2.isolation=thread"]) == 0
    heard = read_wav(str(tmp_path / "x.wav"))
    assert heard.rate_hz == 8000 and len(heard.payload) > 8000 // 4


def test_an_instruction_changes_the_speech(model: Path, tmp_path: Path) -> None:
    found = []
    for flags in ([], ["--instruct", "Speak slowly."], ["--set", "engines.cosyvoice2.flow_steps=5"]):
        path = tmp_path / f"{len(found)}.wav"
        say = ["say", "Yes.", str(path), "--engine", "cosyvoice2", "--model", str(model), *flags]
        assert main([*say, "--set", "engines.cosyvoice2.isolation=thread"]) == 0
        found.append(path.read_bytes())
    assert len(set(found)) == 3


def test_its_voices_are_listed_and_none_is_made_from_a_recording(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", "--json", "--model", str(model)]) == 0
    told = capsys.readouterr().out
    assert '"first"' in told and '"second"' in told and '"sample_rate_hz": 22050' in told
    add = ["voices", "add", "anna", "--wav", str(tmp_path / "a.wav"), "--model", str(model)]
    assert main(add) == 2
    assert "is CosyVoice-300M, which speaks with the preset speakers" in capsys.readouterr().err


def test_doctor_names_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"engines.cosyvoice2.model={model}", "engines.cosyvoice2.isolation=thread"]
    main(["doctor", *(word for each in settings for word in ("--set", each))])
    lines = capsys.readouterr().out.splitlines()
    assert any("cosyvoice2 model" in line and "CosyVoice-300M (random weights" in line for line in lines)
    assert any("cosyvoice2 voices" in line and "2: first, second" in line for line in lines)


# -------------------------------------------------------------------------------- pull


@pytest.fixture(params=["huggingface", "modelscope"])
def hub(
    request: pytest.FixtureRequest, model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, FakeHub]]:
    files = {name: (model / name).read_bytes() for name in NEEDED_300M}
    made = FakeHub(OFFICIAL_REPOS_300M[request.param], {**files, **dict.fromkeys(UNUSED, b"unwanted")})
    with serving(made):
        point_at(made.url, monkeypatch)
        yield request.param, made


def pulled(hub: tuple[str, FakeHub], directory: Path) -> int:
    return main(["models", "pull", str(directory), "--family", "300m", "--source", hub[0]])


def test_the_model_is_fetched_without_the_files_that_are_not_used(
    hub: tuple[str, FakeHub], tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = pulled(hub, tmp_path / "m")
    told = capsys.readouterr()
    assert contents(tmp_path / "m") == {name: hub[1].files[name] for name in NEEDED_300M}
    assert "llm.pt (3.0 MB) fetched and verified" in told.err
    assert "another release than the one" in told.err, "the random files have other sizes than the official ones"
    # The vocabulary is in no hub: the directory is complete with it.
    assert status == 1 and "pip install --no-deps openai-whisper" in told.out
    (tmp_path / "m" / "multilingual.tiktoken").write_bytes((model / "multilingual.tiktoken").read_bytes())
    assert main(["models", "check", str(tmp_path / "m")]) == 0


def test_without_a_hash_from_the_hub_nothing_is_called_verified(
    hub: tuple[str, FakeHub], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the official files only the sizes and the first digits of some hashes are known."""
    _, fake = hub
    starts = {"llm.pt", "flow.pt"}
    known = {
        name: (len(fake.files[name]), hashlib.sha256(fake.files[name]).hexdigest()[:8] if name in starts else "")
        for name in NEEDED_300M
    }
    monkeypatch.setattr(download, "KNOWN_300M", known)
    fake.sha256 = lambda name: ""  # type: ignore[method-assign]
    fake.tells_no_hash = True
    pulled(hub, tmp_path / "good")
    told = capsys.readouterr().err
    assert "verified" not in told.replace("not verified", "") and "another release" not in told
    assert "not verified: the hub gives no hash; its size and the first digits of its SHA-256 are those" in told
    assert "not verified: the hub gives no hash; its size is the known one" in told
    fake.wrong = {"flow.pt"}
    assert pulled(hub, tmp_path / "bad") == 1
    assert "flow.pt: its SHA-256 is" in (error := capsys.readouterr().err) and "should begin with" in error
    assert not (tmp_path / "bad" / "flow.pt").exists()


def test_another_model_in_the_directory_is_not_replaced(
    hub: tuple[str, FakeHub], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cosyvoice2.yaml").touch()
    assert pulled(hub, tmp_path) == 2
    assert "holds a model of another family" in capsys.readouterr().err
    assert contents(tmp_path) == {"cosyvoice2.yaml": b""}
