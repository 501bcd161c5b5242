"""`make test`: the passes, which tests belong to which, and the exit status of all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import run_all

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

HERE = Path(__file__).parent
ONE_OF_EACH = """
import os, pytest

def test_unmarked():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.timed
def test_timed():
    pass

@pytest.mark.timed
@pytest.mark.alone
def test_alone():
    assert {is_well}
"""


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [((0, 5, 5), 0), ((5, 5, 5), 5), ((0, 1, 0), 1), ((1, 5, 0), 1), ((0, 2, 1), 2), ((0, -15, 0), -15)],
)
def test_the_status_of_all_passes(statuses: tuple[int, ...], whole: int) -> None:
    assert run_all.combined(statuses) == whole


def project(folder: Path, is_well: bool = True) -> None:
    (folder / "test_it.py").write_text(ONE_OF_EACH.format(is_well=is_well))
    (folder / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone: x\n    timed: x\n    slow: x\n")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command, "-p", "no:cacheprovider", "-rA"],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def environment() -> dict[str, str]:
    # The plugins that are not needed here would be a third of each start.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return {**os.environ, "PYTHONPATH": str(HERE), "TESTS_PATIENCE": "1", **plugins}


ONE_PROCESS_EACH = """
import contextlib, os, sys, run_all

run_all.N_TIMED, run_all.N_WAITING = 1, 0  # there is one file, so more processes would only start and end
run_all.AGAIN_WITHIN_S = 2
run_all.way_to_yield = lambda: contextlib.nullcontext({yielding})
sys.exit(run_all.run({n_processes}, sys.argv[1:]))
"""


@pytest.mark.parametrize(("n_processes", "is_well"), [(1, True), (2, False)])
def test_all_passes_run_and_one_failure_fails_the_run(tmp_path: Path, n_processes: int, is_well: bool) -> None:
    project(tmp_path, is_well=is_well)
    done = run(tmp_path, "-c", ONE_PROCESS_EACH.format(n_processes=n_processes, yielding=None))
    assert done.returncode == int(not is_well), done.stdout
    passed = set(re.findall(r"PASSED test_it.py::test_(\w+)", done.stdout))
    assert passed == {"unmarked", "slow", "timed"} | ({"alone"} if is_well else set())
    assert re.search(r"^== .*beside \d+ s.*alone \d+ s(, again \d+ s)?$", done.stdout, re.M)


@pytest.mark.parametrize("unmarked", [0, 1])
def test_the_unmarked_tests_run_in_idle_time(tmp_path: Path, unmarked: int) -> None:
    """They begin first, yield and may wait longer. What they print comes after what the others print, in one piece."""
    project(tmp_path)
    (tmp_path / "test_it.py").write_text(WAITS_FOR_UNMARKED.format(fails=unmarked))
    done = run(tmp_path, "-c", ONE_PROCESS_EACH.format(n_processes=2, yielding="lambda: os.nice(1)"))
    assert done.returncode == unmarked, done.stdout
    timed, alone, beside = re.split(r"^== (?:timed|alone|beside, since \d+ s)$", done.stdout, flags=re.MULTILINE)[1:4]
    assert "PASSED test_it.py::test_timed" in timed and "PASSED test_it.py::test_alone" in alone
    assert f"{'FAILED' if unmarked else 'PASSED'} test_it.py::test_unmarked" in beside
    assert ("these failed twice" in done.stdout) == bool(unmarked)
    assert int((tmp_path / "unmarked").read_text()) == int((tmp_path / "timed").read_text()) + 1


WAITS_FOR_UNMARKED = """
import os, pathlib, time, pytest

@pytest.mark.timed
def test_timed():
    assert os.environ["TESTS_PATIENCE"] == "1"
    pathlib.Path("timed").write_text(str(os.nice(0)))
    while not pathlib.Path("unmarked").exists():
        time.sleep(0.01)

@pytest.mark.alone
def test_alone():
    assert pathlib.Path("unmarked").exists()

def test_unmarked():
    if not pathlib.Path("unmarked").exists():
        pathlib.Path("unmarked").write_text(str(os.nice(0)))
        assert float(os.environ["TESTS_PATIENCE"]) > 1
    assert not {fails}
