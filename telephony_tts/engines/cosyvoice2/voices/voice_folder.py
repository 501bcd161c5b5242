"""The files of stored voices: their names, whether a name is free, and removal.

It needs no PyTorch, so the server's process may use it. `voice_store` reads and writes what is in the files.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from telephony_tts.runtime.clock import unix_ns
from telephony_tts.runtime.errors import ConfigError, UnknownVoice

SUFFIX = ".safetensors"
_NAME = re.compile(r"\w[\w.-]{0,63}")
MAX_NAME_BYTES = 200
"""A file name may have 255 bytes, and the partial file of a voice has a longer name than the voice."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Tells whether a file was replaced: a voice is saved as a new file, which is renamed."""

    inode: int
    n_bytes: int
    changed_ns: int


class VoiceFolder:
    """A folder of voices. It has no state of its own: the files on disk are the voices."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)

    def names(self) -> list[str]:
        """The names of all voices, sorted. Raises OSError if the folder cannot be read."""
        return sorted(self.stamps())

    def stamps(self) -> dict[str, FileStamp]:
        """The stamp of each voice by its name; empty if there is no folder. Raises OSError if it cannot be read."""
        stamps = {}
        try:
            entries = list(os.scandir(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        for entry in entries:
            name = entry.name.removesuffix(SUFFIX)
            if name == entry.name or not is_valid_name(name) or not entry.is_file():
                continue
            with suppress(FileNotFoundError):  # it was removed meanwhile
                found = entry.stat()
                stamps[name] = FileStamp(found.st_ino, found.st_size, found.st_mtime_ns)
        return stamps

    def has(self, name: str) -> bool:
        """Whether there is a voice of this name. It looks at one file. False if that cannot be done now."""
        try:
            return is_valid_name(name) and self.path(name).is_file()
        except OSError:
            return False

    def stamp(self, name: str) -> FileStamp | None:
        """The stamp of one voice; None if there is no such file."""
        try:
            found = self.path(name).stat()
        except (OSError, ValueError):
            return None
        return FileStamp(found.st_ino, found.st_size, found.st_mtime_ns)

    def mark_used(self, name: str) -> None:
        """Note in the access time of a voice's file that the voice is used now. Its stamp stays. Nothing happens if
        that cannot be done."""
        path = self.path(name)
        with suppress(OSError):
            os.utime(path, ns=(unix_ns(), path.stat().st_mtime_ns))

    def last_used_ns(self) -> dict[str, int]:
        """When each voice was last used, by any process: see `mark_used`. Raises OSError if the folder cannot be
        read."""
        used = {}
        for name in self.stamps():
            with suppress(FileNotFoundError):  # it was removed meanwhile
                used[name] = self.path(name).stat().st_atime_ns
        return used

    def check_free(self, name: str, replace: bool = False) -> None:
        """Raises ConfigError for an invalid name, or for an existing voice that is not to be replaced."""
        if self.path(name).exists() and not replace:
            raise ConfigError(
                f"{self.directory} already has a voice {name}: give --replace, or choose another name",
                code="voice_exists",
            )

    def put(self, name: str, content: bytes) -> None:
        """Store the content of a voice's file, in place of another one. A reader gets the old voice or the new one.

        Raises ConfigError for an invalid name, and if the folder cannot be written to."""
        path = self.path(name)
        partial = partial_path(path, os.getpid())
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                if not path.is_file() or path.read_bytes() != content:
                    partial.write_bytes(content)
                    partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            why = f"the voice folder {self.directory} cannot be written to ({error.strerror or error})"
            raise ConfigError(why, code="voice_folder") from error

    def remove(self, name: str) -> None:
        """Raises UnknownVoice that lists similar names, ConfigError if the folder cannot be written to."""
        if not self.has(name):
            near = get_close_matches(name, self.names(), n=3, cutoff=0.5)
            known = f"similar: {', '.join(near)}" if near else f"voices: {', '.join(self.names()) or 'none'}"
            raise UnknownVoice(f"there is no voice {name} in {self.directory} ({known})")
        try:
            self.path(name).unlink()
        except OSError as error:
            why = f"{self.path(name)} cannot be removed: {error.strerror or error}"
            raise ConfigError(why, code="voice_folder") from error

    def path(self, name: str) -> Path:
        """The file of a voice. Raises ConfigError for an invalid name."""
        if not is_valid_name(name):
            raise ConfigError(
                f"{name!r} is not a valid name for a voice: use up to 64 letters, digits, '-', '_' and '.', "
                f"and at most {MAX_NAME_BYTES} bytes",
                code="bad_request",
            )
        return voice_path(self.directory, name)


def is_valid_name(name: str) -> bool:
    """Whether a voice of this name can be stored."""
    return _NAME.fullmatch(name) is not None and len(os.fsencode(name)) <= MAX_NAME_BYTES


def voice_path(directory: Path, name: str) -> Path:
    """The file of a voice with a valid name."""
    return directory / f"{name}{SUFFIX}"


def partial_path(path: Path, pid: int) -> Path:
    """Where the process `pid` writes a voice before it is renamed to `path`."""
    return path.with_name(f".{path.name}.{pid}.partial")
