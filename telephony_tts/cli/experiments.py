"""The commands `experiments` and `keys`: check their files, compare the arms of experiments, make a key."""

from __future__ import annotations

import argparse
import json
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from telephony_tts.cli.settings import config_flags, load
from telephony_tts.engines.plugin import AddCommand
from telephony_tts.runtime.errors import ConfigError

if TYPE_CHECKING:
    from telephony_tts.experiments.arms import Experiment

EXPERIMENT_EXAMPLES = """examples:
  telephony-tts experiments check --config server.yaml
  telephony-tts experiments arm CA1234 --config server.yaml --number +4930123456
  telephony-tts experiments report --prometheus http://127.0.0.1:9090
  telephony-tts experiments report --prometheus http://127.0.0.1:9090 --since 7d --json report.json

docs/changing-safely.md explains the file of experiments and how to read the report.
"""
KEY_EXAMPLES = """examples:
  telephony-tts keys new acme                               a token, and what to write into the file of keys
  telephony-tts keys check --config server.yaml
"""



def add_experiments(command: AddCommand) -> None:
    """The commands `experiments` and `keys` with their actions."""
    parser = command(
        "experiments", "check the experiments, tell a call's arm, compare the arms", EXPERIMENT_EXAMPLES, _check
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="read the file as the server would, and list what is wrong")
    arm = actions.add_parser("arm", help="tell the experiment and the arm of a call")
    arm.add_argument("call", metavar="CALL", help="the call's name")
    arm.add_argument("--number", action="append", default=[], help="a telephone number of the call")
    arm.add_argument("--key", default="", metavar="NAME", help="the name of the bot's key")
    for sub, run in ((check, _check), (arm, _arm)):
        config_flags(sub)
        sub.add_argument("--file", metavar="FILE", help="the file of experiments (experiments.file)")
        sub.set_defaults(run=run)
    report = actions.add_parser("report", help="compare the arms, from the metrics that Prometheus has")
    report.add_argument("--prometheus", metavar="URL", required=True, help="such as http://127.0.0.1:9090")
    report.add_argument("--since", default="1d", help="how far back: 30m, 12h, 7d (default %(default)s)")
    report.add_argument("--json", metavar="FILE", help="also write the report here, as JSON")
    report.set_defaults(run=_report)

    parser = command("keys", "make a key, check the file of keys", KEY_EXAMPLES, _check_keys)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a token, and print what belongs into the file of keys")
    new.add_argument("name", metavar="NAME", help="who gets it: letters, digits, '_', '.' and '-'")
    new.set_defaults(run=_new_key)
    check = actions.add_parser("check", help="read the file as the server would, and list what is wrong")
    config_flags(check)
    check.add_argument("--file", metavar="FILE", help="the file of keys (keys.file)")
    check.set_defaults(run=_check_keys)


def _experiments(arguments: argparse.Namespace) -> tuple[Experiment, ...]:
    """The experiments of --file or of the configuration. Raises ConfigError."""
    from telephony_tts.app import config
    from telephony_tts.app.engines import build_catalog
    from telephony_tts.app.settings import open_experiments

    settings = load(config.load, arguments, {"experiments.file": "--file"})
    if settings.experiments.file is None:
        raise ConfigError("which experiments? give --file FILE, or --config with experiments.file")
    watched = open_experiments(settings, build_catalog(settings), lambda: False)
    assert watched is not None
    return watched.content


def _check(arguments: argparse.Namespace) -> int:
    """Prints the arms. Voices are not checked: that needs the engines to start."""
    for experiment in _experiments(arguments):
        arms = ", ".join(f"{arm.name} {arm.share:g} %" for arm in experiment.arms)
        print(f"{experiment.name}: {arms}")
    return 0


def _arm(arguments: argparse.Namespace) -> int:
    from telephony_tts.experiments.arms import first_for
    from telephony_tts.ops.keys.key import Key

    experiment = first_for(_experiments(arguments), Key(arguments.key), arguments.number)
    if experiment is None:
        print(f"{arguments.call}: in no experiment")
    else:
        print(f"{arguments.call}: {experiment.name}/{experiment.arm_of(arguments.call).name}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from telephony_tts.experiments import report

    if not re.fullmatch(report.SINCE, arguments.since):
        raise ConfigError(f"--since: {arguments.since!r} is no range; expected one such as 30m, 12h or 7d")
    arms = report.read_arms(report.PrometheusApi(arguments.prometheus), arguments.since)
    if not arms:
        print(f"Prometheus has no experiment in the last {arguments.since}")
    for line in report.lines(arms, arguments.since):
        print(line)
    if arguments.json is not None:
        try:
            Path(arguments.json).write_text(json.dumps(report.as_json(arms, arguments.since), indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"--json: cannot write {arguments.json}: {error.strerror}") from error
    return 0


def _new_key(arguments: argparse.Namespace) -> int:
    from telephony_tts.ops.keys.key import digest_of
    from telephony_tts.ops.keys.key_file import NAME

    if not NAME.fullmatch(arguments.name):
        expected = "up to 64 letters, digits, '_', '.' and '-'"
        raise ConfigError(f"{arguments.name!r} is no name for a key; expected {expected}")
    token = secrets.token_hex(24)
    print(f"The token, which is not shown again: {token}")
    print("For the file of keys (keys.file), under `keys:`. Limits such as `calls: 20` may follow below it:")
    print(f"  {arguments.name}:\n    sha256: {digest_of(token.encode()).hex()}")
    return 0


def _check_keys(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import config
    from telephony_tts.app.settings import open_keys

    settings = load(config.load, arguments, {"keys.file": "--file"})
    keys = open_keys(settings)
    if keys is None:
        raise ConfigError("which keys? give --file FILE, or --config with keys.file")
    for key in keys.content:
        limits = [
            f"{name} {', '.join(value) or 'none' if isinstance(value, tuple) else value}"
            for name in ("calls", "chars_per_day", "voices", "lexicons", "experiments")
            if (value := getattr(key, name)) is not None
        ]
        limits += [] if key.media_legs else ["no media legs"]
        print(f"{key.name}: {'; '.join(limits) or 'no limits'}")
    return 0
