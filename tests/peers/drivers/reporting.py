"""What every driver does: its arguments, its steps, and what it reports.

A driver takes the address of the server and steps, and does them in order: `speak:Hello. `, `flush`, `wait:Flushed`.
It prints one JSON object per line for what the user of its client sees. It gives up, with a message on stderr, when a
step waits for longer than `--within` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

# Whatever a client prints goes to stderr, where a failed test shows it.
_REPORT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

_STARTED_S = time.monotonic()
_LOCK = threading.Lock()


def report(event: str, **fields: Any) -> None:
    """Print one event. Bytes become `{"base64": ...}`."""
    fields = {
        name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
        for name, value in fields.items()
    }
    with _LOCK:
        line = {"event": event, "at_s": round(time.monotonic() - _STARTED_S, 4), **fields}
        _REPORT.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        _REPORT.flush()


def arguments(**defaults: Any) -> argparse.Namespace:
    """The parsed arguments: `url` such as http://127.0.0.1:8080, `key`, `within` seconds, `steps`, and a flag of its
    own for each of `defaults`, of its default's type."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("steps", nargs="*")
    parser.add_argument("--key", default="secret")
    parser.add_argument("--within", type=float, default=10.0)
    for name, default in defaults.items():
        kind = str if default is None else type(default)
        parser.add_argument("--" + name.replace("_", "-"), dest=name, type=kind, default=default)
    return parser.parse_intermixed_args()


def websocket_url(url: str) -> str:
    return url.replace("http", "ws", 1)


def split(step: str) -> tuple[str, str]:
    """A step's name and what stands after its colon."""
    name, _, rest = step.partition(":")
    return name, rest


def words(text: str) -> list[str]:
    """The text in pieces of one word each, as a language model sends it: each but the first begins with its space. If
    it has a "|", the pieces are what stands between them."""
    if "|" in text:
        return text.split("|")
    first, *others = text.split(" ")
    return [first, *(" " + word for word in others)]


class Ear:
    """What has arrived so far, and waiting for more. It may be told from any thread."""

    def __init__(self, bytes_per_ms: float, within_s: float) -> None:
        self._bytes_per_ms = bytes_per_ms
        self._within_s = within_s
        self._arrived: Counter[str] = Counter()
        self._awaited: Counter[str] = Counter()
        self._bytes = 0

    def audio(self, audio: bytes, **fields: Any) -> None:
        """Report audio that arrived."""
        report("audio", audio=audio, **fields)
        self.count(audio)

    def count(self, audio: bytes) -> None:
        """Take audio into `heard_ms` without a report."""
        self._bytes += len(audio)

    def message(self, name: str, **fields: Any) -> None:
        """Report anything else that arrived."""
        report(name, **fields)
        self._arrived[name] += 1

    def forget_audio(self) -> None:
        """Count `heard_ms` from here."""
        self._bytes = 0

    @property
    def heard_ms(self) -> float:
        return self._bytes / self._bytes_per_ms

    def waits(self, step: str) -> bool:
        """Whether the step is one of those that every driver has: `hear:MS`, `wait:EVENT` and `pause:SECONDS`."""
        return split(step)[0] in ("hear", "wait", "pause")

    async def wait(self, step: str) -> None:
        """Do a step that waits: until so much audio has come since the last `wait`, `clear`, `interrupt` or the like,
        or until an event has come that no earlier `wait` took."""
        end_s = time.monotonic() + self._within_s
        while not self._is_over(step, end_s):  # noqa: ASYNC110  it is told from other threads too
            await asyncio.sleep(0.002)

    def wait_in_thread(self, step: str) -> None:
        """The same for a client that blocks."""
        end_s = time.monotonic() + self._within_s
        while not self._is_over(step, end_s):
            time.sleep(0.002)

    def _is_over(self, step: str, end_s: float) -> bool:
        kind, what = split(step)
        if kind == "pause":
            return time.monotonic() >= end_s - self._within_s + float(what)
        if kind == "hear" and self.heard_ms >= float(what):
            return True
        if kind == "wait" and self._arrived[what] > self._awaited[what]:
            self._awaited[what] += 1
            self.forget_audio()
            return True
        if time.monotonic() > end_s:
            sys.exit(f"gave up on {step!r}: heard {self.heard_ms:.0f} ms, arrived {dict(self._arrived)}")
        return False


BYTES_PER_SAMPLE = {"linear16": 2, "mulaw": 1, "alaw": 1, "pcm": 2, "ulaw": 1, "pcm_s16le": 2, "pcm_mulaw": 1}
