"""What the host adds to first audio on a GPU: the engine's real service and process, with a simulated device.

All callers begin at once. Each begins its next turn when it has heard the one before. Each batch takes about as long as
on an H200 (`harness/waiting_device.py`), so this needs no GPU. First audio beyond the sum of the batches is the host's
work: the two processes, the schedule, and what they send each other. What the real runner does for a batch on the host,
such as filling a graph's inputs, is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from gpu.loads import utterances
from harness import report
from harness.priced_runner import N_PROMPT_TOKENS
from harness.simulated import ROW_TOKENS
from harness.waiting_device import COST_OF_RUN, PRICES

from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog
from telephony_tts.bench import runs
from telephony_tts.bench.load import Callers, Load
from telephony_tts.engines.api import Engine
from telephony_tts.engines.cosyvoice2 import random_speech
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.cosyvoice2.device.runner import PASS_ROWS
from telephony_tts.engines.cosyvoice2.hosting import process_host
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import MOST_ROWS
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.runtime import event_loop

_EXAMPLES = """examples:
  python benchmarks/host_work.py                      1, 8, 32 and 64 callers
  python benchmarks/host_work.py --callers 64 --rounds 9
"""
_TURN_S, _PROMPT_S = 4.0, 3.5
_CHILD = "import sys; sys.path[:] = sys.argv[2:]; from harness.waiting_device import main; main()"
_COLUMNS = ("callers", "batches_ms", "first_audio_ms_p50", "first_audio_ms_p95", "host_ms_p50", "host_ms_p95")
_N_DECODE_BATCHES = 2
"""Decode batches before the first audio."""


def main() -> None:
    flags = report.parser("host_work", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--callers", default="1,8,32,64", help="numbers of callers, by commas (default %(default)s)")
    flags.add_argument("--turns", type=int, default=2, help="turns of each caller (default %(default)s)")
    flags.add_argument("--rounds", type=int, default=5, help="runs of all numbers of callers (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.callers, chosen.turns, chosen.rounds = "2", 1, 1
    process_host._CHILD = _CHILD
    with (
        event_loop.quick_turns(),
        tempfile.TemporaryDirectory() as folder,
        random_speech.random_model("tiny", _PROMPT_S, Path(folder)) as directory,
    ):
        rows = asyncio.run(_measured(chosen, directory))
    results = []
    for n in dict.fromkeys(row["callers"] for row in rows):
        of_n = [row for row in rows if row["callers"] == n]
        results.append({key: round(statistics.median(row[key] for row in of_n), 1) for key in _COLUMNS})
    report.table(
        f"first audio, ms: medians of {chosen.rounds} rounds",
        ("callers", "batches", "p50", "p95", "host, p50", "host, p95"),
        [tuple(row.values()) for row in results],
    )
    report.save(chosen, {"medians": results, "rounds": rows})


async def _measured(chosen: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    settings = config.load(
        None,
        {
            "engines.default": "cosyvoice2",
            "engines.cosyvoice2.model": str(directory),
            "engines.cosyvoice2.device": "cpu",
            "engines.cosyvoice2.workers": 1,
            "engines.cosyvoice2.threads": 1,
            "engines.cosyvoice2.dtype": "float32",
            "engines.cosyvoice2.slots": PRICES.n_slots,
        },
    )
    runs.TOLD_WITHIN_S = 0.0
    engine = next(engine for engine in build_catalog(settings).engines if engine.name == "cosyvoice2")
    await engine.start()
    try:
        await Callers(engine, utterances(_TURN_S), Load(1, 1, _TURN_S).warm_up()).run()
        numbers = [int(word) for word in chosen.callers.split(",")] * chosen.rounds
        return [await _row(engine, n, chosen.turns) for n in numbers]
    finally:
        await engine.close()


async def _row(engine: Engine, n: int, n_turns: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    load = Load(n, n_turns, random_speech.random_seconds(_TURN_S))
    await runs.run(engine, utterances(_TURN_S), load, "cpu", rows, lambda _: None)
    batches, p50, p95 = batches_ms(n), rows[0]["first_audio_ms_p50"], rows[0]["first_audio_ms_p95"]
    found = {"callers": n, "batches_ms": round(batches, 1), "first_audio_ms_p50": p50, "first_audio_ms_p95": p95}
    found |= {"host_ms_p50": round(p50 - batches, 1), "host_ms_p95": round(p95 - batches, 1)}
    return {**found, "turns": rows[0]["turns"], "failed": rows[0]["failed"]}


def batches_ms(n: int) -> float:
    """The time of all batches until each of `n` callers that begin together has first audio."""
    passes = [min(PASS_ROWS, n - done) for done in range(0, n, PASS_ROWS)]
    vocoded = [min(MOST_ROWS, n - done) for done in range(0, n, MOST_ROWS)]
    # The first block is shorter than those that have the price of a row.
    share = DEFAULT.block_tokens(0, N_PROMPT_TOKENS) / ROW_TOKENS
    batches: list[tuple[Stage, float]] = [
        *((Stage.PREFILL, rows) for rows in passes),
        *[(Stage.DECODE, n)] * _N_DECODE_BATCHES,
        *[(Stage.FLOW, n * share)] * 10,
        *((Stage.VOCODE, rows * share) for rows in vocoded),
    ]
    return sum(COST_OF_RUN.of(stage, rows) for stage, rows in batches) / 1e6


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
