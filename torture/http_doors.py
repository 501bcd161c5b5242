"""Clients that ask for speech by HTTP: a whole text in a request, and the speech as its answer.

Each text has a letter of its own, so its audio must have that tone and no other. A step of a history is a request: one
that is read to its end, one that the client cuts off, or one that the server has to refuse.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torture import violations as v
from torture.histories import CallHistory, Step
from torture.letters import LETTERS, MISSING_MS, MS_PER_LETTER, FrameReader, sentence
from torture.surroundings import CONNECT_S, Surroundings
from torture.violations import Violation

_ANSWER_S = 25.0
_RESTART_ANSWER_S = 45.0
_SLICE_MS = 20


@dataclass(frozen=True)
class HttpForm:
    """How a vendor's client asks: the path, the body for a text, and the form of the audio."""

    path: str
    body: Callable[[str], dict[str, Any]]
    codec: str = "ulaw"
    rate_hz: int = 8000

    @property
    def bytes_per_ms(self) -> int:
        return self.rate_hz * (2 if self.codec == "pcm" else 1) // 1000


FORMS = {
    "openai": HttpForm(
        "/v1/audio/speech",
        lambda text: {"model": "tts-1", "input": text, "voice": "alloy", "response_format": "pcm"}, "pcm", 24_000,
    ),
    "tts_stream": HttpForm("/tts/stream", lambda text: {"text": text, "format": "ulaw", "sample_rate": 8000}),
    "elevenlabs_http": HttpForm(
        "/v1/text-to-speech/default/stream?output_format=ulaw_8000", lambda text: {"text": text}
    ),
    "deepgram_http": HttpForm("/v1/speak?encoding=mulaw&sample_rate=8000", lambda text: {"text": text}),
}  # fmt: skip


class HttpClient:
    """A client's connection, which is opened again when it was cut off. It sends a text, and reads the speech."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: object) -> tuple[int, bytes]:
        """(status, body of an error). The body of a 200 is read by `chunk`."""
        if self._writer is None or self._reader.at_eof():
            self.disconnect()
            # Not `wait_for`, which loses a cancellation that comes together with the connection (Python 3.11).
            try:
                async with asyncio.timeout(CONNECT_S):
                    self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._around.port)
            except TimeoutError as error:
                raise TimeoutError(f"no connection within {CONNECT_S:g} s") from error
        payload = json.dumps(body).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: torture\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        reader = self._reader
        head = (await self._in_time(lambda: reader.readuntil(b"\r\n\r\n"))).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if status == 200:
            return status, b""
        length = next((line[15:] for line in head.split("\r\n") if line.startswith("content-length:")), "0")
        told = await self._in_time(lambda: reader.readexactly(int(length)))
        if "\r\nconnection: close" in head:
            self.disconnect()
        return status, told

    async def chunk(self) -> bytes:
        """The next piece of the answer; empty at its end."""
        reader = self._reader
        size = int(await self._in_time(lambda: reader.readuntil(b"\r\n")), 16)
        return (await self._in_time(lambda: reader.readexactly(size + 2)))[:-2]

    async def _in_time(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Read within the time for an answer. Stops are not counted. Raises TimeoutError. A read that is given up takes
        nothing from the stream, so it can be begun again."""
        within_s = left_s = _RESTART_ANSWER_S if self._around.may_fail else _ANSWER_S
        begin_ns = time.monotonic_ns()
        while True:
            try:
                async with asyncio.timeout(left_s):
                    return await read()
            except TimeoutError as error:
                now_ns = time.monotonic_ns()
                left_s = within_s - (now_ns - begin_ns - self._around.call_stops.within(begin_ns, now_ns)) / 1e9
                if left_s <= 0:
                    raise TimeoutError(f"no answer within {within_s:g} s") from error

    def disconnect(self, *, reset: bool = False) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        own = writer.get_extra_info("socket")
        if reset and own is not None and not writer.is_closing():
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


