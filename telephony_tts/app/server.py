"""The composition root: the only module that knows every part. start → ready → drain → stop."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import ipaddress
import json
import math
import pickle
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from telephony_tts.app.config import DEFAULT_ROUTES, Config, doubtful_settings, lexicon_names
from telephony_tts.audio.voice_activity import import_runtime
from telephony_tts.engines.api import Engine, EngineStats, Voice, has_language, language_prefix
from telephony_tts.engines.catalog import AbsentEngine, Catalog
from telephony_tts.engines.cosyvoice2.hosting.machine_limits import cpu_share
from telephony_tts.engines.cosyvoice2.languages import LANGUAGES, check_letters
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.engines.cosyvoice2.voices.voice_records import VoiceRecords
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.engines.kokoro.engine import KokoroEngine
from telephony_tts.engines.kokoro.model import PARTS
from telephony_tts.engines.kokoro.styles import default_folder
from telephony_tts.engines.latin_language import LatinLanguage
from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.engines.phrase_store import PhraseStore
from telephony_tts.engines.phrases import PhraseKeeper
from telephony_tts.engines.remote.tls import TlsKeys, read_tls
from telephony_tts.engines.words import is_speakable
from telephony_tts.experiments.arms import Experiment
from telephony_tts.experiments.experiment_file import ExperimentReader
from telephony_tts.experiments.running import voices_of
from telephony_tts.fronts.front import Front
from telephony_tts.fronts.shared_voices import HasVoices, SharedVoices
from telephony_tts.fronts.supervisor import supervise
from telephony_tts.ops import logs, metrics
from telephony_tts.ops.certificate import expires_s
from telephony_tts.ops.keys.key import Key, KeyRing
from telephony_tts.ops.keys.key_file import read_keys
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.ops.settings_tree import raise_problems
from telephony_tts.ops.watched_file import WatchedFile
from telephony_tts.recording.live import Recordings
from telephony_tts.runtime import event_loop
from telephony_tts.runtime.clock import unix_s
from telephony_tts.runtime.daemon_pool import DaemonPool
from telephony_tts.runtime.errors import AudioError, ConfigError, EngineError, EngineUnavailable, how_to_get
from telephony_tts.session.lexicons import CallLexicon
from telephony_tts.session.settings import SessionSettings
from telephony_tts.text.normalizer import normalize
from telephony_tts.transport.server import Server
from telephony_tts.transport.settings import TlsFiles, TransportSettings
from telephony_tts.transport.sound_store import SoundStore
from telephony_tts.transport.voice_model import VOICE_MODEL

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
    from telephony_tts.engines.cosyvoice2.voice_service import VoiceService
    from telephony_tts.engines.others.speech_server import SpeechServer
    from telephony_tts.engines.ray.engine import RayEngine
    from telephony_tts.engines.remote.client import RemoteEngine
    from telephony_tts.engines.remote.voice_client import RemoteVoices
    from telephony_tts.ops.tracing import TurnTracing

_log = logs.get(__name__)

_MB = 1_000_000
_DISK_CHECK_S = 15.0
_LOW_DISK_MB = 200
"""Below this much free space a warning is logged. Recordings of 100 calls, 32 kB/s each, fill it in a minute."""
_LAST_SPANS_S = 5.0
_RELOAD_AGAIN_S = 10.0
"""After a check of a file that failed, the next one comes so soon, also if only SIGHUP causes checks."""
_SOUND_WAIT_SHARE = 0.8
"""A sound that is late is left out. The wait must end before `engines.timeout_s`, which would end the turn."""
_SHARED_START_S = 1_800.0
"""A front waits so long for an engine that all fronts share. To time a machine and to load a model takes minutes; the
supervisor reports an engine that cannot start."""
_DOCTOR_S = 60.0
"""The longest that the examination for the console may take. To import PyTorch from a cold disk takes many seconds."""
_WITHOUT_MANDARIN = ("hibari", "fake")
"""Default engines that need another one for Mandarin."""
_MOST_PROCESSES = 64
"""As in the setting `server.processes`."""
_MAX_PASSPHRASE_BYTES = 1024
"""OpenSSL's own limit."""

_WRONG_PASSPHRASE = (None, "BAD_DECRYPT")
"""The reasons that OpenSSL gives for a wrong passphrase. Most versions give none."""


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
    makers = _makers(config)
    for name, address in shared.items():
        makers[name] = partial(_shared_engine, config, name, address)
    detects = config.speech.detect_language and installed("py3langid")
    engines = [makers[name]() for name in wanted]
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
    """The routes of the configuration. Those that nobody has set are for the default engines that lack the language;
    without kokoro espeak speaks Mandarin, if it is there."""
    engines = config.engines
    if engines.routes != DEFAULT_ROUTES:
        return dict(engines.routes)
    if engines.default not in _WITHOUT_MANDARIN:
        return {}
    is_there = engines.kokoro.workers and installed("kokoro")
    return dict(DEFAULT_ROUTES) if is_there else {"zh": "espeak"}


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


