"""`telephony-tts replay`: a recorded call as a page and a picture."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from telephony_tts.recording import folder as folders
from telephony_tts.runtime.errors import ConfigError

EXAMPLES = """examples:
  telephony-tts replay recordings/20260501T101500Z-c1-1a2b3c4d5e6f.jsonl
  telephony-tts replay FILE --out call                       call.html and call.png
  telephony-tts replay FILE --only html

The page plays the WAV file beside it, so keep the two together. Both show what was said: they are personal data. Beside
the recording, under its name, they are removed with it; a copy elsewhere is yours to remove.
"""
_FORMS = ("html", "png")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the .jsonl or the .wav of a recording")
    parser.add_argument("--out", metavar="NAME", type=Path, help="name of the files without .html and .png")
    parser.add_argument("--only", choices=_FORMS, help="write only one of the two")


def replay(arguments: argparse.Namespace) -> int:
    """Draw the recording. Without matplotlib there is only the page, unless the picture was asked for."""
    from telephony_tts.recording import chart, page
    from telephony_tts.recording.replay import read_recording

    recording = read_recording(arguments.file)
    for problem in recording.problems:
        print(f"telephony-tts: {problem}", file=sys.stderr)
    target: Path = arguments.out or arguments.file.with_suffix("")
    if target.name in ("", ".."):
        raise ConfigError(f"--out {target}: is not the name of a file")
    if recording.wav is not None and target.parent.resolve() != arguments.file.parent.resolve():
        # The page names the sound by its path from the page.
        recording.wav = os.path.relpath(arguments.file.with_name(recording.wav).resolve(), target.parent.resolve())
    if arguments.only != "png":
        out = target.with_name(f"{target.name}.html")
        _write_private(out, page.page(recording).encode("utf-8", "replace"))
        print(out)
    if arguments.only != "html":
        out = target.with_name(f"{target.name}.png")
        if arguments.only is None and importlib.util.find_spec("matplotlib") is None:
            print("telephony-tts: no picture: matplotlib is not installed (extra [bench])", file=sys.stderr)
            return 0
        _write_private(out, chart.picture(recording))
        print(out)
    return 0


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, as the recording itself. Raises ConfigError."""
    try:
        folders.replace(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
