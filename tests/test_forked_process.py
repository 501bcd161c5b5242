"""Programs from a fork server, compared with those that Python starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forked_asyncio import forking
from forked_process import ForkServer, fork_server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
WITHIN_S = 30

LEFT_OPEN = """
import os
from contextlib import suppress

def reopen():
    for each in FILES:
        with suppress(OSError):
            os.close(each)
    FILES[:] = os.pipe()

FILES = []
reopen()
os.register_at_fork(after_in_child=reopen)
"""
"""A module that leaves files open, and opens them again after a fork, as libuv does."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules."""
    path = tmp_path_factory.mktemp("modules")
    (path / "left_open.py").write_text(LEFT_OPEN)
    (path / "slow_import.py").write_text("import time\ntime.sleep(1)\n")
    (path / "uses_slow_import.py").write_text("def later():\n    import slow_import\n")
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ForkServer]:
    with fork_server("left_open", folders=[folder]) as made:
        yield made


@pytest.fixture(scope="module")
def nesting_server(folder: Path) -> Iterator[ForkServer]:
    with fork_server("left_open", folders=[folder], nested=True) as made:
        yield made


@pytest.fixture(params=["real", "forked"])
def how(request: pytest.FixtureRequest, server: ForkServer) -> Any:
    """What replaces the module `subprocess`."""
    return subprocess if request.param == "real" else server


@pytest.fixture(params=["real", "forked"])
def nesting(request: pytest.FixtureRequest, nesting_server: ForkServer) -> Any:
    """The same. What the program starts is forked too."""
    return subprocess if request.param == "real" else nesting_server


