"""All engines of a server, and the choice of an engine and a voice for a text."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Protocol, cast

from telephony_tts.engines.api import (
    Chunk,
    Engine,
    EngineStats,
    FindsVoices,
    LangSource,
    RecallsAudio,
    Utterance,
    Voice,
    has_language,
    language_prefix,
    languages_read_in_digits,
)
from telephony_tts.engines.engine_view import EngineView
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.inserts import InsertPlayer
from telephony_tts.engines.words import LATIN, language_of, scripts
from telephony_tts.runtime.errors import ConfigError, EngineError, UnknownVoice, UnsupportedText, shell_command

MAX_NAMED = 12
"""The error about an unknown voice lists up to this many voices."""


class Detector(Protocol):
    """Detects the language of Latin text: `latin_language.LatinLanguage`."""

    def load(self) -> None: ...
    def detect(self, sentence: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class AbsentEngine:
    """An engine that is not installed: what it would accept (see `Engine.check`) and how to install it."""

    name: str
    languages: tuple[str, ...]
    check: Callable[[Utterance], None]
    how_to_get: str


class _LastLine(logging.Handler):
    """Keeps the last line that engines have logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While it lasts the engines are heard. Their processes log through this one."""
        engines = logging.getLogger(__package__)
        engines.addHandler(self)
        try:
            yield
        finally:
            engines.removeHandler(self)
            self.text = ""


class Catalog:
    """`engines` in order of preference, the default first. `routes` maps the prefix of a language to an engine.

    A refusal names the engines of `absent` that would accept the text. Without a `detector` all Latin text counts as
    English. `failover` says which engine speaks in place of one that fails; without it the error ends the turn. Raises
    ConfigError if two engines have the same name or a route names an unknown engine.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        routes: Mapping[str, str] | None = None,
        *,
        absent: Sequence[AbsentEngine] = (),
        detector: Detector | None = None,
        failover: Failover | None = None,
    ) -> None:
        if not engines:
            raise ConfigError("at least one engine is needed")
        self._engines = {engine.name: engine for engine in engines}
        if len(self._engines) != len(engines):
            raise ConfigError(f"engine names must differ: {', '.join(engine.name for engine in engines)}")
        self._recalls = {engine.name: engine.recall for engine in engines if isinstance(engine, RecallsAudio)}
        self._given = self._engines
        """The engines themselves, also where a key sees only some of their voices."""
        self._default = engines[0]
        self._inserts = InsertPlayer()
        self._loading = dict.fromkeys(self._engines, "waiting")
        self._last_line = _LastLine()
        self._absent = tuple(absent)
        self._detector = detector
        self.failover = failover
        self._routes = {language_prefix(lang): name for lang, name in (routes or {}).items()}
        for lang, name in self._routes.items():
            if name not in self._engines:
                raise ConfigError(f"route {lang!r} leads to {name!r}; the engines are {', '.join(self._engines)}")

    def seen_by(self, may_use: Callable[[Voice], bool], default: str | None = None) -> Catalog:
        """The same engines with only the voices that `may_use` allows, now and later. `default` is another default
        engine; if that one has no such voice, it is the first engine that has.

        The engines are shared: only this catalog starts and closes them. Raises ConfigError for an unknown engine."""
        if default is not None and default not in self._engines:
            raise ConfigError(f"there is no engine {default!r}; the engines are {', '.join(self._engines)}")
        seen = copy.copy(self)
        views = {name: EngineView(engine, may_use) for name, engine in self._engines.items()}
        able = [name for name, view in views.items() if view.voices]
        wanted = default or self._default.name
        if wanted not in able and able:
            wanted = able[0]
        # The default engine is the first one, as in every catalog.
        seen._engines = cast(dict[str, Engine], {wanted: views[wanted], **views})
        seen._default = seen._engines[wanted]
        seen._routes = {lang: name for lang, name in self._routes.items() if name in able}
        if self.failover is not None:
            seen.failover = self.failover.among(seen._engines)
        return seen

    @property
    def engines(self) -> tuple[Engine, ...]:
        return tuple(self._engines.values())

    @property
    def voices(self) -> tuple[Voice, ...]:
        """Every voice, the default engine's first."""
        return tuple(voice for engine in self._engines.values() for voice in engine.voices)

    async def start(self) -> None:
        """Start every engine in order. If one fails, close those already started and raise its error."""
        try:
            if self._detector is not None:
                await asyncio.to_thread(self._detector.load)
            for name, engine in self._engines.items():
                self._loading[name] = "loading"
                with self._last_line.attached():
                    await engine.start()
                self._loading[name] = "loaded"
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every engine, also if one fails; raise the first failure at the end. Idempotent."""
        failures: list[Exception] = []
        for engine in self._engines.values():
            try:
                await engine.close()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    @property
    def loading(self) -> dict[str, str]:
        """How far `start` is with each engine: "waiting", "loading" or "loaded"."""
        return dict(self._loading)

    @property
    def loading_step(self) -> str:
        """What the engine that loads has logged last. Empty if it has logged nothing, and if none loads."""
        return self._last_line.text

    def stats(self) -> dict[str, EngineStats]:
        return {name: engine.stats() for name, engine in self._engines.items()}

    @property
    def is_ready(self) -> bool:
        """Whether the default engine accepts utterances, or one that would speak in its place."""
        return self._default.stats().is_ready or (self.failover is not None and self.failover.is_ready)

    @property
    def retry_after_ms(self) -> int:
        """When the default engine is expected to be ready again; 0 if unknown."""
        return self._default.stats().retry_after_ms

    def detect_language(self, sentence: str) -> str | None:
        """The language of a sentence in Latin letters; None if it is not certain or there is no detector."""
        return self._detector.detect(sentence) if self._detector is not None else None

    def has_voice(self, voice: str | None, language: str) -> bool:
        """Whether Latin text of this language, detected by its words, would get a voice of the language."""
        try:
            return self.resolve(voice, language, "", "words")[1].speaks(language)
        except UnknownVoice:
            return False

    def reads_digits(self, voice: str | None, language: str) -> bool:
        """Whether the engine of a text in this language, with the bot's `voice`, reads most numbers itself."""
        prefix = language_prefix(language)
        if not any(prefix in languages_read_in_digits(engine) for engine in self._given.values()):
            return False
        try:
            engine = self.resolve(voice, language, "")[0]
        except UnknownVoice:
            return False
        return prefix in languages_read_in_digits(self._given[engine.name])

    def knows_voice(self, name: str) -> bool:
        """Whether an engine has a voice of this name, with or without the engine's name before it."""
        try:
            self._named(name)
        except UnknownVoice:
            return False
        return True

    def resolve(
        self, voice: str | None, lang: str | None, text: str, lang_source: LangSource = "bot"
    ) -> tuple[Engine, Voice]:
        """The engine and voice for a text.

        The language is that of the text's script, else `lang`; Han characters alone may also be Japanese. A voice is
        named `name` or `engine/name`; if two engines have the name, the first engine's voice is used. A named voice is
        kept, unless it lacks the language and the language has a route. A `lang` that was detected from Latin letters
        alone never replaces a named voice. Without a voice the language's route decides, else the first engine with the
        language, else the default engine. If the language was detected from Latin words, only its route leads away from
        the default engine.
        Raises UnknownVoice. It does not check that the engine can read the text; `choose` does.
        """
        written = language_of(text)
        if written == "zh" and self._is_japanese(voice, lang):
            written = "ja"
        language = written or (language_prefix(lang) if lang else None)
        if voice is not None:
            engine, named = self._named(voice)
            is_certain = written is not None or lang_source != "letters"
            if language is None or language not in self._routes or named.speaks(language) or not is_certain:
                return engine, named
        if written is None and lang_source == "words" and language not in self._routes:
            engine = self._default
        else:
            engine = self._for_language(language)
        return engine, _best(engine, lang if lang and language_prefix(lang) == language else language)

    def choose(self, utterance: Utterance) -> tuple[Engine, Voice]:
        """The engine and voice of an utterance, as in `resolve`, checked to be able to read its text.

        Raises UnknownVoice or UnsupportedText. UnsupportedText names voices of all engines that accept the text; if
        if no voice does, it says what would help.
        """
        if utterance.insert is not None:
            return self._inserts, self._inserts.voices[0]
        engine, voice = self.resolve(utterance.voice, utterance.lang, utterance.text, utterance.lang_source)
        try:
            engine.check(replace(utterance, voice=voice.name))
        except UnsupportedText as refusal:
            raise UnsupportedText(f"{refusal.message}; {self._what_helps(utterance)}") from refusal
        return engine, voice

    def recall(self, utterance: Utterance) -> tuple[Voice, Sequence[Chunk]] | None:
        """The voice and all the audio of an utterance, if its engine has them without waiting."""
        if not self._recalls or utterance.insert is not None or utterance.more is not None:
            return None
        try:
            engine, voice = self.choose(utterance)
        except (UnknownVoice, UnsupportedText):
            return None
        recall = self._recalls.get(engine.name)
        chunks = None if recall is None else recall(replace(utterance, voice=voice.name))
        return (voice, chunks) if chunks else None

    def mismatch(self, utterance: Utterance, voice: Voice) -> str | None:
        """The warning for Latin text in a language that `voice` does not have; None if there is no mismatch.

        There is a warning only if the language was detected from the words of the text.
        """
        language = utterance.lang
        if utterance.lang_source != "words" or language is None or language_of(utterance.text) is not None:
            return None
        if voice.speaks(language):
            return None
        able, absent = self._able(utterance, language)
        if able:
            by_lang = f"`lang` {language} or " if utterance.voice is None else ""
            remedy = f"send {by_lang}`voice` {_full_name(able[0])}, or {_route(language, able[0].engine)}"
        elif absent:
            remedy = f"{absent[0].name} would: {absent[0].how_to_get}, and {_route(language, absent[0].name)}"
        else:
            remedy = "no engine here has a voice for it"
        return (
            f"the text seems to be in language {language}, but voice {voice.name} speaks {', '.join(voice.languages)}: "
            f"{remedy}. If it is not in {language}, send the right `lang`"
        )

    def _what_helps(self, utterance: Utterance) -> str:
        """The voices that accept a refused text. If no voice does: what would help."""
        language = language_of(utterance.text)
        able, absent = self._able(utterance, language)
        if able:
            route = f", or {_route(language, able[0].engine)}" if language else ""
            return f"voices that can: {', '.join(map(_full_name, able))}. Send one as `voice`{route}"
        if absent:
            would = "; or ".join(f"{engine.name} would: {engine.how_to_get}" for engine in absent)
            return f"no engine here can, but {would}"
        letters = "/".join(sorted(scripts(utterance.text) - {LATIN})).lower()
        tag = f" (language {language})" if language else ""
        return f"no engine of telephony-tts reads {letters} letters{tag}: write the text in letters that a voice has"

    def _able(self, utterance: Utterance, language: str | None) -> tuple[list[Voice], list[AbsentEngine]]:
        """(a voice of each engine that has the language and accepts the text, the absent engines that would)."""
        able = []
        for engine in self._engines.values():
            voices = [voice for voice in engine.voices if language is None or voice.speaks(language)]
            accepting = (voice for voice in voices if _accepts(engine.check, replace(utterance, voice=voice.name)))
            if (voice := next(accepting, None)) is not None:
                able.append(voice)
        asked = replace(utterance, voice=None, lang=language)
        absent = [
            engine
            for engine in self._absent
            if (language is None or has_language(engine.languages, language)) and _accepts(engine.check, asked)
        ]
        return able, absent

    def _for_language(self, language: str | None) -> Engine:
        if language is None:
            return self._default
        if language in self._routes:
            return self._engines[self._routes[language]]
        able = (e for e in self._engines.values() if any(voice.speaks(language) for voice in e.voices))
        return next(able, self._default)

    def _is_japanese(self, voice: str | None, lang: str | None) -> bool:
        """Whether Han characters alone are Japanese: the bot says so, or names a voice of that language."""
        if lang is not None and language_prefix(lang) == "ja":
            return True
        named = self._named(voice)[1] if voice is not None else None
        return named is not None and named.speaks("ja") and not named.speaks("zh")

    def _named(self, voice: str) -> tuple[Engine, Voice]:
        engine_name, slash, voice_name = voice.partition("/")
        if not slash:
            engine_name, voice_name = "", voice
        for engine in self._engines.values():
            if engine_name in ("", engine.name):
                for known in engine.voices:
                    if known.name == voice_name:
                        return engine, known
        for engine in self._engines.values():
            if engine_name in ("", engine.name) and isinstance(engine, FindsVoices):
                found = engine.find_voice(voice_name)
                if found is not None:
                    return engine, found
        raise UnknownVoice(self._unknown(voice))

    def _unknown(self, voice: str) -> str:
        names = [voice.name for voice in self.voices] + [_full_name(voice) for voice in self.voices]
        near = get_close_matches(voice, names, n=3, cutoff=0.5)
        hint = f"; near it: {', '.join(near)}" if near else ""
        return f"no voice {voice!r}{hint}; {self._known()}"

    def _known(self) -> str:
        """The names of the voices if they are few, else their number and the command that lists them."""
        n_voices = len(self.voices)
        if n_voices > MAX_NAMED:
            return f"there are {n_voices}, which `{shell_command('telephony-tts voices')}` lists"
        return f"the voices are {', '.join(map(_full_name, self.voices)) or 'none'}"


def _accepts(check: Callable[[Utterance], None], utterance: Utterance) -> bool:
    try:
        check(utterance)
    except EngineError:
        return False
    return True


def _full_name(voice: Voice) -> str:
    return f"{voice.engine}/{voice.name}"


def _route(language: str, engine: str) -> str:
    return f"set engines.routes to {{{language}: {engine}}}"


def _best(engine: Engine, lang: str | None) -> Voice:
    """The voice with the exact language tag, else with its language, else the engine's default voice.

    Raises UnknownVoice if the engine has none any more."""
    if not engine.voices:
        raise UnknownVoice(f"{engine.name} has no voice")
    if lang is None:
        return engine.voices[0]
    tag = lang.lower().replace("_", "-")
    exact = (voice for voice in engine.voices if tag in (own.lower() for own in voice.languages))
    close = (voice for voice in engine.voices if voice.speaks(tag))
    return next(exact, None) or next(close, None) or engine.voices[0]
