"""Voices made ready to speak: each once, by the engine's own steps, and kept while they are among the last used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.errors import UnknownVoice

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.device.speech_model import PromptInTheMaking, SpeakerPrompt


@dataclass(slots=True, eq=False)
class Making:
    """A voice on its way. `key` is below nought, and so no utterance's."""

    key: int
    name: str
    is_busy: bool = False
    work: PromptInTheMaking | None = None
    """None before its first step."""


class ReadyVoices:
    """`n_most` ready ones are kept; an utterance that has one keeps it to its end. Guarded by the core's lock."""

    def __init__(self, features: Mapping[str, PromptFeatures], n_most: int) -> None:
        self.features = dict(features)
        self._n_most = n_most
        self._ready: OrderedDict[str, SpeakerPrompt] = OrderedDict()
        self._making: dict[str, Making] = {}
        self._n_made = 0

    def get(self, name: str) -> SpeakerPrompt | None:
        """The voice, or None while it is made ready. Raises UnknownVoice."""
        if name not in self.features:
            raise UnknownVoice(f"cosyvoice2 has no voice {name!r}; it has {', '.join(self.features)}")
        if name in self._ready:
            self._ready.move_to_end(name)
            return self._ready[name]
        if name not in self._making:
            self._n_made += 1
            self._making[name] = Making(-self._n_made, name)
        return None

    @property
    def making(self) -> list[Making]:
        return list(self._making.values())

    def made(self, making: Making, prompt: SpeakerPrompt) -> None:
        """It is ready."""
        del self._making[making.name]
        self._ready[making.name] = prompt
        if len(self._ready) > self._n_most:
            self._ready.popitem(last=False)

    def give_up(self, making: Making) -> None:
        """Nobody waits for it, or it cannot be made."""
        del self._making[making.name]
