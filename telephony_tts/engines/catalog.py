"""All engines of a server as one: which of them speaks this text in this voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from telephony_tts.engines.api import Engine, EngineStats, Voice
from telephony_tts.engines.words import language_of
from telephony_tts.errors import ConfigError, UnknownVoice

MAX_NAMED = 12
"""Voices that the error about an unknown one still names."""


class Catalog:
    """`engines` in order of preference, the default first; `routes` sends a language prefix to an engine.

    Raises ConfigError where two engines have one name or a route leads nowhere.
    """

    def __init__(self, engines: Sequence[Engine], routes: Mapping[str, str] | None = None) -> None:
        if not engines:
            raise ConfigError("at least one engine is needed")
        self._engines = {engine.name: engine for engine in engines}
        if len(self._engines) != len(engines):
            raise ConfigError(f"engine names must differ: {', '.join(engine.name for engine in engines)}")
        self._default = engines[0]
        self._routes = {_prefix(lang): name for lang, name in (routes or {}).items()}
        for lang, name in self._routes.items():
            if name not in self._engines:
                raise ConfigError(f"route {lang!r} leads to {name!r}; the engines are {', '.join(self._engines)}")

    @property
    def engines(self) -> tuple[Engine, ...]:
        return tuple(self._engines.values())

    @property
    def voices(self) -> tuple[Voice, ...]:
        """Every voice, the default engine's first."""
        return tuple(voice for engine in self._engines.values() for voice in engine.voices)

    async def start(self) -> None:
        """Start every engine in order; where one cannot, close those already started and raise its error."""
        try:
            for engine in self._engines.values():
                await engine.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every engine, also where one fails; the first failure is raised at the end. Idempotent."""
        failures: list[Exception] = []
        for engine in self._engines.values():
            try:
                await engine.close()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def stats(self) -> dict[str, EngineStats]:
        return {name: engine.stats() for name, engine in self._engines.items()}

    @property
    def is_ready(self) -> bool:
        """Whether the default engine takes utterances."""
        return self._default.stats().is_ready

    @property
    def retry_after_ms(self) -> int:
        """When the default engine is expected to be ready again; 0 where that is not known."""
        return self._default.stats().retry_after_ms

    def resolve(self, voice: str | None, lang: str | None, text: str) -> tuple[Engine, Voice]:
        """The engine and voice for a text.

        A voice is named `name` or `engine/name`; of two with one name the earlier engine's is meant.
        It is kept unless the text is in a script of a language that the voice does not have and a
        route exists for. Without a voice, the language is the one the script asks for, else `lang`; its
        route decides, else the first engine that has it, else the default engine. Raises UnknownVoice.
        Whether the engine can say the text is for its `check`.
        """
        written = language_of(text)
        if voice is not None:
            engine, named = self._named(voice)
            if written is None or written not in self._routes or _has(named, written):
                return engine, named
        language = written or (_prefix(lang) if lang else None)
        engine = self._for_language(language)
        return engine, _best(engine, lang if lang and _prefix(lang) == language else language)

    def _for_language(self, language: str | None) -> Engine:
        if language is None:
            return self._default
        if language in self._routes:
            return self._engines[self._routes[language]]
        able = (e for e in self._engines.values() if any(_has(voice, language) for voice in e.voices))
        return next(able, self._default)

    def _named(self, voice: str) -> tuple[Engine, Voice]:
        engine_name, slash, voice_name = voice.partition("/")
        if not slash:
            engine_name, voice_name = "", voice
        for engine in self._engines.values():
            if engine_name in ("", engine.name):
                for known in engine.voices:
                    if known.name == voice_name:
                        return engine, known
        raise UnknownVoice(self._unknown(voice))

    def _unknown(self, voice: str) -> str:
        names = [voice.name for voice in self.voices] + [f"{voice.engine}/{voice.name}" for voice in self.voices]
        near = get_close_matches(voice, names, n=3, cutoff=0.5)
        hint = f"; near it: {', '.join(near)}" if near else ""
        return f"no voice {voice!r}{hint}; {self._known()}"

    def _known(self) -> str:
        """The voices by name where they are few, else how many and where they are listed."""
        n_voices = len(self.voices)
        if n_voices > MAX_NAMED:
            return f"there are {n_voices}, which `telephony-tts voices` lists"
        return f"the voices are {', '.join(f'{voice.engine}/{voice.name}' for voice in self.voices) or 'none'}"


def _prefix(lang: str) -> str:
    return lang.lower().replace("_", "-").split("-")[0]


def _has(voice: Voice, language: str) -> bool:
    return voice.speaks(language)


def _best(engine: Engine, lang: str | None) -> Voice:
    """The voice of the exact language tag, else of its language, else the engine's default."""
    if lang is None:
        return engine.voices[0]
    tag = lang.lower().replace("_", "-")
    exact = (voice for voice in engine.voices if tag in (own.lower() for own in voice.languages))
    close = (voice for voice in engine.voices if _has(voice, _prefix(tag)))
    return next(exact, None) or next(close, None) or engine.voices[0]
