"""The whole of benchmarks/gpu_check.py on a pretended GPU and a tiny model, and its parts when they go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from gpu.parts import CheckPart, run_parts
from gpu.result_file import ResultFile

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).resolve().parent.parent

FIRST = "environment,equality,steps-float16,loads-float16"


def rehearse(out: Path, weights: Path, *flags: str, device: str = "pretend") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "gpu_rehearsal.py"), "--device", device, "--size", "tiny"]
    command += ["--plan", "quick", "--out", str(out), "--weights", str(weights), "--budget-s", "900", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("gpu")
    done = rehearse(folder / "out", folder / "weights", "--only", FIRST)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, folder


@pytest.fixture
def results(rehearsed: tuple[Any, Path]) -> ResultFile:
    return ResultFile(rehearsed[1] / "out" / "results.jsonl")


def test_every_part_reports_its_progress_and_its_end(rehearsed: tuple[Any, Path], results: ResultFile) -> None:
    shown = rehearsed[0].stdout
    for n, part in enumerate(FIRST.split(","), 1):
        assert f"part {n} of 4, {part}: done after" in shown
        assert results.statuses()[part]["status"] == "done"
        assert results.result(part, "whole part") is not None
    assert not [line for line in results.lines() if "error" in line]


def test_the_pretended_gpu_computes_what_the_cpu_computes(results: ResultFile) -> None:
    units = results.units("equality")
    assert units["tokens"]["n"] == units["tokens"]["n_equal_from_start"] == 40
    for name in ("mel", "audio", "engine"):
        assert units[name]["ok"] and units[name]["distance_db"] < -80
    assert units["mel"]["distance_db"] > -200, "the same arithmetic: nothing was compared"


def test_graphs_are_counted_and_the_host_waits_nowhere(results: ResultFile) -> None:
    units = results.units("steps-float16")
    assert units["graphs"]["graphs"] == 20 and units["graphs"]["ok"]
    assert units["waits"] == {
        **units["waits"], "detects": True, "ok": True,
        "waits": {stage: [] for stage in ("prefill", "decode", "flow encoder", "flow step", "vocode")},
    }  # fmt: skip
    assert all(ms > 0 for n in (1, 2) for ms in units[f"times {n}"]["ms"].values())
    stages = units["kernels 1"]["stages"]
    # A graph is one launch: the pretended GPU counts what is launched beside it.
    assert stages["decode"]["kernels"] < 5 and stages["flow encoder"]["kernels"] < 50
    assert all(5 < stages[stage]["kernels"] < 50 for stage in ("flow step", "vocode"))


def test_loads_and_searches_have_rows(results: ResultFile, rehearsed: tuple[Any, Path]) -> None:
    units = results.units("loads-float16")
    closed = [units["closed 1"]["row"], units["closed 2"]["row"]]
    loads = ["closed 1", "callers 3", "rate 2", "closed 2", "open 1"]
    if not closed[0]["holds"]:  # on a busy machine, and then more callers are not tried
        loads.remove("callers 3")
    assert list(units) == ["start", *loads, "whole part"]
    for name in loads:
        assert units[name]["row"]["failed"] == 0 and units[name]["row"]["audible_ms_p95"] > 0
    document = json.loads((rehearsed[1] / "out" / "loads-float16.json").read_text(encoding="utf-8"))
    assert len(document["results"]) == len(loads) and document["settings"]["dtype"] == "float16"


def test_what_comes_back_is_a_page_a_chart_and_a_trace(rehearsed: tuple[Any, Path]) -> None:
    done, folder = rehearsed
    files = {file.name: file.stat().st_size for file in (folder / "out").iterdir()}
    assert set(files) == {
        "results.jsonl", "summary.md", "first_audio.png", "loads-float16.json", "trace-float16.json.gz",
    }  # fmt: skip
    assert max(files.values()) < 16 << 20
    page = (folder / "out" / "summary.md").read_text(encoding="utf-8")
    assert page in done.stdout and "| callers without a gap | ≥ 200 callers |" in page
    assert "places where the host waits within a step: none\n" in page


def test_a_second_call_skips_what_is_done_and_does_the_rest(
    rehearsed: tuple[Any, Path], results: ResultFile, tmp_path: Path
) -> None:
    """In a copy, so that the tests above see the first call alone."""
    (tmp_path / "results.jsonl").write_bytes((rehearsed[1] / "out" / "results.jsonl").read_bytes())
    done = rehearse(tmp_path, rehearsed[1] / "weights", "--only", f"{FIRST},stages")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done before") == 4
    assert all(ResultFile(tmp_path / "results.jsonl").units("stages")[name]["ok"] for name in ("float32", "float16"))
    assert len(ResultFile(tmp_path / "results.jsonl").units("loads-float16")) == len(results.units("loads-float16"))


def test_another_check_in_the_same_directory_is_an_error(rehearsed: tuple[Any, Path]) -> None:
    done = rehearse(rehearsed[1] / "out", rehearsed[1] / "weights", device="cpu")
    assert done.returncode == 2 and "give --out another directory" in done.stderr


def test_an_unknown_part_is_an_error(tmp_path: Path) -> None:
    done = rehearse(tmp_path, tmp_path, "--only", "equality,speed")
    assert done.returncode == 2 and "no part speed; there are environment, equality" in done.stderr


def test_a_machine_without_a_gpu_gives_a_page_with_the_reason(tmp_path: Path) -> None:
    done = rehearse(tmp_path / "out", tmp_path / "weights", "--only", "environment", device="cuda")
    assert done.returncode == 1 and "part 1 of 1, environment: failed after" in done.stdout
    assert "| environment | failed |" in done.stdout and "machine: " in done.stdout


# ------------------------------------------------------------------- parts that go wrong


def parts_of(*scripts: str, limit_s: float = 20.0, least_s: float = 0.0) -> tuple[list[CheckPart], Any]:
    parts = [CheckPart(str(n), "a test", limit_s, least_s) for n in range(len(scripts))]
    return parts, lambda part: [sys.executable, "-c", scripts[int(part.name)]]


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status  # killed, and not yet forgotten


def test_a_part_that_fails_overruns_or_crashes_does_not_stop_the_rest(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    told: list[str] = []
    # The second one also has a child, as an engine's process is, and takes no notice of the request to end.
    pid_file = tmp_path / "pid"
    child = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    write = f"open({str(pid_file)!r}, 'w').write(str(child.pid))"
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    stubborn = f"{child}; {write}; {ignore}"
    parts, command = parts_of("raise SystemExit(3)", stubborn, "import os; os.abort()", "pass", limit_s=2.0)
    begun_s = time.monotonic()
    assert not run_parts(parts, command, results, 60.0, told.append)
    assert time.monotonic() - begun_s < 30
    statuses = [results.statuses()[str(n)]["status"] for n in range(4)]
    assert statuses == ["failed", "overran", "failed", "done"]
    assert [line for line in told if "part 2 of 4, 1: overran after" in line]
    assert not is_running(int(pid_file.read_text()))
    # What failed is tried again, what is done is not.
    parts, command = parts_of("pass", "pass", "pass", "raise SystemExit(1)")
    assert run_parts(parts, command, results, 60.0, told.append)
    assert told[-1] == "part 4 of 4, 3: done before"


def test_a_part_is_not_begun_with_too_little_time_left(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    told: list[str] = []
    parts, command = parts_of("raise SystemExit(1)", least_s=50.0)
    assert not run_parts(parts, command, results, 10.0, told.append)
    assert results.statuses()["0"]["status"] == "skipped" and "call again to go on" in told[0]


def test_a_part_ends_with_a_check_that_is_stopped_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal's exception comes inside of `Popen.wait`, which then keeps its lock."""
    pids: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            assert not pids, "it would wait for ever"
            pids.append(self.pid)
            raise SystemExit(143)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    parts, command = parts_of("import time; time.sleep(60)")
    with pytest.raises(SystemExit):
        run_parts(parts, command, ResultFile(tmp_path / "r.jsonl"), 60.0, [].append)
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], os.WNOHANG)


