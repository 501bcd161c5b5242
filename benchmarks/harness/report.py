"""The flags that all benchmarks have, their result as a file, and tables of figures."""

from __future__ import annotations

import argparse
import os
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from telephony_tts.bench import machine
from telephony_tts.bench.measures import percentile
from telephony_tts.bench.report import format_table, write_result

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
    flags.add_argument("--quick", action="store_true", help="a tiny run, whose figures mean nothing")
    flags.add_argument(
        "--priority",
        type=_priority,
        default=0,
        metavar="N",
        help="of servers and load generators: a niceness, or `realtime`; both need root",
    )
    flags.add_argument("--note", default="", help="kept in the result, such as what else the machine was doing")
    return flags


def _priority(word: str) -> int | str:
    return word if word == "realtime" else int(word)


def save(flags: argparse.Namespace, results: Any) -> None:
    """Write the result to `flags.json` and print the file's name."""
    settings = {k: v for k, v in vars(flags).items() if isinstance(v, int | float | str | list | tuple | bool)}
    # Some benchmarks pin this process to one core, so the cores it may use are not those of the machine.
    about = {**machine.machine("cpu", _LIBRARIES), "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 2)}
    flags.json.parent.mkdir(parents=True, exist_ok=True)
    write_result(flags.json, machine=about, commit=machine.commit() or "unknown", settings=settings, results=results)
    print(f"\nresult in {flags.json.name}")


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header."""
    print(f"\n{title}")
    print(textwrap.indent(format_table(header, list(rows)), "  "), flush=True)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """n, p50, p95, p99 and max, by nearest rank, with three decimals; only n for no values."""
    if not values:
        return {"n": 0}
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    figures = {name: round(float(percentile(values, share) or 0), 3) for name, share in shares.items()}
    return {"n": len(values), **figures}


def median(values: Sequence[float], digits: int = 3) -> float:
    return round(statistics.median(values), digits)
