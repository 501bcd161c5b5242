"""Clients of each way in: our own protocol, those of vendors, and HTTP; and scenarios that compare them."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
import urllib.parse
from collections.abc import Callable
from functools import partial
from typing import Any

from harness.peer import Peer
from harness.process import cpu_times_s
from harness.report import percentiles
from harness.turns import SENTENCES

_RATE_HZ = 8_000
_SHORT = "Yes, one moment, please."
_SHORT_S = 1.5
_LONG = " ".join("x" * 9 for _ in range(60))
_TURN_TIMEOUT_S = 30.0
_SILENT_S = 0.1
_SETTLE_S = 0.02
"""The server accepts a connection within this time."""


class DoorPeer(Peer):
    """A client that speaks turns. `on_audio(n_bytes, at_ns)` gets the audio, `on_end(at_ns)` the end of a turn, and
    `on_stopped(at_ns)` the answer to an interruption."""

    path = ""
    bytes_per_s = 8_000
    acknowledges = True
    """Whether an interruption has an answer."""

    def __init__(self) -> None:
        super().__init__(self.path)
        self.on_audio: Callable[[int, int], None] = lambda n_bytes, at_ns: None
        self.on_end: Callable[[int], None] = lambda at_ns: None
        self.on_stopped: Callable[[int], None] = lambda at_ns: None
        self.n_turns = 0

    def say(self, text: str) -> None:
        """Send a whole turn."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Stop the turn."""
        raise NotImplementedError

    def begin(self, text: str) -> _Turn:
        """Send a whole turn. From now on all audio counts as the turn's."""
        turn = _Turn()
        self.on_audio, self.on_end, self.on_stopped = turn.audio, turn.end, turn.stopped
        turn.said_ns = time.monotonic_ns()
        self.say(text)
        return turn

    async def speak(self, text: str) -> _Turn:
        """Send a whole turn and wait for its end."""
        turn = self.begin(text)
        await asyncio.wait_for(turn.ended.wait(), _TURN_TIMEOUT_S)
        return turn

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        """An event that is not audio."""

    def on_message(self, payload: bytes, at_ns: int) -> None:
        self.event(json.loads(payload), at_ns)

    def on_binary(self, payload: bytes, at_ns: int) -> None:
        self.on_audio(len(payload), at_ns)


class NativeDoor(DoorPeer):
    path = "/v1/stream?audio=binary&codec=ulaw"

    def say(self, text: str) -> None:
        self.n_turns += 1
        self.send({"type": "say", "turn": f"t{self.n_turns}", "text": text})

    def interrupt(self) -> None:
        self.send({"type": "clear"})

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        if message["type"] == "done":
            self.on_end(at_ns)
        elif message["type"] == "cleared":
            self.on_stopped(at_ns)


class DeepgramDoor(DoorPeer):
    path = "/v1/speak?encoding=mulaw&sample_rate=8000"

    def say(self, text: str) -> None:
        self.send({"type": "Speak", "text": text})
        self.send({"type": "Flush"})

    def interrupt(self) -> None:
        self.send({"type": "Clear"})

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        if message["type"] == "Flushed":
            self.on_end(at_ns)
        elif message["type"] == "Cleared":
            self.on_stopped(at_ns)


class FluxDoor(DeepgramDoor):
    path = "/v2/speak?encoding=mulaw&sample_rate=8000"

    def interrupt(self) -> None:
        self.send({"type": "Interrupt"})

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        if message["type"] == "SpeechMetadata":
            self.on_end(at_ns)
        elif message["type"] in ("SpeechInterrupted", "Warning"):
            self.on_stopped(at_ns)


class ElevenLabsDoor(DoorPeer):
    path = "/v1/text-to-speech/default/multi-stream-input?output_format=ulaw_8000"

    def say(self, text: str) -> None:
        self.n_turns += 1
        context = f"c{self.n_turns}"
        self.send({"text": " ", "context_id": context})
        self.send({"text": f"{text} ", "context_id": context})
        self.send({"context_id": context, "flush": True})
        self.send({"context_id": context, "close_context": True})

    def interrupt(self) -> None:
        self.send({"context_id": f"c{self.n_turns}", "close_context": True})

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        if message.get("contextId") != f"c{self.n_turns}":
            return
        if message.get("audio"):
            self.on_audio(len(base64.b64decode(message["audio"])), at_ns)
        if message.get("isFinal"):
            self.on_end(at_ns)
            self.on_stopped(at_ns)


