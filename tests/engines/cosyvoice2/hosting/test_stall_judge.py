"""When a process that sends no heartbeat is stalled, and when it has hung: time is an argument."""

from __future__ import annotations

import pytest

from telephony_tts.engines.cosyvoice2.hosting.stall_judge import CHECK_INTERVAL_NS, STALLED_NS, StallJudge, StallVerdict

S = 1_000_000_000
LIMIT_NS = 5 * S


def looks(judge: StallJudge, from_ns: int, to_ns: int, every_ns: int = CHECK_INTERVAL_NS) -> dict[StallVerdict, int]:
    """Look in time; when each verdict came first."""
    first: dict[StallVerdict, int] = {}
    for now_ns in range(from_ns + every_ns, to_ns + 1, every_ns):
        first.setdefault(judge.check(now_ns, LIMIT_NS), now_ns)
    return first


def test_silence_is_first_a_stall_and_then_a_hang() -> None:
    judge = StallJudge(0)
    assert looks(judge, 0, 6 * S) == {
        StallVerdict.ALIVE: CHECK_INTERVAL_NS,
        StallVerdict.STALLED: STALLED_NS,
        StallVerdict.HUNG: LIMIT_NS,
    }


def test_each_message_begins_the_silence_anew() -> None:
    judge = StallJudge(0)
    for n in range(20):
        assert set(looks(judge, n * S, (n + 1) * S)) == {StallVerdict.ALIVE}
        judge.heard((n + 1) * S)


def test_a_message_ends_a_stall() -> None:
    judge = StallJudge(0)
    assert StallVerdict.STALLED in looks(judge, 0, 4 * S)
    judge.heard(4 * S)
    assert judge.check(4 * S + CHECK_INTERVAL_NS, LIMIT_NS) is StallVerdict.ALIVE
    assert judge.check(4 * S + 2 * CHECK_INTERVAL_NS, LIMIT_NS) is StallVerdict.ALIVE


@pytest.mark.parametrize("silent_ns", [0, S, STALLED_NS - 2 * CHECK_INTERVAL_NS])
def test_a_standstill_of_the_server_is_no_silence_of_the_process(silent_ns: int) -> None:
    """Nothing was read for a minute, because nothing ran here."""
    judge = StallJudge(0)
    looks(judge, 0, silent_ns)
    assert judge.check(silent_ns + 60 * S, LIMIT_NS) is StallVerdict.ALIVE
    judge.heard(silent_ns + 60 * S)
    assert judge.check(silent_ns + 60 * S + CHECK_INTERVAL_NS, LIMIT_NS) is StallVerdict.ALIVE


def test_a_server_that_is_always_late_still_finds_a_process_that_hangs() -> None:
    """Each look is a second late: it takes longer, and it does not take for ever."""
    found = looks(StallJudge(0), 0, 60 * S, every_ns=S)
    assert found[StallVerdict.STALLED] == S * STALLED_NS // CHECK_INTERVAL_NS
    assert found[StallVerdict.HUNG] == S * LIMIT_NS // CHECK_INTERVAL_NS
