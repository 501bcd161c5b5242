"""Programs that are forked from a process which has done their imports, in place of new processes.

Imports are most of what a new process of a test costs: torch takes four seconds of CPU, the command line's server
three, an SDK one to five. `Forks.Popen` is in place of `subprocess.Popen`, and a `Forks` in place of the module
`subprocess`. The forked process becomes a child of the test's process, and its arguments, variables, folder, files,
session and signals are those that it would have. What it does not have is the interpreter's start and end, so a test
that judges them starts a real process.

This file has both sides. The process that forks may be of another Python, so it uses the standard library only.
"""

from __future__ import annotations

import ast
import atexit
import ctypes
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
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PROGRAM = """
import sys
own = list(sys.path)
sys.path[:0] = sys.argv[3:]
from forked_process import serve
serve(int(sys.argv[1]), sys.argv[2].splitlines(), own)
"""
SERVER = (
    "telephony_tts.cli", "telephony_tts.app", "telephony_tts.http_api.asgi", "anyio._backends._asyncio", "av", "uvloop",
)  # fmt: skip
"""What the command line and its server import, but for onnxruntime, whose import starts a thread."""
HELD = "TEST_HOLDS_FORKS"
"""A variable with the path of a file. While there is one, forked processes do not begin."""
MOST_BYTES = 1 << 17
MOST_FILES = 16
FREE_FD = 500
"""Files are moved here first: the number that one shall have may be another's."""
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
_Popen = subprocess.Popen
_n_in_use = 0
"""How many processes that fork for it this process has."""


