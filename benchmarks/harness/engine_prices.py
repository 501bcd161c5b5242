"""What an engine's batches cost: an H200's, or those of a result of `bench engine --json`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.cost import H200, H200_PREFILL_ROWS, Cost
from harness.simulated import N_EULER, ROW_TOKENS
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.engines.cosyvoice2.profile import PROFILES, Profile
from telephony_tts.engines.cosyvoice2.settings import AheadLimits

TOKENS_PER_S = 25
MS_PER_S = 1000
_AHEAD = AheadLimits()


@dataclass(frozen=True, slots=True)
class EnginePrices:
    """One engine replica: what its batches cost and how it is set up. It steps in one lane.

    `notes`: how the prices were found.
    """

    label: str
    cost: Cost
    """Of the flow: one of `N_EULER` equal steps, even if the engine makes fewer."""
    sizes: BatchSizes
    n_slots: int
    profile: Profile = PROFILES["default"]
    ahead: AheadLimits = _AHEAD
    notes: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """For a result: prices in ms of a batch and of a row, and where they come from."""
        return {
            "label": self.label,
            "prices_ms": asdict(self.cost),
            "batch_sizes": asdict(self.sizes),
            "slots": self.n_slots,
            "notes": list(self.notes),
        }


def wide(n_slots: int) -> BatchSizes:
    """The batch sizes of a GPU, as `device.runner.Runner` sets them."""
    return BatchSizes(prefill=min(H200_PREFILL_ROWS, n_slots), decode=n_slots, flow=n_slots, vocode=n_slots)


NAMED_PRICES = {
    "h200": EnginePrices(
        "h200",
        H200,
        wide(256),
        256,
        notes=("measured: benchmarks/results/gpu_check.json, float16, random weights, 256 slots",),
    ),
}
"""Prices that were measured, by name."""


def from_bench_engine(document: Mapping[str, Any], name: str) -> EnginePrices:
    """The prices that follow from the counters of a result of `bench engine --json`.

    A batch's time is taken as batch + row · rows, fitted over the loads of the result. One load cannot tell the two
    apart; then the whole time is the row's. Raises ValueError if the result has no counters.
    """
    try:
        settings, rows = document["settings"], [row for row in document["results"] if row.get("counters")]
        n_euler = int(settings.get("flow_steps") or N_EULER)
        n_lanes, n_slots = int(settings.get("workers") or 1), int(settings["slots"])
        on_cpu = str(settings["device"]) == "cpu"
        is_small = settings.get("family") == "300m"
        points = {stage: [_point(row["counters"], stage, n_euler) for row in rows] for stage in Stage}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: is not a result of telephony-tts bench engine --json ({error})") from error
    if not rows:
        raise ValueError(f"{name}: has no counters of the engine; measure cosyvoice2 with bench engine --json")
    if is_small:
        raise ValueError(f"{name}: is of CosyVoice-300M; the simulation knows cosyvoice2 only")
    notes = [f"measured: {name}, commit {document.get('commit')}, {len(rows)} loads"]
    drawn = sum(row["counters"]["decode_rows"] for row in rows)
    n_tokens = sum(row["counters"]["audio_s"] for row in rows) * TOKENS_PER_S
    run_ahead = max(1, round(n_tokens / drawn)) if drawn else 1
    pairs = {}
    for stage, found in points.items():
        batch_s, row_s, how = _fit(found)
        factor = MS_PER_S / n_lanes * (n_euler / N_EULER if stage is Stage.FLOW else 1)
        pairs[stage.name.lower()] = (batch_s * factor, row_s * factor)
        notes.append(f"{stage.name.lower()}: {how}")
    if n_lanes > 1:
        notes.append(f"{n_lanes} lanes are simulated as one that is {n_lanes} times as fast: first audio is too early")
    sizes = BatchSizes(decode=min(4, n_slots)) if on_cpu else wide(n_slots)
    ahead = AheadLimits(audio_ms=int(settings.get("ahead_ms") or AheadLimits().audio_ms))
    return EnginePrices(
        name,
        Cost(**pairs, run_ahead=run_ahead),
        sizes,
        n_slots,
        profile=PROFILES.get(str(settings.get("profile")), PROFILES["default"]),
        ahead=ahead,
        notes=tuple(notes),
    )


def _point(counters: Mapping[str, float], stage: Stage, n_euler: int) -> tuple[float, float]:
    """(rows of a batch, seconds of a batch) on average. A flow or vocoder row counts by its tokens."""
    name = stage.name.lower()
    n_batches, n_rows = counters[f"{name}_batches"], counters[f"{name}_rows"]
    if n_batches <= 0 or n_rows <= 0:
        raise ValueError(f"no batch of {name}")
    rows = n_rows / n_batches
    if stage is Stage.FLOW:
        rows = counters["audio_s"] * TOKENS_PER_S * n_euler / ROW_TOKENS / n_batches
    elif stage is Stage.VOCODE:
        rows = counters["audio_s"] * TOKENS_PER_S / ROW_TOKENS / n_batches
    return rows, counters[f"{name}_s"] / n_batches


def _fit(points: Sequence[tuple[float, float]]) -> tuple[float, float, str]:
    """(seconds of a batch, seconds of a row, how they were found): least squares, neither below 0."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread < 1e-3 * mean_x**2:
        return 0.0, mean_y / mean_x, f"all {n} loads have {mean_x:.2f} rows a batch, so the batch itself costs nothing"
    row_s = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    batch_s = mean_y - row_s * mean_x
    how = f"fitted over {n} loads"
    if row_s < 0 or batch_s < 0:
        # The end of the range of both that comes nearest.
        constant, proportional = (mean_y, 0.0), (0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points))
        batch_s, row_s = min(
            (constant, proportional), key=lambda pair: sum((pair[0] + pair[1] * x - y) ** 2 for x, y in points)
        )
        how += ", at the edge of what is possible"
    worst = max(abs(batch_s + row_s * x - y) / y for x, y in points)
    return batch_s, row_s, f"{how}, at most {worst:.0%} off"