class HttpCall:
    """A client on one connection, which asks again and again."""

    def __init__(self, call: CallHistory, number: int, around: Surroundings) -> None:
        self._form = FORMS[call.door]
        self._client = HttpClient(around)
        self._call = call
        self._number = number
        self._around = around
        self._choose = random.Random(f"{call.seed} words")
        self._frames = FrameReader(self._form.codec, self._form.rate_hz)

    async def run(self) -> None:
        is_torn = False
        try:
            for step in self._call.steps:
                if step.after_ms:
                    await asyncio.sleep(step.after_ms / 1000)
                if not await self._step(step):
                    is_torn = True
                    break
        finally:
            self._client.disconnect(reset=self._call.end == "rst")
            self._around.tally.counts["calls"] += 1
            self._around.tally.counts["calls torn"] += is_torn

    async def _step(self, step: Step) -> bool:
        """False if the server has broken the connection, and may."""
        match step.do:
            case "say" | "text" | "say_storm":
                return await self._whole(max(1, step.n), 0)
            case "stuck":
                return await self._whole(4, 40 * step.n)
            case "clear" | "clear_turn" | "clear_storm":
                return await self._cut(step.n)
            case "mark" | "ping":
                return await self._refused(step.n)
        return True

    async def _whole(self, n_words: int, pause_ms: int) -> bool:
        """A request whose answer is read to its end, after `pause_ms` without reading."""
        letter = self._choose.choice(LETTERS)
        text = sentence(self._choose, letter, n_words)
        tally = self._around.tally
        tally.counts["turns"] += 1
        tally.n_checked[v.ONE_END] += 1
        try:
            status, told = await self._client.ask(self._form.path, self._form.body(text))
            if status != 200:
                return self._error(status, told)
            await asyncio.sleep(pause_ms / 1000)
            audio = bytearray()
            while piece := await self._client.chunk():
                audio += piece
        except (OSError, asyncio.IncompleteReadError) as error:
            self._client.disconnect()
            return self._broken(f"the answer was cut off: {error!r}")
        self._judge(bytes(audio), letter, len(text))
        return True

    async def _cut(self, n_chunks: int) -> bool:
        """A request that the client cuts off after some pieces of its answer."""
        letter = self._choose.choice(LETTERS)
        text = " ".join(sentence(self._choose, letter, 6) for _ in range(8))
        self._around.tally.counts["clears"] += 1
        try:
            status, told = await self._client.ask(self._form.path, self._form.body(text))
            if status != 200:
                return self._error(status, told)
            for _ in range(n_chunks - 1):
                if not await self._client.chunk():
                    break
        except (OSError, asyncio.IncompleteReadError) as error:
            return self._broken(f"the answer was cut off: {error!r}")
        finally:
            self._client.disconnect(reset=n_chunks % 2 == 0)
        return True

    async def _refused(self, n: int) -> bool:
        """A request that is answered by one error, and no speech."""
        body: object = [{"input": 7, "text": 7}, {}, [], self._form.body("")][n % 4]
        self._around.tally.n_checked[v.ANSWERS] += 1
        try:
            status, told = await self._client.ask(self._form.path, body)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._client.disconnect()
            return self._broken(f"no answer to a bad request: {error!r}")
        if status in (400, 422) and told:
            return True
        self._client.disconnect()
        if status >= 500:
            return self._error(status, told)
        self._wrong(v.ANSWERS, f"a bad request {json.dumps(body)[:60]} was answered by {status}: {told[:100]!r}")
        return True

    def _judge(self, audio: bytes, letter: str, n_chars: int) -> None:
        tally = self._around.tally
        n_ms = len(audio) / self._form.bytes_per_ms
        tally.n_checked[v.DONE] += 1
        if n_ms < n_chars * MS_PER_LETTER - MISSING_MS:
            self._wrong(v.DONE, f"an answer of {n_ms:.0f} ms for {n_chars} characters of {MS_PER_LETTER:.0f} ms")
        n_slice = _SLICE_MS * self._form.bytes_per_ms
        for at in range(0, len(audio) - n_slice + 1, n_slice):
            tally.n_checked[v.SILENCE] += 1
            heard = self._frames.letter(audio[at : at + n_slice])
            if heard not in ("", letter):
                self._wrong(v.SILENCE, f"audio of {heard} in the answer to a text of {letter}")
                return

    # -------------------------------------------------------------------- verdicts

    def _error(self, status: int, told: bytes) -> bool:
        around = self._around
        around.tally.counts[f"http {status}"] += 1
        self._client.disconnect()
        if (status == 503 and around.may_refuse) or (status >= 500 and around.may_fail):
            return True
        self._wrong(v.ONE_END, f"{self._call.door} was answered by {status}: {told[:120]!r}")
        return True

    def _broken(self, what: str) -> bool:
        """The connection is broken. Whether the client goes on."""
        around = self._around
        if around.may_break or around.may_refuse or around.may_fail:
            around.tally.counts["calls lost with a process"] += around.may_break
            return False
        self._wrong(v.ONE_END, f"{self._call.door}: {what}")
        return False

    def _wrong(self, check: str, what: str) -> None:
        self._around.tally.violations.append(Violation(check, what, self._number))
