import hashlib
import io
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.standin_onnx import speaker_graph, token_graph
from telephony_tts.engines.cosyvoice2.voices import voice
from telephony_tts.engines.cosyvoice2.voices.features import flow_mel, resample
from telephony_tts.engines.cosyvoice2.voices.voice import (
    PromptFeatures,
    Recording,
    extract,
    mixed,
    open_graph,
    prepared,
)
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.runtime.errors import AudioError, ConfigError, EngineUnavailable, UnknownVoice

torch.set_num_threads(1)


def murmur(seconds: float, rate_hz: int = 24_000, level: float = 0.1) -> Tensor:
    """A signal like speech: a buzz whose loudness rises and falls."""
    t = torch.arange(int(seconds * rate_hz)) / rate_hz
    buzz = sum(torch.sin(2 * math.pi * 140.0 * k * t) / k for k in range(1, 12))
    return level * torch.as_tensor(buzz) * (0.6 + 0.4 * torch.sin(2 * math.pi * 3.0 * t))


def silence(seconds: float, rate_hz: int = 24_000) -> Tensor:
    return torch.zeros(int(seconds * rate_hz))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[voice.OnnxGraph, voice.OnnxGraph]:
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "speaker.onnx").write_bytes(speaker_graph(0))
    (folder / "tokens.onnx").write_bytes(token_graph(0))
    return open_graph(folder / "speaker.onnx"), open_graph(folder / "tokens.onnx")


# ------------------------------------------------------------------------------- read


@pytest.mark.parametrize(("suffix", "n_channels"), [("wav", 1), ("wav", 2), ("flac", 1)])
def test_a_file_is_read_as_one_channel(tmp_path: Path, suffix: str, n_channels: int) -> None:
    wave = murmur(1.0)
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, wave[:, None].repeat(1, n_channels).numpy(), 24_000)
    recording = voice.read_recording(path)
    assert recording.rate_hz == 24_000 and recording.n_channels == n_channels
    torch.testing.assert_close(recording.wave, wave, atol=1e-4, rtol=0)
    assert recording.provenance["source"] == path.name and len(recording.provenance["source_sha256"]) == 64


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="cannot be read as audio"):
        voice.read_recording(tmp_path / "nowhere.wav")
    (tmp_path / "text.wav").write_text("hello")
    with pytest.raises(AudioError, match="cannot be read as audio"):
        voice.read_recording(tmp_path / "text.wav")
    soundfile.write(tmp_path / "long.wav", np.zeros(8000 * 601, np.int16), 8000)
    with pytest.raises(AudioError, match="lasts 601 s"):
        voice.read_recording(tmp_path / "long.wav")


def encoded(wave: np.ndarray, format: str, rate_hz: int = 24_000) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, wave, rate_hz, format=format)
    return content.getvalue()


