"""The server's side of a call whose audio passes through the bridge.

    phone's side ── audio, digits ──────────► ServerSide ── /media/native ──► server
    phone's side ◄── a frame when it asks ─── ServerSide ◄── speech, mark, clear ── server

AudioSocket calls and RTP calls have the same server's side; they differ in how frames get to the phone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.config import TtsServerConfig
from sip_bridge.peer_input import MAX_DIGITS_PER_S, BadInput, DigitLimit
from sip_bridge.speech.speech_queue import SpeechQueue
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns
from telephony_tts.runtime.logs import EventLogger

N_SILENT_AT_END = 5
"""Frames of silence between the last speech and the end of the call. Asterisk drops what it has not passed on, and a
phone what is in its jitter buffer."""

_MAX_UNDERRUN_FRAMES = 5
"""A longer silence between two frames of speech is a pause between turns."""

_MAX_MARKS = 1_000

EndCall = Callable[[str, str | None, int | None], None]
"""(one of metrics.ENDS, why, the server's close code)"""

OnDigits = Callable[[s.ServerDigits], None]
"""Send the bot's tones to the telephone."""

Join = Callable[[TtsServerConfig], Awaitable[s.ServerLeg]]
Prepare = Callable[[], Awaitable[tuple[s.LegStart, SpeechQueue]]]


class ServerSide:
    """`serve` joins the server and stays until it leaves. `end_call` may be called more than once."""

    def __init__(
        self,
        end_call: EndCall,
        log: EventLogger,
        max_queue_ms: float,
        join: Join = s.join,
        clock: Callable[[], int] = monotonic_ns,
        on_digits: OnDigits | None = None,
    ) -> None:
        self.log = log
        self.n_speech_frames = 0
        """Frames of speech taken so far."""
        self.is_over = False
        """The call is over: what the server still says is ignored."""
        self._end_call = end_call
        self._max_queue_ms = max_queue_ms
        self._join = join
        self._clock = clock
        self._on_digits = on_digits
        self._leg: s.ServerLeg | None = None
        self._queue: SpeechQueue | None = None
        self._bad_input = BadInput()
        self._digit_limit = DigitLimit()
        self._early_digits: deque[str] = deque(maxlen=MAX_DIGITS_PER_S)
        self._on_hold = False
        self._finishing: str | None = None
        self._waiting_since_ns: int | None = None
        self._n_silent = 0

    @property
    def has_joined(self) -> bool:
        return self._leg is not None

    async def serve(self, server: TtsServerConfig, prepare: Prepare) -> None:
        """Join the server, start the call with what `prepare` returns, and stay until the server leaves.

        Raises nothing: every failure ends the call.
        """
        try:
            leg = await self._join(server)
            try:
                start, self._queue = await prepare()
                self._leg = leg
                leg.start(start, self._on_server)
                while self._early_digits:
                    leg.send_digit(self._early_digits.popleft())
                if self._on_hold:
                    leg.send_hold(True)
                await asyncio.wait((leg.left,))
                self._server_left(leg)
            finally:
                leg.leave("hangup")
                await leg.close()
        except s.NotJoined as error:
            self._end_call(error.reason, str(error), None)
        except Exception:
            self.log.exception("call_crashed")
            self._end_call("failed", None, None)

    def leave(self, reason: str) -> None:
        """Tell the server that the call is over, if it has joined. Idempotent."""
        if self._leg is not None:
            self._leg.leave(reason)

    # ------------------------------------------------------- to the server

    def send_audio(self, pcm: bytes, read_ns: int) -> None:
        """The caller's audio at the server's rate, s16 little-endian, that was read at `read_ns`."""
        assert self._leg is not None
        if not self._leg.send_audio(pcm):
            metrics.CALLER_BYTES_DROPPED.inc(len(pcm))
        metrics.CALLER_DELAY_MS.observe((self._clock() - read_ns) / NS_PER_MS)

    def send_digit(self, digit: str, now_ns: int) -> bool:
        """A digit of the caller, kept until the server has joined. False if it is left out: too many come."""
        if not self._digit_limit.allows(now_ns):
            return False
        if self._leg is not None:
            self._leg.send_digit(digit)
        else:
            self._early_digits.append(digit)
        return True

    def send_hold(self, is_on: bool) -> None:
        """The telephone is on hold from now on, or not any more. The server is told when it has joined."""
        if is_on != self._on_hold and self._leg is not None:
            self._leg.send_hold(is_on)
        self._on_hold = is_on

    def report_marks(self) -> None:
        """Tell the server which marks were reached."""
        if self._queue is not None and self._leg is not None and self._queue.n_marks:
            for name in self._queue.reached():
                self._leg.report_mark(name)

    # ------------------------------------------------------- to the phone

    def take_frame(self, n_samples: int, now_ns: int) -> bytes:
        """The next samples of speech, s16 little-endian at the phone's rate; empty for a frame of silence.

        The last frame of speech may be shorter than `n_samples`.
        """
        queue = self._queue
        pcm = b""
        if queue is not None and queue.n_queued:
            metrics.QUEUE_MS.observe(queue.queued_ms)
            pcm = queue.take(n_samples)
        if not pcm:
            metrics.SILENCE_FRAMES.inc()
            self._n_silent += 1
            if self._finishing is not None and self._n_silent >= N_SILENT_AT_END:
                self._end_call(self._finishing, None, None)
            return b""
        metrics.SPEECH_FRAMES.inc()
        if self._waiting_since_ns is not None:
            metrics.SPEECH_DELAY_MS.observe((now_ns - self._waiting_since_ns) / NS_PER_MS)
            self._waiting_since_ns = None
        if self.n_speech_frames and 0 < self._n_silent <= _MAX_UNDERRUN_FRAMES:
            metrics.UNDERRUNS.inc()
        self._n_silent = 0
        self.n_speech_frames += 1
        return pcm

    def change_rate(self, phone_hz: int) -> None:
        """From now on the phone takes samples at another rate."""
        if self._queue is not None:
            self._queue.change_rate(phone_hz)

    def report_bad(self, kind: str, why: str) -> None:
        """Count input of either side that cannot be used; log each kind once in a call."""
        self._bad_input.report(self.log, kind, why)

    # ----------------------------------------------------- from the server

    def _on_server(self, message: s.FromServer, now_ns: int) -> None:
        if self.is_over:
            return
        queue = self._queue
        assert queue is not None
        match message:
            case s.ServerSpeech(pcm=pcm):
                if not queue.n_queued:
                    self._waiting_since_ns = now_ns
                queue.add(pcm)
                if queue.queued_ms > self._max_queue_ms:
                    why = f"{round(queue.queued_ms)} ms of speech wait for Asterisk"
                    self._end_call("queue_overflow", why, None)
            case s.ServerMark(name=name):
                if queue.n_marks >= _MAX_MARKS:
                    self.report_bad("server_mark_flood", f"more than {_MAX_MARKS} marks wait; the rest is left out")
                    return
                queue.mark(name)
                self.report_marks()
            case s.ServerClear():
                queue.clear()
                self._waiting_since_ns = None
            case s.ServerDigits():
                if self._on_digits is not None:
                    self._on_digits(message)
            case s.ServerComplaint(code=code, message=text):
                self.log.warning("server_complains", code=code, why=text)
            case s.BadServerMessage(kind=kind, why=why):
                self.report_bad(kind, why)

    def _server_left(self, leg: s.ServerLeg) -> None:
        reason = s.end_reason(leg.close_code)
        if reason in ("finished", "server_draining"):
            self._finishing = reason  # the call ends when the queued speech was heard: `take_frame`
        else:
            self._end_call(reason, leg.close_reason, leg.close_code)
