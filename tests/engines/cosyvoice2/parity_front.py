"""Checkpoint sizes, prompt features, tokenizer and text rules against a directory of reference vectors."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2 import text_rules
from telephony_tts.engines.cosyvoice2.features import centred, flow_mel, kaldi_fbank, resample, whisper_mel
from telephony_tts.engines.cosyvoice2.layout import LM_HEAD, checkpoint_shapes
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.random_checkpoint import byte_letters
from telephony_tts.engines.cosyvoice2.sizes import model_config
from telephony_tts.engines.cosyvoice2.tokenizer import SPECIAL_TOKENS, TextTokenizer
from telephony_tts.engines.cosyvoice2.weights import TOKENIZER_DIR, tensor_problems

Check = tuple[str, float, float]
"""Stage, largest error (or number of differences), tolerance."""
LOG_TOLERANCE, WAVE_TOLERANCE, EXACT = 1e-4, 1e-5, 0.0


def check_golden(directory: Path) -> Iterator[Check]:
    yield from check_sizes(directory)
    yield from check_features(directory)
    yield from check_tokenizer(directory)
    yield from check_text(directory)


# ------------------------------------------------------------------------------ sizes


def check_sizes(directory: Path) -> Iterator[Check]:
    """Sizes read from the tensors give the very names and shapes of the files."""
    states = read_states(directory)
    shapes = checkpoint_shapes(read_config(directory, states))
    for name, state in states.items():
        problems = tensor_problems({key: value for key, value in state.items() if key != LM_HEAD}, shapes[name])
        yield f"sizes of {name}", float(len(problems)), EXACT


def read_states(directory: Path) -> dict[str, dict[str, Tensor]]:
    return {
        f"{name}.pt": torch.load(directory / f"tiny_{name}.pt", weights_only=True) for name in ("llm", "flow", "hift")
    }


def read_config(directory: Path, states: Mapping[str, Mapping[str, Tensor]]) -> ModelConfig:
    """`tiny_config.json` says what cosyvoice2.yaml and the tokenizer's config.json say, in other places."""
    found: dict[str, Any] = json.loads((directory / "tiny_config.json").read_text(encoding="utf-8"))
    flow, hift = found["flow"], found["hift"]
    settings = {
        "llm": {"mix_ratio": found["llm"]["mix_ratio"], "sampling": found["sampling"]},
        "flow": {
            "encoder": flow["encoder"],
            "decoder": {"estimator": flow["estimator"], "cfm_params": {"content": flow["cfm"]}},
        },
        "hift": {**hift, "istft_params": {"hop_len": hift["istft_hop_len"]}},
    }
    return model_config(states["llm.pt"], states["flow.pt"], states["hift.pt"], settings, found["llm"])


# --------------------------------------------------------------------------- features


def check_features(directory: Path) -> Iterator[Check]:
    with np.load(directory / "features.npz") as file:
        want = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}
    wave24, wave16 = want["wav24"][0], want["wav16_from24"][0]
    wave48 = want["wav48_from24_first2000"][0]
    yield "resample 24 to 16 kHz", error(resample(wave24, 24_000, 16_000), wave16), WAVE_TOLERANCE
    yield "resample 24 to 48 kHz", error(resample(wave24, 24_000, 48_000)[: len(wave48)], wave48), WAVE_TOLERANCE
    got = resample(want["wav441_to24_in"][0], 44_100, 24_000)
    yield "resample 44.1 to 24 kHz", error(got, want["wav441_to24_out"][0]), WAVE_TOLERANCE
    yield "mel, 24 kHz", error(flow_mel(wave24), want["mel24"][0].T), LOG_TOLERANCE
    yield "Whisper mel", error(whisper_mel(wave16), want["whisper_logmel128"][0]), LOG_TOLERANCE
    fbank = kaldi_fbank(wave16)
    yield "Kaldi fbank", error(fbank, want["kaldi_fbank80"]), LOG_TOLERANCE
    yield "Kaldi fbank, centred", error(centred(fbank), want["kaldi_fbank80_meansub"]), LOG_TOLERANCE


def error(got: Tensor, want: Tensor) -> float:
    if got.shape != want.shape:
        return float("inf")
    difference = float((got.double() - want.double()).abs().max()) if got.numel() else 0.0
    return difference if difference == difference else float("inf")


# -------------------------------------------------------------------------- tokenizer


