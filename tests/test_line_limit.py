"""The limit on log lines: peers cannot fill the log, and the number of missing lines is reported."""

from __future__ import annotations

import logging

import pytest
from log_lines import lines

from telephony_tts.runtime import logs
from telephony_tts.runtime.logs import LineLimit

S = 1_000_000_000


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_twenty_lines_at_once_then_one_a_second_with_the_number_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = logs.get("test").limited(LineLimit(20, 1, clock))
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


def test_a_minute_without_lines_allows_twenty_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = logs.get("test").limited(LineLimit(20, 1, clock))
    for _ in range(30):
        log.info("no_uuid")
    clock.now_ns += 60 * S
    caplog.clear()
    for _ in range(30):
        log.info("no_uuid")
    assert lines(caplog) == [{"left_out": 10}] + [{}] * 19


def test_bound_loggers_share_a_limit_that_does_not_hide_our_own_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logs.get("test").limited(LineLimit(20, 1, Clock()))
    for n in range(40):
        log.bind(peer=f"192.0.2.{n}").bind(k=n).warning("refused")
    assert lines(caplog) == [{"peer": f"192.0.2.{n}", "k": n} for n in range(20)]
    caplog.clear()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.bind(peer="x").exception("call_crashed")
    assert lines(caplog) == [{"peer": "x"}] and caplog.records[0].exc_info is not None


def test_an_error_that_a_peer_can_repeat_is_limited_too(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = logs.get("test").limited(LineLimit(20, 1, clock))
    for _ in range(1000):
        log.error("engine_crashed", exc_info=ZeroDivisionError())
    assert lines(caplog) == [{}] * 20
    log.warning("refused")
    assert lines(caplog, "refused") == [{}], "faults have a limit of their own"
    clock.now_ns += 10 * S
    log.error("engine_crashed", exc_info=ZeroDivisionError())
    assert lines(caplog)[-1] == {"left_out": 980}


def test_the_summary_is_always_written_and_counts_all_missing_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = logs.get("test").bind(call="c1").limited(LineLimit(20, 1, clock))
    log.summary("call_ended", code=1000)
    assert lines(caplog) == [{"call": "c1", "code": 1000}]
    for _ in range(3):
        for _ in range(50):
            log.info("warning")
        clock.now_ns += 5 * S
    log.error("engine_crashed", exc_info=ZeroDivisionError())
    log.summary("call_ended", code=1000)
    assert lines(caplog)[-1] == {"call": "c1", "code": 1000, "lines_left_out": 150 - len(lines(caplog, "warning"))}
    assert len(lines(caplog, "warning")) == 30


def test_lines_below_the_level_do_not_count_and_debug_lines_are_not_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logs.get("test").limited(LineLimit(20, 1, Clock()))
    caplog.set_level(logging.WARNING)
    for _ in range(100):
        log.info("turn_done")
    log.warning("error")
    assert lines(caplog) == [{}]
    caplog.set_level(logging.DEBUG)
    for _ in range(100):
        log.debug("sentence")
    assert len(lines(caplog, "sentence")) == 100


def test_the_lines_of_a_library_that_wraps_our_logger_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    """websockets wraps its logger."""
    limit = LineLimit(20, 1, Clock())
    library = logging.LoggerAdapter(logs.get("test").limited(limit), {"websocket": "its own"})
    for n in range(30):
        library.warning("skipped broadcast: %s", n)
    assert caplog.messages == [f"skipped broadcast: {n}" for n in range(20)]
    assert {record.filename for record in caplog.records} == {"test_line_limit.py"}, "the line of the caller"
    assert lines(caplog)[0] == {"websocket": "its own"} and limit.n_left_out == 10


@pytest.mark.slow
def test_a_call_with_a_turn_a_second_loses_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Each turn is interrupted by voice and most have a warning. Sometimes a `clear` ends 32 queued turns."""
    clock = Clock()
    log = logs.get("test").limited(LineLimit.of_call(clock))
    n_said = 0
    for second in range(3600):
        events = ["turn_started", "caller_speech", "turn_cleared", "caller_speech"]
        events += ["warning"] * (second % 10 < 9) + ["turn_cleared"] * 32 * (second % 600 == 599)
        for event in events:
            log.info(event)
        n_said += len(events)
        clock.now_ns += S
    assert len(caplog.records) == n_said and lines(caplog, "turn_cleared") == [{}] * (3600 + 6 * 32)
    log.summary("call_ended")
    assert lines(caplog, "call_ended") == [{}]
