"""The engines as one call may use them: the voices of its key, and what the arm of its experiment changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from telephony_tts.engines.api import Chunk, Engine, EngineStats, LangSource, Utterance, Voice
from telephony_tts.engines.failover import Failover
from telephony_tts.experiments.running import RunningArm
from telephony_tts.ops.keys.key import NO_KEY, Key


class VoiceOwners(Protocol):
    """Knows which voices belong to a key. An engine that makes voices has one."""

    def owner(self, voice: Voice) -> str | None:
        """The name of the key that the voice belongs to. None if it belongs to all. Takes microseconds."""

    def record(self, voice: Voice) -> Mapping[str, str]:
        """What is known of where the voice comes from: its owner, and who consented when and to what."""

    def has(self, name: str) -> bool:
        """Whether there is a stored voice of this name."""

    @property
    def has_any(self) -> bool:
        """Whether any voice belongs to a key."""


class SeenBy(Protocol):
    """A catalog that can be narrowed: `engines.catalog.Catalog`."""

    def seen_by(self, may_use: Callable[[Voice], bool], default: str | None = None) -> Any: ...


class CallCatalog:
    """`transport.call.EngineCatalog` for one call. Its key may change, because the bot that joins has its own.

    `voices` maps names of voices to those that speak in their place.
    """

    def __init__(self, catalog: Any, owners: VoiceOwners | None = None) -> None:
        self._whole = self._seen = catalog
        self._owners = owners
        self._arm: RunningArm | None = None
        self._key = NO_KEY
        self._is_narrow = False
        self.use(NO_KEY)

    def use(self, key: Key, arm: RunningArm | None = None) -> None:
        """Show what the calls of this key and of this arm may use."""
        self._key, self._arm = key, arm
        engine = None if self._arm is None else self._arm.arm.engine
        if key.voices is None and engine is None:
            self._seen, self._is_narrow = self._whole, False
        else:
            self._seen, self._is_narrow = self._narrow(engine), True

    def _allows(self, voice: Voice) -> bool:
        """A voice that belongs to a key is for that key alone."""
        owner = None if self._owners is None else self._owners.owner(voice)
        if owner is not None:
            return owner == self._key.name
        return self._key.allows_voice(voice.engine, voice.name)

    def _narrow(self, engine: str | None = None) -> Any:
        return cast(SeenBy, self._whole).seen_by(self._allows, engine)

    @property
    def _now(self) -> Any:
        """The catalog that decides now. The first voice of a key may be added during a call."""
        if not self._is_narrow and self._owners is not None and self._owners.has_any:
            self._seen, self._is_narrow = self._narrow(), True
        return self._seen

    def _renamed(self, voice: str | None) -> str | None:
        if voice is None or self._arm is None:
            return voice
        return self._arm.arm.voices.get(voice, voice)

    def _of_arm(self, utterance: Utterance) -> Utterance:
        voice = self._renamed(utterance.voice)
        return utterance if voice == utterance.voice else replace(utterance, voice=voice)

    # ------------------------------------------------------- as the transport asks

    @property
    def engines(self) -> tuple[Engine, ...]:
        found: tuple[Engine, ...] = self._now.engines
        return found

    @property
    def failover(self) -> Failover | None:
        found: Failover | None = self._now.failover
        return found

    @property
    def is_ready(self) -> bool:
        return bool(self._whole.is_ready)

    @property
    def loading(self) -> dict[str, str]:
        found: dict[str, str] = self._whole.loading
        return found

    @property
    def loading_step(self) -> str:
        return str(self._whole.loading_step)

    @property
    def retry_after_ms(self) -> int:
        return int(self._whole.retry_after_ms)

    def resolve(
        self, voice: str | None, lang: str | None, text: str, lang_source: LangSource = "bot"
    ) -> tuple[Engine, Voice]:
        found: tuple[Engine, Voice] = self._now.resolve(self._renamed(voice), lang, text, lang_source)
        return found

    def choose(self, utterance: Utterance) -> tuple[Engine, Voice]:
        found: tuple[Engine, Voice] = self._now.choose(self._of_arm(utterance))
        return found

    def recall(self, utterance: Utterance) -> tuple[Voice, Sequence[Chunk]] | None:
        found: tuple[Voice, Sequence[Chunk]] | None = self._now.recall(self._of_arm(utterance))
        return found

    def mismatch(self, utterance: Utterance, voice: Voice) -> str | None:
        found: str | None = self._now.mismatch(utterance, voice)
        return found

    def detect_language(self, sentence: str) -> str | None:
        found: str | None = self._whole.detect_language(sentence)
        return found

    def has_voice(self, voice: str | None, language: str) -> bool:
        return bool(self._now.has_voice(self._renamed(voice), language))

    def reads_digits(self, voice: str | None, language: str) -> bool:
        return bool(self._now.reads_digits(self._renamed(voice), language))

    def knows_voice(self, name: str) -> bool:
        return bool(self._now.knows_voice(self._renamed(name)))

    def stats(self) -> dict[str, EngineStats]:
        found: dict[str, EngineStats] = self._whole.stats()
        return found

