"""HTTP requests as the bot of a call: each is a turn that goes to the call's media leg (docs/protocol/http.md).

The response is silence as long as the speech, in the format that was asked for, while the speech goes to the caller. It
ends when all of it is on its way. So a client that sends one sentence after the other can send the next one in time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace

from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.ops.keys.key import NO_KEY, Key
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import Busy, EngineError, TelephonyTTSError
from telephony_tts.transport.call import Call
from telephony_tts.transport.server import Server
from telephony_tts.transport.stand_in import FRAMES_AT_ONCE, StandIn
from telephony_tts.transport.stream_leg import new_call, ready
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import CALL_NAME

_PIECE_SAMPLES = 4_800
"""The most silence that is made at once: a client that did not read for long may have minutes of it waiting."""


class TurnResponse:
    """The response to one request: silence at `rate_hz` for its turn."""

    def __init__(self, rate_hz: int) -> None:
        self.turn = f"h{secrets.token_hex(6)}"
        self.is_over = False
        """Nothing more comes."""
        self._rate_hz = rate_hz
        self._heard_ms = 0
        self._n_taken = 0
        self._error: TelephonyTTSError | None = None
        self._changed = asyncio.Event()

    @property
    def is_silent(self) -> bool:
        """Whether no frame of the turn has gone to the caller."""
        return not self._heard_ms

    def add_silence(self, ms: int) -> None:
        if not self.is_over:
            self._heard_ms += ms
            self._changed.set()

    def end(self, error: TelephonyTTSError | None = None) -> None:
        """End the response, with `error` before its end. The first end counts."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._changed.set()

    async def audio(self) -> AsyncGenerator[bytes, None]:
        """Pieces of silence as they come, 16-bit PCM. Raises the error that ends them early."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while n_waiting := self._heard_ms * self._rate_hz // 1000 - self._n_taken:
                n_samples = min(n_waiting, _PIECE_SAMPLES)
                self._n_taken += n_samples
                yield bytes(2 * n_samples)
            if self._error is not None:
                raise self._error
            if self.is_over:
                return


class HttpBot:
    """The bot leg of a call while requests speak in it. It rests when the caller has heard all of them."""

    def __init__(self, call: Call, server: Server) -> None:
        self.call = call
        self._limits_after = server.settings.speech.limits
        self._limits = replace(self._limits_after, turn_chars=server.settings.vendors.request_chars)
        self._stand_in = StandIn(self._send_silence)
        self._responses: dict[str, TurnResponse] = {}
        """By their turns, until the caller has heard the turn."""
        self._beginning: TurnResponse | None = None
        """The response whose turn begins now: an error that names no turn is its own."""
        self._n_open = 0
        """How many requests have not ended."""

    def join(self, claim_s: float) -> None:
        """Become the bot of the call. A call without a media leg waits for it for `claim_s`."""
        self.call.on_frame = self._stand_in.frame
        self.call.join_bot(self, self._take, ready(self.call))
        if self.call.media is None:
            self.call.expect("media", claim_s)

    def enter(self) -> None:
        """A request begins."""
        self._n_open += 1

    def speak(self, wanted: SpeechRequest, rate_hz: int) -> TurnResponse:
        """Begin a turn, as soon as `join_call` has let the request in. Its response may be over already, with the error
        that it raises."""
        response = TurnResponse(rate_hz)
        call = self.call
        call.session.new_bot(self._limits, tells_sent=True)  # nothing of an earlier request's settings stays
        call.session.use_lexicons(wanted.lexicons)
        self._responses[response.turn] = self._beginning = response
        call.door = wanted.door
        call.receive(
            m.Configure(
                voice=wanted.voice, lang=wanted.lang, speed=wanted.speed, seed=wanted.seed, instruct=wanted.instruct
            )
        )
        if not response.is_over:
            call.receive(m.Say(wanted.text, response.turn, traceparent=wanted.traceparent))
        self._beginning = None
        if call.over:
            response.end(_over("the call is over"))
            self._responses.pop(response.turn, None)
        return response

    def leave(self, response: TurnResponse | None) -> None:
        """A request has ended. If its client went away before the end, so does its turn."""
        if response is not None and not response.is_over:
            self.call.receive(m.Clear(response.turn))
            self._responses.pop(response.turn, None)
        self._n_open -= 1
        self._rest_soon()

    # ------------------------------------------------------- as the call sees it

    def send_now(self, payload: bytes, is_text: bool) -> None:
        """Nothing is encoded to messages here."""

    def end(self, code: int, reason: str) -> None:
        for response in self._responses.values():
            response.end(_over(f"the call has ended: {reason}"))
        self._responses.clear()

    def _take(self, event: m.ToBot | m.Frame) -> None:
        match event:
            case m.TurnSent(turn):
                self._stand_in.flush()
                if (response := self._responses.get(turn)) is not None:
                    response.end()
            case m.Done(turn):
                self._stand_in.flush()
                self._forget(turn)
            case m.Cleared(turn):
                # By the caller's voice, by a hang-up or by the client, which is gone then.
                self._stand_in.drop(turn)
                if (response := self._responses.get(turn)) is not None and response.is_silent:
                    response.add_silence(FRAMES_AT_ONCE * self.call.session.settings.ptime_ms)
                self._forget(turn)
            case m.ErrorEvent("too_many_marks"):
                pass  # it concerns a mark of SSML, of which nobody is told
            case m.ErrorEvent():
                self._fail(event)

    def _fail(self, event: m.ErrorEvent) -> None:
        error = EngineError(
            event.message, code=event.code, retryable=event.retryable, retry_after_ms=event.retry_after_ms
        )
        if event.fatal:
            for turn in [*self._responses]:
                self._forget(turn, error)
        elif event.turn is not None:
            self._stand_in.drop(event.turn)
            self._forget(event.turn, error)
        elif self._beginning is not None:
            self._forget(self._beginning.turn, error)

    def _forget(self, turn: str, error: TelephonyTTSError | None = None) -> None:
        if (response := self._responses.pop(turn, None)) is not None:
            response.end(error)
            self._rest_soon()

    def _send_silence(self, turn: str, n_frames: int) -> None:
        if (response := self._responses.get(turn)) is not None:
            response.add_silence(n_frames * self.call.session.settings.ptime_ms)

    def _rest_soon(self) -> None:
        if not self._responses and not self._n_open:
            # Not now: the call may be in the middle of its effects.
            asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        if not self._responses and not self._n_open and self.call.bot is self:
            self.call.session.new_bot(self._limits_after)
            self.call.bot_rests(self)


def join_call(server: Server, name: str, key: Key = NO_KEY) -> HttpBot:
    """The bot leg for a request that joins the call `name`, which other requests may be using too.

    As for other bots, a call that is not there begins, and waits for its media leg. `key` is the request's. Raises
    TelephonyTTSError.
    """
    settings, registry = server.settings, server.registry
    if not CALL_NAME.fullmatch(name):
        raise TelephonyTTSError("call: expected 1 to 128 of the characters A-Z a-z 0-9 _ . : -", code="bad_request")
    if registry.find(name) is None and (refusal := server.no_room()) is not None:
        reason, why, retry_ms = refusal
        metrics.REFUSED.labels(reason=reason).inc()
        raise Busy(why, retry_after_ms=retry_ms)

    def new() -> Call:
        speech = replace(settings.speech, call=name)
        return new_call(speech, server.catalog, "joined", settings.find_sound, settings=settings)

    try:
        call = registry.admit_bot(name, key, new, beside=HttpBot)
    except TelephonyTTSError as error:
        metrics.REFUSED.labels(reason=error.code).inc()
        raise
    if isinstance(call.bot, HttpBot):
        return call.bot
    bot = HttpBot(call, server)
    bot.join(settings.limits.call_claim_s)
    return bot


def _over(message: str) -> TelephonyTTSError:
    return TelephonyTTSError(message, code="call_over")
