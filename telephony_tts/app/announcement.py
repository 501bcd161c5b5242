"""The text that `serve` prints when it is ready: commands and addresses that work from any directory."""

from __future__ import annotations

import ipaddress
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from telephony_tts.engines.api import spoken_languages

if TYPE_CHECKING:
    from telephony_tts.app.config import Config
    from telephony_tts.app.serving import Served
    from telephony_tts.engines.api import Engine, Voice

PROGRAM = "telephony-tts"
_MOST_NAMED = 8
_MANDARIN = "您好，很高兴为您服务。"
_SCHEMES = {"http": "ws", "https": "wss"}
TOKEN = "TOKEN"
"""Placeholder for a token: a real one would stay on the screen and in the shell's history."""


def announcement(served: Served, settings: Config, version: str, speech_flags: Sequence[str]) -> str:
    """The lines to print. `speech_flags` let `say` speak as a call does. A line indented by 4 spaces is a command."""
    from telephony_tts.app.config import doors

    server = settings.server
    voice = voice_of_calls(served, settings)
    is_tls, has_tokens = server.tls.cert is not None, settings.needs_token
    say = shlex.join([*program(), "say", "Hello there.", "hello.wav", *speech_flags])
    processes = f"{served.n_processes} processes, " if served.n_processes > 1 else ""
    page = [f"Type, hear and interrupt in a browser: http{served.address[2:]}/console/"] if server.console else []
    lines = [
        "",
        *page,
        f"{PROGRAM} {version} is ready at {served.address}, {processes}voice {voice.engine}/{voice.name}",
        "",
        f"In another terminal, type a sentence and get {_frames(settings)} frames:",
        f"    {shlex.join(_client(f'{served.address}/v1/stream', is_tls, has_tokens))}",
        "Write the same speech to a file:",
        f"    {say}",
        *_mandarin(served, settings, speech_flags),
        "Read the metrics:",
        f"    {_metrics(served.address, is_tls, has_tokens and not server.metrics_without_token)}",
    ]
    if has_tokens:
        lines.append(f"{TOKEN} stands for one of the server's tokens. Bots send Authorization: Bearer TOKEN.")
    if is_tls:
        lines.append(
            "These commands do not check the certificate, which may be self-signed. Leave --no-check and --insecure "
            "out if a known authority has signed it for the name you use."
        )
    names = ", ".join(door.name for door in doors() if door.media is not None)
    lines.append(f"{_for_platforms(served, settings)}, with NAME one of {names}.")
    lines += ["PROTOCOL.md has the rest. Ctrl-C stops.", ""]
    return "\n".join(lines)


def _mandarin(served: Served, settings: Config, speech_flags: Sequence[str]) -> list[str]:
    """The languages that the server speaks, and a sentence in Mandarin if it is one of them."""
    languages = spoken_languages(served.voices)
    named = ", ".join(languages) if len(languages) <= _MOST_NAMED else f"{len(languages)} languages (see /readyz)"
    spoken = voice_of_calls(served, settings, _MANDARIN)
    if not spoken.speaks("zh") or spoken == voice_of_calls(served, settings):
        return [f"It speaks {named}."] if len(languages) > 1 else []
    say = shlex.join([*program(), "say", _MANDARIN, "nihao.wav", *speech_flags])
    return [f"It speaks {named}. In Mandarin, with {spoken.engine}/{spoken.name}:", f"    {say}"]


def program() -> list[str]:
    """The command that runs this program from any directory: its name if it is on PATH, else its path."""
    started = shutil.which(sys.argv[0]) or sys.argv[0]
    found = shutil.which(PROGRAM)
    if Path(started).name != PROGRAM or not os.access(started, os.X_OK):
        return [sys.executable, "-m", "telephony_tts"]
    if found is not None and os.path.samefile(found, started):
        return [PROGRAM]
    return [os.path.abspath(started)]


def voice_of_calls(served: Served, settings: Config, text: str = "Hello there.") -> Voice:
    """The voice of a call that does not ask for one, for a text."""
    from telephony_tts.app.engines import routes_of
    from telephony_tts.engines.catalog import Catalog

    # A catalog needs only the names and voices of the server's engines to choose.
    voices = {name: [voice for voice in served.voices if voice.engine == name] for name in served.stats}
    engines = [SimpleNamespace(name=name, voices=voices[name]) for name in voices if voices[name]]
    routes = {lang: name for lang, name in routes_of(settings).items() if voices.get(name)}
    catalog = Catalog(cast("list[Engine]", engines), routes)
    return catalog.resolve(settings.speech.voice, settings.speech.lang, text)[1]


def _frames(settings: Config) -> str:
    codec = {"ulaw": "mu-law", "alaw": "A-law", "pcm": "16-bit PCM"}[settings.speech.codec]
    return f"{settings.speech.rate_hz // 1000} kHz {codec}"


def _client(url: str, is_tls: bool, has_tokens: bool) -> list[str]:
    """The command of a WebSocket client: wscat, or the client of the package websockets if there is no npx."""
    if shutil.which("npx") is not None:
        command = ["npx", "wscat", "-c", url]
        command += ["--no-check"] if is_tls else []
        return command + (["-H", f"Authorization: Bearer {TOKEN}"] if has_tokens else [])
    command = [sys.executable, "-m", "websockets", *(["--insecure"] if is_tls else [])]
    return [*command, f"{url}?token={TOKEN}" if has_tokens else url]


def _metrics(address: str, is_tls: bool, needs_token: bool) -> str:
    # --globoff: curl would take the brackets of an IPv6 address for a range.
    command = ["curl", "-s", "--globoff", *(["--insecure"] if is_tls else [])]
    command += ["-H", f"Authorization: Bearer {TOKEN}"] if needs_token else []
    return shlex.join([*command, f"http{address[2:]}/metrics"]) + " | grep telephony_tts"


def _for_platforms(served: Served, settings: Config) -> str:
    """The address for a telephony platform, which usually runs on another machine."""
    server = settings.server
    if server.public_url is not None:
        scheme, _, rest = server.public_url.rstrip("/").partition("://")
        address = f"{_SCHEMES.get(scheme, scheme)}://{rest}"
        return f"A telephony platform connects to {address}/media/NAME"
    scheme, _, _ = served.address.partition("://")
    try:
        ip = ipaddress.ip_address(server.host)
    except ValueError:
        is_local, is_any = server.host.lower() == "localhost", False
    else:
        is_local, is_any = ip.is_loopback, ip.is_unspecified
    if is_any:
        # The host's own name needs no name server, which may be slow to answer.
        return f"A telephony platform connects to {scheme}://{socket.gethostname()}:{served.port}/media/NAME"
    reach = "A telephony platform on this machine" if is_local else "A telephony platform"
    return f"{reach} connects to {served.address}/media/NAME"
