"""The telephone platform's side of a media stream, as Twilio behaves. It plays audio in real time and reports each mark
when playback reaches it. On a clear it empties its buffer and reports every mark that was in it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from rig import FRAME_MS, TIMEOUT_S, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

FRAME_S = FRAME_MS / 1000


class TwilioPeer:
    """One call's media leg. `played` is what the caller heard, `dropped` what a clear threw away.

    Other carriers are subclasses (`carrier_peers.py`), which say what they call things. `frame_bytes` is 20 ms.
    """

    frame_bytes = 160
    stream_key = "streamSid"
    sequence_key = "sequenceNumber"
    echoes_cleared = True
    """Whether a clear reports the marks that it throws away."""

    def __init__(self, socket: ClientConnection, call: str) -> None:
        self.socket = socket
        self.call = call
        self.stream = f"MZ{call[-30:]}"
        self.received: list[dict[str, Any]] = []
        self.payloads: list[bytes] = []
        self.came_s: list[float] = []
        """When each frame came."""
        self.played: list[bytes] = []
        self.dropped: list[bytes] = []
        self.n_clears = 0
        self.marks: list[str] = []
        self.tones: list[str] = []
        self.closed: tuple[int | None, str | None] | None = None
        self._buffer: deque[bytes | str] = deque()
        self._filled = asyncio.Event()
        self._sequence = 0
        self._tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._play()),
        ]

    # -------------------------------------------------------------- platform → server

    async def send(self, event: str, **fields: Any) -> None:
        self._sequence += 1
        message = {"event": event, self.sequence_key: str(self._sequence), self.stream_key: self.stream, **fields}
        with suppress(ConnectionClosed):
            await self.socket.send(json.dumps(message))

    async def start(self, **parameters: str) -> None:
        await self.socket.send('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        await self.send(
            "start",
            start={
                "streamSid": self.stream, "accountSid": "AC1", "callSid": self.call, "tracks": ["inbound"],
                "customParameters": parameters,
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            },
        )

    async def speak(self, frames: list[bytes]) -> None:
        """The caller's voice, one frame each 20 ms."""
        start_s = time.monotonic()
        for n, frame in enumerate(frames):
            await asyncio.sleep(max(0, start_s + n * FRAME_S - time.monotonic()))
            payload = base64.b64encode(frame).decode()
            await self.send(
                "media",
                media={"track": "inbound", "chunk": str(n + 1), "timestamp": str(n * FRAME_MS), "payload": payload},
            )

    async def press(self, digit: str) -> None:
        await self.send("dtmf", dtmf={"track": "inbound_track", "digit": digit})

    async def hang_up(self) -> None:
        await self.send("stop", stop={"accountSid": "AC1", "callSid": self.call})

    async def aclose(self) -> None:
        await self.socket.close()
        await self._tasks[0]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -------------------------------------------------------------- server → platform

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                message = json.loads(data)
                self.received.append(message)
                kind, value = self.read(message)
                if kind == "media":
                    payload = base64.b64decode(value)
                    self.payloads.append(payload)
                    assert len(payload) % self.frame_bytes == 0
                    for at in range(0, len(payload), self.frame_bytes):
                        self._buffer.append(payload[at : at + self.frame_bytes])
                        self.came_s.append(time.monotonic())
                elif kind == "mark":
                    self._buffer.append(value)
                elif kind == "clear":
                    await self._clear()
                else:
                    self.tones.append(value)
                self._filled.set()
        except ConnectionClosed:
            pass
        finally:
            self.closed = (self.socket.close_code, self.socket.close_reason)

    def read(self, message: dict[str, Any]) -> tuple[str, str]:
        """(what it is, its payload, name or digits). A key that the platform does not document fails."""
        message = dict(message)
        assert message.pop(self.stream_key) == self.stream
        match message:
            case {"event": "media", "media": {"payload": payload}}:
                assert message == {"event": "media", "media": {"payload": payload}}
                return "media", payload
            case {"event": "mark", "mark": {"name": name}}:
                assert message == {"event": "mark", "mark": {"name": name}}
                return "mark", name
            case {"event": "clear"}:
                assert message == {"event": "clear"}
                return "clear", ""
        raise AssertionError(f"not the platform's: {message}")

    async def _clear(self) -> None:
        self.n_clears += 1
        thrown, self._buffer = list(self._buffer), deque()
        self.dropped += [item for item in thrown if isinstance(item, bytes)]
        for item in thrown:
            if isinstance(item, str) and self.echoes_cleared:
                await self._echo(item)

    async def _play(self) -> None:
        due_s = time.monotonic()
        while True:
            while self._buffer and isinstance(self._buffer[0], str):
                await self._echo(str(self._buffer.popleft()))
            if not self._buffer:
                self._filled.clear()
                await self._filled.wait()
                due_s = max(due_s, time.monotonic())
                continue
            frame = self._buffer.popleft()
            assert isinstance(frame, bytes)
            self.played.append(frame)
            due_s += FRAME_S
            await asyncio.sleep(max(0, due_s - time.monotonic()))

    async def _echo(self, name: str) -> None:
        self.marks.append(name)
        await self.report(name)

    async def report(self, name: str) -> None:
        await self.send("mark", mark={"name": name})

    async def gone(self) -> tuple[int | None, str | None]:
        await until(lambda: self.closed is not None, "the media leg is still open")
        assert self.closed is not None
        return self.closed

    async def hears(self, n_frames: int, within_s: float = TIMEOUT_S) -> None:
        await until(lambda: len(self.played) >= n_frames, f"only {len(self.played)} frames were played", within_s)


@asynccontextmanager
async def calling(url: str, call: str, *, headers: dict[str, str] | None = None) -> AsyncIterator[TwilioPeer]:
    """Twilio connected to `url`; `start` is for the test to send."""
    async with dialling(TwilioPeer, url, call, headers=headers) as peer:
        yield peer


Peer = TypeVar("Peer", bound=TwilioPeer)


@asynccontextmanager
async def dialling(
    platform: type[Peer], url: str, call: str, *, headers: dict[str, str] | None = None, **how: Any
) -> AsyncIterator[Peer]:
    """A telephone platform connected to `url`; `start` is for the test to send."""
    async with connect(url, compression=None, additional_headers=headers or {}, proxy=None, max_queue=None) as socket:
        peer = platform(socket, call, **how)
        try:
            yield peer
        finally:
            await peer.aclose()
