"""From a text to the streamed response: the audio's format, the first audio before the status, and cancelling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from telephony_tts.audio.containers import StreamEncoder, make_encoder, rates_of
from telephony_tts.engines.api import Voice
from telephony_tts.http_api.request_key import REQUEST_KEY
from telephony_tts.http_api.speech import SpeechStreams
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.http_api.voices import Voices
from telephony_tts.ops.keys.key import Key
from telephony_tts.runtime import logs
from telephony_tts.runtime.errors import EngineUnavailable, TelephonyTTSError, UnknownVoice
from telephony_tts.transport.call import EngineCatalog
from telephony_tts.transport.call_catalog import CallCatalog
from telephony_tts.transport.door import Vendor
from telephony_tts.transport.server import Server
from telephony_tts.transport.vendor_leg import voice_for

SLOW_READER_S = 30.0
"""A client that takes no audio for so long is cut off: its utterance would hold a place in the engine. Players of web
pages may stop reading for some seconds."""
_PIECE_SAMPLES = 2_880
"""How many samples are encoded between two looks at other calls: 120 ms at 24 kHz take a few milliseconds as mp3."""

Audio = AsyncGenerator[bytes, None]
MIN_SPEED, MAX_SPEED = 0.5, 2.0
"""What the engines can do."""


class NotAllowed(TelephonyTTSError):
    """The request has no token, or a wrong one."""

    code = "unauthorized"


class BadRequest(TelephonyTTSError):
    """The request cannot be read. The message says what was expected."""

    code = "bad_request"


class ClientGone(TelephonyTTSError):
    """The client closed the connection before there was anything to send."""

    code = "client_gone"


STATUS = {
    "unauthorized": 401,
    "not_yours": 403,
    "origin": 403,
    "not_supervisor": 403,
    "client_gone": 499,
    "bad_request": 400,
    "not_found": 404,
    "no_media": 404,
    "call_over": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "call_taken": 409,
    "lexicon_changed": 409,
    "text_too_long": 413,
    "body_too_large": 413,
    "encoded_body": 415,
    "unknown_voice": 404,
    "model_not_found": 404,
    "unsupported_text": 422,
    "bad_audio": 400,
    "bad_config": 400,
    "voice_exists": 409,
    "voice_fixed": 409,
    "queue_full": 429,
    "rate_limited": 429,
    "key_limit": 429,
    "format_unavailable": 501,
    "engine_unavailable": 501,
    "busy": 503,
    "closing": 503,
}
"""The HTTP status of each code of our errors. All others are 500."""


def refusal(error: TelephonyTTSError) -> Response:
    """Our own form of an error. The routes of vendors have theirs."""
    return refused(error, {"code": error.code, "message": error.message})


def refused(error: TelephonyTTSError, told: Mapping[str, object]) -> Response:
    """The response to an error, of which the client is told this. It says when a retry may succeed."""
    # ASCII: a message may quote half a surrogate pair, which UTF-8 cannot carry.
    body = json.dumps({"error": told}, ensure_ascii=True)
    response = Response(body, STATUS.get(error.code, 500), media_type="application/json")
    if error.retry_after_ms is not None:
        response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    if error.code == "unauthorized":
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def carried_rate(rate_hz: int, format: str, name: str) -> int:
    """A rate that the client asked for as `name`. Raises BadRequest if the format does not have it."""
    if rate_hz not in rates_of(format):
        raise BadRequest(f"{name}: {rate_hz}; expected one of {', '.join(map(str, rates_of(format)))}")
    return rate_hz


def within_speeds(speed: float | None) -> float | None:
    """The nearest speed that the engines can do."""
    return None if speed is None else min(MAX_SPEED, max(MIN_SPEED, speed))


class HttpApi:
    """What all routes need."""

    def __init__(self, server: Server, voices: Voices | None = None) -> None:
        self.server = server
        self._voices = voices
        self.settings = server.settings.vendors
        self._streams = SpeechStreams(server)

    @property
    def key(self) -> Key:
        """The key of the request."""
        return REQUEST_KEY.get()

    @property
    def catalog(self) -> EngineCatalog:
        """The engines with the voices that the request may use."""
        seen = CallCatalog(self.server.catalog, self.server.settings.owners)
        seen.use(self.key)
        return seen

    def text(self, text: str) -> str:
        """The text, if it is neither empty nor too long. Raises TelephonyTTSError."""
        if not text.strip():
            raise BadRequest("the text is empty")
        if len(text) > self.settings.request_chars:
            raise TelephonyTTSError(
                f"{len(text)} characters; the limit is {self.settings.request_chars} (vendors.request_chars)",
                code="text_too_long",
            )
        return text

    def voice(self, name: str | None, aliases: Container[str] = ()) -> str | None:
        """Our voice for a client's name of it. None is the default voice, which also has those of the `aliases` that
        name no other voice. Raises UnknownVoice."""
        if name is None or name in ("", "default"):
            return None
        ours = self.settings.voice_names.get(name, name)
        catalog = self.catalog
        engines = catalog.engines
        # First, because an unknown name is compared with all others for the message, which takes a millisecond.
        if ours in aliases and all(voice.name != ours for engine in engines for voice in engine.voices):
            return None
        try:
            catalog.resolve(ours, None, "")
        except UnknownVoice:
            if name in aliases:
                return None
            raise
        return ours

    def vendor_voice(self, name: str | None, vendor: Vendor) -> str | None:
        """Our voice for a vendor's name of one, as at its WebSocket. Raises UnknownVoice."""
        return voice_for(name, vendor, self.server.settings, self.catalog)

    async def prompt(self, recording: bytes, text: str) -> str:
        """The voice of a recording whose words are `text`. Raises TelephonyTTSError."""
        return await self.voices.prompt(recording, text)

    @property
    def voices(self) -> Voices:
        """Raises EngineUnavailable if the server has no CosyVoice2, whose voices are the only ones that can be made."""
        if self._voices is None:
            raise EngineUnavailable("voices are made by CosyVoice2: get its model and set engines.cosyvoice2.model")
        return self._voices

    @property
    def can_add_voices(self) -> bool:
        """Whether `voices` can be had."""
        return self._voices is not None

    @property
    def can_denoise(self) -> bool:
        """Whether the noise of recordings can be reduced."""
        return self._voices is not None and self._voices.can_denoise

    def is_removable(self, voice: Voice) -> bool:
        """Whether the client can remove it."""
        return self._voices is not None and self._voices.is_removable(voice) and self._belongs(voice)

    def list_voices(self) -> list[Voice]:
        """The voices that the request may use, the default engine's first."""
        return [voice for engine in self.catalog.engines for voice in engine.voices]

    def check_owner(self, name: str) -> None:
        """Raises TelephonyTTSError unless the client may replace or remove a voice of this name."""
        if self.is_stored(name) and not self._belongs(Voice(name, "cosyvoice2", (), 0)):
            raise TelephonyTTSError(f"voice {name} does not belong to your key", code="not_yours")

    def is_stored(self, name: str) -> bool:
        """Whether there is a voice of this name that could be replaced."""
        owners = self.server.settings.owners
        return owners is not None and owners.has(name)

    def _belongs(self, voice: Voice) -> bool:
        """Whether the client may change a voice: that of its key, and one without an owner if the key has no name."""
        owners = self.server.settings.owners
        owner = None if owners is None else owners.owner(voice)
        return owner == (self.key.name or None)

    def record_of(self, voice: Voice) -> Mapping[str, str]:
        """Whose voice it is, and the consent to it, as far as they are known."""
        owners = self.server.settings.owners
        return {} if owners is None else owners.record(voice)

    def speak(
        self,
        wanted: SpeechRequest,
        format: str,
        rate_hz: int,
        content_type: str | None = None,
        wrap: Callable[[Audio], Audio] | None = None,
    ) -> Response:
        """The response that streams the speech in a format of `audio.containers`.

        `wrap` turns the bytes into those of the response, for example into events. Raises TelephonyTTSError.
        """
        if any(not _is_unicode(said) for said in (wanted.text, wanted.lang, wanted.instruct)):
            raise BadRequest("the text has half of a surrogate pair")
        encoder = make_encoder(format, rate_hz)

        key = self.key

        def speech(state: Mapping[str, Any]) -> AbstractAsyncContextManager[Audio]:
            of_request = {name: state[name] for name in ("call", "lexicons", "door", "traceparent")}
            return self._streams.open(replace(wanted, key=key, **of_request), encoder.rate_hz)

        content_type = content_type or encoder.content_type
        return SpeechResponse(speech, encoder, wrap or (lambda audio: audio), content_type, self.server.outside_log)


