"""A whole server in this process on a free port, bots that use it, and checks that nothing is left behind.

Nothing here reads the server's internals, except to check at the end that the server holds no call.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import soxr
from clean_run import TIMEOUT_S as TIMEOUT_S
from clean_run import run as run
from clean_run import until as until
from fastapi import FastAPI
from server_settings import transport_settings
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from telephony_tts.audio.g711 import decode_alaw, decode_ulaw
from telephony_tts.engines.api import Chunk, Engine, Pcm, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, FakeEngine, render
from telephony_tts.http_api import application
from telephony_tts.http_api.asgi import HttpServer, http_server
from telephony_tts.runtime import event_loop
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.incoming import TakeBack
from telephony_tts.transport.server import Server

FRAME_MS = 20
FRAME_BYTES = 160
_described: list[dict[str, Any]] = []


def describe_once(app: FastAPI) -> dict[str, Any]:
    """The description of the HTTP API is the same for all servers here, and takes two thirds of a server's start."""
    if not _described:
        _described.append(app.openapi())
    return _described[0]


application.description = describe_once


class Tones(FakeEngine):
    """The fake engine, which also records what it was asked to say."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.spoken: list[str] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.spoken.append(utterance.text)
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                yield chunk


class Witness(Tones):
    """Also keeps the utterances that it was asked for."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.asked: list[Utterance] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.asked.append(utterance)
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                yield chunk


class HttpWhenUsed:
    """The HTTP side of a server, made when a test asks for the port. To make it is nine tenths of a server's start, and
    most tests connect only WebSockets."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._made: HttpServer | None = None

    def make(self) -> HttpServer:
        if self._made is None:
            self._made = http_server(self._server)
        return self._made

    def owns(self, path: str) -> bool:
        return self.make().owns(path)

    def connection(self, take_back: TakeBack, lost: Callable[[], None]) -> asyncio.Protocol:
        return self.make().connection(take_back, lost)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


class Rig:
    """A running server and how to reach it."""

    def __init__(self, server: Server, engine: Engine) -> None:
        self.server = server
        self.engine = engine

    @property
    def port(self) -> int:
        """For HTTP requests. A WebSocket has a `url`."""
        self.make_http()
        return self.server.port

    def make_http(self) -> None:
        """Make the HTTP side now, which stops all calls for a tenth of a second."""
        if isinstance(self.server.http, HttpWhenUsed):
            self.server.http.make()

    def url(self, path: str = "/v1/stream", **options: Any) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"ws://127.0.0.1:{self.server.port}{path}{'?' + query if query else ''}"

    @asynccontextmanager
    async def bot(self, *, headers: dict[str, str] | None = None, **options: Any) -> AsyncIterator[Bot]:
        """A bot that has received `ready`."""
        async with greeted(self.url(**options), headers) as bot:
            yield bot

    async def empty(self) -> None:
        """Wait until no call, engine work or socket is left."""
        await until(lambda: not len(self.server.registry), "calls left")
        await self.empty_engine()

    async def empty_engine(self) -> None:
        def idle() -> bool:
            stats = self.engine.stats()
            return stats.n_queued + stats.n_running == 0

        await until(idle, "engine work left")


@asynccontextmanager
async def serving(
    engine: Engine | None = None,
    *,
    speech: SessionSettings | None = None,
    catalog: Catalog | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A server with tones for speech, or with `engine`, or with all engines of `catalog`.

    After the body no call, engine work or socket may be left.
    """
    catalog = catalog or Catalog([engine or Tones()])
    engine = catalog.engines[0]
    # Admission by lateness is off: the machine that runs the tests may stall, and that is not their subject.
    how = {"max_frame_lateness_ms": 60_000, "drain_s": 1.0, "ping_interval_s": 60.0, **settings}
    transport = transport_settings(speech=speech or speech_settings(), **how)
    await catalog.start()
    try:
        server = Server(transport, catalog)
        server.http = HttpWhenUsed(server)
        with event_loop.quick_turns():  # as `serve` has it
            async with server.running():
                rig = Rig(server, engine)
                yield rig
                await rig.empty()
            assert server.registry.n_arriving == 0
        assert server._listener is not None and not server._listener.all_connections
    finally:
        await catalog.close()


def speech_settings(**settings: Any) -> SessionSettings:
    """Session settings under which a sentence is one utterance."""
    return replace(SessionSettings(first_clause_chars=0), **settings)


