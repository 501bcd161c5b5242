"""The recorder of one call: what the caller says, what the caller hears, and what happens, all on one clock.

It listens to its session, and gets every message of the call. What was heard is certain only after a while, so `take`
hands out blocks up to a moment in the past. No I/O, no clock, no tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from telephony_tts.recording.timeline import SERVER, Row, line_of, row_of
from telephony_tts.recording.tracks import RATE_HZ, SAMPLE_NS, CallerTrack, HeardTrack, Piece
from telephony_tts.session.session import Session
from telephony_tts.wire import messages as m

_MS = 1_000_000
_MOST_ROWS = 5_000
_MOST_ROW_BYTES = 500_000
"""The most rows of one block, and bytes of their lines. Of what a bot causes beyond that, the timeline has the number.
The bytes are less than the smallest queue of a disk, so that rows which wait for it can go."""


@dataclass(slots=True)
class Block:
    """The next part of a recording: `n_samples` from position `first`, still encoded, and the rows that go with it."""

    first: int
    n_samples: int
    caller: list[Piece]
    heard: list[Piece]
    rows: list[Row] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """About how much memory it takes."""
        pieces = sum(len(piece.payload) for piece in (*self.caller, *self.heard))
        return 500 + pieces + sum(row.n_bytes for row in self.rows)


class CallRecorder:
    """Records one session from `begun_ns` on."""

    def __init__(self, session: Session, begun_ns: int) -> None:
        self._session = session
        self.begun_ns = begun_ns
        self._heard = HeardTrack(begun_ns)
        self._caller = CallerTrack(begun_ns)
        self._rows: list[Row] = []
        self._n_row_bytes = 0
        self._n_rows_lost = 0
        self._now_ns = begun_ns
        self._caller_format = session.caller_format
        self._private_turns: set[str] = set()

    # ---------------------------------------------------- what the session tells

    def playing(self, payload: bytes, heard_ns: int, now_ns: int) -> None:
        """A frame was sent that the caller hears at `heard_ns`."""
        settings = self._session.settings
        self._heard.playing(payload, heard_ns, settings.codec, settings.rate_hz)

    def moved(self, late_ns: int) -> None:
        """What was sent is heard `late_ns` later."""
        self._heard.moved(late_ns, self._now_ns)
        self.note("moved", self._now_ns, late_ms=late_ns // _MS)

    def peer_is_late(self, late_ns: int) -> None:
        """The peer has reported that it plays `late_ns` later than the schedule."""
        self._heard.peer_is_late(late_ns, self._now_ns)

    def emptied(self, now_ns: int) -> None:
        """What was not heard yet never will be."""
        self._heard.emptied(now_ns)
        self.note("emptied", now_ns)

    # -------------------------------------------------------- what the call tells

    def received(self, message: m.FromBot | m.FromMedia, now_ns: int) -> None:
        """A message of either leg came. Call this before the session gets it."""
        self._now_ns = now_ns
        if type(message) is m.MediaAudio:
            self._caller.feed(message.payload, message.timestamp_ms, now_ns, *self._caller_format)
            return
        if type(message) is m.MediaMark:
            self._now_ns -= message.ago_ms * _MS
        self._append(row_of(message, self._ms(now_ns), is_private=self._is_private(message)))
        self._caller_format = self._session.caller_format  # a media leg that attaches sends its start through here

    def told(self, event: m.ToBot, now_ns: int) -> None:
        """An event went to the bot, or would go if there were one."""
        if isinstance(event, m.Started | m.SentenceSpoken):
            turn = next((turn for turn in self._session.turns if turn.id == event.turn), None)
            if turn is not None and turn.playout.t0_ns is not None:
                begin_ms = self._ms(turn.playout.t0_ns)
                start_ms = event.start_ms if isinstance(event, m.SentenceSpoken) else 0
                self._append(
                    row_of(event, self._ms(now_ns), is_private=self._is_private(event), heard_ms=begin_ms + start_ms)
                )
                return
        self._append(row_of(event, self._ms(now_ns), is_private=self._is_private(event)))

    def note(self, what: str, now_ns: int, /, **more: object) -> None:
        """A row about the recording itself."""
        self._append(Row(self._ms(now_ns), SERVER, what, False, more or None))

    def remember_private(self) -> None:
        """Note which turns are private. Call this when the session has got text: the events of a turn may come when it
        is gone."""
        for turn in self._session.turns:
            if turn.is_private:
                self._private_turns.add(turn.id)

    def _is_private(self, message: object) -> bool:
        """Whether the text in the message is of a turn that the bot has marked as private."""
        self.remember_private()
        turn_id = getattr(message, "turn", None)
        if isinstance(message, m.Say | m.Text) and message.private:
            if turn_id is not None:
                self._private_turns.add(turn_id)
            return True
        if turn_id is None and isinstance(message, m.Text):
            # It goes to a turn that is open. If one of them is private, it may be that one.
            return any(not turn.closed and turn.id in self._private_turns for turn in self._session.turns)
        return turn_id in self._private_turns

    def _append(self, row: Row | None) -> None:
        if row is None:
            return
        row = row._replace(line=line_of(row))
        if len(self._rows) >= _MOST_ROWS or self._n_row_bytes + row.n_bytes > _MOST_ROW_BYTES:
            self._n_rows_lost += 1
            return
        self._rows.append(row)
        self._n_row_bytes += row.n_bytes

    def _ms(self, at_ns: int) -> int:
        return (at_ns - self.begun_ns) // _MS

    def keep_rows(self, rows: list[Row]) -> None:
        """Rows of a block that could not be written come with the next one."""
        newer, self._rows, self._n_row_bytes = self._rows, rows, sum(row.n_bytes for row in rows)
        for row in newer:
            self._append(row)

    # ------------------------------------------------------------------- output

    @property
    def done(self) -> int:
        """The position up to which `take` has handed out everything."""
        return self._heard.done

    def finish(self, until: int) -> None:
        """Nothing is recorded after the position `until`."""
        self._heard.emptied(self.begun_ns + until * SAMPLE_NS)

    def position(self, at_ns: int) -> int:
        """The position of a moment, in samples of the recording."""
        return max(0, (at_ns - self.begun_ns) // SAMPLE_NS)

    def take(self, until: int) -> Block:
        """Everything before the position `until`. It must not go back."""
        first = self._heard.done
        heard, caller = self._heard.take(until), self._caller.take(until)
        for kind, track in (("heard", self._heard), ("caller_audio", self._caller)):
            for start, end in track.spans:
                start_ms, end_ms = max(0, start) * 1000 // RATE_HZ, end * 1000 // RATE_HZ
                self._append(Row(start_ms, SERVER, kind, False, {"end_ms": end_ms}))
            track.spans.clear()
        if self._caller.n_dropped:
            more = {"length_ms": self._caller.n_dropped * 1000 // RATE_HZ}
            self._append(Row(until * 1000 // RATE_HZ, SERVER, "caller_audio_dropped", False, more))
            self._caller.n_dropped = 0
        if self._n_rows_lost:
            self._rows.append(Row(until * 1000 // RATE_HZ, SERVER, "rows_lost", False, {"n": self._n_rows_lost}))
            self._n_rows_lost = 0
        rows, self._rows, self._n_row_bytes = self._rows, [], 0
        return Block(first, until - first, caller, heard, rows)
