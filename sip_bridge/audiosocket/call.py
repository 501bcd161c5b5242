"""One telephone call: Asterisk's connection on one side, the server's on the other, and the pacing between them.

    Asterisk ── Named, Audio, Digit ──► Call ── start, audio, dtmf, stop ──► server
    Asterisk ◄── a frame every 20 ms ── Call ◄── speech, mark, clear ─────── server

Everything that is heard or said passes in callbacks that do not wait; `run` only waits for the ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.audiosocket.connection import CallerSocket
from sip_bridge.audiosocket.frames import (
    AudioFrame,
    AudioSocketFrame,
    BadFrame,
    DigitFrame,
    ErrorFrame,
    HangupFrame,
    UuidFrame,
    audio_header,
)
from sip_bridge.audiosocket.pacer import FRAME_MS, Pacer
from sip_bridge.audiosocket.speech_queue import SAMPLE_BYTES, SpeechQueue, resampled
from sip_bridge.config import BridgeConfig
from sip_bridge.config import TtsServerConfig as ServerSettings
from telephony_tts import logs
from telephony_tts.audio.resampler import Resampler
from telephony_tts.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.logs import EventLogger

_log = logs.get(__name__)

_FIRST_AUDIO_S = 0.2
"""How long the server waits to hear of a call whose rate is still unknown. A caller who is muted sends no audio."""

_RATE_UNTIL_HEARD_HZ = 8_000
_RESAMPLER_LEAD_MS = 160
"""How much speech a resampler may hold back, measured for frames of 20 ms: 157 ms from 48 to 8 kHz, less elsewhere."""

_N_SILENT_AT_END = 5
"""Frames of silence between the last speech and the hang-up: Asterisk discards what it has not yet passed on."""

_MAX_UNDERRUN_FRAMES = 5
"""A longer silence between two frames of speech is a pause between turns."""

# What no Asterisk does and no server: beyond it a peer would cost the other calls their time.
_MAX_BAD_IN_A_ROW = 50
_MAX_DIGITS_PER_S = 20
_MAX_RATE_CHANGES = 100
_MAX_MARKS = 1_000

Join = Callable[[ServerSettings], Awaitable[s.ServerLeg]]


class AudioSocketCall:
    """One accepted connection. `run` returns when nothing of it is left; `end` makes it do so.

    `strangers` is the logger until this is a call. When it has a name, `may_begin` decides whether it is one.
    """

    def __init__(
        self,
        socket: CallerSocket,
        config: BridgeConfig,
        join: Join = s.join,
        clock: Callable[[], int] = monotonic_ns,
        strangers: EventLogger | None = None,
        may_begin: Callable[[AudioSocketCall], bool] = lambda call: True,
    ) -> None:
        self._socket = socket
        self._config = config
        self._join = join
        self._clock = clock
        self._may_begin = may_begin
        self._loop = asyncio.get_running_loop()
        self._named: asyncio.Future[str] = self._loop.create_future()
        self._heard: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._finishing: str | None = None
        self._leg: s.ServerLeg | None = None
        self._server_hz = 0
        self._socket_hz = _RATE_UNTIL_HEARD_HZ
        self._ears: Resampler | None = None
        self._queue: SpeechQueue | None = None
        self._pacer: Pacer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._behind_since_ns: int | None = None
        self._waiting_since_ns: int | None = None
        self._n_silent = 0
        self._n_speech = 0
        self._n_bad_in_a_row = 0
        self._n_rate_changes = 0
        self._complained: set[str] = set()
        self._digits_ns: deque[int] = deque(maxlen=_MAX_DIGITS_PER_S)
        self._early_digits: deque[str] = deque(maxlen=_MAX_DIGITS_PER_S)
        self._set_rate(self._socket_hz)
        self.log = (strangers or _log).bind(peer=socket.peer)
        socket.listen(self._on_items)

    async def run(self) -> None:
        """Live until the call is over and both sides are closed. Raises nothing: a fault here is this call's alone."""
        begun_ns = self._clock()
        metrics.CALLS_LIVE.inc()
        try:
            await self._serve()
        except Exception:
            self.log.exception("call_crashed")
            self.end("failed")
        finally:
            self.end("failed")  # cancelled; else it has a reason already
            reason = self._over.result()
            metrics.CALLS.labels(reason).inc()
            metrics.CALLS_LIVE.dec()
            (self.log.summary if self._named.done() else self.log.info)(
                "call_ended",
                reason=reason,
                ms=(self._clock() - begun_ns) // NS_PER_MS,
                speech_ms=self._n_speech * FRAME_MS,
            )

    def end(self, reason: str, why: str | None = None, code: int | None = None) -> None:
        """End the call now, for one of metrics.ENDS. The first reason counts. `code` is a close code of the server."""
        if self._over.done():
            return
        self._over.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        if why is not None:
            self.log.warning(reason, why=why, code=code)

    # ------------------------------------------------------------ the ends

    async def _serve(self) -> None:
        unnamed = self._loop.call_later(self._config.audiosocket.uuid_timeout_s, self._is_unnamed)
        self._socket.lost.add_done_callback(lambda _how: self.end("hangup" if self._named.done() else "no_uuid"))
        served: asyncio.Task[None] | None = None
        try:
            await asyncio.wait((self._named, self._over), return_when=asyncio.FIRST_COMPLETED)
            unnamed.cancel()
            if not self._over.done():
                self._pacer = Pacer(self._clock())
                self._tick()
                served = self._loop.create_task(self._be_served(self._named.result()))
                await asyncio.wait((self._over,))
        finally:
            self.end("failed")
            unnamed.cancel()
            if self._leg is not None:
                self._leg.leave(self._over.result())
            if served is not None:
                served.cancel()
            try:
                await self._socket.close()
            finally:
                self._socket.abort()
                if served is not None:
                    await asyncio.wait((served,))

    def _is_unnamed(self) -> None:
        limit_s = self._config.audiosocket.uuid_timeout_s
        self.end("no_uuid", why=f"no UUID within {limit_s} s: is this Asterisk?")

    async def _be_served(self, call_id: str) -> None:
        """Join the server as this call, and stay until it leaves. Raises nothing."""
        try:
            await self._stay_joined(await self._join(self._config.server), call_id)
        except s.NotJoined as error:
            self.end(error.reason, why=str(error))
        except Exception:
            self.log.exception("call_crashed")
            self.end("failed")

    async def _stay_joined(self, leg: s.ServerLeg, call_id: str) -> None:
        try:
            if self._config.audiosocket.rate_hz is None:
                await asyncio.wait((self._heard,), timeout=_FIRST_AUDIO_S)
            self._start(leg, call_id)
            await asyncio.wait((leg.left,))
            self._server_left(leg)
        finally:
            leg.leave("hangup")
            await leg.close()

    def _start(self, leg: s.ServerLeg, call_id: str) -> None:
        self._server_hz = self._config.audiosocket.rate_hz or s.server_rate_hz(self._socket_hz)
        self._queue = SpeechQueue(self._server_hz, self._socket_hz)
        self._leg = leg
        is_resampled = self._server_hz != self._socket_hz
        lead_ms = self._config.server.lead_ms + (_RESAMPLER_LEAD_MS if is_resampled else 0)
        about = {"via": "audiosocket", "peer": self._socket.peer}
        leg.start(s.LegStart(call_id, self._server_hz, FRAME_MS, lead_ms, about), self._on_server)
        for digit in self._early_digits:
            leg.send_digit(digit)
        self.log.info("joined", server_hz=self._server_hz, socket_hz=self._socket_hz)

    def _server_left(self, leg: s.ServerLeg) -> None:
        code, why = leg.close_code, leg.close_reason
        if code in (1000, 1001):
            # What is queued is still played, and then Asterisk is told.
            self._finishing = "finished" if code == 1000 else "server_draining"
        elif code == 1013 or 4000 <= code <= 4999:
            self.end("server_refused", code=code, why=why)
        else:
            self.end("server_lost", code=code, why=why)

    # -------------------------------------------------------- from Asterisk

    def _on_items(self, items: list[AudioSocketFrame], now_ns: int) -> None:
        audio: list[AudioFrame] = []
        for item in items:
            if self._over.done():
                return
            if type(item) is AudioFrame and (not audio or audio[0].rate_hz == item.rate_hz):
                audio.append(item)
                continue
            self._on_audio(audio, now_ns)
            audio = [item] if type(item) is AudioFrame else []
            if not audio:
                self._on_item(item, now_ns)
        self._on_audio(audio, now_ns)

    def _on_audio(self, audio: list[AudioFrame], now_ns: int) -> None:
        """Frames of one read and one rate: one message to the server, however small they are."""
        if not audio or self._over.done():
            return
        self._n_bad_in_a_row = 0
        rate_hz = audio[0].rate_hz
        if rate_hz != self._socket_hz:
            self._change_rate(rate_hz)
            if self._over.done():
                return
        if not self._heard.done():
            self._heard.set_result(None)
        if self._leg is None:
            return
        pcm = b"".join([frame.pcm for frame in audio])
        if rate_hz != self._server_hz:
            if self._ears is None:
                self._ears = Resampler(rate_hz, self._server_hz)
            pcm = resampled(self._ears, pcm)
        if not pcm:
            return
        if not self._leg.send_audio(pcm):
            metrics.CALLER_BYTES_DROPPED.inc(len(pcm))
        metrics.CALLER_DELAY_MS.observe((self._clock() - now_ns) / NS_PER_MS)

    def _on_item(self, item: AudioSocketFrame, now_ns: int) -> None:
        match item:
            case UuidFrame(call=call):
                self.log = self.log.bind(call=str(call))
                if self._may_begin(self):
                    self.log = self.log.limited(logs.LineLimit.of_call(self._clock))
                    self.log.info("call_started")
                    self._named.set_result(str(call))
                else:
                    self.end("refused")
            case DigitFrame(digit=digit):
                self._on_digit(digit, now_ns)
            case HangupFrame():
                self.end("hangup")
            case ErrorFrame(code=code):
                self._bad_frame("asterisk_error", f"Asterisk tells of an error of its own, code {code}")
            case BadFrame(kind=kind, why=why):
                self._bad_frame(kind, why)

    def _on_digit(self, digit: str, now_ns: int) -> None:
        if len(self._digits_ns) == _MAX_DIGITS_PER_S and now_ns - self._digits_ns[0] < NS_PER_S:
            self._bad_frame("digit_flood", f"more than {_MAX_DIGITS_PER_S} digits in a second; the rest is left out")
            return
        self._n_bad_in_a_row = 0
        self._digits_ns.append(now_ns)
        if self._leg is not None:
            self._leg.send_digit(digit)
        else:
            self._early_digits.append(digit)

    def _bad_frame(self, kind: str, why: str) -> None:
        """Leave it out. What is not even a UUID at the beginning is no call, nor is what goes on like that."""
        self._bad(kind, why)
        self._n_bad_in_a_row += 1
        if not self._named.done() or self._n_bad_in_a_row >= _MAX_BAD_IN_A_ROW:
            self.end("bad_peer", why=why)

    def _bad(self, kind: str, why: str) -> None:
        """Count what cannot be used; say it once per call."""
        metrics.BAD.labels(kind).inc()
        if kind not in self._complained:
            self._complained.add(kind)
            self.log.warning("bad_input", kind=kind, why=why)

    def _change_rate(self, socket_hz: int) -> None:
        """Asterisk speaks another rate, so it is also spoken to at that one."""
        self._n_rate_changes += 1
        if self._n_rate_changes > _MAX_RATE_CHANGES:
            self.end("bad_peer", why=f"the rate of its audio has changed {_MAX_RATE_CHANGES} times")
            return
        if self._heard.done() and self._n_rate_changes <= 2:
            self.log.info("rate_changed", from_hz=self._socket_hz, to_hz=socket_hz)
        self._ears = None
        self._set_rate(socket_hz)
        if self._queue is not None:
            self._queue.change_rate(socket_hz)

    def _set_rate(self, socket_hz: int) -> None:
        self._socket_hz = socket_hz
        self._n_frame_samples = socket_hz * FRAME_MS // 1000
        n_bytes = self._n_frame_samples * SAMPLE_BYTES
        self._header = audio_header(socket_hz, n_bytes)
        self._silence = bytes(n_bytes)

    # ------------------------------------------------------ from the server

    def _on_server(self, message: s.FromServer, now_ns: int) -> None:
        if self._over.done():
            return
        queue, leg = self._queue, self._leg
        assert queue is not None and leg is not None
        match message:
            case s.ServerSpeech(pcm=pcm):
                if not queue.n_queued:
                    self._waiting_since_ns = now_ns
                queue.add(pcm)
                if queue.queued_ms > self._config.audiosocket.max_queue_ms:
                    self.end("queue_overflow", why=f"{round(queue.queued_ms)} ms of speech wait for Asterisk")
            case s.ServerMark(name=name):
                if queue.n_marks >= _MAX_MARKS:
                    self._bad("server_mark_flood", f"more than {_MAX_MARKS} marks wait; the rest is left out")
                    return
                queue.mark(name)
                self._report_marks()
            case s.ServerClear():
                queue.clear()
                self._waiting_since_ns = None
            case s.ServerComplaint(code=code, message=text):
                self.log.warning("server_complains", code=code, why=text)
            case s.BadServerMessage(kind=kind, why=why):
                self._bad(kind, why)

    def _report_marks(self) -> None:
        if self._queue is not None and self._leg is not None and self._queue.n_marks:
            for name in self._queue.reached():
                self._leg.report_mark(name)

    # ---------------------------------------------------------- to Asterisk

    def _tick(self) -> None:
        """Write what is due, and come back when the next frame is."""
        self._timer = None
        try:
            self._write_due(self._clock())
        except Exception:
            self.log.exception("call_crashed")
            self.end("failed")
        if not self._over.done():
            assert self._pacer is not None
            # The loop's timers may have a grain of 1 ms; half of one more avoids waking just before the moment.
            wait_ns = self._pacer.next_ns - self._clock() + NS_PER_MS // 2
            self._timer = self._loop.call_later(max(0, wait_ns) / NS_PER_S, self._tick)

    def _write_due(self, now_ns: int) -> None:
        assert self._pacer is not None
        n_due, late_ns = self._pacer.due(now_ns)
        if n_due and self._socket.unsent_bytes:
            self._is_behind(now_ns)
        elif n_due:
            self._behind_since_ns = None
            metrics.FRAME_LATENESS_MS.observe(late_ns / NS_PER_MS)
            for _ in range(n_due):
                if not self._write_frame(now_ns):
                    break
            self._report_marks()

    def _write_frame(self, now_ns: int) -> bool:
        """The next frame of speech, or silence; whether it was speech. (Silence that was missed is not made up for.)"""
        queue = self._queue
        pcm = b""
        if queue is not None and queue.n_queued:
            metrics.QUEUE_MS.observe(queue.queued_ms)
            pcm = queue.take(self._n_frame_samples)
        if not pcm:
            self._socket.write(self._header + self._silence)
            metrics.SILENCE_FRAMES.inc()
            self._n_silent += 1
            if self._finishing is not None and self._n_silent >= _N_SILENT_AT_END:
                self.end(self._finishing)
            return False
        self._socket.write(self._header + pcm.ljust(len(self._silence), b"\0"))
        metrics.SPEECH_FRAMES.inc()
        if self._waiting_since_ns is not None:
            metrics.SPEECH_DELAY_MS.observe((now_ns - self._waiting_since_ns) / NS_PER_MS)
            self._waiting_since_ns = None
        if self._n_speech and 0 < self._n_silent <= _MAX_UNDERRUN_FRAMES:
            metrics.UNDERRUNS.inc()
        self._n_silent = 0
        self._n_speech += 1
        return True

    def _is_behind(self, now_ns: int) -> None:
        """Asterisk has not read what it was sent. Nothing more is written, so that no frame is ever cut in two."""
        if self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        elif now_ns - self._behind_since_ns > self._config.audiosocket.slow_reader_s * NS_PER_S:
            self.end("slow_reader", why=f"Asterisk has not read for {self._config.audiosocket.slow_reader_s} s")
