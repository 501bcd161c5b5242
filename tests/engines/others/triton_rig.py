"""A real Triton on a CPU: nvidia-pytriton carries one. It lives in `.peers/triton` (310 MB), made by the first test.

Triton loads the system's own libpython, so that the environment is made of the system's Python.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PEERS = ROOT / ".peers"
REQUIREMENTS = HERE / "triton.txt"
SYSTEM_PYTHON = "/usr/bin/python3"
INSTALL_S = 600
START_S = 90


def triton_python() -> Path:
    """The interpreter of the environment, which is made on first use and again when `triton.txt` changed.

    Processes that run tests at the same time wait for the one that installs.
    """
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"Triton's wheel needs the system's Python, {SYSTEM_PYTHON}, with its libpython")
    folder = PEERS / "triton"
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    version = subprocess.run([SYSTEM_PYTHON, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    wanted = version.stdout + REQUIREMENTS.read_text()
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "triton.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        faulthandler.cancel_dump_traceback_later()  # the limit of a test is shorter than that of an installation
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=INSTALL_S)
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check",
             "--no-compile", "--only-binary", ":all:", "--requirement", str(REQUIREMENTS)],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
        assert installed.returncode == 0, f"Triton was not installed: {installed.stderr[-4000:]}"
        stamp.write_text(wanted)
    return python


@dataclass(frozen=True)
class RealTriton:
    address: str
    requests: Path

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What the model was asked so far."""
        if not self.requests.exists():
            return []
        return [json.loads(line) for line in self.requests.read_text(encoding="utf-8").splitlines()]


@contextmanager
def real_triton() -> Iterator[RealTriton]:
    """A running Triton with the model of `triton_model.py`."""
    python = triton_python()
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [each.getsockname()[1] for each in sockets]
    with tempfile.TemporaryDirectory(prefix="triton") as folder, (Path(folder) / "log").open("w+") as log:
        requests = Path(folder) / "requests"
        unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS")
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        child = subprocess.Popen(
            [str(python), str(HERE / "triton_model.py"), *map(str, ports)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
            env={**environment, "PYTHONPATH": str(ROOT), "REQUESTS": str(requests), "PYTRITON_HOME": folder},
        )  # fmt: skip
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.strip() == "ready":
                    break
            else:
                log.seek(0)
                raise AssertionError(f"Triton did not start: {log.read()[-4000:]}")
            yield RealTriton(f"grpc://127.0.0.1:{ports[0]}", requests)
        finally:
            try:
                child.communicate("", timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
