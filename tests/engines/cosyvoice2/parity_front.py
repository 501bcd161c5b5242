"""Compares checkpoint sizes, prompt features, tokenizer and text rules with a directory of reference vectors."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from checkpoint_sizes import model_config
from parity_rows import EXACT, Arrays, Row, Skipped, Stage, error, guarded, measure, read_json, read_state
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import flow_outline, lm_outline, vocoder_outline
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import byte_letters
from telephony_tts.engines.cosyvoice2.checkpoint.weights import tensor_problems
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_FRAMES,
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_MELS,
    N_SPEECH_ROWS,
    N_SPEECH_TOKENS,
    SAMPLE_RATE_HZ,
    TOKENS_PER_S,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.file_names import TOKENIZER_DIR
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import UPSTREAM_FRAMES, UPSTREAM_SAMPLES
from telephony_tts.engines.cosyvoice2.text import text_rules
from telephony_tts.engines.cosyvoice2.text.tokenizer import SPECIAL_TOKENS, TextTokenizer
from telephony_tts.engines.cosyvoice2.voices.features import centred, flow_mel, kaldi_fbank, resample, whisper_mel

LOG_TOLERANCE, WAVE_TOLERANCE = 1e-4, 1e-5


def check_golden(directory: Path) -> Iterator[Row]:
    for title, check in (
        ("constants", check_constants),
        ("sizes", check_sizes),
        ("features", check_features),
        ("tokenizer", check_tokenizer),
        ("text rules", check_text),
    ):
        yield from guarded(title, check(directory))


# ------------------------------------------------------------------------------ sizes


def check_constants(directory: Path) -> Iterator[Row]:
    """Constants of every CosyVoice2, on which this engine relies."""
    found = read_json(directory / "tiny_config.json")
    given: dict[str, object] = {
        "sample_rate": SAMPLE_RATE_HZ,
        "token_frame_rate": TOKENS_PER_S,
        "token_mel_ratio": FRAMES_PER_TOKEN,
        "pre_lookahead_len": LOOKAHEAD_TOKENS,
        "chunk_size_tokens": BLOCK_TOKENS,
        "llm.speech_token_size": N_SPEECH_TOKENS,
        "llm.speech_head_size": N_SPEECH_ROWS,
        "llm.hidden_act": "silu",
        "flow.vocab_size": N_SPEECH_TOKENS,
        "flow.output_size": N_MELS,
        "flow.encoder.static_chunk_size": BLOCK_TOKENS,
        "flow.encoder.upsample_stride": FRAMES_PER_TOKEN,
        "flow.cfm.solver": "euler",
        "flow.cfm.t_scheduler": "cosine",
        "flow.estimator.static_chunk_size": BLOCK_FRAMES,
        "flow.estimator.act_fn": "gelu",
        "hift.in_channels": N_MELS,
        "hift.sampling_rate": SAMPLE_RATE_HZ,
        "streaming.mel_cache_len": UPSTREAM_FRAMES,
        "streaming.source_cache_len": UPSTREAM_SAMPLES,
    }
    said = {path: value for path in given if (value := at(found, path)) is not None}
    other = [f"{path} {value}" for path, value in said.items() if value != given[path]]
    yield Stage(", ".join(["constants", *other]), float(len(other)), EXACT)


def at(settings: Any, path: str) -> Any:
    """The value at "a.b.c", None if it is not set."""
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def check_sizes(directory: Path) -> Iterator[Row]:
    """The sizes that are read from the tensors must give exactly the names and shapes of the files."""
    states = read_states(directory)
    config = read_config(directory, states)
    lm, flow, hift = states["llm.pt"], states["flow.pt"], states["hift.pt"]
    outlines = {
        "llm.pt": lm_outline(config.lm, lm),
        "flow.pt": flow_outline(config.flow_encoder, config.flow_decoder, flow),
        "hift.pt": vocoder_outline(config.vocoder, hift),
    }
    for name, outline in outlines.items():
        problems = tensor_problems(outline, states[name])
        yield Stage("; ".join([f"sizes of {name}", *problems]), float(len(problems)), EXACT)


def read_states(directory: Path) -> dict[str, dict[str, Tensor]]:
    return {f"{name}.pt": read_state(directory / f"tiny_{name}.pt") for name in ("llm", "flow", "hift")}


def read_config(directory: Path, states: Mapping[str, Mapping[str, Tensor]]) -> ModelConfig:
    """`tiny_config.json` has the settings of cosyvoice2.yaml and of the tokenizer's config.json in other places."""
    found: dict[str, Any] = read_json(directory / "tiny_config.json")
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


