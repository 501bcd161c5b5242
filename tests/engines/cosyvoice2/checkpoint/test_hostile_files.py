"""Malicious files of a model directory and of voices: each is named, and the other files stay usable."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.sizes import (
    MAX_SETTINGS_BYTES,
    MAX_SETTINGS_NODES,
    read_settings,
    setting,
)
from telephony_tts.engines.cosyvoice2.checkpoint.standin_onnx import speaker_graph, token_graph
from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, load_model_directory
from telephony_tts.engines.cosyvoice2.voices.enrolment import ListedVoice, list_voices
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures, Recording, extract, open_graph
from telephony_tts.engines.cosyvoice2.voices.voice_store import FORMAT, VoiceStore, read_spk2info
from telephony_tts.runtime.errors import AudioError, ConfigError, EngineUnavailable, UnknownVoice

torch.set_num_threads(1)
DEEP = 100_000
LONG_NAME = "\U00020000" * 60
"""60 letters and 240 bytes"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path / "model", "tiny", seed=3)
    return tmp_path / "model"


def changed(path: Path, **tensors: object) -> None:
    """Replaces tensors of a .pt file by name; "__" in a name stands for "."."""
    state = torch.load(path, weights_only=True)
    torch.save({**state, **{name.replace("__", "."): value for name, value in tensors.items()}}, path)


# --------------------------------------------------------------------------- settings


@pytest.mark.parametrize("name", ["config.json", "vocab.json", "tokenizer_config.json"])
def test_json_that_is_nested_too_deeply_is_one_problem(directory: Path, name: str) -> None:
    (directory / "CosyVoice-BlankEN" / name).write_text('{"a":' + "[" * DEEP + "]" * DEEP + "}")
    (problem,) = check_model_directory(directory)
    assert name in problem and "damaged" in problem and len(problem) < 200


def test_loading_names_a_nested_config_too(directory: Path) -> None:
    (directory / "CosyVoice-BlankEN" / "config.json").write_text("[" * DEEP + "]" * DEEP)
    with pytest.raises(EngineUnavailable, match=r"config\.json cannot be read.*nested too deeply"):
        load_model_directory(directory)


@pytest.mark.parametrize("name", ["config.json", "../cosyvoice2.yaml"])
def test_settings_that_are_too_large_are_not_read(directory: Path, name: str) -> None:
    path = directory / "CosyVoice-BlankEN" / name
    path.write_text(path.read_text() + " " * MAX_SETTINGS_BYTES)
    (problem,) = check_model_directory(directory)
    assert "bytes and should have at most 200000" in problem


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a {x: *a}", "inside the value"),
        ("a: &a [1, *a]", "inside the value"),
        ("a: !new:x &a\n  b: [*a]", "inside the value"),
        (BOMB, f"more than {MAX_SETTINGS_NODES} values"),
        ("a: [" + "1," * MAX_SETTINGS_NODES + "]", f"more than {MAX_SETTINGS_NODES} values"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: !!bool x", "cannot be read"),
        ("a: !!timestamp x", "cannot be read"),
        ("a: " + "1:" * 300 + "1.0", "cannot be read"),
    ],
    ids=lambda value: value[:12],
)
def test_yaml_that_would_take_for_ever_is_one_problem(directory: Path, text: str, words: str) -> None:
    path = directory / "cosyvoice2.yaml"
    path.write_text(f"{path.read_text()}\n{text}\n")
    (problem,) = check_model_directory(directory)
    assert problem.startswith("cosyvoice2.yaml: cannot be read") and words in problem and "\n" not in problem
    assert len(problem) < 400


def test_small_aliases_are_read_as_values(tmp_path: Path) -> None:
    path = tmp_path / "cosyvoice2.yaml"
    path.write_text("rows: &rows [1, 3, 5]\nall: [*rows, *rows]\nmore: &more {a: 1}\nboth: {<<: *more, b: *rows}")
    settings = read_settings(path)
    assert settings["all"] == [[1, 3, 5], [1, 3, 5]] and settings["both"] == {"a": 1, "b": [1, 3, 5]}


def test_a_product_of_many_factors_is_not_computed(tmp_path: Path) -> None:
    path = tmp_path / "cosyvoice2.yaml"
    path.write_text(f"a: {'9' * 4000}\nfour: <a> * <a> * <a> * <a>\nmany: {'<a> * ' * 10_000}<a>")
    settings = read_settings(path)
    assert settings["four"] == settings["a"] ** 4 and isinstance(settings["many"], str)