def _is_unicode(text: str | None) -> bool:
    """Whether UTF-8 can carry the text. JSON can escape what it cannot."""
    return text is None or not any("\ud800" <= char <= "\udfff" for char in text)


async def _encoded(audio: Audio, encoder: StreamEncoder) -> Audio:
    async for piece in audio:
        pcm = np.frombuffer(piece, "<i2").astype(np.int16, copy=False)
        for at in range(0, pcm.size, _PIECE_SAMPLES):
            if data := encoder.feed(pcm[at : at + _PIECE_SAMPLES]):
                yield data
            await asyncio.sleep(0)
    if data := encoder.finish():
        yield data


class SpeechResponse(Response):
    """Speaks while it is sent, and streams the audio. The status goes out with the first audio, so an error before that
    is raised (TelephonyTTSError) and has a response of its own. A client that goes away ends the speech at once.

    `speech` begins to speak. It gets what the gate knows of the request: the call that it joins, the lexicons of its
    token, its door and its span.
    """

    def __init__(
        self,
        speech: Callable[[Mapping[str, Any]], AbstractAsyncContextManager[Audio]],
        encoder: StreamEncoder,
        wrap: Callable[[Audio], Audio],
        content_type: str,
        log: logs.EventLogger,
    ) -> None:
        self.status_code, self.media_type, self.background = 200, content_type, None
        self.init_headers()
        self._speech = speech
        self._encoder = encoder
        self._wrap = wrap
        self._log = log
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["state"]["client_has_left"]():
                # It may have sent its request and closed while the event loop was late. Nothing of it is spoken.
                raise _client_gone()
            async with asyncio.timeout(None) as until_gone:
                watching = asyncio.ensure_future(_watch(receive, until_gone))
                try:
                    await self._stream(scope, send)
                finally:
                    watching.cancel()
        except TimeoutError:
            if not until_gone.expired():
                self._log.warning("slow_reader", path=scope["path"], for_s=SLOW_READER_S)
                scope["state"]["cut_off"](at_once=True)
            elif not self._has_begun:
                raise _client_gone() from None
        except TelephonyTTSError as error:
            if not self._has_begun:
                raise
            # The status is sent. A cut body is the only way left to tell the client.
            self._log.warning("speech_cut_off", path=scope["path"], why=str(error))
            scope["state"]["cut_off"](at_once=False)
        finally:
            self._encoder.close()

    async def _stream(self, scope: Scope, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SLOW_READER_S):
                await send(message)

        async with (
            self._speech(scope["state"]) as audio,
            aclosing(_encoded(audio, self._encoder)) as encoded,
            aclosing(self._wrap(encoded)) as body,
        ):
            piece: bytes | None = await anext(body, None)
            self._has_begun = True
            await send_in_time({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while piece is not None:
                await send_in_time({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await anext(body, None)
            await send_in_time({"type": "http.response.body", "body": b"", "more_body": False})


def _client_gone() -> ClientGone:
    return ClientGone("the client has closed the connection")


async def _watch(receive: Receive, until_gone: asyncio.Timeout) -> None:
    """Let the time run out when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    until_gone.reschedule(0)
