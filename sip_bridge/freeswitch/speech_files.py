"""The files of speech that the module writes and FreeSWITCH plays: which paths are such files, and their removal.

Only a file with the name that the module gives is ever played or removed. A link is never followed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

_FOLDER = re.compile(r"/(?:[A-Za-z0-9_.-]+/)*", re.ASCII)
_TAIL = re.compile(r"_[0-9]{1,9}\.tmp\.r(?:8|16)", re.ASCII)
_LEFTOVER = re.compile(rf"([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}){_TAIL.pattern}", re.ASCII)
"""Stricter than what is played: the channel's name is a UUID that FreeSWITCH has chosen itself."""

_MAX_PATH_CHARS = 250
_MAX_LEFTOVERS = 10_000


def is_folder(path: str) -> bool:
    """Whether it is an absolute path that ends with a slash, without "." and ".."."""
    return (
        len(path) <= _MAX_PATH_CHARS
        and _FOLDER.fullmatch(path) is not None
        and not {".", ".."} & set(path.split("/"))
    )


def is_speech_file(path: str, uuid: str) -> bool:
    """Whether the module gives such a path to a file of this channel."""
    folder, name = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
    return (
        len(path) <= _MAX_PATH_CHARS
        and is_folder(folder)
        and name.startswith(uuid)
        and _TAIL.fullmatch(name[len(uuid) :]) is not None
    )


def remove(path: str) -> None:
    """Remove one file. One that is gone, on another machine or of another user is left to the module."""
    with suppress(OSError):
        os.unlink(path)


def leftovers(folder: str, before_s: float) -> dict[str, list[str]]:
    """Files of speech in `folder` last written before `before_s` (seconds since 1970), by channel. Not its subfolders.

    It reads the disk, so it is to be called in a thread. A folder that cannot be read has none.
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