@pytest.mark.parametrize(
    ("value", "default"),
    [(math.inf, 1), (math.inf, 1.0), (math.nan, 1.0), ([], (5, 15)), ({1: 2}, (5, 15)), ([[]], (1,)), ([1] * 9999, 1)],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_named_in_one_line(value: object, default: object) -> None:
    with pytest.raises(ValueError, match=r"^a\.b is ") as caught:
        setting({"a": {"b": value}}, "a.b", default)
    assert len(str(caught.value)) < 200


# ---------------------------------------------------------------------------- weights


@pytest.mark.slow
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("file", "tensor"),
    [
        ("llm.pt", "llm.model.model.norm.weight"),
        ("flow.pt", "encoder.after_norm.bias"),
        ("hift.pt", "conv_pre.bias"),
    ],
)
def test_weights_that_are_not_finite_are_named_by_the_check(
    directory: Path, file: str, tensor: str, bad: float
) -> None:
    state = torch.load(directory / file, weights_only=True)
    state[tensor].view(-1)[3] = bad
    torch.save(state, directory / file)
    assert check_model_directory(directory) == [f"{file}: 1 tensors hold values that are not finite: {tensor}"]
    load_model_directory(directory)  # loading does not look for them


def test_unused_tensors_may_hold_anything(directory: Path) -> None:
    state = torch.load(directory / "llm.pt", weights_only=True)
    changed(directory / "llm.pt", llm__model__lm_head__weight=state["llm.model.lm_head.weight"] * math.nan)
    assert check_model_directory(directory) == []


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    "value",
    [
        torch.empty(80, device="meta"),
        torch.zeros(80).to_sparse(),
        torch.zeros(1).expand(80),
        torch.zeros(80, dtype=torch.complex64),
    ],
    ids=["meta", "sparse", "repeated", "complex"],
)
def test_tensors_without_numbers_are_named(directory: Path, value: Tensor) -> None:
    changed(directory / "flow.pt", encoder_proj__bias=value)
    expected = ["flow.pt: 1 tensors do not hold plain numbers: encoder_proj.bias"]
    assert check_model_directory(directory) == expected
    with pytest.raises(EngineUnavailable, match="not hold plain numbers"):
        load_model_directory(directory)


def test_a_folded_weight_of_integers_is_foreign_and_raises_nothing(directory: Path) -> None:
    changed(directory / "hift.pt", conv_pre__weight=torch.ones(3, 3, 3, dtype=torch.int32))
    assert check_model_directory(directory) == ["hift.pt: 1 tensors are not of CosyVoice2: conv_pre.weight"]


def test_an_impossibly_large_index_is_named(directory: Path) -> None:
    changed(directory / "llm.pt", llm__model__model__layers__99999999999__x=torch.zeros(1))
    (problem,) = check_model_directory(directory)
    assert problem.startswith("llm.pt: a tensor has the index 99999999999")


