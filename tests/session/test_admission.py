"""Admission refuses calls before live calls suffer, and only as long as needed."""

from __future__ import annotations

import pytest

from telephony_tts.runtime.errors import Busy
from telephony_tts.session.admission import Admission

S = 1_000_000_000


def test_the_call_limit() -> None:
    admission = Admission(max_calls=2, max_late_ms=100)
    admission.check(1, 0, 0)
    with pytest.raises(Busy, match="2 calls are live") as busy:
        admission.check(2, 0, 0)
    assert busy.value.retry_after_ms > 0


def test_lateness_refuses_calls_and_fades() -> None:
    admission = Admission(max_calls=100, max_late_ms=50)
    admission.observe_lateness(160, 0)
    admission.observe_lateness(1, S // 10)
    with pytest.raises(Busy, match="late"):
        admission.check(1, 0, S)
    admission.check(1, 0, 2 * S)


def test_a_long_engine_queue_refuses() -> None:
    admission = Admission(max_calls=100, max_late_ms=50, max_queued=3)
    admission.check(1, 3, 0)
    with pytest.raises(Busy, match="4 utterances wait"):
        admission.check(1, 4, 0)
