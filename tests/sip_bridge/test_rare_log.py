"""What strangers do is told, and cannot fill the log."""

from __future__ import annotations

import logging

import pytest
from log_lines import lines

from sip_bridge.rare_log import RareLog
from telephony_tts import logs

S = 1_000_000_000


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_twenty_lines_come_at_once_and_then_one_a_second_says_how_many_did_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = RareLog(logs.get("test"), clock)
    for n in range(1000):
        log.warning("refused", n=n)
    assert lines(caplog) == [{"n": n} for n in range(20)]
    caplog.clear()
    for tenth in range(50):
        clock.now_ns += S // 10
        log.warning("refused", n=tenth)
    assert lines(caplog) == [
        {"n": 9, "left_out": 980 + 9}, {"n": 19, "left_out": 9}, {"n": 29, "left_out": 9}, {"n": 39, "left_out": 9},
        {"n": 49, "left_out": 9},
    ]  # fmt: skip


def test_a_quiet_minute_allows_twenty_again_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RareLog(logs.get("test"), clock)
    for _ in range(30):
        log.info("no_uuid")
    clock.now_ns += 60 * S
    caplog.clear()
    for _ in range(30):
        log.info("no_uuid")
    assert lines(caplog) == [{"left_out": 10}] + [{}] * 19


def test_those_that_are_bound_share_what_is_allowed_and_a_fault_of_ours_is_always_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RareLog(logs.get("test"), Clock())
    for n in range(40):
        log.bind(peer=f"192.0.2.{n}").bind(k=n).warning("refused")
    assert lines(caplog) == [{"peer": f"192.0.2.{n}", "k": n} for n in range(20)]
    caplog.clear()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.bind(peer="x").exception("call_crashed")
    assert lines(caplog) == [{"peer": "x"}] and caplog.records[0].exc_info is not None
