"""The WebSocket stream of vLLM-Omni and SGLang-Omni, and the HTTP routes beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from loop_thread import loop_thread
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from telephony_tts.engines.fake.engine import render

RATE_HZ = 24_000


@dataclass
class SocketStandIn:
    """`greets`: it answers `session.config`, as SGLang-Omni does."""

    fault: str = ""
    faults_left: int = 1_000_000
    greets: bool = False
    pause_s: float = 0.0
    url: str = ""
    configs: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    n_live: int = 0
    n_left: int = 0

    async def talk(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.headers.append({name.lower(): value for name, value in socket.request.headers.raw_items()})
        self.n_live += 1
        try:
            await self._session(socket)
        except ConnectionClosed:
            self.n_left += 1
        finally:
            self.n_live -= 1

    async def _session(self, socket: ServerConnection) -> None:
        config = json.loads(await socket.recv())
        assert config["type"] == "session.config"
        self.configs.append(config)
        if self.greets:
            await socket.send(json.dumps({"type": "session.configured"}))
        text = ""
        while (message := json.loads(await socket.recv()))["type"] != "input.done":
            assert message["type"] == "input.text"
            text += message["text"]
        self.texts.append(text)
        fault = self.fault if self.faults_left > 0 else ""
        self.faults_left -= bool(fault)
        if fault == "error":
            await socket.send(json.dumps({"type": "error", "error": {"message": "voice not found"}}))
            return
        if fault == "not_json":
            await socket.send("hello")
        rate_hz = 48_000 if fault == "wrong_rate" else RATE_HZ
        start = {"type": "audio.start", "utterance_index": 0, "format": "pcm", "sample_rate": rate_hz, "channels": 1}
        await socket.send(json.dumps(start))
        sound = render(text).astype("<i2").tobytes()
        for n, at in enumerate(range(0, len(sound), 4_001)):
            if fault == "break" and n == 3:
                socket.transport.abort()
                return
            if fault == "silent":
                await socket.wait_closed()
                return
            if self.pause_s:
                # A server that reads while it generates notices a client that leaves.
                waiting = asyncio.ensure_future(socket.recv())
                done, _ = await asyncio.wait((waiting,), timeout=self.pause_s)
                waiting.cancel()
                for each in done:
                    each.result()
            await socket.send(sound[at : at + 4_001])
        await socket.send(json.dumps({"type": "audio.done", "total_bytes": len(sound)}))
        await socket.send(json.dumps({"type": "session.done"}))
        if fault == "early_close":
            return
        await socket.wait_closed()

    def answer_http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/v1/audio/speech/stream":
            if self.fault == "refuse":
                return connection.respond(HTTPStatus.TOO_MANY_REQUESTS, "queue full\n")
            return None
        if request.path == "/v1/audio/voices":
            voices = {"voices": ["vivian"], "uploaded_voices": [{"name": "ours"}]}
            return connection.respond(HTTPStatus.OK, json.dumps(voices))
        return connection.respond(HTTPStatus.NOT_FOUND, "\n")


@contextmanager
def socket_stand_in(**habits: Any) -> Iterator[SocketStandIn]:
    stand_in = SocketStandIn(**habits)

    async def start() -> Any:
        return await serve(stand_in.talk, "127.0.0.1", 0, process_request=stand_in.answer_http, compression=None)

    async def stop(server: Any) -> None:
        server.close(True)
        await server.wait_closed()

    with loop_thread() as thread:
        server = thread.run(start())
        stand_in.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield stand_in
        finally:
            thread.run(stop(server))
