"""A media leg of Asterisk's chan_websocket, whichever of us has dialled (PROTOCOL.md §9.5)."""

from __future__ import annotations

from telephony_tts import logs
from telephony_tts.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import DirectConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.asterisk import AsteriskCodec
from telephony_tts.wire.fields import Wire

_log = logs.get(__name__)
_ASK_EVERY_NS = 5 * NS_PER_S
_MAX_FLUSHES = 3


class AsteriskLeg(MediaLeg):
    kind = "asterisk"
    fills = True
    """Asterisk sends its telephone nothing where it is given nothing."""

    def __init__(self, connection: DirectConnection) -> None:
        self._codec = AsteriskCodec()
        super().__init__(connection, self._codec)
        self._asked_ns = 0
        self._flushed_ns: int | None = None
        """When it was told to empty its queue, until it says that it has."""
        self._n_flushes = 0
        self._n_sent_since = 0
        """Frames behind the last question of what it holds."""

    def attach(self, call: Call, start: m.MediaStart) -> None:
        # A channel that answers by itself takes this for nothing; one that does not would play to nobody.
        self._command("ANSWER")
        super().attach(call, start)

    def encode(self, message: m.ToMedia) -> Wire:
        if type(message) is m.Frame:
            now_ns = monotonic_ns()
            if now_ns - self._asked_ns > _ASK_EVERY_NS:
                self._ask(now_ns)
            self._n_sent_since += 1
        elif isinstance(message, m.MediaClear):
            self._n_flushes = 0
            self._flush()
            # Its answer is how we know that the telephone is silent.
            return self._codec.command("GET_STATUS")
        return self._codec.encode(message)

    def end(self, code: int, reason: str) -> None:
        """What was said is played by now: the marks tell. So is the silence behind it cut, and the channel hung up."""
        if self._codec.is_json is not None:
            self._command("HANGUP")
        super().end(code, reason)

    def take(self, call: Call, message: m.FromMedia) -> None:
        if isinstance(message, m.MediaFlow):
            call.writable(message.is_open and not self.connection.paused)
        elif isinstance(message, m.MediaBuffered):
            self._buffered(call, message)
        else:
            super().take(call, message)

    def _buffered(self, call: Call, held: m.MediaBuffered) -> None:
        now_ns = monotonic_ns()
        if held.is_paused:
            # Nobody else should have done that, and FLUSH_MEDIA does not undo it.
            self._command("CONTINUE_MEDIA")
        if self._flushed_ns is not None:
            if held.n_frames > self._n_sent_since and self._n_flushes < _MAX_FLUSHES:
                self._flush()
                self._ask(now_ns)
                return
            call.log.debug("flushed", after_ms=(now_ns - self._flushed_ns) / NS_PER_MS, left=held.n_frames)
            self._flushed_ns = None
        call.session.peer_holds(held.n_frames, now_ns)

    def _flush(self) -> None:
        self._flushed_ns = monotonic_ns()
        self._n_flushes += 1
        self._n_sent_since = 0
        self._command("FLUSH_MEDIA")

    def _ask(self, now_ns: int) -> None:
        self._asked_ns = now_ns
        self._n_sent_since = 0
        self._command("GET_STATUS")

    def _command(self, name: str) -> None:
        self.connection.send_now(*self._codec.command(name))
