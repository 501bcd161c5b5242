"""Voices prepared for speaking: each is built once, in the engine's own steps, and the last used ones are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from telephony_tts.engines.cosyvoice2.settings import PROMPT_MARK
from telephony_tts.runtime.errors import UnknownVoice

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.device.speech_model import PromptBuild, SpeakerPrompt
    from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures


@dataclass(slots=True, eq=False)
class VoiceBuild:
    """A voice that is being built. `key` is negative, so it is never an utterance's key."""

    key: int
    name: str
    features: PromptFeatures
    is_busy: bool = False
    """A lane computes a step of it now."""
    work: PromptBuild | None = None
    """None before its first step."""


class ReadyVoices:
    """Keeps the `n_most` last used voices. An utterance holds its voice until it ends. Guarded by the core's lock."""

    def __init__(self, features: Mapping[str, PromptFeatures], n_most: int) -> None:
        self.features = dict(features)
        self._n_most = n_most
        self._ready: OrderedDict[str, SpeakerPrompt] = OrderedDict()
        self._builds: dict[str, VoiceBuild] = {}
        self._n_begun = 0

    def get(self, name: str) -> SpeakerPrompt | None:
        """The voice, or None while it is built. Begins to build it if necessary. Raises UnknownVoice."""
        if name not in self.features:
            raise UnknownVoice(unknown_voice(name, self.features))
        if name in self._ready:
            self._ready.move_to_end(name)
            return self._ready[name]
        if name not in self._builds:
            self._n_begun += 1
            self._builds[name] = VoiceBuild(-self._n_begun, name, self.features[name])
        return None

    @property
    def builds(self) -> list[VoiceBuild]:
        return list(self._builds.values())

    def replace(self, features: Mapping[str, PromptFeatures]) -> None:
        """Have these voices from now on. What was made of a voice that is gone or changed is dropped; an utterance
        that speaks with it keeps it."""
        for name, old in self.features.items():
            if features.get(name) is not old:
                self._ready.pop(name, None)
                self._builds.pop(name, None)
        self.features = dict(features)

    def is_wanted(self, build: VoiceBuild) -> bool:
        """Whether the voice has not been replaced or removed since its build began."""
        return self._builds.get(build.name) is build

    def finish(self, build: VoiceBuild, prompt: SpeakerPrompt) -> None:
        """Store a voice that is ready, if it is wanted. If there are too many, the least recently used one is
        dropped."""
        if not self.is_wanted(build):
            return
        del self._builds[build.name]
        self._ready[build.name] = prompt
        if len(self._ready) > self._n_most:
            self._ready.popitem(last=False)

    def abandon(self, build: VoiceBuild) -> None:
        """No utterance waits for the voice, or it cannot be built."""
        if self.is_wanted(build):
            del self._builds[build.name]


def unknown_voice(name: str, known: Iterable[str]) -> str:
    """What the error about an unknown voice says. Voices of single requests are not named."""
    names = [each for each in known if not each.startswith(PROMPT_MARK)]
    return f"cosyvoice2 has no voice {name!r}; it has {', '.join(names) or 'none'}"
