"""This engine beside an older commit and beside the reference's formula: RTF and first audio of one caller.

Every side runs `bench engine` on the same random weights of full size, in a process of its own. The sides take turns.

  now      this checkout, with what `auto` chooses
  before   --commit, with the configuration for a CPU of that time
  formula  this engine, but every chunk of the flow computes all frames so far once more, at the reference's growing
           chunks (harness/recompute.py). The reference itself would take longer: it computes in float32 on a CPU
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import report
from harness.process import check_out

_EXAMPLES = """examples:
  python benchmarks/ratios.py --keep DIR                                   a quarter of an hour
  python benchmarks/ratios.py --keep DIR --sides now before --rounds 5
  python benchmarks/ratios.py --keep DIR --prefix 'taskset -c 0,1'         on two cores of many

--keep holds the random weights (2.6 GB), which all sides use.
"""
ROOT = Path(__file__).resolve().parent.parent
CONFIG = "configs/cosyvoice2-cpu.yaml"
BEFORE = "d9d057f"
"""The commit before the int8 kernels, and before `auto`."""
SIDES = ("now", "before", "formula")
FIGURES = ("rtf", "first_audio_ms_p50", "first_gap_ms_max", "underrun_ms_max", "audio_s")


def main() -> None:
    flags = report.parser("ratios", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="(default: all)")
    flags.add_argument("--commit", default=BEFORE, metavar="REV", help="of the side `before` (default %(default)s)")
    flags.add_argument("--rounds", type=int, default=3, help="runs of each side (default %(default)s)")
    flags.add_argument("--turns", type=int, default=2, help="of each run, after one that is not measured (%(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="of speech in a turn (default %(default)s)")
    flags.add_argument("--keep", type=Path, metavar="DIR", help="the random weights (default: a temporary directory)")
    flags.add_argument("--prefix", default="", metavar="WORDS", help="before each command, such as taskset -c 0")
    chosen = flags.parse_args()
    chosen.size = "full"
    if chosen.quick:
        chosen.size, chosen.seconds, chosen.rounds, chosen.turns = "tiny", 3.2, 1, 1
        chosen.sides = ["now", "formula"]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in chosen.sides}
    with tempfile.TemporaryDirectory(prefix="telephony-tts-ratios-") as folder:
        keep = chosen.keep or Path(folder) / "weights"
        older = Path(folder) / "before"
        if "before" in chosen.sides:
            older.mkdir()
            check_out(chosen.commit, older)
        for _ in range(chosen.rounds):
            for side in chosen.sides:
                root = older if side == "before" else ROOT
                runs[side].append(_run(chosen, side, root, keep, Path(folder) / "run.json"))
    medians = {side: _medians(of_side) for side, of_side in runs.items()}
    results = {"median": medians, "ratio": _ratios(medians), "runs": runs}
    report.table(
        "one caller, medians of runs",
        ("side", *FIGURES, "RTF, ratio", "first audio, ratio"),
        [
            (side, *(of_side[name] for name in FIGURES), *results["ratio"][side].values())
            for side, of_side in medians.items()
        ],
    )
    del chosen.keep, chosen.prefix
    report.save(chosen, results)


def _run(chosen: argparse.Namespace, side: str, root: Path, keep: Path, out: Path) -> dict[str, Any]:
    """The figures of one run of `bench engine`. Raises SystemExit if it fails."""
    # Commits before the package had a `__main__` are compared with too.
    has_main = (root / "telephony_tts" / "__main__.py").exists()
    program = ["-m", "telephony_tts" if has_main else "telephony_tts.cli"]
    if side == "formula":
        program = [str(ROOT / "benchmarks" / "harness" / "recompute.py")]
    words = [*shlex.split(chosen.prefix), sys.executable, *program, "bench", "engine", "--config", CONFIG]
    words += ["--random", chosen.size, "--keep", str(keep), "--no-pacing", "--concurrency", "1"]
    if chosen.quick:
        words += ["--set", "engines.cosyvoice2.isolation=thread"]  # a process would import PyTorch once more
    words += ["--turns", str(chosen.turns), "--seconds", str(chosen.seconds), "--json", str(out)]
    print(f"  {side}", file=sys.stderr, flush=True)
    done = subprocess.run(
        words, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    document = json.loads(out.read_text(encoding="utf-8"))
    settings, (row,) = document["settings"], document["results"]
    found = {name: row.get(name) for name in FIGURES}
    found["precision"] = settings.get("precision") or {key: settings[key] for key in ("dtype", "lm_dtype")}
    return found


def _medians(runs: list[dict[str, Any]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in FIGURES:
        values = [run[name] for run in runs if run[name] is not None]
        found[name] = round(statistics.median(values), 4) if values else None
    return found


def _ratios(medians: dict[str, dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """This engine's RTF and first audio divided by those of each side; None unless it was measured."""
    ours = medians.get("now")
    return {
        side: {name: None if ours is None else round(ours[name] / theirs[name], 3) for name in FIGURES[:2]}
        for side, theirs in medians.items()
    }


if __name__ == "__main__":
    main()
