"""The composition root: the only module that knows every part. start → ready → drain → stop."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import math
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telephony_tts import event_loop, logs
from telephony_tts.config import MOST_PTIME_MS, Config
from telephony_tts.engines.api import Engine, EngineStats, Voice
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.espeak import EspeakEngine
from telephony_tts.engines.fake import FakeEngine
from telephony_tts.engines.hibari import HibariEngine
from telephony_tts.errors import AudioError, ConfigError, EngineUnavailable
from telephony_tts.session.settings import BargeIn, Limits, SessionSettings
from telephony_tts.transport.server import Server
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.voice_model import VOICE_MODEL

_log = logs.get(__name__)


def build_catalog(config: Config) -> Catalog:
    """The engines of the configuration: the default first, then every other one that is installed.

    A route to an engine that is not installed is left out, so that text it would have taken gets the default
    engine's clear refusal.
    """
    wanted = _wanted(config)
    routes = {lang: name for lang, name in config.engines.routes.items() if name in wanted}
    makers = _makers(config)
    return Catalog([makers[name]() for name in wanted], routes)


async def list_voices(config: Config) -> tuple[list[Voice], list[str]]:
    """Every voice of the configuration, the default engine's first, and why others on disk cannot be used.

    CosyVoice2's are read from their files: to start it takes as long as to load its weights.
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
    """Names of the engines to run: the default, then the others that are installed or configured."""
    others = [name for name in ("hibari", "espeak") if installed(name)]
    if config.engines.cosyvoice2.model is not None:
        others.append("cosyvoice2")
    return list(dict.fromkeys([config.engines.default, *others]))


def _makers(config: Config) -> dict[str, Callable[[], Engine]]:
    return {
        "hibari": lambda: HibariEngine(n_workers=config.engines.hibari.workers),
        "espeak": lambda: EspeakEngine(n_workers=config.engines.espeak.workers),
        "fake": lambda: FakeEngine(
            first_audio_ms=config.engines.fake.first_audio_ms,
            speed=1 / config.engines.fake.rtf if config.engines.fake.rtf else math.inf,
        ),
        "cosyvoice2": lambda: _cosyvoice2(config),
    }


def _cosyvoice2(config: Config) -> Engine:
    """Imported only when it is configured: torch is an extra, and takes a second to import."""
    settings = config.engines.cosyvoice2
    assert settings.model is not None
    need_torch()
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
    from telephony_tts.engines.cosyvoice2.service import Limits as EngineLimits

    return CosyVoice2Engine(
        Path(settings.model),
        voice_directory(config),
        settings.workers,
        settings.device,
        settings.dtype,
        settings.profile,
        finish=settings.finish,
        control_tokens=settings.control_tokens,
        limits=EngineLimits(settings.slots, settings.ready_voices, settings.flow_memory_mb),
        n_threads=settings.threads,
        isolation=settings.isolation,
        lm_dtype=settings.lm_dtype,
        flow_dtype=settings.flow_dtype,
        vocoder_dtype=settings.vocoder_dtype,
        ahead_ms=settings.ahead_ms,
    )


