"""Where the caller is in a turn's audio, and which marks that reaches."""

from __future__ import annotations

from collections.abc import Callable

from telephony_tts.session.effects import Effect
from telephony_tts.session.marks import MarkState, TurnMark
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import MarkReached, MediaBegun, MediaMark

_S = 1_000_000_000
_FIRST_MARK = "0.0"
"""The wire name of the mark before all speech. The turns are numbered from 1."""
_STALL_NS = 100_000_000
"""A report that is so much later than the one before it is about a peer that has stopped. Networks delay less."""
_AT_PEER = frozenset({MarkState.SENT, MarkState.TIMED})
"""The states of a mark whose audio the peer has, and which has not ended."""


class Playhead:
    """The playhead of a call. `turns` and `out` are the session's own lists."""

    def __init__(self, rate_hz: int, turns: list[Turn], out: list[Effect]) -> None:
        self.rate_hz = rate_hz
        self._turns = turns
        self._out = out
        self._peer_has_reported = False
        self.n_held: Callable[[], int] = lambda: 0
        """How many samples of the newest speech its leg still holds, because a message is not full."""
        self.peer_stalls = False
        """The peer has stopped in the middle of speech before, so it has to report more often."""

    def position(self, turn: Turn, now_ns: int) -> tuple[int, str]:
        """(samples of the turn that the caller has heard, what tells us so: "marks" or "clock")."""
        place, basis = self._place(turn, now_ns)
        return max(turn.heard_samples, place), basis

    def n_played_frames(self, turn: Turn, now_ns: int) -> int:
        """How many frames of the turn the peer has played. It does not have to play these again."""
        if turn.settings.whole_sentences:
            return self.position(turn, now_ns)[0] // turn.frame_samples
        place, basis = self._place(turn, now_ns)
        if basis == "marks" and (awaited := turn.marks.first(MarkState.SENT)) is not None:
            place = min(place, awaited.sample - 1)  # the last frame before a mark that is awaited is not played
        return max(0, place) // turn.frame_samples

    def _place(self, turn: Turn, now_ns: int) -> tuple[int, str]:
        """Where the peer is in the turn. While it plays something again, that is behind what the caller has heard.

        A peer that reports marks is believed. It is at or behind its first mark that has not come back. After the
        last mark that came back, the clock tells how far it is. A peer that never reported a mark is taken to play on
        our schedule.
        """
        n_sent = turn.n_sent_samples
        if n_sent and not any(each.seq > turn.seq and each.playout.n_sent for each in self._turns):
            n_sent = max(0, n_sent - self.n_held())
        clock = min(n_sent, turn.playout.played_ns(now_ns) * self.rate_hz // _S)
        plays_files = turn.settings.whole_sentences
        if not self._peer_has_reported and not plays_files:
            return clock, "clock"
        limit = n_sent
        if (awaited := turn.marks.first(MarkState.SENT)) is not None:
            limit = min(limit, awaited.sample)
        if turn.anchor is None:
            # It has not reported the frame that it began with, so it may wait before that frame.
            begin = limit if awaited is None else max(0, limit - turn.frame_samples)
            return 0 if plays_files else min(clock, begin), "marks"
        sample, at_ns = turn.anchor
        return max(sample, min(limit, sample + (now_ns - at_ns) * self.rate_hz // _S)), "marks"

    # ------------------------------------------------------- what the peer reports

    def ask_for_report(self) -> None:
        """Send a mark before all speech. If it comes back, the peer reports marks, and then the place in its first
        speech is known too: nothing counts as heard before the mark of the first frame has come back."""
        self._out.append(MediaMark(_FIRST_MARK))

    def mark_came_back(self, wire_name: str, now_ns: int) -> tuple[Turn, int] | None:
        """The peer has played up to a mark: (its turn, by how many nanoseconds that is later than on our schedule).

        None if the mark is not awaited. Some platforms send them back on a clear too, when their turn is over.
        """
        if wire_name == _FIRST_MARK:
            self._peer_has_reported = True
        found = self._find(wire_name)
        if found is None:
            return None
        turn, mark = found
        self._peer_has_reported = True
        if turn.anchor is None or turn.anchor[0] <= mark.sample:  # the mark of a first frame is sent before all others
            turn.anchor = (mark.sample, now_ns)
        for each in turn.marks:
            # The peer has also played up to the marks before this one, though a report of them may be lost.
            if each.state in _AT_PEER and each.sample <= mark.sample:
                self._end(turn, each, MarkState.PLAYED)
        late = self._lateness(turn, mark.sample, now_ns)
        if late is not None and turn.playout.t0_ns is not None:
            t0_ns, before_ns = turn.late
            turn.late = (turn.playout.t0_ns, late[1])
            # Without a gap in the speech the peer is as late as before.
            self.peer_stalls |= t0_ns == turn.playout.t0_ns and late[1] - before_ns > _STALL_NS
        return late

    def file_begun(self, message: MediaBegun, now_ns: int) -> tuple[Turn, int] | None:
        """A peer that plays files has begun one: (its turn, by how many nanoseconds that is later than on our
        schedule). None if the mark in the message is not awaited."""
        found = self._find(message.mark)
        if found is None:
            return None
        turn, mark = found
        sample = max(0, mark.sample - message.n_samples)
        turn.anchor = (sample, now_ns)
        return self._lateness(turn, sample, now_ns)

    def peer_stopped(self, now_ns: int) -> None:
        """The peer has stopped and will begin again somewhere. Until it says where, nothing more counts as heard."""
        for turn in self._turns:
            if turn.anchor is not None:
                turn.heard_samples, _ = self.position(turn, now_ns)
                turn.anchor = None

    def forget_reports(self) -> None:
        """The peer reports no marks any more, so the clock tells what was heard, also of what it was to report."""
        self._peer_has_reported = False
        for turn in self._turns:
            turn.anchor = None
            for mark in turn.marks.in_state(MarkState.SENT):
                turn.marks.leave_to_clock(mark)

    def _find(self, wire_name: str) -> tuple[Turn, TurnMark] | None:
        for turn in self._turns:
            if (mark := turn.marks.sent_as(wire_name)) is not None:
                return turn, mark
        return None

    def _lateness(self, turn: Turn, sample: int, now_ns: int) -> tuple[Turn, int] | None:
        t0_ns = turn.playout.t0_ns
        return None if t0_ns is None else (turn, now_ns - t0_ns - sample * _S // self.rate_hz)

    # --------------------------------------------------------- reports to the bot

    def report(self, turn: Turn, state: MarkState, now_ns: int, wake: list[int]) -> None:
        """Report the marks in `state`, which the peer does not have, as far as the caller has heard. The time of the
        next one goes to `wake`."""
        if not turn.marks.live:
            return
        waiting = turn.marks.in_state(state)
        if not waiting:
            return
        position, _ = self.position(turn, now_ns)
        awaited = turn.marks.first(MarkState.SENT)
        for mark in waiting:
            if awaited is not None and awaited.sample <= mark.sample:
                return
            if mark.is_ours:
                continue  # its audio may be sent again after a pause, and the peer has to report it then
            if mark.sample > position:
                if turn.playout.t0_ns is not None:
                    ahead_ns = -(-(mark.sample - position) * _S // self.rate_hz)
                    # Until the peer says more, the playhead may stay where it is.
                    least_ns = 1 if state is MarkState.PLACED else turn.playout.ptime_ns
                    wake.append(now_ns + max(least_ns, ahead_ns))
                return
            self._end(turn, mark, MarkState.PLAYED)

    def report_overdue(self, turn: Turn, timeout_ns: int, now_ns: int, wake: list[int]) -> None:
        """If the peer has never reported a mark, report the bot's marks that were due `timeout_ns` ago. Marks of ours
        stay: one that comes back late still tells that the peer reports. A peer that plays files does report."""
        if self._peer_has_reported or turn.settings.whole_sentences:
            return
        for mark in [mark for mark in turn.marks.live if not mark.is_ours and mark.state is not MarkState.ASKED]:
            if mark.state is MarkState.PLACED or turn.playout.t0_ns is None:
                # Its frame is due later, so it is not overdue before this.
                wake.append(now_ns + timeout_ns)
                return
            at_ns = turn.playout.heard_at_ns(mark.sample * _S // self.rate_hz) + timeout_ns
            if now_ns < at_ns:
                wake.append(at_ns)
                return
            self._end(turn, mark, MarkState.PLAYED)

    def report_all_played(self, turn: Turn) -> None:
        """The caller has heard the whole turn."""
        for mark in turn.marks:
            self._end(turn, mark, MarkState.PLAYED)

    def report_interrupted(self, turn: Turn, position: int, basis: str) -> None:
        """Each mark of an interrupted turn ends: as played if its place was certainly heard, else as cleared. Of a
        turn that had not begun nothing was heard, not even its beginning."""
        awaited = turn.marks.first(MarkState.SENT)
        for mark in turn.marks:
            # Nothing is sent for a turn that is over.
            is_heard = mark.state is not MarkState.ASKED and mark.sample <= position > 0 and mark.digits is None
            if basis == "marks":
                # The peer itself would have reported the others.
                is_awaited = awaited is not None and awaited.sample <= mark.sample
                is_heard = is_heard and mark.state is MarkState.TIMED and not is_awaited
            self._end(turn, mark, MarkState.PLAYED if is_heard else MarkState.CLEARED)

    def _end(self, turn: Turn, mark: TurnMark, state: MarkState) -> None:
        turn.marks.end(mark, state)
        if mark.digits is not None and state is MarkState.PLAYED:
            mark.digits.is_sent = True
            self._out.append(mark.digits.message)
        if mark.name is not None:
            self._out.append(MarkReached(mark.name, "played" if state is MarkState.PLAYED else "cleared", turn.id))
