"""What an engine brings: its settings, the packages it needs, how it is built, and its part of the commands.

Each folder of an engine has a `plugin.py` with one `EnginePlugin`, PLUGIN. An engine of another package is an entry
point of the group `telephony_tts.engines` (CONTRIBUTING.md). Nothing outside the folder imports anything else of it.
Every command imports all plugins, so a plugin imports its engine only when the engine is asked for.
"""

from __future__ import annotations

import argparse
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:  # a plugin is imported also by commands that speak nothing
    from telephony_tts.engines.api import Engine, Voice
    from telephony_tts.engines.catalog import AbsentEngine

Settings = TypeVar("Settings")
Finding = tuple[str, str, str] | tuple[str, str, str, bool]
"""A line of `doctor`: the state (ok, missing, broken or warning), the part, the detail, and whether it is needed."""
Run = Callable[[argparse.Namespace], int]
AddCommand = Callable[[str, str, str, Run], argparse.ArgumentParser]
"""Adds a command by its name, description, examples and function."""


def adder(parsers: Any) -> AddCommand:
    """What adds commands to `parsers`, the result of `ArgumentParser.add_subparsers`, each in the same form."""

    def add(name: str, help_text: str, examples: str, run: Run) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = parsers.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".", epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        parser.set_defaults(run=run)
        return parser

    return add


class Package(NamedTuple):
    """A package of the engine, the extra that brings it ("" if it belongs to the base install), and what it is for."""

    name: str
    extra: str
    use: str


class Flag(NamedTuple):
    """A flag of commands that stands for one of the engine's settings, such as --model."""

    key: str
    flag: str
    help_text: str


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """The settings with these names in the section `engines`."""

    timeout_s: float = 30.0
    stall_s: float = 5.0
    restart_wait_s: float = 10.0
    first_audio_timeout_ms: int = 1_500


@dataclass(frozen=True, slots=True)
class Setup(Generic[Settings]):
    """What an engine is built from: its section of the configuration, and what it may know of the other ones.

    `is_installed`: whether its packages are there. `is_named`: whether the configuration names it, as the default, in
    `fallback` or `routes`, or by a voice. `default`: the default engine. `lang`: the language of calls, if one is set.
    """

    name: str
    settings: Settings
    is_installed: bool = True
    timeouts: EngineTimeouts = EngineTimeouts()
    is_named: bool = False
    default: str = ""
    lang: str | None = None


@dataclass(frozen=True, slots=True)
class CommandLine:
    """How a plugin adds commands. `command` adds one of its own, `voices` an action of the command `voices`.

    `flags` adds --config and --set to a command. `load` reads the configuration that they name; its second argument
    maps dotted keys of settings to further flags that stand for them. It raises ConfigError.
    """

    command: AddCommand
    voices: AddCommand
    flags: Callable[[argparse.ArgumentParser], None]
    load: Callable[[argparse.Namespace, Mapping[str, str]], Any]


class BenchSubject(Protocol):
    """What `bench engine` measures. `arguments` are those of the command, with the subject's own flags."""

    name: str
    """Of the engine."""

    def add_flags(self, flags: argparse.ArgumentParser) -> None:
        """Add its own flags."""

    def check(self, arguments: argparse.Namespace, load: Callable[[str], Any]) -> None:
        """Put defaults in their places. `load` reads a configuration file. Raises ConfigError for flags that do not go
        together."""

    def overrides(self, arguments: argparse.Namespace, model: str, n_slots: int | None) -> Mapping[str, object]:
        """Its own settings with which `model` speaks to `n_slots` callers; None: as configured."""

    def need(self, settings: Any) -> None:
        """Raises EngineUnavailable without its packages and its device."""

    def model(self, arguments: argparse.Namespace, tell: Callable[[str], None]) -> AbstractContextManager[Path]:
        """The directory of the model, for as long as it is measured."""

    def seconds(self, arguments: argparse.Namespace) -> float:
        """The length of a turn's speech that the model makes for --seconds."""

    def device(self, settings: Any) -> str:
        """What computes: "cpu", or a GPU as PyTorch names it."""

    def about(self, arguments: argparse.Namespace, settings: Any) -> Mapping[str, Any]:
        """What the result says of the settings."""

    def choice(self, engine: Engine) -> tuple[Mapping[str, Any], Sequence[str]]:
        """What the started engine has chosen by itself, as settings of the result, and why, in lines."""

    def voice(self, arguments: argparse.Namespace, engine: Engine) -> str:
        """The voice to speak with."""

    def text(self, arguments: argparse.Namespace) -> str | None:
        """The text of each turn; None for sentences of about --seconds."""


