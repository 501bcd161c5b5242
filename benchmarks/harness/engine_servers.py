"""A real small fleet on this machine: engine servers at Unix sockets, as `telephony-tts engine serve` starts them."""

from __future__ import annotations

import http.client
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.process import place

START_S = 150.0
STOP_S = 20.0


class EngineServers:
    """`n` engine servers with the same settings. Their sockets are in `folder`."""

    def __init__(
        self, folder: Path, n: int, settings: Sequence[str] = (), *, core: int | None = None, priority: int | str = 0
    ) -> None:
        """`settings`: KEY=VALUE. `core` and `priority`: see `harness.process.place`.
        A benchmark that was started with `chrt --rr 20` gives them rank 19."""
        self.addresses = [f"unix:{folder}/engine-{i}.sock" for i in range(n)]
        self._settings = ("engines.default=fake", "log.level=error", *settings)
        self._core, self._priority = core, priority
        self._children: list[subprocess.Popen[str] | None] = [None] * n

    @property
    def front_settings(self) -> tuple[str, ...]:
        """What a front needs to use them."""
        return ("engines.default=remote", f"engines.remote.target={self.target}")

    @property
    def target(self) -> str:
        """For `engines.remote.target`."""
        return ",".join(self.addresses)

    def __enter__(self) -> Self:
        try:
            for i in range(len(self.addresses)):
                self.spawn(i)
            for i in range(len(self.addresses)):
                self.wait_ready(i)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def pid(self, i: int) -> int:
        return self._child(i).pid

    def spawn(self, i: int) -> None:
        """Start server `i`; it may not be ready."""
        flags = [part for setting in self._settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "telephony_tts", "engine", "serve", "--listen", self.addresses[i], *flags]
        self._children[i] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=partial(_place_engine, self._core, self._priority),
        )

    def wait_ready(self, i: int) -> None:
        """Return when server `i` is ready. Raises RuntimeError if it ends or takes too long."""
        child = self._child(i)
        assert child.stdout is not None
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if child.poll() is not None:
                raise RuntimeError(f"engine server {i} has ended with status {child.returncode}")
            if select.select([child.stdout], [], [], 0.2)[0] and " on " in child.stdout.readline():
                return
        raise RuntimeError(f"engine server {i} is not ready after {START_S:g} s")

    def kill(self, i: int) -> None:
        """kill -9."""
        child = self._child(i)
        child.kill()
        child.wait(STOP_S)

    def wait_back(self, i: int) -> None:
        """Start server `i` again, as Kubernetes or systemd would, and return when it is ready."""
        self.spawn(i)
        self.wait_ready(i)

    def stop(self, i: int) -> int:
        """SIGTERM, and wait until it has drained. Returns its exit status."""
        child = self._child(i)
        child.send_signal(signal.SIGTERM)
        return child.wait(STOP_S)

    def _child(self, i: int) -> subprocess.Popen[str]:
        child = self._children[i]
        assert child is not None, f"engine server {i} was not started"
        return child

    def _end(self) -> None:
        for child in self._children:
            if child is not None and child.poll() is None:
                child.kill()
        for child in self._children:
            if child is not None:
                child.communicate()


def _place_engine(core: int | None, priority: int | str) -> None:
    """`place` this process. If the benchmark itself has real-time priority, this process gets the next lower one: the
    callers on the same core must not wait for an engine server that starts."""
    if os.sched_getscheduler(0) == os.SCHED_RR:
        rank = max(1, os.sched_getparam(0).sched_priority - 1)
        place(os.getpid(), core, "realtime", rank)
    else:
        place(os.getpid(), core, priority)


def wait_until_ready(port: int) -> None:
    """Return when the front at `port` takes calls. Raises RuntimeError if that takes too long."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        finally:
            connection.close()
        time.sleep(0.1)
    raise RuntimeError(f"the front is not ready after {START_S:g} s")