def check_features(directory: Path) -> Iterator[Row]:
    want = Arrays(directory / "features.npz")

    def resampled(given: str, expected: str, from_hz: int, to_hz: int) -> float:
        """Compares with all expected samples, which may be only the first ones of the signal."""
        reference = want[expected][0]
        return error(resample(want[given][0].float(), from_hz, to_hz)[: len(reference)], reference)

    def log_mel() -> float:
        return error(flow_mel(want["wav24"][0]), want["mel24"][0].T)

    def fbank() -> Tensor:
        return kaldi_fbank(want["wav16_from24"][0])

    def whisper() -> float:
        return error(whisper_mel(want["wav16_from24"][0]), want["whisper_logmel128"][0])

    to_48 = next((name for name in want if name.startswith("wav48_from24")), "wav48_from24")
    in_441, out_441 = "wav441_to24_in", "wav441_to24_out"
    for title, compute, tolerance in (
        ("resample 24 to 16 kHz", lambda: resampled("wav24", "wav16_from24", 24_000, 16_000), WAVE_TOLERANCE),
        ("resample 24 to 48 kHz", lambda: resampled("wav24", to_48, 24_000, 48_000), WAVE_TOLERANCE),
        ("resample 44.1 to 24 kHz", lambda: resampled(in_441, out_441, 44_100, 24_000), WAVE_TOLERANCE),
        ("mel, 24 kHz", log_mel, LOG_TOLERANCE),
        ("Whisper mel", whisper, LOG_TOLERANCE),
        ("Kaldi fbank", lambda: error(fbank(), want["kaldi_fbank80"]), LOG_TOLERANCE),
        ("Kaldi fbank, centred", lambda: error(centred(fbank()), want["kaldi_fbank80_meansub"]), LOG_TOLERANCE),
    ):
        yield measure(title, compute, tolerance)


# -------------------------------------------------------------------------- tokenizer


def check_tokenizer(directory: Path) -> Iterator[Row]:
    """Uses the directory's vocabulary, else one that is made to give the reference's ids."""
    golden = read_json(directory / "tokenizer_ids.json")
    special: dict[str, int] = golden["special"]
    every: list[tuple[str, list[int]]] = [(text, ids) for text, ids in golden["encodings"]]
    encodings = every
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = directory / TOKENIZER_DIR
        if not (vocabulary / "merges.txt").is_file():
            vocabulary = Path(folder)
            encodings = write_vocabulary(vocabulary, min(special.values()), every)
        tokenizer = TextTokenizer(vocabulary)
    yield Stage("special tokens", float(len(set(tokenizer.special_ids.items()) ^ set(special.items()))), EXACT)
    if left_out := len(every) - len(encodings):
        yield Skipped(f"token ids of {left_out} texts", f"they need {TOKENIZER_DIR}/merges.txt")
    if not encodings:
        return
    n_wrong = sum(tokenizer.encode(text, SPECIAL_TOKENS) != ids for text, ids in encodings)
    yield Stage(f"token ids of {len(encodings)} texts", float(n_wrong), EXACT)


_UNITS = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)) + r"| ?[A-Za-z]+| ?[\U0001F000-\U0001FFFF]+|.", re.DOTALL)


