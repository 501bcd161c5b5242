"""The distance of each precision that `auto` can choose from float32: ids, mel and audio of whole utterances.

Weights are random and of full size, on a CPU. Two parts, a row for each seed:

  lm      Both models read the ids that the float32 model draws. Agreement is the share of steps at which the other
          precision would draw the same id with the same random numbers, by the engine's own sampler. Random weights
          give nearly flat logits: thousands of ids are about as likely. Trained weights do not. So the agreement is
          also computed with all logits multiplied by one number, with which their mean entropy is --bits. `overlap` is
          the probability mass that both models' nuclei have in common: no sampler could agree more often.
  speech  The flow computes random ids in blocks after a prompt, as in the engine. The error of the mel is relative to
          the mel about its mean. The vocoder computes the whole utterance, with the same noise.

Audio is compared in four ways:

  vocoder   the vocoder's precision alone, from the mel of float32
  chain     the flow's precision and the vocoder's, from the same ids
  source    float32 throughout, but for the pitch, which comes from the other mel. The sines of the source add up pitch
            errors: after a drift of a fraction of a cycle the samples differ, and a listener hears no difference
  chain, pitch of float32   the chain, with the source that float32 makes
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu.devices import CpuDevice
from gpu.side import PROMPT_S, ModelSide, level_db
from harness import report
from harness.synthesis import progress
from torch import Tensor

from telephony_tts.bench import machine
from telephony_tts.bench.sentences import real_text
from telephony_tts.engines.cosyvoice2.device.sampling import draw, greedy, mask_stops, uniforms
from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    N_SPEECH_ROWS,
    N_SPEECH_TOKENS,
    TOKENS_PER_S,
    SamplingConfig,
)
from telephony_tts.engines.cosyvoice2.model.lm.lm import LanguageModel
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.random_speech import random_model, random_tokens, random_voice
from telephony_tts.engines.cosyvoice2.settings import INT8, MIXED, Precision
from telephony_tts.engines.cosyvoice2.text.generation import whole_prompt
from telephony_tts.engines.kernels import library as kernels

_EXAMPLES = """examples:
  python benchmarks/precision.py --keep DIR                          both parts, seeds 1 to 10; a quarter of an hour
  python benchmarks/precision.py --keep DIR --parts lm --seeds 1,2   some rows
  python benchmarks/precision.py --keep DIR --resume --budget-s 200  some minutes of it; the same command goes on

