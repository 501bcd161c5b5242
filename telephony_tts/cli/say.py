"""The command `say`: speak a text into a file or to standard output, as a caller would hear it."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from telephony_tts.cli.lexicon import call_lexicon
from telephony_tts.cli.settings import config_flags, load
from telephony_tts.runtime.errors import ConfigError

if TYPE_CHECKING:
    from telephony_tts.engines.catalog import Catalog
    from telephony_tts.session.settings import SessionSettings
    from telephony_tts.wire.messages import Configure

EXAMPLES = """examples:
  telephony-tts say 'Your balance is $42.50.' out.wav       what a caller hears: 8 kHz mu-law
  telephony-tts say "Hello." out.wav --pcm                  the engine's own audio
  telephony-tts say "Hello." out.wav --codec pcm --rate 16000
  telephony-tts say - long.wav < text.txt                   text from standard input
  telephony-tts say "Hello." - | aplay                      speech to standard output, as WAV
  telephony-tts say "Hello." hello.alaw                     A-law without a header, as a PBX plays it
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model DIR --voice anna --instruct "Speak slowly."
  telephony-tts say --show "您好，请还款。"                 how it is read, as JSON, without a sound
  telephony-tts say "Guten Tag." de.wav --voice espeak/de   another engine's voice (needs the espeak extra)

The ending of the file decides the format: .wav, or no ending, is WAV; .ulaw and .alaw are G.711 without a header; .raw
is the samples of --codec, or of --pcm, without a header.
"""
FLAGS = {
    "engines.default": "--engine",
    "engines.cosyvoice2.model": "--model",
    "speech.voice": "--voice",
    "speech.lang": "--lang",
    "speech.speed": "--speed",
}
RATES_HZ = (8_000, 16_000, 24_000, 48_000)
STANDARD_OUTPUT = "-"
_ENDINGS = (".wav", ".ulaw", ".alaw", ".raw")
_LONG_TEXT_CHARS = 400


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The arguments and flags of `say`."""
    parser.add_argument("text", help="the text; - reads standard input")
    parser.add_argument("out", nargs="?", help="the file: .wav, .ulaw, .alaw or .raw; - is standard output, as WAV")
    config_flags(parser)
    parser.add_argument(
        "--show", action="store_true",
        help="print a JSON line for each sentence in place of speech: its text and offsets, language, voice, reading "
        "in words, and what the voice is given (pinyin with tone digits, phonemes)",
    )  # fmt: skip
    parser.add_argument("--engine", help="engine to use, whatever the language (see `telephony-tts voices`)")
    parser.add_argument("--model", metavar="DIR", help="model directory, with --engine cosyvoice2")
    parser.add_argument("--voice", help="voice to use (see `telephony-tts voices`)")
    parser.add_argument("--lang", help="language of the text (default: detected from the text)")
    parser.add_argument("--speed", type=float, help="0.5 to 2, default 1")
    parser.add_argument(
        "--seed", type=int, help="0 to 4294967295, for engines that sample: the same seed gives the same speech"
    )
    parser.add_argument("--instruct", help="how to speak, for engines that take an instruction (cosyvoice2)")
    parser.add_argument("--lexicon", action="append", default=[], metavar="FILE", help="how words are spoken (YAML)")
    parser.add_argument("--codec", choices=("ulaw", "alaw", "pcm"), help="what the file holds (default ulaw)")
    parser.add_argument("--rate", type=int, choices=RATES_HZ, help="samples a second, with --codec pcm (default 8000)")
    parser.add_argument("--pcm", action="store_true", help="the engine's own audio, before the telephone codec")


