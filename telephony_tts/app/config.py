"""The configuration of the server, and the only place that reads files and environment variables.

Sections that the session or the transport uses are declared in their `settings.py`; the others are declared here.
`load()` merges, weakest first: the defaults, a YAML file, the environment, the caller's overrides (command-line flags).
A setting that cannot be right is an error, and one `ConfigError` lists every problem of the file at once.

Environment: TELEPHONY_TTS_TOKENS (separated by commas), the variables of `ENVIRONMENT`, and those of engines.
Secrets appear neither in the repr of a section nor in an error.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from telephony_tts.app.engine_settings import DEFAULT_ROUTES, EngineSettings
from telephony_tts.app.plugins import PLUGINS
from telephony_tts.app.residents import records, with_sections
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.runtime.schema import Between, OneOf, Url, read_section, show
from telephony_tts.runtime.settings_tree import Tree, get, put_given, raise_problems, read_tree
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

ENGINE_PATHS = tuple(f"engines.{plugin.name}.{path}" for plugin in PLUGINS for path in plugin.paths)
"""Settings of engines that are paths; * stands for every name."""
_PATHS = (
    "server.tokens_file",
    "server.tls.cert",
    "server.tls.key",
    "server.tls.passphrase_file",
    "server.runtime_folder",
    *ENGINE_PATHS,
    "phrases.folder",
    "sounds.folder",
    "recordings.folder",
    "lexicons.files.*",
    "keys.file",
    "experiments.file",
)
ENVIRONMENT = {
    "TELEPHONY_TTS_BOT_TOKEN": "bot.token",
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
    for plugin in PLUGINS:
        section = get(tree, f"engines.{plugin.name}")
        variables = plugin.environment(section if isinstance(section, dict) else {})
        given = {f"engines.{plugin.name}.{key}": environ.get(name) or None for name, key in variables.items()}
        put_given(tree, given)
    put_given(tree, overrides or {})
    config = read_section(FullConfig, tree, problems)
    problems += [
        f"engines.{name}: two installed packages have an engine of this name; uninstall one of them"
        for name, n in Counter(plugin.name for plugin in PLUGINS).items()
        if n > 1
    ]
    server = replace(config.server, tokens=_gather_tokens(config.server, environ, problems))
    tls = server.tls
    for name, file in (
        ("server.tls.cert", tls.cert),
        ("server.tls.key", tls.key),
        ("server.tls.passphrase_file", tls.passphrase_file),
        *_engine_files(config),
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
    # The default route is for a language that the default engine does not speak.
    routes = {} if engines.routes == DEFAULT_ROUTES else engines.routes
    speaks_alone = not set(routes.values()) - {engines.default}
    if engines.fallback == (engines.default,) and speaks_alone:
        yield f"engines.fallback: {engines.default} is the default engine already; name another one, or leave it out"
    for door in doors():
        if door.settings is not None:
            yield from door.doubts(config.door_sections[door.name], config.speech)


def _engine_files(config: Config) -> Iterator[tuple[str, str | None]]:
    """Files of engines that must be readable: (key, path)."""
    for plugin in PLUGINS:
        for key in plugin.files:
            yield f"engines.{plugin.name}.{key}", attrgetter(key)(plugin.own(config.engines))


def _put_paths_beside(folder: Path, tree: Tree) -> None:
    for key in _PATHS:
        _put_beside(folder, tree, key.split("."))


def _put_beside(folder: Path, tree: object, key: Sequence[str]) -> None:
    """Put the paths at `key` beside the file. * stands for every name of a section."""
    if not isinstance(tree, dict):
        return
    name, *rest = key
    for each in list(tree) if name == "*" else [name]:
        value = tree.get(each)
        if rest:
            _put_beside(folder, value, rest)
        elif isinstance(value, str):
            tree[each] = _beside(folder, value)


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