def with_flac_length(content: bytes, n_samples: int) -> bytes:
    """A FLAC file of another stated length, 0 for an unknown one (RFC 9639, 8.2)."""
    return content[:21] + bytes([content[21] & 0xF0]) + n_samples.to_bytes(4, "big") + content[26:]


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_recording_is_read_from_its_bytes_as_from_its_file(tmp_path: Path, format: str) -> None:
    content = encoded(murmur(4.0).numpy(), format)
    (tmp_path / "a").write_bytes(content)
    sent, stored = voice.read_recording(content), voice.read_recording(tmp_path / "a")
    assert torch.equal(sent.wave, stored.wave) and sent.rate_hz == stored.rate_hz == 24_000
    error = sent.wave - murmur(4.0)[: sent.wave.numel()]
    assert float(error.square().mean()) < 0.01 * float(sent.wave.square().mean())
    assert dict(stored.provenance) == {"source": "a", **sent.provenance}
    assert sent.provenance["source_sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (lambda: b"", "the recording cannot be read as audio: give a WAV, .*not recognised"),
        (lambda: b"\x89PNG\r\n\x1a\n" + bytes(5000), "cannot be read as audio: give a WAV, FLAC, OGG or MP3"),
        (lambda: encoded(murmur(61.0).numpy(), "FLAC"), "the recording lasts 61 s: give 3 to 30 s"),
        (lambda: encoded(murmur(4.0)[:, None].repeat(1, 5).numpy(), "WAV"), "has 5 channels"),
        (lambda: encoded(murmur(4.0).numpy(), "FLAC")[:30_000], "cannot be read as audio|is truncated"),
        (lambda: encoded(murmur(4.0).numpy(), "WAV")[:90_000], "the recording is truncated"),
        (lambda: encoded(murmur(4.0).numpy(), "MP3")[:7_000], "the recording is truncated"),
        (lambda: with_flac_length(encoded(murmur(4.0).numpy(), "FLAC"), 0), "does not say how long it is"),
        (lambda: encoded(murmur(4.0).numpy(), "WAV", 400_000), "has a rate of 400000 Hz"),
    ],
    ids=["empty", "png", "61s", "5ch", "cut-flac", "cut-wav", "cut-mp3", "endless", "rate"],
)
def test_bytes_that_cannot_become_a_voice(content: Callable[[], bytes], found: str) -> None:
    with pytest.raises(AudioError, match=found) as caught:
        voice.read_recording(content(), 60.0)
    assert "object at 0x" not in caught.value.message


def test_a_wav_that_was_written_to_a_pipe_is_read_to_its_end() -> None:
    content = encoded(murmur(4.0).numpy(), "WAV")
    for length in (b"\xff\xff\xff\xff", b"\x24\xf0\xff\x7f", b"\xff\xff\xff\x7f", bytes(4)):
        place = content.index(b"data") + 4
        piped = content[:4] + length + content[8:place] + length + content[place + 4 :]
        assert torch.equal(voice.read_recording(piped).wave, voice.read_recording(content).wave)


@pytest.mark.slow
@pytest.mark.parametrize("n_stated", [None, 0, 24_000 * 10])
def test_a_small_file_of_an_hour_is_not_decoded(n_stated: int | None) -> None:
    """Stated, unknown and false: none fills the memory. An hour is 345 MB of float32."""
    content = encoded(np.zeros(24_000 * 3600, np.int16), "FLAC")
    assert len(content) < 1_000_000
    if n_stated is not None:
        content = with_flac_length(content, n_stated)
    tracemalloc.start()
    try:
        if n_stated:
            assert voice.read_recording(content, 60.0).seconds == 10
        else:
            with pytest.raises(AudioError, match="lasts 3600 s" if n_stated is None else "does not say"):
                voice.read_recording(content, 60.0)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_channels_that_cancel_or_are_too_many() -> None:
    wave = murmur(4.0)
    with pytest.raises(AudioError, match="cancel"):
        mixed(torch.stack([wave, -wave], 1), 24_000)
    with pytest.raises(AudioError, match="cancel"):
        mixed(torch.stack([wave, -0.9 * wave], 1), 24_000)
    with pytest.raises(AudioError, match="6 channels"):
        mixed(wave[:, None].repeat(1, 6), 24_000)
    with pytest.raises(AudioError, match="samples that are not finite"):
        mixed(torch.tensor([[0.1], [math.nan]]), 24_000)
    one_sided = mixed(torch.stack([wave, torch.zeros_like(wave)], 1), 24_000)
    torch.testing.assert_close(one_sided.wave, wave / 2)


# ------------------------------------------------------------------------------ judge


def test_silence_at_the_ends_is_cut() -> None:
    wave = torch.cat([silence(2.0), murmur(4.0), silence(3.0)])
    kept = prepared(Recording(wave, 24_000))
    assert abs(kept.seconds - 4.25) < 0.03
    torch.testing.assert_close(kept.wave[1200:2400], murmur(4.0)[:1200])
    assert float(kept.provenance["source_s"]) == 9.0 and float(kept.provenance["kept_s"]) == round(kept.seconds, 3)


