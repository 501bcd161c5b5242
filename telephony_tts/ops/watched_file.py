"""A settings file that is read again when it changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.errors import ConfigError

Content = TypeVar("Content")

_log = logs.get(__name__)


class WatchedFile(Generic[Content]):
    """`content` is what `read` makes of the file. It stays as it is while the file cannot be used. Then each `reload`
    tries again: the cause may be outside the file, such as its permissions, or a voice that is not there yet."""

    def __init__(self, what: str, path: Path, read: Callable[[Path], Content]) -> None:
        """`what` is the file's name in the log and in the metrics. `read` raises ConfigError. So does this."""
        self._what = what
        self._path = path
        self._read = read
        self._seen = file_state(path)
        """The file's state when it was read for `content`."""
        self._told: tuple[object, str] | None = None
        """The file's state and the reason, if the log has said that it cannot be used."""
        self.content = read(path)

    def reload(self) -> Content | None:
        """Read the file if it changed. Returns the new content. None if nothing is new: the file did not change, or it
        cannot be used, which the log says once for each reason."""
        state = file_state(self._path)
        if state == self._seen:
            self._told = None
            return None
        try:
            content = self._read(self._path)
        except ConfigError as error:
            if self._told == (state, error.message):
                return None
            self._told = state, error.message
            metrics.FILE_RELOADS.labels(file=self._what, outcome="failed").inc()
            _log.warning("file_kept", file=self._what, why=error.message)
            return None
        self.content = content
        metrics.FILE_RELOADS.labels(file=self._what, outcome="loaded").inc()
        _log.info("file_loaded", file=self._what)
        self._seen, self._told = state, None  # last: whatever fails before, the content is read and returned again
        return content


def file_state(path: Path) -> object:
    """What changes when the file is written or replaced. None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
