"""A real `telephony-tts serve` in a process of its own."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

START_S = 60.0
"""Until a start counts as hanging. Beside other tests it waits for a core."""


@contextmanager
def process(*arguments: str, log: Path | None = None, tls: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A real `telephony-tts serve`, once it is ready: with the fake engine, and without the embedded voice and the
    detection of languages, which would be much of its start. It logs to `log`, else to its pipe, which holds 64 kB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "telephony_tts", "serve", "--port", str(port), "--set", "engines.default=fake",
               "--set", "engines.hibari.workers=0", "--set", "speech.detect_language=false",
               "--set", "limits.max_frame_lateness_ms=10000", *arguments]  # fmt: skip
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    unchecked = ssl._create_unverified_context()
    with open(log, "w") if log is not None else nullcontext(subprocess.PIPE) as stderr:
        served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    try:
        end_s = time.monotonic() + START_S
        while True:
            try:
                address = f"http{'s' if tls else ''}://127.0.0.1:{port}/readyz"
                urllib.request.urlopen(address, timeout=1, context=unchecked if tls else None).close()
                break
            except OSError:
                assert served.poll() is None, served.communicate()
                assert time.monotonic() < end_s, "it is not ready"
                time.sleep(0.05)
        yield served, port
    finally:
        if served.poll() is None:
            served.kill()
        served.communicate()