async def list_voices(config: Config) -> tuple[list[Voice], list[str]]:
    """All voices of the configuration, the default engine's first, and the problems of voices that cannot be used.

    CosyVoice2's voices are read from their files, because to start that engine takes as long as to load its weights.
    """
    makers = _makers(config)
    voices: list[Voice] = []
    problems: list[str] = []
    for name in dict.fromkeys([*_wanted(config), *(["cosyvoice2"] if voice_directory(config) else [])]):
        if name == "cosyvoice2":
            stored, problems = _stored_voices(config)
            voices += stored
            continue
        engine = makers[name]()
        try:
            await engine.start()
            voices += engine.voices
        finally:
            await engine.close()
    return voices, problems


def _wanted(config: Config) -> list[str]:
    """Names of the engines to run: the default, then the others that are installed or configured. An engine of the
    fallback that is not installed fails when it starts, and says how to install it."""
    others = [name for name, n_workers in config.engines.n_workers.items() if n_workers and installed(name)]
    if config.engines.default != "hibari" and "kokoro" in others and "kokoro" not in _named_engines(config):
        others.remove("kokoro")  # it takes 300 MB, and other engines speak Mandarin, or none is wanted
    if config.engines.cosyvoice2.model is not None:
        others.append("cosyvoice2")
    if config.engines.remote.target is not None:
        others.append("remote")
    if config.engines.ray.address is not None:
        others.append("ray")
    others += config.engines.others
    return list(dict.fromkeys([config.engines.default, *others, *config.engines.fallback]))


def _named_engines(config: Config) -> set[str]:
    """The engines that the configuration names, but for the routes that nobody has set."""
    engines, voice = config.engines, config.speech.voice or ""
    routes = {} if engines.routes == DEFAULT_ROUTES else engines.routes
    return {engines.default, *engines.fallback, *routes.values(), voice.partition("/")[0]}


def _needs_mandarin(config: Config) -> bool:
    """Whether calls are expected to be in Mandarin, so that its voice is loaded at the start."""
    return "kokoro" in _named_engines(config) or language_prefix(config.speech.lang or "") in ("zh", "cmn")


def kokoro_folder(config: Config) -> Path:
    """The folder of the voices of kokoro that are not included."""
    folder = config.engines.kokoro.voices
    return default_folder() if folder is None else Path(folder)


def _absent(config: Config, wanted: list[str]) -> list[AbsentEngine]:
    """The engines that this server could have, but does not have. An engine counts as absent for languages that it
    cannot speak yet."""
    absent = []
    kokoro = KokoroEngine(voices_folder=kokoro_folder(config))
    if "kokoro" in wanted:
        for voice, how in kokoro.absent_languages().items():
            absent.append(AbsentEngine("kokoro", voice.languages, partial(kokoro.check_letters, voice), how))
    else:
        how = "set engines.routes to {zh: kokoro}" if installed("kokoro") else how_to_get("kokoro")
        absent.append(AbsentEngine("kokoro", kokoro.voices[0].languages, kokoro.check, how))
    if "espeak" not in wanted:
        espeak = EspeakEngine()
        languages = tuple(lang for voice in espeak.voices for lang in voice.languages)
        is_off = installed("espeak")
        how = "set engines.espeak.workers to 1 or more" if is_off else how_to_get("espeak")
        absent.append(AbsentEngine("espeak", languages, espeak.check, how))
    if "cosyvoice2" not in wanted:
        how = "get its model and set engines.cosyvoice2.model (docs/cosyvoice2.md)"
        absent.append(AbsentEngine("cosyvoice2", LANGUAGES, lambda utterance: check_letters(utterance.text), how))
    return absent


def _makers(config: Config) -> dict[str, Callable[[], Engine]]:
    return {
        **{name: partial(other_engine, name, settings) for name, settings in config.engines.others.items()},
        "hibari": lambda: HibariEngine(n_workers=config.engines.hibari.workers),
        "kokoro": lambda: KokoroEngine(
            n_workers=config.engines.kokoro.workers,
            at_first_need=not _needs_mandarin(config),
            voices_folder=kokoro_folder(config),
        ),
        "espeak": lambda: EspeakEngine(n_workers=config.engines.espeak.workers),
        "fake": lambda: FakeEngine(
            first_audio_ms=config.engines.fake.first_audio_ms,
            speed=1 / config.engines.fake.rtf if config.engines.fake.rtf else math.inf,
            slots=config.engines.fake.slots,
        ),
        "cosyvoice2": lambda: cosyvoice2_engine(config),
        "remote": lambda: remote_engine(config),
        "ray": lambda: ray_engine(config),
    }


def remote_engine(config: Config) -> RemoteEngine:
    """gRPC is imported only when an engine of another process is configured: it is an extra."""
    engines, settings = config.engines, config.engines.remote
    need_grpc()
    from telephony_tts.engines.remote.client import RemoteEngine

    return RemoteEngine(
        "remote",
        settings.targets,
        token=settings.token,
        start_timeout_s=settings.start_timeout_s,
        wait_ready_s=engines.restart_wait_s,
        first_audio_timeout_ms=engines.first_audio_timeout_ms,
        tls=engine_tls(config),
    )


