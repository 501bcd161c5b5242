"""wscat, the command-line client from npm, as a person at a terminal uses it."""

from __future__ import annotations

import base64
import json
import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WSCAT = "6.1.0"
_PEERS = Path(__file__).resolve().parents[1] / ".peers"


def installed() -> Path:
    """The client, installed on first use into the checkout's ignored folder."""
    program = _PEERS / "node_modules" / ".bin" / "wscat"
    if not program.exists():
        npm = shutil.which("npm")
        assert npm is not None, "npm is needed: apt-get install npm"
        _PEERS.mkdir(exist_ok=True)
        subprocess.run(
            [npm, "install", "--prefix", str(_PEERS), "--no-audit", "--no-fund", "--silent", f"wscat@{_WSCAT}"],
            check=True, timeout=180,
        )  # fmt: skip
    return program


class Typist:
    """wscat on a pseudo-terminal, because it exits when its input ends; and the lines that it prints."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = ""

    def type(self, line: str) -> None:
        os.write(self._descriptor, line.encode() + b"\r")

    def read_until(self, kind: str, within_s: float = 20, **fields: Any) -> dict[str, Any]:
        """The event of this kind, once it has been printed."""
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            for event in self.events:
                if event.get("type") == kind and all(event.get(name) == value for name, value in fields.items()):
                    return event
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    self._text += os.read(self._descriptor, 65_536).decode(errors="replace")
                except OSError:
                    break
        raise AssertionError(f"no {kind} was printed: {self._text[-2000:]!r}")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every JSON object on the screen. That includes the typed messages, which are not events of the server."""
        found = []
        for line in self._text.replace("\x1b", "\n").splitlines():
            start = line.find("{")
            if start >= 0:
                try:
                    found.append(json.loads(line[start:]))
                except json.JSONDecodeError:
                    continue  # not printed to its end yet
        return found

    @property
    def speech(self) -> list[bytes]:
        return [base64.b64decode(e["media"]["payload"]) for e in self.events if e.get("event") == "media"]


@contextmanager
def typing(program: Path, url: str, *flags: str) -> Iterator[Typist]:
    ours, theirs = pty.openpty()
    # A terminal of one column more than any line, so that none is broken in two.
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "100000", "FORCE_COLOR": "0"}
    client = subprocess.Popen(
        [str(program), "-c", url, "--no-color", *flags], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    try:
        yield Typist(ours)
    finally:
        client.kill()
        client.wait()
        os.close(ours)
