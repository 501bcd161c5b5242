"""The command `bench`: measure the engine under load, draw a chart, run the benchmarks of the source checkout."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telephony_tts.app.plugins import PLUGINS
from telephony_tts.cli.settings import config_flags, overrides
from telephony_tts.engines.plugin import adder
from telephony_tts.runtime import event_loop
from telephony_tts.runtime.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from telephony_tts.app.config import Config
    from telephony_tts.bench.load import Load
    from telephony_tts.engines.api import Engine, Utterance
    from telephony_tts.engines.plugin import AddCommand, BenchSubject, Run

USAGE = "telephony-tts bench [-h] NAME [-- FLAGS ...]"
SCRIPTS = ("first_audio", "capacity", "barge_in", "frontend", "memory")
NAMES = ("engine", "plot", *SCRIPTS)
EXAMPLES = """examples:
  telephony-tts bench engine --random tiny --seconds 1 --concurrency 1,2
  telephony-tts bench plot result.json -o first_audio.png
  telephony-tts bench capacity
  telephony-tts bench first_audio -- --calls 50
  telephony-tts bench first_audio -- --help                 the flags of that benchmark
"""
ENGINE_EXAMPLES = """examples:
  telephony-tts bench engine --random tiny --seconds 1 --concurrency 1,2         a check that it runs, half a minute
  telephony-tts bench engine --config configs/cosyvoice2-l20.yaml --concurrency 1,2,4,8,16 --json l20.json
  telephony-tts bench engine --random full --keep /data/random --no-pacing --concurrency 1 --turns 2
  telephony-tts bench engine --config configs/cosyvoice2-cpu.yaml --random full --concurrency 1,2 --cancel-every 3
  telephony-tts bench engine --random full --concurrency 1,2 --turns 2         this machine, as auto chooses
  telephony-tts bench engine --random full --dtype bfloat16 --mode open --set engines.cosyvoice2.lm_dtype=int8
  telephony-tts bench engine --random full --family 300m --flow-steps 5 --no-pacing --concurrency 1 --turns 3
  telephony-tts bench engine --random full --device cuda --dtype float16 --arrivals-per-s 1,5,10,20 --turns 2
  telephony-tts bench plot l20.json -o l20.png

The engine runs as in the server, but without sockets. A real model speaks English and Chinese sentences of about
--seconds. A random model makes noise, which takes the same time; its speech is a multiple of 0.8 seconds long (300m:
of 0.4, in pieces as it speaks them: a first one of 1.2 to 2 seconds, then up to 5). With
--config the engine has the slots of that file, and further callers wait. In the closed loop all callers begin at once,
and each begins its next turn when it has heard the one before. In the open loop turns begin at random times, one every
seconds / concurrency on average, or --arrivals-per-s of them a second; there are --turns of them for each caller who
then speaks on average. A caller takes the next chunk when a second of audio is left to hear, as a call does,
unless --no-pacing is given.

  first audio   from the request to the first chunk
  audible       from the request until the listener hears the first 5 ms above -45 dBFS: silence in front counts
  IQR           the range of the middle half of the values: p75 - p25
  RTF           from the request to the last chunk, divided by the length of the speech. It includes the pauses of paced
                callers, so it is an upper bound. The engine's own RTF is that of --no-pacing --concurrency 1
  audio s/s     seconds of speech made per second for all callers together
  c100          share of turns without an underrun above 100 ms
  cancel        from a barge-in until the engine has released the utterance
"""
PLOT_EXAMPLES = """examples:
  telephony-tts bench plot result.json -o first_audio.png
  telephony-tts bench plot l20.json h200.json -o both.svg

