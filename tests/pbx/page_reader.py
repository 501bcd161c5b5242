"""Runs the commands of a page about a PBX: what they start, at ports of this test instead of the page's."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import wscat_peer
from asterisk_peer import free_port
from demo import is_ready, listens
from page_commands import ROOT, PageCommands, blocks, here, made
from peer_process import PeerProcess, wait_until

from telephony_tts.audio.g711 import Pcm

START_S = 60.0
_LOUD = 300
"""Like the demo: a frame with such a sample is speech."""


class PageReader:
    """Runs a page's commands. `programs` are scripts that stand for the PBX's own commands, by their names, and
    `replaced` are texts of the page, such as a folder of the system, that are others here."""

    def __init__(
        self, page: Path, folder: Path, programs: Mapping[str, str], replaced: Mapping[str, str], **ports: int
    ) -> None:
        self.path, self.page, self.folder = page, PageCommands(page), folder
        self.ports = {port: free_port(socket.SOCK_STREAM) for port in (8080, 9000, 9092, 9093)}
        self.ports |= {int(name.removeprefix("port_")): port for name, port in ports.items()}
        self._programs, self._replaced = folder / "bin", dict(replaced)
        self._programs.mkdir()
        for name, command in programs.items():
            script = self._programs / name
            script.write_text(f"#!/bin/sh\n{command}\n")
            script.chmod(0o755)

    @property
    def port(self) -> int:
        """The server's."""
        return self.ports[8080]

    def here(self, text: str) -> str:
        """A text of the page with the ports, folders and programs of this test."""
        for theirs, ours in self.ports.items():
            text = re.sub(rf"(127\.0\.0\.1:|--bot ){theirs}\b", rf"\g<1>{ours}", text)
        for page, test in self._replaced.items():
            text = text.replace(page, test)
        return here(text)

    def shell(self, pattern: str) -> str:
        """Run the page's next command that matches; gives its output."""
        command = self.here(self.page.take(pattern))
        environment = {**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}"}
        ran = subprocess.run(
            ["sh", "-euc", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    @contextmanager
    def beside(self, name: str, command: str, *flags: str, environment: str = "") -> Iterator[PeerProcess]:
        """Run a command beside the others. `flags` are for the ports of this test."""
        folder = Path(tempfile.mkdtemp(prefix=name, dir=self.folder))
        command = made(command) if command.startswith("make ") else command
        words = ["env", "-C", str(ROOT), *shlex.split(environment), *shlex.split(self.here(command)), *flags]
        process = PeerProcess(name, words, folder)
        try:
            yield process
        finally:
            process.stop()

    @contextmanager
    def server(self, command: str) -> Iterator[PeerProcess]:
        """The machine may be busy with other tests, and the page's call must not be refused for that."""
        flags = ("--port", str(self.port), "--set", "limits.max_frame_lateness_ms=10000")
        with self.beside("server", command, *flags) as process:
            wait_until(lambda: is_ready(self.port) or not process.running(), "the server is ready", START_S)
            assert process.running(), process.written()
            yield process

    @contextmanager
    def bot(self) -> Iterator[PeerProcess]:
        with self.beside("bot", self.page.take(r"demo\.py --bot 9000")) as process:
            wait_until(lambda: "Ctrl-C" in process.written(), "the bot listens", START_S)
            yield process

    @contextmanager
    def bridge(self, environment: str = "", **settings: int) -> Iterator[PeerProcess]:
        given = {"server.url": f"ws://127.0.0.1:{self.port}/media/native", "audiosocket.port": self.ports[9092],
                 "http.port": self.ports[9093]}  # fmt: skip
        given |= {name.replace("__", "."): value for name, value in settings.items()}
        flags = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        command = self.page.take("^.venv/bin/telephony-sip-bridge")
        with self.beside("bridge", command, *flags, environment=environment) as process:
            wait_until(lambda: listens(self.ports[9093]), "the bridge listens", START_S)
            yield process

    @contextmanager
    def typing(self, call: str) -> Iterator[wscat_peer.Typist]:
        """wscat with the page's address, in this call, once what the page says to type has been typed and spoken."""
        (block,) = [block.text for block in blocks(self.path) if "npx wscat" in block.text]
        lines = [line.removeprefix("> ") for line in block.splitlines() if line.startswith("> ")]
        npx, wscat, flag, url = shlex.split(self.here(self.page.take("^npx wscat")))
        assert (npx, wscat, flag) == ("npx", "wscat", "-c")
        with wscat_peer.typing(wscat_peer.installed(), re.sub(r"call=[\w.]+", f"call={call}", url)) as person:
            person.read_until("ready")
            person.type(lines[0])
            person.read_until("started", turn="t1")
            for line in lines[1:]:
                person.type(line)
                assert person.read_until("cleared", turn="t1")["reason"] == "clear"
            yield person


def loud_s(heard: Pcm) -> float:
    """How long a telephone heard speech."""
    frames = np.abs(heard[: len(heard) // 160 * 160].astype(int).reshape(-1, 160))
    return float(np.count_nonzero(frames.max(axis=1) > _LOUD) * 0.02)


def events(process: PeerProcess, event: str) -> list[dict[str, Any]]:
    """The lines of the server's log with that event."""
    lines = [json.loads(line) for line in process.written(1 << 20).splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def voices(process: PeerProcess) -> set[str]:
    """Whose voices spoke in the calls that are over."""
    return {voice for call in events(process, "call_audit") for voice in call["voices"]}
