"""The commands `voices` and `models`: list voices, manage those of CosyVoice2, and its model directories."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telephony_tts.cli import kokoro as cli_kokoro
from telephony_tts.cli.settings import config_flags, load
from telephony_tts.runtime.errors import ConfigError, how_to_get, shell_command

if TYPE_CHECKING:
    from telephony_tts.app.config import Config
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

Run = Callable[[argparse.Namespace], int]
Commands = Callable[[str, str, str, Run], argparse.ArgumentParser]
"""Adds a command from its name, description, examples and function."""

VOICES_EXAMPLES = """examples:
  telephony-tts voices                                      every voice of every engine
  telephony-tts voices --json --model /data/CosyVoice2-0.5B
  telephony-tts voices pull ja                              fetch voices of the engine kokoro
  telephony-tts voices check anna.wav --denoise quieter.wav
  telephony-tts voices add anna --wav anna.wav --text "What she says in it." --model /data/CosyVoice2-0.5B
  telephony-tts voices remove anna --model /data/CosyVoice2-0.5B
  telephony-tts voices import spk2info.pt --only anna --model /data/CosyVoice2-0.5B
"""
_ADD_EXAMPLES = """examples:
  telephony-tts voices add anna --wav anna.wav --text "Hello, how can I help you?" --model /data/CosyVoice2-0.5B
  telephony-tts voices add anna --wav anna.flac --model /data/CosyVoice2-0.5B       to speak other languages
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model /data/CosyVoice2-0.5B --voice anna

The recording: one person, 3 to 30 s (5 to 15 s are best), no noise, no echo, 16 kHz or more. With --text the voice has
the manner of the recording too (zero-shot). Without --text it has only its sound (cross-lingual). Ask the speaker for
consent. A transcript is never cut, because it is unknown which words belong to a part of the recording.
"""
_CHECK_RECORDING_EXAMPLES = """examples:
  telephony-tts voices check anna.wav                            level, noise, clipping, silence, length
  telephony-tts voices check anna.wav --denoise quieter.wav      the same with less noise, and a file to listen to

Noise reduction helps against a steady noise such as a fan or a hum, not against an echo, music or other voices. Listen
to both. If the quieter one is better, give `voices add` the original recording and --denoise. The exit status is 0 if
the recording can become a voice, else 1.
"""
_REMOVE_EXAMPLES = """examples:
  telephony-tts voices remove anna --model /data/CosyVoice2-0.5B
"""
_IMPORT_EXAMPLES = """examples:
  telephony-tts voices import spk2info.pt --model /data/CosyVoice2-0.5B             every voice in it
  telephony-tts voices import spk2info.pt --only anna ben --replace --model /data/CosyVoice2-0.5B

Reads any of the three known layouts. The file is not executed.
"""
MODELS_EXAMPLES = """examples:
  telephony-tts models pull /data/CosyVoice2-0.5B           fetch the official model (3.1 GB); repeat to continue
  telephony-tts models check /data/CosyVoice2-0.5B          is it complete, and what to do if not
  telephony-tts models random /data/tiny --size tiny        random weights in the official layout, for tests
  telephony-tts models pull /data/300M-SFT --family 300m    the first generation, CosyVoice-300M-SFT (1.7 GB)
  telephony-tts models convert --to hf /data/CosyVoice2-0.5B    its language model, for TensorRT-LLM
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model /data/tiny
"""
_PULL_EXAMPLES = """examples:
  telephony-tts models pull /data/CosyVoice2-0.5B
  telephony-tts models pull /data/CosyVoice2-0.5B --source modelscope
  HF_ENDPOINT=https://hub.example telephony-tts models pull /data/CosyVoice2-0.5B   a mirror
  telephony-tts models pull /data/ours --repo our-team/CosyVoice2-ours              a fine-tuned one
  telephony-tts models pull /data/300M-SFT --family 300m                            CosyVoice-300M-SFT

An interrupted pull continues when it is repeated. Every file is compared with the hub's own SHA-256. A file that is
right is not fetched again, and a file that differs is replaced. Files that this engine does not use are not fetched.
CosyVoice-300M also needs Whisper's vocabulary, which no hub has beside it: pip install --no-deps openai-whisper.
"""
_CHECK_EXAMPLES = """examples:
  telephony-tts models check /data/CosyVoice2-0.5B

