"""Fork servers: tests fork their programs from a process that has done the imports.

Imports are most of what a new process of a test costs: torch takes four seconds of CPU, the command line's server
three, an SDK one to five. A fork server is a process that imports once, and forks a child for each request. The child
then becomes a child of the test's process. Its arguments, variables, folder, files, session and signals are those that
`subprocess.Popen` gives. It has not the interpreter's start and end: a test that judges those starts a real process.

`fork_server` starts one. Its `ForkServer` replaces the module `subprocess`, and `ForkServer.Popen` the class `Popen`.
This file has both sides. A fork server may run another Python, so the file uses the standard library only.
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
SERVER_IMPORTS = (
    "telephony_tts.cli.main", "telephony_tts.app.serving", "telephony_tts.http_api.asgi", "anyio._backends._asyncio",
    "av", "uvloop",
)  # fmt: skip
"""What the command line and its server import, but for onnxruntime, whose import starts a thread."""
HELD = "TEST_HOLDS_FORKS"
"""A variable with the path of a file. While that file exists, forked processes do not begin."""
MAX_BYTES = 1 << 17
MAX_FILES = 16
FREE_FD = 500
"""The files of a fork server have this number or a higher one, the files of a command a lower one. So a file that a
command is given cannot take the place of a file that an import left open."""
END_S = 60
"""A fork server that has not ended within this time is killed."""
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
_Popen = subprocess.Popen
_n_servers = 0
"""How many fork servers this process has."""


class ForkServer:
    """The connection to a fork server. Threads may share it."""

    DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE

    def __init__(self, connection: socket.socket, python: str = sys.executable, *, nested: bool = False) -> None:
        self.python = python
        self._connection = connection
        self._nested = nested
        self._lock = threading.Lock()
        self.Popen = _popen_with(self)

    def run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` without `check`. `timeout` is required. With `start_new_session` it also ends the processes
        that the command has started."""
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
        """The id of a child with this command. `numbers`: the descriptors of its files, and this process's descriptors
        of the same files. The fork server must be able to import `prepare` by its name."""
        environment = dict(os.environ if env is None else env)
        placed = os.sched_getaffinity(0), new_session, prepare
        request = (list(command), environment, os.path.abspath(folder or os.getcwd()), list(numbers), *placed)
        data = pickle.dumps((self._nested, request))
        assert len(data) < MAX_BYTES, f"the request has {len(data)} bytes, the limit is {MAX_BYTES}"
        assert len(numbers) <= MAX_FILES, f"the request has {len(numbers)} files, the limit is {MAX_FILES}"
        assert max(numbers) < FREE_FD, f"the descriptor {max(numbers)} must be below {FREE_FD}"
        answer = b""
        with self._lock:
            try:
                socket.send_fds(self._connection, [data], list(numbers.values()))
                answer = self._connection.recv(MAX_BYTES)
            except ConnectionError:
                pass
            except BaseException:
                self.close()  # otherwise the next request would get the answer to this one
                raise
        assert answer, "the fork server has ended"
        return int(answer)

    def close(self) -> None:
        self._connection.close()


def _popen_with(server: ForkServer) -> type[subprocess.Popen[Any]]:
    """A `subprocess.Popen` whose processes are forked by `server`, or started if they cannot be forked."""

    class ForkedPopen(_Popen[Any]):
        def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any,
                           cwd: Any, env: Any, startupinfo: Any, creationflags: int, shell: bool,
                           p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
                           *others: Any) -> None:  # fmt: skip
            words = [args] if isinstance(args, str) else list(map(os.fsdecode, args))
            _restore_signals, gid, gids, uid, umask, start_new_session, process_group = others
            # No test has needed these so far.
            asked = (executable, shell, not close_fds, gid, gids, uid, umask >= 0, process_group >= 0)
            if words[0] != server.python or program_of(words) is None or any(asked):
                super()._execute_child(  # type: ignore[misc]
                    args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others,
                )  # fmt: skip
                return
            own = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
            numbers = dict(enumerate(own)) | {fd: fd for fd in pass_fds}
            self.pid = server.fork(words, env, cwd, numbers, new_session=start_new_session, prepare=preexec_fn)
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
def fork_server(
    *imported: str | Path, environment: Mapping[str, str] | None = None, folders: Sequence[Path] = (),
    nested: bool = False, python: Path | None = None,
) -> Iterator[ForkServer]:  # fmt: skip
    """Start a fork server with these modules, and with what these scripts import. What it forks are our children.

    `environment`: all its variables; without it, those of this process. `folders`: more places of modules. `nested`:
    `subprocess.Popen` forks in the children too. `python`: the interpreter, if it is another one. That one finds its
    own packages and the modules of this checkout.
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
    server = ForkServer(ours, name, nested=nested)
    try:
        # The imports must not be in the time that the first child takes: tests judge how long a start takes.
        assert ForkServer(ours, name).Popen([name, "-c", ""]).wait() == 0
        yield server
    finally:
        server.close()
        try:
            status = process.wait(END_S)
        finally:
            process.kill()
            process.wait()
            adopt_orphans(-1)
    assert status == 0


def adopt_orphans(more: int) -> None:
    """Make orphans below this process its children, while it has fork servers: what those fork are orphans. `more`: 1
    for one more fork server, -1 for one less."""
    global _n_servers
    _n_servers += more
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(_n_servers > 0), 0, 0, 0) == 0


# -------------------------------------------------------------------- the fork server


def serve(fd: int, imported: Sequence[str], own_path: list[str]) -> NoReturn:
    """Import, then fork a child for each request. `own_path`: where any program of this Python finds modules."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
    os.close(fd)
    occupy_low_numbers()
    scripts = [name for name in imported if name.endswith(".py")]
    for name in imported:
        if name not in scripts:
            importlib.import_module(name)
    sys.path[:] = own_path
    fork_on_request(high, {name: ScriptImports(Path(name)) for name in scripts})


