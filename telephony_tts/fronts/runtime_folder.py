"""The folder through which the processes of one server share what they must agree on: claims, loads and sockets.

It is in memory if the system has such a place, and only this user can read it. Every process of the server holds a lock
on it while it runs. So a folder without a lock is left over from a server that was killed, and the next one removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from telephony_tts.runtime.errors import ConfigError

_PREFIX = "telephony-tts-"
_LOCK = "lock"
_MOST_PATH_BYTES = 100
"""The system's limit for the path of a Unix socket is 108 bytes, or 104."""


class RuntimeFolder:
    """An open folder. `close` lets go of it, and `remove` removes it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it is not there."""
        self.path = path
        self._lock = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._claims_lock = os.open(path / "claims.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    @classmethod
    def make(cls, parent: str | None) -> RuntimeFolder:
        """A new folder in `parent`, or where the system keeps files in memory. Raises ConfigError."""
        base = Path(parent) if parent is not None else _base()
        remove_stale(base)
        path = base / f"{_PREFIX}{os.getuid()}-{secrets.token_hex(4)}"
        if len(os.fsencode(path / "00.0000000.sock")) > _MOST_PATH_BYTES:
            why = "is too long for the path of a Unix socket; name a shorter one"
            raise ConfigError(f"server.runtime_folder: {base} {why}")
        try:
            path.mkdir(mode=0o700)
            for name in ("calls", "nonces", "metrics", "keys"):
                (path / name).mkdir(mode=0o700)
            os.close(os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return cls(path)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            why = error.strerror or str(error)
            raise ConfigError(f"server.runtime_folder: cannot write in {base}: {why}") from error

    @property
    def calls(self) -> Path:
        return self.path / "calls"

    @property
    def nonces(self) -> Path:
        return self.path / "nonces"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def loads(self) -> Path:
        return self.path / "loads"

    def socket_of(self, front: str) -> Path:
        return self.path / f"{front}.sock"

    @property
    def claims_lock(self) -> int:
        """The descriptor of a file that is locked while claims of a dead front are removed."""
        return self._claims_lock

    def close(self) -> None:
        for fd in (self._lock, self._claims_lock):
            with suppress(OSError):
                os.close(fd)
        self._lock = self._claims_lock = -1

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_stale(base: Path) -> list[Path]:
    """Remove the folders of this user's servers that were killed. Returns them."""
    removed = []
    for path in base.glob(f"{_PREFIX}{os.getuid()}-*"):
        try:
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            fd = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # it has just been made, or removed
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its server runs
        else:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        finally:
            os.close(fd)
    return removed


def _base() -> Path:
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