--keep holds the random weights (2.6 GB). The benchmark needs 10 GB of memory.
"""
BASE = "float32"
PRECISIONS: Mapping[str, Precision] = {
    BASE: Precision(),
    "bfloat16": Precision("bfloat16", "bfloat16", MIXED),
    INT8: Precision(INT8, INT8, MIXED),
}
PARTS = ("lm", "speech")
STOPS = tuple(range(N_SPEECH_TOKENS, N_SPEECH_ROWS))
Row = dict[str, Any]


def main() -> None:
    flags = report.parser("precision", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: both)")
    flags.add_argument("--seeds", default="1,2,3,4,5,6,7,8,9,10", help="a row for each (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="of speech in a row (default %(default)s)")
    flags.add_argument("--bits", type=float, default=3.0, help="entropy of the sharpened logits (default %(default)s)")
    flags.add_argument("--keep", type=Path, metavar="DIR", help="keep the random weights there for the next run")
    flags.add_argument("--resume", action="store_true", help="keep the rows of the result that is there, and add")
    flags.add_argument("--budget-s", type=float, metavar="S", help="begin no row that would end after it")
    chosen = flags.parse_args()
    chosen.size = "full"
    if chosen.quick:
        chosen.size, chosen.seconds, chosen.seeds = "tiny", 1.6, "1,2"
    begun = time.perf_counter()
    torch.set_num_threads(1)
    rows = _earlier(chosen) if chosen.resume else {part: [] for part in PARTS}
    seeds = [int(word) for word in chosen.seeds.split(",")]
    missing = [(p, s) for p in chosen.parts for s in seeds if all(row["seed"] != s for row in rows[p])]
    if missing:
        with torch.inference_mode(), random_model(chosen.size, PROMPT_S, chosen.keep) as directory:
            names = [name for name in PRECISIONS if name != INT8 or kernels.available()]
            sides = {name: ModelSide(CpuDevice(), directory, PRECISIONS[name], 1) for name in names}
            longest_s = 0.0
            for part, seed in missing:
                at = time.perf_counter()
                if chosen.budget_s is not None and at - begun + longest_s > chosen.budget_s:
                    break
                progress(f"{part}, seed {seed}")
                measure = _lm_row if part == "lm" else _speech_row
                rows[part].append({"seed": seed, **measure(sides, seed, random_tokens(chosen.seconds), chosen.bits)})
                longest_s = max(longest_s, time.perf_counter() - at)
    n_left = sum(all(row["seed"] != seed for row in rows[part]) for part, seed in missing)
    if n_left:
        print(f"\n{n_left} rows are missing: the same command with --resume goes on")
    of_lm, of_speech = _lm_summary(rows["lm"]), _speech_summary(rows["speech"])
    _show(of_lm, of_speech, chosen.bits)
    del chosen.keep
    report.save(chosen, {"lm": of_lm, "speech": of_speech, "rows": rows})


def _earlier(chosen: argparse.Namespace) -> dict[str, list[Row]]:
    """The rows of the result that is there. Raises SystemExit if they are of another commit or of other settings."""
    if not chosen.json.is_file():
        return {part: [] for part in PARTS}
    document = json.loads(chosen.json.read_text(encoding="utf-8"))
    settings = document["settings"]
    if document["commit"] != machine.commit() or any(
        settings[name] != getattr(chosen, name) for name in ("size", "seconds", "bits")
    ):
        raise SystemExit(f"{chosen.json.name} is of another commit or of other settings: run without --resume")
    rows: dict[str, list[Row]] = document["results"]["rows"]
    return rows


# -------------------------------------------------------------------------------- language model


def _lm_row(sides: Mapping[str, ModelSide], seed: int, n_ids: int, bits: float) -> Row:
    base = sides[BASE]
    drawn, expected = _drawn(base, seed, n_ids)
    ids = torch.tensor(drawn)
    sampling = Draws(ids, seed, base.model.sampler.config)
    if not torch.equal(sampling.of(expected), ids):
        raise RuntimeError("the ids of all steps at once are not those that were drawn step by step")
    factor = _factor(expected, bits)
    row: Row = {"n_steps": n_ids, "entropy_bits": _entropy_bits(expected), "factor": factor}
    for name, side in sides.items():
        if name == BASE:
            continue
        logits = _followed(side, seed, drawn)
        centred, error = expected - expected.mean(1, keepdim=True), logits - expected
        row[name] = {
            "logits_db": round(level_db(error - error.mean(1, keepdim=True), centred), 2),
            "greedy": _share(greedy(logits) == greedy(expected)),
            "drawn": _share(sampling.of(logits) == ids),
            "overlap": _overlap(logits, expected, sampling.config),
            "sharpened_drawn": _share(sampling.of(factor * logits) == sampling.of(factor * expected)),
            "sharpened_overlap": _overlap(factor * logits, factor * expected, sampling.config),
        }
    return row


def _drawn(side: ModelSide, seed: int, n_ids: int) -> tuple[list[int], Tensor]:
    """`n_ids` ids as the engine draws them, and the logits [n_ids, 6561] from which they were drawn."""
    sampler, lm, cache = side.model.sampler, _lm(side), side.model.cache
    sampler.start(0, seed)
    rows, ids = [_fed(side, seed)], list[int]()
    while True:
        ids.append(int(sampler.sample(rows[-1], [0], [STOPS])[0]))
        if len(ids) == n_ids:
            return ids, torch.cat(rows)[:, :N_SPEECH_TOKENS]
        rows.append(lm.logits(lm.decode(lm.embed_speech(torch.tensor(ids[-1:])), [0], cache)))


def _followed(side: ModelSide, seed: int, ids: Sequence[int]) -> Tensor:
    """The logits [n, 6561] of each step, if these ids were drawn."""
    lm, cache = _lm(side), side.model.cache
    rows = [_fed(side, seed)]
    for each in ids[:-1]:
        rows.append(lm.logits(lm.decode(lm.embed_speech(torch.tensor([each])), [0], cache)))
    return torch.cat(rows)[:, :N_SPEECH_TOKENS]


def _fed(side: ModelSide, seed: int) -> Tensor:
    """The logits [1, 6564] after voice and text."""
    voice, cache = side.features[random_voice(PROMPT_S)], side.model.cache
    cache.clear(0)
    text = side.model.tokenizer.encode(real_text(seed, 8.0))
    segments = whole_prompt(voice.transcript_ids, text, voice.speech_tokens.tolist())
    return _lm(side).logits(_lm(side).feed(segments, 0, cache)[-1:])


def _lm(side: ModelSide) -> LanguageModel:
    assert isinstance(side.model.lm, LanguageModel)
    return side.model.lm


@dataclass(frozen=True, slots=True)
class Draws:
    """What the engine's sampler draws at each step of an utterance, after the ids [n] that were really drawn."""

    ids: Tensor
    seed: int
    config: SamplingConfig

    def of(self, logits: Tensor) -> Tensor:
        """[n, 6561] -> [n]"""
        n, window = len(self.ids), self.config.window
        padded = torch.cat([torch.full((window,), -1), self.ids])
        recent = padded.unfold(0, window, 1)[:n]
        u1, u2 = uniforms(torch.tensor([self.seed]).expand(n), torch.arange(n))
        no_stops = torch.zeros(n, 0, dtype=torch.bool)
        return draw(mask_stops(logits, no_stops), recent, u1, u2, self.config).ids


