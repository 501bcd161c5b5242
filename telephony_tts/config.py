"""Every setting, its default, and the one place that reads files and environment variables.

`load()` merges, weakest first: the defaults below, a YAML file, the environment, the caller's overrides (command-line
flags). A setting that cannot be right is an error, and one `ConfigError` lists every problem of the file at once.

Environment: TELEPHONY_TTS_TOKENS (separated by commas), TELEPHONY_TTS_BOT_TOKEN, TELEPHONY_TTS_TWILIO_AUTH_TOKEN.
Secrets appear neither in the repr of a section nor in an error.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from telephony_tts.schema import Between, OneOf, Spelt, Url, read_section, show
from telephony_tts.settings_tree import Tree, get, put, put_given, raise_problems, read_tree

Count = Annotated[int, Between(1, 1e9)]
Milliseconds = Annotated[int, Between(0, 600_000)]
Seconds = Annotated[float, Between(0.001, 86_400)]
MOST_PTIME_MS = 60
IdleSeconds = Annotated[int, Between(0, 86_400)]

DEVICE = Spelt(r"cpu|cuda(:[0-9]|:[1-9][0-9])?", "cpu, cuda or cuda:N; a GPU is cuda, and the second one cuda:1")
ORIGIN = Spelt(
    r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[1-9][0-9]{0,4})?",
    'an origin as browsers send it, in lower case and without a path: "https://console.example.com"; or "*" for all',
)
ENGINES = ("hibari", "espeak", "fake", "cosyvoice2")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files; both or neither. The first line of `passphrase_file` is the passphrase of an encrypted key."""

    cert: str | None = None
    key: str | None = None
    passphrase_file: str | None = None

    def conflicts(self) -> Iterator[str]:
        if (self.cert is None) != (self.key is None):
            yield f"{'cert' if self.cert is None else 'key'}: missing; a certificate and its key go together"
        elif self.key is None and self.passphrase_file is not None:
            yield "key: missing; passphrase_file is for an encrypted key"


@dataclass(frozen=True, slots=True)
class Server:
    """The listening socket and who may use it. Without `tokens` everyone who reaches the port may.

    `tokens` is the union of the file's list, the lines of `tokens_file` and TELEPHONY_TTS_TOKENS. `open` allows a
    public server without tokens (`app.why_tokens_are_needed`); it makes no token optional. `origins`: web pages that
    may use it, beside those of its own host and of `public_url`; "*" for all.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Between(0, 65_535)] = 8080
    tokens: tuple[str, ...] = field(default=(), repr=False)
    tokens_file: str | None = None
    open: bool = False
    metrics_without_token: bool = True
    tls: Tls = field(default_factory=Tls)
    public_url: Annotated[str | None, Url(("wss", "ws", "https", "http"))] = None
    origins: tuple[str, ...] = ()
    drain_s: Annotated[float, Between(0, 3_600)] = 30.0
    max_message_bytes: Annotated[int, Between(1_024, 16_777_216)] = 65_536
    slow_reader_s: Seconds = 5.0
    ping_interval_s: Seconds = 20.0

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can connect to `host`. Any name but localhost counts as public."""
        return _is_loopback(self.host)

    @property
    def is_public_elsewhere(self) -> bool:
        """Whether `public_url` says that a proxy or a tunnel leads here from other machines."""
        return self.public_url is not None and not _is_loopback(urlsplit(self.public_url).hostname or "")

    def conflicts(self) -> Iterator[str]:
        for origin in self.origins:
            if origin != "*" and not ORIGIN.accepts(origin):
                yield f"origins: {show(origin)} is wrong; expected {ORIGIN.expected('text')}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server and one call may use; beyond it a clear error, never a slower neighbour.

    0 means no limit for `text_chars_per_s`, `idle_s` and `turn_idle_s`.
    """

    calls: Count = 200
    queued_turns: Count = 32
    turn_chars: Count = 4_000
    text_chars_per_s: Annotated[int, Between(0, 1e9)] = 2_000
    idle_s: IdleSeconds = 3_600
    turn_idle_s: IdleSeconds = 30
    call_claim_s: Seconds = 20.0
    max_frame_lateness_ms: Annotated[int, Between(1, 10_000)] = 100


@dataclass(frozen=True, slots=True)
class Speech:
    """What a call starts with; the bot may change most of it. No `voice` means the default engine's first one."""

    voice: str | None = None
    lang: str | None = None
    speed: Annotated[float, Between(0.5, 2.0)] = 1.0
    codec: Annotated[str, OneOf(("ulaw", "alaw", "pcm"))] = "ulaw"
    rate_hz: Annotated[int, OneOf((8_000, 16_000, 24_000, 48_000))] = 8_000
    ptime_ms: Annotated[int, OneOf((10, 20, 30, 40, MOST_PTIME_MS))] = 20
    pace: Annotated[str, OneOf(("realtime", "burst"))] = "realtime"
    lead_ms: Milliseconds = 200
    ahead_ms: Milliseconds = 2_000
    first_clause_chars: Annotated[int, Between(0, 1_000)] = 24
    text_timeout_ms: Annotated[int, Between(1, 600_000)] = 500
    text_mode: Annotated[str, OneOf(("sentence", "interleaved"))] = "sentence"
    detect_language: bool = True
    pause_chars: Count = 2_000
    resume_chars: Annotated[int, Between(0, 1e9)] = 500

    def conflicts(self) -> Iterator[str]:
        if self.codec != "pcm" and self.rate_hz != 8_000:
            yield f"rate_hz: {self.rate_hz} does not go with codec {self.codec}; G.711 is 8000 Hz"
        if self.ahead_ms < self.lead_ms:
            yield f"ahead_ms: {self.ahead_ms} is less than lead_ms ({self.lead_ms}); audio must exist before it is sent"
        if self.resume_chars >= self.pause_chars:
            yield f"resume_chars: {self.resume_chars} is not below pause_chars ({self.pause_chars})"


