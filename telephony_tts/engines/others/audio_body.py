"""The audio in the body of an HTTP answer: plain samples, a WAV file, or events (server-sent events). Pure.

A WAV file that is made while it is sent has no true sizes: they are 0 or 0xFFFFFFFF. So the header is read up to the
chunk `data`, and everything behind it is audio.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any, Protocol

from telephony_tts.runtime.errors import EngineError, ReplicaLost

MAX_HEADER_BYTES = 65_536
MAX_EVENT_BYTES = 8_000_000
_PCM, _EXTENSIBLE = 1, 0xFFFE


class AudioBody(Protocol):
    is_done: bool
    """The audio is complete, although the body may go on."""

    def feed(self, data: bytes) -> bytes:
        """The samples in the next part of the body. Raises EngineError."""

    def end(self) -> None:
        """The body has ended. Raises EngineError if the audio is not complete."""


class BadAudio(EngineError):
    """The server answers, but not with audio that can be used."""


def check_rate(rate_hz: int, expected_hz: int, setting: str) -> None:
    """Raises BadAudio if the server says another rate than the settings."""
    if rate_hz != expected_hz:
        raise BadAudio(
            f"the server sends {rate_hz} Hz, and {setting}.rate_hz is {expected_hz}; set it to {rate_hz}",
            retryable=False,
        )


class SampleBody:
    """Plain samples, or a WAV file, which begins with RIFF."""

    def __init__(self, rate_hz: int, setting: str) -> None:
        self.is_done = False
        self._rate_hz = rate_hz
        self._setting = setting
        self._head = b""
        self._is_audio = False

    def feed(self, data: bytes) -> bytes:
        if self._is_audio:
            return data
        self._head += data
        if not self._head.startswith(b"RIFF"):
            if b"RIFF".startswith(self._head):
                return b""
            start: int | None = 0
        else:
            start = self._data_start()
        if start is None:
            if len(self._head) > MAX_HEADER_BYTES:
                raise BadAudio("the server sends a WAV file without audio")
            return b""
        self._is_audio, head, self._head = True, self._head, b""
        return head[start:]

    def end(self) -> None:
        if self._head:
            raise BadAudio(f"the server's answer ended inside the header of a WAV file, after {len(self._head)} bytes")

    def _data_start(self) -> int | None:
        """Where the samples begin. None while the header is not complete."""
        place, has_format = 12, False
        while place + 8 <= len(self._head):
            name, n_bytes = struct.unpack_from("<4sI", self._head, place)
            place += 8
            if name == b"data":
                if not has_format:
                    raise BadAudio("the server sends a WAV file whose audio comes before its format")
                return place
            if name == b"fmt " and place + 16 <= len(self._head):
                self._check_format(self._head[place : place + 16])
                has_format = True
            place += n_bytes + n_bytes % 2
        return None

    def _check_format(self, body: bytes) -> None:
        tag, n_channels, rate_hz, _, _, n_bits = struct.unpack("<HHIIHH", body)
        if tag not in (_PCM, _EXTENSIBLE) or n_bits != 16 or n_channels != 1:
            found = f"format {tag}, {n_bits} bits, {n_channels} channels"
            raise BadAudio(f"the server sends WAV with {found}; expected 16-bit PCM, mono", retryable=False)
        check_rate(rate_hz, self._rate_hz, self._setting)


class EventBody:
    """Events of which each has a piece of audio in base64.

    Two dialects: `speech.audio.delta` with `audio` (OpenAI, vLLM-Omni, Speaches), ended by `speech.audio.done`, and
    `audio.speech.chunk` with `audio.data` (SGLang-Omni), ended by `[DONE]`. An event with `error` ends it too. Every
    event is one line `data:`.
    """

    def __init__(self, rate_hz: int, setting: str) -> None:
        self.is_done = False
        self._rate_hz = rate_hz
        self._setting = setting
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MAX_EVENT_BYTES:
            raise BadAudio(f"the server sends an event of more than {MAX_EVENT_BYTES} bytes")
        return b"".join(self._audio(line[5:].strip()) for line in lines if line.startswith(b"data:"))

    def end(self) -> None:
        if not self.is_done:
            raise ReplicaLost("the server's events ended before the last one")

    def _audio(self, data: bytes) -> bytes:
        if data == b"[DONE]":
            self.is_done = True
        if self.is_done or not data:
            return b""
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise BadAudio(f"the server sends an event that is not JSON: {data[:60]!r}") from None
        if not isinstance(event, dict):
            raise BadAudio(f"the server sends an event that is no object: {data[:60]!r}")
        if event.get("error"):
            raise EngineError(f"the server says: {said(event)}")
        self.is_done = str(event.get("type", "")).endswith(".done")
        audio = event.get("audio")
        if isinstance(audio, dict):
            if isinstance(rate_hz := audio.get("sample_rate"), int):
                check_rate(rate_hz, self._rate_hz, self._setting)
            audio = audio.get("data")
        if not audio:
            return b""
        try:
            return base64.b64decode(audio, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadAudio("the server sends an event whose audio is not base64") from None


def said(answer: Any) -> str:
    """The message in a JSON answer about an error, as OpenAI (`error.message`) or FastAPI (`detail`) writes it."""
    if isinstance(answer, dict):
        found = answer.get("error") or answer.get("detail") or answer.get("message")
        if isinstance(found, dict):
            found = found.get("message") or found.get("code")
        answer = found
    return " ".join(str(answer or "").split())[:200]
