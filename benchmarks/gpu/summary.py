"""The results of a check on one page: the targets beside what was measured, then a table for each part.

Figures that are missing are named, with the reason if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.result_file import Line, ResultFile
from telephony_tts.bench import plot
from telephony_tts.runtime.errors import ConfigError

Rows = Mapping[str, Line]
DTYPES = ("float16", "bfloat16")
CHART, PAGE = "first_audio.png", "summary.md"


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A figure to reach on one H200, in the better of the two precisions."""

    what: str
    limit: float
    unit: str
    of: Callable[[Rows], float | None]
    """Of the units of a part `loads-DTYPE`."""
    is_least: bool = False

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit


def _of_row(unit: str, key: str) -> Callable[[Rows], float | None]:
    def of(units: Rows) -> float | None:
        row = units.get(unit, {}).get("row")
        return None if row is None else row[key]

    return of


def most_callers(units: Rows) -> float | None:
    """The most callers of the closed loop that held; 0 if none did, None if no load was measured."""
    return _highest(units, ("closed ", "callers "), "concurrency")


def highest_rate(units: Rows) -> float | None:
    """The highest rate of the open loop that held, in turns a second; likewise."""
    return _highest(units, ("open ", "rate "), "arrivals_per_s")


def _highest(units: Rows, kinds: tuple[str, ...], key: str) -> float | None:
    """Up to the lowest value that failed: a higher one that held was luck."""
    rows = [line["row"] for name, line in units.items() if name.startswith(kinds) and "row" in line]
    if not rows:
        return None
    failed = min((row[key] for row in rows if not row["holds"]), default=float("inf"))
    return float(max((row[key] for row in rows if row["holds"] and row[key] < failed), default=0))


TARGETS = (
    GpuTarget("audible first audio alone, p50", 60, "ms", _of_row("closed 1", "audible_ms_p50")),
    GpuTarget("audible first audio, 8 together, p95", 90, "ms", _of_row("closed 8", "audible_ms_p95")),
    GpuTarget("audible first audio, 32 together, p95", 120, "ms", _of_row("closed 32", "audible_ms_p95")),
    GpuTarget("audible first audio, 64 together, p95", 150, "ms", _of_row("closed 64", "audible_ms_p95")),
    GpuTarget("callers without a gap", 200, "callers", most_callers, is_least=True),
)


def write(out: Path, results: ResultFile, parts: Sequence[str]) -> str:
    """Write the chart and the page; returns the page."""
    chart = _chart(out)
    text = page(results, parts, chart)
    (out / PAGE).write_text(text, encoding="utf-8")
    return text


def page(results: ResultFile, parts: Sequence[str], chart: str = "") -> str:
    """The page in Markdown."""
    sections = [
        _head(results), _targets(results), _parts(results, parts), _equality(results), _stages(results),
        *(_loads(results, dtype) for dtype in DTYPES), *(_steps(results, dtype) for dtype in DTYPES), chart,
    ]  # fmt: skip
    return "\n\n".join(section for section in sections if section) + "\n"


def _chart(out: Path) -> str:
    files = [file for dtype in DTYPES if (file := out / f"loads-{dtype}.json").exists()]
    if not files:
        return ""
    try:
        plot.draw(plot.read_series(files), out / CHART)
    except ConfigError as error:
        return f"No chart: {error}. `telephony-tts bench plot {' '.join(file.name for file in files)} -o {CHART}`."
    return f"![first audio by the number of callers]({CHART})"


