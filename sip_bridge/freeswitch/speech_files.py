"""The files of speech that FreeSWITCH's module writes: how to recognise their paths, and how to remove them.

Only files with the module's naming are ever played or removed. Links are never followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

_FOLDER = re.compile(r"/(?:[A-Za-z0-9_.-]+/)*", re.ASCII)
_TAIL = re.compile(r"_[0-9]{1,9}\.tmp\.r(?:8|16)", re.ASCII)
_LEFTOVER = re.compile(rf"([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}){_TAIL.pattern}", re.ASCII)
"""Stricter than for playing: here the channel's name must be a UUID as FreeSWITCH itself chooses it."""

_MAX_PATH_CHARS = 250
_MAX_LEFTOVERS = 10_000


def is_folder(path: str) -> bool:
    """Whether `path` is absolute, ends with a slash, and has no "." or ".." in it."""
    return (
        len(path) <= _MAX_PATH_CHARS
        and _FOLDER.fullmatch(path) is not None
        and not {".", ".."} & set(path.split("/"))
    )


def is_speech_file(path: str, uuid: str) -> bool:
    """Whether `path` is one that the module gives to a file of the channel `uuid`."""
    folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
    return (
        len(path) <= _MAX_PATH_CHARS
        and is_folder(folder)
        and name.startswith(uuid)
        and _TAIL.fullmatch(name[len(uuid) :]) is not None
    )


def remove(path: str) -> None:
    """Remove one file. Errors are ignored: the file may be gone, on another machine, or another user's."""
    with suppress(OSError):
        os.unlink(path)


def remove_all(paths: Iterable[str]) -> None:
    """Remove files as `remove` does. This blocks on the disk: call it in a thread."""
    for path in paths:
        remove(path)


def leftovers(folder: str, before_s: float) -> dict[str, list[str]]:
    """Files of speech in `folder` that were last written before `before_s` (seconds since 1970), by channel.

    Subfolders are not searched, and an unreadable folder has no files. This blocks on the disk: call it in a thread.
    """
    found: dict[str, list[str]] = {}
    n_found = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _LEFTOVER.fullmatch(entry.name)
            if match is None or not _is_old_file(entry, before_s):
                continue
            found.setdefault(match[1], []).append(entry.path)
            n_found += 1
            if n_found == _MAX_LEFTOVERS:
                break
    return found


def _is_old_file(entry: os.DirEntry[str], before_s: float) -> bool:
    with suppress(OSError):
        return entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before_s
    return False
