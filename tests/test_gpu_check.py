"""benchmarks/gpu_check.py: how results are kept, what a profile tells, how a capacity is searched, what a page says.

tests/test_gpu_rehearsal.py runs the whole command.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from gpu import devices, summary, trace
from gpu.check import PLANS
from gpu.loads import most
from gpu.result_file import PartRun, ResultFile
from gpu.side import LeastWork, level_db
from gpu_check import PARTS

# ------------------------------------------------------------------------------- the file of results


def test_results_are_kept_line_by_line(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    assert results.lines() == [] and results.units("a") == {}
    results.append({"part": "a", "unit": "x", "ms": 1})
    results.append({"part": "b", "unit": "x", "ms": 2})
    results.append({"part": "a", "status": "overran"})
    results.append({"part": "a", "status": "done"})
    assert results.result("a", "x") == {"part": "a", "unit": "x", "ms": 1} and results.result("a", "y") is None
    assert results.statuses()["a"]["status"] == "done"


def test_half_a_line_of_a_killed_process_is_left_out_and_spoils_no_other(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    results.append({"part": "a", "unit": "x"})
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"part": "a", "unit": "y", "m')
    assert list(results.units("a")) == ["x"]
    results.append({"part": "a", "unit": "z"})
    assert list(results.units("a")) == ["x", "z"]


def test_two_checks_are_not_mixed(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    results.begin({"device": "cuda", "commit": "1"})
    results.begin({"device": "cuda", "commit": "1"})
    with pytest.raises(ValueError, match=r"holds another check, of .*'commit': '1'.*--out another directory"):
        results.begin({"device": "cuda", "commit": "2"})
    assert len(results.lines()) == 1


def test_a_unit_that_raises_is_recorded_and_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    run = PartRun(ResultFile(tmp_path / "r.jsonl"), "a", told.append)
    with run.unit("x"):
        raise RuntimeError("no memory\nand more")
    with run.unit("y") as found:
        found({"ms": 3})
    assert run.failed == ["x"] and told == ["a: x failed: RuntimeError: no memory"]
    assert "Traceback" in capsys.readouterr().err
    assert run.wants("x") and not run.wants("y") and run.wants("z")
    assert run.results.units("a")["x"]["error"] == "RuntimeError: no memory"
    with run.unit("x") as found:
        found({"ms": 4})
    with run.unit("x"):
        raise RuntimeError("once more")  # an error after a result does not hide it
    assert run.results.units("a")["x"]["ms"] == 4 and not run.wants("x")


# --------------------------------------------------------------------------------------- profiles


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, correlation: int | None = None) -> trace.Event:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


EVENTS = [
    event("user_annotation", "stage decode", 0, 100),
    event("cpu_op", "aten::mm", 10, 5),
    event("cuda_runtime", "cudaGraphLaunch", 20, 4, correlation=7),
    event("user_annotation", "something else", 15, 20),
    event("user_annotation", "stage vocode", 200, 100),
    event("cuda_runtime", "cudaLaunchKernel", 210, 4, correlation=8),
    event("cuda_runtime", "cudaLaunchKernel", 210, 4, tid=2, correlation=9),
    # A graph's kernels have the correlation of its launch. They run later than the stage that launched them.
    event("kernel", "gemm", 150, 30, tid=70, correlation=7),
    event("kernel", "softmax", 180, 20, tid=70, correlation=7),
    event("kernel", "conv", 300, 100, tid=70, correlation=8),
    event("gpu_memcpy", "Memcpy DtoH", 350, 100, tid=71, correlation=9),
    {"ph": "M", "name": "process_name"},
]


def test_a_profile_counts_kernels_and_the_time_without_any() -> None:
    found = trace.summary(EVENTS)
    assert found["kernels"] == 4
    assert found["busy_ms"] == 0.2, "150 to 200 and 300 to 450: the copy and the kernel overlap"
    assert found["idle_share"] == pytest.approx(1 - 200 / 300, abs=1e-4)
    assert [each["name"] for each in found["top"]] == ["conv", "Memcpy DtoH", "gemm", "softmax"]
    assert trace.summary([]) == {"kernels": 0, "busy_ms": 0.0, "idle_share": None, "top": []}


def test_kernels_belong_to_the_stage_that_launched_them() -> None:
    rows = {row["stage"]: row for row in trace.by_stage(EVENTS)}
    assert rows["decode"] == {"stage": "decode", "calls": 1, "kernels": 2, "host_ms": 0.1, "device_ms": 0.05}
    assert rows["vocode"] == {"stage": "vocode", "calls": 1, "kernels": 1, "host_ms": 0.1, "device_ms": 0.1}
    assert rows["other"]["kernels"] == 1, "launched by another thread"


@pytest.mark.slow
def test_a_real_profile_of_a_cpu_is_read_likewise() -> None:
    def work() -> None:
        with torch.profiler.record_function(trace.STAGE + "decode"):
            torch.mm(torch.ones(8, 8), torch.ones(8, 8))

    events = devices.CpuDevice().profiled(work)
    (row,) = (row for row in trace.by_stage(events) if row["stage"] == "decode")
    assert row["calls"] == 1 and row["kernels"] >= 1 and trace.summary(events)["busy_ms"] > 0


def test_a_written_trace_has_the_devices_work_and_no_host_operations(tmp_path: Path) -> None:
    trace.write(EVENTS, tmp_path / "t.json.gz")
    with gzip.open(tmp_path / "t.json.gz", "rt") as file:
        kept = json.load(file)["traceEvents"]
    assert len(kept) == len(EVENTS) - 1 and "cpu_op" not in {each.get("cat") for each in kept}


# ----------------------------------------------------------------------------------------- devices


def test_a_gpu_is_asked_with_functions_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here. The stand-in takes only the names and arguments that PyTorch's module has."""
    cuda: Any = create_autospec(torch.cuda)
    cuda.mem_get_info.return_value = (3 << 30, 4 << 30)
    cuda.get_sync_debug_mode.return_value = 0
    cuda.get_device_capability.return_value = (9, 0)
    cuda.get_arch_list.return_value = ["sm_90"]
    cuda.get_device_properties.return_value.total_memory = 140 << 30
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(devices.os, "environ", {})  # it sets what the profiler needs
    monkeypatch.setattr(devices, "_nvidia_smi", lambda index: {"driver_version": "580", "index": str(index)})
    device = devices.make_device("cuda:1")
    assert devices.os.environ["TEARDOWN_CUPTI"] == "0"
    assert device.used_mib() == 1024
    about = device.describe()
    assert (about["memory_mib"], about["capability"]) == (140 << 10, [9, 0])
    assert about["nvidia_smi"]["index"] == "1"
    device.synchronize()
    cuda.synchronize.assert_called_with(torch.device("cuda:1"))
    with device.waits() as waits:
        cuda.set_sync_debug_mode.assert_called_with("warn")
        import warnings

        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
    cuda.set_sync_debug_mode.assert_called_with(0)
    assert [where.split(":")[0] for where in waits] == ["test_gpu_check.py"]
    assert device.recorder() is not None


