"""Programs of this project that are forked from a process which has imported what they import.

Imports are most of what a short program costs: the command line's server takes three seconds of CPU to start, torch
three more. `ForkedPrograms.Popen` is in place of `subprocess.Popen`. A command that runs a script or a module of this
Python is forked; another command is started as ever. The forked process becomes a child of the test's process, and
its arguments, variables, folder, files and signals are those that it would have. What it does not have is the
interpreter's start and end, so a test that judges them starts a real process.

With `forks_too`, the program forks its own programs as well, with `subprocess.Popen`: a benchmark its servers.

This file has both sides, like `peers/preloaded_driver.py`.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import fcntl
import gc
import importlib
import io
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from forked_process import FREE_FD, MOST_BYTES, adopt_orphans

PROGRAM = """
import sys
own = list(sys.path)
sys.path[:0] = sys.argv[3:]
from forked_programs import serve
serve(int(sys.argv[1]), sys.argv[2], own)
"""
SERVER = (
    "telephony_tts.cli", "telephony_tts.app", "telephony_tts.http_api.asgi", "anyio._backends._asyncio", "av", "uvloop",
)  # fmt: skip
"""What the command line and its server import, but for onnxruntime, whose import starts a thread."""
_Popen = subprocess.Popen


class ForkedPrograms:
    """The process that has imported `modules`, found also in `folders`. It serves several threads."""

    def __init__(self, modules: Sequence[str], *, folders: Sequence[str] = (), forks_too: bool = False) -> None:
        adopt_orphans(1)
        self._lock = threading.Lock()
        self._forks_too = forks_too
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = os.path.dirname(os.path.abspath(__file__))
        with theirs:
            self._process = _Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno()), ",".join(modules), *folders, here],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.Popen = _popen_with(self._fork)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        assert self._process.wait(60) == 0
        adopt_orphans(-1)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` for a program that may be forked; it needs no `check`."""
        timeout_s = options.pop("timeout")
        data = options.pop("input", None)
        if data is not None:
            options["stdin"] = subprocess.PIPE
        if options.pop("capture_output", False):
            options["stdout"] = options["stderr"] = subprocess.PIPE
        with self.Popen(command, **options) as process:
            try:
                told, complained = process.communicate(data, timeout_s)
            except BaseException:
                process.kill()
                raise
            return subprocess.CompletedProcess(command, process.returncode, told, complained)

    def _fork(
        self, words: list[str], fds: Fds, env: dict[str, str], folder: str, new_session: bool, prepare: Prepare
    ) -> int:
        assert prepare is None, "a function cannot be sent to the process that forks"
        kept = sorted({fd for fd in fds if fd >= 0})
        places = [kept.index(fd) if fd >= 0 else -1 for fd in fds]
        request = pickle.dumps((places, self._forks_too, words, env, folder, new_session))
        assert len(request) < MOST_BYTES
        with self._lock:
            socket.send_fds(self._socket, [request], kept)
            answer = self._socket.recv(MOST_BYTES)
        assert answer, "the process that has the imports has ended"
        return int(answer)


Prepare = Callable[[], None] | None
Fds = Sequence[int]
Fork = Callable[[list[str], Fds, dict[str, str], str, bool, Prepare], int]


def _popen_with(fork: Fork) -> type[subprocess.Popen[Any]]:
    """subprocess.Popen that lets `fork` start what can be forked. All but the start is that of the class."""

    class ForkingPopen(_Popen[Any]):
        def _execute_child(self, args: Any, executable: Any, preexec_fn: Prepare, close_fds: bool, pass_fds: Any,
                           cwd: Any, env: Any, startupinfo: Any, creationflags: int, shell: bool,
                           p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
                           *others: Any) -> None:  # fmt: skip
            words = [args] if isinstance(args, str) else list(map(os.fsdecode, args))
            _restore_signals, gid, gids, uid, umask, start_new_session, process_group = others
            # What nobody has needed so far.
            asked = (executable, shell, not close_fds, pass_fds, gid, gids, uid, umask >= 0, process_group >= 0)
            if words[0] != sys.executable or not _is_program(words) or any(asked):
                super()._execute_child(  # type: ignore[misc]
                    args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others,
                )  # fmt: skip
                return
            fds = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
            variables = dict(os.environ if env is None else env)
            folder = os.getcwd() if cwd is None else os.path.abspath(cwd)
            self.pid = fork(words[1:], fds, variables, folder, start_new_session, preexec_fn)
            self._child_created = True
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    return ForkingPopen


