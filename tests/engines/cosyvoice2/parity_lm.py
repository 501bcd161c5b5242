"""The language model, its rules and its sampling against reference vectors, of any sizes in the golden format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.generation import (
    BiStreamDecoding,
    Decoding,
    SentenceDecoding,
    whole_prompt,
)
from telephony_tts.engines.cosyvoice2.model.config import EOS, LmConfig, SamplingConfig
from telephony_tts.engines.cosyvoice2.model.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.sampling import Sampler, draw

Row = tuple[str, float, float]
"""Stage, largest error, tolerance."""
Vectors = dict[str, npt.NDArray[Any]]

HIDDEN_TOLERANCE = LOGITS_TOLERANCE = 1e-4
EXACT = 0.0


def read(directory: Path, name: str) -> Vectors:
    with np.load(directory / f"{name}.npz") as file:
        return dict(file)


def ids_of(array: npt.NDArray[Any]) -> list[int]:
    return [int(item) for item in array.reshape(-1)]


def largest(ours: Tensor, theirs: npt.NDArray[Any]) -> float:
    """Largest difference; two equal infinities differ by nothing, other shapes by infinity."""
    a, b = ours.double(), torch.from_numpy(theirs).double()
    if a.shape != b.shape:
        return float("inf")
    return float(torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(nan=float("inf")).max()) if a.numel() else 0.0


def mismatches(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """In how many places two sequences differ, missing and surplus ones included."""
    return float(sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs)))


def configs(directory: Path) -> tuple[LmConfig, SamplingConfig]:
    found = json.loads((directory / "tiny_config.json").read_text(encoding="utf-8"))
    llm, sampling = found["llm"], found["sampling"]
    lm = LmConfig(
        n_text_rows=llm["text_vocab_size"],
        d_model=llm["hidden_size"],
        n_layers=llm["num_hidden_layers"],
        n_heads=llm["num_attention_heads"],
        n_kv_heads=llm["num_key_value_heads"],
        d_ff=llm["intermediate_size"],
        norm_eps=llm["rms_norm_eps"],
        rope_theta=llm["rope_theta"],
        n_mix_text=llm["mix_ratio"][0],
        n_mix_speech=llm["mix_ratio"][1],
    )
    return lm, SamplingConfig(sampling["top_p"], sampling["top_k"], sampling["win_size"], sampling["tau_r"])


def load_state(directory: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(directory / "tiny_llm.pt", weights_only=True)
    return state


def biased(model: LanguageModel, deltas: Sequence[tuple[slice, float]]) -> LanguageModel:
    """The same model with other biases of the head, which the vectors use to make stop ids likely or impossible."""
    bias = model.head_bias.clone()
    for where, delta in deltas:
        bias[where] += delta
    return LanguageModel(model.config, model.tables, model.blocks, model.norm, model.head_weight, bias)


class Run:
    """One utterance through the model, likeliest id first: the smallest engine there can be."""

    def __init__(self, model: LanguageModel, config: SamplingConfig, max_len: int) -> None:
        self.model = model
        self.cache: KvCache = model.new_cache(1, max_len)
        self.slot = self.cache.acquire()
        self.sampler = Sampler(config, 1, model.device)
        self.sampler.start(self.slot, 0)
        self.fed: list[int] = []
        self.log_probs: list[Tensor] = []

    def step(self, decoding: Decoding, force: int | None = None) -> int | None:
        """One feed and one id; `force` is taken instead of a draw. Returns speech, None for another id."""
        feed = decoding.next_feed()
        if feed is None:
            raise ValueError("nothing to feed")
        self.fed.append(feed.n_positions)
        x = self.model.embed(feed.segments)
        if feed.speech_id is None:
            hidden = self.model.prefill(x, self.slot, self.cache)[None]
        else:
            hidden = self.model.decode(x, [self.slot], self.cache)
        logits = self.model.logits(hidden)
        self.log_probs.append(torch.log_softmax(logits[0], dim=-1))
        forced = feed.forced if force is None else force
        return decoding.consume(int(self.sampler.sample(logits, [self.slot], [feed.banned], [forced], likeliest=True)))


def speak(run: Run, decoding: Decoding) -> list[int]:
    speech = []
    while not decoding.done:
        said = run.step(decoding)
        if said is not None:
            speech.append(said)
    return speech


def check_forward(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_forward")
    x = model.embed(whole_prompt(*(ids_of(v[name]) for name in ("prompt_text", "text", "prompt_speech_token"))))
    yield "lm input", largest(x[None], v["lm_input"]), 1e-6
    cache = model.new_cache(1, x.shape[0])
    hidden = model.extend(x, cache.acquire(), cache)
    yield "lm hidden", largest(hidden[None], v["last_hidden"]), HIDDEN_TOLERANCE
    n = v["logits"].shape[1]
    yield "lm logits", largest(model.logits(hidden[-n:])[None], v["logits"]), LOGITS_TOLERANCE


def check_greedy(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_greedy")
    prompt_text, text, prompt_speech = (ids_of(v[name]) for name in ("prompt_text", "text", "prompt_speech_token"))
    modes = {"zero_shot": (prompt_text, prompt_speech), "cross_lingual": ([], []), "instruct2": (prompt_text, [])}
    for mode, (before, speech) in modes.items():
        decoding = SentenceDecoding(before, text, speech)
        run = Run(model, sampling, len(before) + len(speech) + len(text) + decoding.max_len + 2)
        said = speak(run, decoding)
        yield f"lm greedy {mode}", mismatches(said, ids_of(v[f"{mode}_tokens"])), EXACT
        if mode == "zero_shot" and "zero_shot_logp_first40" in v:
            expected = v["zero_shot_logp_first40"]
            ours = torch.stack(run.log_probs[: len(expected)])
            # The vectors may hold the end of speech masked away.
            ours[torch.from_numpy(np.isneginf(expected))] = -torch.inf
            yield "lm log-probabilities", largest(ours, expected), LOGITS_TOLERANCE


def check_stop(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_stop")
    delta = float(v["bias_delta"])
    cases = {
        "eos_biased": [(slice(EOS, EOS + 1), delta)],
        "tok6562_biased": [(slice(EOS + 1, EOS + 2), delta)],
        "never_stops": [(slice(EOS, None), -delta)],
    }
    before, text, speech = (ids_of(v[name]) for name in ("prompt_text", "text", "prompt_speech_token"))
    for case, deltas in cases.items():
        decoding = SentenceDecoding(before, text, speech)
        lengths = [decoding.min_len - int(v["min_len"]), decoding.max_len - int(v["max_len"])]
        yield f"lm stop {case} lengths", float(sum(map(abs, lengths))), EXACT
        run = Run(biased(model, deltas), sampling, len(before) + len(speech) + len(text) + decoding.max_len + 2)
        yield f"lm stop {case}", mismatches(speak(run, decoding), ids_of(v[case])), EXACT


def check_bistream(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_bistream")
    for case in sorted({name.partition("__")[0] for name in v}):
        c = {name.partition("__")[2]: array for name, array in v.items() if name.startswith(f"{case}__")}
        if str(c["error"].reshape(-1)[0]):
            # The reference failed here; what it failed on is not drawn by this engine.
            continue
        text = ids_of(c["text"])
        decoding = BiStreamDecoding(
            ids_of(c["prompt_text"]),
            ids_of(c["prompt_speech_token"]),
            keep_prompt=False,
            max_len=len(ids_of(c["yielded"])) + 1,
            n_mix_text=model.config.n_mix_text,
            n_mix_speech=model.config.n_mix_speech,
        )
        deltas = [
            (slice(EOS, EOS + 2), float(c["bias_delta_6561_6562"])),
            (slice(EOS + 2, EOS + 3), float(c["bias_delta_6563"])),
        ]
        run = Run(biased(model, deltas), sampling, sum(ids_of(c["forward_lengths"])))
        force_eos_after = int(c["force_eos_after_out_tokens"])
        said: list[int] = []
        pulled: list[tuple[int, int]] = []
        while not decoding.done:
            if decoding.needs_text:
                if len(pulled) < len(text):
                    decoding.push_text([text[len(pulled)]])
                    pulled.append((len(pulled), len(said)))
                else:
                    decoding.end_text()
                continue
            feed = decoding.next_feed()
            may_end = feed is not None and EOS not in feed.banned
            speech = run.step(decoding, EOS if may_end and decoding.n_out >= force_eos_after else None)
            if speech is not None:
                said.append(speech)
        expected_pulls = [(int(at), int(n)) for at, n in c["text_consumed_vs_yielded"]]
        yield f"lm bistream {case} ids", mismatches(said, ids_of(c["yielded"])), EXACT
        yield f"lm bistream {case} forward lengths", mismatches(run.fed, ids_of(c["forward_lengths"])), EXACT
        yield f"lm bistream {case} text pulled", mismatches(pulled, expected_pulls), EXACT


def check_sampling(directory: Path, config: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "ras_sampling")
    n_cases = len(v["hist"])
    recent = np.full((n_cases, config.window), -1, dtype=np.int64)
    for i, n in enumerate(ids_of(v["nhist"])):
        tail = v["hist"][i, max(0, n - config.window) : n]
        recent[i, : len(tail)] = tail
    log_probs, window, u1, u2 = (torch.from_numpy(a) for a in (v["logp"], recent, v["u1"], v["u2"]))
    drawn = draw(log_probs.float(), window, u1, u2, config)
    for stage, ours, name in (
        ("nucleus size", drawn.nucleus_size, "nuc_n"),
        ("pick", drawn.nucleus_index, "pick1"),
        ("repetition", drawn.repeated, "branch2"),
        ("id", drawn.ids, "final"),
    ):
        yield f"sampling {stage}", mismatches(ours.tolist(), v[name].tolist()), EXACT
    probs = torch.softmax(log_probs.double(), dim=-1).sort(dim=-1, descending=True, stable=True).values
    width = v["nuc_probs"].shape[1]
    kept = torch.arange(width) < drawn.nucleus_size[:, None]
    theirs = np.where(kept.numpy(), np.nan_to_num(v["nuc_probs"]), 0.0)
    yield "sampling nucleus probabilities", largest(probs[:, :width] * kept, theirs), 1e-6


def check_golden(directory: Path) -> Iterator[Row]:
    """Every stage of the language model and its sampling: name, largest error, tolerance."""
    lm_config, sampling = configs(directory)
    model = LanguageModel.from_state(lm_config, load_state(directory))
    for check in (check_forward, check_greedy, check_stop, check_bistream):
        yield from check(directory, model, sampling)
    yield from check_sampling(directory, sampling)
