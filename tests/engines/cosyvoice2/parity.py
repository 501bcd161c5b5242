"""Compares the engine with reference vectors, stage by stage: `python -m tests.engines.cosyvoice2.parity DIR`.

DIR holds state dicts and arrays of one reference run, of any sizes, prompt lengths and seeds. One line a stage: largest
error, tolerance, ok or MISS; "skip" where the directory has nothing to compare with. Whatever goes wrong in one stage
is a miss of that stage, and the others follow.

Exit status: 0 all stages within tolerance, 1 some stage misses, 2 nothing could be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))  # as under pytest, which finds these modules by their names

import parity_flow
import parity_front
import parity_lm
import parity_schedule
import parity_vocoder
from parity_rows import Arrays, Row, Skipped, guarded
from plain_flow import recomputed


def check_golden(directory: Path) -> Iterator[Row]:
    """Every stage the directory has vectors for, in the order of the synthesis."""
    yield from parity_front.check_golden(directory)
    yield from parity_lm.check_golden(directory)
    yield from parity_flow.check_golden(directory)
    yield from parity_vocoder.check_golden(directory)
    yield from parity_schedule.check_golden(directory)
    yield from guarded("end to end", check_end_to_end(directory))


def check_end_to_end(directory: Path) -> Iterator[Row]:
    """Tokens to audio, chunk by chunk."""
    flow = parity_flow.load(directory)

    def mel_of(arrays: Arrays, call: dict[str, Any]) -> Tensor:
        return recomputed(
            flow,
            arrays.ids("prompt_token"),
            arrays.ids("token")[:, : call["n_tok"]],
            arrays["prompt_feat"],
            arrays["embedding"],
            streaming=call["stream"],
            finalize=call["finalize"],
        )

    yield from parity_vocoder.check_end_to_end(parity_vocoder.read_vocoder(directory), mel_of, directory)


def main(arguments: list[str]) -> int:
    """Print the stages of one directory; returns the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m tests.engines.cosyvoice2.parity DIR", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    if not directory.is_dir():
        print(f"{directory} is not a directory: give one with reference vectors", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    n_good = n_missed = n_skipped = 0
    with torch.inference_mode():
        for row in check_golden(directory):
            if isinstance(row, Skipped):
                n_skipped += 1
                print(f"skip  {row.name:<52} {row.reason}", flush=True)
                continue
            good = row.error <= row.tolerance
            n_good += good
            n_missed += not good
            word = "ok" if good else "MISS"
            print(f"{word:<5} {row.name:<52} error {row.error:<9.3g} tolerance {row.tolerance:.3g}", flush=True)
    print(f"{n_good} of {n_good + n_missed} stages within tolerance, {n_skipped} skipped")
    if not n_good + n_missed:
        print(f"{directory} holds no reference vectors: nothing was compared", file=sys.stderr)
        return 2
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
