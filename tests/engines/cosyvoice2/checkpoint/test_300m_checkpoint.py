"""The model directory of CosyVoice-300M: its files, sizes and faults."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import SIZES_300M
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, load_model_directory
from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE_300M, official_300m
from telephony_tts.engines.cosyvoice2.model.file_names import is_first_generation
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original")
    write_random_checkpoint(path, family="300m", seed=4)
    return path


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "model")
    return tmp_path / "model"


def test_the_full_size_has_the_official_number_of_tensors_and_weights() -> None:
    counts = {
        file: (len(shapes), sum(map(math.prod, shapes.values())))
        for file, shapes in checkpoint_shapes(official_300m()).items()
    }
    assert counts == {
        "llm.pt": (401, 310_718_465),
        "flow.pt": (1185, 104_874_752),
        "hift.pt": (227, 20_460_591),
    }


def test_official_tensors_have_the_official_shapes() -> None:
    shapes = {name: shape for of_file in checkpoint_shapes(official_300m()).values() for name, shape in of_file.items()}
    for name, shape in {
        "text_embedding.weight": (51866, 512),
        "text_encoder.encoders.5.self_attn.linear_pos.weight": (1024, 1024),
        "text_encoder.encoders.0.norm_mha.weight": (1024,),
        "llm.encoders.13.norm2.bias": (1024,),
        "llm.encoders.0.self_attn.pos_bias_u": (16, 64),
        "llm_decoder.weight": (4097, 1024),
        "length_regulator.model.12.weight": (80, 80, 1),
        "decoder.estimator.down_blocks.0.2.conv.weight": (256, 256, 3),
        "decoder.estimator.down_blocks.1.2.weight": (256, 256, 3),
        "decoder.estimator.up_blocks.0.2.conv.weight": (256, 256, 4),
        "decoder.estimator.up_blocks.1.0.block1.block.0.weight": (256, 512, 3),
        "source_downs.0.weight": (256, 18, 16),
        "source_downs.1.weight": (128, 18, 1),
    }.items():
        assert shapes[name] == shape, name


def test_a_directory_is_read_with_the_sizes_it_was_written_with(original: Path) -> None:
    assert is_first_generation(original) and check_model_directory(original) == []
    checkpoint = load_model_directory(original)
    assert checkpoint.config == SIZES_300M["tiny"] and checkpoint.config.family is COSYVOICE_300M
    assert checkpoint.is_random


def test_a_seed_gives_the_same_files_and_another_seed_others(original: Path, tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "same", family="300m", seed=4)
    write_random_checkpoint(tmp_path / "other", family="300m", seed=5)
    for name in ("llm.pt", "flow.pt", "hift.pt", "spk2info.pt"):
        data = (original / name).read_bytes()
        assert (tmp_path / "same" / name).read_bytes() == data != (tmp_path / "other" / name).read_bytes()


def test_the_files_tell_which_model_it_is(model: Path, tmp_path: Path) -> None:
    """CosyVoice2 had a file of settings with the same name for some months."""
    for i, name in enumerate(("CosyVoice-BlankEN", "speech_tokenizer_v2.onnx", "cosyvoice2.yaml")):
        other = tmp_path / str(i)
        other.mkdir()
        (other / "cosyvoice.yaml").touch()
        assert is_first_generation(other)
        (other / name).touch()
        assert not is_first_generation(other), name
    (model / "speech_tokenizer_v1.onnx").touch()
    (model / "llm.llm.fp16.zip").touch()
    assert is_first_generation(model)


def test_no_other_model_is_overwritten(original: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other model family"):
        write_random_checkpoint(original)
    write_random_checkpoint(tmp_path / "second")
    with pytest.raises(ConfigError, match="other model family"):
        write_random_checkpoint(tmp_path / "second", family="300m")


def tensors(file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        state = torch.load(model / file, weights_only=True)
        change(state)
        torch.save(state, model / file)

    return damage


def text(old: str, new: str) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        path = model / "cosyvoice.yaml"
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new))

    return damage


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda model: (model / "hift.pt").unlink(), "hift.pt is missing"),
        (lambda model: (model / "flow.pt").write_bytes(b"PK"), "flow.pt"),
        (lambda model: (model / "spk2info.pt").unlink(), "spk2info.pt is missing: there is no voice"),
        (lambda model: (model / "multilingual.tiktoken").write_text("aa"), "multilingual.tiktoken cannot be read"),
        (lambda model: (model / "campplus.onnx").write_bytes(b"x"), "campplus.onnx is not a usable ONNX file"),
        (text("sample_rate: 22050", "sample_rate: 24000"), "sample_rate is 24000 and should be 22050"),
        (text("input_frame_rate: 50", "input_frame_rate: 25"), "flow.input_frame_rate is 25 and should be 50"),
        (text("speech_token_size: 4096", "speech_token_size: 6561"), "token_size is 6561 and should be 4096"),
        (text("hop_len: 4", "hop_len: 2"), "hift.pt makes 128 samples of a frame, not 256"),
        (tensors("llm.pt", lambda state: state.pop("llm.after_norm.bias")), "1 tensors are missing: llm.after_norm"),
        (
            tensors("flow.pt", lambda state: state.update(more=torch.zeros(1))),
            "flow.pt: 1 tensors are not of CosyVoice-300M: more",
        ),
        (
            tensors("flow.pt", lambda state: state["encoder_proj.bias"].fill_(math.nan)),
            "flow.pt: 1 tensors hold values that are not finite: encoder_proj.bias",
        ),
        (
            tensors("llm.pt", lambda state: state.update({"llm_decoder.weight": torch.zeros(6564, 64)})),
            "llm.pt: llm_decoder.weight is 6564 and should be 4097",
        ),
    ],
)  # fmt: skip
def test_each_damage_is_a_line(model: Path, damage: Callable[[Path], object], problem: str) -> None:
    damage(model)
    found = check_model_directory(model)
    assert any(problem in line for line in found), found
    assert len(found) == 1, found


def test_loading_lists_every_problem_and_the_command_for_this_family(model: Path) -> None:
    (model / "hift.pt").unlink()
    (model / "llm.pt").unlink()
    (model / "random.json").unlink()
    with pytest.raises(EngineUnavailable) as refused:
        load_model_directory(model)
    message = str(refused.value)
    assert "is not a complete CosyVoice-300M model directory" in message
    assert "hift.pt is missing" in message and "llm.pt is missing" in message
    assert f"telephony-tts models pull {model} --family 300m fetches" in message


def test_exports_of_the_vocoder_load(model: Path, original: Path) -> None:
    """Older names of weight norm, and the prefix of a GAN checkpoint."""
    state = torch.load(original / "hift.pt", weights_only=True)
    old = {
        "generator."
        + name.replace(".parametrizations.weight.original0", ".weight_g").replace(
            ".parametrizations.weight.original1", ".weight_v"
        ): value
        for name, value in state.items()
    }
    torch.save(old, model / "hift.pt")
    assert check_model_directory(model) == []
    assert load_model_directory(model).hift.keys() == load_model_directory(original).hift.keys()
