"""Engine processes that are forked from one process, which has imported torch.

The import takes three seconds of CPU, more than all else that most tests do with such a process. The forked process
becomes a child of the test's process, as if that had started it: it is waited for and killed in the same way. Some
tests start real ones: their start and end is what is judged there.

This file has both sides, like `peers/preloaded_driver.py`.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from preloaded_engine import main; main(int(sys.argv[1]))"
MOST_BYTES = 1 << 17
PR_SET_CHILD_SUBREAPER = 36
FREE_FD = 500
"""Files are moved here first: the number that one shall have may be another's."""


class ForkedEngine:
    """What `process_host` needs of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        code = self._waited(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class PreloadedEngine:
    """The process that has imported torch. `Popen` is in place of `subprocess.Popen`."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self, environment: dict[str, str]) -> None:
        # Orphans below this process become its children, and so what the other process has forked.
        _be_subreaper(True)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno()), os.path.dirname(__file__), *sys.path],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip

    def Popen(self, command: Sequence[str], pass_fds: Sequence[int], stdin: int, env: dict[str, str]) -> ForkedEngine:
        assert command[2] == "-c" and stdin == subprocess.DEVNULL
        request = pickle.dumps((command[3:], env, os.getcwd(), [1, 2, *pass_fds]))
        socket.send_fds(self._socket, [request], [1, 2, *pass_fds])
        answer = self._socket.recv(MOST_BYTES)
        assert answer, "the process that has imported torch has ended"
        return ForkedEngine(int(answer))

    def close(self) -> None:
        self._socket.close()
        assert self._process.wait(60) == 0
        _be_subreaper(False)


def _be_subreaper(is_one: bool) -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0) == 0


# ------------------------------------------------------------------------ the process


def main(fd: int) -> None:
    import few_steps  # noqa: F401

    import telephony_tts.engines.cosyvoice2.core.core
    import telephony_tts.engines.cosyvoice2.hosting.known_voices  # noqa: F401

    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"an import started {n_threads - 1} threads, which a child would not have"
    gc.collect()
    gc.freeze()  # otherwise each child would visit, and so copy, all that was imported
    connection = socket.socket(fileno=fd)
    of_child, to = os.pipe()
    while True:
        data, fds, _, _ = socket.recv_fds(connection, MOST_BYTES, 8)
        if not data:
            os._exit(0)
        request = pickle.loads(data)
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for each in (fd, of_child, to):
                    os.close(each)
                connection.detach()
                _become_engine(fds, *request)
                return
            os.write(to, b"%d" % child)
            os._exit(0)  # now the child is an orphan
        os.waitpid(between, 0)
        connection.send(os.read(of_child, 20))
        for each in fds:
            os.close(each)


def _become_engine(fds: Sequence[int], arguments: list[str], env: dict[str, str], cwd: str, numbers: Any) -> None:
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, FREE_FD) for each in fds]
    for each in fds:
        os.close(each)
    for each, number in zip(high, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)
    gc.unfreeze()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    program, *sys.argv[1:] = arguments
    exec(program, {"__name__": "__main__"})
