"""Which front owns a call: one file for each claimed id, made in one step by the system.

A claim is a symbolic link. Its name is the hash of the call's id, and its target is the front. The system makes a link
only if the call has none, so two fronts cannot both have a call, and no process decides for the others. The claims of a
front that has ended are removed by the front that finds them, under a lock: otherwise a slow remover could remove
a new claim in place of the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from telephony_tts.transport.fronts import ClaimFailed

_ATTEMPTS = 8
"""A claim that is released and taken again between two looks at it is looked at so often."""


class Claims:
    """The claims of one front. `is_alive` tells whether a front that is named in a claim still runs."""

    def __init__(self, folder: Path, lock: int, name: str, is_alive: Callable[[str], bool]) -> None:
        self._folder = folder
        self._lock = lock
        self._name = name
        self._is_alive = is_alive
        self._held: dict[str, int] = {}
        """How often this front has claimed each id."""

    def owner(self, call_id: str) -> str | None:
        """The front that has claimed the id, which may be this one; None if no living one has. Raises ClaimFailed."""
        if call_id in self._held:
            return self._name
        try:
            found = os.readlink(self._path(call_id))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(error) from error
        return found if found != self._name and self._is_alive(found) else None

    def claim(self, call_id: str) -> str | None:
        """See `Fronts.claim`."""
        n = self._held.get(call_id, 0)
        if not n:
            owner = self._make(self._path(call_id))
            if owner is not None:
                return owner
        self._held[call_id] = n + 1
        return None

    def release(self, call_id: str) -> None:
        """Undo one claim."""
        n = self._held.pop(call_id) - 1
        if n:
            self._held[call_id] = n
            return
        with suppress(OSError):  # a folder that is gone has no claims
            os.unlink(self._path(call_id))

    def _make(self, path: str) -> str | None:
        """Make the link. Returns the other front that has it. Raises ClaimFailed."""
        try:
            for _ in range(_ATTEMPTS):
                try:
                    os.symlink(self._name, path)
                    return None
                except FileExistsError:
                    pass
                try:
                    owner = os.readlink(path)
                except FileNotFoundError:
                    continue
                if self._is_alive(owner):
                    return owner
                self._remove_dead(path, owner)
        except OSError as error:
            raise _failed(error) from error
        raise ClaimFailed("the call is claimed and released again and again")

    def _remove_dead(self, path: str, owner: str) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            with suppress(FileNotFoundError):
                if os.readlink(path) == owner:
                    os.unlink(path)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _path(self, call_id: str) -> str:
        return f"{self._folder}/{_hashed(call_id)}"


def remove_claims_of(folder: Path, lock: int, front: str) -> int:
    """Remove all claims of a front that has ended. Returns how many. Raises OSError."""
    n_removed = 0
    with os.scandir(folder) as entries:
        names = [entry.path for entry in entries]
    for path in names:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if os.readlink(path) == front:
                os.unlink(path)
                n_removed += 1
        except FileNotFoundError:
            pass
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
    return n_removed


class UsedNonces:
    """The nonces that all fronts have had. Each front keeps the last `most` of its own."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._own: OrderedDict[str, None] = OrderedDict()

    def is_new(self, nonce: str) -> bool:
        """Remember a nonce. False if a front has it already. Raises ClaimFailed."""
        path = f"{self._folder}/{_hashed(nonce)}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        except OSError as error:
            raise _failed(error) from error
        self._own[path] = None
        if len(self._own) > self._most:
            with suppress(OSError):
                os.unlink(self._own.popitem(last=False)[0])
        return True


def _hashed(text: str) -> str:
    """A file name for any text. A peer chooses the text, and the name must not be one that it can choose."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _failed(error: OSError) -> ClaimFailed:
    where = "the server's runtime folder"
    return ClaimFailed(f"{where} cannot be used ({error.strerror or error}); see server.runtime_folder")
