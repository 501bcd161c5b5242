"""Packages for a child process of a test: vLLM and `transformers`, or Triton.

They take up to 900 MB, so they are not in the environment of the tests: the first test that needs those of `NAME.txt`
installs them in `.peers/NAME`. PyTorch comes from here.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PEERS = ROOT / ".peers"
INSTALL_S = 600
RUN_S = 300
"""Without other work the longest run takes half a minute, most of it to import."""


def packages_folder(name: str) -> Path:
    """The folder of packages, which is made on first use and again when `NAME.txt` changed. Processes that run tests
    at the same time wait for the one that installs."""
    requirements = HERE / f"{name}.txt"
    folder, wanted = PEERS / name, f"{sys.version}\n{torch.__version__}\n{requirements.read_text()}"
    stamp = folder / "installed.txt"
    PEERS.mkdir(exist_ok=True)
    with (PEERS / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        faulthandler.cancel_dump_traceback_later()  # the limit of a test is shorter than that of an installation
        shutil.rmtree(folder, ignore_errors=True)
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-compile", "--only-binary", ":all:", "--target", str(folder), "--requirement", str(requirements)],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
        assert installed.returncode == 0, f"{name} was not installed: {installed.stderr[-4000:]}"
        stamp.write_text(wanted)
    return folder


def run_with(name: str, script: Path, *arguments: str, **environment: str) -> str:
    """Run a script to its end in a process that can import the packages and this checkout: its output."""
    # Without PYTHONDONTWRITEBYTECODE, with which each run would compile all packages again.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages_folder(name)}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, check=False, timeout=RUN_S, env={**kept, **own, **environment},
    )  # fmt: skip
    assert ended.returncode == 0, f"{script.name} failed: {ended.stdout[-2000:]}\n{ended.stderr[-6000:]}"
    return ended.stdout