def engine_tls(config: Config) -> TlsKeys | None:
    """What encrypts the connection to engine servers, or of one. Raises ConfigError."""
    files = config.engines.remote.tls
    return read_tls(files.ca, files.cert, files.key)


def ray_engine(config: Config) -> RayEngine:
    """The front itself imports no Ray: the process that watches the replicas does."""
    engines, settings = config.engines, config.engines.ray
    assert settings.address is not None
    need_grpc()
    need_ray()
    from telephony_tts.engines.ray.engine import RayEngine

    return RayEngine(
        "ray",
        settings.address,
        settings.app,
        model=settings.model,
        start_timeout_s=settings.start_timeout_s,
        wait_ready_s=engines.restart_wait_s,
        first_audio_timeout_ms=engines.first_audio_timeout_ms,
    )


def other_engine(name: str, settings: OtherEngineSettings) -> Engine:
    """A speech server of another project. Its packages are an extra, and imported only when one is configured."""
    is_grpc = settings.kind in ("triton", "cosyvoice_grpc")
    for package in ("grpc", "google.protobuf") if is_grpc else ("httpx2",):
        if not is_installed(package):
            raise EngineUnavailable(
                f"engines.others.{name} needs {package}: {how_to_get('others')}"
            )
    from telephony_tts.engines.others.other_engine import OtherEngine

    return OtherEngine(name, settings, _speech_server(settings, f"engines.others.{name}"))


def _speech_server(settings: OtherEngineSettings, setting: str) -> SpeechServer:
    if settings.kind == "triton":
        from telephony_tts.engines.others.triton import TritonModel

        return TritonModel(settings, setting)
    if settings.kind == "cosyvoice_grpc":
        from telephony_tts.engines.others.cosyvoice_grpc import CosyVoiceGrpc

        return CosyVoiceGrpc(settings, setting)
    if settings.websocket:
        from telephony_tts.engines.others.omni_socket import OmniSocket

        return OmniSocket(settings, setting)
    from telephony_tts.engines.others.http_speech import HttpSpeech

    return HttpSpeech(settings, setting)


def is_installed(package: str) -> bool:
    """Whether a package, or one inside another, can be imported. It is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _shared_engine(config: Config, name: str, address: str) -> Engine:
    """The engine `name`, which another process of this server runs."""
    from telephony_tts.engines.remote.client import RemoteEngine

    engines = config.engines
    return RemoteEngine(
        name,
        (address,),
        start_timeout_s=_SHARED_START_S,
        wait_ready_s=engines.restart_wait_s,
        first_audio_timeout_ms=engines.first_audio_timeout_ms,
    )


def local_engine(config: Config, name: str) -> Engine:
    """The engine `name` in this process."""
    return _makers(config)[name]()


def served_engine(config: Config) -> Engine:
    """The default engine, for an engine server. Raises ConfigError if that is an engine of another process."""
    name = config.engines.default
    if name in ("remote", "ray"):
        raise ConfigError(
            f"engines.default is {name}, which is an engine of another process; an engine server needs one of its own, "
            "for example --set engines.default=hibari"
        )
    return _makers(config)[name]()


def need_ray() -> None:
    """Raises EngineUnavailable where Ray Serve is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise EngineUnavailable(f"replicas on Ray Serve need ray: {how_to_get('ray')}")


def need_grpc() -> None:
    """Raises EngineUnavailable where gRPC, which engines of other processes need, is not installed."""
    if importlib.util.find_spec("grpc") is None:
        raise EngineUnavailable(f"engines of other processes need grpcio: {how_to_get('remote')}")


def cosyvoice2_engine(config: Config) -> CosyVoice2Engine:
    """CosyVoice2 is imported only when it is configured: torch is an extra, and takes a second to import."""
    engines, settings = config.engines, config.engines.cosyvoice2
    assert settings.model is not None
    need_torch(config)
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
    from telephony_tts.engines.cosyvoice2.settings import Timeouts

    return CosyVoice2Engine(
        Path(settings.model),
        voice_directory(config),
        None if settings.workers == "auto" else settings.workers,
        settings.device,
        settings.dtype,
        settings.profile,
        finish=settings.finish,
        control_tokens=settings.control_tokens,
        limits=EngineLimits(settings.slots, settings.ready_voices, settings.flow_memory_mb),
        n_threads=None if settings.threads == "auto" else settings.threads,
        isolation=settings.isolation,
        lm_dtype=settings.lm_dtype,
        flow_dtype=settings.flow_dtype,
        vocoder_dtype=settings.vocoder_dtype,
        ahead_ms=settings.ahead_ms,
        timeouts=Timeouts(engines.stall_s, engines.timeout_s, engines.restart_wait_s),
        flow_steps=settings.flow_steps,
        end_of_instruction=settings.end_of_instruction,
        lm_backend=settings.lm_backend,
    )


