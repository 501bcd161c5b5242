"""A media leg of FreeSWITCH, which plays files (PROTOCOL.md §9.6, docs/adr/0012-freeswitch-plays-files.md).

Frames are gathered until their sentence ends, and go as one message. The side that holds the event socket says when a
file begins and ends; between the two FreeSWITCH plays on its own clock, so a mark inside a file comes back by ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from websockets.http11 import Request

from telephony_tts.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire
from telephony_tts.wire.freeswitch import (
    CALL_HEADER,
    CALLER_HEADERS,
    FORK_PROTOCOL,
    MAX_FILE_BYTES,
    FreeSwitchCodec,
)

_METADATA_S = 0.5
"""How long a leg that has a name already may take to send its metadata, where it is so quiet that no audio comes."""

_PATIENCE_S = 10.0
"""How long nobody may say anything of a file that should be playing: the other side connects anew in less."""


@dataclass(slots=True)
class _File:
    """A message of speech. `marks` are (bytes before it, name)."""

    number: int
    pcm: bytes
    marks: deque[tuple[int, str]] = field(default_factory=deque)
    begun_ns: int | None = None


class FreeSwitchLeg(MediaLeg):
    kind = "freeswitch"

    def __init__(self, connection: CallConnection) -> None:
        assert connection.request is not None
        call, rate_hz = _told(connection.request)
        caller = {
            name: values[0]
            for header, name in CALLER_HEADERS.items()
            if (values := connection.request.headers.get_all(header))
        }
        self._codec = FreeSwitchCodec(connection.subprotocol == FORK_PROTOCOL, call, rate_hz, caller)
        super().__init__(connection, self._codec)  # type: ignore[arg-type]  # it says files, where others say frames
        self._loop = asyncio.get_running_loop()
        self._gathered = bytearray()
        self._marks: deque[tuple[int, str]] = deque()
        """Of what is gathered."""
        self._files: deque[_File] = deque()
        """At FreeSWITCH, and not known to have been played."""
        self._next = 1
        self._mark_timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._soon: deque[str] = deque()
        if call is not None:
            waiting = self._loop.call_later(_METADATA_S, self._start_without_metadata)
            self.started.add_done_callback(lambda _start: waiting.cancel())
            connection.left.add_done_callback(lambda _left: waiting.cancel())
        connection.left.add_done_callback(lambda _left: self._forget())

    def _start_without_metadata(self) -> None:
        self.on_message(b"", False)

    # ------------------------------------------------------- as the call sees it

    def attach(self, call: Call, start: m.MediaStart) -> None:
        self.connection.send_now(*self._codec.hello())
        super().attach(call, start)

    def encode(self, message: m.ToMedia) -> Wire | None:
        if type(message) is m.Frame:
            self._gathered += message.payload
            return self._file() if len(self._gathered) >= MAX_FILE_BYTES else None
        if isinstance(message, m.MediaMark):
            if self._gathered:
                self._marks.append((len(self._gathered), message.name))
                return self._file() if message.ends_sentence else None
            if self._files:
                last = self._files[-1]
                last.marks.append((len(last.pcm), message.name))
            else:
                self._soon.append(message.name)
                self._loop.call_soon(self._report_soon)
            return None
        return self._clear()

    def _file(self) -> Wire:
        """What is gathered, as a message."""
        file = _File(self._next, bytes(self._gathered), self._marks)
        self._next += 1
        self._gathered, self._marks = bytearray(), deque()
        self._files.append(file)
        if len(self._files) == 1:
            self._expect(0)
        return self._codec.file(str(file.number), file.pcm)

    def _clear(self) -> Wire | None:
        had_files = bool(self._files)
        self._forget()
        if not had_files:
            return None  # what was gathered has not left this place
        return self._codec.clear(self._next)

    def end(self, code: int, reason: str) -> None:
        """The modules leave the telephone call as it is when we close; who holds the event socket may end it."""
        if self._codec.start is not None and not self.connection.left.done():
            self.connection.send_now(*self._codec.hang_up())
        self._forget()
        super().end(code, reason)

    def _forget(self) -> None:
        self._gathered.clear()
        self._marks.clear()
        self._files.clear()
        self._soon.clear()
        for timer in (self._mark_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._mark_timer = self._watch = None

    # ------------------------------------------------------------ what is played

    def take(self, call: Call, message: m.FromMedia) -> None:
        if not isinstance(message, m.MediaPlayback):
            super().take(call, message)
        elif message.state == "again":
            self._send_again()
        elif any(str(file.number) == message.file for file in self._files):
            self._on_playback(message, monotonic_ns())

    def _on_playback(self, message: m.MediaPlayback, now_ns: int) -> None:
        if message.state == "failed":
            self.connection.log.error("playback_failed", file=message.file)
            self.reason = "playback_failed"
            self.end(1011, "FreeSWITCH could not play what was said")
            return
        while self._files and str(self._files[0].number) != message.file:
            self._played(self._files.popleft())  # files are played in order: that of this one's end was lost
        if not self._files:
            return
        file = self._files[0]
        if message.state == "playing":
            if file.begun_ns is None:
                file.begun_ns = now_ns
                self._report_due()
                if self._files and self._files[0] is file:
                    self._expect(self._duration_ns(len(file.pcm)))
        else:
            self._files.popleft()
            self._played(file)
            if self._files:
                self._expect(0)

    def _played(self, file: _File) -> None:
        """All of a file was heard."""
        for timer in (self._mark_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._mark_timer = self._watch = None
        self._report([name for _, name in file.marks])

    def _report_due(self) -> None:
        """Report the marks inside the playing file whose time has come, and come back for the next."""
        self._mark_timer = None
        file = self._files[0] if self._files else None
        if file is None or file.begun_ns is None:
            return
        heard_ns, due = monotonic_ns() - file.begun_ns, []
        # What stands at the end is only reached when the file is said to have ended.
        while file.marks and file.marks[0][0] < len(file.pcm) and self._duration_ns(file.marks[0][0]) <= heard_ns:
            due.append(file.marks.popleft()[1])
        if file.marks and file.marks[0][0] < len(file.pcm):
            wait_ns = self._duration_ns(file.marks[0][0]) - heard_ns + NS_PER_MS // 2
            self._mark_timer = self._loop.call_later(wait_ns / NS_PER_S, self._report_due)
        self._report(due)

    def _report_soon(self) -> None:
        names, self._soon = list(self._soon), deque()
        self._report(names)

    def _report(self, names: list[str]) -> None:
        for name in names:
            if self.call is not None:
                self.call.receive(m.MediaMark(name))

    def _duration_ns(self, n_bytes: int) -> int:
        assert self._codec.start is not None
        return n_bytes // 2 * NS_PER_S // self._codec.start.rate_hz

    def _send_again(self) -> None:
        """The other side was away: it has stopped what played, and knows of nothing any more."""
        files, self._files = self._files, deque()
        for file in files:
            self.connection.send_now(*self._codec.file(str(self._next), file.pcm))
            self._files.append(_File(self._next, file.pcm, file.marks))
            self._next += 1
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        if self._files:
            self._expect(0)

    def _expect(self, duration_ns: int) -> None:
        """Something is to be heard of the first file within `duration_ns` and our patience."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(_PATIENCE_S + duration_ns / NS_PER_S, self._is_unheard)

    def _is_unheard(self) -> None:
        self.connection.log.error(
            "nobody_plays",
            hint="is telephony-sip-bridge running, with freeswitch.enabled and connected to the event socket?",
        )
        self.reason = "playback_failed"
        self.end(1011, "nobody says that FreeSWITCH plays what is said")


def _told(request: Request) -> tuple[str | None, int | None]:
    """What the handshake says of the call: its name and the caller's sample rate. What is there twice is not."""
    calls = request.headers.get_all(CALL_HEADER)
    rates = [rate for name, rate in parse_qsl(urlsplit(request.path).query) if name == "rate"]
    rate = rates[0] if len(rates) == 1 and rates[0].isascii() and len(rates[0]) < 7 else ""
    return (calls[0] if len(calls) == 1 else None), (int(rate) if rate.isdecimal() else None)
