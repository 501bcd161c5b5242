"""The command line: serve, engine, say, voices, sounds, lexicon, experiments, keys, replay, doctor, phrases, bench, and
the commands of engines: ray, models."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.metadata
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

# Before numpy is imported anywhere: OpenBLAS threads spin against onnxruntime's and double the time of a sentence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from telephony_tts.app.plugins import PLUGINS
from telephony_tts.cli import bench as cli_bench
from telephony_tts.cli import engine as cli_engine
from telephony_tts.cli import experiments as cli_experiments
from telephony_tts.cli import lexicon as cli_lexicon
from telephony_tts.cli import phrases as cli_phrases
from telephony_tts.cli import replay as cli_replay
from telephony_tts.cli import say as cli_say
from telephony_tts.cli import voices as cli_voices
from telephony_tts.cli.settings import config_flags, load, overrides
from telephony_tts.engines.plugin import CommandLine, adder
from telephony_tts.runtime.errors import ConfigError, TelephonyTTSError

if TYPE_CHECKING:
    from telephony_tts.app.config import Config
    from telephony_tts.app.serving import Served

_EXAMPLES = """examples:
  telephony-tts serve                                       the embedded voice on 127.0.0.1:8080
  telephony-tts serve --config configs/server.yaml --port 9000
  telephony-tts say "Your parcel arrives tomorrow." out.wav
  cat letter.txt | telephony-tts say - letter.wav --pcm
  telephony-tts doctor
"""
_SERVE_EXAMPLES = """examples:
  telephony-tts serve
  telephony-tts serve --config configs/server.yaml --port 9000
  telephony-tts serve --set limits.calls=50 --set speech.lead_ms=100
  TELEPHONY_TTS_TOKENS="$(cat token)" telephony-tts serve --host 0.0.0.0

Flags override the file. Then, in another terminal:
  npx wscat -c ws://127.0.0.1:8080/v1/stream                and type a sentence
"""
_DOCTOR_EXAMPLES = """examples:
  telephony-tts doctor
  telephony-tts doctor --config configs/server.yaml         with the port and engines of that file
"""
_SOUNDS_EXAMPLES = """examples:
  telephony-tts sounds
  telephony-tts sounds --set sounds.folder=music