# ----------------------------------------------------------------------------- voices


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transcript": 5}, "the transcript is a int"),
        ({"transcript": "a\ud800"}, "should be text in Unicode"),
        ({"transcript_ids": (1, 2.0)}, "ids of the transcript"),
        ({"transcript_ids": (True,)}, "ids of the transcript"),
        ({"transcript_ids": (-1,)}, "ids of the transcript"),
        ({"transcript_ids": (1 << 31,)}, "ids of the transcript"),
        ({"provenance": [1]}, "the provenance"),
        ({"provenance": {"source": 5}}, "the provenance"),
        ({"mel": torch.empty(174, 80, device="meta")}, "plain numbers"),
        ({"speech_tokens": torch.zeros(751, dtype=torch.int64), "mel": torch.zeros(1502, 80)}, "lasts 30.04 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_features_of_a_wrong_type_are_reported(features: PromptFeatures, change: dict[str, Any], words: str) -> None:
    (problem,) = replace(features, **change).problems()
    assert words in problem


def test_a_prompt_of_thirty_seconds_is_accepted(features: PromptFeatures) -> None:
    longest = replace(features, speech_tokens=torch.zeros(750, dtype=torch.int64), mel=torch.zeros(1500, 80))
    assert longest.problems() == []


def voice_file(path: Path, features: PromptFeatures, about: object = None, **tensors: Tensor) -> None:
    """A voice file as `VoiceStore` writes it, except for the given parts. `about` may be JSON already."""
    said = {"format": FORMAT, "transcript": "", "provenance": {}}
    if isinstance(about, dict):
        said |= about
    there = {
        "speech_tokens": features.speech_tokens.int(),
        "mel": features.mel,
        "embedding": features.embedding,
        "transcript_ids": torch.zeros(0, dtype=torch.int32),
    }
    save_file({**there, **tensors}, path, {"voice": about if isinstance(about, str) else json.dumps(said)})


@pytest.mark.parametrize(
    ("about", "tensors", "words"),
    [
        ({}, {"mel": torch.zeros(173, 80)}, r"the mel is \[173, 80\]"),
        ({}, {"embedding": torch.full((192,), math.nan)}, "embedding is not finite"),
        ({}, {"speech_tokens": torch.full((87,), math.inf)}, r"not all in 0\.\.6560"),
        ({}, {"mel": torch.zeros(174, 80, dtype=torch.complex64)}, "mel does not hold plain numbers"),
        ({}, {"transcript_ids": torch.tensor([0.5])}, "ids of the transcript"),
        ({"transcript": 5}, {}, "the transcript is a int"),
        ({"provenance": [1]}, {}, "the provenance"),
        ({"format": {"a": [1] * 5000}}, {}, "its format is"),
        ("[" * DEEP + "]" * DEEP, {}, "nested too deeply"),
        ('{"format": "' + FORMAT + '", "x": ' + "[" * DEEP + "]" * DEEP + "}", {}, "nested too deeply"),
        ("[1]", {}, "its format is None"),
        ('{"format": "' + FORMAT + '"}', {}, "it has no 'transcript'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_damaged_voice_leaves_the_others_usable(
    tmp_path: Path, features: PromptFeatures, about: object, tensors: dict[str, Tensor], words: str
) -> None:
    store = VoiceStore(tmp_path)
    store.save("good", features)
    voice_file(tmp_path / "bad.safetensors", features, about, **tensors)
    with pytest.raises(EngineUnavailable, match=words) as caught:
        store.load("bad")
    assert "voices add bad" in caught.value.message and len(caught.value.message) < 600
    bad, good = list_voices(None, store)
    assert bad.features is None and bad.problem == caught.value.message
    assert good.features is not None and good.name == "good"


def test_a_good_voice_file_is_read(tmp_path: Path, features: PromptFeatures) -> None:
    voice_file(tmp_path / "a.safetensors", features, {"transcript": "x"}, transcript_ids=torch.tensor([1, 2]))
    assert VoiceStore(tmp_path).load("a").transcript_ids == (1, 2)


def test_a_description_cannot_drive_the_terminal(features: PromptFeatures) -> None:
    listed = ListedVoice("a", replace(features, provenance={"source": "a\x1b[2J.wav\n"}))
    assert listed.description == "zero-shot, 3.5 s of a?[2J.wav?"


def prompted(features: PromptFeatures, **change: object) -> dict[str, object]:
    there = {
        "prompt_text": torch.tensor([[5, 6, 7]]).int(),
        "flow_prompt_speech_token": features.speech_tokens.int()[None],
        "flow_prompt_speech_token_len": torch.tensor([87]).int(),
        "prompt_speech_feat": features.mel[None],
        "flow_embedding": features.embedding[None],
    }
    return {**there, **change}


def third_party(features: PromptFeatures, text: object) -> dict[str, object]:
    return {
        "speech_token": features.speech_tokens[None],
        "speech_feat": features.mel[None],
        "embedding": features.embedding[None],
        "prompt_text": text,
    }


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda f: {"embedding": torch.empty(1, 192, device="meta")}, "plain numbers"),
        (lambda f: {"embedding": f.embedding[None].to_sparse()}, "plain numbers"),
        (lambda f: {"embedding": torch.ones(1, 1).expand(1, 1 << 40)}, "plain numbers"),
        (lambda f: {"embedding": torch.ones(1, 192, dtype=torch.complex64)}, "plain numbers"),
        (lambda f: prompted(f, flow_prompt_speech_token_len=torch.tensor([math.inf])), "_len is not a length"),
        (lambda f: prompted(f, flow_prompt_speech_token_len=torch.tensor([math.nan])), "_len is not a length"),
        (lambda f: prompted(f, flow_prompt_speech_token_len=torch.empty(1, device="meta")), "_len is not a length"),
        (lambda f: prompted(f, prompt_text=torch.tensor([[0.5]])), "ids of the transcript"),
        (lambda f: prompted(f, prompt_text=torch.tensor([[1 << 40]])), "ids of the transcript"),
        (lambda f: third_party(f, 5), "prompt_text is a int"),
        (lambda f: third_party(f, "a\ud800"), "Unicode"),
        (lambda f: {f"key {n}": 0 for n in range(1000)}, "known layouts"),
    ],
)
def test_a_malicious_speaker_leaves_the_others_usable(
    tmp_path: Path, features: PromptFeatures, bad: Callable[[PromptFeatures], object], words: str
) -> None:
    good = prompted(features, flow_prompt_speech_token_len=torch.tensor([2**62]))
    torch.save({"bad": bad(features), "good": good}, tmp_path / "spk2info.pt")
    voices, (problem,) = read_spk2info(tmp_path / "spk2info.pt")
    assert list(voices) == ["good"] and voices["good"].speech_tokens.numel() == 87
    assert problem.startswith("bad: ") and words in problem and len(problem) < 400


