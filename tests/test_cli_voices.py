"""`telephony-tts voices`: from a recording to a voice that speaks, and the errors on the way."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch

from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog, voice_folders
from telephony_tts.audio.wav import read_wav
from telephony_tts.cli.main import main
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.hosting.known_voices import KnownVoices
from telephony_tts.engines.cosyvoice2.voices import enrolment
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

SAID = "Thank you for calling. Your parcel is on its way and arrives tomorrow. Is there anything else I can do?"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speech at 24 kHz from the embedded voice."""
    path = tmp_path_factory.mktemp("recording") / "anna.wav"
    assert main(["say", SAID, str(path), "--pcm", "--voice", "hibari/heart"]) == 0
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original")
    write_random_checkpoint(path)
    return path


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A model directory for one test, with the files of `original`."""
    path = tmp_path / "model"
    (path / "CosyVoice-BlankEN").mkdir(parents=True)
    for file in original.rglob("*"):
        if file.is_file():
            (path / file.relative_to(original)).symlink_to(file)
    return path


def speech(recording: Path) -> tuple[np.ndarray, int]:
    samples, rate_hz = soundfile.read(recording, dtype="float32")
    return samples, rate_hz


def stored(model: Path) -> list[str]:
    folder = model / "voices"
    return sorted(os.listdir(folder)) if folder.exists() else []


# ------------------------------------------------------------------------------ a life


def test_a_voice_is_added_speaks_is_listed_and_removed(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, of_model = tmp_path / "out.wav", ["--model", str(model)]
    assert main(["voices", "add", "anna", "--wav", str(recording), "--text", SAID, *of_model]) == 0
    told = capsys.readouterr()
    seconds = VoiceStore(model / "voices").load("anna").prompt_s
    assert "zero-shot" in told.out and str(model / "voices" / "anna.safetensors") in told.out
    assert "a running server speaks with it from now on" in told.out and told.err == ""
    assert 5 < seconds < 12 and f"{seconds:.1f}"[:1] in told.out.splitlines()[0]

    say = ["say", "Good morning.", str(out), "--engine", "cosyvoice2", *of_model, "--voice", "anna"]
    assert main(say) == 0
    assert np.abs(np.frombuffer(read_wav(str(out)).payload, np.uint8).astype(int) - 255).max() > 100
    capsys.readouterr()

    assert main(["voices", *of_model]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cosyvoice2/anna")]
    assert f"zero-shot, {seconds:.1f} s of anna.wav" in line
    assert main(["voices", "remove", "anna", *of_model]) == 0
    assert "anna: removed" in capsys.readouterr().out and stored(model) == []
    out.unlink()
    # In this process: a new one would import PyTorch for 3 s, and the call above did that already.
    assert main([*say, "--set", "engines.cosyvoice2.isolation=thread"]) == 1
    assert "no voice 'anna'" in capsys.readouterr().err and not out.exists()


def test_the_owner_and_the_consent_are_stored_and_listed(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_model = ["--model", str(model)]
    add = ["voices", "add", "anna", "--wav", str(recording), *of_model, "--owner", "acme"]
    add += ["--consent-by", "Anna Schmidt"]
    assert main(add) == 2
    assert "--consent-on, --consent-for: missing" in capsys.readouterr().err and stored(model) == []
    add += ["--consent-for", "calls of Acme", "--consent-on"]
    assert main([*add, "soon"]) == 2
    assert "--consent-on: expected a day such as 2026-01-31" in capsys.readouterr().err and stored(model) == []
    assert main([*add, "2026-01-31"]) == 0
    capsys.readouterr()
    assert main(["voices", *of_model]) == 0
    assert "of key acme; Anna Schmidt consented on 2026-01-31: calls of Acme" in capsys.readouterr().out
    assert main(["voices", "--json", *of_model]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "anna"]
    assert (row["owner"], row["consent_by"], row["consent_on"]) == ("acme", "Anna Schmidt", "2026-01-31")


def test_the_transcript_is_stored_in_words_and_without_one_the_voice_is_cross_lingual(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Your balance is  $42.50,\nand the code is 7 for today. Is there anything else?"
    assert main(["voices", "add", "a", "--wav", str(recording), "--text", text, "--model", str(model)]) == 0
    assert "forty two dollars" in capsys.readouterr().out.replace("-", " ")
    assert main(["voices", "add", "b", "--wav", str(recording), "--model", str(model)]) == 0
    assert "cross-lingual" in capsys.readouterr().out
    store = VoiceStore(model / "voices")
    transcript = store.load("a").transcript
    assert not any(letter.isdigit() for letter in transcript) and "  " not in transcript and "\n" not in transcript
    assert (store.load("a").mode, store.load("b").mode) == ("zero-shot", "cross-lingual")
    assert store.load("b").transcript == "" and store.load("b").transcript_ids == ()


def test_a_voice_file_has_its_origin_and_is_the_same_from_every_process(
    model: Path, recording: Path, tmp_path: Path
) -> None:
    for folder in "ab":
        command = [sys.executable, "-m", "telephony_tts", "voices", "add", "anna", "--wav", str(recording)]
        command += ["--text", SAID, "--model", str(model), "--voices", str(tmp_path / folder)]
        subprocess.run(command, check=True, timeout=60, capture_output=True)
    first, second = ((tmp_path / folder / "anna.safetensors").read_bytes() for folder in "ab")
    assert first == second
    about = VoiceStore(tmp_path / "a").load("anna").provenance
    assert about["source"] == "anna.wav" and about["source_rate_hz"] == "24000" and about["source_channels"] == "1"
    assert {len(about[key]) for key in ("source_sha256", "campplus_sha256", "speech_tokenizer_v2_sha256")} == {64}
    assert float(about["kept_s"]) <= float(about["source_s"]) and about["made_by"].startswith("telephony-tts ")


def test_adding_needs_no_weights_but_one_shape(model: Path, recording: Path) -> None:
    for name in ("llm.pt", "hift.pt", "cosyvoice2.yaml"):
        (model / name).unlink()
    assert main(["voices", "add", "anna", "--wav", str(recording), "--model", str(model)]) == 0


@pytest.mark.parametrize("extension", ["flac", "ogg"])
def test_other_audio_formats_are_read(model: Path, recording: Path, tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    soundfile.write(path, *speech(recording))
    assert main(["voices", "add", "a", "--wav", str(path), "--model", str(model)]) == 0


def test_the_folder_can_be_set_in_the_configuration(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f"engines: {{cosyvoice2: {{model: {model}, voices: mine}}}}\n")
    assert main(["voices", "add", "anna", "--wav", str(recording), "--config", str(file)]) == 0
    assert os.listdir(tmp_path / "mine") == ["anna.safetensors"] and stored(model) == []
    settings = config.load(str(file))
    assert list(voice_folders(settings)) == [tmp_path / "mine"]
    assert list(voice_folders(config.load(None, {"engines.cosyvoice2.model": "m"}))) == [Path("m/voices")]
    assert list(voice_folders(config.Config())) == []
    capsys.readouterr()
    assert main(["voices", "list", "--voices", str(tmp_path / "mine")]) == 0, "a folder alone can be listed"
    assert "cosyvoice2/anna" in capsys.readouterr().out


# ------------------------------------------------------------------------------- hints


def test_a_voice_is_replaced_only_with_the_flag(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add = ["voices", "add", "anna", "--wav", str(recording), "--model", str(model)]
    assert main(add) == 0
    assert main([*add, "--text", SAID]) == 2
    error = capsys.readouterr().err
    assert "already has a voice anna" in error and "--replace" in error
    assert VoiceStore(model / "voices").load("anna").mode == "cross-lingual"
    assert main([*add, "--text", SAID, "--replace"]) == 0
    assert VoiceStore(model / "voices").load("anna").mode == "zero-shot"


def test_hiding_a_voice_of_the_model_is_a_warning(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", "add", "prompted", "--wav", str(recording), "--model", str(model)]) == 0
    assert "replaces the voice prompted" in capsys.readouterr().err


def noisy(samples: np.ndarray, rate_hz: int) -> np.ndarray:
    return samples + 0.02 * np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32)


def from_a_telephone(samples: np.ndarray, rate_hz: int) -> np.ndarray:
    return np.asarray(soxr.resample(soxr.resample(samples, rate_hz, 8000), 8000, rate_hz))


@pytest.mark.parametrize(
    ("change", "text", "hint"),
    [
        (lambda samples, rate_hz: samples, SAID, ""),
        (noisy, SAID, "noise"),
        (from_a_telephone, SAID, "above 4 kHz"),
        (lambda samples, rate_hz: samples[: 4 * rate_hz], "Thank you for calling. Your parcel is on its way.", "only"),
        (lambda samples, rate_hz: samples, "Hi.", "too short"),
        (lambda samples, rate_hz: samples, 4 * SAID, "too long"),
        (lambda samples, rate_hz: samples, "感谢您的来电您的包裹已经在路上明天就会送到您手里请问", ""),
        (lambda samples, rate_hz: samples, "您好", "too short"),
    ],
    ids=["good", "noise", "telephone", "short", "few words", "many words", "hanzi", "few hanzi"],
)
def test_a_poor_recording_is_a_warning(
    change: object, text: str, hint: str, model: Path, recording: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    samples, rate_hz = speech(recording)
    path = tmp_path / "a.wav"
    soundfile.write(path, change(samples, rate_hz), rate_hz, subtype="FLOAT")  # type: ignore[operator]
    assert main(["voices", "add", "a", "--wav", str(path), "--text", text, "--model", str(model)]) == 0
    error = capsys.readouterr().err
    assert (hint in error and len(error.splitlines()) == 1) if hint else error == ""


def test_the_noise_of_a_recording_is_reduced_only_with_the_flag(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, rate_hz = speech(recording)
    silence = np.zeros(rate_hz // 2, np.float32)
    path, of_model = tmp_path / "a.wav", ["--model", str(model)]
    soundfile.write(path, noisy(np.concatenate((silence, samples, silence)), rate_hz), rate_hz)
    before = path.read_bytes()

    assert main(["voices", "check", str(path), "--denoise", str(tmp_path / "quieter.wav")]) == 0
    told = capsys.readouterr().out
    assert told.count("  noise     ") == 2 and "warning   its quietest tenth" in told and "afftdn of FFmpeg" in told
    quieter, hz = speech(tmp_path / "quieter.wav")
    assert hz == rate_hz and len(quieter) == len(samples) + 2 * len(silence)
    pause = slice(rate_hz // 10, 4 * rate_hz // 10)
    assert np.std(quieter[pause]) < 0.4 * np.std(soundfile.read(path)[0][pause])

    assert main(["voices", "add", "plain", "--wav", str(path), "--text", SAID, *of_model]) == 0
    assert "noise was reduced" not in capsys.readouterr().out
    assert main(["voices", "add", "quiet", "--wav", str(path), "--text", SAID, "--denoise", *of_model]) == 0
    assert "its noise was reduced by" in capsys.readouterr().out
    store = VoiceStore(model / "voices")
    plain, quiet = store.load("plain"), store.load("quiet")
    assert "denoised_by" not in plain.provenance and float(quiet.provenance["denoised_db"]) > 8
    assert quiet.mel.mean() < plain.mel.mean(), "it is made of the version with less noise"
    assert main(["voices", *of_model]) == 0
    assert "no consent is recorded; noise reduced by" in capsys.readouterr().out
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["{wav}", "--denoise", "{wav}"], 2, ["the recording itself is never changed"]),
        (["{wav}", "--denoise", "{folder}/none/b.wav"], 2, ["none/b.wav cannot be written"]),
        (["{folder}/none.wav"], 1, ["none.wav", "no such file"]),
        (["{clean}", "--denoise", "{folder}/b.wav"], 1, ["no noise to reduce"]),
    ],
)
def test_a_recording_that_cannot_be_checked_or_denoised_is_told_in_a_line(
    flags: list[str], status: int, words: list[str], recording: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    samples, rate_hz = speech(recording)
    silence = np.zeros(rate_hz // 2, np.float32)
    padded = np.concatenate((silence, samples, silence))
    names = {"wav": tmp_path / "a.wav", "clean": tmp_path / "clean.wav", "folder": tmp_path}
    soundfile.write(names["wav"], noisy(padded, rate_hz), rate_hz)
    soundfile.write(names["clean"], padded, rate_hz)
    before = names["wav"].read_bytes()
    assert main(["voices", "check", *(flag.format(**names) for flag in flags)]) == status
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error
    assert names["wav"].read_bytes() == before and not (tmp_path / "b.wav").exists()


def test_the_check_of_a_recording_that_cannot_become_a_voice_fails(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", "check", str(recording)]) == 0
    assert "problem" not in capsys.readouterr().out
    assert main(["voices", "check", str(bad_recordings(recording, tmp_path)["2s"])]) == 1
    assert "problem   it holds 2.0 s" in capsys.readouterr().out


# -------------------------------------------------------------------------------- bad


def bad_recordings(recording: Path, folder: Path) -> dict[str, Path]:
    samples, rate_hz = speech(recording)
    murmur = np.tile(samples, 8)
    waves = {
        "opposed": (np.stack([samples, -samples], 1), rate_hz),
        "8k": (samples[::3], 8000),
        "silent": (np.zeros(5 * rate_hz, np.float32), rate_hz),
        "clipped": ((20 * samples).clip(-1, 1), rate_hz),
        "2s": (samples[: 2 * rate_hz], rate_hz),
        "40s": (murmur[: 40 * rate_hz], rate_hz),
    }
    for name, (wave, hz) in waves.items():
        soundfile.write(folder / f"{name}.wav", wave, hz, subtype="FLOAT")
    (folder / "text.wav").write_text("this is not audio")
    return {name: folder / f"{name}.wav" for name in [*waves, "text", "nowhere"]}


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("nowhere", ["nowhere.wav", "no such file"]),
        ("text", ["text.wav", "cannot be read as audio", "WAV"]),
        ("opposed", ["cancel each other", "give one channel"]),
        ("8k", ["8000 Hz", "16000 Hz or more"]),
        ("silent", ["silent", "nearer to the microphone"]),
        ("clipped", ["clipped", "record it more quietly"]),
        ("2s", ["should hold 3 to 30 s"]),
        ("40s", ["should hold 3 to 30 s"]),
    ],
)
def test_an_unusable_recording_is_refused_with_what_to_do(
    which: str, words: list[str], model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bad_recordings(recording, tmp_path)[which]
    assert main(["voices", "add", "anna", "--wav", str(path), "--model", str(model)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("telephony-tts: ") and error.count("\n") == 1
    assert all(word in error for word in words), error
    assert stored(model) == [] and not (model / "voices").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", "anna", "--wav", "{wav}"], 2, ["--model DIR", "models pull"]),
        (["add", "anna", "--wav", "{wav}", "--model", "{folder}/none"], 1, ["campplus.onnx", "models pull"]),
        (["add", "../anna", "--wav", "{wav}", "--model", "{model}"], 2, ["is not a valid name for a voice"]),
        (["add", "anna", "--wav", "{wav}", "--model", "{model}", "--text", "  "], 2, ["--text has no words"]),
        (["add", "anna", "--wav", "{wav}", "--model", "{model}", "--text", "?!"], 2, ["--text has no words"]),
        (["add", "anna", "--wav", "{wav}", "--model", "{model}", "--voices", "{wav}/x"], 2, ["cannot be written to"]),
        (["remove", "prompted", "--model", "{model}"], 1, ["no voice prompted"]),
        (["remove", "anna"], 2, ["--model DIR or --voices DIR"]),
        (["remove", "../anna", "--model", "{model}"], 1, ["no voice ../anna"]),
        (["import", "{folder}/none.pt", "--model", "{model}"], 2, ["no file", "none.pt"]),
        (["import", "{wav}", "--model", "{model}"], 2, ["cannot be read", "not a spk2info.pt"]),
        (["import", "{model}/spk2info.pt", "--model", "{model}", "--only", "anna"], 2, ["anna", "preset, prompted"]),
        (["import", "{model}/spk2info.pt", "--model", "{folder}/none"], 1, ["flow.pt", "no such file"]),
        (["list", "--model", "{folder}/none"], 1, ["flow.pt", "models check"]),
    ],
)
def test_wrong_use_is_one_line_and_stores_nothing(
    arguments: list[str], code: int, words: list[str], model: Path, recording: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    filled = [part.format(wav=recording, model=model, folder=tmp_path) for part in arguments]
    assert main(["voices", *filled]) == code
    error = capsys.readouterr().err
    assert error.startswith("telephony-tts: ") and error.count("\n") == 1, error
    assert all(word in error for word in words), error
    assert not (model / "voices").exists()


def test_a_full_disk_leaves_no_partial_voice(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fails)
    assert main(["voices", "add", "anna", "--wav", str(recording), "--model", str(model)]) == 2
    assert "No space left on device" in capsys.readouterr().err and stored(model) == []


def test_similar_names_are_listed(model: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "add", "anna", "--wav", str(recording), "--model", str(model)]) == 0
    assert main(["voices", "remove", "ana", "--model", str(model)]) == 1
    assert "similar: anna" in capsys.readouterr().err


def resized(model: Path, n_embedding: int) -> None:
    """Makes flow.pt that of a model with this size of speaker embeddings."""
    state = torch.load(model / "flow.pt", weights_only=True)
    weight = state["spk_embed_affine_layer.weight"]
    state["spk_embed_affine_layer.weight"] = torch.zeros(weight.shape[0], n_embedding)
    (model / "flow.pt").unlink()
    torch.save(state, model / "flow.pt")


def test_a_voice_of_another_speaker_network_is_refused(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resized(model, 512)
    for arguments in (["add", "anna", "--wav", str(recording)], ["import", str(model / "spk2info.pt")]):
        code = main(["voices", *arguments, "--model", str(model)])
        error = capsys.readouterr().err
        assert code == (2 if arguments[0] == "add" else 1)
        assert "192 numbers and the model takes 512" in error and not (model / "voices").exists()


# ------------------------------------------------------------------------ too long


@pytest.mark.parametrize(("n_chars", "code"), [(1000, 0), (1001, 2)])
def test_a_transcript_past_the_limit_is_refused_with_the_limit_and_nothing_is_stored(
    n_chars: int, code: int, model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pinned: such a voice was stored with exit status 0, and `serve` refused it."""
    text = ("speak " * 200)[: n_chars - 1] + "s"
    assert len(text) == n_chars
    add = ["voices", "add", "anna", "--wav", str(recording), "--text", text, "--model", str(model)]
    assert main(add) == code
    told = capsys.readouterr()
    served = KnownVoices(load_model_directory(model), model / "voices").features
    assert ("anna" in served) is (code == 0) is ("stored" in told.out)
    if code:
        assert told.out == "" and told.err.count("\n") == 1
        assert "1001 characters and may have 1000" in told.err and not (model / "voices").exists()


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def lasting(n_tokens: int) -> dict[str, torch.Tensor]:
    tokens = torch.arange(n_tokens)[None] % 6561
    return {"flow_prompt_speech_token": tokens, "prompt_speech_feat": torch.zeros(1, 2 * n_tokens, 80)}


