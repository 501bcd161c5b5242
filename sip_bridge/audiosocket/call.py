"""One AudioSocket call: Asterisk's connection on one side, the server's on the other, and the pacing between them.

    Asterisk ── UUID, audio, digits ──► AudioSocketCall ──► ServerSide ── audio, digits ──────────► server
    Asterisk ◄── a frame every 20 ms ── AudioSocketCall ◄── ServerSide ◄── speech, mark, clear ── server

Audio and messages pass in callbacks that do not wait; `run` only waits for the end of either side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
from sip_bridge.config import BridgeConfig
from sip_bridge.peer_input import TOO_MANY_DIGITS
from sip_bridge.speech.frame_timer import FrameTimer
from sip_bridge.speech.pacer import FRAME_MS, Pacer
from sip_bridge.speech.server_side import Join, ServerSide
from sip_bridge.speech.speech_queue import SAMPLE_BYTES, SpeechQueue, resampled
from telephony_tts.audio.resampler import Resampler
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.runtime.logs import EventLogger

_log = logs.get(__name__)

_FIRST_AUDIO_S = 0.2
"""How long the start of a call waits for the first audio, which shows the rate. A muted caller sends no audio."""

_RATE_UNTIL_HEARD_HZ = 8_000
_RESAMPLER_LEAD_MS = 160
"""How much speech a resampler may hold back. Measured with frames of 20 ms: 157 ms from 48 to 8 kHz, less otherwise."""

# No Asterisk does this. Beyond these limits a peer would cost the other calls their time.
_MAX_BAD_IN_A_ROW = 50
_MAX_RATE_CHANGES = 100


class AudioSocketCall:
    """One accepted connection. `run` returns when both sides are closed; `end` ends the call.

    `log` is the logger until the UUID has come. Then `may_begin` decides whether there is room for the call.
    """

    def __init__(
        self,
        socket: CallerSocket,
        config: BridgeConfig,
        join: Join = s.join,
        clock: Callable[[], int] = monotonic_ns,
        log: EventLogger | None = None,
        may_begin: Callable[[AudioSocketCall], bool] = lambda call: True,
    ) -> None:
        self._socket = socket
        self._config = config
        self._clock = clock
        self._may_begin = may_begin
        self._loop = asyncio.get_running_loop()
        self._named: asyncio.Future[str] = self._loop.create_future()
        self._heard: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._server_hz = 0
        self._socket_hz = _RATE_UNTIL_HEARD_HZ
        self._caller_resampler: Resampler | None = None
        self._behind_since_ns: int | None = None
        self._n_bad_in_a_row = 0
        self._n_rate_changes = 0
        self._set_rate(self._socket_hz)
        log = (log or _log).bind(peer=socket.peer)
        self._server = ServerSide(self.end, log, config.audiosocket.max_queue_ms, join, clock)
        self._frames = FrameTimer(self._write_due, self._crashed, clock)
        socket.listen(self._on_items)

    @property
    def log(self) -> EventLogger:
        return self._server.log

    async def run(self) -> None:
        """Serve until the call is over and both sides are closed. Raises nothing: a fault ends this call only."""
        begun_ns = self._clock()
        metrics.CALLS_LIVE.inc()
        try:
            await self._serve()
        except Exception:
            self._crashed()
        finally:
            self.end("failed")  # for a cancelled call; any other has a reason already
            reason = self._over.result()
            metrics.CALLS.labels(reason).inc()
            metrics.CALLS_LIVE.dec()
            (self.log.summary if self._named.done() else self.log.info)(
                "call_ended",
                reason=reason,
                ms=(self._clock() - begun_ns) // NS_PER_MS,
                speech_ms=self._server.n_speech_frames * FRAME_MS,
            )

    def end(self, reason: str, why: str | None = None, code: int | None = None) -> None:
        """End the call now. `reason` is one of metrics.ENDS; the first counts. `code` is the server's close code."""
        if self._over.done():
            return
        self._over.set_result(reason)
        self._server.is_over = True
        self._frames.stop()
        if why is not None:
            self.log.warning(reason, why=why, code=code)

    def _crashed(self) -> None:
        self.log.exception("call_crashed")
        self.end("failed")

    # ------------------------------------------------------------ the end

    async def _serve(self) -> None:
        unnamed = self._loop.call_later(self._config.audiosocket.uuid_timeout_s, self._is_unnamed)
        self._socket.lost.add_done_callback(lambda _how: self.end("hangup" if self._named.done() else "no_uuid"))
        served: asyncio.Task[None] | None = None
        try:
            await asyncio.wait((self._named, self._over), return_when=asyncio.FIRST_COMPLETED)
            unnamed.cancel()
            if not self._over.done():
                self._frames.start()
                served = self._loop.create_task(self._server.serve(self._config.server, self._prepare))
                await asyncio.wait((self._over,))
        finally:
            self.end("failed")
            unnamed.cancel()
            self._server.leave(self._over.result())
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

    async def _prepare(self) -> tuple[s.LegStart, SpeechQueue]:
        """The start message and the queue of a call, once the rate of its audio is known."""
        if self._config.audiosocket.rate_hz is None:
            await asyncio.wait((self._heard,), timeout=_FIRST_AUDIO_S)
        self._server_hz = self._config.audiosocket.rate_hz or s.server_rate_hz(self._socket_hz)
        is_resampled = self._server_hz != self._socket_hz
        lead_ms = self._config.server.lead_ms + (_RESAMPLER_LEAD_MS if is_resampled else 0)
        about = {"via": "audiosocket", "peer": self._socket.peer}
        self.log.info("joined", server_hz=self._server_hz, socket_hz=self._socket_hz)
        start = s.LegStart(self._named.result(), self._server_hz, FRAME_MS, lead_ms, about)
        return start, SpeechQueue(self._server_hz, self._socket_hz)

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
        """Send audio frames of one read and one rate to the server as one message."""
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
        if not self._server.has_joined:
            return
        pcm = b"".join([frame.pcm for frame in audio])
        if rate_hz != self._server_hz:
            if self._caller_resampler is None:
                self._caller_resampler = Resampler(rate_hz, self._server_hz)
            pcm = resampled(self._caller_resampler, pcm)
        if pcm:
            self._server.send_audio(pcm, now_ns)

    def _on_item(self, item: AudioSocketFrame, now_ns: int) -> None:
        match item:
            case UuidFrame(call=call):
                self._server.log = self.log.bind(call=str(call))
                if self._may_begin(self):
                    self._server.log = self.log.limited(logs.LineLimit.of_call(self._clock))
                    self.log.info("call_started")
                    self._named.set_result(str(call))
                else:
                    self.end("refused")
            case DigitFrame(digit=digit):
                self._on_digit(digit, now_ns)
            case HangupFrame():
                self.end("hangup")
            case ErrorFrame(code=code):
                self._bad_frame("asterisk_error", f"Asterisk reports an error of its own, code {code}")
            case BadFrame(kind=kind, why=why):
                self._bad_frame(kind, why)

    def _on_digit(self, digit: str, now_ns: int) -> None:
        if self._server.send_digit(digit, now_ns):
            self._n_bad_in_a_row = 0
        else:
            self._bad_frame("digit_flood", TOO_MANY_DIGITS)

    def _bad_frame(self, kind: str, why: str) -> None:
        """Ignore a frame. The call ends if it was the first frame, or after many bad frames in a row."""
        self._server.report_bad(kind, why)
        self._n_bad_in_a_row += kind != "empty_audio"  # a jitter buffer in Asterisk makes one for each missing packet
        if not self._named.done() or self._n_bad_in_a_row >= _MAX_BAD_IN_A_ROW:
            self.end("bad_peer", why=why)

    def _change_rate(self, socket_hz: int) -> None:
        """Asterisk now sends audio at another rate: send speech at that rate too."""
        self._n_rate_changes += 1
        if self._n_rate_changes > _MAX_RATE_CHANGES:
            self.end("bad_peer", why=f"the rate of its audio has changed {_MAX_RATE_CHANGES} times")
            return
        if self._heard.done() and self._n_rate_changes <= 2:
            self.log.info("rate_changed", from_hz=self._socket_hz, to_hz=socket_hz)
        self._caller_resampler = None
        self._set_rate(socket_hz)
        self._server.change_rate(socket_hz)

    def _set_rate(self, socket_hz: int) -> None:
        self._socket_hz = socket_hz
        self._n_frame_samples = socket_hz * FRAME_MS // 1000
        n_bytes = self._n_frame_samples * SAMPLE_BYTES
        self._header = audio_header(socket_hz, n_bytes)

    # ---------------------------------------------------------- to Asterisk

    def _write_due(self, pacer: Pacer, now_ns: int) -> None:
        n_due, late_ns = pacer.due(now_ns)
        if n_due and self._socket.unsent_bytes:
            self._is_behind(now_ns)
        elif n_due:
            self._behind_since_ns = None
            metrics.FRAME_LATENESS_MS.observe(late_ns / NS_PER_MS)
            for _ in range(n_due):
                if not self._write_frame(now_ns):
                    break
            self._server.report_marks()

    def _write_frame(self, now_ns: int) -> bool:
        """Write the next frame of speech, or one of silence. False for silence: missed silence is not made up for."""
        pcm = self._server.take_frame(self._n_frame_samples, now_ns)
        self._socket.write(self._header + pcm.ljust(self._n_frame_samples * SAMPLE_BYTES, b"\0"))
        return bool(pcm)

    def _is_behind(self, now_ns: int) -> None:
        """Asterisk does not read. Nothing more is written, so that no frame is ever cut in two."""
        if self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        elif now_ns - self._behind_since_ns > self._config.audiosocket.slow_reader_s * NS_PER_S:
            self.end("slow_reader", why=f"Asterisk has not read for {self._config.audiosocket.slow_reader_s} s")
