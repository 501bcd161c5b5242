"""A real `telephony-tts serve`, and the lines that it prints when it is ready."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from forked_process import ForkServer


@contextmanager
def announced(
    started: Sequence[str], *flags: str, cwd: Path, environment: Mapping[str, str] | None = None,
    forks: ForkServer | None = None,
) -> Iterator[list[str]]:  # fmt: skip
    """A real server, and the lines that it prints until it is ready. With `forks` it is forked, not started."""
    command = [*started, "serve", "--port", "0", "--set", "engines.default=fake",
               "--set", "engines.hibari.workers=0", "--set", "speech.detect_language=false", *flags]  # fmt: skip
    served = (forks or subprocess).Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        assert served.stdout is not None
        lines: list[str] = []
        while not lines or "Ctrl-C stops" not in lines[-1]:
            line = served.stdout.readline()
            assert line, f"it ended with {served.wait(10)}: {lines}"
            lines.append(line.rstrip("\n"))
        yield lines
    finally:
        served.kill()
        served.communicate()


def command_with(word: str, lines: Sequence[str]) -> str:
    (command,) = [line for line in lines if line.startswith("    ") and word in line]
    return command.strip()


def self_made_certificate(folder: Path) -> list[str]:
    """The flags of `serve` for a self-signed certificate with another name than the server's."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tts.example.com",
         "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return ["--set", f"server.tls.cert={folder}/cert.pem", "--set", f"server.tls.key={folder}/key.pem"]
