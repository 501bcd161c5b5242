"""Another program as a child process: started, watched, and ended by its process id in every case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL_S = 0.01
_TERM_S = 1.0
_KILL_S = 10.0

# Reads a line when this process ends the program itself. At an end of file this process is gone, so the keeper kills
# the program and removes its folder.
_KEEPER = 'read -r line && exit 0; kill -KILL "$1" 2>/dev/null; sleep 0.2; rm -rf -- "$2"'


class PeerFailed(Exception):
    """A program did not do what was needed; the message has the end of its output."""


class PeerProcess:
    """One running program, its output in a file of `folder`.

    If this process is killed, the program is killed too and the folder is removed.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        self.output = folder / f"{name}.out"
        with self.output.open("wb") as output:
            # A new session: Ctrl-C reaches only this process, which then ends the program in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
                start_new_session=True, pass_fds=pass_fds,
            )  # fmt: skip
        try:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "keeper", str(self.pid), str(folder)], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def hung(self) -> bool:
        """Whether it is stopped by a signal: then it does not react, not even to SIGTERM."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        if self.running():
            self._process.send_signal(number)

    def wait(self, within_s: float) -> bool:
        """Wait for its end. False if it still runs after `within_s`."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, ask: Callable[[], None] | None = None, ask_s: float = 5.0) -> None:
        """End it: with `ask`, then with SIGTERM, then with SIGKILL, until one of them works."""
        try:
            if self.running() and not self.hung():
                if ask is not None:
                    ask()
                    self.wait(ask_s)
                if self.running():
                    self._process.terminate()
                    self.wait(_TERM_S)
        finally:
            if self.running():
                self._process.kill()
            self._process.wait(_KILL_S)
            self._dismiss_keeper()

    def written(self, n_chars: int = 3000) -> str:
        """The end of its output."""
        with contextlib.suppress(OSError):
            return self.output.read_text(errors="replace")[-n_chars:]
        return ""

    def _dismiss_keeper(self) -> None:
        assert self._keeper.stdin is not None
        if self._keeper.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(b"done\n")
            self._keeper.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        self._keeper.wait(_KILL_S)


def wait_until(true: Callable[[], object], what: str, within_s: float) -> None:
    """Poll until a condition holds. Raises PeerFailed after `within_s`."""
    end_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end_s:
            raise PeerFailed(f"not within {within_s:g} s: {what}")
        time.sleep(_POLL_S)


def n_children() -> int:
    """The number of child processes of this one, zombies included."""
    n = 0
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            n += len((task / "children").read_text().split())
    return n