def say(arguments: argparse.Namespace) -> int:
    """Speak and write. Raises ConfigError for flags that do not go together and for a file that cannot be written."""
    from telephony_tts.app import config
    from telephony_tts.app.engines import build_catalog
    from telephony_tts.app.settings import open_lexicons, session_settings
    from telephony_tts.engines.catalog import Catalog
    from telephony_tts.wire.messages import Configure
    from telephony_tts.wire.native import MAX_SEED

    if arguments.seed is not None and not 0 <= arguments.seed <= MAX_SEED:
        raise ConfigError(f"--seed is {arguments.seed}; expected a whole number from 0 to {MAX_SEED}")
    if arguments.out is None and not arguments.show:
        raise ConfigError("name a file to write, - for standard output, or --show to see how the text is read")
    if arguments.out is not None and arguments.show:
        raise ConfigError(f"--show writes no sound; leave {arguments.out} out")
    settings = load(config.load, arguments, FLAGS)
    how = Configure(seed=arguments.seed, instruct=arguments.instruct)
    ending = _ending(arguments.out or STANDARD_OUTPUT)
    speech = session_settings(settings, open_lexicons(settings))
    speech = replace(speech, lexicon=call_lexicon(arguments.lexicon, speech.lexicon))
    speech = _with_codec(speech, arguments, ending)
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    if not text.strip():
        raise ConfigError("there is no text to speak")
    catalog = build_catalog(settings)
    if arguments.engine is not None:
        # Without this a route or a voice of another engine would silently replace the engine.
        catalog = Catalog([engine for engine in catalog.engines if engine.name == arguments.engine], {})
    if arguments.show:
        return _show(text, catalog, speech)
    with _opened(arguments.out) as file:
        made = asyncio.run(_spoken(text, catalog, speech, how, arguments.pcm))
        file.write(made.payload if ending != ".wav" else made.wav())
    what = "standard output" if arguments.out == STANDARD_OUTPUT else arguments.out
    print(f"{what}: {made.seconds:.2f} s of speech", file=sys.stderr)
    return 0


def _show(text: str, catalog: Catalog, settings: SessionSettings) -> int:
    """Print how each sentence is read."""
    from telephony_tts.app import offline
    from telephony_tts.engines.api import ShowsReading
    from telephony_tts.engines.phrases import PhraseKeeper
    from telephony_tts.engines.words import language_of

    for start, written, utterance in offline.utterances(text, catalog, settings):
        engine, voice = catalog.choose(utterance)
        reads = engine.inner if isinstance(engine, PhraseKeeper) else engine
        utterance = replace(utterance, voice=voice.name)
        language = language_of(utterance.text) or utterance.lang
        shown = {
            "text": written,
            "from": start,
            "to": start + len(written),
            "language": language if language and voice.speaks(language) else voice.languages[0],
            "voice": f"{voice.engine}/{voice.name}",
            "reading": utterance.text,
            **(reads.shown(utterance) if isinstance(reads, ShowsReading) else {"given": utterance.text}),
        }
        print(json.dumps(shown, ensure_ascii=False), flush=True)
    return 0


# ----------------------------------------------------------------------------- output


def _ending(out: str) -> str:
    """The ending that decides the format. Standard output, devices and pipes get ".wav", whatever their name.

    Raises ConfigError for an unknown ending.
    """
    path = Path(out)
    if out == STANDARD_OUTPUT or not path.suffix or (path.exists() and not path.is_file()):
        return ".wav"
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise ConfigError(
            f"{out}: `say` cannot write {path.suffix} files; use .wav, .ulaw or .alaw (G.711 without a header), or "
            ".raw (samples without a header)"
        )
    return ending


def _with_codec(speech: SessionSettings, arguments: argparse.Namespace, ending: str) -> SessionSettings:
    """The configured settings with the codec and rate of the flags and the file's ending. Raises ConfigError."""
    of_ending = ending.removeprefix(".") if ending in (".ulaw", ".alaw") else None
    if arguments.pcm:
        for flag, value in (("--rate", arguments.rate), ("--codec", arguments.codec)):
            if value not in (None, "pcm"):
                raise ConfigError(
                    f"{flag} {value} does not go with --pcm, which is the engine's own audio; leave --pcm out (16-bit "
                    "audio of another rate is --codec pcm --rate HZ)"
                )
    asked = "pcm" if arguments.pcm else arguments.codec
    if of_ending is not None and asked not in (None, of_ending):
        flag = "--pcm" if arguments.pcm else f"--codec {asked}"
        raise ConfigError(
            f"{arguments.out} means codec {of_ending}, but {flag} is given; name a .wav or .raw file, or omit {flag}"
        )
    codec = asked or of_ending or speech.codec
    rate_hz = arguments.rate or (speech.rate_hz if codec == speech.codec else 8_000)
    if codec != "pcm" and rate_hz != 8_000:
        raise ConfigError(
            f"--rate {rate_hz} needs --codec pcm and a .wav or .raw file: the codec is {codec}, which has 8000 Hz "
            "(--pcm is the engine's own audio, at its own rate)"
        )
    return replace(speech, codec=codec, rate_hz=rate_hz)


