"""A real `telephony-tts serve` with several front processes, and a look at which of them has a call."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forked_process import ForkServer

START_S = 60.0


class FrontServer:
    """A running server. `pids` has the process of each front now."""

    def __init__(self, served: subprocess.Popen[str], address: str, folder: Path, log: Path) -> None:
        self.served = served
        self.address = address
        self.port = int(address.rsplit(":", 1)[1])
        self.folder = folder
        self._log = log
        self.dial_port = 0
        """A port for a test's own listener, which the server may dial."""

    def url(self, path: str = "/v1/stream", **options: Any) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self.address}{path}{'?' + query if query else ''}"

    @property
    def log(self) -> list[dict[str, Any]]:
        """All lines of the log so far."""
        lines = []
        for line in self._log.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
        return lines

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]

    @property
    def pids(self) -> dict[int, int]:
        """The last started process of each front."""
        return {line["front"]: line["pid"] for line in self.logged("front_started")}

    @property
    def runtime(self) -> Path:
        (found,) = self.folder.glob("telephony-tts-*")
        return found

    def owner(self, call: str) -> int | None:
        """The number of the front that has claimed the call."""
        name = hashlib.blake2b(call.encode(), digest_size=16).hexdigest()
        try:
            return int(os.readlink(self.runtime / "calls" / name).partition(".")[0])
        except FileNotFoundError:
            return None

    @property
    def claims(self) -> list[str]:
        found = []
        for path in (self.runtime / "calls").iterdir():
            with suppress(FileNotFoundError):  # the call has ended meanwhile
                found.append(os.readlink(path))
        return sorted(found)

    def metric(self, sample: str) -> float:
        """A sample of `/metrics`, by its whole name with labels."""
        for line in self.page().splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        raise KeyError(sample)

    def page(self) -> str:
        unchecked = ssl._create_unverified_context()
        with urllib.request.urlopen(f"http{self.address[2:]}/metrics", timeout=10, context=unchecked) as answer:
            return str(answer.read().decode())

    def moved(self, why: str) -> float:
        """How many connections were moved for this reason."""
        return self.metric(f'telephony_tts_connections_moved_total{{why="{why}"}}')

    def other(self, front: int | None) -> int:
        """The other one of two fronts."""
        assert front in (0, 1), "no front has the call"
        return 1 - front

    @contextmanager
    def stopped(self, front: int) -> Iterator[None]:
        """While it lasts this front does nothing, so that the others take what comes."""
        pid = self.pids[front]
        os.kill(pid, signal.SIGSTOP)
        try:
            while _state(pid) != "T":
                time.sleep(0.002)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


@contextmanager
def front_server(
    folder: Path, *settings: str, n: int = 2, environment: dict[str, str] | None = None, forks: ForkServer | None = None
) -> Iterator[FrontServer]:
    """A server with `n` fronts and tones for speech, once all are ready. `settings` are those of --set. The path of
    `folder` must be short. With `forks` its processes are forked, not started."""
    runtime, log = folder / "runtime", folder / "log"
    runtime.mkdir(exist_ok=True)
    command = [
        *serve_command(forks), "--port", "0", "--set", f"server.processes={n}",
        "--set", f"server.runtime_folder={runtime}", "--set", "engines.default=fake",
        "--set", "engines.hibari.workers=0", "--set", "speech.detect_language=false",
        "--set", "limits.max_frame_lateness_ms=10000", "--set", "speech.first_clause_chars=0",
    ]  # fmt: skip
    for setting in settings:
        command += ["--set", setting]
    with open(log, "w", encoding="utf-8") as stderr:
        served = (forks or subprocess).Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(environment or {})}
        )
    try:
        yield FrontServer(served, _address(served, log, f"{n} processes"), runtime, log)
    finally:
        if served.poll() is None:
            served.terminate()
            try:
                served.wait(35)
            except subprocess.TimeoutExpired:
                served.kill()
        served.communicate()


def serve_command(forks: ForkServer | None) -> list[str]:
    """`telephony-tts serve`; with `forks`, as a program whose fronts are forked too."""
    program = ["-m", "telephony_tts"] if forks is None else [str(Path(__file__).with_name("forked_fronts.py"))]
    return [sys.executable, *program, "serve"]


def _address(served: subprocess.Popen[str], log: Path, mark: str) -> str:
    """The address that the server announces, in a line with `mark`."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert served.stdout is not None
    stdout = served.stdout

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    end_s = time.monotonic() + START_S
    while True:
        line = lines.get(timeout=max(0.1, end_s - time.monotonic()))
        assert line, f"it ended: {log.read_text(encoding='utf-8')}"
        if "is ready at" in line and mark in line:
            return line.partition("is ready at ")[2].partition(",")[0]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
