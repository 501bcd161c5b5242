"""The folders of `models convert`: their tensors, their tokenizer, and how they appear, stay and are replaced.

`test_converted_in_transformers` runs them in the library whose layout they have.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from telephony_tts.cli.main import main
from telephony_tts.engines.cosyvoice2.checkpoint import conversion
from telephony_tts.engines.cosyvoice2.checkpoint.conversion import Layout, convert, is_converted
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.model.config import EOS, N_SPEECH_ROWS
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

LAYOUTS: tuple[Layout, ...] = ("vllm", "hf")
both = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with both folders. Tests that write take a copy."""
    model = tmp_path_factory.mktemp("made")
    write_random_checkpoint(model)
    for layout in LAYOUTS:
        assert convert(model, layout, "float32").is_new
    return model


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(model: Path) -> set[str]:
    return set(os.listdir(model))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# ----------------------------------------------------------------------------- tensors


def test_the_speech_head_and_its_bias_are_those_of_the_model(made: Path) -> None:
    ours, theirs = torch.load(made / "llm.pt"), load_file(made / "vllm" / "model.safetensors")
    assert torch.equal(theirs["model.embed_tokens.weight"], ours["speech_embedding.weight"])
    assert torch.equal(theirs["lm_head.weight"], ours["llm_decoder.weight"])
    assert torch.equal(theirs["lm_head.bias"], ours["llm_decoder.bias"])
    settings = read(made / "vllm" / "config.json")
    assert settings["vocab_size"] == N_SPEECH_ROWS and settings["tie_word_embeddings"] is False
    assert settings["architectures"] == ["CosyVoice2ForCausalLM"] and settings["torch_dtype"] == "float32"


def test_only_speech_ids_can_be_drawn_from_the_joined_table(made: Path) -> None:
    ours, theirs = torch.load(made / "llm.pt"), load_file(made / "hf" / "model.safetensors")
    first = TextTokenizer(made / "CosyVoice-BlankEN").n_ids
    table, bias = theirs["model.embed_tokens.weight"], theirs["lm_head.bias"]
    assert torch.equal(table[:first], ours["llm.model.model.embed_tokens.weight"][:first])
    assert torch.equal(table[first : first + N_SPEECH_ROWS], ours["speech_embedding.weight"])
    assert torch.equal(table[first + N_SPEECH_ROWS :][:2], ours["llm_embedding.weight"])
    assert len(table) == len(bias) == len(theirs["lm_head.weight"]) == read(made / "hf" / "config.json")["vocab_size"]
    assert len(table) % 128 == 0
    speech = slice(first, first + N_SPEECH_ROWS)
    assert torch.equal(bias[speech], ours["llm_decoder.bias"])
    assert bias.isfinite().nonzero().flatten().tolist() == list(range(first, first + N_SPEECH_ROWS))
    assert read(made / "hf" / "generation_config.json")["eos_token_id"] == [first + EOS + i for i in range(3)]


@both
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_stored_in_the_precision_that_was_asked_for(model: Path, layout: Layout, dtype: str) -> None:
    before = load_file(model / layout / "model.safetensors")
    assert main(["models", "convert", "--to", layout, str(model), "--dtype", dtype]) == 0
    after = load_file(model / layout / "model.safetensors")
    assert {str(tensor.dtype) for tensor in after.values()} == {f"torch.{dtype}"}
    assert all(torch.equal(after[name], before[name].to(after[name].dtype)) for name in before)
    assert read(model / layout / "config.json")["torch_dtype"] == dtype


def test_bfloat16_is_the_default(model: Path) -> None:
    assert main(["models", "convert", "--to", "vllm", str(model)]) == 0
    assert read(model / "vllm" / "config.json")["torch_dtype"] == "bfloat16"


# --------------------------------------------------------------------------- tokenizer


