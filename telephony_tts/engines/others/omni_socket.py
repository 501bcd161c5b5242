"""The WebSocket stream of vLLM-Omni and SGLang-Omni, `/v1/audio/speech/stream`: one connection for each text."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.audio_body import BadAudio, check_rate, said
from telephony_tts.engines.others.encryption import client_context, connection_problem
from telephony_tts.engines.others.http_requests import openai_fields
from telephony_tts.engines.others.http_speech import CONNECT_S, HttpSpeech
from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.engines.others.speech_server import ServerVoice, refusal
from telephony_tts.runtime.errors import EngineError, ReplicaLost

_MAX_MESSAGE_BYTES = 8_000_000


class OmniSocket(HttpSpeech):
    """Voices are listed over HTTP, and speech comes over WebSockets."""

    def __init__(self, settings: OtherEngineSettings, setting: str) -> None:
        super().__init__(settings, setting)
        scheme = "wss" if settings.is_encrypted else "ws"
        self._stream_url = f"{scheme}{self._url[self._url.index('://') :]}/v1/audio/speech/stream"

    async def speak(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[bytes, None]:
        fields = openai_fields(self._settings, None, voice, utterance)
        socket = await self._connect()
        try:
            # `none`: the text is one sentence, so that the server need not look for its ends.
            config = {"type": "session.config", "stream_audio": True, "split_granularity": "none", **fields}
            for message in (config, {"type": "input.text", "text": text}, {"type": "input.done"}):
                await socket.send(json.dumps(message))
            async for received in socket:
                if isinstance(received, bytes):
                    yield received
                elif self._is_last(received):
                    return
            raise ReplicaLost(f"the speech server at {self._url} closed the stream before its end")
        except (WebSocketException, OSError) as error:
            raise ReplicaLost(f"the stream of the speech server at {self._url} broke: {_reason(error)}") from error
        finally:
            # No closing handshake: a server that generates does not read, and this must not wait for it.
            socket.transport.abort()
            await socket.wait_closed()

    async def _connect(self) -> ClientConnection:
        settings = self._settings
        try:
            return await connect(
                self._stream_url,
                ssl=client_context(settings.ca_file, self._setting) if settings.is_encrypted else None,
                additional_headers={"Authorization": f"Bearer {settings.key}"} if settings.key else None,
                open_timeout=CONNECT_S,
                ping_interval=None,  # a server that generates does not answer; `OtherEngine` has the deadlines
                compression=None,
                max_size=_MAX_MESSAGE_BYTES,
                max_queue=16,
                proxy=None,
            )
        except InvalidStatus as refused:
            response = refused.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise refusal(self._stream_url, response.status_code, "", headers, self._setting) from refused
        except (WebSocketException, OSError, TimeoutError) as error:
            why = connection_problem(error, self._setting)
            raise ReplicaLost(f"the speech server at {self._url} is lost: {why}") from error

    def _is_last(self, received: str) -> bool:
        """Read a message of the server. Raises EngineError for its errors."""
        try:
            message: Any = json.loads(received)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise BadAudio(f"the server sends a message that is no object: {received[:60]!r}")
        kind = message.get("type")
        if kind == "error" or message.get("error"):
            raise EngineError(f"the server says: {said(message) or kind}")
        if kind == "audio.start" and isinstance(rate_hz := message.get("sample_rate"), int):
            check_rate(rate_hz, self._settings.facts.rate_hz, self._setting)
        return kind == "session.done"


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionClosed) and error.rcvd is not None:
        return f"closed with {error.rcvd.code} {error.rcvd.reason}".strip()
    return str(error) or type(error).__name__