class CartesiaDoor(DoorPeer):
    path = "/tts/websocket?cartesia_version=2025-04-16"
    acknowledges = False

    def say(self, text: str) -> None:
        self.n_turns += 1
        self.send(
            {"model_id": "sonic", "voice": {"mode": "id", "id": "default"}, "context_id": f"c{self.n_turns}",
             "output_format": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": _RATE_HZ},
             "transcript": text, "continue": False, "language": "en"}
        )  # fmt: skip

    def interrupt(self) -> None:
        self.send({"context_id": f"c{self.n_turns}", "cancel": True})

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        if message.get("context_id") != f"c{self.n_turns}":
            return
        if message["type"] == "chunk":
            self.on_audio(len(base64.b64decode(message["data"])), at_ns)
        elif message["type"] == "done":
            self.on_end(at_ns)


class DashScopeDoor(DoorPeer):
    path = "/api-ws/v1/inference"
    bytes_per_s = 16_000

    def say(self, text: str) -> None:
        self.n_turns += 1
        self._action("run-task", {}, model="cosyvoice-v2", task_group="audio", task="tts",
                     function="SpeechSynthesizer",
                     parameters={"voice": "default", "format": "pcm", "sample_rate": _RATE_HZ})  # fmt: skip
        self._action("continue-task", {"text": text})
        self._action("finish-task", {})

    def interrupt(self) -> None:
        self._action("finish-task", {"directive": "cancel"})

    def _action(self, action: str, content: dict[str, Any], **payload: Any) -> None:
        header = {"action": action, "task_id": f"{self.n_turns:032d}", "streaming": "duplex"}
        self.send({"header": header, "payload": {**payload, "input": content}})

    def event(self, message: dict[str, Any], at_ns: int) -> None:
        header = message["header"]
        if header["task_id"] == f"{self.n_turns:032d}" and header["event"] == "task-finished":
            self.on_end(at_ns)
            self.on_stopped(at_ns)


class JambonzDoor(DoorPeer):
    """jambonz gets nothing at the end of a turn, so a turn has ended when no audio came for `_SILENT_S`."""

    path = "/jambonz/tts?sampleRate=8000"
    bytes_per_s = 16_000
    acknowledges = False

    def __init__(self) -> None:
        super().__init__()
        self._silent: asyncio.TimerHandle | None = None

    def say(self, text: str) -> None:
        self.send({"type": "stream", "text": text})
        self.send({"type": "flush"})

    def interrupt(self) -> None:
        self.send({"type": "clear"})

    def on_binary(self, payload: bytes, at_ns: int) -> None:
        super().on_binary(payload, at_ns)
        if self._silent is not None:
            self._silent.cancel()
        self._silent = asyncio.get_running_loop().call_later(_SILENT_S, self.on_end, at_ns)


DOORS: dict[str, type[DoorPeer]] = {
    "native": NativeDoor,
    "deepgram": DeepgramDoor,
    "flux": FluxDoor,
    "elevenlabs": ElevenLabsDoor,
    "cartesia": CartesiaDoor,
    "dashscope": DashScopeDoor,
    "jambonz": JambonzDoor,
}
HTTP_DOORS = ("http", "openai")


class _Turn:
    """What came of a turn so far."""

    def __init__(self) -> None:
        self.said_ns = self.first_ns = self.last_ns = 0
        self.n_bytes = self.n_stale_bytes = 0
        self.stop_ns = self.stopped_ns = 0
        self.ended = asyncio.Event()
        self.first = asyncio.Event()

    def audio(self, n_bytes: int, at_ns: int) -> None:
        if self.stopped_ns:
            self.n_stale_bytes += n_bytes
        if not self.first_ns:
            self.first_ns = at_ns
            self.first.set()
        self.n_bytes += n_bytes
        self.last_ns = at_ns

    def end(self, at_ns: int) -> None:
        self.ended.set()

    def stopped(self, at_ns: int) -> None:
        if self.stop_ns:
            self.stopped_ns = at_ns
            self.ended.set()


