"""A temporary folder with a lock. Folders of killed processes have none, and the next process removes them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_LOCK = "lock"


class LockedFolder:
    """`name` is its path, until `cleanup`. Making one removes those with the same prefix that no process holds."""

    def __init__(self, prefix: str) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_if_left(left)
        self.name = tempfile.mkdtemp(prefix=prefix)
        # The lock is held before it has its name, so that no other process finds it free.
        begun = Path(self.name, f"{_LOCK}.begun")
        self._lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        begun.rename(Path(self.name, _LOCK))

    def cleanup(self) -> None:
        """Remove the folder. Idempotent."""
        if self._lock < 0:
            return
        shutil.rmtree(self.name, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # it has no lock yet, another process holds it, or it belongs to another user
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)
