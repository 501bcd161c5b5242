"""Each check of the torture finds the defect that was planted for it. Without a defect nothing is found."""

from __future__ import annotations

import pytest

from telephony_tts.session.sender import Sender
from telephony_tts.session.session import Session
from torture.defects import DEFECTS, plant
from torture.violations import Tally
from torture.virtual_calls import run_calls

VIRTUAL = sorted(name for name, defect in DEFECTS.items() if defect.is_virtual)


def tried(monkeypatch: pytest.MonkeyPatch, defect: str | None) -> Tally:
    """Calls of a quarter of an hour in all, on a virtual clock."""
    for owner, name in ((Session, "poll"), (Session, "close"), (Sender, "send_due")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # it is put back after the test
    if defect is not None:
        plant(defect)
    return run_calls(range(12), 1.5)


def test_a_healthy_core_breaks_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = tried(monkeypatch, None)
    assert tally.violations == []
    assert tally.counts["turns done"] > 50 and tally.counts["turns cleared"] > 30
    assert tally.heard_errors_ms and max(tally.heard_errors_ms) <= 1
    assert tally.n_words_right > 10 and tally.n_words_wrong == 0


@pytest.mark.parametrize("name", VIRTUAL)
def test_a_planted_defect_is_found_by_its_check(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = tried(monkeypatch, name).violations
    assert DEFECTS[name].check in {each.check for each in found}, found[:5]
