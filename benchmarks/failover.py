"""Failover: when the first frame leaves if an engine is dead, and whether a word is lost, which the tones tell.

Both engines speak tones, one for each letter. So the words that reached the client are read from its frames. "gap" is
the longest time between two frames of a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from harness import report
from harness.failing import FAULTS
from harness.process import ServerProcess, cores, placed_here
from websockets.asyncio.client import connect

from telephony_tts.engines.fake.engine import tone_hz

_EXAMPLES = """examples:
  python benchmarks/failover.py                             about 2 minutes
  python benchmarks/failover.py --calls 50 --timeout-ms 1500
"""
_TEXT = "abc defg hij klmno pqr stuv wxyz"
_RATE_HZ = 8_000
_WINDOW = _RATE_HZ // 100


def main() -> None:
    flags = report.parser("failover", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", type=int, default=20, help="calls at once (default %(default)s)")
    flags.add_argument("--turns", type=int, default=5, help="turns of each call (default %(default)s)")
    flags.add_argument("--timeout-ms", type=int, default=300, help="first_audio_timeout_ms (default %(default)s)")
    flags.add_argument("--spare-ms", type=int, default=40, help="first audio of the spare engine (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.turns = 2, 1
    windows = [_window(fault, chosen) for fault in FAULTS]
    windows.append(_window("dead", chosen, after=1))
    report.table(
        "text complete to first frame, in ms, as the server reports it | as the client sees it | words",
        ("engine", "turns", "p50", "p99", "| p50", "p99", "gap p99", "lost", "said again", "engines"),
        [
            (
                w["fault"], w["told_ms"]["n"], w["told_ms"]["p50"], w["told_ms"]["p99"], w["seen_ms"]["p50"],
                w["seen_ms"]["p99"], w["gap_ms"]["p99"], w["words_lost"], w["words_again"], w["engines"],
            )
            for w in windows
        ],
    )  # fmt: skip
    report.save(chosen, windows)


def _window(fault: str, chosen: argparse.Namespace, after: int | None = None) -> dict[str, Any]:
    args = ["--fault", fault, "--timeout-ms", str(chosen.timeout_ms), "--spare-ms", str(chosen.spare_ms)]
    if after is not None:
        args += ["--after", str(after)]
    server_core, load_core = cores()
    with (
        ServerProcess("failing", args, core=server_core, priority=chosen.priority) as server,
        placed_here(load_core, chosen.priority),
    ):
        turns = asyncio.run(_load(server.port, chosen, warm=after is not None))
    return {
        "fault": fault if after is None else f"{fault}, circuit open",
        "told_ms": report.percentiles([turn["told_ms"] for turn in turns]),
        "seen_ms": report.percentiles([turn["seen_ms"] for turn in turns]),
        "gap_ms": report.percentiles([turn["gap_ms"] for turn in turns]),
        "words_lost": sum(turn["lost"] for turn in turns),
        "words_again": sum(turn["again"] for turn in turns),
        "engines": " ".join(sorted({"+".join(turn["engines"]) for turn in turns})),
    }


async def _load(port: int, chosen: argparse.Namespace, *, warm: bool) -> list[dict[str, Any]]:
    if warm:
        await _call(port, 1)  # its failure opens the circuit
    calls = await asyncio.gather(*(_call(port, chosen.turns, n / chosen.calls) for n in range(chosen.calls)))
    return [turn for call in calls for turn in call]


async def _call(port: int, n_turns: int, phase_s: float = 0.0) -> list[dict[str, Any]]:
    url = f"ws://127.0.0.1:{port}/v1/stream?audio=binary&codec=pcm&rate={_RATE_HZ}"
    turns = []
    async with connect(url, compression=None, max_queue=None) as socket:
        await socket.recv()
        await asyncio.sleep(phase_s)
        for _ in range(n_turns):
            begun = time.monotonic()
            await socket.send(json.dumps({"type": "say", "text": _TEXT}))
            frames: list[bytes] = []
            at: list[float] = []
            told = 0.0
            async for message in socket:
                if isinstance(message, bytes):
                    frames.append(message)
                    at.append(time.monotonic())
                    continue
                event = json.loads(message)
                if event["type"] == "error":
                    raise RuntimeError(event)
                if event["type"] == "started":
                    told = event["first_audio_ms"]
                if event["type"] == "done":
                    break
            lost, again = _words(_letters(b"".join(frames)))
            turns.append({
                "told_ms": told, "seen_ms": (at[0] - begun) * 1000, "lost": lost, "again": again,
                "gap_ms": max(later - earlier for earlier, later in pairwise(at)) * 1000,
                "engines": event["engines"],
            })  # fmt: skip
    return turns


def _letters(payload: bytes) -> str:
    """The letters that were heard, in order. A tone that lasts for less than 20 ms does not count."""
    pcm = np.frombuffer(payload, "<i2").astype(np.float64)
    windows = pcm[: len(pcm) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    letters = sorted(set(_TEXT) - {" "})
    phase = np.arange(_WINDOW)[:, None] * (-2j * np.pi / _RATE_HZ)
    best = np.abs(windows @ np.exp(phase * np.array([tone_hz(letter) for letter in letters]))).argmax(1)
    loud = np.sqrt(np.mean(np.square(windows), axis=1)) > 500
    heard = [letters[n] if is_loud else " " for n, is_loud in zip(best, loud, strict=True)]
    runs = [(letter, len(list(run))) for letter, run in groupby(heard)]
    return "".join(letter for letter, _ in groupby(letter for letter, n in runs if n > 1 and letter != " "))


def _words(heard: str) -> tuple[int, int]:
    """(words of the text that are not in `heard` after the word before them, words that are there again)."""
    at, n_lost, n_again = 0, 0, 0
    for word in _TEXT.split():
        n_again += max(0, heard.count(word) - 1)
        found = heard.find(word, at)
        if found < 0:
            n_lost += 1
        else:
            at = found + len(word)
    return n_lost, n_again


if __name__ == "__main__":
    main()