def test_a_check_that_is_stopped_goes_on_with_the_next_call(tmp_path: Path) -> None:
    """Stopped in its second part, of which a unit is done. Nothing is left running."""
    flags = ["--device", "pretend", "--size", "tiny", "--plan", "quick", "--only", "equality"]
    flags += ["--out", str(tmp_path / "out"), "--weights", str(tmp_path / "weights")]
    results = ResultFile(tmp_path / "out" / "results.jsonl")
    command = [sys.executable, str(ROOT / "tests" / "gpu_rehearsal.py"), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            while results.result("equality", "tokens") is None:
                assert running.poll() is None
                time.sleep(0.02)
            running.send_signal(signal.SIGTERM)
            shown, _ = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 143 and "# GPU check" in shown, "the page has what there is"
    n_lines = len(results.lines())
    assert "equality" not in results.statuses() and results.result("equality", "engine") is None
    time.sleep(0.5)
    assert len(results.lines()) == n_lines, "the part was left running"
    again = rehearse(tmp_path / "out", tmp_path / "weights", "--only", "equality")
    assert again.returncode == 0 and "part 1 of 1, equality: done after" in again.stdout
    units = [line["unit"] for line in results.lines() if line.get("part") == "equality" and "unit" in line]
    assert units.count("tokens") == 1 and units.count("engine") == 1
