"""The actions `voices add`, `check`, `remove` and `import`: the stored voices of CosyVoice2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.cosyvoice2.configuration import CosyVoice2Settings
from telephony_tts.engines.cosyvoice2.plugin import PLUGIN, need_torch, spoken
from telephony_tts.engines.plugin import CommandLine
from telephony_tts.engines.versions import package_version
from telephony_tts.runtime.errors import ConfigError, shell_command

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

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


def add_voice_actions(line: CommandLine) -> None:
    """Add the actions to the command `voices`."""
    action = line.voices
    adding = action("add", "make a CosyVoice2 voice from a recording, in seconds", _ADD_EXAMPLES, partial(_add, line))
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
    removing = action("remove", "remove a stored CosyVoice2 voice", _REMOVE_EXAMPLES, partial(_remove, line))
    removing.add_argument("name", metavar="NAME", help="the voice")
    importing = action("import", "store the voices of a spk2info.pt", _IMPORT_EXAMPLES, partial(_import, line))
    importing.add_argument("file", metavar="FILE", help="the spk2info.pt")
    importing.add_argument("--only", metavar="NAME", nargs="+", default=[], help="only these voices")
    importing.add_argument("--replace", action="store_true", help="replace voices of the same names")
    for sub in (adding, removing, importing):
        line.flags(sub)
        PLUGIN.add_flags(sub)


def _settings(line: CommandLine, arguments: argparse.Namespace) -> CosyVoice2Settings:
    flags = {f"engines.{PLUGIN.name}.{key}": flag for key, flag, _ in PLUGIN.flags}
    return PLUGIN.own(line.load(arguments, flags).engines)


def _store(own: CosyVoice2Settings) -> VoiceStore:
    """The folder of stored voices. Raises ConfigError if no setting names it."""
    if own.voice_folder is None:
        raise ConfigError("which voices? give --model DIR or --voices DIR, or --config with engines.cosyvoice2.model")
    need_torch()
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    return VoiceStore(own.voice_folder)


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


def _add(line: CommandLine, arguments: argparse.Namespace) -> int:
    own = _settings(line, arguments)
    model, transcript = own.model, ""
    if model is None:
        raise ConfigError(f"which model? give --model DIR; {shell_command('telephony-tts models pull')} fetches one")
    if arguments.text is not None:
        transcript = spoken(arguments.text)
        if not transcript:
            raise ConfigError("--text has no words: give the words of the recording, or leave it out")
    store = _store(own)
    from telephony_tts.engines.cosyvoice2.voices.enrolment import enrol

    made = enrol(
        arguments.name, Path(arguments.wav), transcript, Path(model), store,
        replace=arguments.replace, trim=arguments.trim, denoise=arguments.denoise,
        made_by=package_version("telephony-tts"), record=_record(arguments),
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


def _explained(mode: str) -> str:
    if mode == "zero-shot":
        return "zero-shot: it speaks in the manner of the recording"
    return "cross-lingual: only the sound of the voice, because there is no --text"


def _remove(line: CommandLine, arguments: argparse.Namespace) -> int:
    own = _settings(line, arguments)
    store, model = _store(own), own.model
    from telephony_tts.engines.cosyvoice2.voices.enrolment import remove_voice

    remove_voice(arguments.name, store, None if model is None else Path(model))
    print(f"{arguments.name}: removed from {store.directory}, also for a running server")
    return 0


def _import(line: CommandLine, arguments: argparse.Namespace) -> int:
    """Exit status 1 if no voice could be imported, or if a voice named by --only could not be."""
    own = _settings(line, arguments)
    store = _store(own)
    from telephony_tts.engines.cosyvoice2.voices.enrolment import ModelSizes, import_speakers

    sizes = ModelSizes(None if own.model is None else Path(own.model))
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
