"""wscat, the command-line client from npm, against a real server with the embedded voice."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from announced import announced, command_with, self_made_certificate
from rig import decoded
from served import process

WSCAT = "6.1.0"
PEERS = Path(__file__).resolve().parents[2] / ".peers"
pytestmark = [pytest.mark.peer, pytest.mark.timed]


@pytest.fixture(scope="module")
def wscat() -> Path:
    """The client, installed on first use into the checkout's ignored folder."""
    program = PEERS / "node_modules" / ".bin" / "wscat"
    if not program.exists():
        npm = shutil.which("npm")
        assert npm is not None, "npm is needed: apt-get install npm"
        PEERS.mkdir(exist_ok=True)
        subprocess.run(
            [npm, "install", "--prefix", str(PEERS), "--no-audit", "--no-fund", "--silent", f"wscat@{WSCAT}"],
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


def test_a_typed_line_is_spoken_and_a_typed_clear_stops_it(wscat: Path) -> None:
    with (
        process("--set", "engines.default=hibari", "--set", "engines.hibari.workers=2") as (_, port),
        typing(wscat, f"ws://127.0.0.1:{port}/v1/stream") as person,
    ):
        ready = person.read_until("ready")
        assert ready["codec"] == "ulaw" and ready["voice"]
        person.type("Hello there.")
        started = person.read_until("started")
        done = person.read_until("done")
        assert done["turn"] == started["turn"] and done["underruns"] == 0
        assert len(person.speech) * 20 == done["audio_ms"] > 300
        assert {len(frame) for frame in person.speech} == {160}
        heard = decoded(person.speech).astype(float)
        assert np.sqrt(np.mean(heard**2)) > 500, "that is silence"

        person.type("This is a much longer line, which is going to be interrupted before it comes to its end.")
        begun = person.read_until("started", turn="t2")
        person.type('{"type":"clear"}')
        cleared = person.read_until("cleared", turn=begun["turn"])
        assert cleared["reason"] == "clear" and cleared["unheard_text"].endswith("its end.")
        person.type('{"type":"shout"}')
        assert person.read_until("error")["code"] == "unknown_type"


def test_wscat_sends_one_message_and_exits(wscat: Path) -> None:
    """`-x` and `-w`, as in a script, with a subprotocol and a token, which wscat sends in its own way."""
    environment = {"TELEPHONY_TTS_TOKENS": "secret"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with process() as (_, port):
            url = f"ws://127.0.0.1:{port}/v1/stream?audio=none"
            flags = ("-H", "Authorization: Token secret", "-s", "media", "-x", '{"type":"say","text":"Hi."}', "-w", "2")
            with typing(wscat, url, *flags) as script:
                assert script.read_until("done")["audio_ms"] == 180
            with typing(wscat, url) as tokenless, pytest.raises(AssertionError, match="401"):
                tokenless.read_until("ready", within_s=3)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def test_wscat_takes_the_command_that_a_server_prints(wscat: Path, tmp_path: Path) -> None:
    """With a token and a self-signed certificate."""
    started = [sys.executable, "-m", "telephony_tts.cli"]
    flags = ["--host", "0.0.0.0", *self_made_certificate(tmp_path)]
    environment = {"TELEPHONY_TTS_TOKENS": "open-sesame"}
    with announced(started, *flags, cwd=tmp_path, environment=environment) as lines:
        command = command_with("/v1/stream", lines).replace("TOKEN", environment["TELEPHONY_TTS_TOKENS"])
        npx, name, connect, url, *others = shlex.split(command)
        assert (npx, name, connect) == ("npx", "wscat", "-c")
        with typing(wscat, url, *others) as person:
            assert person.read_until("ready")["voice"] == "tone"
            person.type("Hello there.")
            assert person.read_until("done")["underruns"] == 0
        with typing(wscat, url, "-H", others[-1]) as careful, pytest.raises(AssertionError, match="self-signed"):
            careful.read_until("ready", within_s=5)


def wscat_block() -> tuple[str, list[str]]:
    """The address on the page of the examples, and the lines that it says to type."""
    page = (Path(__file__).resolve().parents[2] / "examples" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(npx wscat .*?)^```$", page, re.MULTILINE | re.DOTALL)
    command, *typed = block.splitlines()
    program, name, flag, url = shlex.split(command)
    assert (program, name, flag) == ("npx", "wscat", "-c")
    return url, [line.removeprefix("> ") for line in typed]


def test_the_lines_on_the_page_of_the_examples(wscat: Path) -> None:
    url, typed = wscat_block()
    assert len(typed) == 2
    with (
        process("--set", "engines.default=hibari", "--set", "engines.hibari.workers=2") as (_, port),
        typing(wscat, url.replace(":8080", f":{port}")) as person,
    ):
        person.read_until("ready")
        text, clear = typed
        person.type(text)
        person.read_until("started", turn="t1")
        person.type(clear)
        cleared = person.read_until("cleared", turn="t1")
        assert cleared["heard_text"] + cleared["unheard_text"] == text
        assert not person.speech, "it shows events and not audio"