The chart also has published figures of other CosyVoice2 servers on one GPU.
"""
MAX_SECONDS, MAX_CONCURRENCY = 30.0, 1024


def add_bench(command: AddCommand) -> None:
    """Add the command `bench` and its benchmarks."""
    parser = command("bench", "run a benchmark and write its result as JSON", EXAMPLES, _script)
    parser.usage = USAGE
    names = parser.add_subparsers(title="benchmarks", metavar="NAME", required=True, prog="telephony-tts bench")

    add = adder(names)

    def benchmark(name: str, help_text: str, examples: str, run: Run) -> argparse.ArgumentParser:
        sub = add(name, help_text, examples, run)
        sub.set_defaults(name=name)
        return sub

    if (subject := _subject()) is not None:
        about = f"measure the engine {subject.name} with many callers"
        _engine_flags(benchmark("engine", about, ENGINE_EXAMPLES, partial(_engine, subject)), subject)
    plot = benchmark("plot", "draw first audio by the number of callers", PLOT_EXAMPLES, _plot)
    plot.add_argument("results", metavar="RESULT.json", nargs="+", help="a file written by bench engine --json")
    plot.add_argument("-o", "--out", metavar="OUT.png", required=True, help="the chart to write: .png, .svg or .pdf")
    for name in SCRIPTS:
        examples = f"examples:\n  telephony-tts bench {name}\n  telephony-tts bench {name} -- --help\n"
        script = benchmark(name, f"benchmarks/{name}.py of the source checkout", examples, _script)
        script.usage = f"telephony-tts bench {name} [-h] [-- FLAGS ...]"
        script.add_argument("args", metavar="FLAGS", nargs=argparse.REMAINDER, help="passed on to the benchmark")


def _engine_flags(flags: argparse.ArgumentParser, subject: BenchSubject) -> None:
    subject.add_flags(flags)
    flags.add_argument("--voice", metavar="NAME", help="voice of --model (default its first one)")
    flags.add_argument("--concurrency", metavar="N,N,...", default="1,2,4,8,16,32,64", help="callers (%(default)s)")
    flags.add_argument("--seconds", metavar="S", type=float, default=8.0, help="of speech in a turn (%(default)s)")
    flags.add_argument(
        "--mode", choices=("closed", "open", "both"), help="the loop (default closed; with --arrivals-per-s open)"
    )
    flags.add_argument(
        "--arrivals-per-s", metavar="R,R,...",
        help="of the open loop: turns that begin in a second, in place of the rates that follow from --concurrency",
    )
    flags.add_argument("--turns", metavar="N", type=int, default=4, help="turns of each caller (%(default)s)")
    flags.add_argument("--no-pacing", action="store_true", help="take audio as fast as it comes: throughput and RTF")
    flags.add_argument("--cancel-every", metavar="S", type=float, help="cancel one turn every S seconds")
    flags.add_argument("--seed", metavar="N", type=int, default=0, help="seed of arrivals and barge-ins (%(default)s)")
    flags.add_argument("--json", metavar="OUT", help="file in which the result is written")
    config_flags(flags)


# ---------------------------------------------------------------------- the engine


def _subject() -> BenchSubject | None:
    """What can be measured: that of the first engine that has it."""
    subjects = (plugin.bench_subject() for plugin in PLUGINS)
    return next((subject for subject in subjects if subject is not None), None)


def _engine(subject: BenchSubject, arguments: argparse.Namespace) -> int:
    """Run `bench engine`. Exit status 0; 1 if a turn failed; 130 after Ctrl-C, which keeps the rows measured so far."""
    from telephony_tts.app import config
    from telephony_tts.bench.runs import table

    subject.check(arguments, config.load)
    loads = _loads(arguments)
    out = None if arguments.json is None else _writable(Path(arguments.json))
    settings = _settings(subject, arguments, "of the run", loads)  # errors come before the weights are written
    subject.need(settings)
    if (seconds := subject.seconds(arguments)) != arguments.seconds:  # the rate of the open loop depends on it
        loads = [load.with_seconds(seconds) for load in loads]
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    interrupted = False
    try:
        with event_loop.quick_turns(), subject.model(arguments, _progress) as directory:  # as in the server
            settings = _settings(subject, arguments, str(directory), loads)
            about.update(_about(subject, arguments, settings))
            asyncio.run(_measure(subject, arguments, settings, loads, about, rows))
    except KeyboardInterrupt:
        interrupted = True
        _progress("interrupted; these are the results so far")
    finally:
        if rows:
            print(table(rows))
        if out is not None and (rows or interrupted) and about:
            _write(out, about, rows)
    return 130 if interrupted else int(any(row["failed"] for row in rows))


def _loads(arguments: argparse.Namespace) -> list[Load]:
    """The loads in their order. Raises ConfigError for flags that make no sense."""
    from telephony_tts.bench.load import Load

    for flag, value, least, most in (
        ("--seconds", arguments.seconds, 0.1, MAX_SECONDS),
        ("--turns", arguments.turns, 1, 100_000),
        ("--cancel-every", arguments.cancel_every, 0.01, 3600),
    ):
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{flag} is {value}; expected {least:g} to {most:g}")
    rates = [] if arguments.arrivals_per_s is None else arrival_rates(arguments.arrivals_per_s)
    if rates and arguments.mode == "closed":
        raise ConfigError("--arrivals-per-s goes with --mode open or both")
    if arguments.mode is None:
        arguments.mode = "open" if rates else "closed"
    rest = {"paced": not arguments.no_pacing, "cancel_every_s": arguments.cancel_every, "seed": arguments.seed}
    numbers, n_turns = concurrencies(arguments.concurrency), arguments.turns
    loads = [] if arguments.mode == "open" else [Load(n, n_turns, arguments.seconds, **rest) for n in numbers]
    if arguments.mode != "closed" and rates:
        loads += [Load.at_rate(rate, n_turns, arguments.seconds, **rest) for rate in rates]
    elif arguments.mode != "closed":
        loads += [Load(n, n_turns, arguments.seconds, is_open=True, **rest) for n in numbers]
    if any(load.concurrency > MAX_CONCURRENCY for load in loads):
        raise ConfigError(f"--arrivals-per-s {arguments.arrivals_per_s} means over {MAX_CONCURRENCY} callers at once")
    return loads


def concurrencies(text: str) -> list[int]:
    """The numbers in "1,2,4". Raises ConfigError for anything else."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) if word.isascii() and word.isdecimal() else 0 for word in words]
    if not all(1 <= number <= MAX_CONCURRENCY for number in numbers) or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"--concurrency is {text!r}; expected numbers of callers, each once, 1 to {MAX_CONCURRENCY}, such as 1,2,4"
        )
    return numbers