Opens every file and checks the name and shape of every tensor. Nothing is executed. The exit status is 0 if there is no
problem, else 1 with one line for each problem and one that says what to do.
"""
_RANDOM_EXAMPLES = """examples:
  telephony-tts models random /data/tiny                    6 MB, at once
  telephony-tts models random /data/random --size full      2.6 GB: as large and as slow as the official model
  telephony-tts models random /data/tiny300 --family 300m   the first generation; 1.7 GB in full size
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model /data/tiny
"""
_CONVERT_EXAMPLES = """examples:
  telephony-tts models convert --to vllm /data/CosyVoice2-0.5B      writes /data/CosyVoice2-0.5B/vllm (0.7 GB)
  telephony-tts models convert --to hf /data/CosyVoice2-0.5B        writes /data/CosyVoice2-0.5B/hf (1.3 GB)
  telephony-tts models convert --to hf /data/ours --dtype float16   for a GPU without bfloat16, such as a V100

vllm: speech ids only, as CosyVoice's own vLLM mode reads it. hf: text and speech in one vocabulary, with a tokenizer,
as the converter of TensorRT-LLM takes it (docs/trtllm.md). Only the language model is converted. The folder appears
when it is complete. If the model has not changed since, it is left alone; otherwise it is replaced.
"""
_RAW = argparse.RawDescriptionHelpFormatter


def add_voices(command: Commands) -> None:
    """The command `voices` with its actions."""
    parser = command("voices", "list voices, add one from a recording, remove or import them", VOICES_EXAMPLES, _list)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    action = _adder(actions)
    listing = action("list", "list the voices of the installed engines (also without ACTION)", VOICES_EXAMPLES, _list)
    listing.add_argument("--json", action="store_true", help="as JSON")
    adding = action("add", "make a CosyVoice2 voice from a recording, in seconds", _ADD_EXAMPLES, _add)
    adding.add_argument("name", metavar="NAME", help="the name of the voice")
    adding.add_argument("--wav", metavar="FILE", required=True, help="the recording: WAV, FLAC, OGG or MP3")
    adding.add_argument(
        "--text", metavar="TRANSCRIPT", help="exactly the words of the recording; at most 1000 characters"
    )
    adding.add_argument(
        "--trim", action="store_true", help="keep only the beginning of a recording of more than 30 s; not with --text"
    )
    adding.add_argument(
        "--denoise", action="store_true", help="reduce the noise of the recording first; the voice's record says so"
    )
    adding.add_argument("--replace", action="store_true", help="replace a voice of this name")
    adding.add_argument("--owner", metavar="KEY", help="the named key that it belongs to; others cannot use it")
    adding.add_argument("--consent-by", metavar="WHO", help="whose voice it is")
    adding.add_argument("--consent-on", metavar="DAY", help="when that person consented, such as 2026-01-31")
    adding.add_argument("--consent-for", metavar="WHAT", help="what that person has consented to")
    check_help = "say what a recording is like before a voice is made of it"
    checking = action("check", check_help, _CHECK_RECORDING_EXAMPLES, _check_recording)
    checking.add_argument("file", metavar="FILE", help="the recording: WAV, FLAC, OGG or MP3")
    checking.add_argument("--denoise", metavar="OUT.wav", help="write a version with less noise, and check it too")
    removing = action("remove", "remove a stored CosyVoice2 voice", _REMOVE_EXAMPLES, _remove)
    removing.add_argument("name", metavar="NAME", help="the voice")
    importing = action("import", "store the voices of a spk2info.pt", _IMPORT_EXAMPLES, _import)
    importing.add_argument("file", metavar="FILE", help="the spk2info.pt")
    importing.add_argument("--only", metavar="NAME", nargs="+", default=[], help="only these voices")
    importing.add_argument("--replace", action="store_true", help="replace voices of the same names")
    cli_kokoro.add_pull(action("pull", "fetch voices of the engine kokoro", cli_kokoro.EXAMPLES, cli_kokoro.pull))
    for sub in (listing, adding, removing, importing):
        config_flags(sub)
        sub.add_argument("--model", metavar="DIR", help="model directory (engines.cosyvoice2.model)")
        sub.add_argument(
            "--voices", metavar="DIR", help="voice folder (engines.cosyvoice2.voices; default MODEL/voices)"
        )


def _adder(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> Commands:
    """A function that adds an action, with its description and examples, to a command."""

    def action(name: str, help_text: str, examples: str, run: Run) -> argparse.ArgumentParser:
        sub = actions.add_parser(
            name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".", epilog=examples,
            formatter_class=_RAW,
        )  # fmt: skip
        sub.set_defaults(run=run)
        return sub

    return action


def with_action(arguments: list[str]) -> list[str]:
    """Makes `voices` and `voices --flags` into `voices list`: the same flag in two parsers would hide itself."""
    if arguments[:1] != ["voices"] or arguments[1:2] in (["-h"], ["--help"]):
        return arguments
    return arguments if arguments[1:] and not arguments[1].startswith("-") else ["voices", "list", *arguments[1:]]


def add_models(command: Commands) -> None:
    """The command `models` with its actions."""
    parser = command("models", "fetch, check, make or convert a CosyVoice2 model directory", MODELS_EXAMPLES, _check)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    action = _adder(actions)
    pulling = action("pull", "fetch a model from a hub, or continue to fetch it, and check it", _PULL_EXAMPLES, _pull)
    checking = action("check", "check whether a model directory is complete and compatible", _CHECK_EXAMPLES, _check)
    making = action(
        "random", "write random weights in the official layout: noises, for tests", _RANDOM_EXAMPLES, _random
    )
    converting = action(
        "convert", "write the language model in the layout of another engine", _CONVERT_EXAMPLES, _convert
    )
    for sub in (pulling, checking, making, converting):
        sub.add_argument("dir", metavar="DIR", help="the model directory")
    pulling.add_argument("--source", choices=("huggingface", "modelscope"), default="huggingface", help="the hub")
    pulling.add_argument("--revision", metavar="R", help="branch, tag or commit (default: the hub's main branch)")
    pulling.add_argument("--repo", metavar="ID", help="another repository than the official one")
    for sub, does in ((pulling, "the model to fetch"), (making, "the model to imitate")):
        sub.add_argument(
            "--family", choices=("cosyvoice2", "300m"), default="cosyvoice2",
            help=f"{does}: CosyVoice2-0.5B or CosyVoice-300M-SFT (default cosyvoice2)",
        )  # fmt: skip
    making.add_argument("--size", choices=("tiny", "full"), default="tiny", help="6 MB or 2.6 GB (default tiny)")
    making.add_argument("--seed", type=int, default=0, help="the same seed gives the same weights (default 0)")
    converting.add_argument("--to", choices=("vllm", "hf"), required=True, help="the layout, and the folder's name")
    converting.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16",
        help="of the weights that are written (default bfloat16)",
    )  # fmt: skip
    converting.add_argument(
        "--replace", action="store_true", help="replace a folder of this name that another program made"
    )


# ---------------------------------------------------------------------- voices


def _settings(arguments: argparse.Namespace) -> Config:
    from telephony_tts.app import config

    flags = {"engines.cosyvoice2.model": "--model", "engines.cosyvoice2.voices": "--voices"}
    return load(config.load, arguments, flags)


def _store(settings: Config) -> VoiceStore:
    """The folder of stored voices. Raises ConfigError if no setting names it."""
    from telephony_tts.app.engines import need_torch, voice_directory

    directory = voice_directory(settings)
    if directory is None:
        raise ConfigError("which voices? give --model DIR or --voices DIR, or --config with engines.cosyvoice2.model")
    need_torch()
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    return VoiceStore(directory)


def _list(arguments: argparse.Namespace) -> int:
    from telephony_tts.app.engines import kokoro_folder, list_voices, voice_directory
    from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
    from telephony_tts.engines.cosyvoice2.voices.voice_records import VoiceRecords

    settings = _settings(arguments)
    voices, problems = asyncio.run(list_voices(settings))
    for problem in problems:
        print(f"telephony-tts: cosyvoice2/{problem}", file=sys.stderr)
    directory = voice_directory(settings)
    records = None if directory is None else VoiceRecords(VoiceFolder(directory))
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
    if any(voice.engine == "kokoro" for voice in voices):
        cli_kokoro.print_absent(kokoro_folder(settings))
    return 0


def _record(arguments: argparse.Namespace) -> dict[str, str]:
    """What the flags say of whose voice it is. Raises ConfigError."""
    consent = {name: getattr(arguments, name) for name in ("consent_by", "consent_on", "consent_for")}
    record = {name: value for name, value in consent.items() if value}
    if record and len(record) < len(consent):
        missing = ", ".join(f"--{name.replace('_', '-')}" for name in consent if name not in record)
        raise ConfigError(f"{missing}: missing; whose voice it is, when and to what that person consented go together")
    if record:
        try:
            date.fromisoformat(record["consent_on"])
        except ValueError:
            raise ConfigError("--consent-on: expected a day such as 2026-01-31") from None
    return {**record, "owner": arguments.owner} if arguments.owner else record


def _add(arguments: argparse.Namespace) -> int:
    from telephony_tts.app.engines import spoken, version

    settings = _settings(arguments)
    model, transcript = settings.engines.cosyvoice2.model, ""
    if model is None:
        raise ConfigError(f"which model? give --model DIR; {shell_command('telephony-tts models pull')} fetches one")
    if arguments.text is not None:
        transcript = spoken(arguments.text)
        if not transcript:
            raise ConfigError("--text has no words: give the words of the recording, or leave it out")
    store = _store(settings)
    from telephony_tts.engines.cosyvoice2.voices.enrolment import enrol

    made = enrol(
        arguments.name, Path(arguments.wav), transcript, Path(model), store,
        replace=arguments.replace, trim=arguments.trim, denoise=arguments.denoise,
        made_by=f"telephony-tts {version()}", record=_record(arguments),
    )  # fmt: skip
    for warning in made.warnings:
        print(f"telephony-tts: {arguments.wav}: {warning}", file=sys.stderr)
    about = made.features.provenance
    kept, source = float(about["kept_s"]), float(about["source_s"])
    print(f"{arguments.name}: {kept:.1f} of {source:.1f} s kept, {_explained(made.features.mode)}")
    if arguments.denoise:
        print(f"its noise was reduced by {about['denoised_db']} dB ({about['denoised_by']})")
    if transcript:
        print(f'it says: "{transcript}"')
    print(f"stored in {made.path}; a running server speaks with it from now on")
    return 0


def _check_recording(arguments: argparse.Namespace) -> int:
    """Exit status 1 if the recording cannot become a voice."""
    from telephony_tts.app.engines import need_torch

    need_torch()
    from telephony_tts.engines.cosyvoice2.voices.enrolment import check_recording, denoised_wav

    file = Path(arguments.file)
    if arguments.denoise is not None and Path(arguments.denoise).resolve() == file.resolve():
        raise ConfigError("--denoise: give another file; the recording itself is never changed")
    found = check_recording(file, denoise=arguments.denoise is not None)
    if arguments.denoise is not None:
        try:
            Path(arguments.denoise).write_bytes(denoised_wav(file))
        except OSError as error:
            raise ConfigError(f"{arguments.denoise} cannot be written: {error.strerror or error}") from error
    for name, source in (("recording", arguments.file), ("denoised", arguments.denoise)):
        if (told := found.get(name)) is not None:
            for line in _checked(source, told):
                print(line)
    best = found.get("denoised", found["recording"])
    return 1 if any(each["is_problem"] for each in best["findings"]) else 0


def _checked(source: str, told: Mapping[str, Any]) -> list[str]:
    """What was found in a recording, in lines."""
    by = f", lowered by {told['denoised_db']} dB ({told['denoised_by']})" if "denoised_by" in told else ""
    lines = [
        source,
        f"  speech    {told['level_dbfs']:.1f} dBFS",
        f"  noise     {told['noise_dbfs']:.1f} dBFS, {told['snr_db']:.1f} dB below the speech{by}",
        f"  clipping  {told['clipped_share']:.2%} of the samples",
        f"  length    {told['kept_s']:.1f} of {told['length_s']:.1f} s without the silence at both ends",
        f"  format    {told['rate_hz']} Hz, channels: {told['channels']}",
    ]
    for each in told["findings"]:
        lines.append(f"  {'problem' if each['is_problem'] else 'warning'}   {each['message']}")
    return lines


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


def _explained(mode: str) -> str:
    if mode == "zero-shot":
        return "zero-shot: it speaks in the manner of the recording"
    return "cross-lingual: only the sound of the voice, because there is no --text"


def _remove(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    store, model = _store(settings), settings.engines.cosyvoice2.model
    from telephony_tts.engines.cosyvoice2.voices.enrolment import remove_voice

    remove_voice(arguments.name, store, None if model is None else Path(model))
    print(f"{arguments.name}: removed from {store.directory}, also for a running server")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    """Exit status 1 if no voice could be imported, or if a voice named by --only could not be."""
    settings = _settings(arguments)
    store = _store(settings)
    from telephony_tts.engines.cosyvoice2.voices.enrolment import ModelSizes, import_speakers

    model = settings.engines.cosyvoice2.model
    sizes = ModelSizes(None if model is None else Path(model))
    n_imported = n_refused = 0
    for each in import_speakers(Path(arguments.file), store, sizes, tuple(arguments.only), replace=arguments.replace):
        if each.features is None:
            n_refused += 1
            print(f"telephony-tts: {each.name}: refused, {each.problem}", file=sys.stderr)
        else:
            n_imported += 1
            print(f"{each.name}: imported, {each.description}")
    if not n_imported:
        print(f"telephony-tts: no voice of {arguments.file} could be imported", file=sys.stderr)
        return 1
    print(f"{n_imported} stored in {store.directory}; a running server speaks with them from now on")
    return 1 if n_refused and arguments.only else 0


# ---------------------------------------------------------------------- models


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"this needs PyTorch: {how_to_get('cosyvoice')}")


def _check(arguments: argparse.Namespace) -> int:
    """Exit status 0 if the directory is good, else 1 with one line for each problem and one that says what to do."""
    _need_torch()
    from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, how_to_mend

    directory = Path(arguments.dir)
    problems = check_model_directory(directory)
    for problem in problems:
        print(f"{directory}: {problem}")
    if problems:
        print(how_to_mend(directory))
        return 1
    print(f"{directory}: complete and compatible")
    return 0


def _random(arguments: argparse.Namespace) -> int:
    _need_torch()
    from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; expected a whole number of 0 or more")
    write_random_checkpoint(Path(arguments.dir), arguments.size, arguments.seed, family=arguments.family)
    print(f"{arguments.dir}: a random {arguments.size} checkpoint; it makes noises, for tests and measurements")
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    _need_torch()
    from telephony_tts.engines.cosyvoice2.checkpoint.conversion import convert

    done = convert(Path(arguments.dir), arguments.to, arguments.dtype, replace=arguments.replace)
    what = "written" if done.is_new else "is there already, from this model"
    print(f"{done.folder}: {what} ({arguments.dtype}, {done.n_bytes / 1e6:.0f} MB)")
    if done.is_random:
        print(f"telephony-tts: {arguments.dir} has random weights: it speaks noise, not words", file=sys.stderr)
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    """Exit status 0 if the directory is complete and good, 130 after Ctrl-C."""
    from telephony_tts.engines.cosyvoice2.checkpoint.download import DownloadProgress, pull, release_of
    from telephony_tts.engines.hubs import open_hub

    directory, family = Path(arguments.dir), arguments.family
    repo = arguments.repo or release_of(family).official_repos[arguments.source]
    try:
        with DownloadProgress(sys.stderr) as progress:
            pulled = pull(directory, open_hub(arguments.source), repo, arguments.revision, progress, family)
    except KeyboardInterrupt:
        print("telephony-tts: interrupted; repeat the command to continue", file=sys.stderr)
        return 130
    for warning in pulled.warnings:
        print(f"telephony-tts: {warning}", file=sys.stderr)
    counts = f"{pulled.n_fetched} files fetched, {pulled.n_kept} were already there"
    print(f"{directory}: {repo} at {pulled.revision}, {counts}")
    if importlib.util.find_spec("torch") is None:
        check = shell_command(f"telephony-tts models check {directory}")
        print(f"not checked further: {how_to_get('cosyvoice')}, then {check}")
        return 0
    return _check(arguments)
