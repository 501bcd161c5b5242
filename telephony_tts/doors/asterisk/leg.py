"""A media leg of Asterisk's chan_websocket, dialled by Asterisk or by the server (PROTOCOL.md §9.5).

Frames that are due together are sent as one message, and Asterisk cuts the message into its own frames. Asterisk has a
bulk mode for messages that are longer than a frame.
"""

from __future__ import annotations

import asyncio
from collections import deque

from telephony_tts.doors.asterisk.codec import LEAD_MS, MAX_AUDIO_BYTES, XON_FRAMES, AsteriskCodec
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import DirectConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire

_ASK_EVERY_NS = 5 * NS_PER_S
_MAX_FLUSHES = 3

_ANSWER_NS = 2 * NS_PER_S
"""Asterisk answers within milliseconds. A later answer belongs to another question."""

_ASK_WHETHER_FULL_S = 1.0
_MAX_UNANSWERED = 5
"""After this many unanswered questions in a row, a queue no longer counts as full."""


class AsteriskLeg(MediaLeg):
    kind = "asterisk"
    fills = True
    """Asterisk sends nothing to the telephone when it gets no frames."""

    def __init__(self, connection: DirectConnection, lead_ms: int = LEAD_MS) -> None:
        """Up to `lead_ms` of speech wait in Asterisk's queue."""
        self._codec = AsteriskCodec(lead_ms)
        super().__init__(connection, self._codec)
        self._sent_bytes = metrics.SENT_BYTES.labels(leg="media")
        self._gathered: list[bytes] = []
        """Frames that will be sent as one message."""
        self._gathered_bytes = 0
        self._is_bulk = False
        """Asterisk has been told that more than one frame comes at once."""
        self._asked_ns = 0
        self._questions: deque[int] = deque()
        """When each unanswered question was asked. Answers come in the same order."""
        self._n_stale = 0
        """How many answers belong to questions from before the queue was emptied. They do not count."""
        self._flushed_ns: int | None = None
        """When Asterisk was told to empty its queue. None after it has confirmed that."""
        self._n_flushes = 0
        self._n_sent_since = 0
        """How many frames were sent since the last question."""
        self._is_full = False
        self._n_unanswered = 0
        """How many questions about a full queue have no answer."""
        self._full_timer: asyncio.TimerHandle | None = None
        connection.left.add_done_callback(lambda _left: self._stop_asking())

    def attach(self, call: Call, start: m.MediaStart) -> None:
        # A channel that was answered ignores this. Without it an unanswered channel would play, and not be heard.
        self._command("ANSWER")
        super().attach(call, start)

    def encode(self, message: m.ToMedia) -> Wire | None:
        if type(message) is m.Frame:
            self._gather(message.payload)
            return None
        if isinstance(message, m.MediaClear):
            # Gathered frames are dropped. For frames that were sent, the answer tells that the telephone is silent.
            self._gathered.clear()
            self._gathered_bytes = 0
            self._n_flushes = 0
            self._flush()
            self._asks(monotonic_ns())
            return self._codec.command("GET_STATUS")
        self.send_gathered()
        assert isinstance(message, m.MediaMark)
        if message.ends_turn and self._is_bulk:
            # Then no rest of this turn is joined to the next turn.
            self._is_bulk = False
            self._command("STOP_MEDIA_BUFFERING")
        return self._codec.encode(message)

    def _gather(self, payload: bytes) -> None:
        if self._gathered_bytes + len(payload) > MAX_AUDIO_BYTES:
            self.send_gathered()
        self._gathered.append(payload)
        self._gathered_bytes += len(payload)

    def send_gathered(self) -> None:
        n_frames = len(self._gathered)
        if not n_frames:
            return
        payload = b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        now_ns = monotonic_ns()
        if now_ns - self._asked_ns > _ASK_EVERY_NS:
            if self._flushed_ns is not None and now_ns - self._flushed_ns > _ANSWER_NS:
                self.connection.log.warning("clear_unconfirmed", why="Asterisk has not answered GET_STATUS")
                self._flushed_ns = None
            self._ask(now_ns)
        self._n_sent_since += n_frames
        if n_frames > 1 and not self._is_bulk:
            self._is_bulk = True
            self._command("START_MEDIA_BUFFERING")
        self._sent_bytes.inc(len(payload))
        self.send_now(payload, False)

    def end(self, code: int, reason: str) -> None:
        """Hang up the channel. The marks have told that all speech was played, so only silence is cut."""
        if self._codec.is_json is not None:
            self._command("HANGUP")
        super().end(code, reason)

    def on_writable(self, flag: bool) -> None:
        super().on_writable(flag and not self._is_full)

    def take(self, call: Call, message: m.FromMedia) -> None:
        if isinstance(message, m.MediaFlow):
            self._flow(call, message.is_open)
        elif isinstance(message, m.MediaBuffered):
            self._buffered(call, message)
        else:
            super().take(call, message)

    def _buffered(self, call: Call, held: m.MediaBuffered) -> None:
        now_ns = monotonic_ns()
        if self._is_full and held.n_frames < XON_FRAMES:
            if self._n_unanswered:  # otherwise a clear has made room, and the XON will come
                call.log.warning("xoff_without_xon", why=f"its queue has {held.n_frames} frames")
            self._flow(call, True)
        self._n_unanswered = 0
        if held.is_paused:
            # No other program should have paused the queue, and FLUSH_MEDIA does not undo a pause.
            self._command("CONTINUE_MEDIA")
        asked_ns = self._questions.popleft() if self._questions else now_ns
        if self._n_stale:
            self._n_stale -= 1
            return
        if self._flushed_ns is not None:
            if held.n_frames > self._n_sent_since and self._n_flushes < _MAX_FLUSHES:
                self._flush()
                self._ask(now_ns)
                return
            call.log.debug("flushed", after_ms=(now_ns - self._flushed_ns) / NS_PER_MS, left=held.n_frames)
            self._flushed_ns = None
        call.session.peer_holds(held.n_frames, asked_ns)

    def _flow(self, call: Call, is_open: bool) -> None:
        self._stop_asking()
        self._is_full = not is_open
        if self._is_full and not self.connection.left.done():
            self._n_unanswered = 0
            self._full_timer = asyncio.get_running_loop().call_later(_ASK_WHETHER_FULL_S, self._is_still_full, call)
        call.writable(is_open and not self.connection.paused)

    def _is_still_full(self, call: Call) -> None:
        """Ask whether the queue is still full: without a later XON the caller would hear silence for ever."""
        self._full_timer = None
        if self._n_unanswered >= _MAX_UNANSWERED:
            call.log.warning("xoff_without_xon", why=f"GET_STATUS was not answered {_MAX_UNANSWERED} times")
            self._flow(call, True)
            return
        self._n_unanswered += 1
        self._ask(monotonic_ns())
        self._full_timer = asyncio.get_running_loop().call_later(_ASK_WHETHER_FULL_S, self._is_still_full, call)

    def _stop_asking(self) -> None:
        if self._full_timer is not None:
            self._full_timer.cancel()
            self._full_timer = None

    def _flush(self) -> None:
        self._is_bulk = False  # Asterisk forgets that too
        self._flushed_ns = monotonic_ns()
        self._n_flushes += 1
        self._n_sent_since = 0
        self._n_stale = len(self._questions)
        self._command("FLUSH_MEDIA")

    def _ask(self, now_ns: int) -> None:
        self._asked_ns = now_ns
        self._n_sent_since = 0
        self._asks(now_ns)
        self._command("GET_STATUS")

    def _asks(self, now_ns: int) -> None:
        while self._questions and self._questions[0] < now_ns - _ANSWER_NS:
            self._questions.popleft()  # it will have no answer
            self._n_stale = max(0, self._n_stale - 1)
        self._questions.append(now_ns)

    def _command(self, name: str) -> None:
        self.connection.send_now(*self._codec.command(name))
