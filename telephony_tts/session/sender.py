"""Frames onto the wire: frames that are due within the lead are sent now, and an underrun moves the schedule once.

The sender walks the call's turns in order. A turn begins where the turn before it ends on the listener's clock. So two
turns in a row have no gap and no overlap, though both are sent ahead of time.
"""

from __future__ import annotations

from typing import Protocol

from telephony_tts.session.bed import Bed
from telephony_tts.session.effects import Effect, UnderrunEnded
from telephony_tts.session.heard import has_keys
from telephony_tts.session.marks import NO_SAMPLE, MarkState
from telephony_tts.session.turn import Part, Turn
from telephony_tts.wire.messages import Frame, MediaMark, Started, TurnSent

FRAMES_PER_POLL = 32
"""More frames wait for the next poll, where a full socket or a `clear` can still hold them back."""

_OFTEN_NS = 100_000_000
_USUAL_NS = 1_000_000_000
"""How much of a turn lies between two marks of ours: behind a peer that stops in the middle of speech, and usually."""
_MOST_OURS = 256
"""So many marks of ours may wait in a turn before the next in the middle of speech is left out. A peer may never report
any, and hold music may last for hours."""
_OUR_MARKS = 6
"""Room for the marks of ours, of which a peer has one for each beginning and end that it did not play yet."""

