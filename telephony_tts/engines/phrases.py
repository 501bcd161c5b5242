"""An engine whose phrases are kept: what was said before is not synthesised again.

A kept phrase is exactly the chunks that the engine gave, with their timings. So an engine that draws its speech at
random says a kept phrase in the same way each time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import fields
from hashlib import blake2b

from telephony_tts.engines.api import Chunk, Engine, EngineStats, FindsVoices, HasVersion, Utterance, Voice
from telephony_tts.engines.phrase_store import PhraseStore
from telephony_tts.engines.versions import package_version
from telephony_tts.engines.words import is_speakable
from telephony_tts.runtime.errors import EngineError

_NOT_HEARD = frozenset(
    {"id", "voice", "lang_source", "call", "turn", "deadline_ns", "follows", "more", "insert"}
    | {"is_private", "has_digits", "can_wait"}
)
"""The fields of an utterance that do not change its audio. `voice` has a place of its own in the key."""
_HEARD = tuple(item.name for item in fields(Utterance) if item.name not in _NOT_HEARD)


class PhraseKeeper:
    """`inner`, an engine with HasVersion, with its phrases in `store`.

    Not kept: private text, text in which the bot wrote digits (unless `digits`), a sentence that is still being
    written, and one that was cancelled before its end.
    """

    def __init__(self, inner: Engine, store: PhraseStore, *, digits: bool = False) -> None:
        self.inner = inner
        self.name = inner.name
        # Once: to check a protocol takes longer than all else that a kept phrase needs.
        self._version = inner.version if isinstance(inner, HasVersion) else None
        self._store = store
        self._digits = digits
        self._is_open = False

    @property
    def streams_text(self) -> bool:
        return self.inner.streams_text

    @property
    def voices(self) -> tuple[Voice, ...]:
        return self.inner.voices

    def find_voice(self, name: str) -> Voice | None:
        return self.inner.find_voice(name) if isinstance(self.inner, FindsVoices) else None

    async def start(self) -> None:
        await self._store.open()
        await self.inner.start()
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        try:
            await self.inner.close()
        finally:
            await self._store.close()

    def stats(self) -> EngineStats:
        return self.inner.stats()

    def counters(self) -> Mapping[str, float]:
        return self.inner.counters()

    def check(self, utterance: Utterance) -> None:
        self.inner.check(utterance)

    def recall(self, utterance: Utterance) -> tuple[Chunk, ...] | None:
        """The phrase of the utterance, if it is in memory."""
        key = self.key(utterance) if self._is_open else None
        return None if key is None else self._store.recall(key)

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.inner.check(utterance)
        key = self.key(utterance) if self._is_open else None
        if key is None:
            self._store.count("not_kept")
            async with aclosing(self.inner.synthesize(utterance)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        phrase = self._store.recall(key) or await self._store.fetch(key)
        if phrase is not None:
            for chunk in phrase:
                if not self._is_open:
                    raise EngineError(f"{self.name} was closed")
                yield chunk
            return
        self._store.count("made")
        made: list[Chunk] = []
        async with aclosing(self.inner.synthesize(utterance)) as chunks:
            async for chunk in chunks:
                made.append(chunk)
                yield chunk
        # Only here: a cancel closes this generator before.
        if made:
            self._store.keep(key, tuple(made))

    def key(self, utterance: Utterance) -> str | None:
        """What the phrase is kept under: the engine, the voice, and a digest of all that changes its audio. None if it
        is not kept."""
        if utterance.more is not None or utterance.is_private or (utterance.has_digits and not self._digits):
            return None
        voice = utterance.voice or next((voice.name for voice in self.voices), None)
        if voice is None or self._version is None or not is_speakable(utterance.text):
            return None
        version = self._version(voice)
        if version is None:
            return None
        heard = repr((package_version("telephony-tts"), version, [(name, getattr(utterance, name)) for name in _HEARD]))
        return f"{self.name}/{voice}/{blake2b(heard.encode('utf-8', 'surrogatepass'), digest_size=20).hexdigest()}"