def _entropy_bits(logits: Tensor) -> float:
    """The mean of all steps."""
    log_probs = logits.double().log_softmax(1)
    return round(float(-(log_probs.exp() * log_probs).sum(1).mean()) / torch.tensor(2.0).log().item(), 3)


def _factor(logits: Tensor, bits: float) -> float:
    """The number by which to multiply logits, so that their mean entropy is `bits`."""
    low, high = 0.01, 1000.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _entropy_bits(middle * logits) > bits else (low, middle)
    return round(low, 4)


def _nucleus(logits: Tensor, config: SamplingConfig) -> Tensor:
    """The distribution [n, V] of a draw without its rule for repetitions."""
    probs, ids = logits.double().softmax(1).topk(config.top_k, dim=1)
    inside = probs * (probs.cumsum(1) - probs < config.top_p)
    return torch.zeros(logits.shape, dtype=torch.float64).scatter_(1, ids, inside / inside.sum(1, keepdim=True))


def _overlap(ours: Tensor, theirs: Tensor, config: SamplingConfig) -> float:
    return round(float(torch.minimum(_nucleus(ours, config), _nucleus(theirs, config)).sum(1).mean()), 4)


def _share(same: Tensor) -> float:
    return round(float(same.double().mean()), 4)


def _lm_summary(rows: Sequence[Row]) -> Row:
    """Means over all steps; levels from mean powers."""
    n_steps = sum(row["n_steps"] for row in rows)
    if not n_steps:
        return {"n_steps": 0}
    found: Row = {"n_steps": n_steps, "n_utterances": len(rows)}
    found |= {key: _mean([row[key] for row in rows]) for key in ("entropy_bits", "factor")}
    for name in _compared(rows):
        figures = {key: [row[name][key] for row in rows] for key in rows[0][name]}
        found[name] = {key: (_level if key.endswith("_db") else _mean)(each) for key, each in figures.items()}
    return found


# ------------------------------------------------------------------------------ flow and vocoder