@dataclass(frozen=True, slots=True)
class Hibari:
    workers: Annotated[int, Between(1, 64)] = 2


@dataclass(frozen=True, slots=True)
class Espeak:
    workers: Annotated[int, Between(1, 64)] = 2


@dataclass(frozen=True, slots=True)
class Fake:
    """Tones instead of speech, for load tests. `rtf` 0.5 is twice as fast as real time, 0 instant."""

    first_audio_ms: Annotated[float, Between(0, 60_000)] = 0.0
    rtf: Annotated[float, Between(0, 100)] = 0.0


@dataclass(frozen=True, slots=True)
class CosyVoice2:
    """The neural engine for many voices. `model` is a directory in the official layout; without one it is off."""

    model: str | None = None
    voices: str | None = None
    workers: Annotated[int, Between(1, 64)] = 1
    threads: Annotated[int, Between(1, 256)] = 1
    device: Annotated[str, DEVICE] = "cpu"
    dtype: Annotated[str, OneOf(("float32", "float16", "bfloat16"))] = "float32"
    lm_dtype: Annotated[str | None, OneOf(("float32", "float16", "bfloat16", "int8", "int4"))] = None
    flow_dtype: Annotated[str | None, OneOf(("float32", "float16", "bfloat16", "int8"))] = None
    vocoder_dtype: Annotated[str | None, OneOf(("float32", "float16", "mixed"))] = None
    isolation: Annotated[str, OneOf(("process", "thread"))] = "process"
    profile: Annotated[str, OneOf(("default", "fast", "upstream"))] = "default"
    finish: Annotated[str, OneOf(("profile", "causal", "full"))] = "profile"
    slots: Annotated[int, Between(1, 1024)] = 16
    ready_voices: Annotated[int, Between(1, 10_000)] = 4
    flow_memory_mb: Annotated[int | None, Between(1, 1_000_000)] = None
    ahead_ms: Annotated[int, Between(200, 60_000)] = 2_000
    control_tokens: tuple[str, ...] = ()

    def conflicts(self) -> Iterator[str]:
        for name, dtype in (("lm_dtype", self.lm_dtype), ("flow_dtype", self.flow_dtype)):
            if dtype in ("int8", "int4") and self.device != "cpu":
                yield f"{name}: {dtype} is for device cpu; on {self.device} leave it null, or take float16 or bfloat16"


@dataclass(frozen=True, slots=True)
class Engines:
    """Which engine speaks: the route of the text's language, else `default`; and how long it is waited for."""

    default: Annotated[str, OneOf(ENGINES)] = "hibari"
    routes: Mapping[str, str] = field(default_factory=lambda: {"zh": "espeak"})
    timeout_s: Annotated[float, Between(5, 600)] = 30.0
    stall_s: Annotated[float, Between(2.5, 60)] = 5.0
    restart_wait_s: Annotated[float, Between(0, 60)] = 10.0
    hibari: Hibari = field(default_factory=Hibari)
    espeak: Espeak = field(default_factory=Espeak)
    fake: Fake = field(default_factory=Fake)
    cosyvoice2: CosyVoice2 = field(default_factory=CosyVoice2)

    def conflicts(self) -> Iterator[str]:
        if self.default == "cosyvoice2" and self.cosyvoice2.model is None:
            yield "cosyvoice2.model: missing; cosyvoice2 is the default engine and needs a model directory"
        for name, value_s in (("stall_s", self.stall_s), ("restart_wait_s", self.restart_wait_s)):
            if value_s >= self.timeout_s:
                yield f"{name}: {value_s:g} is not below timeout_s ({self.timeout_s:g}), which ends the turn first"
        for lang, engine in self.routes.items():
            if engine not in ENGINES:
                yield f"routes.{lang}: no engine is named {engine!r}; expected one of {', '.join(ENGINES)}"


@dataclass(frozen=True, slots=True)
class Bot:
    """With `url` the server dials the bot for each media call. The URL may carry a secret, so it is not shown."""

    url: Annotated[str | None, Url(("ws", "wss"))] = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    connect_timeout_s: Seconds = 5.0
    inbound: Annotated[str, OneOf(("none", "base64", "binary"))] = "none"


