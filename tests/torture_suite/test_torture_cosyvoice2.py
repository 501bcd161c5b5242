"""CosyVoice2's own process is stopped and killed while a tiny model speaks in it."""

from __future__ import annotations

import pytest

from torture.defects import DEFECTS
from torture.histories import COSYVOICE2
from torture.recovery import Recovery, recover
from torture.runner import in_loop
from torture.sandbox import has_torch
from torture.subject import Subject
from torture.violations import RECOVERY

pytestmark = [
    pytest.mark.alone,
    pytest.mark.thorough,
    pytest.mark.skipif(not has_torch(), reason="PyTorch is not installed"),
]
COSYVOICE2_DEFECTS = ("waits_after_restart", "gives_up_stopped")


def stopped_and_killed(*defects: str) -> tuple[Recovery, Recovery]:
    with Subject(COSYVOICE2, defects=defects) as subject:
        return in_loop(recover("cosyvoice2_stop", subject)), in_loop(recover("cosyvoice2", subject))


def test_a_stop_costs_no_turn_and_a_kill_no_call() -> None:
    stopped, killed = stopped_and_killed()
    assert stopped.holds and killed.holds, (stopped, killed)
    assert (stopped.failed, stopped.lost) == (0, 0)
    assert (killed.calls, killed.lost) == (2, 0) and killed.restart_ms > 0


@pytest.mark.soak
def test_a_process_that_is_given_up_too_soon_and_speech_that_is_late_behind_a_restart_are_found() -> None:
    assert {DEFECTS[name].check for name in COSYVOICE2_DEFECTS} == {RECOVERY}
    stopped, killed = stopped_and_killed(*COSYVOICE2_DEFECTS)
    assert not stopped.holds and stopped.problem == "the stopped process was replaced", stopped
    assert not killed.holds and killed.speaks_ms > 2000, killed
