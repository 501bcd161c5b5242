"""What the torture takes for a sound that must not be heard."""

from __future__ import annotations

import pytest

from torture.sound_rules import SoundRules
from torture.violations import CROSS_NS, Stops

MS = 1_000_000


@pytest.mark.parametrize(
    ("end", "after_ms", "is_wrong"), [("cleared", 10, False), ("cleared", 61, True), ("done", 10, True)]
)
def test_frames_of_a_cleared_sound_may_be_on_their_way(end: str, after_ms: int, is_wrong: bool) -> None:
    """A turn of a sound alone was cleared. Its frames came over the media leg's connection, and were read behind the
    `cleared` that came over the bot's."""
    assert CROSS_NS == 60 * MS
    rules = SoundRules(Stops())
    over_ns = 5_000 * MS
    for n in range(20):
        rules.frame(over_ns - (20 - n) * MS, sounds=True, is_spoken=True, may_be_other=True)
    rules.frame(over_ns - 1, sounds=False, is_spoken=True, may_be_other=True)
    rules.turn_over("b3", end, over_ns)
    for _ in range(20):
        rules.frame(over_ns + after_ms * MS, sounds=True, is_spoken=False, may_be_other=False)
    assert bool(rules.wrong) == is_wrong