def test_the_tokenizer_gives_our_ids_and_one_for_each_new_row(made: Path) -> None:
    ours, theirs = TextTokenizer(made / "CosyVoice-BlankEN"), Tokenizer.from_file(str(made / "hf" / "tokenizer.json"))
    for text in ("Hello, 42 orders today.", "你好，请问您是谁？", "it's\n naïve  spaces\t!", ""):
        assert theirs.encode(text).ids == ours.encode(text)
    first = ours.n_ids
    wanted = {"<|s_0|>": 0, "<|s_6560|>": 6560, "<|eos1|>": 6561, "<|eos3|>": 6563}
    wanted |= {"<|sos|>": 6564, "<|task_id|>": 6565}
    assert {token: theirs.token_to_id(token) - first for token in wanted} == wanted
    prompt = theirs.encode("<|sos|>Hello today.<|task_id|><|s_17|>").ids
    assert prompt == [first + 6564, *ours.encode("Hello today."), first + 6565, first + 17]
    assert theirs.encode("[laughter]").ids == [ours.special_ids["[laughter]"]]


def test_a_vocabulary_with_a_gap_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model / "CosyVoice-BlankEN" / "vocab.json"
    vocabulary = read(path)
    last = max(vocabulary, key=lambda word: int(vocabulary[word]))
    vocabulary[last] += 7
    path.write_text(json.dumps(vocabulary), encoding="utf-8")
    (model / "CosyVoice-BlankEN" / "tokenizer_config.json").unlink()
    before = contents(model / "hf")
    assert main(["models", "convert", "--to", "hf", str(model)]) != 0
    assert "the vocabulary has gaps" in capsys.readouterr().err
    assert contents(model / "hf") == before and not {".hf.part", ".hf.old"} & names(model)


# ------------------------------------------------------------------------------ folder


