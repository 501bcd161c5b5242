"""The configuration of the server, and the only place that reads files and environment variables.

Sections that the session or the transport uses are declared in their `settings.py`; the others are declared here.
`load()` merges, weakest first: the defaults, a YAML file, the environment, the caller's overrides (command-line flags).
A setting that cannot be right is an error, and one `ConfigError` lists every problem of the file at once.

Environment: TELEPHONY_TTS_TOKENS (separated by commas), the variables of `ENVIRONMENT`, and TELEPHONY_TTS_KEY_NAME for
the key of `engines.others.NAME`.
Secrets appear neither in the repr of a section nor in an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from telephony_tts.app.residents import records, with_sections
from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.engines.remote.addresses import parse_addresses
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.schema import Between, OneOf, Spelt, Url, read_section, show
from telephony_tts.runtime.settings_tree import Tree, get, put, put_given, raise_problems, read_tree
from telephony_tts.session.settings import (
    LANGUAGE,
    BargeInSettings,
    CallerSettings,
    DtmfSettings,
    SpeechSettings,
)
from telephony_tts.transport.door import Door
from telephony_tts.transport.settings import (
    BotSettings,
    ServerLimits,
    ServerSettings,
    SoundSettings,
    VendorSettings,
)

DEVICE = Spelt(r"cpu|cuda(:[0-9]|:[1-9][0-9])?", "cpu, cuda or cuda:N; a GPU is cuda, and the second one cuda:1")
RAY_ADDRESS = Spelt(
    r"auto|(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}",
    "auto for the Ray cluster of this machine, HOST:PORT of its head such as 10.0.0.2:6379, or ray://HOST:10001",
)
LOCAL_ENGINES = ("hibari", "kokoro", "espeak", "fake", "cosyvoice2")
ENGINES = (*LOCAL_ENGINES, "remote", "ray")
DEFAULT_ROUTES = {"zh": "kokoro"}


@dataclass(frozen=True, slots=True)
class HibariSettings:
    """`workers`: 0 leaves the engine out."""

    workers: Annotated[int, Between(0, 64)] = 2


@dataclass(frozen=True, slots=True)
class KokoroSettings:
    """The Mandarin voice, and those of other languages whose files are in the folder `voices`. `workers`: 0 leaves the
    engine out."""

    workers: Annotated[int, Between(0, 64)] = 2
    voices: str | None = None


@dataclass(frozen=True, slots=True)
class EspeakSettings:
    """`workers`: 0 leaves the engine out."""

    workers: Annotated[int, Between(0, 64)] = 2


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """Tones instead of speech, for load tests. `rtf` 0.5 is twice as fast as real time, 0 instant. `slots`: the most
    sentences that are spoken at once; 0 is no limit."""

    first_audio_ms: Annotated[float, Between(0, 60_000)] = 0.0
    rtf: Annotated[float, Between(0, 100)] = 0.0
    slots: Annotated[int, Between(0, 10_000)] = 0


@dataclass(frozen=True, slots=True)
class CosyVoice2Settings:
    """The neural engine for many voices. `model` is a directory in the official layout; without `model` it is off."""

    model: str | None = None
    voices: str | None = None
    workers: Annotated[int | Literal["auto"], Between(1, 64)] = "auto"
    threads: Annotated[int | Literal["auto"], Between(1, 256)] = "auto"
    device: Annotated[str, DEVICE] = "cpu"
    dtype: Annotated[str, OneOf(("auto", "float32", "float16", "bfloat16"))] = "auto"
    lm_dtype: Annotated[str | None, OneOf(("auto", "float32", "float16", "bfloat16", "int8"))] = None
    flow_dtype: Annotated[str | None, OneOf(("auto", "float32", "float16", "bfloat16", "int8"))] = None
    vocoder_dtype: Annotated[str | None, OneOf(("auto", "float32", "float16", "mixed"))] = None
    isolation: Annotated[str, OneOf(("process", "thread"))] = "process"
    profile: Annotated[str, OneOf(("auto", "default", "cpu", "fast", "upstream"))] = "auto"
    finish: Annotated[str, OneOf(("profile", "causal", "full"))] = "profile"
    slots: Annotated[int, Between(1, 1024)] = 16
    ready_voices: Annotated[int, Between(1, 10_000)] = 4
    prompts: Annotated[int, Between(0, 10_000)] = 64
    flow_memory_mb: Annotated[int | None, Between(1, 1_000_000)] = None
    flow_steps: Annotated[int | None, Between(1, 100)] = None
    ahead_ms: Annotated[int, Between(200, 60_000)] = 2_000
    control_tokens: tuple[str, ...] = ()
    end_of_instruction: Annotated[str, OneOf(("<endofprompt>", "<|endofprompt|>"))] = "<endofprompt>"
    lm_backend: Annotated[str, OneOf(("own", "vllm"))] = "own"

    def conflicts(self) -> Iterator[str]:
        if self.lm_backend == "vllm":
            if (self.lm_dtype or self.dtype) not in ("float32", "float16", "bfloat16"):
                yield "lm_dtype: with lm_backend vllm give float32, float16 or bfloat16"
            if self.isolation != "process":
                yield "isolation: with lm_backend vllm it must be process: vLLM changes the process that it runs in"
        for name, dtype in (("lm_dtype", self.lm_dtype), ("flow_dtype", self.flow_dtype)):
            if dtype == "int8" and self.device != "cpu":
                yield f"{name}: {dtype} is for device cpu; on {self.device} leave it null, or take float16 or bfloat16"


@dataclass(frozen=True, slots=True)
class EngineTlsFiles:
    """PEM files for TLS between a front and an engine server. `ca` signed the other side's certificate; `cert` and
    `key` are this side's own. A front needs `ca`, an engine server `cert` and `key`."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def conflicts(self) -> Iterator[str]:
        if (self.cert is None) != (self.key is None):
            yield f"{'cert' if self.cert is None else 'key'}: missing; a certificate and its key go together"


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """An engine in another process or on another machine, which `telephony-tts engine serve` serves. Without `target`
    it is off. Several targets, separated by commas, are replicas of one engine."""

    target: str | None = None
    token: str | None = field(default=None, repr=False)
    tls: EngineTlsFiles = field(default_factory=EngineTlsFiles)
    start_timeout_s: Annotated[float, Between(0.1, 3_600)] = 60.0

    def conflicts(self) -> Iterator[str]:
        if self.target is None:
            return
        try:
            addresses = parse_addresses(self.target)
        except ConfigError as error:
            yield f"target: {error.message}"
            return
        for address in addresses:
            if not address.is_local and self.token is None:
                yield f"token: missing; {address} is on another machine. Set the same token there and here"
                break
        if self.tls.cert is not None and self.tls.ca is None:
            yield "tls.ca: missing; without it a front cannot know the engine server by its certificate"

    @property
    def targets(self) -> tuple[str, ...]:
        """The addresses, as gRPC names them."""
        return () if self.target is None else tuple(map(str, parse_addresses(self.target)))


