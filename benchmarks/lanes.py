"""Two lanes of the CosyVoice2 engine on a CPU: free or pinned, with OpenMP threads that spin or sleep, or helping.

One thread draws ids and another one computes Euler steps, as the two lanes of the engine do for one caller. The weights
are those that the engine times at its start. Each case runs in a process of its own, because OpenMP reads its settings
when it is loaded. The cases take turns. What counts is the time for each id and each block while both lanes work, and
the time of the processor for them.

In int8 there are two more cases, in which only one lane has work: alone, and with the help of the other
(`HelpingLanes`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time

from harness import report

_EXAMPLES = """examples:
  python benchmarks/lanes.py
  python benchmarks/lanes.py --lm int8 --flow int8 --seconds 4 --repeat 7
"""
CASES: dict[str, tuple[bool, int, dict[str, str]]] = {
    "free": (False, 1, {}),
    "pinned": (True, 1, {}),
    "two threads": (False, 2, {}),
    "two threads, spinning": (False, 2, {"OMP_WAIT_POLICY": "ACTIVE"}),
    "two threads, sleeping": (False, 2, {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}),
}
"""Whether each lane is pinned to a core, threads of PyTorch in each lane, and the environment."""
IN_TURN = ("alone", "helped")
"""Cases in which one lane computes at a time."""


def main() -> None:
    flags = report.parser("lanes", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--lm", default="int8", help="precision of the language model (default %(default)s)")
    flags.add_argument("--flow", default="int8", help="precision of the flow (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=3.0, help="of each run (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=5, help="runs of each case (default %(default)s)")
    flags.add_argument("--case", choices=(*CASES, *IN_TURN), help=argparse.SUPPRESS)
    chosen = flags.parse_args()
    if chosen.case is not None:
        print(json.dumps(_one_lane(chosen) if chosen.case in IN_TURN else _two_lanes(chosen)))
        return
    if chosen.quick:
        chosen.seconds, chosen.repeat = 0.2, 1
    in_turn = IN_TURN if chosen.lm == chosen.flow == "int8" else ()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*CASES, *in_turn)}
    for _ in range(chosen.repeat):
        for name, of_case in runs.items():
            _, n_threads, environment = CASES.get(name, CASES["free"])
            of_case.append(_child(chosen, name, {**environment, "OMP_NUM_THREADS": str(n_threads)}))
    results = {name: {key: _median(of_case, key) for key in of_case[0]} for name, of_case in runs.items()}
    for title, cases in (("two lanes at once", CASES), ("one lane at a time", in_turn)):
        if cases:
            rows = [(name, *results[name].values()) for name in cases]
            report.table(f"{title} (medians)", ("case", *results[next(iter(cases))]), rows)
    report.save(chosen, {"median": results, "runs": runs})


def _median(runs: list[dict[str, float]], key: str) -> float:
    return round(statistics.median(run[key] for run in runs), 3)


def _child(chosen: argparse.Namespace, case: str, environment: dict[str, str]) -> dict[str, float]:
    words = ["--case", case, "--lm", chosen.lm, "--flow", chosen.flow, "--seconds", str(chosen.seconds)]
    told = subprocess.run(
        [sys.executable, __file__, *words],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found: dict[str, float] = json.loads(told)
    return found


def _one_lane(chosen: argparse.Namespace) -> dict[str, float]:
    """The time of an id and of a block, one after the other, while a second thread helps or does not exist."""
    import torch

    from telephony_tts.engines.cosyvoice2.device.cpu_timing import CacheFlush, flow_works, lm_works
    from telephony_tts.engines.cosyvoice2.device.idle_lanes import HelpingLanes
    from telephony_tts.engines.cosyvoice2.model.config import ModelConfig

    torch.set_num_threads(1)
    lanes, config, flush = HelpingLanes(), ModelConfig(), CacheFlush()
    found: dict[str, float] = {}
    with torch.inference_mode():
        works = {"ms an id": lm_works(config, flush)["int8"], "ms a block": flow_works(config, flush)["int8"]}
        if chosen.case == "helped":
            threading.Thread(target=lanes.wait, args=(lanes.n_calls(),), daemon=True).start()
        for name, work in works.items():
            times, end = list[float](), time.perf_counter() + chosen.seconds / 2
            while not times or time.perf_counter() < end:
                times.append(work()[0])
            found[name] = 1000 * statistics.median(times)
    return found


def _two_lanes(chosen: argparse.Namespace) -> dict[str, float]:
    """The time of an id and of a block while both lanes work, and CPU seconds."""
    import torch

    from telephony_tts.engines.cosyvoice2.device.cpu_timing import CacheFlush, Timed, flow_works, lm_works
    from telephony_tts.engines.cosyvoice2.model.config import ModelConfig

    is_pinned, n_threads, _ = CASES[chosen.case]
    cpus = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(n_threads)
    config, flush = ModelConfig(), CacheFlush()
    with torch.inference_mode():
        works = [lm_works(config, flush)[chosen.lm], flow_works(config, flush)[chosen.flow]]
        for work in works:
            work()
    n_done, cpu_s = [0, 0], [0.0, 0.0]
    start = threading.Barrier(2)

    def lane(i: int, work: Timed) -> None:
        if is_pinned:
            os.sched_setaffinity(0, {cpus[i % len(cpus)]})  # of this thread alone
        torch.set_num_threads(n_threads)
        with torch.inference_mode():
            start.wait()
            end = time.perf_counter() + chosen.seconds
            cpu = time.thread_time()
            while time.perf_counter() < end:
                work()
                n_done[i] += 1
            cpu_s[i] = time.thread_time() - cpu

    threads = [threading.Thread(target=lane, args=(i, work)) for i, work in enumerate(works)]
    begun, begun_cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken, all_cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    ids_ms, blocks_ms = (1000 * taken / max(1, n) for n in n_done)
    return {
        "ms a run, ids": ids_ms,
        "ms a run, flow": blocks_ms,
        "CPU ms a run, ids": 1000 * cpu_s[0] / max(1, n_done[0]),
        "CPU ms a run, flow": 1000 * cpu_s[1] / max(1, n_done[1]),
        "CPU s a second, all threads": all_cpu / taken,
    }


if __name__ == "__main__":
    main()