@both
def test_a_folder_of_the_same_model_is_left_alone(
    model: Path, layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (model / layout).stat().st_ino, contents(model / layout)
    assert main(["models", "convert", "--to", layout, str(model), "--dtype", "float32"]) == 0
    assert ((model / layout).stat().st_ino, contents(model / layout)) == before
    told = capsys.readouterr()
    assert told.out.startswith(f"{model / layout}: is there already, from this model (float32, ")
    assert "random weights" in told.err


@both
def test_a_folder_of_other_weights_is_replaced(
    model: Path, layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.load(model / "llm.pt")
    state["llm_decoder.bias"][5] = 4.25
    torch.save(state, model / "llm.pt")
    assert main(["models", "convert", "--to", layout, str(model), "--dtype", "float32"]) == 0
    assert ": written (float32, " in capsys.readouterr().out
    assert 4.25 in load_file(model / layout / "model.safetensors")["lm_head.bias"]
    assert names(model) == {*names(model), layout} and not {f".{layout}.part", f".{layout}.old"} & names(model)


def test_whether_a_folder_is_of_the_present_weights(model: Path) -> None:
    assert is_converted(model, "vllm") and is_converted(model, "hf")
    with (model / "CosyVoice-BlankEN" / "merges.txt").open("a", encoding="utf-8") as merges:
        merges.write("a b\n")
    assert is_converted(model, "vllm") and not is_converted(model, "hf"), "only one has a tokenizer"
    convert(model, "vllm", "float16", replace=True)
    assert is_converted(model, "vllm"), "in any precision"
    (model / "vllm" / "model.safetensors").unlink()
    assert not is_converted(model, "vllm")
    shutil.rmtree(model / "vllm")
    assert not is_converted(model, "vllm")


@pytest.mark.parametrize("name", ["model.safetensors", "conversion.json", "config.json"])
def test_a_damaged_folder_is_written_again(model: Path, name: str) -> None:
    right = contents(model / "vllm")
    os.truncate(model / "vllm" / name, 30)
    if name == "conversion.json":
        with pytest.raises(ValueError):
            read(model / "vllm" / name)
    assert convert(model, "vllm", "float32").is_new
    assert contents(model / "vllm") == right


def test_a_folder_of_another_program_is_replaced_only_when_asked(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "vllm" / "conversion.json").unlink()
    theirs = contents(model / "vllm")
    convert_it = ["models", "convert", "--to", "vllm", str(model)]
    assert main(convert_it) == 2
    assert f"{model / 'vllm'} was not made by telephony-tts: give --replace" in capsys.readouterr().err
    assert contents(model / "vllm") == theirs
    assert main([*convert_it, "--replace"]) == 0
    assert read(model / "vllm" / "conversion.json")["dtype"] == "bfloat16"


def test_a_link_is_replaced_and_what_it_points_to_stays(model: Path) -> None:
    (model / "vllm").rename(model.parent / "elsewhere")
    (model / "vllm").symlink_to(model.parent / "elsewhere")
    kept = contents(model.parent / "elsewhere")
    with pytest.raises(ConfigError, match="was not made by"):
        convert(model, "vllm")
    assert convert(model, "vllm", replace=True).is_new
    assert not (model / "vllm").is_symlink() and contents(model.parent / "elsewhere") == kept


@both
def test_a_full_disk_leaves_what_was_there(
    model: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, right = names(model), contents(model / layout)

    def half_written(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(conversion, "save_file", half_written)
    assert main(["models", "convert", "--to", layout, str(model), "--dtype", "float16"]) == 2
    assert f"{model / layout} cannot be written (No space left on device)" in capsys.readouterr().err
    assert names(model) == before and contents(model / layout) == right


def test_a_folder_that_cannot_be_put_in_its_place_leaves_the_old_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, right = names(model), contents(model / "vllm")
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name == ".vllm.part":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ConfigError, match="Input/output error"):
        convert(model, "vllm", "float16")
    assert names(model) == before and contents(model / "vllm") == right


def test_what_a_killed_conversion_left_is_removed(model: Path) -> None:
    shutil.copytree(model / "vllm", model / ".vllm.part")
    shutil.copytree(model / "vllm", model / ".vllm.old")
    shutil.rmtree(model / "vllm")
    assert convert(model, "vllm").is_new
    assert not {".vllm.part", ".vllm.old"} & names(model)


def test_a_second_conversion_at_the_same_time_is_refused(model: Path) -> None:
    held = os.open(model, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process converts"):
            convert(model, "vllm", "float16")
    finally:
        os.close(held)
    assert convert(model, "vllm", "float16").is_new


def test_other_users_can_read_what_they_could_read_before(model: Path) -> None:
    (model / "llm.pt").chmod(0o640)
    convert(model, "vllm", "float16")
    assert {path.stat().st_mode & 0o777 for path in (model / "vllm").iterdir()} == {0o640}


# ------------------------------------------------------------------------------- inputs


def test_a_model_without_a_qwen2_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_random_checkpoint(tmp_path / "m", family="300m")
    before = names(tmp_path / "m")
    assert main(["models", "convert", "--to", "vllm", str(tmp_path / "m")]) == 2
    assert "is a CosyVoice-300M, which has no Qwen2" in capsys.readouterr().err
    assert names(tmp_path / "m") == before


def test_an_incomplete_model_is_refused_with_all_its_problems(model: Path, tmp_path: Path) -> None:
    (model / "flow.pt").unlink()
    with pytest.raises(EngineUnavailable, match=r"flow\.pt is missing"):
        convert(model, "vllm", "float16")
    with pytest.raises(EngineUnavailable, match="there is no such directory"):
        convert(tmp_path / "none", "hf")


def test_text_ids_without_a_row_are_refused(model: Path) -> None:
    state = torch.load(model / "llm.pt")
    for name in ("llm.model.model.embed_tokens.weight", "llm.model.lm_head.weight"):
        state[name] = state[name][:300].clone()
    torch.save(state, model / "llm.pt")
    with pytest.raises(ConfigError, match="300 text rows for"):
        convert(model, "hf")
    assert convert(model, "vllm").is_new, "that layout has no text rows"
