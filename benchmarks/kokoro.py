"""The embedded Mandarin voice: first audio, gaps, CPU time, level at the joints, two calls at once, cancels, memory.

The ways take turns, sentence by sentence. Ways: `kernels` (our own kernels compute the generator) and `onnxruntime` (as
on a machine without them), each in parts and as whole clauses. The parts are judged against the whole clauses of the
same way. Load and memory are those of a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from harness import report

from telephony_tts.engines.api import Pcm, Utterance
from telephony_tts.engines.kokoro import generator as kokoro_generator
from telephony_tts.engines.kokoro.engine import KokoroEngine

_EXAMPLES = """examples:
  python benchmarks/kokoro.py                      both ways, about 5 minutes on a machine without other work
  chrt -r 1 python benchmarks/kokoro.py --rounds 1 other work has little part in the times; needs root
  python benchmarks/kokoro.py --ways kernels --rounds 5
"""
TEXTS = (
    "您好，请问您今天能还款吗？",
    "请问您是张先生本人吗？方便说话吗？",
    "您好，这里是平安保险公司客户服务中心。",
    "好的，我已经帮您登记好了，稍后会有专员和您联系。",
    "您的快递已经到了小区门口，请您带上身份证下楼来取一下。",
    "第一期账单一共三百五十元，请您不用担心，我们会按时通知您。",
    "您的订单预计明天下午三点到五点之间送达，请保持电话畅通。",
    "请您在听到提示音之后输入您的身份证号码后六位以井号键结束。",
    "我们这边显示您有一笔账单已经逾期。如果您今天还款，就不会影响您的信用记录。请问您今天方便处理吗？需要我再说一遍吗？",
)
WAYS = ("kernels", "onnxruntime")
RATE_HZ = 24_000
_FAR_S = 600
_STEP_S = 0.1
"""The level at a joint is that of so much sound before and behind it."""


@dataclass
class Spoken:
    """An utterance as a listener has it. `gap_s`: the silence while the sound was not ready, altogether."""

    first_s: float = 0.0
    gap_s: float = 0.0
    cpu_s: float = 0.0
    pcm: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))
    joints: list[int] = field(default_factory=list)
    """Where a part begins, in samples."""

    @property
    def seconds(self) -> float:
        return len(self.pcm) / RATE_HZ


async def speak(engine: KokoroEngine, text: str, *, whole: bool = False) -> Spoken:
    spoken, parts, ends = Spoken(), [], 0.0
    begun, cpu = time.perf_counter(), time.process_time()
    deadline = time.monotonic_ns() + _FAR_S * 1_000_000_000 if whole else 0
    n_samples = 0
    async for chunk in engine.synthesize(Utterance("u", text, deadline_ns=deadline)):
        now = time.perf_counter() - begun
        if not parts:
            spoken.first_s = ends = now
        spoken.gap_s += max(0.0, now - ends)
        ends = max(ends, now) + len(chunk.pcm) / RATE_HZ
        if chunk.timings and parts:
            spoken.joints.append(n_samples)
        parts.append(chunk.pcm)
        n_samples += len(chunk.pcm)
    spoken.cpu_s = time.process_time() - cpu
    spoken.pcm = np.concatenate(parts)
    return spoken


def level_steps(spoken: Spoken, whole: Spoken) -> list[float]:
    """The steps in dB at the joints that have sound at both sides, beside those of the whole clauses there."""
    n, steps = round(_STEP_S * RATE_HZ), []
    for joint in spoken.joints:
        if joint < 2 * n or joint + 2 * n > min(len(spoken.pcm), len(whole.pcm)):
            continue
        around = spoken.pcm[joint - n : joint + n].astype(np.float64)
        shifts = range(-n // 2, n // 2)  # a part may begin a few milliseconds earlier than the whole
        others = whole.pcm[joint - n + shifts[0] : joint + n + shifts[-1] + 1].astype(np.float64)
        best = int(np.argmax(np.correlate(others, around, "valid")))
        alike = others[best : best + 2 * n]
        levels = [level_db(each) for each in (around[:n], around[n:], alike[:n], alike[n:])]
        if min(levels) > -45:
            steps.append(abs(levels[1] - levels[0] - (levels[3] - levels[2])))
    return steps


def level_db(pcm: npt.NDArray[np.float64]) -> float:
    return float(10 * np.log10(np.square(pcm / 32_768).mean() + 1e-9))


@contextmanager
def way(name: str) -> Iterator[None]:
    """Engines that are loaded here compute in this way."""
    if name == "kernels":
        yield
        return
    with patch.object(kokoro_generator, "fits", lambda: False):
        yield


async def cancels(engine: KokoroEngine, n: int) -> list[float]:
    """Milliseconds from a cancel, at a random time, until no worker computes."""
    found, dice = [], random.Random(1)
    for _ in range(n):
        stream = engine.synthesize(Utterance("u", TEXTS[-1], deadline_ns=time.monotonic_ns() + _FAR_S * 1_000_000_000))
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(dice.uniform(0.02, 0.5))
        begun = time.perf_counter()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()
        found.append((time.perf_counter() - begun) * 1000)
        assert engine.stats().n_running == 0
    return found


async def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    engines: dict[str, KokoroEngine] = {}
    for name in chosen.ways:
        engines[name] = KokoroEngine()
        with way(name):
            await engines[name].start()
    runs: dict[tuple[str, str], list[Spoken]] = {}
    pairs: dict[str, list[Spoken]] = {name: [] for name in engines}
    steps: dict[str, list[float]] = {name: [] for name in engines}
    try:
        for _ in range(chosen.rounds):
            for text in TEXTS[: chosen.texts]:
                for name, engine in engines.items():
                    spoken, whole = await speak(engine, text), await speak(engine, text, whole=True)
                    runs.setdefault((name, "parts"), []).append(spoken)
                    runs.setdefault((name, "whole clauses"), []).append(whole)
                    steps[name] += level_steps(spoken, whole)
            for first, second in pairwise(TEXTS[: chosen.texts]):
                for name, engine in engines.items():
                    pairs[name] += await asyncio.gather(speak(engine, first), speak(engine, second))
        stopped = {name: await cancels(engine, chosen.cancels) for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            await engine.close()
    return {
        "utterances": [{"way": name, "spoken in": kind, **figures(of)} for (name, kind), of in runs.items()],
        "two calls at once": [{"way": name, **figures(of, 2)} for name, of in pairs.items()],
        "level step at joints, dB": [
            {"way": name, "joints": len(of), "median": report.median(of, 2), "p90": round(np.percentile(of, 90), 2)}
            for name, of in steps.items()
            if of
        ],
        "cancel until the core is free, ms": [{"way": name, **report.percentiles(of)} for name, of in stopped.items()],
    }


def figures(of: list[Spoken], n_calls: int = 1) -> dict[str, float]:
    """Of utterances of which so many were spoken at a time: the CPU time of each includes that of the others."""
    first = sorted(each.first_s for each in of)
    return {
        "first audio p50, s": report.median(first),
        "first audio p90, s": round(float(np.percentile(first, 90)), 3),
        "utterances with a gap": sum(each.gap_s > 0.001 for each in of),
        "largest gap, s": round(max(each.gap_s for each in of), 3),
        "CPU for a second, s": round(sum(each.cpu_s for each in of) / n_calls / sum(each.seconds for each in of), 3),
    }


def memory(name: str, texts: Sequence[str]) -> None:
    """Print what a process of its own takes that loads one way, and speaks these texts."""

    def kib(field: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    async def run() -> dict[str, float]:
        engine, before = KokoroEngine(), kib("VmRSS")
        begun, cpu = time.perf_counter(), time.process_time()
        with way(name):
            await engine.start()
        load_s, load_cpu_s, loaded = time.perf_counter() - begun, time.process_time() - cpu, kib("VmRSS")
        for text in texts:
            await speak(engine, text)
        used, peak = kib("VmRSS"), kib("VmHWM")
        await engine.close()
        return {
            "load, s": round(load_s, 2), "load, CPU s": round(load_cpu_s, 2),
            **{key: round(n / 1024) for key, n in (
                ("before, MB", before), ("loaded, MB", loaded), ("after speech, MB", used), ("at the peak, MB", peak),
            )},
        }  # fmt: skip

    print(json.dumps(asyncio.run(run())))


def main() -> None:
    flags = report.parser("kokoro", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(default both)")
    flags.add_argument("--rounds", type=int, default=2, help="of all sentences (default %(default)s)")
    flags.add_argument("--texts", type=int, default=len(TEXTS), help="so many sentences (default all)")
    flags.add_argument("--cancels", type=int, default=50, help="for each way (default %(default)s)")
    flags.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    chosen = flags.parse_args()
    if chosen.memory_of:
        memory(chosen.memory_of, TEXTS[:1] if chosen.quick else [TEXTS[-1]] * 3)
        return
    if chosen.quick:
        chosen.rounds, chosen.texts, chosen.cancels = 1, 2, 2
    results: dict[str, Any] = {"load and memory": []}
    for name in chosen.ways:
        command = [sys.executable, __file__, "--memory-of", name, *(["--quick"] if chosen.quick else [])]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=paths).stdout
        results["load and memory"].append({"way": name, **json.loads(found)})
    results |= asyncio.run(measure(chosen))
    for title, rows in results.items():
        if rows:
            report.table(title, tuple(rows[0]), [tuple(row.values()) for row in rows])
    report.save(chosen, results)


if __name__ == "__main__":
    main()
