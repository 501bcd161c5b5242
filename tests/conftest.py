"""What every test runs under, and which of them run beside others."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator

# Before numpy is imported anywhere: OpenBLAS threads spin against onnxruntime's and double the time of a sentence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from undisturbed import pytest_runtest_protocol

__all__ = ["pytest_runtest_protocol"]

PASSES = ("beside", "timed", "alone")


def catch_ignored_signals() -> None:
    """Start children with default signal dispositions, also where this run was started with `nohup` or `&`.

    Such a start ignores SIGINT, SIGQUIT or SIGHUP. Children inherit that across exec; they do not inherit a handler.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            handler = signal.default_int_handler if number == signal.SIGINT else do_nothing
            signal.signal(number, handler)


def do_nothing(*_: object) -> None:
    """A signal that this run was started to ignore stays without effect on it."""


FAILED = pytest.StashKey[bool]()
"""Whether a phase of the test failed."""

# The same examples on every run, and no verdict by the clock of a shared machine.
settings.register_profile("house", derandomize=True, deadline=None)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option of its own, and no `-m`, of which the last would hide the one before it."""
    parser.addoption(
        "--only",
        choices=PASSES,
        help="only the tests that may run beside any others, only those that may run beside one of their own kind "
        "(`timed`), or only those that must run alone; all if it is not given",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Only where tests run: a process that spreads them over workers has these inherit what it ignores."""
    if not config.getoption("numprocesses", None):
        catch_ignored_signals()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After the folders have marked theirs."""
    only = config.getoption("--only")
    if only is None:
        return
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (chosen if pass_of(item) == only else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def pass_of(item: pytest.Item) -> str:
    """In which of `PASSES` it runs: `alone` counts more than the `timed` of its file."""
    return next((name for name in ("alone", "timed") if item.get_closest_marker(name) is not None), "beside")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """What a process reports travels as UTF-8, and what hostile texts leave in a log or a message has to as well."""
    return encodable((yield))


def encodable(told: object) -> object:
    """The same, with lone surrogates written out."""
    if isinstance(told, str):
        return told.encode("utf-8", "backslashreplace").decode()
    if isinstance(told, dict):
        return {encodable(key): encodable(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return type(told)(map(encodable, told))
    return told


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure for the teardown below."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Collect now what a failed test left open, so that it is reported with this test and not with a later one.

    The traceback of the failure holds the test's variables. pytest keeps it in `sys` for a debugger, which is done by
    now.
    """
    if item.stash.get(FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end; a collector that walks through them each time takes a fifth of a second."""
    gc.collect()
    gc.freeze()