@dataclass(frozen=True, slots=True)
class BargeIn:
    """Whether the caller's voice interrupts; a bot may choose otherwise for its call."""

    enabled: bool = False
    min_speech_ms: Annotated[int, Between(64, 2_000)] = 200
    hold_off_ms: Annotated[int, Between(0, 10_000)] = 500
    silence_ms: Annotated[int, Between(100, 10_000)] = 500
    floor_dbov: Annotated[float, Between(-90, -10)] = -45.0


@dataclass(frozen=True, slots=True)
class Twilio:
    """With `auth_token` each media connection must carry a valid X-Twilio-Signature."""

    auth_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Asterisk:
    """`dial`: media WebSockets of Asterisks that may be dialled, `ws://pbx:8088/media/` and what lies below it.

    `lead_ms`: so much of our speech waits in Asterisk's own queue, never more than `speech.ahead_ms`, and a frame of
    any length at least: with less than the silence that keeps its queue filled, speech would never begin."""

    dial: tuple[str, ...] = ()
    lead_ms: Annotated[int, Between(MOST_PTIME_MS, 5_000)] = 1_000

    def conflicts(self) -> Iterator[str]:
        for url in self.dial:
            if not url.startswith(("ws://", "wss://")):
                yield f"dial: {show(url)} is no address of a WebSocket; expected such as ws://127.0.0.1:8088/media/"


@dataclass(frozen=True, slots=True)
class Log:
    level: Annotated[str, OneOf(("debug", "info", "warning", "error"))] = "info"
    format: Annotated[str, OneOf(("json", "text"))] = "json"
    spoken_text: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    server: Server = field(default_factory=Server)
    limits: Limits = field(default_factory=Limits)
    speech: Speech = field(default_factory=Speech)
    engines: Engines = field(default_factory=Engines)
    bot: Bot = field(default_factory=Bot)
    barge_in: BargeIn = field(default_factory=BargeIn)
    twilio: Twilio = field(default_factory=Twilio)
    asterisk: Asterisk = field(default_factory=Asterisk)
    log: Log = field(default_factory=Log)


_PATHS = (
    "server.tokens_file",
    "server.tls.cert",
    "server.tls.key",
    "server.tls.passphrase_file",
    "engines.cosyvoice2.model",
    "engines.cosyvoice2.voices",
)
ENVIRONMENT = {"TELEPHONY_TTS_BOT_TOKEN": "bot.token", "TELEPHONY_TTS_TWILIO_AUTH_TOKEN": "twilio.auth_token"}


def load(
    path: str | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read the settings. `overrides` has dotted keys ("server.port"); None as its value means "not given".

    Paths in the file are relative to the file's folder, paths in `overrides` to the current one.
    Raises ConfigError with one line per problem.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    tree = {} if path is None else read_tree(path, Config, problems)
    if path is not None:
        _put_paths_beside(Path(path).parent, tree)
    put_given(tree, {key: environ.get(name) or None for name, key in ENVIRONMENT.items()})
    put_given(tree, overrides or {})
    config = read_section(Config, tree, problems)
    server = replace(config.server, tokens=_gather_tokens(config.server, environ, problems))
    tls = server.tls
    for name, file in (("cert", tls.cert), ("key", tls.key), ("passphrase_file", tls.passphrase_file)):
        if file is not None and not (os.path.isfile(file) and os.access(file, os.R_OK)):
            problems.append(f"server.tls.{name}: cannot read {file}")
    raise_problems(path, problems)
    return replace(config, server=server)


def _put_paths_beside(folder: Path, tree: Tree) -> None:
    for key in _PATHS:
        value = get(tree, key)
        if isinstance(value, str):
            put(tree, key, _beside(folder, value))


def _beside(folder: Path, value: str) -> str:
    """The path from the file's folder, as short as it can be read: "models/x", not "configs/../models/x"."""
    plain = str(folder / value)
    short = os.path.normpath(plain)
    # Behind a symbolic link ".." is another place than the text says.
    return short if os.path.realpath(short) == os.path.realpath(plain) else plain


def _gather_tokens(server: Server, environ: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    found = [("server.tokens", token) for token in server.tokens]
    if server.tokens_file is not None:
        try:
            lines = Path(server.tokens_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            problems.append(f"server.tokens_file: cannot read {server.tokens_file}")
        else:
            lines = [line.strip() for line in lines]
            in_file = [("server.tokens_file", line) for line in lines if line and not line.startswith("#")]
            if not in_file:
                # A server without tokens is open to everyone, and an operator who names a file wants the opposite.
                problems.append(f"server.tokens_file: {server.tokens_file} has no token; expected one per line")
            found += in_file
    listed = environ.get("TELEPHONY_TTS_TOKENS", "").split(",")
    found += [("TELEPHONY_TTS_TOKENS", token.strip()) for token in listed if token.strip()]
    for source, token in found:
        # An empty token would let everyone in; the rest could not be written in a header or a URL.
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            problems.append(f"{source}: a token must be visible ASCII characters without spaces")
    return tuple(dict.fromkeys(token for _, token in found))
