import json
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_flow import recomputed
from reference_vocoder import whole_audio
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import SIZES, random_state, write_random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.standin_onnx import speaker_graph, token_graph
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.lm.lm import LanguageModel
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.voices.voice import open_graph
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info
from telephony_tts.runtime.errors import ConfigError

torch.set_num_threads(1)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "a", seed=7)
    write_random_checkpoint(tmp_path / "b", seed=7)
    write_random_checkpoint(tmp_path / "c", seed=8)
    a, b, c = (files(tmp_path / name) for name in "abc")
    assert a == b and a.keys() == c.keys()
    for name in ("llm.pt", "flow.pt", "hift.pt", "spk2info.pt", "campplus.onnx", "speech_tokenizer_v2.onnx"):
        assert a[name] != c[name]
    assert sum(map(len, a.values())) < 15_000_000


def test_the_directory_is_marked_as_random(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, seed=5)
    assert json.loads((tmp_path / "random.json").read_text()) == {"random": True, "size": "tiny", "seed": 5}
    assert "random weights (seed 5)" in (tmp_path / "README.md").read_text()


def test_only_a_random_checkpoint_is_overwritten(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "model", seed=1)
    write_random_checkpoint(tmp_path / "model", seed=2)
    (tmp_path / "model" / "random.json").unlink()
    before = files(tmp_path / "model")
    with pytest.raises(ConfigError, match="give a new directory"):
        write_random_checkpoint(tmp_path / "model", seed=3)
    assert files(tmp_path / "model") == before
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="give a new directory"):
        write_random_checkpoint(tmp_path / "file")


def test_the_full_size_has_the_official_number_of_weights() -> None:
    numbers = {
        file: sum(torch.Size(shape).numel() for shape in shapes.values())
        for file, shapes in checkpoint_shapes(SIZES["full"]).items()
    }
    assert numbers == {"llm.pt": 505_803_812, "flow.pt": 112_549_360, "hift.pt": 20_821_295}


def test_a_tensor_does_not_depend_on_the_other_tensors() -> None:
    shapes = checkpoint_shapes(SIZES["tiny"])["flow.pt"]
    name = "encoder_proj.weight"
    assert torch.equal(random_state("flow.pt", shapes, 1)[name], random_state("x/flow.pt"[2:], shapes, 1)[name])
    alone = random_state("other.pt", {name: shapes[name]}, 1)
    assert torch.equal(alone[name], random_state("other.pt", shapes, 1)[name])


@pytest.mark.parametrize("seed", range(3))
def test_activations_stay_finite_and_of_the_scale_of_speech(seed: int) -> None:
    config = SIZES["tiny"]
    state = {file: random_state(file, shapes, seed) for file, shapes in checkpoint_shapes(config).items()}
    random = torch.Generator().manual_seed(seed)

    model = LanguageModel.from_state(config.lm, state["llm.pt"])
    cache = model.new_cache(1, 64)
    x = state["llm.pt"]["llm.model.model.embed_tokens.weight"][:40]
    logits = model.logits(model.extend(x, 0, cache)[-1:])
    assert 0.5 < float(logits.std()) < 2.0

    mel = recomputed(
        Flow.from_state(config, state["flow.pt"]),
        torch.randint(6561, (1, 20), generator=random),
        torch.randint(6561, (1, 50), generator=random),
        torch.randn(1, 40, 80, generator=random) * 2 - 5,
        torch.randn(1, 192, generator=random),
        streaming=True,
        finalize=True,
    )
    assert -8.0 < float(mel.mean()) < -2.0 and 0.5 < float(mel.std()) < 4.0

    vocoder = Vocoder.from_state(config.vocoder, state["hift.pt"])

    def noise(_first: int, n: int) -> Tensor:
        return torch.randn(1, n, 9, generator=random)

    audio = whole_audio(vocoder, mel, noise)
    assert 50.0 < float(vocoder.f0(mel).mean()) < 300.0
    assert 0.01 < float(audio.square().mean().sqrt()) < 0.3


# ----------------------------------------------------------------------- the stand-ins


def test_the_random_speaker_network(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(speaker_graph(1))
    graph = open_graph(tmp_path / "a.onnx")
    x = np.random.default_rng(0).standard_normal((1, 250, 80)).astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    (name,) = [item.name for item in graph.get_inputs()]
    (one,), (two,) = graph.run(None, {name: x}), graph.run(None, {name: 2 * x})
    assert one.shape == (1, 192) and np.isfinite(one).all() and np.abs(one).max() > 0.1
    assert not np.allclose(one, two)


@pytest.mark.parametrize("n_frames", [300, 301, 303, 3000])
def test_the_random_speech_tokenizer(tmp_path: Path, n_frames: int) -> None:
    (tmp_path / "a.onnx").write_bytes(token_graph(1))
    graph = open_graph(tmp_path / "a.onnx")
    feats, length = [item.name for item in graph.get_inputs()]
    mel = np.random.default_rng(0).standard_normal((1, 128, n_frames)).astype(np.float32)
    (ids,) = graph.run(None, {feats: mel, length: np.array([n_frames], np.int32)})
    assert ids.shape == (1, n_frames // 4) and ids.dtype == np.int32
    assert ids.min() >= 0 and ids.max() < 6561 and len(set(ids[0].tolist())) > 50


def test_its_speakers_can_be_imported(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    voices, problems = read_spk2info(tmp_path / "spk2info.pt")
    assert problems == [] and list(voices) == ["preset", "prompted"]
    assert voices["preset"].prompt_s == 0.0 and voices["prompted"].prompt_s == 3.48
