"""The flags by which every command takes settings: --config and --set."""

from __future__ import annotations

import argparse

from telephony_tts.errors import ConfigError


def config_flags(parser: argparse.ArgumentParser) -> None:
    """Add --config and --set; `overrides` reads the latter."""
    parser.add_argument("--config", metavar="FILE", help="YAML settings (see configs/server.yaml)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override one setting, e.g. limits.calls=50"
    )


def overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings of --set by dotted key, read as YAML. Raises ConfigError where a value is missing."""
    import yaml

    found: dict[str, object] = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: a value is missing; expected KEY=VALUE, such as --set limits.calls=50")
        try:
            found[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[key.strip()] = value
    return found
