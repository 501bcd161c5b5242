"""Run a timed test once more if it failed while the machine stalled, and list what failed.

A virtual machine's core is sometimes taken away for tens of milliseconds. That is an audible gap in a telephone call,
and the software on the machine neither causes it nor can prevent it. The rule applies only to tests marked `timed` or
`alone`, and only if the stall was measured while the test ran. A test that fails without a stall fails.

The tests that were run again are listed at the end of the run, also with pytest-xdist.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from standstill import Standstills, standstills

LEAST_STALL_NS = 40_000_000
"""Two frames: a bound of 60 ms, or a buffer of 80 ms, does not hold such a stall besides the usual lateness."""

_MONITOR = pytest.StashKey[Standstills]()
_REPORTED = "telephony_retry"
"""The attribute of a report that takes the line to the process that prints it; xdist carries attributes over."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--retried-to", type=Path, help="append the list of the tests that were run again to this file")
    parser.addoption("--failures-to", type=Path, help="append the list of the tests that failed to this file")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Function, nextitem: pytest.Item | None) -> bool | None:
    """Replaces pytest's own hook for the tests marked `timed` or `alone`."""
    if item.get_closest_marker("alone") is None and item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    begun_ns = time.monotonic_ns()
    monitor = _monitor(item.config)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    longest_ns = monitor.longest(begun_ns)
    if any(report.failed for report in reports) and longest_ns > LEAST_STALL_NS:
        item._initrequest()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        outcome = "failed again" if any(report.failed for report in reports) else "passed the second time"
        setattr(reports[-1], _REPORTED, f"{item.nodeid}: the machine stalled for {longest_ns // 10**6} ms; {outcome}")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _monitor(config: pytest.Config) -> Standstills:
    """The monitor of stalls. It runs from the first such test to the end of the run."""
    if _MONITOR not in config.stash:
        stack = ExitStack()
        config.stash[_MONITOR] = stack.enter_context(standstills())
        config.add_cleanup(stack.close)
    return config.stash[_MONITOR]


class Lists:
    """Collects, in the process that prints the report, the tests that were run again and those that failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._retried_to: Path | None = config.getoption("--retried-to")
        self._failures_to: Path | None = config.getoption("--failures-to")
        self._retried: list[str] = []
        self._failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if line := getattr(report, _REPORTED, None):
            self._retried.append(line)
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        _append(self._failures_to, self._failed)
        if not self._retried:
            return
        terminalreporter.section(f"{len(self._retried)} run again after a stall of the machine")
        for line in self._retried:
            terminalreporter.write_line(line)
        _append(self._retried_to, self._retried)


def _append(path: Path | None, lines: list[str]) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Lists(config))