def occupy_low_numbers() -> list[int]:
    """Open /dev/null at all free descriptors below FREE_FD, so that what is opened next gets a higher one. Returns
    them."""
    occupied = []
    while (fd := os.open(os.devnull, os.O_RDWR)) < FREE_FD:
        occupied.append(fd)
    os.close(fd)
    return occupied


def fork_on_request(fd: int, imports: Mapping[str, ScriptImports]) -> NoReturn:
    """Fork a child for each request. The process ends when the other side closes the connection `fd`."""
    status = 1
    try:
        occupy_low_numbers()
        # Ctrl-C must not end a fork server: a test that ends may need more children. A child unblocks the signal. If it
        # were ignored, a child could lose it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        connection = socket.socket(fileno=fd)
        freeze()
        while _fork_next(connection, imports):
            pass
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _fork_next(connection: socket.socket, imports: Mapping[str, ScriptImports]) -> bool:
    """Fork a child for the next request. Returns False when no more requests come."""
    data, fds, _, _ = socket.recv_fds(connection, MAX_BYTES, MAX_FILES)
    if not data:
        return False
    nested, request = pickle.loads(data)
    words = program_of(request[0])
    assert words is not None
    if words[0] in imports:
        imports[words[0]].execute_named(words[1:])
        freeze()
    of_child, to = os.pipe()
    between = os.fork()
    if between == 0:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            while os.getppid() == parent:
                time.sleep(0.001)  # the test's process is to be its parent before it begins
            for each in (of_child, to):
                os.close(each)
            connection.close()
            _become(fds, nested, *request)
        os.write(to, b"%d" % child)
        os._exit(0)  # now the child is an orphan
    assert os.waitpid(between, 0)[1] == 0, "a fork failed"
    connection.send(os.read(of_child, 20))
    for each in (of_child, to, *fds):
        os.close(each)
    return True


def freeze() -> None:
    """Take what was imported out of garbage collection: each child would visit, and so copy, all of it."""
    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"an import started {n_threads - 1} threads, which a child would not have"
    gc.collect()
    gc.freeze()


def nested_fork_server(*fds: int) -> ForkServer:
    """A fork server that is a fork of this process. It is forked now, as later this process may have threads. `fds`:
    files that it closes; otherwise a pipe among them would not end with this process."""
    # The fork itself may open files: libuv does.
    occupied = occupy_low_numbers()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    adopt_orphans(1)
    if os.fork() == 0:
        ours.close()
        for each in fds:
            os.close(each)
        os.closerange(0, FREE_FD)
        fork_on_request(theirs.detach(), {})
    theirs.close()
    for each in occupied:
        os.close(each)
    return ForkServer(ours)


def _become(
    fds: Sequence[int], nested: bool, command: Sequence[str], environment: dict[str, str], folder: str,
    numbers: Sequence[int], cores: set[int], new_session: bool, prepare: Callable[[], None] | None,
) -> NoReturn:  # fmt: skip
    """Run `command` as the main program of this process. A terminal that is the input of a new session becomes that
    session's own, as in a login."""
    status = 1
    try:
        if new_session:
            os.setsid()
        if nested:  # after setsid: what the command starts is in its session
            subprocess.Popen = nested_fork_server(*fds).Popen  # type: ignore[misc]
        os.closerange(0, FREE_FD)
        for each, number in zip(fds, numbers, strict=True):
            os.dup2(each, number)
            os.close(each)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        if new_session and os.isatty(0):
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
    """Run the program, and what runs at the end of every program. Returns the exit status."""
    more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    path = [*more, *(each for each in sys.path if each not in more)]
    what = words[0] if words[0].endswith(".py") else words[1]
    sys.argv = words if what == words[0] else words[1:] if words[0] == "-m" else ["-c", *words[2:]]
    status = 0
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if words[0] == "-m":
            sys.path[:] = [os.getcwd(), *path]
            sys.modules.pop(what, None)  # it was imported already
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.path[:] = path
            _set_process_name(what)
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(what, main.__dict__)
        else:
            sys.path[:] = [os.path.dirname(os.path.abspath(what)), *path]
            runpy.run_path(what, run_name="__main__")
    except SystemExit as ended:
        status = _status_of(ended)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads, as the interpreter does
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None and not file.closed:
            file.flush()
    if status < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _status_of(ended: SystemExit) -> int:
    """The exit status. A message is printed."""
    if ended.code is None or isinstance(ended.code, int):
        return int(ended.code or 0) & 0xFF
    print(ended.code, file=sys.stderr)
    return 1


def _set_process_name(program: str) -> None:
    """`engine_child` finds the engine's process by this name."""
    name = b"engine_process" if "engine_process" in program else b"forked"
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
