"""Processes that are forked from one that has done the imports, in place of new ones.

The imports are most of what a new process of a test costs: torch takes four seconds of CPU, the command line one to
two. A forked process becomes a child of the test's process, as if that had started it. It has a command, variables,
files and an end of its own, and is waited for and killed in the same way. A test that judges the start or the end of
such a process takes a real one.

This file has both sides, like `peers/preloaded_driver.py`.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from forked_process import main; main(int(sys.argv[1]), sys.argv[2].split())"
)
MOST_BYTES = 1 << 17
MOST_FILES = 16
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
HELD = "TEST_HOLDS_FORKS"
"""A variable with the path of a file. While there is one, forked processes do not begin."""
FREE_FD = 500
"""Files are moved here first: the number that one shall have may be another's."""
_n_in_use = 0
"""How many processes with imports this process has."""


class ForkedProcess(subprocess.Popen[Any]):
    """A child that another process has forked."""

    def __init__(self, forks: Forks, command: Sequence[str], **how: Any) -> None:
        self._forks = forks
        super().__init__(command, **how)

    def _execute_child(self, args: Any, *how: Any) -> None:  # type: ignore[misc]  # of subprocess itself
        _, _, _, pass_fds, cwd, env, _, _, _, stdin, to_stdin, of_stdout, stdout, of_stderr, stderr, *_ = how
        own = [given if given != -1 else number for number, given in enumerate((stdin, stdout, stderr))]
        numbers = dict(enumerate(own)) | {fd: fd for fd in pass_fds}
        self.pid = self._forks.fork(list(args), env, cwd, numbers)
        self._child_created = True
        self._close_pipe_fds(stdin, to_stdin, of_stdout, stdout, of_stderr, stderr)  # type: ignore[attr-defined]


class Forks:
    """The connection to a process that forks. It may be in place of the module `subprocess`."""

    DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, connection: socket.socket, *, have_forks: bool = False) -> None:
        self._connection = connection
        self._have_forks = have_forks

    def Popen(self, command: Sequence[str], **how: Any) -> ForkedProcess:
        """`command`: this Python with `-m MODULE` or `-P -c PROGRAM`, and the arguments."""
        return ForkedProcess(self, command, **how)

    def fork(
        self, command: list[str], env: Mapping[str, str] | None, cwd: str | None, numbers: Mapping[int, int]
    ) -> int:
        """The id of a child with this command. `numbers`: of its files, and which files of this process they are."""
        environment = dict(os.environ if env is None else env)
        data = pickle.dumps((self._have_forks, (command, environment, cwd or os.getcwd(), list(numbers))))
        assert len(data) < MOST_BYTES and len(numbers) <= MOST_FILES
        socket.send_fds(self._connection, [data], list(numbers.values()))
        answer = self._connection.recv(MOST_BYTES)
        assert answer, "the process with the imports has ended"
        return int(answer)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def preloaded(
    *modules: str, environment: Mapping[str, str] | None = None, have_forks: bool = False, python: Path | None = None
) -> Iterator[Forks]:
    """A process that has imported `modules`. The children that it forks are those of this process.

    `have_forks`: an engine's process that such a child starts is forked too. `python`: another one than this, which
    finds its own packages and what is in this checkout.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here = Path(__file__).resolve().parent
    path = [str(here), *(sys.path if python is None else [str(here.parent)])]
    program = PROGRAM if python is None else PROGRAM.replace("sys.path[:] =", "sys.path[:0] =")
    with theirs:
        process = subprocess.Popen(
            [str(python or sys.executable), "-P", "-c", program, str(theirs.fileno()), " ".join(modules), *path],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    adopt_orphans(1)
    forks = Forks(ours, have_forks=have_forks)
    try:
        # The imports must not be in the time that the first child takes: tests judge how long a start takes.
        assert Forks(ours).Popen([sys.executable, "-P", "-c", ""]).wait() == 0
        yield forks
    finally:
        forks.close()
        status = process.wait(60)
        adopt_orphans(-1)
    assert status == 0


class Hold:
    """Keeps forked processes that have the variable `HELD` with the path of `file` from beginning."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def begin(self) -> None:
        self._file.touch()

    def end(self) -> None:
        self._file.unlink()


def adopt_orphans(more: int) -> None:
    """Orphans below this process become its children, and so what a process with the imports has forked. `more`: 1 if
    there is one more such process, -1 if there is one less."""
    global _n_in_use
    _n_in_use += more
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(_n_in_use > 0), 0, 0, 0) == 0


# ------------------------------------------------------------------------ the process


def main(fd: int, modules: Sequence[str]) -> None:
    """Import `modules`, then fork a child for each request, until the other side closes the connection."""
    for module in modules:
        importlib.import_module(module)
    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"an import started {n_threads - 1} threads, which a child would not have"
    gc.collect()
    gc.freeze()  # otherwise each child would visit, and so copy, all that was imported
    _fork_on_request(fd)


def _fork_on_request(fd: int) -> None:
    """Returns only in a child, when its command has ended."""
    connection = socket.socket(fileno=fd)
    of_child, to = os.pipe()
    while True:
        data, fds, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_FILES)
        if not data:
            os._exit(0)
        have_forks, request = pickle.loads(data)
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for each in (fd, of_child, to):
                    os.close(each)
                connection.detach()
                if not (have_forks and _is_to_fork_engines(fds)):
                    _become(fds, *request)
                return
            os.write(to, b"%d" % child)
            os._exit(0)  # now the child is an orphan
        os.waitpid(between, 0)
        connection.send(os.read(of_child, 20))
        for each in fds:
            os.close(each)


def _is_to_fork_engines(fds: Sequence[int]) -> bool:
    """Fork the process that forks this one's engines. True in that process, or rather in an engine that has ended."""
    from telephony_tts.engines.cosyvoice2.hosting import process_host

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    adopt_orphans(1)
    if os.fork() == 0:
        ours.close()
        for each in fds:  # a pipe among them ends with the server
            os.close(each)
        _fork_on_request(theirs.detach())
        return True
    theirs.close()
    process_host.subprocess = Forks(ours)  # type: ignore[assignment]
    return False


def _become(fds: Sequence[int], command: Sequence[str], env: dict[str, str], cwd: str, numbers: Sequence[int]) -> None:
    """Do what `command` does."""
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
    while HELD in env and os.path.exists(env[HELD]):
        time.sleep(0.01)
    is_module = command[1] == "-m"
    what, *sys.argv[1:] = command[2:] if is_module else command[command.index("-c") + 1 :]
    if is_module:
        sys.exit(sys.modules[what].main())
    _be_named(what)
    exec(what, {"__name__": "__main__"})


def _be_named(program: str) -> None:
    """`engine_child` finds the engine's process by this name."""
    name = b"engine_process" if "few_steps" in program or "engine_process" in program else b"forked"
    assert ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0) == 0
