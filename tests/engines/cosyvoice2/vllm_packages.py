"""vLLM and `transformers` for a child process of a test.

They take 900 MB, so they are not in the environment of the tests: the first test that needs them installs them in
`.peers/vllm`. PyTorch comes from here.
"""

from __future__ import annotations

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
REQUIREMENTS = HERE / "vllm.txt"
INSTALL_S = 600
RUN_S = 300
"""Without other work the longest run takes half a minute, most of it to import."""


def vllm_folder() -> Path:
    """The folder of packages, which is made on first use and again when `vllm.txt` changed. Processes that run tests
    at the same time wait for the one that installs."""
    folder, wanted = PEERS / "vllm", f"{sys.version}\n{torch.__version__}\n{REQUIREMENTS.read_text()}"
    stamp = folder / "installed.txt"
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "vllm.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-compile", "--only-binary", ":all:", "--target", str(folder), "--requirement", str(REQUIREMENTS)],
            capture_output=True, text=True, check=False, timeout=INSTALL_S,
        )  # fmt: skip
        assert installed.returncode == 0, f"vLLM was not installed: {installed.stderr[-4000:]}"
        stamp.write_text(wanted)
    return folder


def run_with_vllm(script: Path, *arguments: str) -> str:
    """Run a script to its end in a process that can import vLLM, `transformers` and this checkout: its output."""
    # Without PYTHONDONTWRITEBYTECODE, with which each run would compile all packages again.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{vllm_folder()}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, check=False, timeout=RUN_S, env={**kept, **own},
    )  # fmt: skip
    assert ended.returncode == 0, f"{script.name} failed: {ended.stdout[-2000:]}\n{ended.stderr[-6000:]}"
    return ended.stdout
