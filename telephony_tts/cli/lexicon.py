"""The command `lexicon`: check lexicon files, and show how a text is read with them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from telephony_tts.cli.settings import config_flags, load
from telephony_tts.engines.plugin import AddCommand
from telephony_tts.runtime.errors import ConfigError

if TYPE_CHECKING:
    from telephony_tts.session.lexicons import CallLexicon

EXAMPLES = """examples:
  telephony-tts lexicon check brands.yaml cities.yaml
  telephony-tts lexicon say "Ask ACME-12 about SQL." --file brands.yaml
  telephony-tts lexicon say "我在重庆。" --config configs/server.yaml --voice anna
  telephony-tts say "Ask about SQL." out.wav --lexicon brands.yaml      to hear it
"""



def add_lexicon(command: AddCommand) -> None:
    """The commands `lexicon check` and `lexicon say`."""
    parser = command("lexicon", "check lexicon files, and show how a text is read with them", EXAMPLES, _check)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="read files as the server would, and list what is wrong")
    check.add_argument("files", nargs="+", metavar="FILE", help="a lexicon in YAML")
    check.set_defaults(run=_check)
    say = actions.add_parser("say", help="show how a text is read")
    say.add_argument("text", help="the text; - reads standard input")
    config_flags(say)
    say.add_argument("--file", action="append", default=[], metavar="FILE", help="a lexicon beside those of --config")
    say.add_argument("--voice", help="with the lexicons of this voice")
    say.add_argument("--lang", help="language of the text (default: detected from the text)")
    say.set_defaults(run=_say)


def call_lexicon(files: list[str], configured: CallLexicon | None) -> CallLexicon | None:
    """The lexicons of the configuration and of `files`, which win. Raises ConfigError."""
    from telephony_tts.ops.lexicon_files import LexiconFiles
    from telephony_tts.session.lexicons import CallLexicon

    if not files:
        return configured
    first = configured or CallLexicon()
    return CallLexicon(
        {**first.shelf, **LexiconFiles({file: file for file in files}).shelf}, first.languages, first.voices,
        (*first.names, *files),
    )  # fmt: skip


def _check(arguments: argparse.Namespace) -> int:
    """Prints a line for each file that can be used, and raises ConfigError with what is wrong in the others."""
    from telephony_tts.ops import lexicon_files

    problems = []
    for name in arguments.files:
        try:
            file = lexicon_files.read(Path(name))
            n_all = lexicon_files.compiled(file, name).n_entries
        except ConfigError as error:
            problems.append(error.message)
            continue
        n_patterns = len(file.lines)
        added = f", {n_all - len(file.entries)} polyphones" if file.polyphones else ""
        print(f"{name}: {len(file.entries) - n_patterns} words, {n_patterns} patterns{added}")
    if problems:
        raise ConfigError("\n".join(problems))
    return 0


def _say(arguments: argparse.Namespace) -> int:
    """Prints each sentence as the engine gets it, and below it what a lexicon changed."""
    from telephony_tts.app import config
    from telephony_tts.app.settings import open_lexicons, session_settings
    from telephony_tts.session.lexicons import read_sentences

    settings = load(config.load, arguments, {"speech.voice": "--voice", "speech.lang": "--lang"})
    speech = session_settings(settings, open_lexicons(settings))
    lexicon = call_lexicon(arguments.file, speech.lexicon)
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    for sentence, changes in read_sentences(text, lexicon, speech.lang, speech.voice, speech.control_tokens):
        print("\n  ".join([str(sentence["reading"]), *changes]))
    return 0

