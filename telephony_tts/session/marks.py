"""Marks and the playhead: where the caller is in a turn's audio, and how we know."""

from __future__ import annotations

from telephony_tts.session.effects import Effect
from telephony_tts.session.sender import Sender
from telephony_tts.session.settings import SessionSettings
from telephony_tts.session.turn import Mark, Turn
from telephony_tts.wire.messages import MarkReached

_S = 1_000_000_000


class Marks:
    """The marks of a call. `sender` holds the ones that are on the wire, `out` is the session's own list."""

    def __init__(self, settings: SessionSettings, sender: Sender, out: list[Effect]) -> None:
        self._rate_hz = settings.rate_hz
        self._sender = sender
        self._out = out
        self._echo_seen = False

    def came_back(self, name: str, now_ns: int) -> None:
        """The peer has played up to a mark. One of a turn that is over finds nothing: Twilio echoes on clear too."""
        found = self._sender.wire_marks.pop(name, None)
        if found is None:
            return
        turn, mark = found
        self._echo_seen = True
        turn.announced.remove(mark)
        turn.anchor = (mark.position or 0, now_ns)
        self.played(turn, mark)

    def played(self, turn: Turn, mark: Mark) -> None:
        """Report a mark the caller has reached; our own position marks are nobody's business."""
        if mark.name is not None:
            self._out.append(MarkReached(mark.name, "played", turn.id))

    def end(self, turn: Turn, position: int, basis: str) -> None:
        """Each mark of an interrupted turn ends here: played if its place was certainly heard, else cleared."""
        for mark in [*turn.announced, *turn.resolved, *turn.unresolved]:
            if mark.name is None:
                continue
            heard = basis != "marks" and mark.position is not None and mark.position <= position
            self._out.append(MarkReached(mark.name, "played" if heard else "cleared", turn.id))

    def playhead(self, turn: Turn, now_ns: int) -> tuple[int, str]:
        """(samples of the turn the caller has heard, what we know it by).

        A peer that reports marks is believed: no further than its first mark that has not come back, and from
        the last one on by the clock. A peer that never reported one is taken to play on our schedule.
        """
        clock = turn.playout.played_ns(now_ns) * self._rate_hz // _S
        if not self._sender.peer_marks or not self._echo_seen:
            return clock, "clock"
        limit = turn.n_sent_samples
        if turn.announced:
            limit = min(limit, turn.announced[0].position or 0)
        if turn.anchor is None:
            return min(clock, limit), "marks"
        position, at_ns = turn.anchor
        return max(position, min(limit, position + (now_ns - at_ns) * self._rate_hz // _S)), "marks"
