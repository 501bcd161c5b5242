"""Each check of the torture finds the defect that was planted for it. Without a defect nothing is found."""

from __future__ import annotations

import pytest

from telephony_tts.doors.genesys.codec import GenesysCodec
from telephony_tts.doors.vonage.codec import VonageCodec
from telephony_tts.session.bed import Bed
from telephony_tts.session.caller.talkspurt import TalkSpurt
from telephony_tts.session.playhead import Playhead
from telephony_tts.session.sender import Sender
from telephony_tts.session.session import Session
from telephony_tts.transport.call import Call
from torture.defects import DEFECTS, plant
from torture.dialects import DIALECTS
from torture.virtual_calls import run_calls, run_late_calls

pytestmark = pytest.mark.thorough

VIRTUAL = sorted(name for name, defect in DEFECTS.items() if defect.is_virtual)


PATCHED = (
    (Session, "poll"), (Session, "close"), (Sender, "send_due"), (Playhead, "n_played_frames"), (Playhead, "_place"),
    (Playhead, "ask_for_report"), (TalkSpurt, "feed"), (Bed, "_next"), (Bed, "stop"), (VonageCodec, "encode"),
    (GenesysCodec, "message"), (Call, "_to_bot"),
)  # fmt: skip


@pytest.mark.slow
def test_a_healthy_core_breaks_no_promise() -> None:
    """Calls of a quarter of an hour in all, on a virtual clock."""
    tally = run_calls(range(12), 1.5)
    assert tally.violations == []
    assert tally.counts["turns done"] > 50 and tally.counts["turns cleared"] > 30
    assert tally.heard_errors_ms and max(tally.heard_errors_ms) <= 1
    assert tally.n_words_right > 10 and tally.n_words_wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("late", ["fixed", "jumping"])
@pytest.mark.parametrize("platform", sorted(DIALECTS))
def test_heard_text_is_right_behind_each_platform(platform: str, late: str) -> None:
    tally = run_late_calls(range(8), platform, late)
    assert tally.violations == []
    errors_ms = tally.heard_errors_ms + tally.heard_errors_by_marks_ms
    assert errors_ms.total() > 40 and max(errors_ms) <= DIALECTS[platform].most_error_ms
    assert tally.n_words_right > 30 and tally.n_words_wrong <= 3
    counts = tally.counts
    assert counts["cleared by clear"] > 20 and counts["paused by bot"] > 2 and counts["texts with markup"] > 2


def broken_promises(seed: int, platform: str) -> set[str]:
    """The checks that fail in the call of this seed."""
    seeds = range(seed, seed + 1)
    tally = run_late_calls(seeds, platform, "fixed") if platform else run_calls(seeds, 1.5)
    return {each.check for each in tally.violations}


@pytest.mark.slow
@pytest.mark.parametrize("name", VIRTUAL)
def test_a_planted_defect_is_found_by_its_check(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In the calls of a quarter of an hour. The first one that shows it is enough."""
    for owner, attribute in PATCHED:
        monkeypatch.setattr(owner, attribute, getattr(owner, attribute))  # it is put back after the test
    plant(name)
    defect = DEFECTS[name]
    n_calls = 36 if defect.platform else 12
    assert any(defect.check in broken_promises(seed, defect.platform) for seed in range(n_calls))