def _head(results: ResultFile) -> str:
    about: Line = next((line["check"] for line in results.lines() if "check" in line), {})
    machine, ceilings = (results.result("environment", unit) or {} for unit in ("machine", "ceilings"))
    smi = machine.get("nvidia_smi") or {}
    title = f"# GPU check: {machine.get('gpu') or about.get('device', '?')}"
    if about.get("plan") != "whole" or about.get("size") != "full":
        title += " (a rehearsal: its figures mean nothing)"
    starts = [start for dtype in DTYPES if (start := results.result(f"loads-{dtype}", "start")) is not None]
    turns = f", turns of {starts[0]['turn_s']:g} s, {starts[0]['slots']} slots" if starts else ""
    lines = [
        f"Commit {about.get('commit', '?')}, {about.get('size', '?')} size, random weights{turns}. Closed loop: all "
        "callers begin at once. A load holds if no turn failed and no listener heard a gap of any length.",
        f"- GPU: {machine.get('gpu')}, {machine.get('memory_mib', '?')} MiB, driver {smi.get('driver_version', '?')}, "
        f"PCIe {smi.get('pcie.link.gen.current', '?')} x{smi.get('pcie.link.width.current', '?')}, "
        f"CUDA {machine.get('cuda', '?')}, architectures {' '.join(machine.get('architectures', [])) or '?'}",
        f"- CPU: {machine.get('cpu', '?')}, {machine.get('cores', '?')} cores, Python {machine.get('python', '?')}, "
        + ", ".join(f"{name} {version}" for name, version in machine.get("libraries", {}).items()),
        f"- ceilings: float16 {_cell(ceilings.get('float16_tflop_per_s'))} and bfloat16 "
        f"{_cell(ceilings.get('bfloat16_tflop_per_s'))} TFLOP/s, copies {_cell(ceilings.get('copy_gb_per_s'))} GB/s",
    ]
    return "\n\n".join([title, lines[0], "\n".join(lines[1:])])


def _targets(results: ResultFile) -> str:
    rows = []
    for target in TARGETS:
        found = {dtype: target.of(results.units(f"loads-{dtype}")) for dtype in DTYPES}
        known = [value for value in found.values() if value is not None]
        reached = "not measured" if not known else "yes" if any(map(target.reached, known)) else "no"
        limit = f"{'≥' if target.is_least else '≤'} {target.limit:g} {target.unit}"
        rows.append([target.what, limit, *(_cell(found[dtype]) for dtype in DTYPES), reached])
    rates = [highest_rate(results.units(f"loads-{dtype}")) for dtype in DTYPES]
    rows.append(["highest rate of arrivals without a gap, turns/s", "–", *map(_cell, rates), "–"])
    return "## Targets\n\n" + _table(["figure", "target", *DTYPES, "reached"], rows)


def _parts(results: ResultFile, parts: Sequence[str]) -> str:
    statuses = results.statuses()
    rows = []
    for part in parts:
        status = statuses.get(part, {"status": "not begun", "seconds": 0.0})
        failed = [f"{name}: {line['error']}" for name, line in results.units(part).items() if "error" in line]
        rows.append([part, status["status"], f"{status['seconds']:.0f} s", "; ".join(failed).replace("|", "/") or "–"])
    return "## Parts\n\n" + _table(["part", "status", "time", "errors"], rows)


def _equality(results: ResultFile) -> str:
    found = []
    for name, line in results.units("equality").items():
        if name == "tokens" and "n" in line:
            found.append(f"{line['n_equal_from_start']} of {line['n']} tokens equal{_miss(line)}")
        elif "distance_db" in line:
            found.append(f"{name} {_distance(line)}")
    title = "## Equal to a CPU\n\nThe whole tiny engine in float32, distance and bound: "
    return title + ", ".join(found) + "." if found else ""


def _stages(results: ResultFile) -> str:
    stages = ("logits", "mel", "audio")
    rows = [
        [dtype, *(_distance(line[stage]) for stage in stages), f"{100 * line['same_best_id']:.0f} %", _cell(line["kl"])]
        for dtype, line in results.units("stages").items()
        if "kl" in line
    ]
    title = "Each network from float32 on a CPU, given the same input; distance and bound:\n\n"
    return title + _table(["precision", *stages, "same best id", "KL"], rows) if rows else ""


