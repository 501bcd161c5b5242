"""Compares the engine with reference vectors, stage by stage: `python -m tests.engines.cosyvoice2.parity DIR`.

DIR holds state dicts and arrays of one reference run, of any sizes, prompt lengths and seeds. One line a stage: largest
error, tolerance, ok or not. Exit status 1 if any stage misses, 2 if the directory cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.engines.cosyvoice2 import parity_flow, parity_front, parity_lm, parity_vocoder

Stage = tuple[str, float, float]


def check_golden(directory: Path) -> Iterator[Stage]:
    """Every stage the directory has vectors for."""
    yield from parity_front.check_golden(directory)
    yield from parity_lm.check_golden(directory)
    yield from parity_flow.check_golden(directory)
    yield from parity_vocoder.check_golden(directory)
    yield from check_end_to_end(directory)


def check_end_to_end(directory: Path) -> Iterator[Stage]:
    """Tokens to audio, chunk by chunk, as the reference's driver called its networks."""
    flow = parity_flow.load(directory)

    def mel_of(arrays: dict[str, Tensor], call: dict[str, Any]) -> Tensor:
        tokens = arrays["token"][:, : call["n_tok"]]
        return flow.full(
            arrays["prompt_token"], tokens, arrays["prompt_feat"], arrays["embedding"],
            streaming=call["stream"], finalize=call["finalize"],
        )  # fmt: skip

    yield from parity_vocoder.check_end_to_end(parity_vocoder.read_vocoder(directory), mel_of, directory)


def main(arguments: list[str]) -> int:
    """Print the stages of one directory; returns the exit status."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m tests.engines.cosyvoice2.parity DIR", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    n_stages = n_missed = 0
    with torch.inference_mode():
        for name, error, tolerance in check_golden(Path(arguments[0])):
            n_stages += 1
            good = error <= tolerance
            n_missed += not good
            print(f"{'ok' if good else 'MISS':<5} {name:<52} error {error:<9.3g} tolerance {tolerance:.3g}", flush=True)
    print(f"{n_stages - n_missed} of {n_stages} stages within tolerance")
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