@pytest.mark.parametrize("name", ["tpu", "cudax", ""])
def test_an_unknown_device_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="expected cpu, cuda or cuda:N"):
        devices.make_device(name)


@pytest.mark.slow
def test_the_driver_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert devices._nvidia_smi(0) is None


def test_a_distance_is_a_level_below_the_signal() -> None:
    signal = torch.ones(100)
    assert level_db(0.001 * signal, signal) == pytest.approx(-60, abs=1e-4)
    assert level_db(0 * signal, signal) == -200
    assert level_db(signal * float("nan"), signal) == float("inf"), "not a number is no small distance"


def test_the_floor_is_the_longer_of_computing_and_reading() -> None:
    work = LeastWork(lm_weights=400_000_000, flow_weights=70_000_000, flow_flop_per_frame=3e8, bytes_per_weight=2)
    few, many = (work.floor_ms(n, 800e12, 4e12) for n in (1, 1000))
    assert few == {"decode": 0.2, "flow step": 0.035}, "reading 800 MB and 140 MB at 4 TB/s"
    assert many == {"decode": 1.0, "flow step": 18.75}, "800 GFLOP and 15 TFLOP at 800 TFLOP/s"


# --------------------------------------------------------------------------------------- capacity


@pytest.mark.parametrize(
    ("limit", "ladder", "known", "found", "least_tries"),
    [
        (130, (100, 200), {}, (113, 130), [100, 200]),
        (500, (100, 200), {}, (200, 200), [100, 200]),
        (70, (100, 200), {64: True}, (64, 70), [100]),
        (40, (100, 200), {32: True, 64: False, 1: True}, (35, 40), []),
        (10, (100, 200), {}, (None, None), [100]),
        (20.5, (16.0, 32.0, 50.0), {}, (18, 20.5), [16, 32]),
    ],
)
def test_the_highest_value_that_holds_is_searched(
    limit: float, ladder: tuple[float, ...], known: dict[float, bool], found: tuple[Any, Any], least_tries: list[int]
) -> None:
    tried: list[float] = []

    async def holds(value: float) -> bool:
        tried.append(value)
        return value <= limit

    value = asyncio.run(most(holds, ladder, 1.15, known))
    assert tried[: len(least_tries)] == least_tries and len(tried) <= 6
    if found[0] is None:
        assert value is None
    else:
        assert value is not None and found[0] <= value <= found[1]
    assert not any(each >= bad for bad, held in known.items() if not held for each in tried)


