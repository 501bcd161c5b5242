"""What the model of a call must not take for a broken promise, each beside the broken promise that is like it."""

from __future__ import annotations

from typing import Any

import pytest

from torture import violations as v
from torture.letters import FrameReader
from torture.oracle import NativeOracle
from torture.violations import Stops, Tally

MS = 1_000_000


class NamedFrames(FrameReader):
    """A frame tells its letter in its first byte; "-" is a sound or a tone."""

    def letter(self, payload: bytes) -> str:
        return payload[:1].decode().replace("-", "")


class Watched:
    """A bot and its media leg. Times are in milliseconds from the begin."""

    def __init__(self) -> None:
        self.tally, self.stops = Tally(), Stops()
        self.oracle = NativeOracle(self.tally, self.stops, has_media=True, reader=NamedFrames())
        self.gets(0, {"type": "ready"})

    def sends(self, at_ms: float, message: dict[str, Any], letter: str = "") -> None:
        self.oracle.sent(message, round((1000 + at_ms) * MS), letter)

    def gets(self, at_ms: float, event: dict[str, Any]) -> None:
        self.oracle.event(event, round((1000 + at_ms) * MS))

    def hears(self, at_ms: float, letter: str, n: int = 1) -> None:
        for _ in range(n):
            self.oracle.frame(letter.encode() * 160, round((1000 + at_ms) * MS))

    def stopped(self, begin_ms: float, end_ms: float) -> None:
        self.stops.add(round((1000 + begin_ms) * MS), round((1000 + end_ms) * MS))

    def found(self, at_ms: float) -> list[str]:
        self.oracle.finish(round((1000 + at_ms) * MS), is_torn=True)
        return [violation.check for violation in self.tally.violations]

    def says(self, turn: str, letter: str, at_ms: float, n_frames: int = 10) -> None:
        """A turn of two words begins."""
        self.sends(at_ms, {"type": "say", "turn": turn, "text": letter * 3}, letter)
        self.hears(at_ms + 1, letter, n_frames)
        self.gets(at_ms + 2, {"type": "started", "turn": turn})


def cleared(turn: str, reason: str) -> dict[str, Any]:
    return {
        "type": "cleared", "turn": turn, "heard_text": "", "unheard_text": "ddd", "heard_chars": 0, "heard_ms": 0,
        "basis": "marks", "reason": reason,
    }  # fmt: skip


@pytest.mark.parametrize(("reason", "found"), [("hangup", []), ("clear", [v.SILENCE])])
def test_the_clear_of_a_pause_is_not_that_of_a_hangup(reason: str, found: list[str]) -> None:
    """A pause and its end come shortly before the telephone hangs up: speech goes on, and the leg that would be told
    to drop it is gone."""
    call = Watched()
    call.says("b1", "d", 0, 3)
    call.sends(3, {"type": "pause"})
    call.sends(3, {"type": "resume"})
    call.oracle.media_clear(round(1005 * MS))
    call.hears(6, "d", 8)
    if reason == "clear":
        call.sends(7, {"type": "clear"})
    call.gets(8, cleared("b1", reason))
    assert call.found(100) == found


def test_tones_may_come_before_the_event_that_tells_of_them() -> None:
    """Both legs are sockets of their own, and the first 200 ms of the tones come at once."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    call.sends(3, {"type": "dtmf", "digits": "1"})
    call.hears(190, "-", 8)
    call.gets(191, {"type": "started", "turn": "t2"})
    for n in range(42):
        call.hears(200 + 20 * n, "-")
    call.gets(1300, {"type": "done", "turn": "t2", "audio_ms": 1000, "chars": 0, "underruns": 0})
    assert call.found(2000) == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_frames_and_events_that_were_read_late_come_in_any_order(is_stopped: bool) -> None:
    """The torture itself stood still for a second: tones of that time are taken for the speech behind them, and all of
    it seems to come at once."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    call.sends(3, {"type": "dtmf", "digits": "1"})
    call.sends(3, {"type": "say", "turn": "b2", "text": "ggg"}, "g")
    if is_stopped:
        call.stopped(20, 1120)
    call.gets(1120, {"type": "started", "turn": "t2"})
    call.gets(1120, {"type": "started", "turn": "b2"})
    call.hears(1121, "-", 20)
    call.hears(1121, "g", 40)
    call.gets(1122, {"type": "done", "turn": "t2", "audio_ms": 400, "chars": 0, "underruns": 0})
    assert set(call.found(3000)) == (set() if is_stopped else {v.CLOCK})
