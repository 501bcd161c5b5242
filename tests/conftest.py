"""Settings for all tests, and the choice of a pass (`--only`)."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

# Before numpy is imported anywhere: OpenBLAS threads spin against onnxruntime's and double the time of a sentence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

pytest_plugins = ["stall_retry", "file_scheduling", "crash_reports"]

PASSES = ("beside", "timed", "alone", "quick", "soak")
"""Every test belongs to one of the first three, but for the long repetitions marked `soak`. `quick` has the tests of
`beside` that are not marked `slow`."""
LONGEST = (
    "test_benchmarks.py", "test_ray_engine.py", "test_gpu_rehearsal.py", "test_torture_objects.py",
    "test_console_say.py", "test_console_network.py",
)  # fmt: skip
"""Files that take minutes and would come late. They begin first, or one process would be left with them at the end."""


def catch_ignored_signals() -> None:
    """Start children with default signal dispositions, also where this run was started with `nohup` or `&`.

    Such a start ignores SIGINT, SIGQUIT or SIGHUP. Children inherit an ignored signal, but not a handler.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            handler = signal.default_int_handler if number == signal.SIGINT else do_nothing
            signal.signal(number, handler)


def do_nothing(*_: object) -> None:
    """The handler of a signal that this run was started to ignore."""


FAILED = pytest.StashKey[bool]()
"""Whether a phase of the test failed."""

# The same examples on every run, and no verdict by the clock of a shared machine.
settings.register_profile("house", derandomize=True, deadline=None)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option of its own: `-m` stays free for PYTEST_ARGS, and pytest obeys only the last `-m`."""
    parser.addoption(
        "--only",
        choices=PASSES,
        help="run one pass: the tests marked `soak`, `alone` or `timed`, all others (beside), or all others but those "
        "marked `slow` (quick). Default: all tests but those marked `soak`",
    )
    parser.addoption("--without-thorough", action="store_true", help="leave out the tests marked `thorough`")
    parser.addoption("--only-these", type=Path, help="run the tests that this file lists, one on a line")


def pytest_configure(config: pytest.Config) -> None:
    """Only in processes that run tests: workers inherit what the process that starts them ignores."""
    if config.getoption("numprocesses", None):
        return
    catch_ignored_signals()
    if config.getoption("--only") == "quick":
        find_fonts()
        sys.addaudithook(refuse_sockets_and_processes)


def find_fonts() -> None:
    """Where matplotlib was never used, its import starts a process that lists the fonts, which a quick test may not."""
    if importlib.util.find_spec("matplotlib") is not None:
        importlib.import_module("matplotlib.font_manager")


def refuse_sockets_and_processes(event: str, arguments: tuple[object, ...]) -> None:
    """Fail a test of the quick pass that connects, listens or starts a process: it is not marked `slow` and should be.

    pytest names the running test in the environment.
    """
    if event not in ("socket.bind", "socket.connect", "subprocess.Popen") or "PYTEST_CURRENT_TEST" not in os.environ:
        return
    if getattr(arguments[0], "family", None) != socket.AF_UNIX:
        raise AssertionError(f"{event} in `make test-quick`: mark this test slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without a test of the chosen pass: all files take 20 s of each process on a slow core."""
    if collection_path.suffix != ".py":
        return None
    only, these = config.getoption("--only"), config.getoption("--only-these")
    if only is not None and not may_have(only, collection_path.read_text(encoding="utf-8")):
        return True
    if config.getoption("--without-thorough") and is_thorough(collection_path.read_text(encoding="utf-8")):
        return True
    if these is not None:
        files = {line.partition("::")[0] for line in these.read_text(encoding="utf-8").splitlines()}
        return True if collection_path.relative_to(config.rootpath).as_posix() not in files else None
    return None


def may_have(only: str, source: str) -> bool:
    """Whether a file can have a test of this pass."""
    if only not in ("beside", "quick"):
        return f"mark.{only}" in source
    others = "slow|timed|alone|soak" if only == "quick" else "timed|alone|soak"
    return re.search(rf"^pytestmark = .*\bmark\.({others})\b", source, re.MULTILINE) is None


def is_thorough(source: str) -> bool:
    """Whether all tests of a file are marked `thorough`."""
    return re.search(r"^pytestmark = [^\n]*\bmark\.thorough\b", source, re.MULTILINE) is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen pass. The longest files come first, then those with a slow test, so that all cores
    are busy to the end."""
    only = config.getoption("--only")
    wanted = {only} if only is not None else {"beside", "timed", "alone"}
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    these = config.getoption("--only-these")
    names = None if these is None else set(these.read_text(encoding="utf-8").splitlines())
    leave_out = config.getoption("--without-thorough")
    for item in items:
        is_chosen = not wanted.isdisjoint(passes_of(item)) and (names is None or item.nodeid in names)
        is_chosen = is_chosen and not (leave_out and item.get_closest_marker("thorough") is not None)
        (chosen if is_chosen else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    slow = {item.path for item in chosen if item.get_closest_marker("slow") is not None}

    def place(item: pytest.Item) -> tuple[bool, bool]:
        return item.path.name not in LONGEST, item.path not in slow

    items[:] = chosen if only is None else sorted(chosen, key=place)


def passes_of(item: pytest.Item) -> tuple[str, ...]:
    """The passes that a test belongs to. A mark that stands earlier here overrides a later one, such as its file's."""
    for name in ("soak", "alone", "timed"):
        if item.get_closest_marker(name) is not None:
            return (name,)
    return ("beside",) if item.get_closest_marker("slow") is not None else ("beside", "quick")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in this process sends the log to the standard error of its test, which is closed afterwards.
    So what it changed is undone."""
    root, websockets = logging.getLogger(), logging.getLogger("websockets")
    handlers, level, level_of_websockets = list(root.handlers), root.level, websockets.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    websockets.setLevel(level_of_websockets)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Make a worker's report encodable: it travels as UTF-8, and hostile texts in it may hold lone surrogates."""
    return encodable((yield))


def encodable(report: object) -> object:
    """The same report with lone surrogates escaped."""
    if isinstance(report, str):
        return report.encode("utf-8", "backslashreplace").decode()
    if isinstance(report, dict):
        return {encodable(key): encodable(value) for key, value in report.items()}
    if isinstance(report, list | tuple):
        return type(report)(map(encodable, report))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure for the teardown below."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Collect garbage after a failed test, so that what it left open is reported with it and not with a later test.

    pytest keeps the traceback in `sys` for a debugger, and the traceback holds the test's variables.
    """
    if item.stash.get(FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()


def pytest_collection_finish() -> None:
    """Freeze modules and tests: they live to the end, and a garbage collection that visits them takes 0.2 s."""
    gc.collect()
    gc.freeze()
