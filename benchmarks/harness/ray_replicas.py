"""A small Ray cluster on this machine, with replicas of the fake engine, as `telephony-tts ray up` starts them.

It needs the extra `ray` in the environment of the benchmark: `make fleet-demo` installs it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.process import place_this

APP = "fleet-local"
START_S = 180.0
END_S = 30.0
_TELEPHONY_TTS = (sys.executable, "-m", "telephony_tts")


class RayReplicas:
    """A cluster of one node with `n` replicas. Ray starts a new one for a replica that has died."""

    def __init__(
        self, folder: Path, n: int, settings: Sequence[str] = (), *, core: int | None = None, priority: int | str = 0
    ) -> None:
        """`settings`: KEY=VALUE, of the replicas. `core` and `priority`: see `harness.process.place`; the whole cluster
        has them."""
        self._n, self._folder, self._core, self._priority = n, folder, core, priority
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{sock.getsockname()[1]}"
        self._settings = (
            *self.front_settings, "engines.ray.engine=fake", f"engines.ray.replicas={n}", "engines.ray.cpus=1",
            *settings,
        )  # fmt: skip
        self._killed = 0
        self._head: subprocess.Popen[bytes] | None = None

    @property
    def front_settings(self) -> tuple[str, ...]:
        """What a front needs to use them."""
        return ("engines.default=ray", f"engines.ray.address={self._address}", f"engines.ray.app={APP}")

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def kill(self, i: int) -> None:
        """kill -9 of a replica."""
        self._killed = self._processes()[i]
        os.kill(self._killed, signal.SIGKILL)

    def wait_back(self, _i: int) -> None:
        """Return when there are as many replicas as before, without this script's doing. Raises RuntimeError if not."""
        end_s = time.monotonic() + START_S
        while len(set(self._processes()) - {self._killed}) < self._n:
            if time.monotonic() > end_s:
                raise RuntimeError(f"Ray started no new replica within {START_S:g} s")
            time.sleep(0.2)

    def _processes(self) -> list[int]:
        """The processes of the replicas: Ray names them in their titles."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    title = (folder / "cmdline").read_bytes()
                    if b"ServeReplica" in title and APP.encode() in title:
                        found.append(int(folder.name))
        return sorted(found)

    def _start(self) -> None:
        log = self._folder / "ray.log"
        host, _, port = self._address.partition(":")
        command = [
            str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}",
            "--node-ip-address=127.0.0.1", f"--num-cpus={self._n + 1}", "--include-dashboard=false",
            "--disable-usage-stats", f"--object-store-memory={100_000_000}", f"--temp-dir={self._folder / 'ray'}",
        ]  # fmt: skip
        with log.open("wb") as out:
            self._head = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=_environment(),
                preexec_fn=partial(place_this, self._core, self._priority),
            )  # fmt: skip
        end_s = time.monotonic() + START_S
        while True:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                break
            if self._head.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"the Ray cluster did not start: {log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.2)
        flags = [part for setting in self._settings for part in ("--set", setting)]
        up = subprocess.run(
            [*_TELEPHONY_TTS, "ray", "up", *flags], capture_output=True, text=True, check=False, timeout=START_S,
            env=_environment(),
        )  # fmt: skip
        if up.returncode:
            raise RuntimeError(f"telephony-tts ray up: {(up.stderr or up.stdout).strip()[-1000:]}")

    def _end(self) -> None:
        if self._head is None:
            return
        self._head.terminate()
        try:
            self._head.wait(END_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._head.pid, signal.SIGKILL)
            self._head.wait()


def _environment() -> dict[str, str]:
    """This environment, without what would lead Ray elsewhere or make its processes compile all files again."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "RAY_AUTH_MODE": "disabled"}
