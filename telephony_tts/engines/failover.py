"""Which engine speaks when another one cannot: the order of the fallback, and a circuit for each engine.

An engine that fails again and again is left out for a while, so that callers need not wait for it each time: its
circuit is open. Then one utterance tries it again. No sockets and no clock here: every method takes the time.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from telephony_tts.engines.api import Engine, Utterance, Voice
from telephony_tts.engines.words import language_of
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S
from telephony_tts.runtime.errors import ConfigError, EngineError

Reason = Literal["failed", "timeout", "overloaded", "not_ready", "open"]
"""Why an engine is replaced. `failed` and `timeout` are failures; the others say that it is not to be asked now."""

MAX_LOAD = 1.0
"""Above this load the listeners of an engine would hear gaps."""


@dataclass(slots=True)
class Circuit:
    """The failures of one engine in a row. After `most` of them the circuit opens for `retry_ns`."""

    most: int
    retry_ns: int
    n_failures: int = 0
    retry_at_ns: int = 0

    def is_open(self, now_ns: int) -> bool:
        return self.n_failures >= self.most and now_ns < self.retry_at_ns

    def admits(self, now_ns: int) -> bool:
        """Whether an utterance may ask the engine. Once the time is over, one utterance may, and the next one only
        `retry_ns` later, unless the first one succeeds."""
        if self.n_failures < self.most:
            return True
        if now_ns < self.retry_at_ns:
            return False
        self.retry_at_ns = now_ns + self.retry_ns
        return True

    def failed(self, now_ns: int) -> None:
        self.n_failures += 1
        self.retry_at_ns = now_ns + self.retry_ns

    def succeeded(self) -> None:
        self.n_failures = 0


class Failover:
    """`engines` are all engines of the server, `fallback` the names of those that may replace another, in order.

    Raises ConfigError if a name is unknown.
    """

    def __init__(
        self, engines: Sequence[Engine], fallback: Sequence[str], *, timeout_ms: int, after: int, retry_s: float
    ) -> None:
        self._engines: Mapping[str, Engine] = {engine.name: engine for engine in engines}
        for name in fallback:
            if name not in self._engines:
                raise ConfigError(f"fallback names {name!r}; the engines are {', '.join(self._engines)}")
        self._fallback = tuple(fallback)
        self._timeout_ns = timeout_ms * NS_PER_MS
        retry_ns = round(retry_s * NS_PER_S)
        self._circuits = {name: Circuit(after, retry_ns) for name in self._engines}
        for name in self._engines:
            for reason in get_args(Reason):
                metrics.FAILOVERS.labels(engine=name, reason=reason)

    def among(self, engines: Mapping[str, Engine]) -> Failover:
        """The same with other views of the same engines: they share their circuits."""
        seen = copy.copy(self)
        seen._engines = engines
        return seen

    def late_ns(self, now_ns: int, dry_ns: int) -> int:
        """When an engine that is asked for audio at `now_ns` is too late.

        The caller has audio until `dry_ns`. An engine may serve others first as long as there is time, so it is left
        in peace until the next engine needs the rest of that time.
        """
        return max(now_ns + self._timeout_ns, dry_ns - self._timeout_ns)

    def refusal(self, engine: Engine, now_ns: int) -> Reason | None:
        """Why this engine should not be asked now. None if it may be asked: then the caller must ask it."""
        stats = engine.stats()
        if not stats.is_ready:
            return "not_ready"
        if stats.load > MAX_LOAD:
            return "overloaded"
        circuit = self._circuits.get(engine.name)
        return None if circuit is None or circuit.admits(now_ns) else "open"

    def next(
        self, utterance: Utterance, voice: Voice, tried: Collection[str], reason: Reason, now_ns: int
    ) -> tuple[Engine, Voice] | None:
        """The engine and voice that speak in place of `voice`. None if no other engine can.

        `tried` are the engines that this utterance was given to. After a failure an engine with an open circuit is
        better than silence, so it is tried if there is no other.
        """
        language = _language(utterance, voice)
        able: list[tuple[Engine, Voice]] = []
        for name in self._fallback:
            if name in tried:
                continue
            engine = self._engines[name]
            found = _speaking(engine, utterance, language)
            if found is None:
                continue
            if self.refusal(engine, now_ns) is None:
                return engine, found
            able.append((engine, found))
        return able[0] if able and reason in ("failed", "timeout") else None

    def failed(self, name: str, now_ns: int) -> None:
        """The engine failed or was too late."""
        if (circuit := self._circuits.get(name)) is not None:
            circuit.failed(now_ns)

    def succeeded(self, name: str) -> None:
        """The engine spoke an utterance to its end."""
        if (circuit := self._circuits.get(name)) is not None:
            circuit.succeeded()

    def open_circuits(self, now_ns: int) -> dict[str, bool]:
        """Whether the circuit of each engine is open, for metrics."""
        return {name: circuit.is_open(now_ns) for name, circuit in self._circuits.items()}

    @property
    def is_ready(self) -> bool:
        """Whether an engine of the fallback accepts utterances."""
        return any(self._engines[name].stats().is_ready for name in self._fallback)


def _language(utterance: Utterance, voice: Voice) -> str | None:
    """The language of the text. Latin letters alone say little, so then it is the language of the voice that failed."""
    written = language_of(utterance.text)
    if written is not None:
        return written
    lang = utterance.lang
    if lang is not None and (utterance.lang_source != "letters" or voice.speaks(lang)):
        return lang
    return voice.languages[0] if voice.languages else lang


def _speaking(engine: Engine, utterance: Utterance, language: str | None) -> Voice | None:
    """The engine's best voice of this language that accepts the text."""
    able = [voice for voice in engine.voices if language is None or voice.speaks(language)]
    # The exact tag first; `sort` keeps the engine's own order otherwise.
    tag = (language or "").lower().replace("_", "-")
    able.sort(key=lambda voice: tag not in (own.lower() for own in voice.languages))
    for voice in able:
        try:
            engine.check(replace(utterance, voice=voice.name))
        except EngineError:
            continue
        return voice
    return None