async def first_audio(spec: dict[str, Any]) -> dict[str, Any]:
    """Each client says a short text, hears it to its end, and after a pause of up to `pause_s` says the next."""
    rng, loop = random.Random(3), asyncio.get_running_loop()
    end_s = loop.time() + spec["warm_s"] + spec["seconds"]
    begin_ns = time.monotonic_ns() + round(spec["warm_s"] * 1e9)
    seen_ms: list[float] = []

    async def client() -> None:
        await asyncio.sleep(rng.random() * (_SHORT_S + spec["pause_s"]))
        peer = HttpDoor(spec["door"]) if spec["door"] in HTTP_DOORS else DOORS[spec["door"]]()
        await peer.connect(spec["port"])
        while loop.time() < end_s:
            turn = await peer.speak(_SHORT)
            if turn.said_ns >= begin_ns:
                seen_ms.append((turn.first_ns - turn.said_ns) / 1e6)
            heard_s = turn.first_ns / 1e9 + turn.n_bytes / peer.bytes_per_s
            await asyncio.sleep(max(0.0, heard_s - loop.time()) + rng.random() * spec["pause_s"])
        peer.hang_up()

    await asyncio.gather(*(client() for _ in range(spec["clients"])))
    return {"door": spec["door"], "seen_ms": percentiles(seen_ms)}


