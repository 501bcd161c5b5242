"""The platform's side of media legs with binary audio: Vonage, Genesys and jambonz as their documentation and sources
describe them. Each plays in real time what it has, 20 ms at a time, and `heard` is what the caller heard."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from rig import FRAME_MS, TIMEOUT_S, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

FRAME_S = FRAME_MS / 1000
_PeerT = TypeVar("_PeerT", bound="PlayingPeer")


class PlayingPeer:
    """`received` has all texts, `audio` all binary messages, in the order of arrival."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []
        self.audio: list[bytes] = []
        self.heard = bytearray()
        self.heard_at_s: list[float] = []
        """When each frame was heard that was not silence."""
        self.closed: tuple[int | None, str | None] | None = None
        self._soon: deque[dict[str, Any]] = deque()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._run())]

    async def tell(self, *what: dict[str, Any] | str | bytes) -> None:
        with suppress(ConnectionClosed):
            for each in what:
                await self.socket.send(json.dumps(each) if isinstance(each, dict) else each)

    def of(self, **fields: Any) -> list[dict[str, Any]]:
        """The texts with these fields."""
        return [said for said in self.received if all(said.get(name) == value for name, value in fields.items())]

    async def gets(self, **fields: Any) -> dict[str, Any]:
        await until(lambda: self.of(**fields), f"{fields}; got {self.received[-4:]}")
        return self.of(**fields)[-1]

    async def gone(self) -> tuple[int | None, str | None]:
        await until(lambda: self.closed is not None, "the media leg is still open")
        assert self.closed is not None
        return self.closed

    async def hears(self, n_bytes: int, within_s: float = TIMEOUT_S) -> None:
        await until(lambda: len(self.heard) >= n_bytes, f"only {len(self.heard)} bytes were heard", within_s)

    async def aclose(self) -> None:
        await self.socket.close()
        await self._tasks[0]
        self._tasks[1].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for message in self.socket:
                if isinstance(message, bytes):
                    self.audio.append(message)
                    self.on_audio(message)
                else:
                    self.received.append(json.loads(message))
                    self.on_text(self.received[-1])
                await self._answer()
        except ConnectionClosed:
            pass
        finally:
            self.closed = (self.socket.close_code, self.socket.close_reason)

    async def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            due_s += FRAME_S
            await asyncio.sleep(max(0, due_s - time.monotonic()))
            if frame := self.tick():
                self.heard += frame
                self.heard_at_s.append(due_s)
            await self._answer()

    async def _answer(self) -> None:
        while self._soon:
            await self.tell(self._soon.popleft())

    # each platform's own

    def on_audio(self, payload: bytes) -> None:
        raise NotImplementedError

    def on_text(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    def tick(self) -> bytes:
        """What the caller hears in the next 20 ms; empty for silence."""
        raise NotImplementedError


class VonagePeer(PlayingPeer):
    """Plays one message each 20 ms, whatever is in it."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(socket)
        self._queue: deque[bytes | dict[str, Any]] = deque()

    async def connected(self, rate_hz: int = 8000, **headers: Any) -> None:
        await self.tell({"event": "websocket:connected", "content-type": f"audio/l16;rate={rate_hz}", **headers})

    def on_audio(self, payload: bytes) -> None:
        self._queue.append(payload)
        assert len(self._queue) <= 3072, "Vonage drops what comes beyond that"

    def on_text(self, message: dict[str, Any]) -> None:
        match message.get("action"):
            case "clear":
                self._queue.clear()
                self._soon.append({"event": "websocket:cleared"})
            case "notify":
                self._queue.append(message["payload"])
            case other:
                raise AssertionError(f"not Vonage's: {other}")

    def tick(self) -> bytes:
        while self._queue:
            first = self._queue.popleft()
            if isinstance(first, bytes):
                self._report()
                return first
            self._soon.append({"event": "websocket:notify", "payload": first})
        return b""

    def _report(self) -> None:
        while self._queue and isinstance(self._queue[0], dict):
            self._soon.append({"event": "websocket:notify", "payload": self._queue.popleft()})


ID = "e160e428-53e2-487c-977d-96989bf5c99d"
PCMU = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}


class GenesysPeer(PlayingPeer):
    """Numbers its messages, and checks the numbers of the server's."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(socket)
        self.seq = 0
        self.server_seq = 0
        self.n_sent_bytes = 0
        self.late_s = 0.0
        """How long it waits before it begins to play."""
        self._queue = bytearray()
        self._begins_s: float | None = None
        self._plays = False

    def message(self, kind: str, **parameters: Any) -> dict[str, Any]:
        self.seq += 1
        position = f"PT{self.n_sent_bytes / 8000}S"
        return {
            "version": "2", "type": kind, "id": ID, "seq": self.seq, "serverseq": self.server_seq, "position": position,
            "parameters": parameters,
        }  # fmt: skip

    async def open(self, call: str = "c1", **parameters: Any) -> None:
        participant = {"id": "p", "ani": "+1-555", "aniName": "John Doe", "dnis": "+1-800"}
        about = {"organizationId": "o", "conversationId": call, "participant": participant, "media": [PCMU]}
        await self.tell(self.message("open", **about | parameters))

    async def speak(self, payload: bytes) -> None:
        assert self.of(type="opened"), "Genesys sends no audio before that"
        self.n_sent_bytes += len(payload)
        await self.tell(payload)

    def on_audio(self, payload: bytes) -> None:
        assert len(payload) <= 64_000
        self._queue += payload
        if self._begins_s is None:
            self._begins_s = time.monotonic() + self.late_s

    def on_text(self, message: dict[str, Any]) -> None:
        assert (message["version"], message["id"]) == ("2", ID)
        assert message["seq"] == self.server_seq + 1, "the server's numbers have no gap"
        assert message["clientseq"] <= self.seq
        self.server_seq = message["seq"]
        match message["type"]:
            case "event":
                assert message["parameters"] == {"entities": [{"type": "barge_in", "data": {}}]}
                self._queue.clear()
                self._stopped()
            case "disconnect":
                self._soon.append(self.message("close", reason="disconnect"))

    def tick(self) -> bytes:
        if self._begins_s is None or time.monotonic() < self._begins_s:
            return b""
        if self._queue and not self._plays:
            self._plays = True
            self._soon.append(self.message("playback_started"))
        frame = bytes(self._queue[:160])
        del self._queue[:160]
        if not self._queue:
            self._stopped()
        return frame

    def _stopped(self) -> None:
        if self._plays:
            self._soon.append(self.message("playback_completed"))
        self._plays, self._begins_s = False, None


METADATA = {
    "callSid": "c1", "direction": "inbound", "from": "15083084809", "to": "15083728299", "callId": "252d9117",
    "sampleRate": 8000, "mixType": "mono",
}  # fmt: skip


class JambonzPeer(PlayingPeer):
    """Its audio module: a mark is a sample of -1 in front of the next audio, and audio is collected to 80 ms before it
    is passed on. A mark that `killAudio` caught is waited for, though it is gone."""

    MARKER = -1

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(socket)
        self.n_refused_marks = 0
        self.resamples = False
        """It changes the rate of the speech, and the marks in it are lost."""
        self._rate_hz = 8000
        self._collected = array("h")
        self._buffer = array("h")
        self._new: deque[str] = deque()
        self._placed: deque[str] = deque()
        self._cleared: deque[str] = deque()

    async def begin(self, playback_hz: int | None = None, **metadata: Any) -> None:
        about = METADATA | metadata
        self._rate_hz = playback_hz or about["sampleRate"]
        await self.tell(about)

    def on_audio(self, payload: bytes) -> None:
        samples = array("h", payload)
        assert self.MARKER not in samples, "the module would take it for a mark"
        self._collected.extend([self.MARKER] * len(self._new) * (not self.resamples))
        self._placed += self._new
        self._new.clear()
        self._collected.extend(samples)
        if len(self._collected) >= self._rate_hz * 80 // 1000:
            self._buffer.extend(self._collected)
            del self._collected[:]

    def on_text(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "mark":
                if len(self._new) + len(self._placed) >= 30:
                    self.n_refused_marks += 1
                else:
                    self._new.append(message["data"]["name"])
            case "clearMarks":
                self._cleared += [*self._placed, *self._new]
                self._placed.clear()
                self._new.clear()
            case "killAudio":
                del self._buffer[:]
                for name in [*self._placed, *self._new]:
                    self._soon.append({"type": "mark", "data": {"name": name, "event": "cleared"}})
                self._cleared += self._placed
                self._placed.clear()
                self._new.clear()
            case "disconnect":
                pass
            case other:
                raise AssertionError(f"not jambonz's: {other}")

    def tick(self) -> bytes:
        n = self._rate_hz // 50
        taken = self._buffer[:n]
        del self._buffer[:n]
        if not taken and self._new:
            self._reached(self._new.popleft())
        frame = array("h")
        for sample in taken:
            if sample != self.MARKER:
                frame.append(sample)
            elif self._cleared:
                self._cleared.popleft()
            elif self._placed:
                self._reached(self._placed.popleft())
        return frame.tobytes()

    def _reached(self, name: str) -> None:
        self._soon.append({"type": "mark", "data": {"name": name, "event": "playout"}})


@asynccontextmanager
async def platform(
    kind: type[_PeerT], url: str, *, subprotocol: str | None = None, **headers: str
) -> AsyncIterator[_PeerT]:
    """A platform of this kind, connected to `url`. Its first message is for the test to send."""
    async with connect(
        url,
        open_timeout=5,
        compression=None,
        proxy=None,
        max_queue=None,
        additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
        subprotocols=None if subprotocol is None else [Subprotocol(subprotocol)],
    ) as socket:
        peer = kind(socket)
        try:
            yield peer
        finally:
            await peer.aclose()
