"""The commands `phrases warm`, `phrases stats` and `phrases clear`: the folder in which a server keeps phrases."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from telephony_tts.cli.settings import config_flags, load
from telephony_tts.engines.plugin import AddCommand
from telephony_tts.runtime.errors import ConfigError, TelephonyTTSError

if TYPE_CHECKING:
    from telephony_tts.app.config import Config

EXAMPLES = """examples:
  telephony-tts phrases warm phrases.txt --config configs/server.yaml     one phrase a line, # begins a comment
  telephony-tts phrases warm phrases.txt --folder kept --voice heart
  telephony-tts phrases stats --folder kept
  telephony-tts phrases clear --folder kept

Give the configuration of the server: a phrase is found again only with the same engine, voice and settings.
"""
DISK_S = 30.0
"""How long `warm` waits for a slow disk before it speaks a phrase again. No caller waits for it."""
FLAGS = {
    "phrases.folder": "--folder",
    "engines.default": "--engine",
    "speech.voice": "--voice",
    "speech.lang": "--lang",
    "speech.speed": "--speed",
}


def add_phrases(
    command: AddCommand,
) -> None:
    """Add `phrases` and its actions."""
    phrases = command("phrases", "keep the audio of what is said often", EXAMPLES, _stats)
    actions = phrases.add_subparsers(title="actions", metavar="ACTION", required=True)
    warm = actions.add_parser("warm", help="speak the phrases of a file that are not there yet, and keep them")
    warm.add_argument("file", metavar="FILE", help="one phrase a line, as the bot says it; - reads standard input")
    warm.add_argument("--engine", help="default engine, if it is not the configured one")
    warm.add_argument("--voice", help="voice to speak with (see `telephony-tts voices`)")
    warm.add_argument("--lang", help="language of the phrases (default: detected)")
    warm.add_argument("--speed", type=float, help="0.5 to 2, default 1")
    stats = actions.add_parser("stats", help="show how many phrases are kept, by engine and voice")
    clear = actions.add_parser("clear", help="remove all phrases")
    for parser, run in ((warm, _warm), (stats, _stats), (clear, _clear)):
        config_flags(parser)
        parser.add_argument("--folder", help="folder of the phrases, if it is not the configured one")
        parser.set_defaults(run=run)


def _settings(arguments: argparse.Namespace) -> Config:
    """Raises ConfigError if no folder is given."""
    from telephony_tts.app import config

    flags = {key: flag for key, flag in FLAGS.items() if hasattr(arguments, flag.removeprefix("--"))}
    settings = load(config.load, arguments, flags)
    if settings.phrases.folder is None:
        raise ConfigError("where are the phrases kept? Give --folder, or a --config with phrases.folder")
    return replace(settings, phrases=replace(settings.phrases, enabled=True))


# ----------------------------------------------------------------------- warm


def _warm(arguments: argparse.Namespace) -> int:
    """Exit status 1 if a phrase could not be spoken."""
    settings = _settings(arguments)
    phrases = _phrases(arguments.file)
    if not phrases:
        raise ConfigError(f"{arguments.file}: has no phrase; expected one a line")
    n_failed, found = asyncio.run(_spoken(settings, phrases))
    n_there = found["memory"] + found["disk"]
    what = f"{len(phrases)} phrases, {found.total()} sentences"
    print(f"{what}: {found['made']} made, {n_there} were there, {found['not_kept']} not kept")
    if found["not_kept"]:
        print("sentences with digits are kept only with phrases.digits: true (--set phrases.digits=true)")
    if n_failed:
        print(f"telephony-tts: {n_failed} phrases could not be spoken", file=sys.stderr)
    return 1 if n_failed else 0


def _phrases(file: str) -> list[tuple[int, str]]:
    """(number of the line, phrase). Raises ConfigError if the file cannot be read."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from error
    lines = ((n, line.strip()) for n, line in enumerate(text.splitlines(), 1))
    return [(n, line) for n, line in lines if line and not line.startswith("#")]


async def _spoken(settings: Config, phrases: list[tuple[int, str]]) -> tuple[int, Counter[str]]:
    """(the number of phrases that could not be spoken, what came of the sentences).

    Every phrase is a turn, as the bot's `say`, so that it is cut, normalised and kept as in a call."""
    from telephony_tts.app import offline
    from telephony_tts.app.engines import build_catalog, phrase_store
    from telephony_tts.app.settings import session_settings

    store = phrase_store(settings)
    store.writes_at_once = True
    store.wait_s = DISK_S
    catalog, speech = build_catalog(settings, store), session_settings(settings)
    n_failed = 0
    try:
        await catalog.start()
        for n_done, (number, phrase) in enumerate(phrases):
            _show(f"{n_done + 1} of {len(phrases)}")
            try:
                await offline.speak(phrase, catalog, speech, on_frame=lambda frame: None)
            except TelephonyTTSError as error:
                n_failed += 1
                _show("")
                print(f"telephony-tts: line {number}: {error.message}", file=sys.stderr)
            await store.written()
    finally:
        _show("")
        await catalog.close()
    return n_failed, store.n_found


def _show(progress: str) -> None:
    """A progress line on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


# --------------------------------------------------------------- stats, clear


def _stats(arguments: argparse.Namespace) -> int:
    from telephony_tts.app.engines import phrase_store

    settings = _settings(arguments)
    keys, n_bytes = phrase_store(settings).on_disk()
    by_voice = Counter(key.rpartition("/")[0] for key in keys)
    for voice, n in sorted(by_voice.items()):
        print(f"{voice:<30} {n:>7}")
    print(f"{len(keys)} sentences, {n_bytes / 1e6:.1f} of {settings.phrases.disk_mb} MB")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    from telephony_tts.app.engines import phrase_store

    settings = _settings(arguments)
    keys, _ = phrase_store(settings).on_disk(clear=True)
    print(f"{settings.phrases.folder}: {len(keys)} sentences removed; a running server may have some in memory")
    return 0