def check_tokenizer(directory: Path) -> Iterator[Check]:
    """With the directory's vocabulary, else with one made so that the reference's ids can come out."""
    golden = json.loads((directory / "tokenizer_ids.json").read_text(encoding="utf-8"))
    special: dict[str, int] = golden["special"]
    encodings: list[tuple[str, list[int]]] = [(text, ids) for text, ids in golden["encodings"]]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = directory / TOKENIZER_DIR
        if not (vocabulary / "merges.txt").is_file():
            vocabulary = Path(folder)
            encodings = write_vocabulary(vocabulary, min(special.values()), encodings)
        tokenizer = TextTokenizer(vocabulary)
    yield "special tokens", float(len(set(tokenizer.special_ids.items()) ^ set(special.items()))), EXACT
    n_wrong = sum(tokenizer.encode(text, allow_special=True) != ids for text, ids in encodings)
    yield f"token ids of {len(encodings)} texts", float(n_wrong), EXACT


_UNITS = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)) + r"| ?[A-Za-z]+| ?[\U0001F000-\U0001FFFF]+|.", re.DOTALL)


def write_vocabulary(
    directory: Path, n_ids: int, encodings: list[tuple[str, list[int]]]
) -> list[tuple[str, list[int]]]:
    """A vocabulary in which words and characters have the reference's ids; returns the texts it can spell."""
    letters = byte_letters()
    vocabulary = {letter: i for i, letter in enumerate(letters.values())}
    whole: dict[str, int] = {}
    usable = []
    for text, ids in encodings:
        units = _UNITS.findall(text)
        if len(units) != len(ids):
            continue
        usable.append((text, ids))
        for unit, number in zip(units, ids, strict=True):
            if unit not in SPECIAL_TOKENS and len(unit.encode()) > 1:
                whole["".join(letters[byte] for byte in unit.encode())] = number
    merges = []
    unused = iter(number for number in range(256, n_ids - 1) if number not in set(whole.values()))
    for spelt in whole:
        for i in range(1, len(spelt)):
            left, joined = spelt[:i], spelt[: i + 1]
            if joined not in vocabulary:
                vocabulary[joined] = whole[joined] if joined in whole else next(unused)
                merges.append(f"{left} {spelt[i]}")
    vocabulary.setdefault("the last one", n_ids - 1)
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
    return usable


# ------------------------------------------------------------------------------- text


def check_text(directory: Path) -> Iterator[Check]:
    """Where the reference fails (`error`), ours must not; what it says there is ours to choose."""
    golden = json.loads((directory / "text_frontend.json").read_text(encoding="utf-8"))
    cuts = [(case["out"], paragraph(case)) for case in golden["split_paragraph"]]
    yield f"paragraphs, {len(cuts)} cases", differences(cuts), EXACT
    rules: dict[str, Callable[[str], object]] = {
        "contains_chinese": text_rules.contains_chinese,
        "replace_corner_mark": text_rules.spell_corner_marks,
        "remove_bracket": text_rules.drop_brackets,
        "is_only_punctuation": text_rules.is_only_punctuation,
        "replace_blank": text_rules.drop_blanks,
        "spell_out_number": text_rules.spell_out_numbers,
    }
    for name, rule in rules.items():
        cases = [(None if is_failure(want) else want, rule(text)) for text, want in golden["utils"][name]]
        yield f"text rule {name}, {len(cases)} cases", differences(cases), EXACT
    normal = [(case["out"], normalized(case)) for case in golden["text_normalize_without_wetext"]]
    yield f"normalized texts, {len(normal)} cases", differences(normal), EXACT


def differences(cases: Sequence[tuple[object, object]]) -> float:
    return float(sum(want is not None and want != got for want, got in cases))


def is_failure(want: object) -> bool:
    return isinstance(want, str) and want.startswith("!")


def n_stub_tokens(text: str) -> int:
    """The tokenizer that the reference's English cases were made with."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def paragraph(case: dict[str, Any]) -> list[str]:
    limits = case["kwargs"]
    return text_rules.split_paragraph(
        case["text"],
        len if case["lang"] == "zh" else n_stub_tokens,
        case["lang"],
        limits["token_max_n"],
        limits["token_min_n"],
        limits["merge_len"],
        limits["comma_split"],
    )


def normalized(case: dict[str, Any]) -> list[str] | str:
    if case["split"]:
        return text_rules.normalize(case["text"], n_stub_tokens, case["text_frontend"])
    return text_rules.normalize_whole(case["text"], case["text_frontend"])
