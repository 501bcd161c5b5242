"""The engines of a configuration: which run, how each is built, and what adds their voices."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from telephony_tts.app.config import Config
from telephony_tts.app.engine_settings import DEFAULT_ROUTES
from telephony_tts.app.plugins import PLUGINS, plugin_of
from telephony_tts.engines import remote
from telephony_tts.engines.api import Engine, Voice, has_language
from telephony_tts.engines.catalog import AbsentEngine, Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.latin_language import LatinLanguage
from telephony_tts.engines.phrase_store import PhraseStore
from telephony_tts.engines.phrases import PhraseKeeper
from telephony_tts.engines.plugin import EngineTimeouts, Setup, has_module
from telephony_tts.runtime.errors import ConfigError, how_to_get

if TYPE_CHECKING:
    from telephony_tts.engines.remote import EngineServer, RemoteSettings

_SHARED_START_S = 1_800.0
"""A front waits so long for an engine that all fronts share. To time a machine and to load a model takes minutes; the
supervisor reports an engine that cannot start."""
_WITHOUT_MANDARIN = ("hibari", "fake")
"""Default engines that need another one for Mandarin."""
_MB = 1_000_000


def build_catalog(
    config: Config, phrases: PhraseStore | None = None, shared: Mapping[str, str] = MappingProxyType({})
) -> Catalog:
    """The engines of the configuration: the default first, then every other one that is installed. `phrases`: where
    they are kept, if that is not the place of the configuration. `shared`: the addresses of engines that run in a
    process of their own for several fronts.

    A shipped route to an engine that is not installed is dropped. Its text then goes to the first engine that has the
    language, else to the default engine, which refuses it with a clear message. Raises ConfigError if another route
    leads to such an engine.
    """
    wanted = _wanted(config)
    routes = {lang: name for lang, name in routes_of(config).items() if name in wanted}
    absent = _absent(config, wanted)
    for lang, name in config.engines.routes.items():
        if name not in wanted and not config.engines.is_default_route(lang):
            how = {each.name: each.how_to_get for each in absent}.get(name, how_to_get())
            raise ConfigError(f"engines.routes.{lang}: {name} is not installed: {how}")
        for each in absent:
            if name in wanted and name == each.name and has_language(each.languages, lang):
                raise ConfigError(f"engines.routes.{lang}: {name} has no voice for it yet: {each.how_to_get}")
    detects = config.speech.detect_language and installed("py3langid")
    engines = [
        _shared_engine(config, name, shared[name]) if name in shared else local_engine(config, name)
        for name in wanted
    ]
    if config.phrases.enabled:
        store = phrases or phrase_store(config)
        engines = [PhraseKeeper(engine, store, digits=config.phrases.digits) for engine in engines]
    return Catalog(
        engines,
        routes,
        absent=absent,
        detector=LatinLanguage() if detects else None,
        failover=_failover(config, engines),
    )


def routes_of(config: Config) -> dict[str, str]:
    """The routes of the configuration. The default ones are for the default engines that lack the language;
    without kokoro espeak speaks Mandarin, if it is there."""
    engines = config.engines
    if engines.routes != DEFAULT_ROUTES:
        return dict(engines.routes)
    if engines.default not in _WITHOUT_MANDARIN:
        return {}
    can_speak = {plugin.name for plugin in PLUGINS if plugin.missing_setting(plugin.own(engines)) is None}
    return dict(DEFAULT_ROUTES) if "kokoro" in can_speak and installed("kokoro") else {"zh": "espeak"}


def phrase_store(config: Config) -> PhraseStore:
    """Where the configuration keeps phrases."""
    settings = config.phrases
    folder = None if settings.folder is None else Path(settings.folder)
    return PhraseStore(settings.memory_mb * _MB, folder, settings.disk_mb * _MB)


def _failover(config: Config, engines: Sequence[Engine]) -> Failover | None:
    settings = config.engines
    if not settings.fallback:
        return None
    return Failover(
        engines,
        settings.fallback,
        timeout_ms=settings.first_audio_timeout_ms,
        after=settings.fallback_after,
        retry_s=settings.retry_s,
    )


def setup_of(config: Config, name: str) -> Setup[Any]:
    """What the engine `name` is built from."""
    engines = config.engines
    plugin = plugin_of(name, engines)
    return Setup(
        name,
        plugin.own(engines),
        is_installed=installed(plugin.name),
        timeouts=EngineTimeouts(
            engines.timeout_s, engines.stall_s, engines.restart_wait_s, engines.first_audio_timeout_ms
        ),
        is_named=name in _named_engines(config),
        default=engines.default,
        lang=config.speech.lang,
    )


async def list_voices(config: Config) -> tuple[list[Voice], list[str]]:
    """All voices of the configuration, the default engine's first, and the problems of voices that cannot be used."""
    wanted = _wanted(config)
    voices: list[Voice] = []
    problems: list[str] = []
    for name in dict.fromkeys([*wanted, *config.engines.names]):
        stored = plugin_of(name, config.engines).stored_voices(setup_of(config, name))
        if stored is not None:
            voices += stored[0]
            problems += stored[1]
        elif name in wanted:
            engine = local_engine(config, name)
            try:
                await engine.start()
                voices += engine.voices
            finally:
                await engine.close()
    return voices, problems