def _loads(results: ResultFile, dtype: str) -> str:
    units = results.units(f"loads-{dtype}")
    rows = [
        [
            name,
            *(_cell(row[key]) for key in ("audible_ms_p50", "audible_ms_p95", "audible_ms_iqr", "c100")),
            _cell(row["underruns"]), _cell(row["audio_seconds_per_second"]), "yes" if row["holds"] else "no",
        ]
        for name, line in units.items()
        if (row := line.get("row")) is not None
    ]  # fmt: skip
    header = ["load", "audible p50, ms", "p95", "IQR", "c100", "gaps", "audio s/s", "holds"]
    return f"## Load, {dtype}\n\n" + _table(header, rows) if rows else ""


def _steps(results: ResultFile, dtype: str) -> str:
    units = results.units(f"steps-{dtype}")
    lines = []
    graphs, waits, traced = (units.get(unit, {}) for unit in ("graphs", "waits", "trace"))
    if "graphs" in graphs:
        failed = ", then recording failed" if graphs["recording_failed"] else ""
        lines.append(
            f"- {graphs['graphs']} graphs recorded in {graphs['record_s']} s, {graphs['memory_mib']} MiB{failed}"
        )
    if "waits" in waits:
        where = "; ".join(f"{stage}: {', '.join(at)}" for stage, at in waits["waits"].items() if at)
        known = "" if waits["detects"] else " (this device does not show waits)"
        lines.append(f"- places where the host waits within a step: {where or 'none'}{known}")
    if "kernels" in traced:
        lines.append(
            f"- trace of {traced['utterances']} utterances: {traced['kernels']} {traced['counts']}, device busy "
            f"{_cell(traced['busy_ms'])} ms, idle {_cell(traced['idle_share'])} of the time"
        )
    timed = {name.removeprefix("times "): line for name, line in units.items() if "ms" in line}
    kernels = {name.removeprefix("kernels "): line for name, line in units.items() if name.startswith("kernels ")}
    profiled = {n: line["stages"] for n, line in kernels.items() if "stages" in line}
    if timed:
        header = ["one step, for", *(f"{n}, ms (floor)" for n in timed)]
        header += [f"{n}: {what}" for n in profiled for what in ("kernels", "busy ms", "idle share")]
        rows = []
        for stage in next(iter(timed.values()))["ms"]:
            of = [profiled[n].get(stage, {}) for n in profiled]
            cells = [each.get(key) for each in of for key in ("kernels", "busy_ms", "idle_share")]
            rows.append([stage, *(_time(line, stage) for line in timed.values()), *map(_cell, cells)])
        if any("floor_ms" in line for line in timed.values()):
            lines.append("- floor: the linear layers' products and weights at the measured ceilings, without attention")
        lines += ["", _table(header, rows)]
    if traced.get("stages"):
        keys = ("stage", "calls", "kernels", "host_ms", "device_ms")
        rows = [[_cell(row[key]) for key in keys] for row in traced["stages"]]
        lines += ["", _table(["in the trace", "calls", "kernels", "host ms", "device ms"], rows)]
    if traced.get("top"):
        rows = [[f"`{each['name']}`", str(each["n"]), _cell(each["ms"])] for each in traced["top"][:5]]
        lines += ["", _table(["longest kernels", "n", "ms"], rows)]
    return f"## Steps, {dtype}\n\n" + "\n".join(lines) if lines else ""


def _distance(line: Line) -> str:
    bound = f" (≤ {line['bound_db']:g})" if "bound_db" in line else ""
    return f"{line['distance_db']} dB{bound}{_miss(line)}"


def _miss(line: Line) -> str:
    return "" if line.get("ok", True) else " **MISS**"


def _time(line: Line, stage: str) -> str:
    floor_ms = line.get("floor_ms", {}).get(stage)
    return _cell(line["ms"][stage]) + ("" if floor_ms is None else f" ({_cell(floor_ms)})")


def _cell(value: object) -> str:
    """Three significant digits, or no fraction from 100 on."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