def _speech_row(sides: Mapping[str, ModelSide], seed: int, n_ids: int, _: float) -> Row:
    ids = torch.randint(N_SPEECH_TOKENS, (n_ids,), generator=torch.Generator().manual_seed(seed)).tolist()
    mels = {name: torch.cat(side.mel(ids), 2) for name, side in sides.items()}
    vocoder, mel = sides[BASE].model.vocoder, mels[BASE]
    pitch = vocoder.f0(mel)
    source = _source(vocoder, pitch, seed)
    audio = _audio(vocoder, mel, source)
    row: Row = {"seconds": n_ids / TOKENS_PER_S, "pitch_hz": round(float(pitch.mean()), 2)}
    for name, side in sides.items():
        if name == BASE:
            continue
        other, other_pitch = side.model.vocoder, vocoder.f0(mels[name])
        other_source = _source(vocoder, other_pitch, seed)
        drift = ((other_pitch - pitch).double() / (FRAMES_PER_TOKEN * TOKENS_PER_S)).cumsum(1)
        row[name] = {
            "mel_db": round(level_db(mels[name] - mel, mel - mel.mean()), 2),
            "pitch_error_hz": round(float((other_pitch - pitch).square().mean().sqrt()), 4),
            "drift_cycles": round(float(drift.abs().max()), 4),
            "vocoder_db": _error_db(_audio(other, mel, source), audio),
            "chain_db": _error_db(_audio(other, mels[name], other_source), audio),
            "source_db": _error_db(_audio(vocoder, mel, other_source), audio),
            "chain_same_pitch_db": _error_db(_audio(other, mels[name], source), audio),
        }
    return row


def _source(vocoder: Vocoder, pitch: Tensor, seed: int) -> Tensor:
    """Pitch [1, L] in Hz -> the source of a whole utterance [1, 1, 480 L]."""
    return vocoder.excite(pitch, 0, None, CounterNoise(seed, vocoder.config.n_harmonics + 1), last=True)[0]


def _audio(vocoder: Vocoder, mel: Tensor, source: Tensor) -> Tensor:
    return vocoder.decode(mel, source, 0, mel.shape[2])


def _error_db(ours: Tensor, theirs: Tensor) -> float:
    """The level of the error relative to the signal: the SNR with the other sign."""
    return round(level_db(ours.double() - theirs.double(), theirs), 2)


def _speech_summary(rows: Sequence[Row]) -> Row:
    if not rows:
        return {"n_utterances": 0}
    found: Row = {"n_utterances": len(rows), "seconds": sum(row["seconds"] for row in rows)}
    for name in _compared(rows):
        of_name = [row[name] for row in rows]
        found[name] = {}
        for key in of_name[0]:
            values = [each[key] for each in of_name]
            found[name][key] = _level(values) if key.endswith("_db") else _mean(values)
            found[name][f"{key}_worst"] = max(values)
    return found


# ---------------------------------------------------------------------------------------- report


def _compared(rows: Sequence[Row]) -> list[str]:
    return [name for name in PRECISIONS if name in rows[0]]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)


def _level(values: Sequence[float]) -> float:
    """The level of the mean power."""
    return round(float(10 * (10 ** (torch.tensor(values).double() / 10)).mean().log10()), 2)


def _show(of_lm: Row, of_speech: Row, bits: float) -> None:
    if of_lm["n_steps"]:
        report.table(
            f"language model against {BASE}: share of {of_lm['n_steps']} steps with the same id; entropy "
            f"{of_lm['entropy_bits']} bits, and {bits:g} with logits x {of_lm['factor']}",
            ("precision", "logits dB", "greedy", "drawn", "overlap", "drawn, sharpened", "overlap"),
            [(name, *of_lm[name].values()) for name in PRECISIONS if name in of_lm],
        )
    if of_speech["n_utterances"]:
        keys = [key for key in of_speech[next(n for n in PRECISIONS if n in of_speech)] if not key.endswith("_worst")]
        for kind, end in (("mean", ""), ("worst", "_worst")):
            report.table(
                f"flow and vocoder against {BASE}: errors in {of_speech['seconds']:g} s of speech, {kind}",
                ("precision", *keys),
                [(name, *(of_speech[name][key + end] for key in keys)) for name in PRECISIONS if name in of_speech],
            )


if __name__ == "__main__":
    main()