@asynccontextmanager
async def greeted(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[Bot]:
    """A bot at this address, once it has received `ready`."""
    async with connect(url, compression=None, additional_headers=headers, proxy=None, max_queue=None) as socket:
        bot = Bot(socket)
        try:
            bot.ready = await bot.event("ready")
            yield bot
        finally:
            await bot.aclose()


class Bot:
    """A client of PROTOCOL.md. `log` holds all that came, in order: (seconds, event) or (seconds, frame bytes)."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[tuple[float, dict[str, Any] | bytes]] = []
        self.ready: dict[str, Any] = {}
        self.closed: tuple[int | None, str | None] | None = None
        self._changed = asyncio.Event()
        self._n_seen = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                now_s = time.monotonic()
                if isinstance(data, bytes):
                    self.log.append((now_s, data))
                else:
                    event = json.loads(data)
                    is_speech = event.get("event") == "media" and event["media"].get("track") is None
                    self.log.append((now_s, base64.b64decode(event["media"]["payload"]) if is_speech else event))
                self._changed.set()
        except ConnectionClosed:
            pass
        finally:
            self.closed = (self.socket.close_code, self.socket.close_reason)
            self._changed.set()

    async def aclose(self) -> None:
        await self.socket.close()
        await self._reader

    async def send(self, message: dict[str, Any] | str) -> None:
        await self.socket.send(message if isinstance(message, str) else json.dumps(message))

    async def say(self, text: str, turn: str | None = None) -> None:
        await self.send({"type": "say", "text": text, **({"turn": turn} if turn else {})})

    async def event(self, kind: str, within_s: float = TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """The next event of this kind with these fields that no earlier call returned; other events are skipped."""

        def next_one() -> dict[str, Any] | None:
            for at in range(self._n_seen, len(self.log)):
                entry = self.log[at][1]
                if isinstance(entry, dict) and _is(entry, kind, fields):
                    self._n_seen = at + 1
                    return entry
            return None

        return await self._wait(next_one, within_s, f"{kind} {fields}")

    async def frames_to(self, n: int, within_s: float = TIMEOUT_S) -> list[bytes]:
        """The frames so far, once there are `n`."""
        return await self._wait(lambda: self.frames if len(self.frames) >= n else None, within_s, f"{n} frames")

    async def gone(self, within_s: float = TIMEOUT_S) -> tuple[int | None, str | None]:
        """The close code and reason, once the server has closed."""
        return await self._wait(lambda: self.closed, within_s, "a close", dead=True)

    async def _wait(self, find: Callable[[], Any], within_s: float, what: str, dead: bool = False) -> Any:
        end_s = time.monotonic() + within_s
        while (found := find()) is None:
            self._changed.clear()
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"no {what} came; got {self.events[-8:]} and {len(self.frames)} frames"
            assert dead or self.closed is None, f"closed with {self.closed} before {what}; got {self.events[-8:]}"
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                continue
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        return [entry for _, entry in self.log if isinstance(entry, dict)]

    @property
    def frames(self) -> list[bytes]:
        return [entry for _, entry in self.log if isinstance(entry, bytes)]

    def after(self, kind: str, **fields: Any) -> list[dict[str, Any] | bytes]:
        """All that came after an event."""
        for at, (_, entry) in enumerate(self.log):
            if isinstance(entry, dict) and _is(entry, kind, fields):
                return [later for _, later in self.log[at + 1 :]]
        raise AssertionError(f"no {kind} {fields}")

    def terminals(self, turn: str) -> list[str]:
        return [e["type"] for e in self.events if e.get("turn") == turn and e["type"] in ("done", "cleared", "error")]


def _is(event: dict[str, Any], kind: str, fields: dict[str, Any]) -> bool:
    of_kind: bool = event.get("type", event.get("event")) == kind
    return of_kind and all(event.get(name) == value for name, value in fields.items())


# ------------------------------------------------------------------- what is heard


def decoded(frames: list[bytes], codec: str = "ulaw") -> Pcm:
    data = b"".join(frames)
    if codec == "pcm":
        return np.frombuffer(data, "<i2").astype(np.int16)
    pcm: Pcm = (decode_ulaw if codec == "ulaw" else decode_alaw)(data)
    return pcm


def rendering(texts: list[str], rate_hz: int = 8000) -> Pcm:
    """The engine's audio of the utterances, at the leg's rate."""
    whole = np.concatenate([render(text) for text in texts]).astype(np.float32) / 32768
    pcm: Pcm = (soxr.resample(whole, SAMPLE_RATE_HZ, rate_hz, "HQ") * 32768).round().astype(np.int16)
    return pcm


def correlation(heard: Pcm, wanted: Pcm) -> float:
    """The Pearson correlation of the two from their first samples, without the silence after the shorter one."""
    n = min(len(heard), len(wanted))
    return float(np.corrcoef(heard[:n].astype(float), wanted[:n].astype(float))[0, 1])


def delayed_correlation(heard: Pcm, wanted: Pcm) -> float:
    """The same for audio with a delay that is unknown, but less than 5000 samples: an encoder's."""
    most = min(len(heard) // 4, 5000)
    padded = np.pad(heard, (0, max(0, len(wanted) + most - len(heard)))).astype(float)
    size = 1 << (len(padded) + len(wanted)).bit_length()
    lags = np.fft.irfft(np.fft.rfft(padded, size) * np.conj(np.fft.rfft(wanted.astype(float), size)), size)[:most]
    return correlation(padded[int(lags.argmax()) :], wanted)


def tones_in(frames: list[bytes], alphabet: str) -> str:
    """The letter whose tone is heard in each frame; a space for silence."""
    from telephony_tts.engines.fake.engine import tone_hz

    heard = []
    phase = np.arange(FRAME_BYTES) * (-2j * np.pi / 8000)
    for frame in frames:
        part = decoded([frame]).astype(float)
        strength = {char: abs(np.dot(part, np.exp(phase * tone_hz(char)))) for char in alphabet}
        best = max(alphabet, key=lambda char: strength[char])
        heard.append(best if np.abs(part).max() > 300 else " ")
    return "".join(heard)


async def gather(*work: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*work))


async def get(port: int, path: str, headers: tuple[str, ...] = ()) -> tuple[int, dict[str, str], str]:
    """A plain HTTP request by hand: status, headers, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1"))
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), {k.lower(): v for k, v in (f.split(": ", 1) for f in fields)}, body.decode()