@dataclass(frozen=True, slots=True)
class RaySettings:
    """An engine whose replicas Ray Serve runs. Without `address` it is off. `engine` and what follows are for
    `telephony-tts ray up`; without `max_replicas` the number of replicas is fixed."""

    address: Annotated[str | None, RAY_ADDRESS] = None
    app: Annotated[str, Spelt(r"[A-Za-z0-9_-]{1,60}", "letters, digits, - and _")] = "telephony-tts"
    model: str | None = None
    start_timeout_s: Annotated[float, Between(0.1, 3_600)] = 120.0
    engine: Annotated[str, OneOf(LOCAL_ENGINES)] = "cosyvoice2"
    replicas: Annotated[int, Between(1, 10_000)] = 1
    max_replicas: Annotated[int | None, Between(1, 10_000)] = None
    cpus: Annotated[float, Between(0, 1024)] = 1.0
    gpus: Annotated[float, Between(0, 64)] = 0.0
    target_load: Annotated[float, Between(0.05, 1)] = 0.45
    replica_utterances: Annotated[int, Between(1, 10_000)] = 16
    upscale_delay_s: Annotated[float, Between(0, 3_600)] = 2.0
    downscale_delay_s: Annotated[float, Between(0, 86_400)] = 600.0

    def conflicts(self) -> Iterator[str]:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            yield f"max_replicas: {self.max_replicas} is below replicas ({self.replicas})"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Which engine speaks (the route of the text's language, else `default`), which one speaks in its place, and the
    timeouts of engines. `others`: speech servers of other projects, each under a name of its own."""

    default: str = "hibari"
    routes: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_ROUTES))
    timeout_s: Annotated[float, Between(5, 600)] = 30.0
    stall_s: Annotated[float, Between(2.5, 60)] = 5.0
    restart_wait_s: Annotated[float, Between(0, 60)] = 10.0
    fallback: tuple[str, ...] = ()
    first_audio_timeout_ms: Annotated[int, Between(20, 60_000)] = 1_500
    fallback_after: Annotated[int, Between(1, 1000)] = 3
    retry_s: Annotated[float, Between(0.1, 3600)] = 30.0
    hibari: HibariSettings = field(default_factory=HibariSettings)
    kokoro: KokoroSettings = field(default_factory=KokoroSettings)
    espeak: EspeakSettings = field(default_factory=EspeakSettings)
    fake: FakeSettings = field(default_factory=FakeSettings)
    cosyvoice2: CosyVoice2Settings = field(default_factory=CosyVoice2Settings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    others: Mapping[str, OtherEngineSettings] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All engines that there can be."""
        return (*ENGINES, *self.others)

    @property
    def n_workers(self) -> dict[str, int]:
        """Of the engines that 0 workers leave out."""
        return {"hibari": self.hibari.workers, "kokoro": self.kokoro.workers, "espeak": self.espeak.workers}

    def conflicts(self) -> Iterator[str]:
        for name in self.others:
            if name in ENGINES:
                yield f"others.{name}: {name} is an engine of telephony-tts; choose another name"
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
            elif engine not in self.names:
                yield f"routes.{lang}: no engine is named {engine!r}; expected one of {', '.join(self.names)}"
            elif not self.is_default_route(lang) and (need := self._need(engine)) is not None:
                yield f"{need}, but routes.{lang} leads to {engine}"

    def _need(self, engine: str) -> str | None:
        """The setting that leaves `engine` out, and why; None if no setting does."""
        return {
            "hibari": None if self.hibari.workers else "hibari.workers: 0 leaves the engine out",
            "kokoro": None if self.kokoro.workers else "kokoro.workers: 0 leaves the engine out",
            "espeak": None if self.espeak.workers else "espeak.workers: 0 leaves the engine out",
            "cosyvoice2": None if self.cosyvoice2.model else "cosyvoice2.model: missing (a model directory)",
            "remote": None if self.remote.target else "remote.target: missing (the address of an engine server)",
            "ray": None if self.ray.address else "ray.address: missing (a Ray cluster, for example auto)",
        }.get(engine)

    def is_default_route(self, lang: str) -> bool:
        """Whether the route of `lang` is the shipped one. Its engine is an extra, and the route is left out without
        it."""
        return self.routes.get(lang) == DEFAULT_ROUTES.get(lang)


@dataclass(frozen=True, slots=True)
class PhraseSettings:
    """The audio of what is said again and again is kept: in memory, and in `folder` if one is set."""

    enabled: bool = False
    folder: str | None = None
    memory_mb: Annotated[int, Between(1, 100_000)] = 64
    disk_mb: Annotated[int, Between(1, 10_000_000)] = 1_000
    digits: bool = False


@dataclass(frozen=True, slots=True)
class LexiconSettings:
    """How words are spoken that an engine would misread. `files` gives each lexicon file a name.

    `languages` ("*" is every language), `voices`, `tokens` (bearer tokens) and `named_keys` say for what the
    lexicons apply: names separated by commas. Files are looked at every `check_s` and read again when they changed; 0:
    only at SIGHUP.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    languages: Mapping[str, str] = field(default_factory=dict)
    voices: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    named_keys: Mapping[str, str] = field(default_factory=dict)
    check_s: Annotated[float, Between(0, 3_600)] = 5.0

    def conflicts(self) -> Iterator[str]:
        scopes = {
            "languages": self.languages, "voices": self.voices, "tokens": self.tokens, "named_keys": self.named_keys,
        }  # fmt: skip
        for language in self.languages:
            if language != "*" and not LANGUAGE.accepts(language):
                yield f"languages: {show(language)} is not a language; expected * or {LANGUAGE.says}"
        for scope, named in scopes.items():
            for key, listed in named.items():
                where = scope if scope == "tokens" else f"{scope}.{key}"  # a token is a secret
                for name in lexicon_names(listed):
                    if name not in self.files:
                        known = ", ".join(self.files) or "none"
                        yield f"{where}: no lexicon is named {name!r}; lexicons.files has {known}"


def lexicon_names(listed: str) -> tuple[str, ...]:
    """The names in a text such as "brands, cities"."""
    return tuple(name.strip() for name in listed.split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class KeySettings:
    """The section `keys`: a file of named keys with limits, which is read again when it changed. It is looked at every
    `check_s`; 0: only at SIGHUP."""

    file: str | None = None
    check_s: Annotated[float, Between(0, 3_600)] = 5.0


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    """The section `experiments`: a file of experiments, which is read again when it changed. It is looked at every
    `check_s`; 0: only at SIGHUP."""

    file: str | None = None
    check_s: Annotated[float, Between(0, 3_600)] = 5.0


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: Annotated[str, OneOf(("debug", "info", "warning", "error"))] = "info"
    format: Annotated[str, OneOf(("json", "text"))] = "json"
    spoken_text: bool = False


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """The section `tracing`: OpenTelemetry spans of turns. Without `endpoint` there are none. `share` of the turns that
    do not belong to a span of the bot is traced."""

    endpoint: Annotated[str | None, Url(("http", "https"))] = None
    share: Annotated[float, Between(0, 1)] = 1.0


@dataclass(frozen=True, slots=True)
class Config:
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: ServerLimits = field(default_factory=ServerLimits)
    speech: SpeechSettings = field(default_factory=SpeechSettings)
    engines: EngineSettings = field(default_factory=EngineSettings)
    phrases: PhraseSettings = field(default_factory=PhraseSettings)
    bot: BotSettings = field(default_factory=BotSettings)
    barge_in: BargeInSettings = field(default_factory=BargeInSettings)
    caller: CallerSettings = field(default_factory=CallerSettings)
    dtmf: DtmfSettings = field(default_factory=DtmfSettings)
    vendors: VendorSettings = field(default_factory=VendorSettings)
    sounds: SoundSettings = field(default_factory=SoundSettings)
    lexicons: LexiconSettings = field(default_factory=LexiconSettings)
    keys: KeySettings = field(default_factory=KeySettings)
    experiments: ExperimentSettings = field(default_factory=ExperimentSettings)
    recordings: RecordingSettings = field(default_factory=RecordingSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)

    @property
    def door_sections(self) -> dict[str, Any]:
        """The sections of doors, by their names."""
        return {
            door.name: getattr(self, door.name, None) or door.settings()
            for door in doors()
            if door.settings is not None
        }

    @property
    def needs_token(self) -> bool:
        """Whether a client needs a token."""
        return bool(self.server.tokens) or self.keys.file is not None


@cache
def doors() -> tuple[Door, ...]:
    """The doors that are there: those of this package and those of others."""
    return records("telephony_tts.doors", "door", "DOOR")


FullConfig = with_sections(
    Config, {door.name: door.settings for door in doors() if door.settings is not None}, "FullConfig", __name__
)
"""A `Config` with the sections of the doors."""

_PATHS = (
    "server.tokens_file",
    "server.tls.cert",
    "server.tls.key",
    "server.tls.passphrase_file",
    "server.runtime_folder",
    "engines.remote.tls.ca",
    "engines.remote.tls.cert",
    "engines.remote.tls.key",
    "engines.cosyvoice2.model",
    "engines.cosyvoice2.voices",
    "engines.kokoro.voices",
    "phrases.folder",
    "sounds.folder",
    "recordings.folder",
    "keys.file",
    "experiments.file",
)
ENVIRONMENT = {
    "TELEPHONY_TTS_BOT_TOKEN": "bot.token",
    "TELEPHONY_TTS_ENGINE_TOKEN": "engines.remote.token",
    **{variable: f"{door.name}.{key}" for door in doors() for variable, key in door.environment.items()},
}


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
    tree = {} if path is None else read_tree(path, FullConfig, problems)
    if path is not None:
        _put_paths_beside(Path(path).parent, tree)
    put_given(tree, {key: environ.get(name) or None for name, key in ENVIRONMENT.items()})
    put_given(tree, {f"engines.others.{name}.key": environ.get(key_variable(name)) or None for name in _others(tree)})
    put_given(tree, overrides or {})
    config = read_section(FullConfig, tree, problems)
    server = replace(config.server, tokens=_gather_tokens(config.server, environ, problems))
    tls, engine_tls = server.tls, config.engines.remote.tls
    for name, file in (
        ("server.tls.cert", tls.cert),
        ("server.tls.key", tls.key),
        ("server.tls.passphrase_file", tls.passphrase_file),
        ("engines.remote.tls.ca", engine_tls.ca),
        ("engines.remote.tls.cert", engine_tls.cert),
        ("engines.remote.tls.key", engine_tls.key),
    ):
        if file is not None and not (os.path.isfile(file) and os.access(file, os.R_OK)):
            problems.append(f"{name}: cannot read {file}")
    if server.runtime_folder is not None and not os.path.isdir(server.runtime_folder):
        problems.append(f"server.runtime_folder: no folder {server.runtime_folder}")
    for key in ("phrases.folder", "recordings.folder"):
        folder = get(tree, key)
        if isinstance(folder, str) and Path(folder).name.lower() in _WORDS_FOR_NONE and not os.path.isdir(folder):
            problems.append(f"{key}: no folder {Path(folder).name!r}; to keep nothing, leave the key out")
    if config.sounds.folder is not None and not os.path.isdir(config.sounds.folder):
        problems.append(f"sounds.folder: no folder {config.sounds.folder}")
    raise_problems(path, problems)
    return replace(config, server=server)


_WORDS_FOR_NONE = ("off", "no", "none", "null", "false", "disabled")
_SAFE_TOKEN_CHARS = 16


def doubtful_settings(config: Config) -> Iterator[str]:
    """Settings with which the server runs, but which are probably not meant: the key, what it does, and the cure."""
    short = min(map(len, config.server.tokens), default=_SAFE_TOKEN_CHARS)
    if short < _SAFE_TOKEN_CHARS:
        yield (
            f"server.tokens: a token of {short} characters can be guessed; take one of {_SAFE_TOKEN_CHARS} or more, "
            "for example from `openssl rand -hex 16`"
        )
    if config.phrases.folder is not None and not config.phrases.enabled:
        yield "phrases.folder: nothing is kept, because phrases.enabled is false; set it to true"
    engines = config.engines
    speaks_alone = not set(engines.routes.values()) - {engines.default}
    if engines.fallback == (engines.default,) and speaks_alone:
        yield f"engines.fallback: {engines.default} is the default engine already; name another one, or leave it out"
    for door in doors():
        if door.settings is not None:
            yield from door.doubts(config.door_sections[door.name], config.speech)


def key_variable(engine: str) -> str:
    """The environment variable with the key of an engine of `engines.others`."""
    return f"TELEPHONY_TTS_KEY_{engine.upper().replace('-', '_')}"


def _others(tree: Tree) -> dict[str, Tree]:
    """The sections of `engines.others` that are sections."""
    others = get(tree, "engines.others")
    if not isinstance(others, dict):
        return {}
    return {name: section for name, section in others.items() if isinstance(name, str) and isinstance(section, dict)}


def _put_paths_beside(folder: Path, tree: Tree) -> None:
    for key in _PATHS:
        value = get(tree, key)
        if isinstance(value, str):
            put(tree, key, _beside(folder, value))
    files = get(tree, "lexicons.files")
    if isinstance(files, dict):
        for name, value in files.items():
            if isinstance(value, str):
                files[name] = _beside(folder, value)
    for section in _others(tree).values():
        for holder, key in _paths_of_other(section):
            if isinstance(holder.get(key), str):
                holder[key] = _beside(folder, holder[key])


def _paths_of_other(section: Tree) -> Iterator[tuple[Tree, str]]:
    """Where the settings of one other engine have paths: the section and the key."""
    yield section, "ca_file"
    voices = section.get("voices")
    for voice in voices.values() if isinstance(voices, dict) else ():
        if isinstance(voice, dict):
            yield voice, "wav"


def _beside(folder: Path, value: str) -> str:
    """The path from the file's folder, as short as it can be read: "models/x", not "configs/../models/x"."""
    plain = str(folder / value)
    short = os.path.normpath(plain)
    # Behind a symbolic link ".." may be another folder than the text says.
    return short if os.path.realpath(short) == os.path.realpath(plain) else plain


def _gather_tokens(server: ServerSettings, environ: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    found = [("server.tokens", token) for token in server.tokens]
    found += [("server.supervisor_tokens", token) for token in server.supervisor_tokens]
    if server.tokens_file is not None:
        try:
            lines = Path(server.tokens_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            problems.append(f"server.tokens_file: cannot read {server.tokens_file}")
        else:
            lines = [line.strip() for line in lines]
            in_file = [("server.tokens_file", line) for line in lines if line and not line.startswith("#")]
            if not in_file:
                # A server without tokens is open to everyone, and an operator who names a file wants it closed.
                problems.append(f"server.tokens_file: {server.tokens_file} has no token; expected one per line")
            found += in_file
    listed = environ.get("TELEPHONY_TTS_TOKENS", "").split(",")
    found += [("TELEPHONY_TTS_TOKENS", token.strip()) for token in listed if token.strip()]
    for source, token in found:
        # An empty token would let everyone in. The other characters cannot be written in a header or a URL.
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            problems.append(f"{source}: a token must be visible ASCII characters without spaces")
    return tuple(dict.fromkeys(token for _, token in found))