def _stored_voices(config: Config) -> tuple[list[Voice], list[str]]:
    need_torch()
    from telephony_tts.engines.cosyvoice2 import enrolment
    from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ
    from telephony_tts.engines.cosyvoice2.service import LANGUAGES
    from telephony_tts.engines.cosyvoice2.voice_store import VoiceStore

    model, directory = config.engines.cosyvoice2.model, voice_directory(config)
    assert directory is not None
    listed = enrolment.list_voices(Path(model) if model is not None else None, VoiceStore(directory))
    voices = [
        Voice(each.name, "cosyvoice2", LANGUAGES, SAMPLE_RATE_HZ, description=each.description)
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


def need_torch() -> None:
    """Raises EngineUnavailable where PyTorch, which all of CosyVoice2 needs, is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise EngineUnavailable("cosyvoice2 needs PyTorch: pip install -e '.[cosyvoice]' in the checkout")


def installed(engine: str) -> bool:
    """Whether the packages an engine needs are there."""
    package = {"hibari": "hibari", "espeak": "espeakng_loader"}.get(engine)
    return package is None or importlib.util.find_spec(package) is not None


def session_settings(config: Config) -> SessionSettings:
    """What a call starts with."""
    speech, limits, barge_in = config.speech, config.limits, config.barge_in
    return SessionSettings(
        codec=speech.codec,
        rate_hz=speech.rate_hz,
        ptime_ms=speech.ptime_ms,
        pace=speech.pace,
        lead_ms=speech.lead_ms,
        ahead_ms=speech.ahead_ms,
        voice=speech.voice,
        lang=speech.lang,
        speed=speech.speed,
        first_clause_chars=speech.first_clause_chars,
        text_timeout_ms=speech.text_timeout_ms,
        text_mode=speech.text_mode,
        control_tokens=config.engines.cosyvoice2.control_tokens,
        barge_in=BargeIn(
            enabled=barge_in.enabled,
            min_speech_ms=barge_in.min_speech_ms,
            hold_off_ms=barge_in.hold_off_ms,
            silence_ms=barge_in.silence_ms,
            floor_dbov=barge_in.floor_dbov,
        ),
        limits=Limits(
            turn_chars=limits.turn_chars,
            queued_turns=limits.queued_turns,
            text_chars_per_s=limits.text_chars_per_s,
            pause_chars=speech.pause_chars,
            resume_chars=speech.resume_chars,
            idle_s=int(limits.idle_s),
            turn_idle_s=int(limits.turn_idle_s),
        ),
    )


def transport_settings(config: Config) -> TransportSettings:
    """What the server needs of the configuration. Raises ConfigError for a certificate that cannot be used."""
    server = config.server
    tls = None
    if server.tls.cert is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(server.tls.cert, server.tls.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"server.tls: {server.tls.cert} and {server.tls.key} do not work: {error}") from error
    return TransportSettings(
        speech=session_settings(config),
        host=server.host,
        port=server.port,
        tokens=server.tokens,
        metrics_without_token=server.metrics_without_token,
        tls=tls,
        public_url=server.public_url,
        twilio_auth_token=config.twilio.auth_token,
        asterisk_urls=config.asterisk.dial,
        asterisk_lead_ms=max(MOST_PTIME_MS, min(config.asterisk.lead_ms, config.speech.ahead_ms)),
        drain_s=server.drain_s,
        max_message_bytes=server.max_message_bytes,
        slow_reader_s=server.slow_reader_s,
        ping_interval_s=server.ping_interval_s,
        max_calls=config.limits.calls,
        call_claim_s=config.limits.call_claim_s,
        max_frame_lateness_ms=config.limits.max_frame_lateness_ms,
        bot_url=config.bot.url,
        bot_token=config.bot.token,
        bot_connect_timeout_s=config.bot.connect_timeout_s,
        bot_inbound=config.bot.inbound,
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What is told to whoever started the server."""

    address: str
    """Where a program on this machine connects, such as "ws://127.0.0.1:8080"."""
    port: int
    voices: tuple[Voice, ...]
    stats: dict[str, EngineStats]


def _host_here(host: str) -> str:
    """The host under which a program on this machine finds a server that listens on `host`, for a URL.

    0.0.0.0 and :: are all addresses of the machine and none to connect to; IPv6 stands in brackets (RFC 3986 §3.2.2).
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    if ip.is_unspecified:
        host = "127.0.0.1" if ip.version == 4 else "::1"
    return host if ip.version == 4 else f"[{host}]"


async def serve(config: Config, announce: Callable[[Served], None] | None = None) -> None:
    """Run the server until SIGTERM or SIGINT, then drain and return. A second signal does not wait.

    It listens before its engines are there, so that a port in use is told at once and /readyz can say that it loads.
    """
    settings = transport_settings(config)
    if settings.speech.barge_in.enabled:
        _load_voice_model()
    catalog = build_catalog(config)
    server = Server(settings, catalog)
    try:
        with event_loop.stop_signals(server.stop_at_once) as stop:
            async with server.running(ready=False):
                _log.info("starting", port=server.port, engines=[engine.name for engine in catalog.engines])
                if not await _unless(stop, catalog.start()):
                    _log.info("stopped_before_ready")
                    return
                catalog.resolve(settings.speech.voice, None, "")
                event_loop.settle()
                server.ready = True
                scheme = "wss" if settings.tls is not None else "ws"
                address = f"{scheme}://{_host_here(settings.host)}:{server.port}"
                _log.info("ready", address=address, engines=[engine.name for engine in catalog.engines])
                if announce is not None:
                    announce(Served(address, server.port, catalog.voices, catalog.stats()))
                await stop.wait()
    finally:
        await catalog.close()
    _log.info("stopped")


def _load_voice_model() -> None:
    """Raises ConfigError: a server that is to listen to its callers and cannot must not start as if it did."""
    try:
        VOICE_MODEL.load()
    except AudioError as error:
        raise ConfigError(f"barge_in.enabled: {error.message}") from error


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work to its end, or until `stop`; whether it came to its end. Raises what it raises."""
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
    """`serve` on uvloop where there is one."""
    logs.setup(config.log)
    with event_loop.quick_turns():
        event_loop.run(serve(config, announce))