"""


class Ended:
    pid = 0

    def wait(self) -> int:
        return 0

    def poll(self) -> int:
        return 0


@pytest.mark.parametrize(("n_processes", "sizes"), [(1, (1, 1, 1)), (2, (4, 3, 1)), (8, (10, 3, 1))])
def test_so_many_tests_run_at_a_time(
    monkeypatch: pytest.MonkeyPatch, n_processes: int, sizes: tuple[int, int, int]
) -> None:
    """The timed tests mostly wait, so the number of cores does not limit them."""
    begun: dict[str, int] = {}

    def start(name: str, n: int, *_: object) -> run_all.Pass:
        begun[name] = n
        return run_all.Pass(name, Ended(), 0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(run_all, "start", start)
    monkeypatch.setattr(run_all, "way_to_yield", nullcontext)
    assert run_all.run(n_processes, []) == 0
    assert (begun["beside"], begun["timed"], begun["alone"]) == sizes


def test_the_seconds_of_a_pass_are_its_own_when_another_pass_ends_later(tmp_path: Path) -> None:
    output = tmp_path / "beside"
    output.write_text("2 passed\n")
    os.utime(output, (time.time() - 40, time.time() - 40))
    beside = run_all.Pass("beside", Ended(), time.monotonic() - 100, output)  # type: ignore[arg-type]
    assert beside.wait() == 0
    assert 59 < beside.seconds < 65


def test_an_interrupted_run_ends_all_passes_before_it_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Interrupted(Ended):
        def __init__(self, name: str) -> None:
            self.name = name

        def terminate(self) -> None:
            calls.append(f"end {self.name}")

        def wait(self) -> int:
            calls.append(f"wait for {self.name}")
            if len(calls) == 1:
                raise KeyboardInterrupt
            return 0

    def start(name: str, *_: object) -> run_all.Pass:
        return run_all.Pass(name, Interrupted(name), 0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(run_all, "start", start)
    monkeypatch.setattr(run_all, "way_to_yield", lambda: nullcontext(lambda: None))
    with pytest.raises(KeyboardInterrupt):
        run_all.run(2, [])
    assert calls == ["wait for timed", "end beside", "end timed", "wait for beside", "wait for timed"]


HANGS_ALONE = """
import os, time

def test_unmarked():
    open("made", "w").write(str(os.getppid()))
    os.rename("made", "pid_of_pass")
    time.sleep(60)
"""


def test_a_terminated_run_ends_its_passes(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "test_it.py").write_text(HANGS_ALONE)
    file = tmp_path / "pid_of_pass"
    command = [sys.executable, str(HERE / "run_all.py"), "--processes", "1", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as running:
        try:
            wait_until(lambda: file.exists() or running.poll() is not None)
            running.terminate()
            assert running.wait(30) == 143
            wait_until(lambda: not Path("/proc", file.read_text()).exists())
        finally:
            running.kill()


def wait_until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


FAILS_FIRST = """
import pathlib, pytest

def fails_until(name, n):
    before = pathlib.Path(name)
    n_runs = int(before.read_text()) if before.exists() else 0
    before.write_text(str(n_runs + 1))
    assert n_runs >= n

@pytest.mark.timed
def test_timed():
    fails_until("timed", {timed})

@pytest.mark.alone
def test_alone():
    pass

def test_unmarked():
    fails_until("unmarked", {unmarked})
"""


PASSED_AGAIN = "these failed, but not when they ran again by themselves"
FAILED_AGAIN = "these failed twice, the second time by themselves"


@pytest.mark.parametrize(("timed", "unmarked", "status"), [(1, 0, 0), (5, 1, 1), (1, 5, 1)])
def test_a_test_that_failed_beside_others_runs_once_more_at_the_end(
    tmp_path: Path, timed: int, unmarked: int, status: int
) -> None:
    """Its second verdict counts, and no other test's failure is forgotten."""
    project(tmp_path)
    (tmp_path / "test_it.py").write_text(FAILS_FIRST.format(timed=timed, unmarked=unmarked))
    done = run(tmp_path, "-c", ONE_PROCESS_EACH.format(n_processes=2, yielding=None))
    assert done.returncode == status, done.stdout
    failing = {name: n for name, n in (("timed", timed), ("unmarked", unmarked)) if n}
    for name in ("timed", "unmarked"):
        assert (tmp_path / name).read_text() == ("2" if name in failing else "1")
    again = done.stdout.partition("== again\n")[2]
    wanted = {f"{'PASSED' if n == 1 else 'FAILED'} test_it.py::test_{name}" for name, n in failing.items()}
    assert set(re.findall(r"(?:PASSED|FAILED) \S+", again)) == wanted
    parts = re.split(r"^== (these failed.*):\n", again, flags=re.MULTILINE)[1:]
    told = {name: "" for name in (PASSED_AGAIN, FAILED_AGAIN)} | dict(zip(parts[::2], parts[1::2], strict=True))
    assert sorted(told[PASSED_AGAIN].split()) == [f"test_it.py::test_{name}" for name, n in failing.items() if n == 1]
    assert sorted(told[FAILED_AGAIN].split()) == [f"test_it.py::test_{name}" for name, n in failing.items() if n > 1]


MANY_FAIL = """
import pytest

@pytest.mark.timed
@pytest.mark.parametrize("n", range(21))
def test_timed(n):
    raise AssertionError
"""


def test_when_many_tests_fail_they_do_not_run_again(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "test_it.py").write_text(MANY_FAIL)
    done = run(tmp_path, "-c", ONE_PROCESS_EACH.format(n_processes=2, yielding=None))
    assert done.returncode == 1 and "== again" not in done.stdout and done.stdout.count("21 failed") == 1