def write_vocabulary(
    directory: Path, n_ids: int, encodings: list[tuple[str, list[int]]]
) -> list[tuple[str, list[int]]]:
    """A vocabulary in which words and characters have the reference's ids; returns the texts it can spell.

    A text whose ids do not fall on its words and characters one by one, or that gives one of them another id than a
    text before did, is another case: only the reference's own merges can tell how it is cut.
    """
    letters = byte_letters()
    vocabulary = {letter: i for i, letter in enumerate(letters.values())}
    whole: dict[str, int] = {}
    usable = []
    for text, ids in encodings:
        units = _UNITS.findall(text)
        if len(units) != len(ids):
            continue
        pairs = [
            ("".join(letters[byte] for byte in unit.encode()), number)
            for unit, number in zip(units, ids, strict=True)
            if unit not in SPECIAL_TOKENS
        ]
        named = dict(pairs)
        taken = {number: spelt for spelt, number in (vocabulary | whole).items()}
        if any((named | vocabulary | whole)[spelt] != number for spelt, number in pairs):
            continue
        if any(taken.get(number, spelt) != spelt for spelt, number in pairs):
            continue
        usable.append((text, ids))
        whole |= {spelt: number for spelt, number in named.items() if len(spelt) > 1}
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


Case = tuple[object, bool, Callable[[], object]]
"""The reference's text, whether the reference failed, and our text"""


def check_text(directory: Path) -> Iterator[Row]:
    """If the reference fails (`error`), our rules must not fail; their result is then not compared."""
    golden = read_json(directory / "text_frontend.json")
    rules: dict[str, Callable[[str], object]] = {
        "contains_chinese": text_rules.contains_chinese,
        "replace_corner_mark": text_rules.spell_corner_marks,
        "remove_bracket": text_rules.drop_brackets,
        "is_only_punctuation": text_rules.is_only_punctuation,
        "replace_blank": text_rules.drop_blanks,
        "spell_out_number": text_rules.spell_out_numbers,
    }
    if "split_paragraph" in golden:
        cuts = [(case["out"], failed(case), partial(paragraph, case)) for case in golden["split_paragraph"]]
        yield from judged("paragraphs", cuts)
    for name, texts in golden.get("utils", {}).items():
        if name not in rules:
            yield Skipped(f"text rule {name}", "this engine has none of that name")
            continue
        yield from judged(
            f"text rule {name}", [(want, is_failure(want), partial(rules[name], text)) for text, want in texts]
        )
    name = "text_normalize_without_wetext"
    if name in golden:
        normal = [(case["out"], failed(case), partial(normalized, case)) for case in golden[name]]
        yield from judged("normalized texts", normal)


def judged(title: str, cases: Sequence[Case]) -> Iterator[Row]:
    """Counts texts that differ from the reference, and texts on which both the reference and our rules fail."""
    common = [(want, ours) for want, fails, ours in cases if not fails]
    handled = [ours for _, fails, ours in cases if fails]
    if common:
        n_wrong = sum(answer(ours) != want for want, ours in common)
        yield Stage(f"{title}, {len(common)} cases", float(n_wrong), EXACT)
    if handled:
        n_wrong = sum(isinstance(answer(ours), Exception) for ours in handled)
        yield Stage(f"{title}, {len(handled)} that the reference fails on", float(n_wrong), EXACT)


def answer(ours: Callable[[], object]) -> object:
    try:
        return ours()
    except Exception as failure:
        return failure


def failed(case: dict[str, Any]) -> bool:
    return bool(case.get("error"))


def is_failure(want: object) -> bool:
    return isinstance(want, str) and want.startswith("!")


def n_stub_tokens(text: str) -> int:
    """The tokenizer with which the reference's English cases were made."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def paragraph(case: dict[str, Any]) -> list[str]:
    limits = case.get("kwargs", {})
    return text_rules.split_paragraph(
        case["text"],
        len if case["lang"] == "zh" else n_stub_tokens,
        case["lang"],
        limits.get("token_max_n", text_rules.MAX_PIECE),
        limits.get("token_min_n", text_rules.FULL_PIECE),
        limits.get("merge_len", text_rules.SHORT_PIECE),
        limits.get("comma_split", False),
    )


def normalized(case: dict[str, Any]) -> list[str] | str:
    if case["split"]:
        return text_rules.normalize(case["text"], n_stub_tokens, case["text_frontend"])
    text: str = case["text"]
    return text if not case["text_frontend"] or text_rules.has_control_tokens(text) else text_rules.spell(text)