# ----------------------------------------------------------------------------------------- a page


def row(**also: Any) -> dict[str, Any]:
    figures = {"audible_ms_p50": 50.0, "audible_ms_p95": 80.0, "audible_ms_iqr": 5.0, "c100": 1.0, "underruns": 0}
    return {**figures, "audio_seconds_per_second": 3.0, "holds": True, "arrivals_per_s": None, **also}


@pytest.fixture
def results(tmp_path: Path) -> ResultFile:
    """A check whose loads in bfloat16 were not reached."""
    found = ResultFile(tmp_path / "results.jsonl")
    found.begin({"device": "cuda", "size": "full", "plan": "whole", "commit": "abc1234"})
    loads = {
        "closed 1": row(concurrency=1, audible_ms_p50=61.0), "closed 8": row(concurrency=8, audible_ms_p95=89.0),
        "closed 64": row(concurrency=64, audible_ms_p95=151.0),
        "callers 100": row(concurrency=100, holds=False, underruns=3), "callers 200": row(concurrency=200),
        "rate 16": row(concurrency=64, arrivals_per_s=16.0),
        "rate 32": row(concurrency=128, arrivals_per_s=32.0, holds=False),
    }  # fmt: skip
    found.append({"part": "environment", "unit": "machine", "gpu": "NVIDIA H200", "memory_mib": 143771, "cpu": "Xeon"})
    found.append({"part": "loads-float16", "unit": "start", "slots": 256, "turn_s": 4.0, "seconds": 31.0})
    for unit, each in loads.items():
        found.append({"part": "loads-float16", "unit": unit, "row": each})
    found.append({"part": "loads-float16", "unit": "rate 50", "error": "EngineError: a | b"})
    times = {"ms": {"decode": 1.234, "vocode": 5.0}, "floor_ms": {"decode": 0.2}}
    found.append({"part": "steps-float16", "unit": "times 8", **times})
    profile = {"kernels": 512.2, "busy_ms": 0.9, "idle_share": 0.25}
    found.append({"part": "steps-float16", "unit": "kernels 8", "stages": {"decode": profile}})
    found.append({"part": "equality", "unit": "tokens", "n": 100, "n_equal_from_start": 40, "ok": False})
    found.append({"part": "equality", "unit": "mel", "distance_db": -95.0, "bound_db": -80.0, "ok": True})
    found.append({"part": "loads-float16", "status": "overran", "seconds": 270.0})
    found.append({"part": "loads-bfloat16", "status": "skipped", "seconds": 0.0})
    return found


