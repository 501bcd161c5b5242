"""When a process without heartbeats is stalled, and when it has hung. Time is an argument."""

from __future__ import annotations

import pytest

from telephony_tts.engines.cosyvoice2.hosting.stall_judge import CHECK_INTERVAL_NS, STALLED_NS, StallJudge, StallVerdict

S = 1_000_000_000
LIMIT_NS = 5 * S


def first_verdicts(
    judge: StallJudge, from_ns: int, to_ns: int, every_ns: int = CHECK_INTERVAL_NS
) -> dict[StallVerdict, int]:
    """Check regularly. Returns when each verdict came first."""
    first: dict[StallVerdict, int] = {}
    for now_ns in range(from_ns + every_ns, to_ns + 1, every_ns):
        first.setdefault(judge.check(now_ns, LIMIT_NS), now_ns)
    return first


def test_silence_is_first_a_stall_and_then_a_hang() -> None:
    judge = StallJudge(0)
    assert first_verdicts(judge, 0, 6 * S) == {
        StallVerdict.ALIVE: CHECK_INTERVAL_NS,
        StallVerdict.STALLED: STALLED_NS,
        StallVerdict.HUNG: LIMIT_NS,
    }


def test_each_message_begins_the_silence_anew() -> None:
    judge = StallJudge(0)
    for n in range(20):
        assert set(first_verdicts(judge, n * S, (n + 1) * S)) == {StallVerdict.ALIVE}
        judge.note_message((n + 1) * S)


def test_a_message_ends_a_stall() -> None:
    judge = StallJudge(0)
    assert StallVerdict.STALLED in first_verdicts(judge, 0, 4 * S)
    judge.note_message(4 * S)
    assert judge.check(4 * S + CHECK_INTERVAL_NS, LIMIT_NS) is StallVerdict.ALIVE
    assert judge.check(4 * S + 2 * CHECK_INTERVAL_NS, LIMIT_NS) is StallVerdict.ALIVE


@pytest.mark.parametrize("silent_ns", [0, S, STALLED_NS - 2 * CHECK_INTERVAL_NS])
def test_time_in_which_the_server_stood_still_does_not_count(silent_ns: int) -> None:
    """The server read nothing for a minute, because it did not run."""
    judge = StallJudge(0)
    first_verdicts(judge, 0, silent_ns)
    assert judge.check(silent_ns + 60 * S, LIMIT_NS) is StallVerdict.ALIVE
    judge.note_message(silent_ns + 60 * S)
    assert judge.check(silent_ns + 60 * S + CHECK_INTERVAL_NS, LIMIT_NS) is StallVerdict.ALIVE


def test_a_server_that_is_always_late_still_finds_a_process_that_hangs() -> None:
    """Each check is a second late. It takes longer, but it ends."""
    found = first_verdicts(StallJudge(0), 0, 60 * S, every_ns=S)
    assert found[StallVerdict.STALLED] == S * STALLED_NS // CHECK_INTERVAL_NS
    assert found[StallVerdict.HUNG] == S * LIMIT_NS // CHECK_INTERVAL_NS