def run(how: Any, program: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the text `program`."""
    command = [sys.executable, "-P", "-c", program, *arguments]
    ended: subprocess.CompletedProcess[str] = how.run(
        command, **({"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": WITHIN_S} | more)
    )
    return ended


# --------------------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("program", "status", "complaint"),
    [
        ("", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit(257)", 1, ""),
        ("raise SystemExit('a message')", 1, "a message"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import sys; sys.stdout.close()", 0, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("import atexit; atexit.register(print, 'end')", 0, ""),
    ],
)
def test_exit_status(how: Any, program: str, status: int, complaint: str) -> None:
    ended = run(how, program)
    assert ended.returncode == status
    assert (ended.stderr.strip().splitlines() or [""])[-1] == complaint
    assert ended.stdout == ("end\n" if "atexit" in program else "")


def test_a_run_that_is_late_is_killed(how: Any) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run(how, "import os, time; print(os.getpid(), flush=True); time.sleep(60)", timeout=1)
    assert late.value.stdout is not None
    assert not Path("/proc", late.value.stdout.decode().strip()).exists()


# ------------------------------------------------------------------------- the program

TELLS = """
import json, os, sys
print(json.dumps({
    "arguments": sys.argv, "name": __name__, "folder": os.getcwd(), "variable": os.environ.get("FOR_A_TEST"),
    "input": sys.stdin.read(), "first_path": sys.path[0], "session": os.getsid(0) == os.getpid(),
}))
print("to stderr", file=sys.stderr)
"""


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_what_a_program_sees(server: ForkServer, tmp_path: Path, kind: str) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "elsewhere").mkdir()
    program = {"-c": ["-P", "-c", TELLS], "-m": ["-m", "tells"], "script": [str(tmp_path / "tells.py")]}[kind]
    command = [sys.executable, *program, "one", "--two"]
    options = {
        "input": "some input", "capture_output": True, "text": True, "timeout": WITHIN_S,
        "cwd": tmp_path if kind == "-m" else tmp_path / "elsewhere",
        "env": {"PATH": os.environ["PATH"], "FOR_A_TEST": kind}, "start_new_session": kind != "-m",
    }  # fmt: skip
    real = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
    forked = server.run(command, **options)
    assert (real.returncode, real.stderr) == (forked.returncode, forked.stderr) == (0, "to stderr\n")
    told, expected = json.loads(forked.stdout), json.loads(real.stdout)
    if kind == "-c":
        del told["first_path"], expected["first_path"]  # the modules of a fork server are found after -P as well
    assert told == expected
    assert told["session"] == (kind != "-m") and told["input"] == "some input"


# --------------------------------------------------------------------------- the files

FILES = """
import os
print(sorted((int(name), os.readlink(f"/proc/self/fd/{name}")) for name in os.listdir("/proc/self/fd")
             if int(name) < 500 and os.path.exists(f"/proc/self/fd/{name}")))
"""
"""Prints the files with a low descriptor. A fork server's own are above."""


def test_a_program_has_its_files_and_no_others(how: Any) -> None:
    with open(os.devnull, "wb") as one, open(HERE / "conftest.py", "rb") as other:
        os.dup2(other.fileno(), 70)
        try:
            ended = run(how, FILES, stderr=one, stdout=subprocess.PIPE, capture_output=False, pass_fds=[70])
        finally:
            os.close(70)
    files = dict(eval(ended.stdout))
    assert set(files) == {0, 1, 2, 70}
    assert files[0] == files[2] == os.devnull and files[1].startswith("pipe:")
    assert files[70] == str(HERE / "conftest.py")


ARE_OPEN = """
import os, sys
import left_open
print(*(os.readlink(f"/proc/self/fd/{each}") for each in left_open.FILES))
"""
PASSES_ALL_LOW = """
import os, subprocess, sys
null = os.open(os.devnull, os.O_RDWR)
for each in range(3, 15):
    os.dup2(null, each)
Popen = {popen}
raise SystemExit(Popen([sys.executable, "-P", "-c", sys.argv[1]], pass_fds=range(3, 15)).wait())
"""


@pytest.mark.parametrize("popen", ["subprocess.Popen", "__import__('forked_process').nested_fork_server().Popen"])
def test_a_passed_file_does_not_replace_a_file_that_an_import_left_open(
    nesting_server: ForkServer, popen: str
) -> None:
    """Neither in a fork server nor in a nested one."""
    program = PASSES_ALL_LOW.format(popen=popen)
    ended = run(nesting_server, program, ARE_OPEN)
    assert ended.returncode == 0 and ended.stdout.count("pipe:") == 2, ended


def test_a_passed_file_replaces_none_of_the_fork_server(server: ForkServer) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as null, open(reading, "rb") as output:
        numbers = {0: 0, 1: writing, 2: 2} | dict.fromkeys(range(3, 15), null.fileno())
        pid = server.fork([sys.executable, "-P", "-c", ARE_OPEN], None, None, numbers)
        os.close(writing)
        assert output.read().count(b"pipe:") == 2
    os.waitpid(pid, 0)


def test_what_cannot_be_requested_is_said(server: ForkServer) -> None:
    with pytest.raises(AssertionError, match=r"the request has \d+ bytes, the limit is 131072"):
        run(server, "", "x" * 140_000)
    with pytest.raises(AssertionError, match="the request has 17 files, the limit is 16"):
        server.fork([sys.executable, "-c", ""], None, None, dict.fromkeys(range(17), 2))


# ------------------------------------------------------------- asyncio, session, signals


def test_asyncio_gives_a_forked_program_its_files(server: ForkServer) -> None:
    async def ran(start: Callable[..., Any]) -> tuple[str, int]:
        process = await start(
            sys.executable, "-P", "-c", FILES, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        told = await asyncio.wait_for(process.stdout.read(), WITHIN_S)
        status: int = await process.wait()
        return told.decode(), status

    for start in (asyncio.create_subprocess_exec, forking(server, "/proc/self/fd")):
        told, status = asyncio.run(ran(start))
        files = dict(eval(told))
        assert status == 0 and set(files) == {0, 1, 2}
        assert files[0] == files[2] == os.devnull and files[1].startswith("pipe:")


def test_asyncio_closes_its_pipes_when_a_fork_fails(folder: Path) -> None:
    """As with a fork server that has ended."""

    async def fail() -> None:
        with fork_server() as made:
            pass
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="Bad file descriptor"):
            pipe = asyncio.subprocess.PIPE
            await forking(made, "pass")(sys.executable, "-P", "-c", "pass", stdin=pipe, stdout=pipe)
        await asyncio.sleep(0.1)
        assert len(os.listdir("/proc/self/fd")) == len(before)

    asyncio.run(fail())


NESTED = """
import os, subprocess, sys
if sys.argv[1] == "outer":
    print("outer", os.getpid(), os.getsid(0), flush=True)
    raise SystemExit(subprocess.Popen([sys.executable, "-P", "-c", sys.argv[2], "inner", sys.argv[2]]).wait())
print("inner", os.getppid(), os.getsid(0), flush=True)
inherited = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2 and
             os.path.exists(f"/proc/self/fd/{name}")]
print(os.devnull in inherited, flush=True)
if sys.argv[3:]:
    import time
    open(sys.argv[3], "w").write(str(os.getpid()))
    time.sleep(60)
raise SystemExit(7)
"""


def test_a_nested_program_is_a_child_in_the_same_session(nesting: Any) -> None:
    ended = run(nesting, NESTED, "outer", NESTED, start_new_session=True)
    assert ended.returncode == 7, ended.stderr
    outer, inner, has_null = ended.stdout.splitlines()
    assert outer.removeprefix("outer") == inner.removeprefix("inner")
    assert outer.split()[1] == outer.split()[2]
    assert has_null == "False", "a file of the fork server was inherited"


def test_a_late_run_is_killed_with_the_programs_that_it_started(nesting_server: ForkServer, tmp_path: Path) -> None:
    """If it has a session of its own. `subprocess.run` kills the first program only."""
    file = tmp_path / "pid"
    program = NESTED.replace('"inner", sys.argv[2]]', f'"inner", "", {str(file)!r}]')
    with pytest.raises(subprocess.TimeoutExpired):
        run(nesting_server, program, "outer", program, start_new_session=True, timeout=4)
    pid = file.read_text()
    end_s = time.monotonic() + 5
    while is_running(int(pid)):
        assert time.monotonic() < end_s, "the nested program runs on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_an_interrupt_before_the_program_begins_is_not_lost(how: Any) -> None:
    for _ in range(10):
        process = how.Popen([sys.executable, "-P", "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(5) == -signal.SIGINT
        finally:
            process.kill()


INTERRUPTED = """
import os, signal, sys, time
from forked_process import fork_server

signal.signal(signal.SIGINT, lambda *_: None)
python = [sys.executable, "-P", "-c"]
waits = "import sys, time; print(1, flush=True); time.sleep(60)"
forks = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', '']).returncode)"
with fork_server(nested=True) as server:
    waiting = server.Popen([*python, waits], stdout=server.PIPE)
    waiting.stdout.readline()
    os.killpg(0, signal.SIGINT)
    print(waiting.wait(), flush=True)
    assert server.Popen([*python, forks]).wait() == 0
"""


def test_ctrl_c_interrupts_programs_and_no_fork_server() -> None:
    """The signal goes to the whole group of a terminal. A test may need more processes while it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=WITHIN_S, check=False,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    assert ended.stdout == f"{-signal.SIGINT}\n0\n", ended


# ---------------------------------------------------------------------------- failures


def test_an_interrupted_request_is_not_answered_later(folder: Path) -> None:
    """The next request fails. It would otherwise get the id of another process."""

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    script = folder / "uses_slow_import.py"
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(AssertionError), fork_server(script) as made:
            command = [sys.executable, str(script), "slow_import"]
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(Interrupted):
                made.Popen(command)
            with pytest.raises(OSError, match="Bad file descriptor"):
                made.Popen(command)
    finally:
        signal.signal(signal.SIGALRM, before)


FAILS_TO_FORK = """
import os
SERVER, fork = os.getpid(), os.fork

def failing():
    if os.getpid() != SERVER:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

os.fork = failing
"""


def test_a_fork_that_fails_ends_the_fork_server(folder: Path) -> None:
    (folder / "fails_to_fork.py").write_text(FAILS_TO_FORK)
    with pytest.raises(AssertionError), fork_server("fails_to_fork", folders=[folder]):
        pass


def test_a_fork_server_that_does_not_end_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tells_pid.py").write_text("import os\nopen('pid_of_server', 'w').write(str(os.getpid()))\n")
    monkeypatch.setattr("forked_process.END_S", 0.5)
    monkeypatch.chdir(folder)
    with pytest.raises(subprocess.TimeoutExpired), fork_server("tells_pid", folders=[folder]):
        pid = int((folder / "pid_of_server").read_text())
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)
