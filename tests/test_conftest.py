"""What conftest guarantees each test: default signal handling, and no failure that affects the next test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

LOOKS_AT_A_CHILD = """
import asyncio, signal, subprocess, sys

def test_a_child_ignores_nothing():
    report = "import signal; print([n for n in (1, 2, 3, 15) if signal.getsignal(n) == signal.SIG_IGN])"
    assert subprocess.check_output([sys.executable, "-c", report], text=True) == "[]\\n"

def test_sigint_ends_a_child():
    sleeper = subprocess.Popen(["sleep", "30"])
    sleeper.send_signal(signal.SIGINT)
    try:
        assert sleeper.wait(5) == -signal.SIGINT
    finally:
        sleeper.kill()
        sleeper.wait()

def test_sigint_interrupts_asyncio_here():
    async def interrupted():
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(5)
    try:
        asyncio.run(interrupted())
    except KeyboardInterrupt:
        return
    raise AssertionError("not interrupted")

def test_a_hang_up_does_not_end_the_run():
    if {hangs_up}:
        signal.raise_signal(signal.SIGHUP)
"""

LEAVES_A_SOCKET_OPEN = """
import gc, socket

def test_a_fails_with_an_open_socket():
    circle = [socket.socket()]
    circle.append(circle)
    assert circle == []

def test_b_collects():
    gc.collect()
"""


def run_in(folder: Path, source: str, ignored: str, *arguments: str) -> str:
    """The report of a pytest run under our conftest, started by a shell that ignores some signals."""
    (folder / "test_it.py").write_text(source)
    (folder / "conftest.py").write_text((HERE / "conftest.py").read_text())
    marks = "".join(f"    {name}: x\n" for name in ("alone", "timed", "thorough"))
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\nmarkers =\n{marks}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=no", *arguments]
    return subprocess.run(
        ["/bin/sh", "-c", f'trap "" {ignored}; exec "$@"', "sh", *command],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(HERE)}, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "a worker"])
@pytest.mark.parametrize("ignored", ["INT", "INT QUIT HUP TERM"], ids=["in the background", "nohup"])
def test_a_run_in_the_background_gives_its_tests_default_signals(
    tmp_path: Path, ignored: str, workers: list[str]
) -> None:
    source = LOOKS_AT_A_CHILD.replace("{hangs_up}", str("HUP" in ignored))
    report = run_in(tmp_path, source, ignored, *workers)
    assert re.search(r"^=* ?4 passed", report, re.M), report


def test_what_a_failed_test_leaves_open_is_reported_with_that_test(tmp_path: Path) -> None:
    report = run_in(tmp_path, LEAVES_A_SOCKET_OPEN, "USR2")
    assert "FAILED test_it.py::test_a_fails_with_an_open_socket" in report
    assert "ERROR test_it.py::test_a_fails_with_an_open_socket" in report, "the socket is reported"
    assert "PASSED test_it.py::test_b_collects" in report and "::test_b_collects - " not in report


def test_a_run_without_the_thorough_tests_leaves_them_out(tmp_path: Path) -> None:
    """By their marks. A file that has nothing else is not imported, which may take seconds."""
    (tmp_path / "test_more.py").write_text(
        "import pytest\npytestmark = pytest.mark.thorough\nraise AssertionError('it was imported')\n"
    )
    source = "import pytest\n\ndef test_short(): pass\n\n@pytest.mark.thorough\ndef test_long(): pass\n"
    report = run_in(tmp_path, source, "USR2", "--without-thorough")
    assert "PASSED test_it.py::test_short" in report and "test_long" not in report and "it was imported" not in report