def test_the_page_has_the_targets_beside_what_was_measured(results: ResultFile) -> None:
    page = summary.page(results, [part.name for part in PARTS])
    assert page.startswith("# GPU check: NVIDIA H200\n")
    assert "Commit abc1234, full size, random weights, turns of 4 s, 256 slots." in page
    lines = page.splitlines()
    for line in (
        "| audible first audio alone, p50 | ≤ 60 ms | 61 | – | no |",
        "| audible first audio, 8 together, p95 | ≤ 90 ms | 89 | – | yes |",
        "| audible first audio, 32 together, p95 | ≤ 120 ms | – | – | not measured |",
        "| audible first audio, 64 together, p95 | ≤ 150 ms | 151 | – | no |",
        "| callers without a gap | ≥ 200 callers | 64 | – | no |",  # 200 held by luck: 100 did not
        "| highest rate of arrivals without a gap, turns/s | – | 16 | – | – |",
        "| loads-float16 | overran | 270 s | rate 50: EngineError: a / b |",
        "| loads-bfloat16 | skipped | 0 s | – |",
        "| stages | not begun | 0 s | – |",
        "| one step, for | 8, ms (floor) | 8: kernels | 8: busy ms | 8: idle share |",
        "| decode | 1.23 (0.2) | 512 | 0.9 | 0.25 |",
        "| vocode | 5 | – | – | – |",
        "| callers 100 | 50 | 80 | 5 | 1 | 3 | 3 | no |",
    ):
        assert line in lines, line
    assert "40 of 100 tokens equal **MISS**, mel -95.0 dB (≤ -80)." in page


def test_a_rehearsal_says_so_and_a_check_without_results_has_a_page(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    results.begin({"device": "cpu", "size": "tiny", "plan": "quick", "commit": "x"})
    text = summary.write(tmp_path, results, ["equality"])
    assert text.startswith("# GPU check: cpu (a rehearsal: its figures mean nothing)")
    assert (tmp_path / summary.PAGE).read_text(encoding="utf-8") == text
    assert "| callers without a gap | ≥ 200 callers | – | – | not measured |" in text


def test_without_matplotlib_the_page_says_how_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loads-float16.json").write_text("{}")
    text = summary.write(tmp_path, ResultFile(tmp_path / "r.jsonl"), [])
    assert "No chart: " in text and "telephony-tts bench plot loads-float16.json -o first_audio.png" in text


@pytest.mark.slow
def test_no_part_needs_what_a_gpu_machine_lacks() -> None:
    """Its Python has PyTorch and no web framework, and `make gpu-wheels` brings only what `GPU_LACKS` names."""
    script = """
import sys
class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"fastapi", "starlette", "pydantic", "uvicorn", "python_multipart", "hibari"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Lacks())
from gpu import environment, equality, loads, steps
from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog
print([engine.name for engine in build_catalog(config.load(None, {"engines.default": "fake"}, {})).engines][0])
"""
    benchmarks = Path(__file__).resolve().parent.parent / "benchmarks"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=benchmarks, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "fake", done.stderr


def test_the_targets_are_measured_by_the_plan() -> None:
    plan = PLANS["whole"]
    assert {1, 2, 4, 8, 16, 32, 64} == {n for n, _ in (*plan.closed, *plan.closed_later)}
    assert max(plan.callers) == 200 and 100 in plan.callers
    # A rate's turns fit the slots: four standard deviations above their mean.
    mean = max(plan.rates) * plan.seconds
    assert mean <= 200 and plan.slots >= mean + 4 * mean**0.5 - 1
