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
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from telephony_tts.app import config, offline
from telephony_tts.app.engines import build_catalog, setup_of
from telephony_tts.app.plugins import PLUGINS
from telephony_tts.app.processes import n_processes
from telephony_tts.app.settings import open_keys, session_settings, transport_settings, why_tokens_are_needed
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.engines.catalog import Catalog
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime.errors import (
    AudioError,
    ConfigError,
    TelephonyTTSError,
    how_to_get,
)
from telephony_tts.session.settings import SessionSettings


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
        ("onnxruntime", "", ""),
        *(package for plugin in PLUGINS for package in plugin.packages),
        ("py3langid", "lang", "tells German, French, ... from English and warns if the voice does not fit"),
        ("diskcache", "phrases", "phrases.folder, phrases kept on disk"),
        ("google-re2", "lexicon", "patterns in lexicons"),
        ("pypinyin", "pinyin", "polyphones: true in lexicons"),
        ("av", "formats", "mp3, opus, aac and flac over HTTP, and noise reduction of recordings"),
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
    for plugin in PLUGINS:
        for found in plugin.findings(setup_of(settings, plugin.name), is_running=is_running):
            yield Finding(*found)
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
