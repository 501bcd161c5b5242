"""A media leg of jambonz, whose audio module plays what comes as a stream (PROTOCOL.md §9.13).

The module keeps back the last `FLUSH_MS` of audio until more comes, and with it the marks that stand there. So the leg
sends so much silence when no frame has come for a while.

A `killAudio` empties the module's buffer, but the module then waits for the marks that were in it and takes later ones
for them. And marks are lost if the module resamples our speech. So when a clear has caught a mark, or a mark does not
come back, the marks of this leg tell nothing any more, and the clock takes over.
"""

from __future__ import annotations

import asyncio

from telephony_tts.doors.jambonz.codec import FLUSH_MS, MOST_MARKS, JambonzCodec
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire

_PAUSE_S = 0.1
"""Frames come every 20 ms while there is speech."""

_REPORT_S = 1.0
"""How long after the silence a mark may come back. Only `LEAD_MS` of speech is played before it."""


class JambonzLeg(MediaLeg):
    kind = "jambonz"
    most_marks = MOST_MARKS

    def __init__(self, connection: CallConnection, call: str | None, rate_hz: int | None) -> None:
        """`call` and `rate_hz`, the rate of playback, are those of the address, if it has them."""
        self._codec = JambonzCodec(call, rate_hz)
        super().__init__(connection, self._codec)
        self._loop = asyncio.get_running_loop()
        self._flush = b""
        self._pause: asyncio.TimerHandle | None = None
        self._marks: set[str] = set()
        """The marks that jambonz has."""
        connection.left.add_done_callback(lambda _left: self._stop())

    def attach(self, call: Call, start: m.MediaStart) -> None:
        self._flush = bytes(start.rate_hz * FLUSH_MS // 1000 * 2)
        super().attach(call, start)

    def encode(self, message: m.ToMedia) -> Wire | None:
        if isinstance(message, m.MediaClear):
            self._stop()
            if self._marks:
                self.send_now(*self._codec.clear_marks())
                self._loop.call_soon(self._lose_marks)  # not while the call performs the clear
        else:
            self._begin_pause()
            if isinstance(message, m.MediaMark):
                self._marks.add(message.name)
        return self._codec.encode(message)

    def decode(self, payload: bytes, want_audio: bool, is_text: bool) -> m.FromMedia | None:
        message = super().decode(payload, want_audio, is_text)
        if isinstance(message, m.MediaMark):
            self._marks.discard(message.name)
        return message

    def end(self, code: int, reason: str) -> None:
        """Let the call go on. The marks have told that all speech was played."""
        if self.call is not None and not self.connection.left.done():
            self.send_now(*self._codec.hang_up())
        super().end(code, reason)

    def _begin_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(_PAUSE_S, self._send_silence)

    def _send_silence(self) -> None:
        self.send_now(self._flush, False)
        if self.call is not None:
            self.call.session.padded(FLUSH_MS, monotonic_ns())
        self._pause = self._loop.call_later(_REPORT_S, self._lose_marks) if self._marks else None

    def _lose_marks(self) -> None:
        if self._marks and self.call is not None:
            self.connection.log.info("marks_lost", marks=len(self._marks))
            self._marks.clear()
            self.call.receive(m.MediaMarksLost())

    def _stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