def arrival_rates(text: str) -> list[float]:
    """The rates in "0.5,2,10". Raises ConfigError for anything else."""
    rates = []
    for word in text.split(","):
        try:
            rates.append(float(word))
        except ValueError:
            rates.append(0.0)
    if not all(0.01 <= rate <= MAX_CONCURRENCY for rate in rates) or len(set(rates)) < len(rates):
        raise ConfigError(
            f"--arrivals-per-s is {text!r}; expected turns a second, each once, 0.01 to {MAX_CONCURRENCY}, such as 1,5"
        )
    return rates


def _settings(subject: BenchSubject, arguments: argparse.Namespace, model: str, loads: Sequence[Load]) -> Config:
    """The settings of a server with a slot for every caller, unless --config or --set has other slots."""
    from telephony_tts.app import config

    n_slots = None if arguments.config else max(load.most_at_once for load in loads)
    own = subject.overrides(arguments, model, n_slots)
    given = {f"engines.{subject.name}.{key}": value for key, value in own.items()}
    return config.load(arguments.config, {"engines.default": subject.name, **given, **overrides(arguments)})


def _about(subject: BenchSubject, arguments: argparse.Namespace, settings: Config) -> dict[str, Any]:
    """The result without its figures. It has the name of the model directory, not its path."""
    from telephony_tts.bench import machine

    return {
        "machine": machine.machine(subject.device(settings)),
        "commit": machine.commit(),
        "settings": {
            **subject.about(arguments, settings),
            "seconds": subject.seconds(arguments),
            "concurrency": concurrencies(arguments.concurrency),
            "mode": arguments.mode,
            "arrivals_per_s": None if arguments.arrivals_per_s is None else arrival_rates(arguments.arrivals_per_s),
            "turns": arguments.turns,
            "paced": not arguments.no_pacing,
            "cancel_every_s": arguments.cancel_every,
            "seed": arguments.seed,
        },
    }


