"""A real server under load for the tests of dashboards: two processes, TLS, recordings, an engine that is too slow."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

TOKEN = "a-token-of-the-test"
_READY_S = 60.0
_SENTENCE = "The technician will be with you tomorrow between nine and eleven, and he calls before he arrives."


def trusting() -> ssl.SSLContext:
    """Accepts the server's own certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def server(folder: Path, certificate: tuple[Path, Path]) -> Iterator[int]:
    """The port of a server that speaks more slowly than real time, so that its callers hear gaps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cert, key = certificate
    (folder / "recordings").mkdir()
    (folder / "phrases").mkdir()
    settings = {
        "server": {
            "port": port, "processes": 2, "tokens": [TOKEN], "drain_s": 0.5,
            "tls": {"cert": str(cert), "key": str(key)},
        },
        "limits": {"calls": 50, "max_frame_lateness_ms": 10_000},
        "engines": {
            "default": "fake", "fallback": ["espeak", "fake"], "first_audio_timeout_ms": 20_000,
            "fake": {"rtf": 1.5, "slots": 30},
        },
        "recordings": {"folder": str(folder / "recordings"), "calls": "all"},
        "phrases": {"enabled": True, "folder": str(folder / "phrases")},
    }  # fmt: skip
    file = folder / "server.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "telephony_tts", "serve", "--config", str(file)]
    with (folder / "server.log").open("w") as log:
        served = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
    try:
        end_s = time.monotonic() + _READY_S
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting())
        )
        while True:
            try:
                opener.open(f"https://127.0.0.1:{port}/readyz", timeout=1).close()
                break
            except OSError:
                said = (folder / "server.log").read_text(encoding="utf-8")[-2000:]
                assert served.poll() is None and time.monotonic() < end_s, said
                time.sleep(0.1)
        yield port
    finally:
        served.terminate()
        try:
            served.wait(20)
        except subprocess.TimeoutExpired:
            served.kill()
            served.wait()


async def load(port: int, until: asyncio.Event, n_bots: int = 4) -> None:
    """Bots that speak, interrupt and make mistakes, and HTTP requests, until `until` is set."""
    async with asyncio.TaskGroup() as group:
        for number in range(n_bots):
            group.create_task(_bot(port, number, until))
        group.create_task(_requests(port, until))


async def _bot(port: int, number: int, until: asyncio.Event) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    n = 0
    while not until.is_set():
        with suppress(ConnectionClosed):
            async with connect(
                f"wss://127.0.0.1:{port}/v1/stream?call=c{number}.{n}&audio=binary", additional_headers=headers,
                ssl=trusting(), proxy=None, compression=None, max_queue=None,
            ) as socket:  # fmt: skip
                reader = asyncio.create_task(_read(socket))
                for turn in range(3):
                    await socket.send(json.dumps({"type": "say", "text": f"{_SENTENCE} {turn}", "turn": f"t{turn}"}))
                    await socket.send("{not json")
                    await asyncio.sleep(2.0 if turn % 2 == 0 else 1.0)
                    if turn % 2:
                        await socket.send('{"type":"clear"}')
                await socket.close()
                await reader
        n += 1


async def _read(socket: object) -> None:
    with suppress(ConnectionClosed):
        async for _ in socket:  # type: ignore[attr-defined]
            pass


async def _requests(port: int, until: asyncio.Event) -> None:
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting())
    )

    def ask() -> None:
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}/v1/audio/speech",
            json.dumps({"model": "tts-1", "input": "Good morning.", "voice": "alloy"}).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        with suppress(OSError):
            opener.open(request, timeout=20).read()

    while not until.is_set():
        await asyncio.to_thread(ask)
        await asyncio.sleep(0.5)