class PlayoutListener(Protocol):
    """Learns what the caller hears and when."""

    def playing(self, payload: bytes, heard_ns: int, now_ns: int) -> None:
        """A frame was sent. The caller hears it at `heard_ns`."""

    def moved(self, late_ns: int) -> None:
        """Frames that were sent and not heard yet are heard `late_ns` later."""

    def peer_is_late(self, late_ns: int) -> None:
        """The peer has reported that it plays `late_ns` later than our schedule, which stays as it is."""

    def emptied(self, now_ns: int) -> None:
        """Frames that were not heard yet never will be."""


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
        self.marks_often = False
        """Marks of ours stand in the middle of speech too: the peer stops there, and only its reports tell where."""
        self.most_marks: int | None = None
        """How many marks the peer can have. The bot's marks beyond that are left to the clock."""
        self.media_end_ns = 0
        """When the last turn that was fully sent has been heard."""
        self.busy_until_ns = 0
        """When the tones that the platform sends by itself are over. It has no audio of ours then, and would play what
        comes ahead of time at once."""
        self.listeners: list[PlayoutListener] = []
        self.tells_sent = False
        """`TurnSent` follows the last frame of each turn, also of turns that are not separate."""
        self.is_held = False
        """Speech is paused, or the telephone is on hold: its frames wait."""
        self.silence: bytes | None = None
        """A frame of silence, for a peer that must always get frames: the network may take a silent telephone for
        disconnected."""
        self.bed: Bed | None = None
        """The sound that is mixed into the speech, and that is sent while there is no speech."""
        self.ptime_ns = 0
        """The duration of the frames that are sent while there is no speech."""
        self.fill_frames = 1
        """How many of them are sent together: more for a peer that would fill up a message of fewer with silence."""
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
        for turn in () if self.is_held else self._turns:
            if turn.sent_all:
                continue
            if not self._send_turn(turn, now_ns):
                break
            ended = True
        if self.silence is not None or self.bed is not None:
            self._fill(now_ns)
        return ended

    def _fill(self, now_ns: int) -> None:
        """Send silence, or the bed, when the peer's buffer is about to run out: one frame, because it delays the next
        turn."""
        speaking = next((turn for turn in self._turns if not turn.sent_all), None)
        if speaking is not None and speaking.ready_ns() and not self.is_held:
            return  # speech comes next, at its own time
        has_begun = speaking is not None and speaking.playout.t0_ns is not None
        end_ns = max(self.media_end_ns, self.silent_until_ns)
        if speaking is not None and has_begun:
            end_ns = max(end_ns, speaking.playout.due_ns())
        if end_ns - self.ptime_ns // 2 <= now_ns:
            end_ns = self._send_fill(max(end_ns, now_ns), now_ns)
            self.silent_until_ns = end_ns
            if speaking is not None and has_begun:
                speaking.in_gap = True  # its next frame is heard behind this, also if it comes before it is due
        if self.silence is None and self.bed is None:
            return
        fill_ns = end_ns - self.ptime_ns // 2
        self.next_ns = fill_ns if self.next_ns is None else min(self.next_ns, fill_ns)

    def make_way(self, duration_ns: int, now_ns: int) -> None:
        """The platform sends tones by itself for so long. A bed fades out before them, and fades in behind them."""
        if self.bed is not None and self.open:
            self.silent_until_ns = self._send_fill(max(now_ns, self.media_end_ns, self.silent_until_ns), now_ns, True)
        self.busy_until_ns = self.media_end_ns = max(self.media_end_ns, now_ns) + duration_ns

    def _send_fill(self, heard_ns: int, now_ns: int, is_quiet: bool = False) -> int:
        """Send frames that are not speech, to be heard from `heard_ns` on. Returns when they end."""
        bed = self.bed
        for _ in range(self.fill_frames):
            payload = self.silence if bed is None else bed.frame(is_quiet)
            assert payload is not None
            self._out.append(Frame(payload))
            if bed is not None:
                for listener in self.listeners:
                    listener.playing(payload, heard_ns, now_ns)
            heard_ns += self.ptime_ns
        self._drop_ended_bed()
        return heard_ns

    def _under(self, payload: bytes, turn: Turn) -> bytes:
        """The next frame of a turn with the bed under it."""
        bed = self.bed
        assert bed is not None
        if bed.until_speech:
            bed.stop()
        begin = turn.n_sent_samples
        payload = bed.mix(payload, has_keys(turn, begin, begin + turn.frame_samples))
        self._drop_ended_bed()
        return payload

    def _drop_ended_bed(self) -> None:
        if self.bed is not None and self.bed.is_over:
            self.bed = None

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
        for listener in self.listeners:
            listener.moved(late_ns)

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
            send_ns = max(t0_ns - playout.first_lead_ns, self.busy_until_ns)
            if send_ns > now_ns:
                self.next_ns = send_ns
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
                    if gap_ns := playout.resume_at(max(now_ns, self.silent_until_ns)):
                        self._resumed(turn)
                        if turn.gap_is_underrun:
                            self._out.append(UnderrunEnded(turn.id, gap_ns / 1e6))
                    turn.in_gap = turn.gap_is_underrun = False
                payload = again.popleft() if again else encoder.take_frame()
                assert payload is not None
                turn.recent.append(payload)
                if turn.resumes_at is not None:
                    begin = turn.resumes_at - turn.n_sent_samples
                    if -encoder.n_fade_samples < begin < encoder.n_frame_samples:
                        payload = encoder.faded_in(payload, begin)
                if self.bed is not None:
                    payload = self._under(payload, turn)
                self._out.append(Frame(payload, max(0, now_ns - max(send_ns, turn.ready_since_ns)), turn.id))
                for listener in self.listeners:
                    listener.playing(payload, playout.due_ns(), now_ns)
                playout.n_sent += 1
                if self._reports_here(turn):
                    turn.marks.add_ours(turn.n_sent_samples)
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

    def _reports_here(self, turn: Turn) -> bool:
        """Whether a mark of ours follows the frames so far, to learn where the peer is in a long sentence or sound."""
        if not self.peer_marks or self.most_marks is not None or turn.settings.whole_sentences:
            return False
        every_ns = _OFTEN_NS if self.marks_often else _USUAL_NS
        if turn.playout.n_sent % max(1, every_ns // turn.playout.ptime_ns):
            return False
        return sum(mark.is_ours for mark in turn.marks.live) < _MOST_OURS

    def _sent_all(self, turn: Turn) -> None:
        turn.sent_all = True
        if turn.settings.separate_turns or self.tells_sent:
            self._out.append(TurnSent(turn.id))

    def _resumed(self, turn: Turn) -> None:
        """After a gap the peer's place is unknown, as it is at the turn's beginning. The echo of a mark behind the next
        frame tells it."""
        if not self.peer_marks or turn.settings.whole_sentences:
            return
        if turn.playout.n_sent:
            turn.marks.add_ours(turn.n_sent_samples + turn.frame_samples)
        elif not turn.marks.has_beginning(turn.frame_samples):
            turn.marks.add_beginning(turn.frame_samples)

    def _begin(self, turn: Turn, t0_ns: int, now_ns: int) -> None:
        turn.playout.start(t0_ns)
        if turn.first_frame_ns is not None:
            # It had begun, and a pause or a clear of an earlier turn took frames back.
            turn.ready_since_ns = now_ns
            self._resumed(turn)
            return
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
            turn.gap_is_underrun = waits_for_engine and not turn.waits_for_bot
            turn.underruns += turn.gap_is_underrun
        can_wait = turn.settings.patience_ms > 0
        if not can_wait and turn.n_done and (not waits_for_engine or turn.parts[turn.n_done].start_sample is None):
            # Between utterances the end of the last word must not wait inside the resampler for the next sentence. In a
            # file it can: draining adds silence, and the file would depend on how busy the server was.
            turn.encoder.drain()
            turn.ready_since_ns = now_ns
            if turn.encoder.n_ready_frames:
                return True
        turn.in_gap = True
        return False

    def dropped(self, kept: list[Turn], now_ns: int) -> None:
        """Turns were cleared whose frames the peer keeps apart from those of the turns `kept`."""
        sent = [turn for turn in kept if turn.sent_all and turn.n_sent_samples and not turn.settings.parallel_turns]
        self.media_end_ns = max([now_ns, *(turn.playout.end_ns() for turn in sent)])
        if not any(turn.playout.t0_ns is not None and turn.playout.end_ns() > now_ns for turn in kept):
            for listener in self.listeners:
                listener.emptied(now_ns)

    # ------------------------------------------------------------------ marks

    def sentence_begun(self, turn: Turn, part: Part) -> None:
        """The first audio of a sentence has come. A peer that plays files tells with a mark when each sentence begins.
        The turn's first frame has a mark in any case."""
        if self.peer_marks and turn.settings.whole_sentences and part.start_sample:
            turn.marks.add_ours(part.start_sample + turn.frame_samples)

    def segment_ended(self, turn: Turn, part: Part) -> None:
        """All the audio of a part has come that another part continues."""
        if self.peer_marks:
            assert part.end_sample is not None
            turn.marks.add_ours(part.end_sample, part.sentence.end, part.n_inserts)

    def sentence_ended(self, turn: Turn, part: Part) -> None:
        """All the audio of a sentence has come."""
        if self.peer_marks:
            turn.marks.ask(None, part.sentence.end, part.n_inserts)

    def send_marks(self, turn: Turn) -> None:
        """Send the peer the marks whose frames it has. A mark whose following frames it has too would come back too
        late, so the clock decides about that mark."""
        marks, n_sent_samples = turn.marks, turn.n_sent_samples
        while (mark := marks.first(MarkState.PLACED)) is not None:
            if not turn.sent_all and mark.sample > n_sent_samples:
                return
            is_past = mark.sample < n_sent_samples - turn.frame_samples
            is_full = not mark.is_ours and self._has_most_marks()
            if (is_past or marks.end_is_sent or is_full) and not turn.settings.whole_sentences:
                marks.leave_to_clock(mark)
                continue
            self._n_marks += 1
            marks.send(mark, f"{turn.seq}.{self._n_marks}")
            # A mark of ours with no text before it stands at a beginning.
            ends_sentence = turn.settings.whole_sentences and mark.is_ours and mark.offset + mark.n_inserts > 0
            marks.end_is_sent = turn.sent_all and marks.next_sample == NO_SAMPLE
            self._out.append(MediaMark(mark.wire_name, ends_sentence, marks.end_is_sent))

    def _has_most_marks(self) -> bool:
        """Whether the peer has as many marks as it can have, with some room for ours."""
        if self.most_marks is None:
            return False
        return sum(len(turn.marks.in_state(MarkState.SENT)) for turn in self._turns) >= self.most_marks - _OUR_MARKS

    def emptied(self, heard_samples: dict[Turn, int], n_played: dict[Turn, int], now_ns: int) -> None:
        """The peer's buffer was emptied, so turns that stay may have lost frames. The first such turn goes on from now.
        The turns after it had begun ahead of time, and begin again when it has ended. `heard_samples` has the turns
        that stay, in order, and `n_played` how many of their frames the peer has played."""
        lost = [turn for turn in heard_samples if turn.take_back_unplayed(n_played[turn])]
        if lost:
            lost[0].playout.start(now_ns)
            lost[0].ready_since_ns = now_ns
            self._resumed(lost[0])
        self._begin_anew(heard_samples, now_ns)

    def hold(self, heard_samples: dict[Turn, int], places: dict[Turn, int], now_ns: int) -> None:
        """Send nothing while `is_held`. The peer's buffer was emptied, if it had frames of a turn. Each turn goes on
        from its sample of `places`, if it has sent more than that."""
        self.is_held = True
        was_emptied = any(turn.playout.n_sent for turn in places)
        for turn, place in places.items():
            if place < turn.n_sent_samples:
                turn.take_back(place // turn.frame_samples)
                turn.resumes_at = max(place, turn.n_sent_samples)
            elif not turn.sent_all and turn.playout.t0_ns is not None:
                # All that was sent was heard. The schedule must not go on meanwhile.
                turn.playout.stop(turn.playout.n_sent)
                turn.in_gap = turn.gap_is_underrun = False
        if was_emptied:
            self._begin_anew(heard_samples, now_ns)
        for turn, heard in heard_samples.items():
            turn.heard_samples, turn.anchor = max(turn.heard_samples, heard), None

    def _begin_anew(self, heard_samples: dict[Turn, int], now_ns: int) -> None:
        """The peer's buffer is empty, and what is sent next is heard at once."""
        self.media_end_ns = now_ns
        self.silent_until_ns = min(self.silent_until_ns, now_ns)
        for turn, heard in heard_samples.items():
            # The marks that were not taken back lie in audio that was played. The peer may have dropped them with its
            # buffer: some platforms, and each that plays files, then do not report them.
            for mark in turn.marks.in_state(MarkState.SENT):
                turn.marks.leave_to_clock(mark)
            if turn.settings.whole_sentences:
                # What the peer has played still counts as heard. It tells where it begins again.
                turn.heard_samples, turn.anchor = heard, None
        for listener in self.listeners:
            listener.emptied(now_ns)