"""
_SERVE_FLAGS = {
    "server.host": "--host",
    "server.port": "--port",
    "speech.voice": "--voice",
    "log.level": "--log-level",
    "log.format": "--log-format",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0 success, 1 failure, 2 wrong use."""
    given = list(sys.argv[1:] if argv is None else argv)
    _check_benchmark(given)
    arguments = _parser().parse_args(cli_voices.with_action(given))
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # so that an output that cannot be written is an error here
        return status
    except ConfigError as error:
        print(f"telephony-tts: {error.message}", file=sys.stderr)
        return 2
    except TelephonyTTSError as error:
        print(f"telephony-tts: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Discard Python's buffer: writing it would fail again when the program ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 0  # the reader has gone, as in `telephony-tts voices | head`
        print(f"telephony-tts: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _check_benchmark(given: list[str]) -> None:
    """Exit with an error for an unknown benchmark. Unlike argparse's error it names the other scripts."""
    if given[:1] != ["bench"] or not given[1:] or given[1].startswith("-") or given[1] in cli_bench.NAMES:
        return
    others = ", ".join(sorted({file.stem for file in cli_bench.scripts().glob("*.py")} - set(cli_bench.SCRIPTS)))
    known = ", ".join(cli_bench.NAMES)
    argparse.ArgumentParser(prog="telephony-tts bench", usage=cli_bench.USAGE).error(
        f"unknown benchmark {given[1]!r}; expected one of {known}. To run another script of the source checkout"
        f"{others and f' ({others})'}: .venv/bin/python benchmarks/NAME.py --help"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="telephony-tts",
        description="Text turns in, telephone speech out: a WebSocket server that gives a call-centre bot its voice.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"telephony-tts {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = adder(commands)

    serve = command("serve", "run the server", _SERVE_EXAMPLES, _serve)
    config_flags(serve)
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1; 0.0.0.0 for all, which needs a token)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8080; 0 picks a free one)")
    serve.add_argument("--voice", help="voice of calls that do not ask for one")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    serve.add_argument("--log-format", choices=("json", "text"))

    cli_engine.add_engine(command)

    say = command("say", "speak a text into a file, as a caller would hear it", cli_say.EXAMPLES, cli_say.say)
    cli_say.add_flags(say)

    voices = cli_voices.add_voices(command)

    sounds = command("sounds", "list the sounds that a bot can play", _SOUNDS_EXAMPLES, _sounds)
    config_flags(sounds)

    cli_lexicon.add_lexicon(command)

    cli_experiments.add_experiments(command)

    replay = command("replay", "draw a recorded call as a page and a picture", cli_replay.EXAMPLES, cli_replay.replay)
    cli_replay.add_flags(replay)

    doctor = command("doctor", "show what is installed, what is missing, how to install it", _DOCTOR_EXAMPLES, _doctor)
    config_flags(doctor)

    line = CommandLine(command, voices, config_flags, _load)
    for plugin in PLUGINS:
        plugin.add_commands(line)

    cli_phrases.add_phrases(command)

    cli_bench.add_bench(command)
    return parser


# ------------------------------------------------------------------- commands


def _serve(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import config
    from telephony_tts.app.announcement import announcement
    from telephony_tts.app.processes import run

    settings = load(config.load, arguments, _SERVE_FLAGS)

    def tell(served: Served) -> None:
        # The server keeps running if its output has no reader, as in `telephony-tts serve | head -3`.
        with contextlib.suppress(OSError):
            print(announcement(served, settings, _version(), _speech_flags(arguments)), flush=True)

    try:
        run(settings, tell)
    except (OSError, BaseExceptionGroup) as error:
        first = _first(error)
        if isinstance(first, OSError):
            raise _cannot_listen(first, settings) from None
        raise first from None
    return 0


def _load(arguments: argparse.Namespace, flags: Mapping[str, str]) -> Config:
    from telephony_tts.app import config

    return load(config.load, arguments, flags)


def _first(error: BaseException) -> BaseException:
    """The first error inside the groups that task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _cannot_listen(error: OSError, settings: Config) -> ConfigError:
    host, port = settings.server.host, settings.server.port
    number = error.errno or 0
    # asyncio repeats the address around the system's reason. Errors of name resolution have negative numbers.
    reason = os.strerror(number) if number > 0 else error.strerror or error
    remedy = "--port" if number in (errno.EADDRINUSE, errno.EACCES) else "--host"
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ConfigError(f"cannot listen on {where}: {reason}; try another {remedy}")


def _speech_flags(arguments: argparse.Namespace) -> list[str]:
    """The flags of `serve` that change its speech, with absolute paths for a terminal in another directory.

    Other flags are left out, because they may hold secrets.
    """
    from telephony_tts.app.config import ENGINE_PATHS

    flags = ["--config", os.path.abspath(arguments.config)] if arguments.config else []
    flags += ["--voice", arguments.voice] if arguments.voice else []
    for pair in arguments.set:
        key, _, value = pair.strip().partition("=")
        if key.strip() in ENGINE_PATHS and overrides(argparse.Namespace(set=[pair]))[key.strip()] is not None:
            pair = f"{key}={os.path.abspath(value.strip())}"
        if key.startswith(("speech.", "engines.")):
            flags += ["--set", pair]
    return flags


def _doctor(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import doctor

    return doctor.examine(arguments.config, overrides(arguments))


def _sounds(arguments: argparse.Namespace) -> int:
    from telephony_tts.app import config
    from telephony_tts.audio.sound import Sound
    from telephony_tts.transport.sound_store import SoundStore

    status = 0
    for name, sound in SoundStore(load(config.load, arguments, {}).sounds).list_sounds():
        if isinstance(sound, Sound):
            print(f"{name:<24} {sound.duration_ms / 1000:8.1f} s  {sound.rate_hz} Hz")
        else:
            print(f"telephony-tts: {sound.message}", file=sys.stderr)
            status = 1
    return status


def _version() -> str:
    try:
        return importlib.metadata.version("telephony-tts")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