def _is_program(words: list[str]) -> bool:
    """Whether a command of Python is a script or a module."""
    return (len(words) > 2 and words[1] == "-m") or (len(words) > 1 and words[1].endswith(".py"))


# ------------------------------------------------------------------------ the process


def serve(fd: int, modules: str, path: list[str]) -> None:
    """Import the modules and fork a child for each request, until the other process closes the socket. `path`: where
    any program finds modules."""
    for name in modules.split(","):
        importlib.import_module(name)
    sys.path[:] = path
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
        places, forks_too, *request = pickle.loads(data)
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                if forks_too:
                    subprocess.Popen = _popen_with(fork_here)  # type: ignore[misc, assignment]
                _become([fds[at] if at >= 0 else -1 for at in places], *request)
            os.write(to, b"%d" % child)
            os._exit(0)  # now the child is an orphan
        os.waitpid(between, 0)
        connection.send(os.read(of_child, 20))
        for each in fds:
            os.close(each)


def fork_here(
    words: list[str], fds: Fds, env: dict[str, str], folder: str, new_session: bool, prepare: Prepare
) -> int:
    """Fork this process, which may have threads. What it holds stays alive in the child, but its files are closed."""
    child = os.fork()
    if child == 0:
        gc.freeze()  # garbage may own a file's number, which soon is another file's
        # What would be done at the end is the other process's: its folders are removed there, its pools are joined.
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        concurrent.futures.thread._threads_queues.clear()  # type: ignore[attr-defined]
        subprocess.Popen = _Popen  # type: ignore[misc]
        _become(fds, words, env, folder, new_session, prepare)
    return child


def _become(
    fds: Fds, words: list[str], environ: dict[str, str], folder: str, new_session: bool, prepare: Prepare = None
) -> NoReturn:
    """Run a script or a module as the main program of this process. A terminal that is the input of a new session
    becomes that session's own, as a login does it."""
    status = 1
    try:
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, FREE_FD) if fd >= 0 else -1 for fd in fds]
        os.closerange(0, FREE_FD)
        for number, fd in enumerate(high):
            if fd >= 0:
                os.dup2(fd, number)
        os.closerange(FREE_FD, FREE_FD + 64)
        sys.stdin, sys.stdout, sys.stderr = _standard_files()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if new_session:
            os.setsid()
            if os.isatty(0):
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if prepare is not None:
            prepare()
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        if environ.get("PYTHONWARNINGS") == "default":
            warnings.simplefilter("default")
        status = _run(words)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _run(words: list[str]) -> int:
    """Runs the program, and what runs at the end of every program. Returns the exit status."""
    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    path = [*more, *(each for each in sys.path if each not in more)]
    status: Any = 0
    try:
        if words[0] == "-m":
            sys.path[:] = [os.getcwd(), *path]
            sys.argv = words[1:]
            sys.modules.pop(words[1], None)  # it was imported already
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[:] = [os.path.dirname(os.path.abspath(words[0])), *path]
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads, as the interpreter does
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None:
            file.flush()
    if status is None or isinstance(status, int):
        return int(status or 0) & 0xFF
    print(status, file=sys.stderr, flush=True)
    return 1


def _standard_files() -> list[Any]:
    """sys.stdin, sys.stdout and sys.stderr as the interpreter makes them; None for a file that is closed."""
    found: list[Any] = []
    for number, (mode, errors) in enumerate((("r", "strict"), ("w", "strict"), ("w", "backslashreplace"))):
        try:
            raw = open(number, f"{mode}b", -1, closefd=False)  # noqa: SIM115
        except OSError:
            found.append(None)
            continue
        lines = number == 2 or os.isatty(number)
        found.append(io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=False))
    return found
