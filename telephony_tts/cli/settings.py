"""Settings on the command line: --config, --set, and flags that stand for one setting."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TypeVar

from telephony_tts.runtime.errors import ConfigError

Config = TypeVar("Config")


def config_flags(parser: argparse.ArgumentParser) -> None:
    """Add --config and --set. `overrides` reads --set."""
    parser.add_argument("--config", metavar="FILE", help="YAML settings (see configs/server.yaml)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override one setting, e.g. limits.calls=50"
    )


def overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings of --set by dotted key, read as YAML. Raises ConfigError if a value is missing."""
    import yaml

    found: dict[str, object] = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals or not value.strip():
            raise ConfigError(f"--set {pair}: a value is missing; expected KEY=VALUE, such as --set limits.calls=50")
        try:
            found[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[key.strip()] = value
    return found


def load(
    read: Callable[[str | None, Mapping[str, object]], Config], arguments: argparse.Namespace, flags: Mapping[str, str]
) -> Config:
    """`read` the settings of --config, of the command's own flags and of --set; later ones win.

    `flags` maps the dotted key of a setting to its flag. Raises ConfigError. The message names the flag if the value
    came from it, else the key with the flag in brackets.
    """
    given = {key: getattr(arguments, flag.removeprefix("--").replace("-", "_")) for key, flag in flags.items()}
    by_key = overrides(arguments)
    try:
        return read(arguments.config, {**given, **by_key})
    except ConfigError as error:
        lines = error.message.split("\n")
        for n, line in enumerate(lines):
            key, colon, rest = line.strip().partition(": ")
            if colon and key in flags:
                is_of_flag = given[key] is not None and key not in by_key
                lines[n] = f"  {flags[key] if is_of_flag else f'{key} ({flags[key]})'}: {rest}"
        raise ConfigError("\n".join(lines)) from error
