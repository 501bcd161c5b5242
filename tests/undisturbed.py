"""A test that failed while this machine stood still is run once more, and says so.

That is for tests that are measured against the clock, marked `timed` or `alone`: 80 ms in which none of its processes
ran is a hole in a telephone call that none of them has made.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from _pytest.runner import runtestprotocol
from standstill import Standstills, standstills

_DISTURBS_NS = 40_000_000
"""Two frames: what a bound of 60 ms or a buffer of 80 ms does not bear beside the usual."""

_WITNESSED = pytest.StashKey[Standstills]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Function, nextitem: pytest.Item | None) -> bool | None:
    """Instead of pytest's own, for what is measured against the clock."""
    if item.get_closest_marker("alone") is None and item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    begun_ns = time.monotonic_ns()
    machine = _witnessed(item.config)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    longest_ns = machine.longest(begun_ns)
    if any(report.failed for report in reports) and longest_ns > _DISTURBS_NS:
        print(f"\n{item.nodeid}: failed; the machine stood still for {longest_ns // 10**6} ms meanwhile: again")
        item._initrequest()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _witnessed(config: pytest.Config) -> Standstills:
    """From the first test on, to the end of the run."""
    if _WITNESSED not in config.stash:
        stack = ExitStack()
        config.stash[_WITNESSED] = stack.enter_context(standstills())
        config.add_cleanup(stack.close)
    return config.stash[_WITNESSED]