def _stored_voices(config: Config) -> tuple[list[Voice], list[str]]:
    need_torch(config)
    from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2, COSYVOICE_300M
    from telephony_tts.engines.cosyvoice2.model.file_names import is_first_generation
    from telephony_tts.engines.cosyvoice2.voices import enrolment
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    model, directory = config.engines.cosyvoice2.model, voice_directory(config)
    assert directory is not None
    family = COSYVOICE_300M if model is not None and is_first_generation(Path(model)) else COSYVOICE2
    listed = enrolment.list_voices(Path(model) if model is not None else None, VoiceStore(directory))
    voices = [
        Voice(each.name, "cosyvoice2", LANGUAGES, family.sample_rate_hz, description=each.description)
        for each in listed
        if each.features is not None
    ]
    return voices, [f"{each.name} cannot be used: {each.problem}" for each in listed if each.features is None]


def voice_directory(config: Config) -> Path | None:
    """Where CosyVoice2's stored voices are: the folder that is set, else `voices` in the model directory."""
    settings = config.engines.cosyvoice2
    if settings.voices is not None:
        return Path(settings.voices)
    return Path(settings.model) / "voices" if settings.model is not None else None


def voice_service(
    config: Config, catalog: Catalog, shared: Mapping[str, str] = MappingProxyType({})
) -> VoiceService | RemoteVoices | None:
    """What adds and removes voices while the server runs. None without CosyVoice2, here or at engine servers. `shared`:
    see `build_catalog`."""
    directory, settings = voice_directory(config), config.engines.cosyvoice2
    bare = [engine.inner if isinstance(engine, PhraseKeeper) else engine for engine in catalog.engines]
    if directory is None or settings.model is None:
        return _remote_voices(bare)
    from telephony_tts.engines.cosyvoice2.voice_service import VoiceService

    if "cosyvoice2" in shared:
        made_by = f"telephony-tts {version()}"
        voices = SharedVoices(cast(HasVoices, next(engine for engine in bare if engine.name == "cosyvoice2")))
        return VoiceService(
            voices, Path(settings.model), directory, spoken, n_prompts=settings.prompts, made_by=made_by,
            until_known=voices.until_known,
        )  # fmt: skip
    return next((service for each in bare if (service := engine_voices(config, each)) is not None), None)


def _remote_voices(engines: Sequence[Engine]) -> RemoteVoices | None:
    """The voices of engine servers. None if all engines are in this process."""
    if not any(engine.name in ("remote", "ray") for engine in engines):
        return None
    from telephony_tts.engines.remote.client import RemoteEngine
    from telephony_tts.engines.remote.voice_client import RemoteVoices

    return next((RemoteVoices(engine) for engine in engines if isinstance(engine, RemoteEngine)), None)


def engine_voices(config: Config, engine: Engine) -> VoiceService | None:
    """What adds and removes the voices of an engine in this process. None if it is not CosyVoice2."""
    directory, settings = voice_directory(config), config.engines.cosyvoice2
    if directory is None or settings.model is None or engine.name != "cosyvoice2":
        return None
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
    from telephony_tts.engines.cosyvoice2.voice_service import VoiceService

    if not isinstance(engine, CosyVoice2Engine):
        return None
    made_by = f"telephony-tts {version()}"
    return VoiceService(engine, Path(settings.model), directory, spoken, n_prompts=settings.prompts, made_by=made_by)


def spoken(text: str) -> str:
    """A transcript in words, as in the training of CosyVoice2 (specification 3.4), or "" if it has no words."""
    words = " ".join(normalize(" ".join(text.split())).split())
    return words if is_speakable(words) else ""


def version() -> str:
    """Of this package."""
    try:
        return importlib.metadata.version("telephony-tts")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def need_torch(config: Config | None = None) -> None:
    """Raises EngineUnavailable where PyTorch, which all of CosyVoice2 needs, is not installed. It names a model
    directory that is missing too: an operator mends both at once."""
    if importlib.util.find_spec("torch") is None:
        model = None if config is None else config.engines.cosyvoice2.model
        also = "" if model is None or Path(model).is_dir() else f"; and there is no model directory {model}"
        raise EngineUnavailable(f"cosyvoice2 needs PyTorch: {how_to_get('cosyvoice')}{also}")


