"""Marks and the playhead: where the caller is in a turn's audio, and how we know."""

from __future__ import annotations

from bisect import insort
from collections import deque

from telephony_tts.session.effects import Effect
from telephony_tts.session.sender import Sender
from telephony_tts.session.settings import SessionSettings
from telephony_tts.session.turn import Mark, Part, Turn
from telephony_tts.wire.messages import MarkReached, MediaBegun

_S = 1_000_000_000


class Marks:
    """The marks of a call. `sender` holds the ones that are on the wire, `out` is the session's own list."""

    def __init__(self, settings: SessionSettings, sender: Sender, out: list[Effect]) -> None:
        self.rate_hz = settings.rate_hz
        self._sender = sender
        self._out = out
        self._echo_seen = False

    def sentence_begun(self, turn: Turn, part: Part) -> None:
        """The first audio of a sentence is there. Where each is a file it begins when the peer says so, not when the
        one before has ended; the turn's first frame has such a mark anyway."""
        if self._sender.peer_marks and turn.settings.whole_sentences and part.start_sample:
            turn.resolved.append(Mark(None, 0, part.start_sample + turn.frame_samples))

    def sentence_ended(self, turn: Turn, part: Part) -> None:
        """All the audio of a sentence is there."""
        if self._sender.peer_marks:
            insort(turn.unresolved, Mark(None, part.sentence.end), key=lambda mark: mark.offset)

    def came_back(self, name: str, now_ns: int) -> int | None:
        """The peer has played up to a mark; how much later than on our schedule, None where that was put right. One of
        a turn that is over finds nothing: Twilio echoes on clear too."""
        found = self._sender.wire_marks.pop(name, None)
        if found is None:
            return None
        turn, mark = found
        self._echo_seen = True
        turn.announced.remove(mark)
        turn.anchor = (mark.position or 0, now_ns)
        self.played(turn, mark)
        played_ns = (mark.position or 0) * _S // self.rate_hz
        late_ns = None if turn.playout.t0_ns is None else now_ns - turn.playout.t0_ns - played_ns
        if late_ns is not None and turn.settings.whole_sentences:
            self._sender.move(turn, late_ns)
            return None
        return late_ns

    def begun(self, message: MediaBegun, now_ns: int) -> None:
        """A peer that plays files has begun one: it is at this place, whatever our schedule says."""
        found = self._sender.wire_marks.get(message.mark)
        if found is None:
            return
        turn, mark = found
        position = max(0, (mark.position or 0) - message.n_samples)
        turn.anchor = (position, now_ns)
        if turn.playout.t0_ns is not None:
            self._sender.move(turn, now_ns - turn.playout.t0_ns - position * _S // self.rate_hz)

    def lost(self, turns: list[Turn], now_ns: int) -> None:
        """The peer has stopped and will begin again somewhere: until it says where, nothing more is heard."""
        for turn in turns:
            if turn.anchor is not None:
                turn.heard_samples, _ = self.playhead(turn, now_ns)
                turn.anchor = None

    def played(self, turn: Turn, mark: Mark) -> None:
        """Report a mark the caller has reached; our own position marks are nobody's business."""
        if mark.name is not None:
            self._out.append(MarkReached(mark.name, "played", turn.id))

    def report_reached(self, turn: Turn, waiting: list[Mark] | deque[Mark], now_ns: int, wake: list[int]) -> None:
        """Report those of `waiting`, marks that the peer does not have, whose place the caller has reached."""
        if not waiting:
            return
        position, _ = self.playhead(turn, now_ns)
        while waiting and (waiting[0].position or 0) <= position and not _peer_will_tell(turn, waiting[0]):
            self.played(turn, waiting[0])
            del waiting[0]
        if waiting and turn.playout.t0_ns is not None and not _peer_will_tell(turn, waiting[0]):
            ahead_ns = -(-((waiting[0].position or 0) - position) * _S // self.rate_hz)
            # Until the peer says more the playhead may stay where it is.
            wake.append(now_ns + max(1 if waiting is turn.resolved else turn.playout.ptime_ns, ahead_ns))

    def end(self, turn: Turn, position: int, basis: str) -> None:
        """Each mark of an interrupted turn ends here: played if its place was certainly heard, else cleared."""
        for mark in turn.marks():
            if mark.name is None:
                continue
            is_ours_to_tell = basis != "marks" or (mark in turn.passed and not _peer_will_tell(turn, mark))
            heard = is_ours_to_tell and mark.position is not None and mark.position <= position
            self._out.append(MarkReached(mark.name, "played" if heard else "cleared", turn.id))

    def playhead(self, turn: Turn, now_ns: int) -> tuple[int, str]:
        """(samples of the turn the caller has heard, what we know it by).

        A peer that reports marks is believed: no further than its first mark that has not come back, and from
        the last one on by the clock. A peer that never reported one is taken to play on our schedule.
        """
        clock = turn.playout.played_ns(now_ns) * self.rate_hz // _S
        knows = self._echo_seen or turn.settings.whole_sentences
        if not self._sender.peer_marks or not knows:
            return clock, "clock"
        limit = turn.n_sent_samples
        if turn.announced:
            limit = min(limit, turn.announced[0].position or 0)
        if turn.anchor is None:
            return turn.heard_samples if turn.settings.whole_sentences else min(clock, limit), "marks"
        position, at_ns = turn.anchor
        played = max(position, min(limit, position + (now_ns - at_ns) * self.rate_hz // _S))
        return max(turn.heard_samples, played), "marks"


def _peer_will_tell(turn: Turn, mark: Mark) -> bool:
    """It has a mark, at this place or before it, that it has not reached by its own account."""
    return bool(turn.announced) and (turn.announced[0].position or 0) <= (mark.position or 0)