class HttpDoor:
    """A client that requests speech. Each request has a connection of its own, which is there before the text is."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._port = 0
        self.bytes_per_s = 48_000 if door == "openai" else 16_000

    async def connect(self, port: int) -> None:
        self._port = port

    async def speak(self, text: str) -> _Turn:
        response = _Response()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: response, "127.0.0.1", self._port)
        await asyncio.sleep(_SETTLE_S)
        response.turn.said_ns = time.monotonic_ns()
        transport.write(_request(self._door, text))
        await asyncio.wait_for(response.ended, _TURN_TIMEOUT_S)
        transport.close()
        return response.turn

    def hang_up(self) -> None:
        """No connection is open between two requests."""


class _Response(asyncio.Protocol):
    """A chunked response. Like the other doors it notes when the bytes came, not when a task got them."""

    def __init__(self) -> None:
        self.turn = _Turn()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._is_body = False
        self._n_left = 0

    def data_received(self, data: bytes) -> None:
        at_ns = time.monotonic_ns()
        self._rest += data
        if not self._is_body:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                return
            self._is_body = True
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                self.ended.set_exception(RuntimeError(head[:200].decode(errors="replace")))
                return
            self._rest = rest
        while self._rest:
            if not self._n_left:
                size, found, rest = self._rest.partition(b"\r\n")
                if not found:
                    return
                if not int(size, 16):
                    self.ended.set_result(None)
                    return
                self._n_left, self._rest = int(size, 16) + 2, rest
            n = min(len(self._rest), self._n_left)
            if n_audio := max(0, min(n, self._n_left - 2)):
                self.turn.audio(n_audio, at_ns)
            self._rest, self._n_left = self._rest[n:], self._n_left - n

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("closed in the middle of the response"))


def _request(door: str, text: str, voice: str = "", rate_hz: int = _RATE_HZ) -> bytes:
    if door == "http":
        query = {"text": text, "format": "pcm", "sample_rate": rate_hz, **({"voice": voice} if voice else {})}
        return f"GET /tts/stream?{urllib.parse.urlencode(query)} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    body = json.dumps({"model": "tts-1", "voice": voice or "alloy", "input": text, "response_format": "pcm"}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def cost(spec: dict[str, Any]) -> dict[str, Any]:
    """Clients say one sentence after the other, each when the last one would have been heard. The audio is counted as
    it comes, so that a door that sends ahead is judged by what it did in the window."""
    rng, loop = random.Random(4), asyncio.get_running_loop()
    end_s = loop.time() + spec["warm_s"] + spec["seconds"] + 1
    n_bytes = n_failed = 0

    async def client(at: int) -> None:
        nonlocal n_failed
        await asyncio.sleep(rng.random() * 2)
        peer = DOORS[spec["door"]]()
        await peer.connect(spec["port"])
        n = at
        while loop.time() < end_s:
            turn = peer.begin(SENTENCES[n % len(SENTENCES)])
            peer.on_audio = partial(count, turn)
            n += 1
            try:
                async with asyncio.timeout(max(0.0, end_s - loop.time())):
                    await turn.ended.wait()
            except TimeoutError:
                break  # the window is over
            n_failed += not turn.n_bytes
            heard_s = turn.first_ns / 1e9 + turn.n_bytes / peer.bytes_per_s
            await asyncio.sleep(max(0.0, heard_s - loop.time()))
        peer.hang_up()

    def count(turn: _Turn, size: int, at_ns: int) -> None:
        nonlocal n_bytes
        n_bytes += size
        turn.audio(size, at_ns)

    async def watch() -> tuple[float, int]:
        await asyncio.sleep(spec["warm_s"])
        cpu_s, n_before = cpu_times_s(spec["server_pid"])[0], n_bytes
        await asyncio.sleep(spec["seconds"])
        return cpu_times_s(spec["server_pid"])[0] - cpu_s, n_bytes - n_before

    (cpu_s, n_heard), *_ = await asyncio.gather(watch(), *(client(at) for at in range(spec["clients"])))
    audio_s = n_heard / DOORS[spec["door"]].bytes_per_s
    return {
        "door": spec["door"],
        "audio_s": round(audio_s, 1),
        "server_cpu_ms_per_audio_s": round(cpu_s * 1000 / audio_s, 3) if audio_s else None,
        "failed": n_failed,
    }


async def interruption(spec: dict[str, Any]) -> dict[str, Any]:
    """Clients interrupt a long turn in its middle: from the message to the last audio, and to the answer."""
    rng, loop = random.Random(5), asyncio.get_running_loop()
    begin_s = loop.time() + spec["warm_s"]
    end_s = begin_s + spec["seconds"]
    last_ms: list[float] = []
    told_ms: list[float] = []
    n_stale_bytes = n_unanswered = 0

    async def client() -> None:
        nonlocal n_stale_bytes, n_unanswered
        await asyncio.sleep(rng.random() * spec["period_s"])
        peer = DOORS[spec["door"]]()
        await peer.connect(spec["port"])
        while loop.time() < end_s:
            turn = peer.begin(_LONG)
            await asyncio.wait_for(turn.first.wait(), _TURN_TIMEOUT_S)
            await asyncio.sleep(spec["period_s"] * (0.5 + rng.random()))
            turn.stop_ns = time.monotonic_ns()
            peer.interrupt()
            await asyncio.sleep(0.3)
            if turn.stop_ns < begin_s * 1e9:
                continue  # code and caches are still cold
            last_ms.append(max(0.0, (turn.last_ns - turn.stop_ns) / 1e6))
            if turn.stopped_ns:
                told_ms.append((turn.stopped_ns - turn.stop_ns) / 1e6)
                n_stale_bytes += turn.n_stale_bytes
            else:
                n_unanswered += peer.acknowledges
        peer.hang_up()

    await asyncio.gather(*(client() for _ in range(spec["clients"])))
    return {
        "door": spec["door"],
        "last_audio_ms": percentiles(last_ms),
        "answer_ms": percentiles(told_ms),
        "stale_bytes": n_stale_bytes,
        "unanswered": n_unanswered,
    }


async def http_streams(spec: dict[str, Any]) -> dict[str, Any]:
    """`clients` HTTP requests at once, each for a sentence of its own, read to their ends."""
    begun_s = time.monotonic()

    async def one(at: int) -> tuple[int, int, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", spec["port"], limit=1 << 20)
        writer.write(_request("http", f"{at}: {SENTENCES[at % len(SENTENCES)]}", spec["voice"], 24_000))
        head = await reader.readuntil(b"\r\n\r\n")
        status, n_bytes = int(head.split()[1]), 0
        first_s = time.monotonic() - begun_s
        while (size := int(await reader.readline(), 16)) > 0:
            n_bytes += len(await reader.readexactly(size + 2)) - 2
        writer.close()
        return status, n_bytes, first_s

    answers = await asyncio.gather(*(one(at) for at in range(spec["clients"])), return_exceptions=True)
    whole = [answer for answer in answers if isinstance(answer, tuple) and answer[0] == 200]
    lengths = sorted(n_bytes for _, n_bytes, _ in whole)
    return {
        "streams": spec["clients"],
        "complete": len(whole),
        "shortest_s": round(lengths[0] / 48_000, 2) if lengths else None,
        "longest_s": round(lengths[-1] / 48_000, 2) if lengths else None,
        "audio_s": round(sum(lengths) / 48_000, 1),
        "wall_s": round(time.monotonic() - begun_s, 1),
        "first_byte_s": percentiles([first_s for _, _, first_s in whole]),
        "failed": sorted({repr(answer)[:120] for answer in answers if not isinstance(answer, tuple)}),
    }
