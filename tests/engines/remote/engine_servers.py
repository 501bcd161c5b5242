"""Real engine servers, each a process of its own that `telephony-tts engine serve` started, and clients of them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from clean_run import PATIENCE

from telephony_tts.engines.remote.client import RemoteEngine

START_S = 60.0


class ServerProcess:
    """A running engine server."""

    def __init__(self, child: subprocess.Popen[str], address: str) -> None:
        self.child = child
        self.address = address

    @property
    def pid(self) -> int:
        return self.child.pid


@contextmanager
def engine_server(
    *settings: str, listen: str | None = None, environ: dict[str, str] | None = None
) -> Iterator[ServerProcess]:
    """An engine server with these settings (`KEY=VALUE`), ready, at a Unix socket unless `listen` says otherwise."""
    with tempfile.TemporaryDirectory(prefix="engine") as folder:
        address = listen or f"unix:{folder}/engine.sock"
        with started(address, *settings, environ=environ) as child:
            yield ServerProcess(child, ready_address(child))


@contextmanager
def started(address: str, *settings: str, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """The process of an engine server, which may not be ready. It is killed at the end."""
    flags = [part for setting in ("engines.default=fake", *settings) for part in ("--set", setting)]
    command = [sys.executable, "-m", "telephony_tts", "engine", "serve", "--listen", address, *flags]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})}
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def ready_address(child: subprocess.Popen[str]) -> str:
    """Where the server listens, once it says so."""
    assert child.stdout is not None
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        assert child.poll() is None, child.communicate()
        if select.select([child.stdout], [], [], 0.2)[0]:
            line = child.stdout.readline()
            assert " on " in line, (line, child.communicate())
            return line.rpartition(" on ")[2].strip()
    raise AssertionError("the engine server does not start")


@asynccontextmanager
async def attached(*targets: str, **how: Any) -> AsyncIterator[RemoteEngine]:
    """A started client of the servers at `targets`. It takes a server for lost after 1.5 s as it does by default, and
    later where other tests take the time of both."""
    lost_ms = round(1500 * PATIENCE)
    patient = {"first_audio_timeout_ms": lost_ms, "lost_with_peers_ms": lost_ms}
    engine = RemoteEngine("remote", targets, **{"start_timeout_s": 20.0, "wait_ready_s": 10.0, **patient, **how})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