def test_noise_far_below_the_voice_is_silence_too() -> None:
    noise = 1e-4 * torch.randn(48_000, generator=torch.Generator().manual_seed(0))
    assert prepared(Recording(torch.cat([noise, murmur(4.0), noise]), 24_000)).seconds < 4.3


@pytest.mark.parametrize(
    ("recording", "found"),
    [
        (lambda: Recording(murmur(4.0, 8000), 8000), "rate is 8000 Hz"),
        (lambda: Recording(murmur(2.0), 24_000), "holds 2.0 s"),
        (lambda: Recording(murmur(31.0), 24_000), "holds 31.0 s"),
        (lambda: Recording(silence(5.0), 24_000), "silent"),
        (lambda: Recording(murmur(5.0, level=1e-4), 24_000), "silent"),
        (lambda: Recording((20 * murmur(5.0)).clamp(-1, 1), 24_000), "clipped"),
        (lambda: Recording(torch.zeros(0), 24_000), "silent"),
        (lambda: Recording(torch.cat([silence(20.0), murmur(1.0), silence(5.0)]), 24_000), "holds 1.2 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_recordings_that_cannot_become_a_voice(recording: Callable[[], Recording], found: str) -> None:
    with pytest.raises(AudioError, match=found):
        prepared(recording())


def test_one_error_lists_every_problem() -> None:
    with pytest.raises(AudioError) as caught:
        prepared(Recording((20 * murmur(1.0, 8000)).clamp(-1, 1), 8000))
    assert all(part in caught.value.message for part in ("8000 Hz", "holds 1.0 s", "clipped"))


# ---------------------------------------------------------------------------- extract


@pytest.mark.parametrize(("rate_hz", "seconds"), [(24_000, 3.5), (16_000, 3.217), (44_100, 4.111), (48_000, 30.0)])
def test_features_of_a_recording(graphs: tuple[voice.OnnxGraph, voice.OnnxGraph], rate_hz: int, seconds: float) -> None:
    wave = murmur(seconds, rate_hz)
    features = extract(Recording(wave, rate_hz, 1, {"source": "x"}), *graphs, "Hello.", (1, 2), {"model": "y"})
    n = features.speech_tokens.numel()
    assert n == min(math.ceil(seconds * 16_000) // 160 // 4, math.ceil(seconds * 24_000) // 480 // 2)
    assert features.problems() == [] and features.mel.shape == (2 * n, 80) and features.embedding.shape == (192,)
    assert features.transcript == "Hello." and features.transcript_ids == (1, 2)
    assert features.provenance == {"source": "x", "model": "y"}
    torch.testing.assert_close(features.mel, flow_mel(resample(wave, rate_hz, 24_000))[: 2 * n])


def test_graphs_of_another_model_are_an_error(graphs: tuple[voice.OnnxGraph, voice.OnnxGraph], tmp_path: Path) -> None:
    speaker, tokens = graphs
    with pytest.raises(EngineUnavailable, match="another model"):
        extract(Recording(murmur(4.0), 24_000), tokens, speaker)
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(EngineUnavailable, match="not a usable ONNX file"):
        open_graph(tmp_path / "bad.onnx")
    (tmp_path / "tokens.onnx").write_bytes(token_graph(0))
    with pytest.raises(EngineUnavailable, match=r"tokens\.onnx is another network.*feats, feats_length.*models pull"):
        open_graph(tmp_path / "tokens.onnx", 1)
    assert len(open_graph(tmp_path / "tokens.onnx", 2).get_inputs()) == 2


class BadTokens:
    def get_inputs(self) -> list[object]:
        return [type("Input", (), {"name": name})() for name in "ab"]

    def run(self, _names: object, _feed: object) -> list[np.ndarray]:
        return [np.full((1, 100), 6561, np.int32)]


def test_ids_outside_the_codebook_do_not_become_a_voice(graphs: tuple[voice.OnnxGraph, voice.OnnxGraph]) -> None:
    with pytest.raises(AudioError, match=r"not all in 0\.\.6560"):
        extract(Recording(murmur(4.0), 24_000), graphs[0], BadTokens())


# ------------------------------------------------------------------------------ store


def same(a: PromptFeatures, b: PromptFeatures) -> bool:
    tensors = all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("speech_tokens", "mel", "embedding"))
    return tensors and (a.transcript, a.transcript_ids, dict(a.provenance)) == (
        b.transcript,
        b.transcript_ids,
        dict(b.provenance),
    )


def test_a_voice_is_stored_listed_read_and_removed(tmp_path: Path, features: PromptFeatures) -> None:
    store = VoiceStore(tmp_path / "voices")
    assert store.names() == []
    for name in ("anna", "中文女", "b.2-x"):
        store.save(name, features)
    assert store.names() == sorted(("anna", "中文女", "b.2-x"))
    assert same(store.load("anna"), features)
    assert {path.suffix for path in (tmp_path / "voices").iterdir()} == {".safetensors"}
    store.remove("anna")
    assert "anna" not in store.names()
    with pytest.raises(UnknownVoice, match="no voice anna"):
        store.load("anna")
    with pytest.raises(UnknownVoice, match="no voice anna"):
        store.remove("anna")


def test_a_voice_is_replaced_only_on_demand(tmp_path: Path, features: PromptFeatures) -> None:
    store = VoiceStore(tmp_path)
    store.save("anna", features)
    other = replace(features, transcript="other")
    with pytest.raises(ConfigError, match="already") as refused:
        store.save("anna", other)
    assert refused.value.code == "voice_exists"
    assert store.load("anna").transcript == "Guten Tag, 你好"
    store.save("anna", other, replace=True)
    assert store.load("anna").transcript == "other"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65, "a\n", "a\\b"])
def test_a_name_never_leaves_the_folder(tmp_path: Path, features: PromptFeatures, name: str) -> None:
    store = VoiceStore(tmp_path / "voices")
    with pytest.raises(ConfigError, match="is not a valid name for a voice"):
        store.save(name, features)
    for act in (store.load, store.remove):
        with pytest.raises(UnknownVoice):
            act(name)


def test_damaged_voice_files_are_named(tmp_path: Path, features: PromptFeatures) -> None:
    store = VoiceStore(tmp_path)
    path = store.save("anna", features)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(EngineUnavailable, match="voices add anna"):
        store.load("anna")
    from safetensors.torch import save_file

    save_file({"mel": torch.zeros(2)}, path)
    with pytest.raises(EngineUnavailable, match="format"):
        store.load("anna")


@pytest.mark.parametrize(
    "change",
    [
        {"mel": torch.zeros(173, 80)},
        {"mel": torch.full((174, 80), math.nan)},
        {"embedding": torch.zeros(192)},
        {"embedding": torch.ones(1, 192)},
        {"speech_tokens": torch.full((87,), 6561)},
        {"speech_tokens": torch.zeros(1, 87, dtype=torch.int64)},
    ],
    ids=str,
)
def test_features_that_are_wrong_are_not_stored(
    tmp_path: Path, features: PromptFeatures, change: dict[str, Tensor]
) -> None:
    with pytest.raises(ConfigError, match="cannot be stored"):
        VoiceStore(tmp_path).save("anna", replace(features, **change))
    assert VoiceStore(tmp_path).names() == []


# ----------------------------------------------------------------------------- import


def zero_shot(features: PromptFeatures, n_extra: int = 0) -> dict[str, Tensor]:
    tokens = torch.cat([features.speech_tokens, torch.zeros(n_extra, dtype=torch.int64)]).int()[None]
    return {
        "prompt_text": torch.tensor([[5, 6, 7, 0]]).int(),
        "prompt_text_len": torch.tensor([3]).int(),
        "llm_prompt_speech_token": tokens,
        "llm_prompt_speech_token_len": torch.tensor([87]).int(),
        "flow_prompt_speech_token": tokens,
        "flow_prompt_speech_token_len": torch.tensor([87]).int(),
        "prompt_speech_feat": features.mel[None],
        "prompt_speech_feat_len": torch.tensor([174]).int(),
        "llm_embedding": features.embedding[None],
        "flow_embedding": features.embedding[None],
    }


def test_the_three_layouts_are_imported(tmp_path: Path, features: PromptFeatures) -> None:
    third_party = {
        "name": "c",
        "spk_id": "c",
        "prompt_text": "Guten Tag, 你好",
        "prompt_text_token": torch.tensor([[5, 6, 7]]).int(),
        "speech_feat": features.mel[None],
        "speech_token": features.speech_tokens.int()[None],
        "embedding": features.embedding[None],
    }
    entries = {"a": {"embedding": features.embedding[None]}, "b": zero_shot(features, n_extra=4), "c": third_party}
    torch.save(entries, tmp_path / "spk2info.pt")
    voices, problems = read_spk2info(tmp_path / "spk2info.pt")
    assert problems == [] and list(voices) == ["a", "b", "c"]
    for name, layout in (("a", "preset"), ("b", "zero-shot"), ("c", "third-party")):
        assert voices[name].provenance == {"source": f"spk2info.pt: {name}", "layout": layout}
        assert torch.equal(voices[name].embedding, features.embedding)
    assert voices["a"].speech_tokens.numel() == 0 and voices["a"].mel.shape == (0, 80)
    for name in "bc":
        assert torch.equal(voices[name].speech_tokens, features.speech_tokens)
        assert torch.equal(voices[name].mel, features.mel) and voices[name].transcript_ids == (5, 6, 7)
    assert voices["c"].transcript == "Guten Tag, 你好"
    store = VoiceStore(tmp_path / "voices")
    for name, item in voices.items():
        store.save(name, item)
        assert same(store.load(name), item)


def test_tokens_and_mel_are_cut_to_the_same_speech(tmp_path: Path, features: PromptFeatures) -> None:
    entry = zero_shot(features)
    entry["prompt_speech_feat"] = entry["prompt_speech_feat"][:, :161]
    torch.save({"b": entry}, tmp_path / "a.pt")
    voices, _ = read_spk2info(tmp_path / "a.pt")
    assert voices["b"].speech_tokens.shape == (80,) and voices["b"].mel.shape == (160, 80)


def test_unusable_speakers_are_named_and_the_others_are_imported(tmp_path: Path, features: PromptFeatures) -> None:
    broken = zero_shot(features)
    del broken["prompt_speech_feat"]
    entries = {
        "good": {"embedding": features.embedding[None]},
        "odd": {"x": torch.zeros(1)},
        "word": "hello",
        "broken": broken,
        "flat": {"embedding": torch.zeros(2, 192)},
        "zero": {"embedding": torch.zeros(1, 192)},
        "narrow": {**zero_shot(features), "prompt_speech_feat": torch.zeros(1, 174, 64)},
    }
    torch.save(entries, tmp_path / "a.pt")
    voices, problems = read_spk2info(tmp_path / "a.pt")
    assert list(voices) == ["good"]
    assert [problem.split(":")[0] for problem in problems] == ["odd", "word", "broken", "flat", "zero", "narrow"]


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code of the file was run')",))


def test_speaker_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": Malicious()}, path)
    with pytest.raises(ConfigError, match="not a plain file of tensors"):
        read_spk2info(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot be read|not a plain file"):
        read_spk2info(path)
    torch.save([1], path)
    with pytest.raises(ConfigError, match="does not hold speakers by name"):
        read_spk2info(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_spk2info(tmp_path / "nowhere.pt")
