"""The command line: serve, say, voices, models, doctor, bench."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

# Before numpy is imported anywhere: OpenBLAS threads spin against onnxruntime's and double the time of a sentence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from telephony_tts import cli_bench, cli_cosyvoice2
from telephony_tts.cli_settings import config_flags, overrides
from telephony_tts.errors import ConfigError, TelephonyTTSError

if TYPE_CHECKING:
    from telephony_tts.app import Served
    from telephony_tts.config import Config
    from telephony_tts.engines.api import Engine, Voice

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
_SAY_EXAMPLES = """examples:
  telephony-tts say "Your balance is $42.50." out.wav       what a caller hears: 8 kHz mu-law
  telephony-tts say "Hello." out.wav --pcm                  the engine's own audio
  telephony-tts say - long.wav < text.txt                   text from standard input
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model DIR --voice anna --instruct "Speak slowly."
  telephony-tts say "Guten Tag." de.wav --voice espeak/de   another engine's voice (needs the espeak extra)
"""
_DOCTOR_EXAMPLES = """examples:
  telephony-tts doctor
  telephony-tts doctor --config configs/server.yaml         with the port and engines of that file
"""
_LONG_TEXT_CHARS = 400


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (0 good, 1 failed, 2 wrong use)."""
    given = list(sys.argv[1:] if argv is None else argv)
    _check_benchmark(given)
    arguments = _parser().parse_args(cli_cosyvoice2.with_action(given))
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except ConfigError as error:
        print(f"telephony-tts: {error.message}", file=sys.stderr)
        return 2
    except TelephonyTTSError as error:
        print(f"telephony-tts: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone, as in `telephony-tts voices | head`.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _check_benchmark(given: list[str]) -> None:
    """Ends the program where a benchmark is asked for that there is not: argparse would not tell of the scripts."""
    if given[:1] != ["bench"] or not given[1:] or given[1].startswith("-") or given[1] in cli_bench.NAMES:
        return
    others = ", ".join(sorted({file.stem for file in cli_bench.scripts().glob("*.py")} - set(cli_bench.SCRIPTS)))
    known = ", ".join(cli_bench.NAMES)
    argparse.ArgumentParser(prog="telephony-tts bench", usage=cli_bench.USAGE).error(
        f"invalid choice: {given[1]!r}; there are {known}. Other scripts of benchmarks/ in the source "
        f"checkout{others and f' ({others})'} are run there by themselves: .venv/bin/python benchmarks/NAME.py --help"
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

    def command(
        name: str, help_text: str, examples: str, run: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".", epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    serve = command("serve", "run the server", _SERVE_EXAMPLES, _serve)
    config_flags(serve)
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1; 0.0.0.0 for all, which needs a token)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8080; 0 picks a free one)")
    serve.add_argument("--voice", help="voice of calls that do not ask for one")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    serve.add_argument("--log-format", choices=("json", "text"))

    say = command("say", "speak a text into a WAV file, as a caller would hear it", _SAY_EXAMPLES, _say)
    say.add_argument("text", help="the text; - reads standard input")
    say.add_argument("out", help="the WAV file to write")
    config_flags(say)
    say.add_argument("--engine", help="engine to use (see `telephony-tts voices`)")
    say.add_argument("--model", metavar="DIR", help="model directory, with --engine cosyvoice2")
    say.add_argument("--voice", help="voice to use (see `telephony-tts voices`)")
    say.add_argument("--lang", help="language of the text (default: told from it)")
    say.add_argument("--speed", type=float, help="0.5 to 2, default 1")
    say.add_argument(
        "--seed", type=int, help="0 to 4294967295, for engines that sample: the same one gives the same speech again"
    )
    say.add_argument("--instruct", help="how to speak, for engines that take an instruction (cosyvoice2)")
    say.add_argument("--codec", choices=("ulaw", "alaw", "pcm"), help="what the WAV holds (default ulaw)")
    say.add_argument("--rate", type=int, help="sample rate in Hz, with --codec pcm (default 8000)")
    say.add_argument("--pcm", action="store_true", help="the engine's own audio, before the telephone codec")

    cli_cosyvoice2.add_voices(command)

    doctor = command("doctor", "tell what is installed, what is missing and how to get it", _DOCTOR_EXAMPLES, _doctor)
    config_flags(doctor)

    cli_cosyvoice2.add_models(command)

    cli_bench.add_bench(command)
    return parser


# ------------------------------------------------------------------- commands


def _serve(arguments: argparse.Namespace) -> int:
    from telephony_tts import app, config

    settings = config.load(
        arguments.config,
        {
            "server.host": arguments.host,
            "server.port": arguments.port,
            "speech.voice": arguments.voice,
            "log.level": arguments.log_level,
            "log.format": arguments.log_format,
            **overrides(arguments),
        },
    )
    try:
        app.run(settings, lambda served: _announce(served, settings, _speech_flags(arguments)))
    except BaseExceptionGroup as group:
        raise _first(group) from None
    except OSError as error:
        where = f"{settings.server.host}:{settings.server.port}"
        raise ConfigError(f"cannot listen on {where}: {error.strerror or error}; try --port") from error
    return 0


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error behind a task group's wrapping: what a person can act on."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError):
        return ConfigError(f"cannot listen: {error.strerror or error}; try --port")
    return error


def _announce(served: Served, settings: Config, flags: list[str]) -> None:
    """Tell that the server is ready, and what to do next; `flags` make `say` speak as a call does."""
    voice = _voice_of_calls(served, settings)
    say = shlex.join([".venv/bin/telephony-tts", "say", "Hello there.", "hello.wav", *flags])
    say = say.replace("'Hello there.'", '"Hello there."', 1)
    print(
        f"\ntelephony-tts {_version()} is ready at {served.address}, voice {voice.engine}/{voice.name}\n\n"
        "Now, in another terminal:\n"
        f"  npx wscat -c '{served.address}/v1/stream'      type a sentence; 8 kHz mu-law frames come back\n"
        f"  {say}     the same speech as a file to listen to\n"
        f"  curl -s http{served.address[2:]}/metrics | grep telephony_tts\n"
        f"A telephony platform connects to {served.address}/media/twilio; PROTOCOL.md has the rest. Ctrl-C stops.\n",
        flush=True,
    )


def _voice_of_calls(served: Served, settings: Config) -> Voice:
    """The voice of a call that asks for none."""
    from telephony_tts.engines.catalog import Catalog

    # The engines are the server's and their names and voices are all that choosing takes.
    voices = {name: [voice for voice in served.voices if voice.engine == name] for name in served.stats}
    engines = [SimpleNamespace(name=name, voices=voices[name]) for name in voices if voices[name]]
    routes = {lang: name for lang, name in settings.engines.routes.items() if voices.get(name)}
    catalog = Catalog(cast("list[Engine]", engines), routes)
    return catalog.resolve(settings.speech.voice, settings.speech.lang, "Hello there.")[1]


def _speech_flags(arguments: argparse.Namespace) -> list[str]:
    """The flags of `serve` that decide how it speaks; the others may hold secrets."""
    flags = ["--config", arguments.config] if arguments.config else []
    flags += ["--voice", arguments.voice] if arguments.voice else []
    for pair in arguments.set:
        if pair.strip().startswith(("speech.", "engines.")):
            flags += ["--set", pair]
    return flags


def _say(arguments: argparse.Namespace) -> int:
    from telephony_tts import app, config
    from telephony_tts.wire.messages import Configure
    from telephony_tts.wire.native import MAX_SEED

    if arguments.seed is not None and not 0 <= arguments.seed <= MAX_SEED:
        raise ConfigError(f"--seed is {arguments.seed}; expected a whole number from 0 to {MAX_SEED}")
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    settings = config.load(
        arguments.config,
        {
            "engines.default": arguments.engine,
            "engines.cosyvoice2.model": arguments.model,
            "speech.voice": arguments.voice,
            "speech.lang": arguments.lang,
            "speech.speed": arguments.speed,
            "speech.codec": arguments.codec,
            "speech.rate_hz": arguments.rate,
            **overrides(arguments),
        },
    )
    if not text.strip():
        raise ConfigError("there is no text to speak")
    catalog = app.build_catalog(settings)
    out = Path(arguments.out).resolve()
    if out.is_dir():
        raise ConfigError(f"{out}: is a directory; expected the name of a file to write")
    # A device or a pipe is written to; a file is replaced when its successor is whole.
    partial = out if out.exists() and not out.is_file() else out.with_name(out.name + ".part")
    speech = app.session_settings(settings)
    how = Configure(seed=arguments.seed, instruct=arguments.instruct)
    try:
        seconds = asyncio.run(_say_to_file(text, partial, catalog, speech, how, arguments.pcm))
        partial.replace(out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        if partial != out:
            partial.unlink(missing_ok=True)
    print(f"{arguments.out}: {seconds:.2f} s of speech", file=sys.stderr)
    return 0


async def _say_to_file(
    text: str, out: Path, catalog: object, settings: object, how: object, engine_audio: bool
) -> float:
    """Speak into `out`; returns the seconds of speech. Raises OSError where it cannot be written."""
    import numpy as np

    from telephony_tts import offline
    from telephony_tts.audio.wav import WavWriter
    from telephony_tts.engines.api import Chunk
    from telephony_tts.engines.catalog import Catalog
    from telephony_tts.session.settings import SessionSettings
    from telephony_tts.wire.messages import Configure

    assert isinstance(catalog, Catalog) and isinstance(settings, SessionSettings) and isinstance(how, Configure)
    chunks: list[Chunk] = []
    n_bytes = 0
    try:
        await catalog.start()
        with _Bar(len(text)) as bar, WavWriter(str(out), settings.codec, settings.rate_hz) as writer:

            def on_frame(payload: bytes) -> None:
                nonlocal n_bytes
                n_bytes += len(payload)
                writer.write(payload)

            await offline.speak(
                text, catalog, settings, how, on_frame=on_frame, on_chunk=chunks.append if engine_audio else None,
                progress=bar.show,
            )
        if n_bytes == 0:
            raise ConfigError("there is nothing speakable in this text")
        if engine_audio:
            rates = {chunk.sample_rate_hz for chunk in chunks}
            if len(rates) > 1:
                raise ConfigError("the text was spoken by engines of different rates; name one --voice for --pcm")
            with WavWriter(str(out), "pcm", rates.pop()) as writer:
                writer.write(np.concatenate([chunk.pcm for chunk in chunks]).astype("<i2").tobytes())
    finally:
        await catalog.close()
    return n_bytes / settings.rate_hz / (2 if settings.codec == "pcm" else 1)


class _Bar:
    """A progress line on a terminal, for texts long enough to wait for."""

    def __init__(self, n_chars: int) -> None:
        self._on = n_chars >= _LONG_TEXT_CHARS and sys.stderr.isatty()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, n_done: int, n_chars: int) -> None:
        if self._on:
            n_full = 40 * n_done // n_chars
            bar = "█" * n_full + "·" * (40 - n_full)
            print(f"\r  {bar} {100 * n_done // n_chars:3d} %", end="", file=sys.stderr, flush=True)


def _doctor(arguments: argparse.Namespace) -> int:
    from telephony_tts import doctor

    return doctor.examine(arguments.config, overrides(arguments))


def _version() -> str:
    try:
        return importlib.metadata.version("telephony-tts")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
