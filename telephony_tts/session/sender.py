"""Frames onto the wire: what is due within the lead goes now, and the gap of a dry engine moves the schedule once.

The sender walks the call's turns in order. A turn begins where the one before it ends on the listener's clock, so
two turns in a row have no gap and no overlap even though both are sent ahead of time.
"""

from __future__ import annotations

from telephony_tts.session.effects import Effect
from telephony_tts.session.turn import Mark, Turn
from telephony_tts.wire.messages import Frame, MediaMark, Started

FRAMES_PER_POLL = 32
"""A burst beyond it waits for the next poll, so that a socket that proves full, or a `clear`, finds it here."""


class Sender:
    """Sends the frames and marks of a call's turns. `turns` and `out` are the session's own lists."""

    def __init__(self, turns: list[Turn], out: list[Effect]) -> None:
        self._turns = turns
        self._out = out
        self.open = True
        """False while there is no media leg or its socket is full; frames then wait and the schedule does not."""
        self.allowance = FRAMES_PER_POLL
        """Frames that may still leave in this poll; the session renews it."""
        self.peer_marks = False
        """The peer reports marks, so positions come from it and not from our clock."""
        self.media_end_ns = 0
        """When the last fully sent turn has been heard."""
        self.next_ns: int | None = None
        self.wire_marks: dict[str, tuple[Turn, Mark]] = {}
        self._n_marks = 0

    def send_due(self, now_ns: int) -> bool:
        """Send what is due; True if a turn was sent to its end."""
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
        return ended

    def _send_turn(self, turn: Turn, now_ns: int) -> bool:
        """Send the due frames of `turn`; True if that was all of it, else `next_ns` says when to look again."""
        playout, encoder, again = turn.playout, turn.encoder, turn.again
        if playout.t0_ns is None:
            t0_ns = max(now_ns, self.media_end_ns)
            if not encoder.n_ready_frames and not again:
                if not turn.spoken_out:
                    return False
                encoder.finish()
                if not encoder.n_ready_frames:
                    turn.sent_all = True
                    return True
            if t0_ns - playout.lead_ns > now_ns:
                self.next_ns = t0_ns - playout.lead_ns
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
                    playout.resume_at(now_ns)
                    turn.in_gap = False
                payload = again.popleft() if again else encoder.take_frame()
                assert payload is not None
                self._out.append(Frame(payload, max(0, now_ns - max(send_ns, turn.ready_since_ns))))
                playout.n_sent += 1
                self._remember(turn, payload)
                if self.peer_marks:
                    self.announce_marks(turn)
                continue
            if turn.spoken_out:
                if not encoder.finished:
                    encoder.finish()
                    turn.ready_since_ns = now_ns
                    continue
                turn.sent_all = True
                self.media_end_ns = playout.end_ns()
                if self.peer_marks:
                    turn.resolved.append(Mark(None, turn.n_chars, turn.n_sent_samples))
                    self.announce_marks(turn)
                return True
            if now_ns < playout.due_ns():
                self.next_ns = playout.due_ns()
                return False
            if self._run_dry(turn, now_ns):
                continue
            return False

    def _begin(self, turn: Turn, t0_ns: int, now_ns: int) -> None:
        turn.playout.start(t0_ns)
        if turn.first_frame_ns is not None:
            return  # begun before, and taken back by the clear of a turn in front of it
        turn.first_frame_ns = now_ns
        # Waiting behind an earlier turn is not latency: the clock starts when this one could be heard.
        may_sound_ns = max(turn.parts[0].ready_ns, self.media_end_ns)
        turn.first_audio_ms = round(max(0, now_ns - may_sound_ns) / 1e6, 3)
        self._out.append(Started(turn.id, turn.first_audio_ms))
        if self.peer_marks:
            # The echo of a mark behind the first frame tells when the peer truly began to play.
            turn.resolved.appendleft(Mark(None, 0, turn.frame_samples))

    def _run_dry(self, turn: Turn, now_ns: int) -> bool:
        """The next frame is due and not there. True if draining the encoder brought frames out."""
        waits_for_engine = turn.n_done < len(turn.parts)
        if not turn.is_dry:
            turn.is_dry = True
            turn.underruns += waits_for_engine and not turn.waits_for_bot
        if turn.n_done and (not waits_for_engine or turn.parts[turn.n_done].start_sample is None):
            # Between utterances: the end of the last word must not wait inside the resampler for the next sentence.
            turn.encoder.drain()
            turn.ready_since_ns = now_ns
            if turn.encoder.n_ready_frames:
                return True
        turn.in_gap = True
        return False

    def _remember(self, turn: Turn, payload: bytes) -> None:
        """Keep what the peer may not have played yet, in case an earlier turn's clear throws it away."""
        turn.recent.append(payload)
        n_lead = turn.playout.lead_ns // turn.playout.ptime_ns + 1
        if len(turn.recent) > n_lead:
            turn.recent.popleft()

    def announce_marks(self, turn: Turn) -> None:
        """Send the peer the marks whose place it has been sent."""
        n_sent_samples = turn.n_sent_samples
        while turn.resolved:
            position = turn.resolved[0].position
            if not turn.sent_all and (position is None or position > n_sent_samples):
                return
            mark = turn.resolved.popleft()
            self._n_marks += 1
            name = f"{turn.seq}.{self._n_marks}"
            self.wire_marks[name] = (turn, mark)
            turn.announced.append(mark)
            self._out.append(MediaMark(name))

    def forget(self, turn: Turn) -> None:
        """The turn is over: its marks on the wire are nobody's, their echoes will find nothing."""
        if turn.announced:
            self.wire_marks = {k: v for k, v in self.wire_marks.items() if v[0] is not turn}
            turn.announced.clear()
