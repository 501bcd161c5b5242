"""The section `engines`: which engine speaks, and a section for each engine that there is (`engines.plugin`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from telephony_tts.app import residents
from telephony_tts.app.plugins import PLUGINS
from telephony_tts.runtime.schema import Between, show
from telephony_tts.session.settings import LANGUAGE

DEFAULT_ROUTES = {"zh": "kokoro"}


@dataclass(frozen=True, slots=True)
class _Engines:
    """Which engine speaks (the route of the text's language, else `default`), which one speaks in its place, and the
    timeouts of engines."""

    default: str = "hibari"
    routes: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_ROUTES))
    timeout_s: Annotated[float, Between(5, 600)] = 30.0
    stall_s: Annotated[float, Between(2.5, 60)] = 5.0
    restart_wait_s: Annotated[float, Between(0, 60)] = 10.0
    fallback: tuple[str, ...] = ()
    first_audio_timeout_ms: Annotated[int, Between(20, 60_000)] = 1_500
    fallback_after: Annotated[int, Between(1, 1000)] = 3
    retry_s: Annotated[float, Between(0.1, 3600)] = 30.0

    @property
    def names(self) -> tuple[str, ...]:
        """All engines that there can be."""
        return tuple(name for plugin in PLUGINS for name in plugin.names(plugin.own(self)))

    def conflicts(self) -> Iterator[str]:
        for plugin in PLUGINS:
            yield from (f"{plugin.name}.{problem}" for problem in plugin.conflicts(plugin.own(self), PLUGINS))
        if self.default not in self.names:
            yield f"default: {show(self.default)} is wrong; expected one of {', '.join(self.names)}"
        elif (need := self._need(self.default)) is not None:
            yield f"{need}, but {self.default} is the default engine"
        for name, value_s in (("stall_s", self.stall_s), ("restart_wait_s", self.restart_wait_s)):
            if value_s >= self.timeout_s:
                yield f"{name}: {value_s:g} is not below timeout_s ({self.timeout_s:g}), which ends the turn first"
        if self.fallback and self.first_audio_timeout_ms >= self.timeout_s * 1000:
            late_ms = self.first_audio_timeout_ms
            yield f"first_audio_timeout_ms: {late_ms} is not below timeout_s ({self.timeout_s:g}), which ends the turn"
        for engine in dict.fromkeys(self.fallback):
            if engine not in self.names:
                yield f"fallback: no engine is named {engine!r}; expected some of {', '.join(self.names)}"
            elif self.fallback.count(engine) > 1:
                yield f"fallback: {engine} is there more than once"
            elif (need := self._need(engine)) is not None:
                yield f"{need}, but {engine} is in fallback"
        for lang, engine in self.routes.items():
            if not LANGUAGE.accepts(lang):
                yield f"routes: {show(lang)} is not a language; expected {LANGUAGE.says}"
            elif self.is_default_route(lang):
                continue
            elif engine not in self.names:
                yield f"routes.{lang}: no engine is named {engine!r}; expected one of {', '.join(self.names)}"
            elif (need := self._need(engine)) is not None:
                yield f"{need}, but routes.{lang} leads to {engine}"

    def _need(self, engine: str) -> str | None:
        """The setting that leaves `engine` out, and why; None if no setting does."""
        for plugin in PLUGINS:
            if plugin.name == engine and (missing := plugin.missing_setting(plugin.own(self))) is not None:
                return f"{plugin.name}.{missing}"
        return None

    def is_default_route(self, lang: str) -> bool:
        """Whether the route of `lang` is the shipped one. Its engine is an extra, and the route is left out without
        it."""
        return self.routes.get(lang) == DEFAULT_ROUTES.get(lang)


if TYPE_CHECKING:

    class EngineSettings(_Engines):
        """With a field for each plugin, which `EnginePlugin.own` reads."""

else:
    EngineSettings = residents.with_sections(
        _Engines, {plugin.name: plugin.settings for plugin in PLUGINS}, "EngineSettings", __name__
    )
