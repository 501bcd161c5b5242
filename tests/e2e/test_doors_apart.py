"""Each door can be taken away: without its folder the rest imports, starts and speaks, and its paths are unknown.

A copy of the package is a folder of links, all but the one that is taken away. Its server is a process of its own,
forked from one that has imported the packages of others, but nothing of ours.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked_process import ForkServer, fork_server
from linked_package import linked_package
from rig import correlation, decoded, greeted, rendering, run

import telephony_tts
from telephony_tts.app.config import doors
from telephony_tts.transport.door import Door, Doors

pytestmark = pytest.mark.slow

PACKAGE = Path(telephony_tts.__path__[0])
OF_OTHERS = (
    "anyio._backends._asyncio", "fastapi.responses", "google.protobuf.descriptor_pb2", "grpc", "h11", "httpx2", "numpy",
    "prometheus_client", "pydantic", "soxr", "uvicorn", "uvloop", "websockets.asyncio.client",
    "websockets.asyncio.server", "yaml",
)  # fmt: skip
"""What the imports of the server spend most of their time on."""
START_S = 60.0
SENTENCE = "Good morning."
WAYS = {
    "bot": (
        "/v1/speak", "/v2/speak", "/v1/text-to-speech/v/stream-input", "/v1/text-to-speech/v/multi-stream-input",
        "/tts/websocket", "/api-ws/v1/inference", "/jambonz/tts",
    ),
    "http": (
        "/v1/speak", "/v1/text-to-speech/v", "/v1/text-to-speech/v/stream", "/tts/bytes", "/jambonz/tts", "/vapi/voice",
        "/inference_sft", "/v1/audio/speech",
    ),
}  # fmt: skip
"""Paths of vendors, by WebSocket and by HTTP. Their records have patterns and beginnings."""

WORDS = ("native", "cosyvoice", "bandwidth")
"""Doors whose names are also a word of the field, or a model's."""

# No engine is imported: the table of tests/test_imports.py forbids them to know a door, and PyTorch costs seconds.
PROGRAM = """
import importlib, pkgutil, sys
import telephony_tts

for found in pkgutil.walk_packages(telephony_tts.__path__, "telephony_tts."):
    if not found.name.startswith(("telephony_tts.engines.", "telephony_tts.bench.")):
        print(importlib.import_module(found.name).__name__)
print(telephony_tts.__path__[0], flush=True)
from telephony_tts.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with fork_server(*OF_OTHERS) as forks:
        yield forks


@contextmanager
def serving_copy(forks: ForkServer, folder: Path, log: Path) -> Iterator[int]:
    """The port of a server with the fake engine, of the package in `folder`. All its modules are imported before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ("engines.default=fake", "engines.hibari.workers=0", "speech.detect_language=false",
                "speech.first_clause_chars=0", "limits.max_frame_lateness_ms=10000")  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", str(port)]
    command += [word for setting in settings for word in ("--set", setting)]
    with log.open("w") as into:
        server = forks.Popen(
            command, stdout=into, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(folder)}
        )
    try:
        end_s = time.monotonic() + START_S
        while True:
            try:
                if ask(port, "GET", "/readyz")[0] == 200:
                    break
            except OSError:
                pass
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        try:
            assert server.wait(30) == 0, log.read_text()
        finally:
            server.kill()


def ask(port: int, method: str, path: str) -> tuple[int, str]:
    """The status and the body of the answer to a request without a body. The method `WebSocket` is a handshake."""
    headers = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        if method == "WebSocket":
            connection.request("GET", path, headers=headers)
        else:
            connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, "" if answer.status == 101 else answer.read().decode()
    finally:
        connection.close()


def ways_of(door: Door) -> set[tuple[str, str]]:
    """(method, path) of all ways into a door."""
    ways = {("WebSocket", f"/media/{door.name}")} if door.media is not None else set()
    for vendor in door.bots:
        ways |= {("WebSocket", path) for path in WAYS["bot"] if vendor.path.fullmatch(path)}
    if door.http is not None:
        # By GET, which these paths refuse with 405: a POST to an unknown path gets 405 too, as no such path has it.
        ways |= {("GET", path) for path in WAYS["http"] if path.startswith(door.http.begins)}
    return ways


ALL = {door.name: ways_of(door) for door in doors() if (PACKAGE / "doors" / door.name).is_dir()}


async def speak_a_turn(port: int) -> None:
    async with greeted(f"ws://127.0.0.1:{port}/v1/stream?pace=burst") as bot:
        await bot.say(SENTENCE, "a")
        done = await bot.event("done", turn="a")
        assert {len(frame) for frame in bot.frames} == {160}
        assert len(bot.frames) == done["audio_ms"] // 20
        assert correlation(decoded(bot.frames), rendering([SENTENCE])) >= 0.99


def test_every_door_has_its_ways_in_these_tests() -> None:
    assert set(ALL) == {path.parent.name for path in PACKAGE.glob("doors/*/door.py")}
    for door in doors():
        if door.name in ALL:
            methods = {method for method, _ in ALL[door.name]}
            expected = {"WebSocket"} if door.media is not None or door.bots else set()
            assert methods == expected | ({"GET"} if door.http is not None else set()), door.name
    asked = {path for ways in ALL.values() for _, path in ways}
    assert asked >= {path for paths in WAYS.values() for path in paths}
    for vendor in Doors(doors()).vendors:
        assert any(vendor.path.fullmatch(path) for path in WAYS["bot"]), vendor.name


def test_no_other_room_names_a_carrier_or_a_vendor() -> None:
    """Comments too: they say what kind of platform does something. Engines are left out, which name their models, and
    texts, in which the asterisk is a sign."""
    names = re.compile("|".join(door.name for door in doors() if door.name not in WORDS), re.IGNORECASE)
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for room in PACKAGE.iterdir()
        if room.name not in ("doors", "engines", "text")
        for path in ([room] if room.is_file() else room.rglob("*.py"))
        if path.suffix == ".py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if names.search(line.replace("openai-whisper", ""))  # a package to install
    ]
    assert found == []


@pytest.mark.parametrize("name", [None, *ALL])
def test_without_one_door_the_others_import_start_and_speak(
    forks: ForkServer, tmp_path: Path, name: str | None
) -> None:
    copy = linked_package(tmp_path, "doors", name)
    log = tmp_path / "log"
    with serving_copy(forks, tmp_path, log) as port:
        run(lambda: speak_a_turn(port))
        answers = {way: ask(port, *way) for each in ALL for way in ALL[each]}
    imported, found, _ = log.read_text().partition(f"\n{copy}\n")
    assert found, "the modules of the copy were imported"
    assert {each for each in ALL if f"telephony_tts.doors.{each}.door" in imported.splitlines()} == set(ALL) - {name}
    gone = ALL.get(name or "", set())
    for way, (status, body) in answers.items():
        if way in gone:
            assert status == 404, (way, body)
            assert body.startswith("no such path; WebSockets are served at /v1/stream") and way[1] not in body, body
        else:
            assert status != 404, (way, body)
    assert not re.search("Traceback|unexpected", log.read_text())
