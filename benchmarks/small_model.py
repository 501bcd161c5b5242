"""Errors of CosyVoice-300M: its flow and its language model in int8 against float32, and fewer Euler steps against ten.

The weights are random, of full size. The error of a mel is relative to the mel about its mean; both begin with the same
tokens and the same noise. The language model is fed the same ids in both precisions.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any

import torch
from harness import report
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import SIZES_300M
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import random_state
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig, RelativeLmConfig
from telephony_tts.engines.cosyvoice2.model.file_names import FLOW_FILE, LM_FILE
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest
from telephony_tts.engines.cosyvoice2.model.flow.whole_flow import WholeFlow
from telephony_tts.engines.cosyvoice2.model.lm.relative_lm import RelativeLm
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment

_EXAMPLES = """examples:
  python benchmarks/small_model.py
  python benchmarks/small_model.py --tokens 60,200 --seeds 3
"""
STEPS = 10


def main() -> None:
    flags = report.parser("small_model", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--tokens", default="50,120", help="of each sentence, 50 a second (default %(default)s)")
    flags.add_argument("--seeds", type=int, default=3, help="sentences of each length (default %(default)s)")
    flags.add_argument("--steps", default="5,7", help="Euler steps against ten (default %(default)s)")
    flags.add_argument("--ids", type=int, default=100, help="decode steps of the language model (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.tokens, chosen.seeds, chosen.ids = "9", 1, 3
    torch.set_num_threads(1)
    config = SIZES_300M["tiny" if chosen.quick else "full"]
    with torch.inference_mode():
        flow, lm = flow_errors(config, chosen), lm_errors(config, chosen)
    report.table("mel, dB of the mel about its mean", tuple(flow[0]), [tuple(row.values()) for row in flow])
    report.table("logits of the language model", tuple(lm), [tuple(lm.values())])
    report.save(chosen, {"flow": flow, "lm": lm})


def flow_errors(config: ModelConfig, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    state = random_state(FLOW_FILE, checkpoint_shapes(config)[FLOW_FILE], 0)

    def flow(n_steps: int, weights: Any) -> WholeFlow:
        decoder = replace(config.flow_decoder, n_steps=n_steps)
        return WholeFlow.from_state(replace(config, flow_decoder=decoder), dict(state), weights)

    exact, int8 = flow(STEPS, "float"), flow(STEPS, "int8")
    fewer = {f"{n} steps": flow(int(n), "int8") for n in chosen.steps.split(",")}
    rows = []
    for n_tokens in map(int, chosen.tokens.split(",")):
        for seed in range(chosen.seeds):
            reference = mel(int8, n_tokens, seed)
            row = {"tokens": n_tokens, "seed": seed, "int8": db(reference, mel(exact, n_tokens, seed))}
            row |= {name: db(mel(each, n_tokens, seed), reference) for name, each in fewer.items()}
            rows.append(row)
    return rows


def mel(flow: WholeFlow, n_tokens: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4096, (n_tokens,), generator=generator).tolist()
    speaker = torch.randn(1, flow.encoder.config.d_speaker, generator=generator)
    voice = flow.begin_prompt(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, 80), speaker).prompt()
    (block,) = flow.begin([BlockRequest(flow.start(voice, seed), ids, None)])
    while not block.done:
        flow.step([block])
    return block.mel()


def db(got: Tensor, wanted: Tensor) -> float:
    share = (got - wanted).square().mean() / (wanted - wanted.mean()).square().mean()
    return round(10 * math.log10(float(share)), 2)


def lm_errors(config: ModelConfig, chosen: argparse.Namespace) -> dict[str, float]:
    """-> the error of the logits by their spread, and the share of steps with the same most likely id."""
    assert isinstance(config.lm, RelativeLmConfig)
    state = random_state(LM_FILE, checkpoint_shapes(config)[LM_FILE], 0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4096, (chosen.ids,), generator=generator)
    speaker = torch.randn(1, config.lm.d_speaker, generator=generator)
    table = EmbeddingTable
    parts = ((table.CONTROL, (0,)), (table.SPEAKER, (0,)), (table.TEXT, tuple(range(12))), (table.CONTROL, (1,)))
    found = []
    for lm in (RelativeLm.from_state(config.lm, dict(state)), RelativeLm.from_state(config.lm, state, "int8")):
        cache = lm.new_cache(1, 2048)
        lm.set_speaker(cache, 0, speaker)
        hidden = [lm.feed([TokenSegment(*part) for part in parts], 0, cache)[-1:]]
        hidden += [lm.decode(lm.embed_speech(each), [0], cache) for each in ids.split(1)]
        found.append(lm.logits(torch.cat(hidden)))
    exact, near = found
    error = float((near - exact).square().mean().sqrt() / exact.std())
    same = float((near.argmax(-1) == exact.argmax(-1)).float().mean())
    return {"relative error": round(error, 5), "same most likely id": round(same, 4), "steps": len(ids) + 1}


if __name__ == "__main__":
    main()