USES = """
import asyncio, socket, subprocess, sys

def test_a_socket():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))

def test_a_process():
    subprocess.run([sys.executable, "-c", ""])

def test_a_loop():
    asyncio.run(asyncio.sleep(0))
"""


def test_a_quick_test_that_uses_a_socket_or_a_process_fails(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "test_it.py").write_text(USES)
    done = run(tmp_path, "-m", "pytest", "--only", "quick")
    assert set(re.findall(r"^(PASSED|FAILED) test_it.py::test_a_(\w+)", done.stdout, re.M)) == {
        ("FAILED", "socket"), ("FAILED", "process"), ("PASSED", "loop")
    }  # fmt: skip
    assert "socket.bind in `make test-quick`: mark this test slow" in done.stdout


@pytest.mark.parametrize(
    ("name", "names"),
    [("beside", ["slow", "unmarked"]), ("quick", ["unmarked"]), ("timed", ["timed"]), ("alone", ["alone"])],
)
def test_each_pass_has_its_tests(tmp_path: Path, name: str, names: list[str]) -> None:
    project(tmp_path)
    done = run(tmp_path, "-m", "pytest", "--only", name, "--collect-only", "-q")
    assert sorted(re.findall(r"^test_it.py::test_(\w+)$", done.stdout, re.M)) == names


@pytest.mark.parametrize(
    ("name", "imported"),
    [("beside", {"slow", "beside"}), ("quick", {"beside"}), ("timed", {"timed"}), ("alone", {"alone"}), (None, None)],
)
def test_a_file_without_a_test_of_the_pass_is_not_imported(
    tmp_path: Path, name: str | None, imported: set[str] | None
) -> None:
    project(tmp_path)
    (tmp_path / "test_it.py").unlink()
    for mark in ("slow", "timed", "alone", "beside"):
        own = "" if mark == "beside" else f"pytestmark = [pytest.mark.usefixtures(), pytest.mark.{mark}]\n"
        source = f"import pytest\nopen('imported-{mark}', 'w').close()\n{own}\ndef test_{mark}(): pass\n"
        (tmp_path / f"test_of_{mark}.py").write_text(source)
    done = run(tmp_path, "-m", "pytest", *(() if name is None else ("--only", name)), "--collect-only", "-q")
    found = set(re.findall(r"::test_(\w+)$", done.stdout, re.M))
    expected = {"slow", "timed", "alone", "beside"} if imported is None else imported
    assert found == expected == {path.name.removeprefix("imported-") for path in tmp_path.glob("imported-*")}


def test_the_longest_files_begin_first_and_then_those_with_a_slow_test(tmp_path: Path) -> None:
    project(tmp_path)
    for name, mark in (("test_a_quick", "usefixtures()"), ("test_benchmarks", "slow"), ("test_a_slow", "slow")):
        (tmp_path / f"{name}.py").write_text(f"import pytest\n\n@pytest.mark.{mark}\ndef test(): pass\n")
    done = run(tmp_path, "-m", "pytest", "--only", "beside", "--collect-only", "-q")
    files = list(dict.fromkeys(re.findall(r"^(test_\w+)\.py::", done.stdout, re.M)))
    assert files == ["test_benchmarks", "test_a_slow", "test_it", "test_a_quick"]


HANGS = """
import os, threading, pytest

@pytest.mark.timed
def test_hangs():
    threading.Event().wait()

@pytest.mark.timed
def test_timed():
    pass

@pytest.mark.alone
def test_a_first():
    os._exit(3)

@pytest.mark.alone
def test_alone():
    pass

def test_unmarked():
    pass
"""


def test_a_test_that_hangs_or_ends_its_process_costs_no_other_test(tmp_path: Path) -> None:
    """The settings are ours, but for how long a test may take. What runs again has a shorter limit."""
    ours = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert run_all.AGAIN_WITHIN_S < ours["faulthandler_timeout"] <= 360
    project(tmp_path)
    (tmp_path / "test_it.py").write_text(HANGS)
    with (tmp_path / "pytest.ini").open("a", encoding="utf-8") as file:
        file.write(f"faulthandler_timeout = 3\nfaulthandler_exit_on_timeout = {ours['faulthandler_exit_on_timeout']}\n")
    done = run(tmp_path, "-c", ONE_PROCESS_EACH.format(n_processes=2, yielding=None))
    assert done.returncode == 1, done.stdout
    assert set(re.findall(r"PASSED test_it.py::test_(\w+)", done.stdout)) == {"timed", "alone", "unmarked"}
    ended = set(re.findall(r"crashed while running '?test_it.py::test_(\w+)", done.stdout))
    assert ended == {"hangs", "a_first"}, done.stdout
    failures = done.stdout.partition("= FAILURES =")[2].partition("short test summary")[0]
    assert re.search(r"^Timeout .*line \d+ in test_hangs$", failures, re.M | re.S), "the report says where it hung"
    again = done.stdout.partition("== again")[2]
    assert "Timeout (0:00:03)!" in failures and "Timeout (0:00:02)!" in again