def worded(text: str) -> dict[str, object]:
    return {"speech_token": row(1, 2), "speech_feat": torch.zeros(1, 4, 80), "embedding": torch.ones(1, 192),
            "prompt_text": text}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (worded("a" * 1000), ""),
        (worded("a" * 1001), "1001 characters and may have 1000"),
        (worded("a\ud800"), "text in Unicode"),
        ({"prompt_text": torch.full((1, 1000), 7)}, ""),
        ({"prompt_text": torch.full((1, 1001), 7)}, "1001 text tokens and may have 1000"),
        ({"prompt_text": row(5, 511)}, ""),
        ({"prompt_text": row(5, 512)}, "not all below 512"),
        ({"prompt_text": row(5, -1)}, "not all whole numbers"),
        (lasting(750), ""),
        (lasting(751), "lasts 30.04 s and may last 30 s"),
        ({"flow_embedding": torch.ones(1, 191)}, "191 numbers and the model takes 192"),
        ({"flow_embedding": torch.zeros(1, 192)}, "all zero"),
        ({"flow_embedding": torch.full((1, 192), torch.nan)}, "not finite"),
        ({"prompt_speech_feat": torch.full((1, 200, 80), torch.inf)}, "the mel is not finite"),
        ({"flow_prompt_speech_token": torch.full((1, 50), 6561)}, "not all in 0..6560"),
    ],
)
def test_a_voice_that_serve_would_refuse_is_not_stored(
    change: dict[str, object], problem: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Both sides of the limit of each rule: import decides as the engine does when it starts."""
    prompted = torch.load(model / "spk2info.pt", weights_only=True)["prompted"]
    entry = {} if "speech_token" in change else {k: v for k, v in prompted.items() if not k.endswith("_len")}
    torch.save({"odd": {**entry, **change}}, tmp_path / "spk.pt")
    code = main(["voices", "import", str(tmp_path / "spk.pt"), "--model", str(model)])
    error = capsys.readouterr().err
    (model / "spk2info.pt").unlink()
    kept = KnownVoices(load_model_directory(model), model / "voices").features
    assert (code, list(kept), stored(model)) == ((1, [], []) if problem else (0, ["odd"], ["odd.safetensors"])), error
    assert ("odd: refused, " in error and problem in error) if problem else error == ""
    if problem:
        shutil.copy(tmp_path / "spk.pt", model / "spk2info.pt")
        assert KnownVoices(load_model_directory(model), None).features == {} and problem in caplog.text


def test_a_named_voice_that_cannot_be_imported_is_a_failure(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = torch.load(model / "spk2info.pt", weights_only=True)
    file = tmp_path / "spk.pt"
    torch.save({**entries, "long": worded("a" * 1001)}, file)
    command = ["voices", "import", str(file), "--model", str(model), "--replace"]
    assert main([*command, "--only", "preset", "long"]) == 1
    assert "preset: imported" in capsys.readouterr().out and stored(model) == ["preset.safetensors"]
    assert main(command) == 0, "without names the usable voices are imported"


def test_a_long_recording_is_trimmed_only_with_the_flag_and_never_with_a_transcript(
    model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, rate_hz = speech(recording)
    pause = np.zeros(rate_hz, np.float32)
    four = np.concatenate([part for _ in range(4) for part in (samples, pause)])
    path = tmp_path / "long.wav"
    soundfile.write(path, np.concatenate([four, np.tile(samples, 4)]), rate_hz, subtype="FLOAT")
    add = ["voices", "add", "anna", "--wav", str(path), "--model", str(model)]
    assert main(add) == 1
    assert "should hold 3 to 30 s (without --text, --trim keeps its beginning)" in capsys.readouterr().err
    assert main([*add, "--trim", "--text", SAID]) == 2
    assert "--trim cannot be combined with --text" in capsys.readouterr().err and stored(model) == []
    assert main([*add, "--trim"]) == 0
    seconds = VoiceStore(model / "voices").load("anna").prompt_s
    last_pause_s = (len(four) - len(pause) / 2) / rate_hz
    assert abs(seconds - last_pause_s) < 0.6, "it ends in the last pause before 30 s, not in a word"
    assert f"{seconds:.0f}." in capsys.readouterr().out


def test_trim_does_not_change_a_short_recording(model: Path, recording: Path) -> None:
    for name, flags in (("a", []), ("b", ["--trim"])):
        assert main(["voices", "add", name, "--wav", str(recording), "--model", str(model), *flags]) == 0
    first, second = ((model / "voices" / f"{name}.safetensors").read_bytes() for name in "ab")
    assert first == second


# ------------------------------------------------------------------------------ import


def test_the_voices_of_a_file_are_imported_and_unusable_ones_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = torch.load(model / "spk2info.pt", weights_only=True)
    third = {"spk_id": "c", "prompt_text": "Hello.", "prompt_text_token": entries["prompted"]["prompt_text"],
             "speech_token": entries["prompted"]["flow_prompt_speech_token"],
             "speech_feat": entries["prompted"]["prompt_speech_feat"],
             "embedding": entries["preset"]["embedding"]}  # fmt: skip
    bad = {"embedding": torch.zeros(1, 192)}
    file = tmp_path / "spk.pt"
    torch.save({**entries, "third": third, "bad": bad, "a name": entries["preset"]}, file)
    command = ["voices", "import", str(file), "--voices", str(tmp_path / "own")]
    assert main(command) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[:3] == [
        "preset: imported, preset of spk.pt: preset",
        "prompted: imported, zero-shot, 3.5 s of spk.pt: prompted",
        "third: imported, zero-shot, 3.5 s of spk.pt: third",
    ]
    assert "3 stored in" in told.out
    assert "bad: refused, the embedding is not finite or all zero" in told.err
    assert "a name: refused" in told.err and "is not a valid name for a voice" in told.err
    assert VoiceStore(tmp_path / "own").names() == ["preset", "prompted", "third"]
    assert main([*command, "--only", "bad"]) == 1
    assert "no voice of" in capsys.readouterr().err
    assert main([*command, "--only", "third", "preset"]) == 1, "they are there already"
    assert main([*command, "--only", "third", "--replace"]) == 0
    assert capsys.readouterr().out.startswith("third: imported")


# -------------------------------------------------------------------------------- list


def test_the_list_equals_the_engines_and_needs_no_weights(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("anna", "prompted"):
        assert main(["voices", "add", name, "--wav", str(recording), "--model", str(model)]) == 0
    (model / "voices" / "broken.safetensors").write_bytes(b"nothing")
    other = enrolment.read_spk2info(model / "spk2info.pt")[0]["preset"]
    wide = type(other)(other.speech_tokens, other.mel, torch.ones(512))
    VoiceStore(model / "voices").save("wide", wide)
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("telephony_tts.engines.cosyvoice2.service.CosyVoice2Engine.start", None)
        assert main(["voices", "--json", "--model", str(model)]) == 0
    told = capsys.readouterr()
    rows = [row for row in json.loads(told.out) if row["engine"] == "cosyvoice2"]
    assert [row["name"] for row in rows] == ["preset", "prompted", "anna"]
    assert rows[0]["languages"] == ["zh", "en", "ja", "ko"] and rows[0]["sample_rate_hz"] == 24_000
    assert rows[0]["description"] == "preset of spk2info.pt: preset" and "cross-lingual" in rows[1]["description"]
    assert "cosyvoice2/broken cannot be used" in told.err and "cosyvoice2/wide cannot be used" in told.err

    own = {"engines.cosyvoice2.model": str(model), "engines.cosyvoice2.isolation": "thread"}
    catalog = build_catalog(config.load(None, own))

    async def names() -> list[str]:
        await catalog.start()
        try:
            return [voice.name for voice in catalog.voices if voice.engine == "cosyvoice2"]
        finally:
            await catalog.close()

    assert asyncio.run(names()) == [row["name"] for row in rows]


@pytest.mark.parametrize("action", [[], ["list"], ["add"], ["check"], ["remove"], ["import"], ["pull"]])
def test_help_has_examples(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["voices", *action, "--help"])
    assert ended.value.code == 0 and f"telephony-tts voices {' '.join(action)}" in capsys.readouterr().out
