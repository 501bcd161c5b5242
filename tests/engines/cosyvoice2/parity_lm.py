"""The language model, its rules and its sampling against reference vectors, of any sizes in the golden format."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from parity_rows import EXACT, Absent, Row, Stage, error, guarded, measure, read_json, read_npz, read_state
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.sampling import Sampler, draw
from telephony_tts.engines.cosyvoice2.model.config import EOS, LmConfig, SamplingConfig
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.prefill import PREFILL_CHUNK
from telephony_tts.engines.cosyvoice2.text.generation import (
    BiStreamDecoding,
    Decoding,
    SentenceDecoding,
    whole_prompt,
)

HIDDEN_TOLERANCE = LOGITS_TOLERANCE = 1e-4
PROBABILITY_TOLERANCE = 1e-6


class Vectors(dict[str, npt.NDArray[Any]]):
    """The arrays of one file. Raises Absent for one that it does not have."""

    def __init__(self, found: dict[str, npt.NDArray[Any]], file: str) -> None:
        super().__init__(found)
        self.file = file

    def __missing__(self, name: str) -> npt.NDArray[Any]:
        raise Absent(f"{self.file} has no {name}")


def read(directory: Path, name: str) -> Vectors:
    return Vectors(read_npz(directory / f"{name}.npz"), f"{name}.npz")


def ids_of(array: npt.NDArray[Any]) -> list[int]:
    return [int(item) for item in array.reshape(-1)]


def largest(ours: Tensor, theirs: npt.NDArray[Any]) -> float:
    return error(ours, torch.from_numpy(theirs))


def mismatches(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """In how many places two sequences differ, missing and surplus ones included."""
    return float(sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs)))


def configs(directory: Path) -> tuple[LmConfig, SamplingConfig]:
    found = read_json(directory / "tiny_config.json")
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
    if llm.get("head_dim", lm.d_head) != lm.d_head:
        raise ValueError(f"heads of {llm['head_dim']}; this engine has them of {lm.d_head}, the width by their number")
    return lm, SamplingConfig(sampling["top_p"], sampling["top_k"], sampling["win_size"], sampling["tau_r"])


def load_state(directory: Path) -> dict[str, Tensor]:
    return read_state(directory / "tiny_llm.pt")


def biased(model: LanguageModel, deltas: Sequence[tuple[slice, float]]) -> LanguageModel:
    """The same model with other biases of the head, which the vectors use to make stop ids likely or impossible."""
    bias = model.head_bias.clone()
    for where, delta in deltas:
        bias[where] += delta
    return LanguageModel(model.config, model.tables, model.layers, model.norm, model.head, bias)


def prefill(model: LanguageModel, x: Tensor, slot: int, cache: KvCache, n_chunk: int = PREFILL_CHUNK) -> Tensor:
    """Append x [n, D] in chunks; the last position's hidden state [D]."""
    cache.room(slot, len(x))
    return [model.extend(chunk, slot, cache) for chunk in torch.split(x, n_chunk)][-1][-1]


class Run:
    """One utterance through the model, likeliest id first: the smallest engine there can be."""

    def __init__(self, model: LanguageModel, config: SamplingConfig, max_len: int) -> None:
        self.model = model
        self.cache: KvCache = model.new_cache(1, max_len)
        self.slot = 0
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
            hidden = prefill(self.model, x, self.slot, self.cache)[None]
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
    cache = model.new_cache(1, x.shape[0])
    hidden = model.extend(x, 0, cache)

    def logits() -> float:
        n = v["logits"].shape[1]
        return largest(model.logits(hidden[-n:])[None], v["logits"])

    yield measure("lm input", lambda: largest(x[None], v["lm_input"]), 1e-6)
    yield measure("lm hidden", lambda: largest(hidden[None], v["last_hidden"]), HIDDEN_TOLERANCE)
    yield measure("lm logits", logits, LOGITS_TOLERANCE)


