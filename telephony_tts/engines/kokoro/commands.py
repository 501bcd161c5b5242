"""The command `voices pull`: fetch voices of the engine kokoro into a folder."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from telephony_tts.engines.hubs import HubFile, Listing, open_hub
from telephony_tts.engines.kokoro.styles import (
    HUB_REPO,
    NPM_PACKAGE,
    STYLE_BYTES,
    known_voices,
    read_styles,
    style_problem,
)
from telephony_tts.engines.plugin import CommandLine
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

EXAMPLES = """examples:
  telephony-tts voices pull                        every voice that is not here yet (52 files, 27 MB)
  telephony-tts voices pull ja                     the voices of a language: en, es, fr, hi, it, ja, pt, zh
  telephony-tts voices pull jf_alpha jm_kumo       these voices
  telephony-tts voices pull --source huggingface   from the hub (extra [hub]) in place of npm
  telephony-tts voices pull --voices /data/kokoro  into this folder

The files come from the npm package kokoro-js 1.2.1, which npm fetches, or from onnx-community/Kokoro-82M-v1.0-ONNX on
the hub. Each is compared with its SHA-256. A file that is right is not fetched again. Restart the server afterwards.
"""
_TIMEOUT_S = 600


def add_pull(line: CommandLine) -> None:
    """Add the action `voices pull`."""
    parser = line.voices("pull", "fetch voices of the engine kokoro", EXAMPLES, partial(pull, line))
    parser.add_argument("names", metavar="NAME", nargs="*", help="voices or languages (default: every voice)")
    parser.add_argument("--source", choices=("npm", "huggingface"), default="npm", help="where from (default npm)")
    parser.add_argument("--voices", metavar="DIR", help="the folder (engines.kokoro.voices)")
    line.flags(parser)


def pull(line: CommandLine, arguments: argparse.Namespace) -> int:
    """Exit status 0 if all voices are there. Raises ConfigError and EngineUnavailable."""
    folder = line.load(arguments, {"engines.kokoro.voices": "--voices"}).engines.kokoro.folder
    names = [voice.name for voice, _ in known_voices().values() if _is_asked(voice.name, arguments.names)]
    unknown = [name for name in arguments.names if not any(_is_asked(each, [name]) for each in known_voices())]
    if unknown:
        raise ConfigError(f"kokoro has no voice {unknown[0]!r}; it has {', '.join(known_voices())}")
    missing = [name for name in names if not _is_right(name, folder)]
    if missing:
        _make(folder)
        fetched = _from_npm(missing) if arguments.source == "npm" else _from_hub(missing)
        for name, content in fetched:
            if (problem := style_problem(name, content)) is not None:
                raise EngineUnavailable(f"{name}.bin from {arguments.source} {problem}, so it was not stored")
            _write(folder / f"{name}.bin", content)
    print(f"{folder}: {len(missing)} voices fetched, {len(names) - len(missing)} were already there")
    return 0


def _is_asked(name: str, asked: list[str]) -> bool:
    return not asked or any(each == name or known_voices()[name][0].speaks(each) for each in asked)


def _is_right(name: str, folder: Path) -> bool:
    try:
        read_styles(name, folder)
    except EngineUnavailable:
        return False
    return True


def _from_npm(names: list[str]) -> Iterator[tuple[str, bytes]]:
    """The files from the npm package, which npm itself fetches: its settings, proxy and registry apply."""
    npm = shutil.which("npm")
    if npm is None:
        elsewhere = "or fetch them on another machine, copy the folder and name it in engines.kokoro.voices"
        raise ConfigError(f"npm is not installed: apt-get install npm, take --source huggingface, {elsewhere}")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", NPM_PACKAGE, "--silent", "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=_TIMEOUT_S, check=False)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            why = (done.stderr.strip() or "it wrote no file").splitlines()[0]
            raise EngineUnavailable(f"npm pack {NPM_PACKAGE} failed: {why}", retryable=True)
        with tarfile.open(archives[0]) as archive:
            for name in names:
                file = archive.extractfile(f"package/voices/{name}.bin")
                assert file is not None
                yield name, file.read(STYLE_BYTES + 1)


def _from_hub(names: list[str]) -> Iterator[tuple[str, bytes]]:
    hub = open_hub("huggingface")
    for name in names:
        content = _AtMost(STYLE_BYTES)
        hub.read(Listing(HUB_REPO, "main", {}), HubFile(f"voices/{name}.bin"), content, 0)
        yield name, content.getvalue()


class _AtMost(io.BytesIO):
    """Refuses more than so many bytes, whatever a hub sends."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__()
        self._n_bytes = n_bytes

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self._n_bytes:
            raise EOFError(f"it has more than {self._n_bytes} bytes")
        return super().write(data)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_written(folder, error) from error


def _write(path: Path, content: bytes) -> None:
    """A reader sees the old file or the whole new one."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def _not_written(path: Path, error: OSError) -> ConfigError:
    why = error.strerror or str(error)
    return ConfigError(f"{path} cannot be written: {why}; name another folder with --voices or engines.kokoro.voices")
