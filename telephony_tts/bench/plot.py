"""A chart of results: first audio by the number of callers, next to published figures of other servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telephony_tts.runtime.errors import ConfigError, how_to_get

PUBLISHED_MS: Mapping[int, tuple[float, float | None]] = {1: (190, 209), 2: (320, 330), 4: (510, 980), 8: (1000, None)}
"""First audio of published CosyVoice2 servers on one GPU: streams to (from, to); None if only "over" is published."""
LIMIT_MS = 300
"""A caller takes an answer within this time as immediate."""
FORMATS = (".png", ".svg", ".pdf")
_KEYS = ("concurrency", "first_audio_ms_p50", "first_audio_ms_p95")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the chart: numbers of callers, and the p50 and p95 in ms for each."""

    label: str
    concurrency: list[int]
    p50_ms: list[float]
    p95_ms: list[float]


def read_series(files: Sequence[Path]) -> list[Series]:
    """A series for each loop of each result. Raises ConfigError for a file that is not a result or has no audio."""
    series = []
    for file in files:
        for mode, rows in _rows_by_mode(file).items():
            label = f"{file.stem}, {mode} loop" if len(files) > 1 else f"{mode} loop"
            callers, p50_ms, p95_ms = ([row[key] for row in rows] for key in _KEYS)
            series.append(Series(label, callers, p50_ms, p95_ms))
    return series


def _rows_by_mode(file: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        results = json.loads(file.read_text(encoding="utf-8"))["results"]
        found: dict[str, list[dict[str, Any]]] = {}
        for row in results:
            if row["first_audio_ms_p50"] is not None:
                _need_numbers(row)
                found.setdefault(row["mode"], []).append(row)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: is not a result of telephony-tts bench engine --json") from error
    if not found:
        raise ConfigError(f"{file}: has no turn with audio, so there is nothing to draw")
    return {mode: sorted(rows, key=lambda row: int(row["concurrency"])) for mode, rows in found.items()}


def _need_numbers(row: Mapping[str, Any]) -> None:
    for key in _KEYS:
        if not isinstance(row[key], int | float) or row[key] <= 0:
            raise ValueError(key)


def draw(series: Sequence[Series], out: Path) -> None:
    """Write the chart in the format of the file's suffix. Raises ConfigError if it cannot be written."""
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"{out}: unknown format; expected a name that ends in {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
    except ImportError as error:
        raise ConfigError(f"matplotlib is not installed: {how_to_get('bench')}") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for n, (streams, (low, high)) in enumerate(PUBLISHED_MS.items()):
        label = "published CosyVoice2 servers" if n == 0 else None
        if high is None:
            axes.plot([streams], [low], "^", color="0.55", markersize=10, label=label)
            axes.annotate("over 1 s", (streams, low), (6, 4), textcoords="offset points", color="0.4", fontsize=9)
        else:
            axes.plot([streams, streams], [low, high], color="0.7", linewidth=7, solid_capstyle="butt", label=label)
    for n, each in enumerate(series):
        color = f"C{n % 10}"
        axes.plot(each.concurrency, each.p50_ms, "o-", color=color, label=f"{each.label}, p50")
        axes.plot(each.concurrency, each.p95_ms, "s--", color=color, markersize=4, label=f"{each.label}, p95")
    axes.axhline(LIMIT_MS, color="tab:red", linewidth=1, linestyle=":", label=f"{LIMIT_MS} ms")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    callers = sorted({n for each in series for n in each.concurrency} | set(PUBLISHED_MS))
    axes.xaxis.set_major_locator(FixedLocator(callers))
    low_ms, high_ms = _range_ms(series)
    axes.yaxis.set_major_locator(FixedLocator(_ticks(low_ms, high_ms)))
    axes.set_ylim(low_ms * 0.8, high_ms * 1.25)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("callers at once")
    axes.set_ylabel("first audio, ms")
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from error


def _range_ms(series: Sequence[Series]) -> tuple[float, float]:
    """The smallest and the largest value in the chart."""
    drawn = [value for each in series for value in (*each.p50_ms, *each.p95_ms)]
    published = [value for pair in PUBLISHED_MS.values() for value in pair if value is not None]
    return min([*drawn, *published, LIMIT_MS]), max([*drawn, *published, LIMIT_MS])


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: 100, 200, 300, 500, 1000 and so on."""
    steps = [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 3, 5)]
    return [step for step in steps if low * 0.8 <= step <= high * 1.25]
