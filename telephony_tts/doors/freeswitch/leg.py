"""A media leg of FreeSWITCH, which plays files (PROTOCOL.md §9.6, docs/adr/0012-freeswitch-plays-files.md).

Frames are gathered into sentences and sentences into files. The first sentence goes at once. Later ones wait until
FreeSWITCH has `_EARLY_NS` left to play, or until their turn is complete, and all that are ready then are one file:
FreeSWITCH drops some of the caller's audio at each begin and end of a file.

The side that holds the event socket says when a file begins and ends; between the two FreeSWITCH plays on its own
clock, so a mark inside a file comes back by ours. A file counts as heard if its begin and its end were reported. It
also counts if its begin was reported and a later file began after its whole length had passed. Any other file is lost,
and is sent again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from websockets.http11 import Request

from telephony_tts.doors.freeswitch.codec import (
    CALL_HEADER,
    CALLER_HEADERS,
    FORK_PROTOCOL,
    MAX_FILE_BYTES,
    FreeSwitchCodec,
)
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire

_METADATA_S = 0.5
"""How long a leg whose call is named in the handshake may take to send its metadata, if no audio comes."""

_EARLY_NS = 500 * NS_PER_MS
"""How long before FreeSWITCH has played everything the next file is sent. A message takes about 20 ms to become a file
that can be played. The rest is for busy machines."""

_REPORT_TIMEOUT_S = 10.0
"""The longest time without a report of a file that should be playing. The other side reconnects in less time."""

_ASK_S = 2.0
"""How often the other side is asked before that: a bridge that was restarted does not know the call."""

_N_ASKED = 3
"""After this many questions the files are sent again. An older bridge does not answer questions. A bridge that works
has reported by then that it cannot play."""

_MOST_SENDS = 5
"""A file that was sent this often and is not reported as played cannot be played."""

_MAX_UNSENT_BYTES = 8 << 20
"""Lost files are sent again at once: up to minutes of speech at 16 kHz. A slow reader is dropped by time."""

_SLACK_NS = 200 * NS_PER_MS
"""By how much the delays of two reports may differ."""


@dataclass(slots=True)
class SentFile:
    """A message of speech. `marks` has (bytes before it, name) of each mark that was not reported. `joints` has the
    bytes before each sentence except the first."""

    number: int
    pcm: bytes
    marks: list[tuple[int, str]]
    joints: list[int]
    sent_ns: int
    n_sends: int = 1
    begun_ns: int | None = None


class FreeSwitchLeg(MediaLeg):
    kind = "freeswitch"
    sends_dtmf = True

    def __init__(self, connection: CallConnection) -> None:
        assert connection.request is not None
        call, rate_hz = _call_and_rate(connection.request)
        caller = {
            name: values[0]
            for header, name in CALLER_HEADERS.items()
            if (values := connection.request.headers.get_all(header))
        }
        self._codec = FreeSwitchCodec(connection.subprotocol == FORK_PROTOCOL, call, rate_hz, caller)
        super().__init__(connection, self._codec)  # type: ignore[arg-type]  # it encodes files, where other codecs encode frames
        connection.max_unsent_bytes = _MAX_UNSENT_BYTES
        self._loop = asyncio.get_running_loop()
        self._gathered = bytearray()
        self._marks: list[tuple[int, str]] = []
        """Marks of the sentence that is being gathered: (bytes before it, name)."""
        self._held = bytearray()
        self._held_marks: list[tuple[int, str]] = []
        self._joints: list[int] = []
        """Whole sentences of one turn, which will be the next file: bytes, marks, and places of their joints."""
        self._hold_timer: asyncio.TimerHandle | None = None
        self._files: list[SentFile] = []
        """Files at FreeSWITCH that were not heard yet, in the order in which they are played."""
        self._next = 1
        self._mark_timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._due_ns = 0
        """When the next report is due."""
        self._soon: list[str] = []
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
            if len(self._gathered) >= MAX_FILE_BYTES:
                self._hold()
                self._send_held()
            return None
        if isinstance(message, m.MediaMark):
            self._place(message.name)
            if message.ends_sentence and self._gathered:
                self._hold()
            if message.ends_turn:
                self._send_held()
            else:
                self._send_held_if_due()
            return None
        if isinstance(message, m.MediaTones):
            return self._codec.tones(message)
        return self._clear()

    def _place(self, mark: str) -> None:
        """Place the mark behind all the audio that came so far."""
        if self._gathered:
            self._marks.append((len(self._gathered), mark))
        elif self._held:
            self._held_marks.append((len(self._held), mark))
        elif self._files:
            self._files[-1].marks.append((len(self._files[-1].pcm), mark))
        else:
            self._soon.append(mark)
            self._loop.call_soon(self._report_soon)

    def _clear(self) -> Wire | None:
        had_files = bool(self._files)
        self._forget()
        if not had_files:
            return None  # gathered audio was not sent yet
        return self._codec.clear(self._next)

    def end(self, code: int, reason: str) -> None:
        """The modules do not end the telephone call when we close, so ask the side with the event socket to end it."""
        if self._codec.start is not None and not self.connection.left.done():
            self.connection.send_now(*self._codec.hang_up())
        self._forget()
        super().end(code, reason)

    def _forget(self) -> None:
        self._gathered.clear()
        self._marks.clear()
        self._held.clear()
        self._held_marks.clear()
        self._joints.clear()
        self._files.clear()
        self._soon.clear()
        for timer in (self._hold_timer, self._mark_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._hold_timer = self._mark_timer = self._watch = None

    # ------------------------------------------------------------ when a file goes

    def _hold(self) -> None:
        """The sentence is complete, or as long as a file can be. It joins the held sentences if all fit in a file."""
        if len(self._held) + len(self._gathered) > MAX_FILE_BYTES:
            self._send_held()
        if self._held:
            self._joints.append(len(self._held))
        self._held_marks += [(len(self._held) + at, name) for at, name in self._marks]
        self._held += self._gathered
        self._gathered.clear()
        self._marks.clear()

    def _send_held_if_due(self) -> None:
        """Send held sentences if FreeSWITCH has little left to play. Otherwise look again when it has little left, or
        begins to play."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if not self._held:
            return
        wait_ns = self._left_ns(monotonic_ns()) - _EARLY_NS
        if wait_ns <= 0:
            self._send_held()
        elif self._files[0].begun_ns is not None:
            self._hold_timer = self._loop.call_later(wait_ns / NS_PER_S, self._send_held_if_due)

    def _left_ns(self, now_ns: int) -> int:
        """How long FreeSWITCH still has something to play, at least."""
        left_ns = sum(self._duration_ns(len(file.pcm)) for file in self._files)
        if self._files and (begun_ns := self._files[0].begun_ns) is not None:
            left_ns -= min(self._duration_ns(len(self._files[0].pcm)), now_ns - begun_ns)
        return left_ns

    def _send_held(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if not self._held:
            return
        self._send(SentFile(self._next, bytes(self._held), self._held_marks, self._joints, monotonic_ns()))
        self._held, self._held_marks, self._joints = bytearray(), [], []

    def _send(self, file: SentFile) -> None:
        self._next = file.number + 1
        self._files.append(file)
        if len(self._files) == 1:
            self._expect(0)
        wire = self._codec.file(str(file.number), file.pcm)
        metrics.SENT_BYTES.labels(leg="media").inc(len(wire[0]))
        self.connection.send_now(*wire)

    # ------------------------------------------------------------ what is played

    def take(self, call: Call, message: m.FromMedia) -> None:
        if not isinstance(message, m.MediaPlayback):
            super().take(call, message)
        elif message.state == "again" and not self._files:
            self.connection.send_now(*self._codec.hello(self._next))  # without an answer the call counts as over
        elif message.state == "again":
            self._send_again("the other side asks for it")
        elif self._has(message.file):
            self._on_playback(message, monotonic_ns())

    def _has(self, number: str) -> bool:
        return any(str(file.number) == number for file in self._files)

    def _on_playback(self, message: m.MediaPlayback, now_ns: int) -> None:
        if message.state == "failed":
            self._cannot_play("playback_failed", f"file {message.file} is reported as failed")
            return
        while str(self._files[0].number) != message.file:
            # Files are played in order, so this file is over. If it was heard, only the report of its end is missing.
            file = self._files[0]
            if file.begun_ns is None or now_ns - file.begun_ns < self._duration_ns(len(file.pcm)) - _SLACK_NS:
                self._send_again(f"file {message.file} is reported, and file {file.number} was not heard")
                return
            self._is_heard()
            if not self._has(message.file):
                return
        file = self._files[0]
        if message.state == "playing":
            self._begins(file, now_ns)
        elif file.begun_ns is None and now_ns - file.sent_ns < self._duration_ns(len(file.pcm)) - _SLACK_NS:
            self._send_again(f"file {message.file} is reported as played sooner than that is possible")
        else:
            self._is_heard()
            self._send_held_if_due()

    def _begins(self, file: SentFile, now_ns: int) -> None:
        if file.begun_ns is not None and self.call is not None:
            self.call.receive(m.MediaLost())  # it was interrupted, and is played again from its beginning
            if not self._files or self._files[0] is not file:
                return  # the session has interrupted the turn
        file.begun_ns = now_ns
        self._expect(self._duration_ns(len(file.pcm)))
        self._send_held_if_due()
        if (following := self._following_mark()) is not None and self.call is not None:
            n_bytes, name = following
            self.call.receive(m.MediaBegun(name, n_bytes // 2))
        self._report_due()

    def _following_mark(self) -> tuple[int, str] | None:
        """(bytes before it, name) of the first mark behind the begin of the first file. A sentence that was cut may
        have its marks in a later file."""
        n_before = 0
        parts = [(len(file.pcm), file.marks) for file in self._files]
        for n_bytes, marks in [*parts, (len(self._held), self._held_marks), (len(self._gathered), self._marks)]:
            if marks:
                return n_before + marks[0][0], marks[0][1]
            n_before += n_bytes
        return None

    def _is_heard(self) -> None:
        """The whole first file was heard."""
        file = self._files[0]
        self._report_due()  # the report of its end may be read before our timer
        if not self._files or self._files[0] is not file:
            return  # the session has interrupted the turn
        del self._files[0]
        for timer in (self._mark_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._mark_timer = self._watch = None
        if self._files:
            self._expect(0)
        self._report([name for _, name in file.marks])

    def _report_due(self) -> None:
        """Report the marks in the playing file that are due, and set the timer for the next."""
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        file = self._files[0] if self._files else None
        if file is None or file.begun_ns is None:
            return
        heard_ns = monotonic_ns() - file.begun_ns
        due: list[tuple[str, int]] = []
        # A mark at the end is reached when the end of the file is reported.
        while file.marks and file.marks[0][0] < len(file.pcm) and self._duration_ns(file.marks[0][0]) <= heard_ns:
            n_bytes, name = file.marks.pop(0)
            # Our timer may be late, and the file goes on. In whole milliseconds it must not seem later than it was.
            due.append((name, -((self._duration_ns(n_bytes) - heard_ns) // NS_PER_MS)))
        if file.marks and file.marks[0][0] < len(file.pcm):
            wait_ns = self._duration_ns(file.marks[0][0]) - heard_ns + NS_PER_MS // 2
            self._mark_timer = self._loop.call_later(wait_ns / NS_PER_S, self._report_due)
        for name, ago_ms in due:
            if self.call is not None:
                self.call.receive(m.MediaMark(name, ago_ms=ago_ms))

    def _report_soon(self) -> None:
        names, self._soon = list(self._soon), []
        self._report(names)

    def _report(self, names: list[str]) -> None:
        for name in names:
            if self.call is not None:
                self.call.receive(m.MediaMark(name))

    def _duration_ns(self, n_bytes: int) -> int:
        assert self._codec.start is not None
        return n_bytes // 2 * NS_PER_S // self._codec.start.rate_hz

    # ---------------------------------------------------------- what is not played

    def _send_again(self, why: str) -> None:
        """Stop the files at FreeSWITCH that were not heard, and send them once more under new numbers. A file that had
        begun is sent from the sentence that was being played."""
        self._report_due()
        files = self._files
        if not files:
            return
        if files[0].n_sends >= _MOST_SENDS:
            self._cannot_play("playback_failed", f"a file was sent {_MOST_SENDS} times and not heard: {why}")
            return
        self.connection.log.warning("speech_sent_again", files=len(files), why=why)
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        # A file may still be on its way to the other side, which would then play it twice.
        self.connection.send_now(*self._codec.clear(self._next))
        self._files = []
        now_ns = monotonic_ns()
        for file in files:
            begun_ns = now_ns if file.begun_ns is None else file.begun_ns
            n_heard = max([0, *(at for at in file.joints if self._duration_ns(at) <= now_ns - begun_ns)])
            marks = [(max(0, at - n_heard), name) for at, name in file.marks]
            joints = [at - n_heard for at in file.joints if at > n_heard]
            n_sends = 1 if n_heard else file.n_sends + (file is files[0])
            self._send(SentFile(self._next, file.pcm[n_heard:], marks, joints, now_ns, n_sends))
        if self.call is not None:
            self.call.receive(m.MediaLost())

    def _expect(self, duration_ns: int) -> None:
        """A report of the first file is due in `duration_ns`. Begin to wait for it."""
        self._due_ns = monotonic_ns() + duration_ns
        self._watch_for(duration_ns / NS_PER_S + min(_ASK_S, _REPORT_TIMEOUT_S))

    def _watch_for(self, wait_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(wait_s, self._is_unheard)

    def _is_unheard(self) -> None:
        assert self._files, "no report is awaited without a file"
        due_ns = self._due_ns
        silent_s = (monotonic_ns() - due_ns) / NS_PER_S
        n_asked = round(silent_s / _ASK_S)
        if silent_s >= _REPORT_TIMEOUT_S - 0.001:
            hint = "is telephony-sip-bridge running, with freeswitch.enabled and connected to the event socket?"
            self._cannot_play("nobody_plays", "no report of a file came", hint=hint)
            return
        if n_asked == _N_ASKED:
            self._send_again("no report of it came")
            if not self._files:
                return  # the call is over
            self._due_ns = due_ns
        else:
            self.connection.send_now(*self._codec.hello(self._next))
        self._watch_for(min((n_asked + 1) * _ASK_S, _REPORT_TIMEOUT_S) - silent_s)

    def _cannot_play(self, event: str, why: str, hint: str | None = None) -> None:
        """End the call: the bot's speech does not reach the caller."""
        self.connection.log.error(event, why=why, hint=hint)
        self.reason = "playback_failed"
        self.end(1011, f"FreeSWITCH does not play the speech: {why}"[:120])


def _call_and_rate(request: Request) -> tuple[str | None, int | None]:
    """(the call's name, the caller's sample rate) from the handshake. A value that is there twice is ignored."""
    calls = request.headers.get_all(CALL_HEADER)
    rates = [rate for name, rate in parse_qsl(urlsplit(request.path).query) if name == "rate"]
    rate = rates[0] if len(rates) == 1 and rates[0].isascii() and len(rates[0]) < 7 else ""
    return (calls[0] if len(calls) == 1 else None), (int(rate) if rate.isdecimal() else None)