@pytest.mark.parametrize("name", [5, "", "a\x1b[2J", "a\nb", ("a", "b")], ids=repr)
def test_a_speaker_with_an_invalid_name_is_a_problem(tmp_path: Path, features: PromptFeatures, name: object) -> None:
    entry = {"embedding": features.embedding[None]}
    torch.save({name: entry, "good": entry}, tmp_path / "spk2info.pt")
    voices, (problem,) = read_spk2info(tmp_path / "spk2info.pt")
    assert list(voices) == ["good"] and "is not a name" in problem and problem.isprintable()


def test_a_name_that_is_too_long_for_a_file_is_refused(tmp_path: Path, features: PromptFeatures) -> None:
    store = VoiceStore(tmp_path)
    for act in (lambda: store.check_free(LONG_NAME), lambda: store.save(LONG_NAME, features)):
        with pytest.raises(ConfigError, match=r"is not a valid name for a voice.*200 bytes"):
            act()
    for refused in (store.load, store.remove):
        with pytest.raises(UnknownVoice):
            refused(LONG_NAME)
    longest = "\U00020000" * 50
    store.check_free(longest)
    store.save(longest, features)
    assert store.names() == [longest]


# ----------------------------------------------------------------------------- graphs


def test_a_network_that_fails_is_named_with_its_file(tmp_path: Path) -> None:
    wrong = speaker_graph(0).replace(b"projection", b"projectiom", 1)  # a name that no node outputs
    (tmp_path / "tokens.onnx").write_bytes(token_graph(0))
    graph = open_graph(tmp_path / "tokens.onnx", 2)
    with pytest.raises(EngineUnavailable, match=r"tokens\.onnx cannot be run.*models pull") as caught:
        graph.run(None, {"feats": np.zeros((1, 3, 8), np.float32), "feats_length": np.zeros(1, np.int32)})
    assert "\n" not in caught.value.message and len(caught.value.message) < 600
    (tmp_path / "speaker.onnx").write_bytes(wrong)
    with pytest.raises(EngineUnavailable, match=r"speaker\.onnx is not a usable ONNX file"):
        open_graph(tmp_path / "speaker.onnx", 1)


class Odd:
    """A network with one or two inputs that gives the given outputs."""

    def __init__(self, n_inputs: int, outputs: list[object]) -> None:
        self._n_inputs, self._outputs = n_inputs, outputs

    def get_inputs(self) -> list[Any]:
        return [type("Input", (), {"name": name})() for name in "ab"[: self._n_inputs]]

    def run(self, _names: object, _feed: object) -> Any:
        return self._outputs


@pytest.mark.parametrize(
    ("outputs", "error", "words"),
    [
        ([], EngineUnavailable, "does not give an array of numbers"),
        ([[1]], EngineUnavailable, "does not give an array of numbers"),
        ([np.array(["a"])], EngineUnavailable, "does not give an array of numbers"),
        ([np.array([math.nan], np.float32)], AudioError, "not finite"),
        ([np.zeros(0, np.int32)], AudioError, "speech tokenizer gave no tokens"),
    ],
)
def test_unusable_outputs_do_not_become_a_voice(
    outputs: list[object], error: type[Exception], words: str
) -> None:
    hum = 0.1 * torch.sin(torch.arange(4 * 24_000) / 20)
    with pytest.raises(error, match=words):
        extract(Recording(hum, 24_000), Odd(1, [np.ones((1, 192), np.float32)]), Odd(2, outputs))


def test_the_check_names_a_speaker_that_is_not_usable(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    path = tmp_path / "spk2info.pt"
    speakers = torch.load(path, weights_only=True)
    torch.save({**speakers, "odd": {"embedding": torch.zeros(1, 192)}}, path)
    (problem,) = [line for line in check_model_directory(tmp_path) if "spk2info.pt" in line]
    assert "odd: the embedding is not finite or all zero" in problem and "speaks without this voice" in problem