@contextmanager
def _opened(out: str) -> Iterator[BinaryIO]:
    """Open the output. An existing file is replaced only when the new one is complete.

    Raises ConfigError if it cannot be written, BrokenPipeError if the reader of a pipe has closed it.
    """
    if out == STANDARD_OUTPUT:
        with _names("standard output"), _standard_output() as file:
            yield file
        return
    given = Path(out)
    if given.is_dir():
        raise ConfigError(f"{given.resolve()}: is a directory; expected the name of a file to write")
    if given.exists() and not given.is_file():
        with _names(out), given.open("wb") as file:  # a device or a pipe is written to
            yield file
        return
    path = given.resolve()
    partial = path.with_name(path.name + ".part")
    try:
        with _names(str(path)):
            with partial.open("wb") as file:
                yield file
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _standard_output() -> BinaryIO:
    """Standard output without Python's buffer, so that no write can fail when the program ends."""
    if sys.stdout is None:
        raise ConfigError("standard output is closed; name a file to write")
    if sys.stdout.isatty():
        raise ConfigError(
            "standard output is a terminal, which cannot show audio; name a file, or use a pipe, such as: "
            'telephony-tts say "Hello." - | aplay'
        )
    return open(sys.stdout.fileno(), "wb", closefd=False)


@contextmanager
def _names(what: str) -> Iterator[None]:
    """Turn OSError into ConfigError with the name of the output. BrokenPipeError passes: it is not a failure here."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{what}: cannot be written: {error.strerror or error}") from error


# ------------------------------------------------------------------------------ speech


@dataclass(frozen=True, slots=True)
class _Spoken:
    codec: str
    rate_hz: int
    payload: bytes

    @property
    def seconds(self) -> float:
        return len(self.payload) / self.rate_hz / (2 if self.codec == "pcm" else 1)

    def wav(self) -> bytes:
        """The whole WAV file. Its header has the length, which cannot be changed later in a pipe."""
        from telephony_tts.audio.wav import write_wav

        file = io.BytesIO()
        write_wav(file, self.payload, self.codec, self.rate_hz)
        return file.getvalue()


async def _spoken(
    text: str, catalog: Catalog, settings: SessionSettings, how: Configure, engine_audio: bool
) -> _Spoken:
    """Speak. Raises ConfigError if the text has nothing speakable, and the errors of engines."""
    import numpy as np

    from telephony_tts.app import offline
    from telephony_tts.engines.api import Chunk

    chunks: list[Chunk] = []
    frames: list[bytes] = []
    try:
        await catalog.start()
        with _Bar(len(text)) as bar:
            await offline.speak(
                text, catalog, settings, how, on_frame=frames.append, on_chunk=chunks.append if engine_audio else None,
                progress=bar.show,
            )  # fmt: skip
    finally:
        await catalog.close()
    if not frames:
        raise ConfigError("there is nothing speakable in this text")
    if not engine_audio:
        return _Spoken(settings.codec, settings.rate_hz, b"".join(frames))
    rates_hz = {chunk.sample_rate_hz for chunk in chunks}
    if len(rates_hz) > 1:
        raise ConfigError("the text was spoken by engines of different rates; name one --voice for --pcm")
    return _Spoken("pcm", rates_hz.pop(), np.concatenate([chunk.pcm for chunk in chunks]).astype("<i2").tobytes())


class _Bar:
    """A progress line on a terminal, for long texts."""

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
