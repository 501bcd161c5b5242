"""Checks the CosyVoice2 engine on a GPU in minutes: is it right, how fast is it, how many callers does it carry?

Each part runs in a process of its own with a limit, and writes each result when it has it. Call the command again with
the same directory: it goes on where it ended. The weights are random, so the speech is noise; times do not depend on
that.

  environment      the machine; what it multiplies and copies at most
  equality         the whole tiny engine against the CPU: tokens, mel, audio
  steps-DTYPE      graphs, waits of the host, kernels and times of each stage, a trace
  loads-DTYPE      first audio by callers and by arrivals, most callers and highest rate without a gap
  stages           each network at full size against float32 on the CPU
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpu.parts import CheckPart, run_parts
from gpu.result_file import PartRun, ResultFile

EXAMPLES = """examples:
  python benchmarks/gpu_check.py --out gpu-h200                        at most 8 minutes on a GPU
  python benchmarks/gpu_check.py --out gpu-h200                        again: what is missing
  python benchmarks/gpu_check.py --device cpu --size tiny --plan quick --out gpu-tiny    a rehearsal of a minute
"""
PARTS = (
    CheckPart("environment", "the machine and the weights", 90, 5),
    CheckPart("equality", "the tiny engine against the CPU", 60, 10),
    CheckPart("steps-float16", "graphs, waits, kernels and times of each stage", 90, 25),
    CheckPart("loads-float16", "first audio and capacity", 300, 60),
    CheckPart("loads-bfloat16", "first audio and capacity", 200, 60),
    CheckPart("stages", "each network against float32 on the CPU", 90, 30),
    CheckPart("steps-bfloat16", "graphs, waits, kernels and times of each stage", 90, 25),
)
"""By worth. Limits in seconds: the whole takes longer than a default budget, and a second call does the rest."""
BUDGET_S = 480.0
SUMMARY_S = 10.0
"""Of the budget, for the summary at the end."""
RESULTS = "results.jsonl"


def main(argv: Sequence[str] | None = None, program: Sequence[str] = (sys.executable, __file__)) -> int:
    """Exit status 0 if all parts are done, 1 if some are not, 2 for wrong flags. `program` runs each part."""
    flags = argparse.ArgumentParser(
        prog="benchmarks/gpu_check.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results are, new or begun")
    flags.add_argument("--budget-s", type=float, default=BUDGET_S, metavar="S", help="for all parts (%(default)s)")
    flags.add_argument("--device", default="cuda", metavar="D", help="cuda, cuda:N, or cpu to rehearse (%(default)s)")
    flags.add_argument("--size", choices=("full", "tiny"), default="full", help="of the networks (%(default)s)")
    flags.add_argument("--plan", choices=("whole", "quick"), default="whole", help="quick: figures mean nothing")
    flags.add_argument("--only", metavar="PART,...", help="these parts alone")
    flags.add_argument(
        "--weights", type=Path, metavar="DIR", default=Path(tempfile.gettempdir()) / "telephony-tts-gpu-check",
        help="where the random weights are kept: 2.6 GB (%(default)s)",
    )  # fmt: skip
    flags.add_argument("--commit", help="of the code, where the checkout has no git")
    flags.add_argument("--part", help=argparse.SUPPRESS)
    flags.add_argument("--begun-s", type=float, default=time.monotonic(), help=argparse.SUPPRESS)
    chosen = flags.parse_args(argv)
    parts = [part for part in PARTS if chosen.only is None or part.name in chosen.only.split(",")]
    unknown = set((chosen.only or "").split(",")) - {part.name for part in PARTS} - {""}
    if unknown or not parts:
        flags.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in PARTS)}")
    if chosen.plan == "quick":  # on a busy CPU each part may take long
        parts = [replace(part, limit_s=chosen.budget_s) for part in parts]
    results = ResultFile(chosen.out / RESULTS)
    tell = _teller(chosen.begun_s)
    if chosen.part is not None:
        return run_part(chosen, results, tell)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running part ends as well
    chosen.out.mkdir(parents=True, exist_ok=True)
    try:
        results.begin({"device": chosen.device, "size": chosen.size, "plan": chosen.plan, "commit": _commit(chosen)})
    except ValueError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    passed = list(sys.argv[1:] if argv is None else argv)
    try:
        is_done = run_parts(
            parts,
            lambda part: [*program, *passed, "--part", part.name, "--begun-s", str(chosen.begun_s)],
            results,
            chosen.budget_s - SUMMARY_S,
            tell,
        )
    finally:  # also after Ctrl-C: what there is
        from gpu import summary

        text = summary.write(chosen.out, results, [part.name for part in PARTS])
        print(text, flush=True)
    return 0 if is_done else 1


def run_part(chosen: argparse.Namespace, results: ResultFile, tell: Callable[[str], None]) -> int:
    """One part, in this process; 1 if a unit of it failed."""
    name, _, dtype = chosen.part.partition("-")
    run = PartRun(results, chosen.part, tell)
    with run.unit("whole part") as found:
        # The process that runs the parts does not import PyTorch.
        from gpu import devices, environment, equality, loads, steps
        from gpu.check import PLANS, Check

        work: dict[str, Callable[[Check], None]] = {
            "environment": environment.run,
            "equality": equality.run_tiny,
            "stages": equality.run_stages,
            "steps": steps.run,
            "loads": loads.run,
        }
        device, plan = devices.make_device(chosen.device), PLANS[chosen.plan]
        work[name](Check(run, device, chosen.size, chosen.weights, plan, chosen.out, dtype or "float32"))
        found({"failed": list(run.failed)})
    return 1 if run.failed else 0


def _commit(chosen: argparse.Namespace) -> str:
    from telephony_tts.bench import machine

    return str(chosen.commit or machine.commit() or "unknown")


def _teller(begun_s: float) -> Callable[[str], None]:
    def tell(text: str) -> None:
        print(f"[{time.monotonic() - begun_s:5.0f} s] {text}", flush=True)

    return tell


if __name__ == "__main__":
    sys.exit(main())
