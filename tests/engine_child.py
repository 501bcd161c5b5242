"""The child process in which CosyVoice2 computes: find it, and delay its start."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from forked_process import HELD

WAIT_S = 30.0


def engine_pid(parent: subprocess.Popen[str]) -> int:
    """The id of the engine's process, once it runs its program."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        assert parent.poll() is None, parent.communicate()
        for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text(encoding="ascii").split():
            # A forked one (`forked_process`) has the command line of its fork server.
            named = [Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "comm")]
            if any(b"engine_process" in name for name in named):
                return int(pid)
        time.sleep(0.005)
    raise AssertionError("the engine has no process")


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not count as running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


Hold = Callable[[], AbstractContextManager[None]]


@pytest.fixture(name="hold")
def fixture_of_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Makes a context in which forked engine processes do not begin."""
    path = tmp_path / "held"
    monkeypatch.setenv(HELD, str(path))

    @contextmanager
    def hold() -> Iterator[None]:
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    return hold
