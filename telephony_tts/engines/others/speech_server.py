"""What every speech server of another project is to `OtherEngine`, and what its voices are."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from telephony_tts.audio.sound_file import read_sound
from telephony_tts.engines.api import Pcm, Utterance
from telephony_tts.engines.others.settings import DEFAULT_VOICE, Kind, OtherEngineSettings
from telephony_tts.runtime.errors import AudioError, EngineError, EngineUnavailable

PROMPT_RATE_HZ = 16_000
_MAX_PROMPT_S, _MAX_PROMPT_BYTES = 30.0, 20_000_000


@dataclass(frozen=True, slots=True)
class Recording:
    """A speaker's recording: the file as it is, its samples as mono at 16 kHz, and what is said in it."""

    file: bytes = field(repr=False)
    pcm: Pcm = field(repr=False)
    transcript: str
    data_url: str = field(repr=False)

    @classmethod
    def read(cls, path: str, transcript: str) -> Recording:
        """Raises EngineUnavailable, which says what is wrong with the file."""
        try:
            sound = read_sound(path, _MAX_PROMPT_S, _MAX_PROMPT_BYTES).at(PROMPT_RATE_HZ)
            with open(path, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise EngineUnavailable(f"cannot read {path}: {error.strerror}") from error
        except AudioError as error:
            raise EngineUnavailable(f"{path} cannot be used: {error.message}") from error
        coded = base64.b64encode(content).decode()
        kind = os.path.splitext(path)[1].lstrip(".").lower() or "wav"
        return cls(content, sound.pcm, transcript, f"data:audio/{kind};base64,{coded}")


@dataclass(frozen=True, slots=True)
class ServerVoice:
    """A voice as the server knows it: by its name, by a recording, or its only one."""

    name: str = ""
    recording: Recording | None = None


class SpeechServer(Protocol):
    """A server of one kind. It raises EngineError, `ReplicaLost` if the connection broke or the server is away."""

    async def open(self) -> None:
        """Make sure that the server answers."""

    async def close(self) -> None:
        """Close all connections. Idempotent."""

    async def voice_names(self) -> Sequence[str]:
        """The names of the server's voices, if it can list them."""

    def speak(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[bytes, None]:
        """One request. Yields signed 16-bit samples in little-endian order, cut anywhere. Closing it cancels the
        request, and the server can see that at once."""


def read_voices(settings: OtherEngineSettings) -> dict[str, ServerVoice]:
    """The voices of the settings, with their recordings. Blocking. Raises EngineUnavailable."""
    found = {}
    for name, voice in settings.voices.items():
        if voice.wav is not None:
            try:
                found[name] = ServerVoice(recording=Recording.read(voice.wav, voice.text or ""))
            except EngineUnavailable as error:
                raise EngineUnavailable(f"voices.{name}.wav: {error.message}") from error
        else:
            found[name] = ServerVoice((voice.name or name) if settings.facts.has_names else "")
    return found


def listed_voices(names: Sequence[str], facts: Kind) -> dict[str, ServerVoice]:
    """The voices of a server for which the settings name none. Raises EngineUnavailable."""
    found = {name: ServerVoice(name) for name in names}
    if not found and facts.has_default:
        found = {DEFAULT_VOICE: ServerVoice()}
    if not found:
        raise EngineUnavailable("the server lists no voice")
    return found


def refusal(where: str, status: int, why: str, headers: Mapping[str, str], setting: str) -> EngineError:
    """The error for an HTTP status that is no success. `setting`: "engines.others.NAME"."""
    says = f": {why}" if why else ""
    if status in (401, 403):
        return EngineError(f"{where} refused the key ({status}{says}); check {setting}.key", retryable=False)
    if status in (429, 503):
        wait_ms = retry_after_ms(headers.get("retry-after"))
        return EngineError(f"{where} is busy ({status}{says})", code="busy", retry_after_ms=wait_ms)
    if status == 404:
        return EngineError(f"{where} does not exist ({status}{says}); check {setting}.url and model", retryable=False)
    if 300 <= status < 400:
        return EngineError(f"{where} leads to another address ({status}); check {setting}.url", retryable=False)
    is_ours = 400 <= status < 500
    return EngineError(f"{where} failed with status {status}{says}", retryable=not is_ours)


def retry_after_ms(value: str | None) -> int | None:
    """The header Retry-After in milliseconds, at most a minute. A date, or nonsense, is None."""
    if value is None or not value.strip().isdecimal():
        return None
    return min(60_000, int(value) * 1000) if len(value) < 10 else 60_000