def _wanted(config: Config) -> list[str]:
    """Names of the engines to run: the default, then the others that are installed or configured. An engine of the
    fallback that is not installed fails when it starts, and says how to install it."""
    engines = config.engines
    others = [name for name in engines.names if plugin_of(name, engines).is_wanted(setup_of(config, name))]
    return list(dict.fromkeys([engines.default, *others, *engines.fallback]))


def _named_engines(config: Config) -> set[str]:
    """The engines that the configuration names, but for the default routes."""
    engines, voice = config.engines, config.speech.voice or ""
    routes = {} if engines.routes == DEFAULT_ROUTES else engines.routes
    return {engines.default, *engines.fallback, *routes.values(), voice.partition("/")[0]}


def _absent(config: Config, wanted: list[str]) -> list[AbsentEngine]:
    """The engines that this server could have, but does not have."""
    return [
        absent
        for name in config.engines.names
        for absent in plugin_of(name, config.engines).absent(setup_of(config, name), runs=name in wanted)
    ]


def _shared_engine(config: Config, name: str, address: str) -> Engine:
    """The engine `name`, which another process of this server runs."""
    return remote.connect(
        name, (address,), timeouts=setup_of(config, name).timeouts, start_timeout_s=_SHARED_START_S
    )


def local_engine(config: Config, name: str) -> Engine:
    """The engine `name` in this process."""
    return plugin_of(name, config.engines).build(setup_of(config, name))


def served_engine(config: Config) -> Engine:
    """The default engine, for an engine server. Raises ConfigError if that is an engine of another process."""
    name = config.engines.default
    if plugin_of(name, config.engines).is_elsewhere:
        raise ConfigError(
            f"engines.default is {name}, which is an engine of another process; an engine server needs one of its own, "
            "for example --set engines.default=hibari"
        )
    return local_engine(config, name)


def engine_server(config: Config, engine: Engine, voices: Any) -> EngineServer:
    """The server of an engine, as `engines.remote` says. `voices`: what adds and removes voices of the engine."""
    return remote.serve_engine(engine, remote_settings(config), voices=voices)


def remote_settings(config: Config) -> RemoteSettings:
    """The section `engines.remote`."""
    own: RemoteSettings = plugin_of("remote", config.engines).own(config.engines)
    return own


def shared_engine(config: Config) -> str | None:
    """The engine that several fronts share, if the configuration wants one. Raises EngineUnavailable if packages for it
    are missing."""
    for plugin in PLUGINS:
        if plugin.is_shared_by_fronts and plugin.is_wanted(setup := setup_of(config, plugin.name)):
            plugin.need_packages(setup)
            remote.need_grpc()
            return plugin.name
    return None


def voice_service(config: Config, catalog: Catalog, shared: Mapping[str, str] = MappingProxyType({})) -> Any:
    """What adds and removes voices while the server runs (`http_api.voices.Voices`): of an engine here, else at engine
    servers; None without either. `shared`: see `build_catalog`."""
    bare = [engine.inner if isinstance(engine, PhraseKeeper) else engine for engine in catalog.engines]
    elsewhere = {name for plugin in PLUGINS if plugin.is_elsewhere for name in plugin.names(plugin.own(config.engines))}
    bare.sort(key=lambda engine: engine.name in elsewhere)
    found = (engine_voices(config, engine, is_shared=engine.name in shared) for engine in bare)
    return next((service for service in found if service is not None), None)


def engine_voices(config: Config, engine: Engine, *, is_shared: bool = False) -> Any:
    """What adds and removes the voices of an engine; None if it cannot. `is_shared`: see `EnginePlugin`."""
    if engine.name not in config.engines.names:
        return None  # an engine that a program of its own brings, such as a benchmark
    plugin = plugin_of(engine.name, config.engines)
    return plugin.voice_service(setup_of(config, engine.name), engine, is_shared=is_shared)


def voice_folders(config: Config) -> Iterator[Path]:
    """The folders that engines write voices to."""
    for plugin in PLUGINS:
        if (folder := plugin.voice_folder(plugin.own(config.engines))) is not None:
            yield folder


def voice_records(config: Config) -> Any:
    """Whose the voices are (`transport.call_catalog`); None if they belong to all."""
    found = (plugin.voice_records(plugin.own(config.engines)) for plugin in PLUGINS)
    return next((records for records in found if records is not None), None)


def version() -> str:
    """Of this package."""
    try:
        return importlib.metadata.version("telephony-tts")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def installed(part: str) -> bool:
    """Whether the package of an engine, of the language detector (py3langid) or of traces (opentelemetry) is there."""
    if part == "opentelemetry":
        return all(has_module(module) for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
    plugin = next((plugin for plugin in PLUGINS if plugin.name == part), None)
    return has_module(part) if plugin is None else plugin.is_installed()
