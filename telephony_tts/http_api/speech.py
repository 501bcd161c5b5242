"""Text to a stream of audio for one HTTP request: a call whose media leg is the response.

The session is the one of every call, without a pace. When the client reads too slowly, little more is synthesised. When
it disconnects, the call ends and its engine's work with it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import cast

from telephony_tts.engines.api import Chunk, Engine, LangSource, Utterance, Voice
from telephony_tts.http_api.call_bot import join_call
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import Busy, EngineError, TelephonyTTSError
from telephony_tts.session.settings import CallLimits
from telephony_tts.transport.call import Call, EngineCatalog, Wire
from telephony_tts.transport.call_catalog import CallCatalog
from telephony_tts.transport.server import Server
from telephony_tts.transport.stream_leg import new_call, ready
from telephony_tts.wire import messages as m

_MAX_WAITING_BYTES = 256_000
"""More audio than this waits for the client: the session sends no more until half of it is read."""
_AT_ONCE = 4
"""How many HTTP requests an engine works for at once. The others wait here, so that they do not fill its queue."""
_PATIENCE_MS = 10_000
_FIRST_AUDIO_TIMEOUT_MS = 600_000
_ENDED = object()


class SpeechStreams:
    """Speaks the HTTP requests of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._turnstile = asyncio.Lock()

    def open(self, request: SpeechRequest, rate_hz: int) -> AbstractAsyncContextManager[AsyncGenerator[bytes, None]]:
        """The audio of `request`, 16-bit PCM at `rate_hz`, little-endian. Leaving the context cancels.

        Entering it raises Busy, and for a request that joins a call other errors too. The generator raises the errors
        of the engine and of the call.
        """
        return self._open(request, rate_hz) if request.call is None else self._join(request.call, request, rate_hz)

    @asynccontextmanager
    async def _join(
        self, call: str, request: SpeechRequest, rate_hz: int
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        bot, response = join_call(self._server, call, request.key), None
        bot.enter()
        try:
            response = bot.speak(request, rate_hz)
            async with aclosing(response.audio()) as audio:
                yield audio
        finally:
            bot.leave(response)

    @asynccontextmanager
    async def _open(self, request: SpeechRequest, rate_hz: int) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        self._admit(request)
        settings = self._server.settings.speech
        limits = CallLimits(turn_chars=len(request.text) + 1, text_chars_per_s=0, idle_s=0, turn_idle_s=0)
        speech = replace(
            settings, call=f"h{secrets.token_hex(6)}", codec="pcm", rate_hz=rate_hz, ptime_ms=20,
            pace="burst", text_mode="sentence", pause_chars=len(request.text) + 1, limits=limits, separate_turns=True,
            patience_ms=_PATIENCE_MS, engine_timeout_ms=_FIRST_AUDIO_TIMEOUT_MS,
        )  # fmt: skip
        own = self._server.settings
        seen = CallCatalog(self._server.catalog, own.owners)
        seen.use(request.key)
        catalog = Throttled(cast(EngineCatalog, seen), self._room, self._turnstile)
        call = new_call(speech, cast(EngineCatalog, catalog), "http", settings=own)
        call.door = request.door
        call.admit_bot(request.key)
        leg = catalog.leg = ResponseLeg(call)
        self._server.registry.begin(call)
        try:
            call.join_media(leg, leg.encode_media, leg.send_gathered)
            call.join_bot(leg, leg.encode_bot, ready(call))
            call.session.use_lexicons(request.lexicons)
            how = {name: getattr(request, name) for name in ("voice", "lang", "speed", "seed", "instruct")}
            call.receive(m.Configure(**how))
            call.receive(m.Say(request.text, traceparent=request.traceparent))
            async with aclosing(leg.audio()) as audio:
                yield audio
        finally:
            call.sent_is_played()
            call.cut_off("client_gone", 1000, "the request has ended")

    def _admit(self, request: SpeechRequest) -> None:
        server = self._server
        if server.draining or not server.is_ready:
            why = "draining" if server.draining else "starting"
            raise Busy(f"the server is {why}", retry_after_ms=server.catalog.retry_after_ms or 5_000)
        limit = server.settings.vendors.http_streams
        if server.registry.n_requests_of_all >= limit:
            raise Busy(f"{limit} HTTP requests are being spoken, which is the limit", retry_after_ms=2_000)
        if (refusal := server.registry.key_refusal(request.key)) is not None:
            metrics.REFUSED.labels(reason="key_limit").inc()
            raise TelephonyTTSError(refusal, code="key_limit", retry_after_ms=2_000)


class ResponseLeg:
    """Both legs of the call: takes its frames and events, and gives them to the response."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._frames: list[bytes] = []
        self._waiting: asyncio.Queue[bytes | TelephonyTTSError | object] = asyncio.Queue()
        self._n_waiting_bytes = 0
        self._is_full = False
        self._first_is_under_way = False
        self._has_begun = asyncio.Event()

    async def wait_begun(self) -> None:
        """Wait while the first piece is on its way to the client. A chunk that is encoded meanwhile would make it
        later."""
        if self._first_is_under_way:
            await self._has_begun.wait()

    def send_now(self, payload: bytes, is_text: bool) -> None:
        """Nothing is encoded to messages here."""

    def end(self, code: int, reason: str) -> None:
        self._waiting.put_nowait(EngineError(f"the request was ended: {reason}"))

    def encode_media(self, message: m.ToMedia) -> Wire | None:
        if isinstance(message, m.Frame):
            self._frames.append(message.payload)
        return None

    def send_gathered(self) -> None:
        if self._frames:
            piece = b"".join(self._frames)
            self._frames.clear()
            self._n_waiting_bytes += len(piece)
            self._first_is_under_way = True
            self._waiting.put_nowait(piece)
            if self._n_waiting_bytes > _MAX_WAITING_BYTES and not self._is_full:
                self._is_full = True
                self._call.writable(False)

    def encode_bot(self, event: m.ToBot | m.Frame) -> Wire | None:
        match event:
            case m.TurnSent() | m.Done():
                self.send_gathered()
                self._waiting.put_nowait(_ENDED)
            case m.ErrorEvent("too_many_marks"):
                pass  # it concerns a mark of SSML, of which nobody is told
            case m.ErrorEvent(code, message):
                error = EngineError(message, code=code, retryable=event.retryable, retry_after_ms=event.retry_after_ms)
                self._waiting.put_nowait(error)
            case m.Cleared(reason=reason):
                self._waiting.put_nowait(EngineError(f"the request was ended: {reason}"))
        return None

    async def audio(self) -> AsyncGenerator[bytes, None]:
        """Pieces of audio as they come. Raises the error that ends them early."""
        while True:
            item = await self._waiting.get()
            if item is _ENDED:
                return
            if isinstance(item, TelephonyTTSError):
                raise item
            assert isinstance(item, bytes)
            self._n_waiting_bytes -= len(item)
            if self._is_full and self._n_waiting_bytes < _MAX_WAITING_BYTES // 2:
                self._is_full = False
                self._call.writable(True)
            yield item
            self._has_begun.set()


class Throttled:
    """The catalog of one request. All requests together begin at most `_AT_ONCE` utterances at a time (`room`), and
    their chunks go one by one through the `turnstile`."""

    leg: ResponseLeg

    def __init__(self, catalog: EngineCatalog, room: asyncio.Semaphore, turnstile: asyncio.Lock) -> None:
        self._catalog = catalog
        self.room = room
        self.turnstile = turnstile

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)

    def resolve(
        self, voice: str | None, lang: str | None, text: str, lang_source: LangSource = "bot"
    ) -> tuple[Engine, Voice]:
        return self._catalog.resolve(voice, lang, text, lang_source)

    def recall(self, utterance: Utterance) -> None:
        """Kept audio goes through the turnstile as any other."""

    def choose(self, utterance: Utterance) -> tuple[Engine, Voice]:
        engine, voice = self._catalog.choose(utterance)
        return cast(Engine, ThrottledEngine(engine, self)), voice


class ThrottledEngine:
    """An engine that begins an utterance only when there is room. The room is free again with its first audio, because
    from then on the client decides how fast it goes."""

    def __init__(self, engine: Engine, throttled: Throttled) -> None:
        self._engine = engine
        self._throttled = throttled

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._engine.synthesize(utterance)) as chunks:
            async with self._throttled.room:
                first = await anext(chunks, None)
            if first is None:
                return
            yield first
            await self._throttled.leg.wait_begun()
            async for chunk in chunks:
                # Encoding a chunk takes a millisecond or two. Without this every request might do it in the same round
                # of the event loop, and the frames of calls would wait for all of them.
                async with self._throttled.turnstile:
                    await asyncio.sleep(0)
                yield chunk
