"""A benchmark's result: figures with the machine, the commit and the settings they belong to."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_BENCHMARKS = Path(__file__).resolve().parent.parent
_LIBRARIES = ("numpy", "soxr", "websockets", "uvloop", "onnxruntime", "hibari-tts", "prometheus_client", "torch")


def parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """The flags every benchmark has."""
    flags = argparse.ArgumentParser(
        prog=f"benchmarks/{name}.py",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        default=_BENCHMARKS / "results" / f"{name}.json",
        help="where the result is written (default benchmarks/results/%(prog)s)".replace("%(prog)s", f"{name}.json"),
    )
    flags.add_argument("--quick", action="store_true", help="tiny: shows that it runs, its figures mean nothing")
    flags.add_argument(
        "--priority",
        type=_priority,
        default=0,
        metavar="N",
        help="of servers and generators: a niceness, or `realtime` to keep their cores from all else; both need root",
    )
    flags.add_argument("--note", default="", help="kept in the result, e.g. what else the machine was doing")
    return flags


def _priority(word: str) -> int | str:
    return word if word == "realtime" else int(word)


def save(flags: argparse.Namespace, results: Any) -> None:
    """Write the result and say where."""
    settings = {k: v for k, v in vars(flags).items() if isinstance(v, int | float | str | list | tuple | bool)}
    document = {"machine": machine(), "commit": commit(), "settings": settings, "results": results}
    flags.json.parent.mkdir(parents=True, exist_ok=True)
    flags.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nresult in {flags.json.name}")


def machine() -> dict[str, Any]:
    """What the figures depend on. Neither host names nor paths: the file is public."""
    libraries = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            libraries[name] = "not installed"
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": libraries,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit the figures belong to, with "+changes" if the tree differs from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD").strip()
        return head + ("+changes" if _git("status", "--porcelain", "--", "telephony_tts").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=_BENCHMARKS, check=True, capture_output=True, text=True).stdout


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header, numbers to the right."""
    cells = [[_show(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    print(f"\n{title}")
    print(
        "  "
        + "  ".join(
            name.ljust(w) if i == 0 else name.rjust(w) for i, (name, w) in enumerate(zip(header, widths, strict=True))
        )
    )
    for row in cells:
        print(
            "  "
            + "  ".join(v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in enumerate(zip(row, widths, strict=True))),
            flush=True,
        )


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def percentiles(values: Sequence[float], *, digits: int = 3) -> dict[str, float]:
    """n, p50, p95, p99 and max, by nearest rank; only n for no values."""
    if not values:
        return {"n": 0}
    ordered = sorted(values)

    def rank(share: float) -> float:
        return round(
            float(ordered[min(len(ordered) - 1, max(0, -(-int(share * len(ordered) * 1000) // 1000) - 1))]), digits
        )

    return {
        "n": len(ordered),
        "p50": rank(0.5),
        "p95": rank(0.95),
        "p99": rank(0.99),
        "max": round(float(ordered[-1]), digits),
    }


def median(values: Sequence[float], digits: int = 3) -> float:
    return round(statistics.median(values), digits)
