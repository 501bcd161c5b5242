"""Frames onto the wire: frames that are due within the lead are sent now, and an underrun moves the schedule once.

The sender walks the call's turns in order. A turn begins where the turn before it ends on the listener's clock. So two
turns in a row have no gap and no overlap, though both are sent ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable

from telephony_tts.session.effects import Effect
from telephony_tts.session.marks import NO_SAMPLE, MarkState
from telephony_tts.session.turn import Part, Turn
from telephony_tts.wire.messages import Frame, MediaMark, Started, TurnSent

FRAMES_PER_POLL = 32
"""More frames wait for the next poll, where a full socket or a `clear` can still hold them back."""


_OUR_MARKS = 6
"""Room for the marks of ours, of which a peer has one for each beginning and end that it did not play yet."""


class Sender:
    """Sends the frames and marks of a call's turns. `turns` and `out` are the session's own lists."""

    def __init__(self, turns: list[Turn], out: list[Effect]) -> None:
        self._turns = turns
        self._out = out
        self.open = True
        """False while there is no media leg, or its socket is full. Frames then wait, and the schedule goes on."""
        self.allowance = FRAMES_PER_POLL
        """How many frames may still be sent in this poll. The session sets it anew for each poll."""
        self.peer_marks = False
        """The peer reports marks, so positions come from it and not from our clock."""
        self.most_marks: int | None = None
        """How many marks the peer can have. The bot's marks beyond that are left to the clock."""
        self.media_end_ns = 0
        """When the last turn that was fully sent has been heard."""
        self.on_frame: Callable[[bytes, int, int], None] | None = None
        """Called with each frame of speech, when it is to be heard, and the time now."""
        self.on_moved: Callable[[int], None] | None = None
        """Called with the delay by which sent frames are heard later than `on_frame` was told."""
        self.silence: bytes | None = None
        """A frame of silence, for a peer that must always get frames: the network may take a silent telephone for
        disconnected."""
        self.ptime_ns = 0
        self.silent_until_ns = 0
        """When the silence in the peer's buffer has been played."""
        self.next_ns: int | None = None
        self._n_marks = 0

    def send_due(self, now_ns: int) -> bool:
        """Send all frames that are due. True if a turn was sent to its end."""
        self.next_ns = None
        if not self.open:
            return False
        ended = False
        for turn in self._turns:
            if turn.sent_all:
                continue
            if not self._send_turn(turn, now_ns):
                break
            ended = True
        if self.silence is not None:
            self._fill(self.silence, now_ns)
        return ended

    def _fill(self, silence: bytes, now_ns: int) -> None:
        """Send silence when the peer's buffer is about to run out: one frame, because silence delays the next turn."""
        speaking = next((turn for turn in self._turns if not turn.sent_all), None)
        end_ns = max(self.media_end_ns, self.silent_until_ns)
        if speaking is not None and speaking.playout.t0_ns is not None:
            end_ns = max(end_ns, speaking.playout.due_ns())
        if end_ns - self.ptime_ns // 2 <= now_ns:
            self._out.append(Frame(silence))
            end_ns = self.silent_until_ns = max(end_ns, now_ns) + self.ptime_ns
        fill_ns = end_ns - self.ptime_ns // 2
        self.next_ns = fill_ns if self.next_ns is None else min(self.next_ns, fill_ns)

    def peer_holds(self, n_frames: int, now_ns: int) -> None:
        """The peer has `n_frames` that it has not played. More than we sent ahead is a delay of the peer. It would
        never shrink if silence came as fast as it is played, so some silence is left out."""
        self.silent_until_ns = max(self.silent_until_ns, now_ns + n_frames * self.ptime_ns)

    def padded(self, silence_ns: int, now_ns: int) -> None:
        """The peer got silence behind the last frame. What comes next is heard later by that."""
        turn = next((turn for turn in self._turns if not turn.sent_all), None)
        end_ns = self.media_end_ns
        if turn is not None and turn.playout.t0_ns is not None:
            end_ns = turn.playout.due_ns()
            turn.in_gap = True
        self.silent_until_ns = max(self.silent_until_ns, max(end_ns, now_ns) + silence_ns)

    def move(self, turn: Turn, late_ns: int) -> None:
        """The peer plays `turn`, and all turns after it, `late_ns` later than our schedule. The peer takes a moment to
        begin each sentence, and these moments add up."""
        if late_ns <= 0:
            return
        for each in self._turns[self._turns.index(turn) :]:
            if each.playout.t0_ns is not None:
                each.playout.t0_ns += late_ns
                if each.sent_all:
                    self.media_end_ns = max(self.media_end_ns, each.playout.end_ns())
        if self.on_moved is not None:
            self.on_moved(late_ns)

    def _send_turn(self, turn: Turn, now_ns: int) -> bool:
        """Send the due frames of `turn`. True if it is sent to its end, else `next_ns` says when to look again."""
        playout, encoder, again = turn.playout, turn.encoder, turn.again
        if playout.t0_ns is None:
            is_parallel = turn.settings.parallel_turns
            t0_ns = now_ns if is_parallel else max(now_ns, self.media_end_ns, self.silent_until_ns)
            if not encoder.n_ready_frames and not again:
                if not turn.spoken_out:
                    return False
                encoder.finish()
                if not encoder.n_ready_frames:
                    self._sent_all(turn)
                    return True
            if t0_ns - playout.first_lead_ns > now_ns:
                self.next_ns = t0_ns - playout.first_lead_ns
                return False
            self._begin(turn, t0_ns, now_ns)
        while True:
            if encoder.n_ready_frames or again:
                send_ns = playout.send_ns()
                if send_ns > now_ns:
                    self.next_ns = send_ns
                    return False
                if self.allowance == 0:
                    self.next_ns = now_ns
                    return False
                self.allowance -= 1
                if turn.in_gap:
                    if playout.resume_at(max(now_ns, self.silent_until_ns)):
                        self._resumed(turn)
                    turn.in_gap = False
                payload = again.popleft() if again else encoder.take_frame()
                assert payload is not None
                self._out.append(Frame(payload, max(0, now_ns - max(send_ns, turn.ready_since_ns)), turn.id))
                if self.on_frame is not None:
                    self.on_frame(payload, playout.due_ns(), now_ns)
                playout.n_sent += 1
                self._remember(turn, payload)
                if self.peer_marks and turn.marks.next_sample <= turn.n_sent_samples:
                    self.send_marks(turn)
                continue
            if turn.spoken_out:
                if not encoder.finished:
                    encoder.finish()
                    turn.ready_since_ns = now_ns
                    continue
                self._sent_all(turn)
                self.media_end_ns = now_ns if turn.settings.parallel_turns else playout.end_ns()
                if self.peer_marks:
                    turn.marks.add_ours(turn.n_sent_samples, turn.n_chars)
                    self.send_marks(turn)
                return True
            if now_ns < playout.due_ns():
                self.next_ns = playout.due_ns()
                return False
            if self._run_dry(turn, now_ns):
                continue
            return False

    def _sent_all(self, turn: Turn) -> None:
        turn.sent_all = True
        if turn.settings.separate_turns:
            self._out.append(TurnSent(turn.id))

    def _resumed(self, turn: Turn) -> None:
        """After a gap the peer's place is unknown, as it is at the turn's beginning. The echo of a mark behind the next
        frame tells it."""
        if self.peer_marks and not turn.settings.whole_sentences:
            turn.marks.add_ours(turn.n_sent_samples + turn.frame_samples)

    def _begin(self, turn: Turn, t0_ns: int, now_ns: int) -> None:
        turn.playout.start(t0_ns)
        if turn.first_frame_ns is not None:
            return  # it had begun, and a clear of an earlier turn took its frames back
        turn.first_frame_ns = now_ns
        # Waiting behind an earlier turn is not latency: the clock starts when this turn could be heard.
        may_sound_ns = max(turn.parts[0].ready_ns, self.media_end_ns)
        turn.first_audio_ms = round(max(0, now_ns - may_sound_ns) / 1e6, 3)
        self._out.append(Started(turn.id, turn.first_audio_ms))
        if self.peer_marks:
            # The echo of a mark behind the first frame tells when the peer truly began to play.
            turn.marks.add_beginning(turn.frame_samples)

    def _run_dry(self, turn: Turn, now_ns: int) -> bool:
        """The next frame is due and missing. True if draining the encoder gave frames."""
        waits_for_engine = turn.n_done < len(turn.parts)
        if not turn.is_dry:
            turn.is_dry = True
            turn.underruns += waits_for_engine and not turn.waits_for_bot
        if turn.n_done and (not waits_for_engine or turn.parts[turn.n_done].start_sample is None):
            # Between utterances the end of the last word must not wait inside the resampler for the next sentence.
            turn.encoder.drain()
            turn.ready_since_ns = now_ns
            if turn.encoder.n_ready_frames:
                return True
        turn.in_gap = True
        return False

    def _remember(self, turn: Turn, payload: bytes) -> None:
        """Keep the frames that the peer may not have played: a clear of an earlier turn makes the peer drop them.
        A peer that keeps turns apart drops none."""
        if turn.settings.separate_turns:
            return
        turn.recent.append(payload)
        n_lead = turn.playout.lead_ns // turn.playout.ptime_ns + 1
        if len(turn.recent) > n_lead:
            turn.recent.popleft()

    def dropped(self, kept: list[Turn], now_ns: int) -> None:
        """Turns were cleared whose frames the peer keeps apart from those of the turns `kept`."""
        sent = [turn for turn in kept if turn.sent_all and turn.n_sent_samples and not turn.settings.parallel_turns]
        self.media_end_ns = max([now_ns, *(turn.playout.end_ns() for turn in sent)])

    # ------------------------------------------------------------------ marks

    def sentence_begun(self, turn: Turn, part: Part) -> None:
        """The first audio of a sentence has come. A peer that plays files tells with a mark when each sentence begins.
        The turn's first frame has a mark in any case."""
        if self.peer_marks and turn.settings.whole_sentences and part.start_sample:
            turn.marks.add_ours(part.start_sample + turn.frame_samples)

    def sentence_ended(self, turn: Turn, part: Part) -> None:
        """All the audio of a sentence has come."""
        if self.peer_marks:
            turn.marks.ask(None, part.sentence.end)

    def send_marks(self, turn: Turn) -> None:
        """Send the peer the marks whose frames it has. A mark whose following frames it has too would come back too
        late, so the clock decides about that mark."""
        marks, n_sent_samples = turn.marks, turn.n_sent_samples
        while (mark := marks.first(MarkState.PLACED)) is not None:
            if not turn.sent_all and mark.sample > n_sent_samples:
                return
            is_past = mark.sample < n_sent_samples - turn.frame_samples
            is_full = mark.name is not None and self._has_most_marks()
            if (is_past or marks.end_is_sent or is_full) and not turn.settings.whole_sentences:
                marks.leave_to_clock(mark)
                continue
            self._n_marks += 1
            marks.send(mark, f"{turn.seq}.{self._n_marks}")
            # A mark of ours with no text before it stands at a beginning.
            ends_sentence = turn.settings.whole_sentences and mark.name is None and mark.offset > 0
            marks.end_is_sent = turn.sent_all and marks.next_sample == NO_SAMPLE
            self._out.append(MediaMark(mark.wire_name, ends_sentence, marks.end_is_sent))

    def _has_most_marks(self) -> bool:
        """Whether the peer has as many marks as it can have, with some room for ours."""
        if self.most_marks is None:
            return False
        return sum(len(turn.marks.in_state(MarkState.SENT)) for turn in self._turns) >= self.most_marks - _OUR_MARKS

    def emptied(self, heard_samples: dict[Turn, int], now_ns: int) -> None:
        """The peer's buffer was emptied, so turns that stay may have lost frames. The first such turn goes on from now.
        The turns after it had begun ahead of time, and begin again when it has ended. `heard_samples` has the turns
        that stay, in order."""
        self.media_end_ns = now_ns
        self.silent_until_ns = min(self.silent_until_ns, now_ns)
        lost = [turn for turn, heard in heard_samples.items() if turn.take_back_unplayed(now_ns, heard)]
        for turn in lost:
            if turn is lost[0]:
                turn.playout.start(now_ns - turn.playout.n_sent * turn.playout.ptime_ns)
            else:
                turn.playout.t0_ns = None
        for turn, heard in heard_samples.items():
            # The marks that were not taken back lie in audio that was played. The peer may have dropped them with its
            # buffer: Plivo, Asterisk and a peer that plays files then do not report them.
            for mark in turn.marks.in_state(MarkState.SENT):
                turn.marks.leave_to_clock(mark)
            if turn.settings.whole_sentences:
                # What the peer has played still counts as heard. It tells where it begins again.
                turn.heard_samples, turn.anchor = heard, None