def check_greedy(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_greedy")
    prompt_text, text, prompt_speech = (ids_of(v[name]) for name in ("prompt_text", "text", "prompt_speech_token"))
    modes = {"zero_shot": (prompt_text, prompt_speech), "cross_lingual": ([], []), "instruct2": (prompt_text, [])}
    for mode, (before, speech) in modes.items():
        decoding = SentenceDecoding(before, text, speech)
        run = Run(model, sampling, len(before) + len(speech) + len(text) + decoding.max_len + 2)
        yield from guarded(f"lm greedy {mode}", check_mode(v, mode, run, decoding))


def check_mode(v: Vectors, mode: str, run: Run, decoding: SentenceDecoding) -> Iterator[Row]:
    """Greedy ids, exact but where the reference's own choice is closer than logits may differ: there it decides."""
    theirs = ids_of(v[f"{mode}_tokens"])
    margins = v.get(f"{mode}_margin", np.full(len(theirs), np.inf)).reshape(-1)
    said: list[int] = []
    n_ties = 0
    while not decoding.done:
        i = len(said)
        close = i < min(len(theirs), len(margins)) and margins[i] < 2 * LOGITS_TOLERANCE
        n_ties += bool(close)
        speech = run.step(decoding, theirs[i] if close else None)
        if speech is not None:
            said.append(speech)
    title = f"lm greedy {mode}" + (f", {n_ties} ties left to the reference" if n_ties else "")
    yield Stage(title, mismatches(said, theirs), EXACT)
    for name in v:
        if name.startswith(f"{mode}_logp"):
            yield measure(
                f"lm log-probabilities {mode}",
                lambda expected=v[name]: log_prob_error(run.log_probs, expected),
                LOGITS_TOLERANCE,
            )


def log_prob_error(ours: Sequence[Tensor], expected: npt.NDArray[Any]) -> float:
    if len(ours) < len(expected):
        return float("inf")
    found = torch.stack(list(ours[: len(expected)]))
    # The vectors may hold the end of speech masked away.
    masked = torch.from_numpy(np.isneginf(expected))
    masked[:, :EOS] = False
    found[masked] = -torch.inf
    return largest(found, expected)


def check_stop(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_stop")
    delta = float(v["bias_delta"])
    cases = {
        "eos_biased": [(slice(EOS, EOS + 1), delta)],
        "tok6562_biased": [(slice(EOS + 1, EOS + 2), delta)],
        "never_stops": [(slice(EOS, None), -delta)],
    }
    before, text, speech = (ids_of(v[name]) for name in ("prompt_text", "text", "prompt_speech_token"))
    decoding = SentenceDecoding(before, text, speech)
    for name, ours in (("min_len", decoding.min_len), ("max_len", decoding.max_len)):
        yield measure(f"lm stop {name}", lambda n=name, o=ours: float(abs(o - int(v[n]))), EXACT)
    for case, deltas in cases.items():

        def stop(case: str = case, deltas: Sequence[tuple[slice, float]] = deltas) -> float:
            expected = ids_of(v[case])
            decoding = SentenceDecoding(before, text, speech)
            run = Run(biased(model, deltas), sampling, len(before) + len(speech) + len(text) + decoding.max_len + 2)
            return mismatches(speak(run, decoding), expected)

        yield measure(f"lm stop {case}", stop, EXACT)


class _Unlimited(BiStreamDecoding):
    """The reference has no longest length; the check itself stops at one feed too many."""

    @property
    def max_len(self) -> int:
        return sys.maxsize


def check_bistream(directory: Path, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "llm_bistream")
    for case in sorted({name.partition("__")[0] for name in v if "__" in name}):
        arrays = {name.partition("__")[2]: array for name, array in v.items() if name.startswith(f"{case}__")}
        title = f"lm bistream {case}"
        yield from guarded(title, check_bistream_case(title, Vectors(arrays, f"{v.file}, {case}"), model, sampling))


def check_bistream_case(title: str, v: Vectors, model: LanguageModel, sampling: SamplingConfig) -> Iterator[Row]:
    """One case. Where the reference failed, all up to its failure is compared; this engine has to go on from there.

    It fails on ids that have no place where they are drawn. They are never drawn here: the likeliest other id is.
    """
    failed = bool(str(v["error"].reshape(-1)[0])) if "error" in v and v["error"].size else False
    text, yielded, lengths = ids_of(v["text"]), ids_of(v["yielded"]), ids_of(v["forward_lengths"])
    pulls = [(int(at), int(n)) for at, n in v["text_consumed_vs_yielded"]]
    decoding = _Unlimited(
        ids_of(v["prompt_text"]),
        ids_of(v["prompt_speech_token"]),
        keep_prompt=False,
        n_mix_text=model.config.n_mix_text,
        n_mix_speech=model.config.n_mix_speech,
    )
    deltas = [
        (slice(EOS, EOS + 2), float(v.get("bias_delta_6561_6562", 0.0))),
        (slice(EOS + 2, EOS + 3), float(v.get("bias_delta_6563", 0.0))),
    ]
    run = Run(biased(model, deltas), sampling, sum(lengths) + len(text) + 64)
    force_eos_after = float(v.get("force_eos_after_out_tokens", np.inf))
    said: list[int] = []
    pulled: list[tuple[int, int]] = []
    n_most = len(lengths) if failed else len(lengths) + 1  # one too many is enough to see that it does not end
    while not decoding.done and len(run.fed) < n_most:
        feed = decoding.next_feed()
        if feed is None:
            if len(pulled) < len(text):
                decoding.push_text([text[len(pulled)]])
                pulled.append((len(pulled), len(said)))
            else:
                decoding.end_text()
            continue
        speech = run.step(decoding, EOS if EOS not in feed.banned and decoding.n_out >= force_eos_after else None)
        if speech is not None:
            said.append(speech)
    if failed:
        title += ", up to where the reference fails,"
        yield Stage(f"{title} and past it", float(len(run.fed) != len(lengths)), EXACT)
        said, pulled = said[: len(yielded)], pulled[: len(pulls)]
    yield Stage(f"{title} ids", mismatches(said, yielded), EXACT)
    yield Stage(f"{title} forward lengths", mismatches(run.fed, lengths), EXACT)
    yield Stage(f"{title} text pulled", mismatches(pulled, pulls), EXACT)


def check_sampling(directory: Path, config: SamplingConfig) -> Iterator[Row]:
    v = read(directory, "ras_sampling")
    n_cases = len(v["hist"])
    recent = np.full((n_cases, config.window), -1, dtype=np.int64)
    for i, n in enumerate(ids_of(v["nhist"])):
        tail = v["hist"][i, max(0, n - config.window) : n]
        recent[i, : len(tail)] = tail
    log_probs, window, u1, u2 = (torch.from_numpy(a) for a in (v["logp"], recent, v["u1"], v["u2"]))
    drawn = draw(log_probs.float(), window, u1.double(), u2.double(), config)
    for stage, ours, name in (
        ("nucleus size", drawn.nucleus_size, "nuc_n"),
        ("pick", drawn.nucleus_index, "pick1"),
        ("repetition", drawn.repeated, "branch2"),
        ("id", drawn.ids, "final"),
    ):
        yield measure(f"sampling {stage}", lambda o=ours, n=name: mismatches(o.tolist(), v[n].tolist()), EXACT)

    def probabilities() -> float:
        theirs = v["nuc_probs"]
        width = theirs.shape[1]
        probs = torch.softmax(log_probs.double(), dim=-1).sort(dim=-1, descending=True, stable=True).values
        kept = torch.arange(width) < drawn.nucleus_size[:, None]
        return largest(probs[:, :width] * kept, np.where(kept.numpy(), np.nan_to_num(theirs), 0.0))

    yield measure("sampling nucleus probabilities", probabilities, PROBABILITY_TOLERANCE)


def check_golden(directory: Path) -> Iterator[Row]:
    """Every stage of the language model and its sampling."""
    yield from guarded("lm", check_model(directory))
    yield from guarded("sampling", check_draws(directory))


def check_model(directory: Path) -> Iterator[Row]:
    lm_config, sampling = configs(directory)
    model = LanguageModel.from_state(lm_config, load_state(directory))
    for title, check in (
        ("lm forward", check_forward),
        ("lm greedy", check_greedy),
        ("lm stop", check_stop),
        ("lm bistream", check_bistream),
    ):
        yield from guarded(title, check(directory, model, sampling))


def check_draws(directory: Path) -> Iterator[Row]:
    yield from check_sampling(directory, configs(directory)[1])
