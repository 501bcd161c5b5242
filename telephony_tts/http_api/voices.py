"""Voices that come and go while the server runs, as the HTTP routes need them. `app/engines.py` gives what does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from telephony_tts.engines.api import Voice


class NewVoice(Protocol):
    """A voice that was added, and how much of its recording was kept."""

    @property
    def voice(self) -> Voice: ...
    @property
    def kept_s(self) -> float: ...
    @property
    def source_s(self) -> float: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


class Voices(Protocol):
    """Methods raise AudioError for a recording that cannot become a voice, ConfigError with a code for other mistakes
    of the client, Busy, and EngineError or EngineUnavailable if it is not possible now or here."""

    @property
    def can_denoise(self) -> bool:
        """Whether the noise of recordings can be reduced, as far as is known here."""

    async def check(self, audio: bytes, *, denoise: bool = False) -> Mapping[str, Any]:
        """What is found in the content of an audio file, as values of JSON, and with less noise (docs/http-voices.md).
        """

    async def denoised(self, audio: bytes) -> bytes:
        """The recording with less noise, as a WAV file."""

    def is_removable(self, voice: Voice) -> bool:
        """Whether `remove` can remove it."""

    async def add(
        self, name: str, audio: bytes, text: str, *, replace: bool = False, denoise: bool = False,
        tell: Callable[[str], None] = ..., record: Mapping[str, str] = ...,
    ) -> NewVoice:
        """Make a voice from the content of an audio file, whose words are `text` or unknown (""). It can speak when
        this returns. `denoise` reduces the noise of the recording first.
        `tell` is called with each step, the first time when nothing is wrong that is known at once.
        `record` has the name of the `owner`'s key, and `consent_by`, `consent_on` and `consent_for`."""

    async def remove(self, name: str) -> None:
        """Remove a voice. Raises UnknownVoice."""

    async def prompt(self, audio: bytes, text: str) -> str:
        """The name of a voice for single requests from the content of an audio file, whose words are `text` or ""."""