async def _measure(
    subject: BenchSubject,
    arguments: argparse.Namespace,
    settings: Config,
    loads: Sequence[Load],
    about: dict[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    """Start the engine and run every load; each appends a row to `rows`, also an interrupted one."""
    from telephony_tts.app.engines import build_catalog
    from telephony_tts.bench.load import Callers
    from telephony_tts.bench.runs import run

    engine = next(each for each in build_catalog(settings).engines if each.name == subject.name)
    _progress("the engine starts")
    await engine.start()
    try:
        chosen, reasons = subject.choice(engine)
        about["settings"] |= chosen
        for line in reasons:
            _progress(line)
        say = _say(subject, arguments, engine)
        about["settings"]["voice"] = say(0, 0).voice
        _progress("warm-up: one turn that is not measured")
        warming = Callers(engine, say, loads[0].warm_up())
        await warming.run()
        if warming.turns[0].error is not None:
            raise EngineError(f"the first turn failed: {warming.turns[0].error}")
        for load in loads:
            await run(engine, say, load, subject.device(settings), rows, _progress)
    finally:
        await engine.close()


def _say(subject: BenchSubject, arguments: argparse.Namespace, engine: Engine) -> Callable[[int, int], Utterance]:
    """A function that makes the utterance of a turn."""
    from telephony_tts.bench.sentences import real_text
    from telephony_tts.engines.api import Utterance

    voice, fixed = subject.voice(arguments, engine), subject.text(arguments)

    def say(index: int, now_ns: int) -> Utterance:
        text = fixed or real_text(index, arguments.seconds)
        return Utterance(f"turn {index}", text, voice=voice, seed=index, deadline_ns=now_ns)

    engine.check(say(0, 0))
    return say


# ----------------------------------------------------------------------- the result


def _writable(out: Path) -> Path:
    """The file, checked to be writable before hours of measuring. Raises ConfigError if it is not."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a directory; expected the name of a file to write")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from error
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"{out}: cannot be written: no permission")
    return out


def _write(out: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    from telephony_tts.bench.report import write_result

    try:
        write_result(out, **about, results=rows)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from error
    _progress(f"result in {out}")


def _progress(text: str) -> None:
    print(f"telephony-tts: {text}", file=sys.stderr, flush=True)


# --------------------------------------------------------------- charts and scripts


def _plot(arguments: argparse.Namespace) -> int:
    from telephony_tts.bench import plot

    series = plot.read_series([Path(file) for file in arguments.results])
    plot.draw(series, Path(arguments.out))
    print(f"{arguments.out}: {len(series)} {'line' if len(series) == 1 else 'lines'} drawn", file=sys.stderr)
    return 0


def scripts() -> Path:
    """The folder of the scripts. Only a source checkout has it."""
    return Path(__file__).resolve().parents[2] / "benchmarks"


def _script(arguments: argparse.Namespace) -> int:
    """Run a script of the checkout in a process of its own; its exit status."""
    script = scripts() / f"{arguments.name}.py"
    if not script.is_file():
        raise ConfigError("this benchmark is part of the source checkout, not of the installed package")
    passed = [argument for argument in arguments.args if argument != "--"]
    return subprocess.run([sys.executable, str(script), *passed], check=False).returncode