class Forks:
    """The connection to a process that forks. Threads may share it."""

    DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    TimeoutExpired, CompletedProcess = subprocess.TimeoutExpired, subprocess.CompletedProcess

    def __init__(self, connection: socket.socket, python: str = sys.executable, *, nested: bool = False) -> None:
        self.python = python
        self._connection = connection
        self._nested = nested
        self._lock = threading.Lock()
        self.Popen = _popen_with(self)

    def run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run`. It needs no `check`, and takes a timeout, which ends the whole session of a process with
        `start_new_session`."""
        timeout_s = how.pop("timeout")
        data = how.pop("input", None)
        if data is not None:
            how["stdin"] = subprocess.PIPE
        if how.pop("capture_output", False):
            how["stdout"] = how["stderr"] = subprocess.PIPE
        with self.Popen(command, **how) as process:
            try:
                told, complained = process.communicate(data, timeout_s)
            except BaseException:
                if how.get("start_new_session"):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                raise
            return subprocess.CompletedProcess(command, process.returncode, told, complained)

    def fork(
        self, command: Sequence[str], env: Mapping[str, str] | None, folder: str | None, numbers: Mapping[int, int], *,
        new_session: bool = False, prepare: Callable[[], None] | None = None,
    ) -> int:  # fmt: skip
        """The id of a child with this command. `numbers`: of its files, and which files of this process they are.
        `prepare` must have a name that the process which forks finds."""
        environment = dict(os.environ if env is None else env)
        placed = os.sched_getaffinity(0), new_session, prepare
        request = (list(command), environment, os.path.abspath(folder or os.getcwd()), list(numbers), *placed)
        data = pickle.dumps((self._nested, request))
        assert len(data) < MOST_BYTES and len(numbers) <= MOST_FILES
        answer = b""
        with self._lock, suppress(ConnectionError):
            socket.send_fds(self._connection, [data], list(numbers.values()))
            answer = self._connection.recv(MOST_BYTES)
        assert answer, "the process with the imports has ended"
        return int(answer)

    def close(self) -> None:
        self._connection.close()


def _popen_with(forks: Forks) -> type[subprocess.Popen[Any]]:
    """subprocess.Popen that has `forks` start what can be forked. All but the start is that of the class."""

    class ForkedPopen(_Popen[Any]):
        def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any,
                           cwd: Any, env: Any, startupinfo: Any, creationflags: int, shell: bool,
                           p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
                           *others: Any) -> None:  # fmt: skip
            words = [args] if isinstance(args, str) else list(map(os.fsdecode, args))
            _restore_signals, gid, gids, uid, umask, start_new_session, process_group = others
            # What nobody has needed so far.
            asked = (executable, shell, not close_fds, gid, gids, uid, umask >= 0, process_group >= 0)
            if words[0] != forks.python or program_of(words) is None or any(asked):
                super()._execute_child(  # type: ignore[misc]
                    args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others,
                )  # fmt: skip
                return
            own = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
            numbers = dict(enumerate(own)) | {fd: fd for fd in pass_fds}
            self.pid = forks.fork(words, env, cwd, numbers, new_session=start_new_session, prepare=preexec_fn)
            self._child_created = True
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    return ForkedPopen


def program_of(command: Sequence[str]) -> list[str] | None:
    """The part of a command of Python from its module (-m), text (-c) or script on. None if it has other options."""
    words = list(command[1:])
    while words and words[0] in ("-P", "-X"):
        del words[: 2 if words[0] == "-X" else 1]
    is_program = bool(words) and (words[0].endswith(".py") or (words[0] in ("-m", "-c") and len(words) > 1))
    return words if is_program else None


@contextmanager
def preloaded(
    *imported: str | Path, environment: Mapping[str, str] | None = None, folders: Sequence[Path] = (),
    nested: bool = False, python: Path | None = None,
) -> Iterator[Forks]:  # fmt: skip
    """A process that has imported these modules, and what these scripts import. What it forks are children of this one.

    `environment`: all its variables, if others than those of this process. `folders` have modules too. `nested`: what
    a child starts with `subprocess.Popen` is forked as well. `python`: another one than this, which finds its own
    packages and what is in this checkout.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here = Path(__file__).resolve().parent
    path = [*folders, here, *(sys.path if python is None else [here.parent])]
    name = str(python or sys.executable)
    names = "\n".join(map(str, imported))
    with theirs:
        process = _Popen(
            [name, "-P", "-c", PROGRAM, str(theirs.fileno()), names, *map(str, path)], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
    adopt_orphans(1)
    forks = Forks(ours, name, nested=nested)
    try:
        # The imports must not be in the time that the first child takes: tests judge how long a start takes.
        assert Forks(ours, name).Popen([name, "-c", ""]).wait() == 0
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


def serve(fd: int, imported: Sequence[str], own_path: list[str]) -> None:
    """Import, then fork a child for each request, until the other side closes the connection. `own_path`: where any
    program of this Python finds modules."""
    scripts = [name for name in imported if name.endswith(".py")]
    for name in imported:
        if name not in scripts:
            importlib.import_module(name)
    sys.path[:] = own_path
    imports = {name: ScriptImports(Path(name)) for name in scripts}
    fork_on_request(fd, imports)


def fork_on_request(fd: int, imports: Mapping[str, ScriptImports] | None = None) -> NoReturn:
    """Fork a child for each request. The process ends when the other side closes the connection."""
    connection = socket.socket(fileno=fd)
    of_child, to = os.pipe()
    freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_FILES)
        if not data:
            os._exit(0)
        nested, request = pickle.loads(data)
        words = program_of(request[0])
        assert words is not None
        if imports is not None and words[0] in imports:
            imports[words[0]].execute_named(words[1:])
            freeze()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for each in (of_child, to):
                    os.close(each)
                connection.close()
                if nested:
                    subprocess.Popen = forks_of_this_process(*fds).Popen  # type: ignore[misc]
                _become(fds, *request)
            os.write(to, b"%d" % child)
            os._exit(0)  # now the child is an orphan
        os.waitpid(between, 0)
        connection.send(os.read(of_child, 20))
        for each in fds:
            os.close(each)


def freeze() -> None:
    """Otherwise each child would visit, and so copy, all that was imported."""
    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"an import started {n_threads - 1} threads, which a child would not have"
    gc.collect()
    gc.freeze()


def forks_of_this_process(*fds: int) -> Forks:
    """A process that forks for this one. It is forked now, as later this one may have threads. In a session of its own:
    the signals of a terminal are not for it. `fds`: files that it closes; a pipe among them ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    adopt_orphans(1)
    if os.fork() == 0:
        ours.close()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for each in fds:
            os.close(each)
        os.setsid()
        fork_on_request(theirs.detach())
    theirs.close()
    # At a number that no file of a command has.
    high = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, FREE_FD + 4 * MOST_FILES)
    ours.close()
    return Forks(socket.socket(fileno=high))


def _become(
    fds: Sequence[int], command: Sequence[str], environment: dict[str, str], folder: str, numbers: Sequence[int],
    cores: set[int], new_session: bool, prepare: Callable[[], None] | None,
) -> NoReturn:  # fmt: skip
    """Do what `command` does, as the main program of this process. A terminal that is the input of a new session
    becomes that session's own, as a login does it."""
    status = 1
    try:
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, FREE_FD) for each in fds]
        for each in (0, 1, 2, *fds):
            with suppress(OSError):
                os.close(each)
        for each, number in zip(high, numbers, strict=True):
            os.dup2(each, number)
            os.close(each)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        if new_session:
            os.setsid()
            if os.isatty(0):
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.sched_setaffinity(0, cores)
        if prepare is not None:
            prepare()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.stdin, sys.stdout, sys.stderr = _standard_files()
        if environment.get("PYTHONWARNINGS") == "default":
            warnings.simplefilter("default")
        while HELD in environment and os.path.exists(environment[HELD]):
            time.sleep(0.01)
        words = program_of(command)
        assert words is not None
        status = _run(words)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _run(words: list[str]) -> int:
    """Runs the program, and what runs at the end of every program. Returns the exit status."""
    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    path = [*more, *(each for each in sys.path if each not in more)]
    what = words[0] if words[0].endswith(".py") else words[1]
    sys.argv = words if what == words[0] else words[1:] if words[0] == "-m" else ["-c", *words[2:]]
    status: Any = 0
    try:
        if words[0] == "-m":
            sys.path[:] = [os.getcwd(), *path]
            sys.modules.pop(what, None)  # it was imported already
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.path[:] = path
            _be_named(what)
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(what, main.__dict__)
        else:
            sys.path[:] = [os.path.dirname(os.path.abspath(what)), *path]
            runpy.run_path(what, run_name="__main__")
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


def _be_named(program: str) -> None:
    """`engine_child` finds the engine's process by this name."""
    name = b"engine_process" if "few_steps" in program or "engine_process" in program else b"forked"
    assert ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0) == 0


def _standard_files() -> list[Any]:
    """sys.stdin, sys.stdout and sys.stderr as the interpreter makes them; None for a file that is closed."""
    found: list[Any] = []
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, (mode, errors) in enumerate((("r", "strict"), ("w", "strict"), ("w", "backslashreplace"))):
        try:
            raw = open(number, f"{mode}b", 0 if is_unbuffered and number else -1, closefd=False)  # noqa: SIM115
        except OSError:
            found.append(None)
            continue
        lines = number == 2 or os.isatty(number)
        found.append(io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=is_unbuffered))
    return found


class ScriptImports:
    """The import statements of a script, which are executed before its runs.

    A script that drives several services imports the chosen one inside a function. Such a statement is executed when an
    argument is part of the name of what it imports.
    """

    def __init__(self, script: Path) -> None:
        tree = ast.parse(script.read_bytes())
        # Not `reporting`, which moves the output of the run that imports it.
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and parts_of(node).isdisjoint(("__future__", "reporting"))
        ]
        self._inside = [node for node in found if node not in tree.body]
        self._path = [str(script.parent), *sys.path]
        self._execute(node for node in found if node in tree.body)

    def execute_named(self, arguments: Sequence[str]) -> None:
        named = [node for node in self._inside if not parts_of(node).isdisjoint(arguments)]
        self._inside = [node for node in self._inside if node not in named]
        self._execute(named)

    def _execute(self, nodes: Iterable[ast.stmt]) -> None:
        own_path, sys.path[:] = list(sys.path), self._path
        for node in nodes:
            # An import that fails will fail again in the run, which reports it.
            with suppress(Exception):
                exec(compile(ast.Module([node], []), "<imports>", "exec", dont_inherit=True), {})
        sys.path[:] = own_path


def parts_of(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The parts of the names in an import statement: `from a.b import c` has a, b and c."""
    names = [(node.module or "") if isinstance(node, ast.ImportFrom) else "", *(alias.name for alias in node.names)]
    return {part for name in names for part in name.split(".")}