class EnginePlugin(ABC, Generic[Settings]):
    """See the module text. An engine needs `name`, `settings` and `build`; for the rest it says what differs from here.

    `settings` is the class of its section `engines.NAME` (`runtime.schema` reads it). `rank`: lower first, in messages
    and where several engines have a language. `modules` must be importable for it to count as installed; `extra`
    brings them.
    `packages` are lines of `doctor`. `paths`: those of its settings that are files or folders, with * for every name in
    a mapping; relative ones are beside the configuration file. `files`: those of `paths` that must be readable.
    """

    name: str
    settings: type[Settings]
    rank: int = 100
    modules: tuple[str, ...] = ()
    extra: str = ""
    packages: tuple[Package, ...] = ()
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    """Of `voices list`, and of its own commands. The values are folders."""
    is_elsewhere: bool = False
    """Whether other processes or machines speak, so that an engine server cannot serve it."""
    are_named_by_operator: bool = False
    """Whether `settings` maps names that the operator chose to sections, each of which is an engine."""
    is_shared_by_fronts: bool = False
    """Whether several front processes share one engine, in a process of its own."""

    # ------------------------------------------------------------ configuration

    def own(self, engines: object) -> Settings:
        """Its section of the section `engines`."""
        section: Settings = getattr(engines, self.name)
        return section

    def names(self, own: Settings) -> tuple[str, ...]:
        """The engines that it builds."""
        return tuple(cast("Mapping[str, Any]", own)) if self.are_named_by_operator else (self.name,)

    def environment(self, section: Mapping[Any, Any]) -> Mapping[str, str]:
        """Environment variables and the keys of its section that they set. `section` is as it stands in the file."""
        return {}

    def missing_setting(self, own: Settings) -> str | None:
        """The setting that leaves the engine out, and why: "model: missing". None if it can speak."""
        return None

    def conflicts(self, own: Settings, plugins: Sequence[EnginePlugin[Any]]) -> Iterator[str]:
        """Settings that do not go with the engines that there are, as `conflicts` of a section tells them."""
        return iter(())

    def of_front(self, own: Settings, part: Callable[[int], int], n_fronts: int) -> Settings:
        """The settings of one of `n_fronts` processes. `part` is its part of a number. Raises ConfigError if there is
        too little for so many."""
        return own

    # ---------------------------------------------------------------- the engine

    def is_installed(self) -> bool:
        """Whether its packages are there. They are not imported."""
        return all(has_module(module) for module in self.modules)

    def is_wanted(self, setup: Setup[Settings]) -> bool:
        """Whether it runs also where it is neither the default engine nor in `fallback`."""
        return setup.is_named

    def need_packages(self, setup: Setup[Settings]) -> None:
        """Raises EngineUnavailable, with the command that brings what is missing. Asked of an engine that
        `is_shared_by_fronts`, before its process starts. `build` raises it too."""

    @abstractmethod
    def build(self, setup: Setup[Settings]) -> Engine:
        """The engine, not started. Raises ConfigError and EngineUnavailable."""

    def absent(self, setup: Setup[Settings], *, runs: bool) -> Iterator[AbsentEngine]:
        """What it could speak and does not, for refusals that say what would help. `runs`: whether it runs here."""
        return iter(())

    # -------------------------------------------------------------------- voices

    def stored_voices(self, setup: Setup[Settings]) -> tuple[list[Voice], list[str]] | None:
        """Its voices, known without a start, and why others cannot be used. None if it must be started to know."""
        return None

    def voice_hints(self, own: Settings) -> Iterator[str]:
        """Lines under the list of voices: which are not here yet, and how to get them."""
        return iter(())

    def voice_service(self, setup: Setup[Settings], engine: Engine, *, is_shared: bool = False) -> Any:
        """What adds and removes voices while `engine` runs (`http_api.voices.Voices`). None if it cannot. `is_shared`:
        the engine runs in a process for all fronts."""
        return None

    def voice_folder(self, own: Settings) -> Path | None:
        """The folder that it writes voices to."""
        return None

    def voice_records(self, own: Settings) -> Any:
        """Whose the voices are (`transport.call_catalog.VoiceOwners`); None if they belong to all. At most one engine
        of a configuration has records."""
        return None

    def control_tokens(self, own: Settings) -> tuple[str, ...]:
        """Tokens that a bot's text may have for it, such as [laughter]."""
        return ()

    # ------------------------------------------------------------------ commands

    def findings(self, setup: Setup[Settings], *, is_running: bool) -> Iterator[Finding]:
        """What `doctor` says of it. With `is_running` a server speaks beside it, so nothing is timed."""
        return iter(())

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add `flags` to a command."""
        for _, flag, help_text in self.flags:
            parser.add_argument(flag, metavar="DIR", help=help_text)

    def add_commands(self, line: CommandLine) -> None:
        """Add its own commands."""

    def bench_subject(self) -> BenchSubject | None:
        """What `bench engine` measures; None if it cannot."""
        return None


def has_module(name: str) -> bool:
    """Whether a module, also one inside a package, can be imported. It is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # the package that it is in
