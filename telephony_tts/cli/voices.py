"""The command `voices`: list the voices of all engines. Engines add further actions."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping

from telephony_tts.app.plugins import PLUGINS
from telephony_tts.cli.settings import config_flags, load
from telephony_tts.engines.plugin import AddCommand, adder

EXAMPLES = """examples:
  telephony-tts voices                                      every voice of every engine
  telephony-tts voices --json --model /data/CosyVoice2-0.5B
  telephony-tts voices pull ja                              fetch voices of the engine kokoro
  telephony-tts voices check anna.wav --denoise quieter.wav
  telephony-tts voices add anna --wav anna.wav --text "What she says in it." --model /data/CosyVoice2-0.5B
  telephony-tts voices remove anna --model /data/CosyVoice2-0.5B
  telephony-tts voices import spk2info.pt --only anna --model /data/CosyVoice2-0.5B
"""


def add_voices(command: AddCommand) -> AddCommand:
    """The command `voices` with the action `list`. Returns what adds another action."""
    parser = command("voices", "list voices, add one from a recording, remove or import them", EXAMPLES, _list)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    action = adder(actions)

    listing = action("list", "list the voices of the installed engines (also without ACTION)", EXAMPLES, _list)
    listing.add_argument("--json", action="store_true", help="as JSON")
    config_flags(listing)
    for plugin in PLUGINS:
        plugin.add_flags(listing)
    return action


def with_action(arguments: list[str]) -> list[str]:
    """Makes `voices` and `voices --flags` into `voices list`: the same flag in two parsers would hide itself."""
    if arguments[:1] != ["voices"] or arguments[1:2] in (["-h"], ["--help"]):
        return arguments
    return arguments if arguments[1:] and not arguments[1].startswith("-") else ["voices", "list", *arguments[1:]]


def _list(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import config
    from telephony_tts.app.engines import list_voices, voice_records

    flags = {f"engines.{plugin.name}.{each.key}": each.flag for plugin in PLUGINS for each in plugin.flags}
    settings = load(config.load, arguments, flags)
    voices, problems = asyncio.run(list_voices(settings))
    for problem in problems:
        print(f"telephony-tts: {problem}", file=sys.stderr)
    records = voice_records(settings)
    record_of = {} if records is None else {(v.engine, v.name): records.record(v) for v in voices}
    if arguments.json:
        rows = [
            {"name": v.name, "engine": v.engine, "languages": v.languages, "sample_rate_hz": v.sample_rate_hz,
             "description": v.description, **record_of.get((v.engine, v.name), {})}
            for v in voices
        ]  # fmt: skip
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return 0
    width = max((len(f"{v.engine}/{v.name}") for v in voices), default=0)
    for voice in voices:
        print(f"{voice.engine + '/' + voice.name:<{width}}  {','.join(voice.languages):<11}  {voice.description}")
        if record := record_of.get((voice.engine, voice.name)):
            print(" " * width + "  " + _recorded(record))
    for plugin in PLUGINS:
        if any(voice.engine == plugin.name for voice in voices):
            for hint in plugin.voice_hints(plugin.own(settings.engines)):
                print(hint)
    return 0


def _recorded(record: Mapping[str, str]) -> str:
    """Whose voice it is, and the consent to it, in a line."""
    told = [f"of key {record['owner']}"] if "owner" in record else []
    if "consent_by" in record:
        told.append(f"{record['consent_by']} consented on {record['consent_on']}: {record['consent_for']}")
    else:
        told.append("no consent is recorded")
    if "denoised_by" in record:
        told.append(f"noise reduced by {record.get('denoised_db', '?')} dB ({record['denoised_by']})")
    return "; ".join(told)
