"""Speech servers over HTTP: one request for each text, whose answer is the audio."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import httpx2

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.audio_body import AudioBody, BadAudio, EventBody, SampleBody, check_rate, said
from telephony_tts.engines.others.encryption import client_context, connection_problem
from telephony_tts.engines.others.http_requests import HttpRequest, names_in, request_of
from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.engines.others.speech_server import ServerVoice, refusal
from telephony_tts.runtime.errors import EngineError, ReplicaLost

CONNECT_S = 3.0
_MAX_ERROR_BYTES = 4_096
_MAX_LIST_BYTES = 4_000_000


class HttpSpeech:
    """`setting`: where its settings are, "engines.others.NAME", for messages."""

    def __init__(self, settings: OtherEngineSettings, setting: str) -> None:
        self._settings = settings
        self._setting = setting
        self._url = (settings.url or "").rstrip("/")
        self._client: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        if self._client is None:
            key, slots = self._settings.key, self._settings.facts.slots
            self._client = httpx2.AsyncClient(
                verify=client_context(self._settings.ca_file, self._setting),
                trust_env=False,
                headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
                # `OtherEngine` has the deadlines of reading.
                timeout=httpx2.Timeout(None, connect=CONNECT_S, write=10.0),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=slots),
            )
        try:
            async with self._client.stream("GET", self._url + "/", timeout=CONNECT_S):
                pass  # it answers; what it says there is not read
        except httpx2.HTTPError as error:
            raise self._lost(error) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def voice_names(self) -> Sequence[str]:
        if not self._settings.facts.lists_voices:
            return ()
        url = f"{self._url}/v1/audio/voices"
        try:
            async with self._running.stream("GET", url, timeout=CONNECT_S) as answer:
                content = b""
                async for data in answer.aiter_raw():
                    content += data
                    if len(content) > _MAX_LIST_BYTES:
                        raise BadAudio(f"{url} lists voices in more than {_MAX_LIST_BYTES} bytes")
        except httpx2.HTTPError as error:
            raise self._lost(error) from error
        if answer.status_code != 200:
            raise refusal(url, answer.status_code, "", answer.headers, self._setting)
        with suppress(ValueError, RecursionError):
            return names_in(json.loads(content))
        return ()

    async def speak(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[bytes, None]:
        request = request_of(self._settings, text, voice, utterance)
        try:
            async with self._running.stream("POST", self._url + request.path, **_content(request)) as response:
                if response.status_code != 200:
                    why = await _why(response)
                    raise refusal(self._url + request.path, response.status_code, why, response.headers, self._setting)
                body = await self._body(response)
                async for data in response.aiter_raw():
                    if samples := body.feed(data):
                        yield samples
                    if body.is_done:
                        return
                body.end()
        except httpx2.HTTPError as error:
            raise self._lost(error) from error

    @property
    def _running(self) -> httpx2.AsyncClient:
        if self._client is None:
            raise EngineError(f"{self._setting} does not run")
        return self._client

    async def _body(self, response: httpx2.Response) -> AudioBody:
        """What reads the body. Raises BadAudio if it is no audio."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        rate_hz = self._settings.facts.rate_hz
        if kind == "text/event-stream":
            return EventBody(rate_hz, self._setting)
        if kind in ("text/html", "application/json", "application/xhtml+xml"):
            why = await _why(response)
            raise BadAudio(f"{self._url} answers with {kind}, not with audio ({why}); check {self._setting}.url")
        if (said_hz := response.headers.get("x-sample-rate", "")).isdecimal():
            check_rate(int(said_hz), rate_hz, self._setting)
        return SampleBody(rate_hz, self._setting)

    def _lost(self, error: httpx2.HTTPError) -> ReplicaLost:
        return ReplicaLost(f"the speech server at {self._url} is lost: {connection_problem(error, self._setting)}")


def _content(request: HttpRequest) -> dict[str, object]:
    """The arguments of httpx2 for the request's body."""
    if request.json is not None:
        return {"json": request.json}
    files = None
    if request.recording is not None:
        field, content = request.recording
        files = {field: ("prompt.wav", content, "audio/wav")}
    return {"data": request.form, "files": files}


async def _why(response: httpx2.Response) -> str:
    """The server's own words about its error, or the beginning of its answer."""
    content = b""
    async for data in response.aiter_raw():
        content += data
        if len(content) >= _MAX_ERROR_BYTES:
            break
    with suppress(ValueError, RecursionError):
        if words := said(json.loads(content)):
            return words
    return " ".join(content[:_MAX_ERROR_BYTES].decode("utf-8", "replace").split())[:200]
