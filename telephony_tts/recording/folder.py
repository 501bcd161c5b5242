"""The folder of recordings: the names of the files, how they are made, and which are removed.

A recording is two files: NAME.wav and NAME.jsonl. A name has the time, the call's id as far as its characters are
harmless, and random characters. So two calls with the same id get different files. NAME.html and NAME.png, which
`telephony-tts replay` draws, hold what was said too, and are removed with their recording.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from telephony_tts.runtime.errors import ConfigError

SUFFIXES = (".wav", ".jsonl")
_NAME = re.compile(
    r"([0-9]{8}T[0-9]{6}Z-[A-Za-z0-9_-]{1,40}-[0-9a-f]{12})\.(?:(wav|jsonl)|(?:html|png)(?:\.[0-9a-f]{12}\.part)?)"
)
"""Groups: the name without its suffix, and the suffix of a file that the server wrote."""
_MOST_ID_CHARS = 40
_DAY_S = 86_400
_FRESH_S = 120
"""A file that was written this lately may be a recording of another server in the same folder."""


def name_for(call_id: str, unix_s: float) -> str:
    """A new name, without a suffix. `call_id` may be anything: a peer chooses it."""
    harmless = re.sub(r"[^A-Za-z0-9_-]", "_", call_id[:_MOST_ID_CHARS]) or "call"
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y%m%dT%H%M%SZ}-{harmless}-{secrets.token_hex(6)}"


def open_folder(path: str) -> Path:
    """The folder, made if it is missing. Raises ConfigError if no file can be written in it."""
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial = folder / f".trial-{secrets.token_hex(6)}"
        os.close(create(trial))
        trial.unlink()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"recordings.folder: cannot write in {path}: {why}") from error
    return folder


def is_recording(name: str) -> bool:
    """Whether `name` is that of a recording, without a suffix. Such a name leads into no other folder."""
    return _NAME.fullmatch(f"{name}.jsonl") is not None


def recordings_in(folder: Path, most: int) -> list[str]:
    """The names of the recordings in the folder, without suffix, the newest first. Raises OSError."""
    with os.scandir(folder) as entries:
        known = (_NAME.fullmatch(entry.name) for entry in entries)
        return sorted((found[1] for found in known if found is not None and found[2] == "jsonl"), reverse=True)[:most]


def create(path: Path) -> int:
    """A new file that only this user can read, and its descriptor. Raises OSError, also if the file is there."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def replace(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, in place of the one that may be there. A link is replaced, not
    followed. Raises OSError."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(6)}.part")
    try:
        with open(create(part), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def to_remove(
    folder: Path, being_written: Collection[str], now_s: float, keep_days: int, keep_bytes: int
) -> list[Path]:
    """The files that are too old or too many, the oldest recording first. 0 means no limit. A page that was drawn later
    does not make its recording younger.

    Never one that is being written, and no file that is not a recording. Raises OSError if the folder cannot be read.
    """
    found: dict[str, list[tuple[float, int, Path]]] = {}
    written_s: dict[str, float] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            known = _NAME.fullmatch(entry.name)
            if known is None:
                continue
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            name = known[1]
            if known[2]:
                written_s[name] = max(about.st_mtime, written_s.get(name, 0.0))
            found.setdefault(name, []).append((about.st_mtime, about.st_size, folder / entry.name))
    total = sum(size for files in found.values() for _, size, _ in files)
    removed: list[Path] = []
    for name, files in found.items():
        written_s.setdefault(name, max(at_s for at_s, _, _ in files))
    for name, files in sorted(found.items(), key=lambda item: written_s[item[0]]):
        age_s = now_s - written_s[name]
        if name in being_written or age_s < _FRESH_S:
            continue
        if (keep_days and age_s > keep_days * _DAY_S) or (keep_bytes and total > keep_bytes):
            total -= sum(size for _, size, _ in files)
            removed += [path for _, _, path in files]
    return removed


def remove(files: Collection[Path], failed: Callable[[Path, OSError], None]) -> int:
    """Remove files. Returns how many; `failed` gets the others."""
    n_removed = 0
    for path in files:
        try:
            path.unlink(missing_ok=True)
            n_removed += 1
        except OSError as error:
            failed(path, error)
    return n_removed