def installed(part: str) -> bool:
    """Whether the package of an engine, of the language detector (py3langid) or of traces (opentelemetry) is there."""
    if part == "opentelemetry":
        return all(_has(module) for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
    if part == "kokoro":
        return all(_has(module) for module in (*PARTS, "pypinyin", "hibari"))
    package = {"hibari": "hibari", "espeak": "espeakng_loader", "py3langid": "py3langid"}.get(part)
    return package is None or _has(package)


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # the package that it is in


def open_lexicons(config: Config) -> LexiconFiles | None:
    """The lexicons of the configuration, None without any. Raises ConfigError."""
    return LexiconFiles(config.lexicons.files) if config.lexicons.files else None


def session_settings(config: Config, lexicons: LexiconFiles | None = None) -> SessionSettings:
    """The settings with which a call starts."""
    names = config.lexicons
    return SessionSettings.of(
        config.speech,
        control_tokens=config.engines.cosyvoice2.control_tokens,
        engine_timeout_ms=round(config.engines.timeout_s * 1000),
        barge_in=config.barge_in,
        caller=config.caller,
        dtmf=config.dtmf,
        limits=config.limits,
        lexicon=None if lexicons is None else CallLexicon(
            lexicons.shelf,
            {language_prefix(lang): lexicon_names(listed) for lang, listed in names.languages.items()},
            {voice: lexicon_names(listed) for voice, listed in names.voices.items()},
        ),
    )


def open_keys(config: Config) -> WatchedFile[tuple[Key, ...]] | None:
    """The named keys of the configuration, None without a file. Raises ConfigError."""
    if config.keys.file is None:
        return None
    return WatchedFile("keys", Path(config.keys.file), partial(read_keys, tokens=config.server.tokens))


def open_experiments(
    config: Config, catalog: Catalog, has_started: Callable[[], bool]
) -> WatchedFile[tuple[Experiment, ...]] | None:
    """The experiments of the configuration, None without a file. Raises ConfigError, also for an engine that the
    catalog lacks. The voices are known when the engines have started: until then `check_voices` is left to the
    caller."""
    if config.experiments.file is None:
        return None
    reader = ExperimentReader([engine.name for engine in catalog.engines], config.speech, config.barge_in)

    def read(path: Path) -> tuple[Experiment, ...]:
        experiments = reader.read(path)
        if has_started():
            check_voices(experiments, catalog, str(path))
        return experiments

    return WatchedFile("experiments", Path(config.experiments.file), read)


def check_voices(experiments: Sequence[Experiment], catalog: Catalog, source: str) -> None:
    """Raises ConfigError if an arm names a voice that no engine has."""
    known = {name for voice in catalog.voices for name in (voice.name, f"{voice.engine}/{voice.name}")}
    missing = [(where, voice) for where, voice in voices_of(experiments) if voice not in known]
    raise_problems(source, [f"{where}: no engine of this server has a voice {voice!r}" for where, voice in missing])


def transport_settings(
    config: Config, lexicons: LexiconFiles | None = None, keys: WatchedFile[tuple[Key, ...]] | None = None
) -> TransportSettings:
    """The settings of the transport. `keys`: the named keys.

    Raises ConfigError for a public server without a token that `server.open` does not allow, and for a certificate
    that cannot be used.
    """
    server = config.server
    why = why_tokens_are_needed(config)
    if why is not None and not server.open:
        raise ConfigError(
            f"{why}, and no token is set, so anyone could connect as a bot. Make a token (openssl rand -hex 32) and "
            "put it into TELEPHONY_TTS_TOKENS or into a file named in server.tokens_file, or name a file of keys in "
            "keys.file. To let everyone in, set "
            "server.open: true (--set server.open=true)"
        )
    return TransportSettings(
        speech=session_settings(config, lexicons),
        server=server,
        limits=config.limits,
        bot=config.bot,
        twilio=config.twilio,
        plivo=config.plivo,
        vonage=config.vonage,
        genesys=config.genesys,
        asterisk=config.asterisk,
        vendors=config.vendors,
        find_sound=SoundStore(config.sounds, _SOUND_WAIT_SHARE * config.engines.timeout_s).find,
        token_lexicons={token: lexicon_names(listed) for token, listed in config.lexicons.tokens.items()},
        key_lexicons={name: lexicon_names(listed) for name, listed in config.lexicons.named_keys.items()},
        keys=KeyRing(server.tokens, () if keys is None else keys.content, unix_s, server.supervisor_tokens),
        owners=None if (folder := voice_directory(config)) is None else VoiceRecords(VoiceFolder(folder)),
        tls=None if server.tls.cert is None else _tls(server.tls),
    )


def why_tokens_are_needed(config: Config) -> str | None:
    """What makes the server public, if it is public and has no tokens. Otherwise None."""
    server = config.server
    if config.needs_token:
        return None
    if not server.is_on_loopback:
        return f"server.host is {server.host}, which other machines can reach"
    if server.is_public_elsewhere:
        return f"server.public_url is {server.public_url}, so other machines can reach this server"
    for name, secret in (
        ("twilio.auth_token", config.twilio.auth_token),
        ("plivo.auth_token", config.plivo.auth_token),
        ("vonage.signature_secret", config.vonage.signature_secret),
        ("genesys.client_secret", config.genesys.client_secret),
    ):
        if secret is not None:
            # The carrier connects from outside: a proxy or a tunnel leads to the loopback address.
            return f"{name} is set, which is for a server on the internet"
    return None


def _tls(files: TlsFiles) -> ssl.SSLContext:
    """Load the server's certificate. Never asks a terminal for a passphrase. Raises ConfigError."""
    assert files.cert is not None and files.key is not None
    given = None if files.passphrase_file is None else _passphrase(files.passphrase_file)
    is_encrypted = False

    def passphrase() -> bytes:
        nonlocal is_encrypted
        is_encrypted = True
        if given is None:
            raise ConfigError(
                f"server.tls.key: {files.key} is encrypted; put its passphrase into a file and name it in "
                "server.tls.passphrase_file"
            )
        return given

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2  # whatever the system's configuration of OpenSSL allows
    tls.options |= ssl.OP_NO_RENEGOTIATION  # it costs a peer nothing and the server a signature
    try:
        tls.load_cert_chain(files.cert, files.key, passphrase)
    except (ssl.SSLError, OSError) as error:
        if is_encrypted and getattr(error, "reason", None) in _WRONG_PASSPHRASE:
            why = f"the passphrase in {files.passphrase_file} does not open {files.key}"
            raise ConfigError(f"server.tls.passphrase_file: {why}") from error
        raise ConfigError(f"server.tls: {files.cert} and {files.key} do not work: {error}") from error
    try:
        metrics.CERTIFICATE_EXPIRES.labels("server.tls.cert").set(expires_s(files.cert))
    except ValueError as error:  # it works, so the server starts
        _log.warning("certificate_end_unknown", why=str(error))
    return tls


def _passphrase(file: str) -> bytes:
    """The file's first line. Raises ConfigError."""
    try:
        with open(file, "rb") as lines:
            line = lines.readline(_MAX_PASSPHRASE_BYTES + len(b"\r\n") + 1)
    except OSError as error:
        raise ConfigError(f"server.tls.passphrase_file: cannot read {file}: {error.strerror}") from error
    passphrase = line.removesuffix(b"\n").removesuffix(b"\r")
    if not passphrase:
        raise ConfigError(f"server.tls.passphrase_file: the first line of {file} is empty; expected the passphrase")
    if len(passphrase) > _MAX_PASSPHRASE_BYTES:
        limit = f"expected at most {_MAX_PASSPHRASE_BYTES} bytes"
        raise ConfigError(f"server.tls.passphrase_file: the first line of {file} is too long; {limit}")
    return passphrase


@dataclass(frozen=True, slots=True)
class Served:
    """The facts that are printed for the operator when the server is ready."""

    address: str
    """Where a program on this machine connects, such as "ws://127.0.0.1:8080"."""
    port: int
    voices: tuple[Voice, ...]
    stats: dict[str, EngineStats]
    n_processes: int = 1


def _host_here(host: str) -> str:
    """The host part of the URL at which a program on this machine reaches a server that listens on `host`.

    0.0.0.0 and :: mean all addresses, and a client needs one address. IPv6 stands in brackets (RFC 3986 §3.2.2).
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    if ip.is_unspecified:
        host = "127.0.0.1" if ip.version == 4 else "::1"
    return host if ip.version == 4 else f"[{host}]"


async def serve(
    config: Config,
    announce: Callable[[Served], None] | None = None,
    front: Front | None = None,
    sockets: Sequence[socket.socket] = (),
    *,
    listens_at_once: bool = True,
    shared: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the server until SIGTERM or SIGINT, then drain and return. A second signal does not wait.

    It listens before its engines are loaded. So a port in use is reported at once, and /readyz is 503 while they load.

    `front`: this process is one of several, and listens on `sockets`. One that replaces another does not listen at
    once: the others answer until it can speak. `shared`: see `build_catalog`.
    """
    lexicons, keys = open_lexicons(config), open_keys(config)
    settings = transport_settings(config, lexicons, keys)
    if settings.speech.barge_in.enabled:
        _load_voice_model("barge_in.enabled")
    elif settings.speech.caller.silent_ms:
        _load_voice_model("caller.silent_ms")
    elif settings.speech.caller.answering_machine:
        _load_voice_model("caller.answering_machine")
    recordings = open_recordings(config)
    catalog = build_catalog(config, shared=shared)
    server = Server(settings, catalog, front)
    experiments = open_experiments(config, catalog, lambda: server.ready)
    if experiments is not None:
        settings.experiments.replace(experiments.content)
    server.registry.recordings = recordings
    tracing = server.registry.tracing = open_tracing(config)
    voices = voice_service(config, catalog, shared)
    # Imported already, see `import_slow_modules`.
    from telephony_tts.http_api.asgi import http_server
    from telephony_tts.http_api.console_routes import ConsoleTools

    server.http = http_server(server, voices, ConsoleTools(partial(findings, config), lexicons))
    disks = asyncio.create_task(_watch_disks(config), name="watch disks")
    reloads = Reloads()
    if lexicons is not None:
        reloads.add(lexicons.reload, lambda _: None, config.lexicons.check_s)
    if keys is not None:
        reloads.add(keys.reload, settings.keys.replace, config.keys.check_s)
    if experiments is not None:
        reloads.add(experiments.reload, settings.experiments.replace, config.experiments.check_s)
    try:
        with event_loop.stop_signals(server.stop_at_once) as stop, reloads.running():
            async with AsyncExitStack() as stack:
                if front is not None:
                    moved = front.listening(server.adopt, server.refresh_gauges, server.activity)
                    await stack.enter_async_context(moved)
                await stack.enter_async_context(
                    server.running(ready=False, sockets=sockets, listens_at_once=listens_at_once)
                )
                _log.info("starting", port=server.port, engines=[engine.name for engine in catalog.engines])
                if not await unless_stopped(stop, catalog.start()):
                    _log.info("stopped_before_ready")
                    return
                catalog.resolve(settings.speech.voice, None, "")
                if experiments is not None:
                    check_voices(experiments.content, catalog, str(config.experiments.file))
                event_loop.settle()
                server.ready = True
                await server.start_listening()
                scheme = "wss" if settings.tls is not None else "ws"
                address = f"{scheme}://{_host_here(settings.server.host)}:{server.port}"
                _log.info("ready", address=address, engines=[engine.name for engine in catalog.engines])
                for doubt in doubtful_settings(config):
                    _log.warning("doubtful_setting", why=doubt)
                if (why := why_tokens_are_needed(config)) is not None:
                    _log.warning("open_to_everyone", why=f"{why}; no token is set, and server.open is true")
                if announce is not None:
                    announce(Served(address, server.port, catalog.voices, catalog.stats()))
                await stop.wait()
    finally:
        disks.cancel()
        try:
            if voices is not None:
                await voices.close()
            await catalog.close()
        finally:
            try:
                if recordings is not None:
                    await recordings.close()
            finally:
                if tracing is not None:
                    await _close_tracing(tracing)
    _log.info("stopped")


class Reloads:
    """Reads files again when they changed: now and then, and at once at SIGHUP. A mounted file sends no signal."""

    def __init__(self) -> None:
        self._files: list[tuple[Callable[[], Any], Callable[[Any], None], float]] = []
        self._asked: list[asyncio.Event] = []

    def add(self, read: Callable[[], Any], use: Callable[[Any], None], check_s: float) -> None:
        """Call `read` every `check_s` in a thread; 0: only at SIGHUP. What it returns is given to `use` in the event
        loop, unless it is None."""
        self._files.append((read, use, check_s))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read files while the context lasts. Without files SIGHUP ends the process, as ever."""
        if not self._files:
            yield
            return
        self._asked = [asyncio.Event() for _ in self._files]
        # One file at a time, for the sake of the event loop, which all threads that compute take turns with.
        pool = DaemonPool(1, "reloads")
        tasks = [
            asyncio.create_task(self._watch(*file, asked, pool), name="watch files")
            for file, asked in zip(self._files, self._asked, strict=True)
        ]
        try:
            with event_loop.on_hangup(self.now):
                yield
        finally:
            for task in tasks:
                task.cancel()
            pool.shutdown(wait=False, cancel_futures=True)

    def now(self) -> None:
        """Read all files that changed, without waiting."""
        for asked in self._asked:
            asked.set()

    async def _watch(
        self,
        read: Callable[[], Any],
        use: Callable[[Any], None],
        check_s: float,
        asked: asyncio.Event,
        pool: DaemonPool,
    ) -> None:
        wait_s, unused = check_s, None
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), wait_s or None)
            asked.clear()
            wait_s = check_s
            try:
                content = await asyncio.wrap_future(pool.submit(event_loop.giving_way, read))
                unused = unused if content is None else content
                if unused is not None:
                    use(unused)
                    unused = None
            except Exception:
                _log.exception("files_not_checked")  # everything stays as it is, and is checked again
                wait_s = min(check_s or _RELOAD_AGAIN_S, _RELOAD_AGAIN_S)


async def _watch_disks(config: Config) -> None:
    """Measure the free space of the folders that the server writes to, beside the event loop: a disk of the network may
    hang."""
    voices = voice_directory(config)
    folders = {
        "recordings": config.recordings.folder,
        "phrases": config.phrases.folder if config.phrases.enabled else None,
        "voices": None if voices is None else str(voices),
    }
    written = {name: folder for name, folder in folders.items() if folder is not None}
    pool = DaemonPool(1, "disks")
    low: set[str] = set()
    try:
        while written:
            for name, folder in written.items():
                try:
                    usage = await asyncio.wrap_future(pool.submit(shutil.disk_usage, folder))
                except (OSError, RuntimeError):
                    continue  # it does not exist yet, or no thread could be started
                metrics.DISK_FREE_BYTES.labels(name).set(usage.free)
                metrics.DISK_SIZE_BYTES.labels(name).set(usage.total)
                if usage.free >= _LOW_DISK_MB * _MB:
                    low.discard(name)
                elif name not in low:
                    low.add(name)
                    _log.warning("disk_nearly_full", what=name, folder=folder, free_mb=usage.free // _MB)
            await asyncio.sleep(_DISK_CHECK_S)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def open_tracing(config: Config) -> TurnTracing | None:
    """What makes spans of turns, None without a collector. OpenTelemetry is an extra. Raises EngineUnavailable."""
    settings = config.tracing
    if settings.endpoint is None:
        return None
    if not installed("opentelemetry"):
        raise ConfigError(
            f"tracing.endpoint is set, and traces need OpenTelemetry: {how_to_get('otel')}"
        )
    from telephony_tts.ops.tracing import TurnTracing

    return TurnTracing(settings.endpoint, settings.share, version())


async def _close_tracing(tracing: TurnTracing) -> None:
    """Send the last spans, unless the collector takes too long."""
    pool = DaemonPool(1, "last spans")
    try:
        sent = asyncio.wrap_future(pool.submit(tracing.close))
    except RuntimeError as error:
        _log.warning("spans_lost", why=str(error))
        return
    _, late = await asyncio.wait((sent,), timeout=_LAST_SPANS_S)
    if late:
        _log.warning("spans_lost", why=f"tracing.endpoint did not take the last spans within {_LAST_SPANS_S:g} s")
    pool.shutdown(wait=False)


async def findings(config: Config) -> list[dict[str, Any]]:
    """What `doctor` finds beside this server, from a process of its own. Raises EngineError."""
    doctor = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "telephony_tts.app.doctor", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_DOCTOR_S):
            told, complaint = await doctor.communicate(pickle.dumps(config))
    except TimeoutError as error:
        raise EngineError(f"the examination took longer than {_DOCTOR_S:.0f} s") from error
    except RuntimeError as error:  # of uvloop, if the process has ended before it could be written to
        raise EngineError("the examination failed: its process ended at once") from error
    finally:
        if doctor.returncode is None:
            doctor.kill()
            await doctor.wait()
    if doctor.returncode:
        _log.error("doctor_failed", why=complaint[-1000:].decode(errors="replace"))
        raise EngineError("the examination failed; see the server's log")
    found: list[dict[str, Any]] = json.loads(told)
    return found


def open_recordings(config: Config) -> Recordings | None:
    """The folder of recordings, None without one. It removes old ones, also if no call is recorded any more. Raises
    ConfigError if the folder cannot be written."""
    if config.recordings.folder is None:
        return None
    recordings = Recordings(config.recordings)
    recordings.open()
    return recordings


def _load_voice_model(needed_by: str) -> None:
    """Raises ConfigError if the network cannot be loaded: a server whose configuration needs it must not start without
    it."""
    try:
        VOICE_MODEL.load()
    except AudioError as error:
        raise ConfigError(f"{needed_by}: {error.message}") from error


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it ends or `stop` is set. True if it ended. Raises its errors."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
    if task.cancelled():
        return False
    task.result()
    return True


def run(config: Config, announce: Callable[[Served], None] | None = None) -> None:
    """Run `serve`, on uvloop if it is installed; with several processes, run it in each of them."""
    event_loop.share_one_arena()
    logs.setup(config.log)
    n = n_processes(config)
    if n > 1:
        event_loop.run(_supervise(config, n, announce))
        return
    import_slow_modules()
    with event_loop.quick_turns():
        event_loop.run(serve(config, announce))


def import_slow_modules() -> None:
    """Import the HTTP interface and onnxruntime before an event loop runs. Within it the import would make calls late,
    and on a busy machine a front would be silent for too long. Commands that serve nothing do without them."""
    import telephony_tts.http_api.asgi  # noqa: F401

    import_runtime()


def n_processes(config: Config) -> int:
    """How many front processes `serve` runs. A quota of the container counts, rounded down."""
    wanted = config.server.processes
    if wanted != "auto":
        return wanted
    share = cpu_share()
    return max(1, min(share.n_cpus, _MOST_PROCESSES, math.floor(share.quota or share.n_cpus)))


async def _supervise(config: Config, n: int, announce: Callable[[Served], None] | None) -> None:
    """Run `n` fronts. What can be wrong with the settings is checked here, so that it is reported once."""
    transport_settings(config, open_lexicons(config), open_keys(config))
    shared_engine = None
    if config.engines.cosyvoice2.model is not None:
        # One for all fronts: a model takes gigabytes, and batches of all calls are the fastest.
        need_torch(config)
        need_grpc()
        shared_engine = ("cosyvoice2", config)

    def tell(served: Served) -> None:
        if announce is not None:
            announce(replace(served, n_processes=n))

    server = config.server
    configs = [config_of_front(config, number, n) for number in range(n)]
    drain_s = server.drain_calls_s + server.drain_s
    reloads = bool(config.lexicons.files) or config.keys.file is not None or config.experiments.file is not None
    await supervise(
        configs, server.host, server.port, drain_s, server.runtime_folder, tell, shared_engine, reloads=reloads
    )


def config_of_front(config: Config, number: int, n: int) -> Config:
    """The configuration of one of `n` fronts: its part of the engines' threads, of the requests that other engines
    serve at once, and of the memory for audio. Raises ConfigError if there are fewer slots than fronts."""

    def part(whole: int) -> int:
        return max(min(1, whole), whole // n + (number < whole % n))

    engines, phrases, sounds = config.engines, config.phrases, config.sounds
    for name, each in engines.others.items():
        if each.slots is not None and each.slots < n:
            raise ConfigError(
                f"engines.others.{name}.slots is {each.slots}, too few for {n} processes (server.processes): each "
                f"process needs one. Set server.processes to at most {each.slots}"
            )
    return replace(
        config,
        engines=replace(
            engines,
            hibari=replace(engines.hibari, workers=part(engines.hibari.workers)),
            kokoro=replace(engines.kokoro, workers=part(engines.kokoro.workers)),
            espeak=replace(engines.espeak, workers=part(engines.espeak.workers)),
            others={name: replace(each, slots=part(each.facts.slots)) for name, each in engines.others.items()},
        ),
        phrases=replace(phrases, memory_mb=part(phrases.memory_mb)),
        sounds=replace(sounds, memory_mb=part(sounds.memory_mb)),
    )
