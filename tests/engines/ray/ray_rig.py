"""A real Ray cluster of several nodes, applications on it, and the environment that has Ray.

Ray brings 470 MB, so it is not in the environment of the tests. It lives in `.peers/ray`, which the first test that
needs it makes. The tests themselves, and so the front, run without Ray: only the watcher beside the front has it.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from forked_process import ForkServer, fork_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PEERS = ROOT / ".peers"
REQUIREMENTS = HERE / "ray.txt"
INSTALL_S = 600
COMMAND = ("telephony_tts.cli.main", "ray", "ray.serve", "telephony_tts.engines.ray.app")
"""What a command imports, in part inside functions. The imports take two seconds of CPU."""
START_S = 300
"""Until a command counts as hanging. Beside other tests it waits for a core."""


def ray_python() -> Path:
    """The interpreter of the environment with Ray, which is made on first use and again when `ray.txt` changed.

    It takes 470 MB and a minute. Processes that run tests at the same time wait for the one that installs.
    """
    folder = PEERS / "ray"
    python = folder / "bin" / "python"
    stamp = folder / "installed.txt"
    wanted = f"{sys.version}\n{REQUIREMENTS.read_text()}"
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "ray.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        faulthandler.cancel_dump_traceback_later()  # the limit of a test is shorter than that of an installation
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=INSTALL_S)
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check",
             "--no-compile", "--only-binary", ":all:", "--requirement", str(REQUIREMENTS)],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
        assert installed.returncode == 0, f"Ray was not installed: {installed.stderr[-4000:]}"
        stamp.write_text(wanted)
    return python


def variables(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of processes that use Ray: this checkout's files, no token file in the home directory."""
    # Without PYTHONDONTWRITEBYTECODE, with which each of Ray's processes would compile all of it again.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "RAY_ADDRESS")}
    own = {
        "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
        "GRPC_ENABLE_FORK_SUPPORT": "0",  # as docs/remote-engine.md has it for a head
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",  # Serve's own 0.1 takes 4% of a core
    }  # fmt: skip
    return {**kept, **own, "PATH": f"{ray_python().parent}{os.pathsep}{os.environ['PATH']}", **(added or {})}


class RayCluster:
    """A running cluster, and the fork server of its commands."""

    def __init__(self, child: subprocess.Popen[str], address: str, commands: ForkServer) -> None:
        self._child = child
        self._commands = commands
        self.address = address

    def _ask(self, line: str) -> str:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline().strip()
        assert answer, "the cluster's process has ended"
        return answer

    def add_node(self, cpus: int) -> int:
        return int(self._ask(f"add {cpus}"))

    def remove_node(self, node: int) -> None:
        """As if its machine died."""
        assert self._ask(f"remove {node}") == "removed"

    def kill_head(self) -> None:
        """As if its machine died. The nodes go on for a while."""
        assert self._ask("kill-head") == "killed"

    def start_head(self) -> None:
        """A new head at the same address, which knows neither nodes nor applications."""
        assert self._ask("start-head") == self.address

    def run(
        self, action: str, *settings: str, flags: tuple[str, ...] = (), address: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`telephony-tts ray up|status|down`, at the cluster's own address unless another one is given."""
        return _run(self._commands.run, action, address or self.address, *settings, flags=flags, within_s=START_S)

    @contextmanager
    def application(self, app: str, *settings: str) -> Iterator[list[str]]:
        """An application whose replicas speak with the fake engine. Gives what `ray up` printed of each replica."""
        chosen = ("engines.ray.engine=fake", f"engines.ray.app={app}", *settings)
        up = self.run("up", *chosen)
        assert up.returncode == 0, (up.stdout, up.stderr)
        try:
            yield [line.strip() for line in up.stdout.splitlines() if "fake " in line]
        finally:
            down = self.run("down", *chosen)
            assert down.returncode == 0, (down.stdout, down.stderr)


def _run(
    run: Callable[..., subprocess.CompletedProcess[str]], action: str, address: str, *settings: str, within_s: float,
    flags: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`telephony-tts ray up|status|down`."""
    chosen = [part for setting in (f"engines.ray.address={address}", *settings) for part in ("--set", setting)]
    command = [str(ray_python()), "-m", "telephony_tts", "ray", action, *flags, *chosen]
    return run(
        command, capture_output=True, text=True, errors="replace", timeout=within_s, env=variables(), cwd=str(ROOT)
    )


def ray_command(action: str, address: str, *settings: str, within_s: float) -> subprocess.CompletedProcess[str]:
    """The command in a Python of its own."""
    return _run(subprocess.run, action, address, *settings, within_s=within_s)


@contextmanager
def ray_cluster(added: Mapping[str, str] | None = None, **head: int) -> Iterator[RayCluster]:
    """A cluster with a head, which has these settings of Ray (`cluster.py`). `added` is added to its environment.

    Ray gives a node 30 s to start, which a busy machine may exceed: there are three tries.
    """
    for _ in range(3):
        child = subprocess.Popen(
            [str(ray_python()), str(HERE / "cluster.py"), *(f"{name}={number}" for name, number in head.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables(added), cwd=ROOT,
        )  # fmt: skip
        try:
            assert child.stdout is not None
            address = child.stdout.readline().strip()
            if ":" in address:
                with fork_server(*COMMAND, environment=variables(), python=ray_python()) as commands:
                    yield RayCluster(child, address, commands)
                return
        finally:
            try:
                child.communicate("quit\n", timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
    raise AssertionError("the cluster did not start")
