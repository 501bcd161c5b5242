"""A picture of simulated runs: calls, replicas, refusals and first audio over time, one line for each run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from telephony_tts.bench.measures import NS_PER_S, percentile
from telephony_tts.runtime.errors import ConfigError

BINS = 60


def series(samples: Sequence[tuple[Any, ...]], first_audio: Sequence[tuple[int, float, bool]],
           refused: Sequence[tuple[int, str]]) -> dict[str, list[Any]]:  # fmt: skip
    """What is drawn of a run: minutes, live calls, sentences under way, replicas ready, mean load, and for each part of
    the time the calls refused and the p99 of first audio in ms (None if no turn began)."""
    end_ns = max(1, samples[-1][0])
    width_ns = end_ns / BINS
    edges = [i * width_ns for i in range(1, BINS + 1)]
    first: list[list[float]] = [[] for _ in range(BINS)]
    for at_ns, ms, _ in first_audio:
        first[min(BINS - 1, bisect_left(edges, at_ns))].append(ms)
    n_refused = [0] * BINS
    for at_ns, _ in refused:
        n_refused[min(BINS - 1, bisect_left(edges, at_ns))] += 1
    thinned = samples[:: max(1, len(samples) // 300)]
    return {
        "minutes": [round(sample[0] / NS_PER_S / 60, 3) for sample in thinned],
        "live_calls": [sample[1] for sample in thinned],
        "under_way": [sample[2] for sample in thinned],
        "replicas": [sample[3] for sample in thinned],
        "load": [round(sample[5], 3) for sample in thinned],
        "bin_minutes": [round((i + 0.5) * width_ns / NS_PER_S / 60, 3) for i in range(BINS)],
        "refused": n_refused,
        "first_audio_ms_p99": [percentile(values, 0.99) for values in first],
    }


def draw(runs: Mapping[str, Mapping[str, Sequence[Any]]], title: str, out: Path) -> None:
    """Write the picture in the format of the file's suffix. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("matplotlib is not installed: pip install -e '.[bench]' in the checkout") from error
    figure = Figure(figsize=(9, 11), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True)
    for n, (name, run) in enumerate(runs.items()):
        color, minutes = f"C{n % 10}", run["minutes"]
        if n == 0:
            panels[0].plot(minutes, run["live_calls"], color="0.3", label="live calls")
            panels[0].plot(minutes, run["under_way"], color="0.6", label="sentences under way")
        panels[1].step(minutes, run["replicas"], where="post", color=color, label=name)
        panels[2].step(run["bin_minutes"], run["refused"], where="mid", color=color)
        known = [
            (at, ms) for at, ms in zip(run["bin_minutes"], run["first_audio_ms_p99"], strict=True) if ms is not None
        ]
        panels[3].plot([at for at, _ in known], [ms for _, ms in known], color=color)
    panels[0].legend(fontsize=8)
    for panel, label in zip(panels, ("calls", "replicas ready", "calls refused", "first audio p99, ms"), strict=True):
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        panel.set_ylim(bottom=0)
    panels[3].set_xlabel("minutes")
    figure.suptitle(title, fontsize=10)
    figure.legend(*panels[1].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
