"""The engines of a configuration: which run, how each is built, and what adds their voices."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from telephony_tts.app.config import DEFAULT_ROUTES, Config
from telephony_tts.engines.api import Engine, Voice, has_language, language_prefix
from telephony_tts.engines.catalog import AbsentEngine, Catalog
from telephony_tts.engines.cosyvoice2.languages import LANGUAGES, check_letters
from telephony_tts.engines.cosyvoice2.shared_voices import HasVoices, SharedVoices
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
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable, how_to_get
from telephony_tts.text.normalizer import normalize

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
    from telephony_tts.engines.cosyvoice2.voice_service import VoiceService
    from telephony_tts.engines.others.speech_server import SpeechServer
    from telephony_tts.engines.ray.engine import RayEngine
    from telephony_tts.engines.remote.client import RemoteEngine
    from telephony_tts.engines.remote.voice_client import RemoteVoices

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
