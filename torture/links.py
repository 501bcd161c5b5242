"""The client's ends of sockets, on the benchmarks' light WebSocket client, and the ways in which they can die."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from harness.peer import Peer, frame

from torture import violations as v
from torture.oracle import NativeOracle
from torture.surroundings import PING_S, Surroundings
from torture.violations import Stops

MS = 1_000_000
_BINARY = 2
_NO_PONG = "read from the socket: a ping was not answered"
"""How the server's reason for such a close begins."""
_VOICE_TIMES = 4
"""The detector of voices needs more of a voice than its stand-in on the virtual clock."""


class Link(Peer):
    """A WebSocket that can stop reading, be cut, and be half closed. An error in `take` is noted and ends nothing."""

    def __init__(self, path: str, around: Surroundings) -> None:
        super().__init__(path)
        self._around = around
        self.torn = False
        """Whether this end broke the connection, so that the rest of the call is not owed to it."""
        self._is_half_closed = False

    def write(self, framed: bytes) -> None:
        if not self._is_half_closed:
            super().write(framed)

    def send_raw(self, payload: bytes, *, is_text: bool) -> None:
        self.write(frame(payload) if is_text else frame(payload, _BINARY))

    async def stop_reading(self, ms: int) -> None:
        """Read nothing for some time. What comes late by that is not the server's fault."""
        begin_ns = time.monotonic_ns()
        with suppress(RuntimeError):
            self.transport.pause_reading()
        await asyncio.sleep(ms / 1000)
        if not self.transport.is_closing():
            with suppress(RuntimeError):
                self.transport.resume_reading()
        self.own_stops.add(begin_ns, time.monotonic_ns() + 5 * MS)

    @property
    def own_stops(self) -> Stops:
        return self._around.call_stops

    def reset(self) -> None:
        """TCP RST."""
        self.torn = True
        own = self.transport.get_extra_info("socket")
        if own is not None and not self.transport.is_closing():
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def half_close(self) -> None:
        """TCP FIN without a close frame."""
        self.torn = self._is_half_closed = True
        if not self.transport.is_closing():
            self.transport.write_eof()

    def leave(self) -> None:
        """The close frame of a client that has finished: it does not wait for what is still due."""
        self.torn = True
        self.hang_up()

    def missed_a_ping(self) -> bool:
        """Whether the server closed because a ping was not answered in time, and stops explain that: they kept this
        end, or the server itself, from running for most of that time."""
        if not (self.close_reason or "").startswith(_NO_PONG):
            return False
        now_ns = time.monotonic_ns()
        return self.own_stops.within(now_ns - 2 * PING_S * 1000 * MS, now_ns) > PING_S * 1000 * MS / 2

    async def expect_close(self, code: int | None, within_s: float, *others: int) -> str:
        """The server has to close with this code; None: it has to keep the connection. It may close with one of
        `others` too. A connection that breaks is only right if a process was killed. Returns what is wrong."""
        is_gone = await self.gone(within_s)
        tally = self._around.tally
        tally.n_checked[v.CLOSE] += 1
        if is_gone and self.close_code is not None and self.close_code in (code, *others):
            return ""
        self.torn = True
        if self._around.may_break:
            tally.counts["calls lost with a process"] += 1
        elif self.missed_a_ping():
            tally.counts["calls that missed a ping"] += 1
        else:
            why = f" ({self.close_reason})" if self.close_reason else ""
            how = f"closed with {self.close_code}{why}" if is_gone else f"not closed within {within_s:.0f} s"
            return f"{how}, expected {code or 'an open call'}"
        return ""

    async def gone(self, within_s: float) -> bool:
        """Whether the connection is closed by then. Stops are not counted."""
        return await self._in_time(self.closed, within_s)

    async def connect_in_time(self, port: int, within_s: float) -> None:
        """Connect within this time. Stops are not counted. Raises OSError."""
        opening = asyncio.ensure_future(self.connect(port))
        if not await self._in_time(opening, within_s):
            opening.cancel()
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        opening.result()

    async def _in_time(self, event: asyncio.Future[None], within_s: float) -> bool:
        begin_ns, left_s = time.monotonic_ns(), within_s
        while not event.done() and left_s > 0:
            await asyncio.wait((event,), timeout=left_s)
            now_ns = time.monotonic_ns()
            left_s = within_s - (now_ns - begin_ns - self.own_stops.within(begin_ns, now_ns)) / 1e9
        return event.done()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def on_message(self, payload: bytes, at_ns: int) -> None:
        try:
            self.take(json.loads(payload), at_ns)
        except Exception as error:
            self._around.crashes.append(f"{type(self).__name__}: {error!r} at {payload[:200]!r}")

    def on_binary(self, payload: bytes, at_ns: int) -> None:
        try:
            self.take_audio(payload, at_ns)
        except Exception as error:
            self._around.crashes.append(f"{type(self).__name__}: {error!r} at {len(payload)} bytes of audio")

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        raise NotImplementedError

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        raise NotImplementedError


class TelephoneSide(Protocol):
    """What a script does at the other leg of its call."""

    async def caller_speaks(self, ms: int) -> None: ...
    def telephone_errs(self, n: int) -> None: ...
    def missed_a_ping(self) -> bool: ...


class BotLink(Link):
    """A bot on `/v1/stream`."""

    def __init__(self, path: str, around: Surroundings, oracle: NativeOracle) -> None:
        super().__init__(path, around)
        self.oracle = oracle
        self._needs_media = "audio=none" in path
        self.telephone: TelephoneSide | None = None
        """The other leg of the call."""
        self._speaking: set[asyncio.Task[None]] = set()
        self.was_taken = False
        """Whether the server refused the bot, because the call of this name has one."""
        self._is_answered = asyncio.Event()
        self._has_media = asyncio.Event()

    async def caller_speaks(self, ms: int) -> None:
        """The caller speaks while the script goes on."""
        if self.telephone is not None and not self._speaking:
            speaking = asyncio.create_task(self.telephone.caller_speaks(_VOICE_TIMES * ms))
            self._speaking.add(speaking)
            speaking.add_done_callback(self._speaking.discard)

    def telephone_errs(self, n: int) -> None:
        if self.telephone is not None:
            self.telephone.telephone_errs(n)

    def missed_a_ping(self) -> bool:
        """The same of either leg: a call ends with its media leg."""
        return super().missed_a_ping() or (self.telephone is not None and self.telephone.missed_a_ping())

    @property
    def awaits_media(self) -> bool:
        """Whether the bot's call needs a media leg, and none has come as far as the bot knows."""
        return self._needs_media and not self._has_media.is_set()

    async def gets_media(self, media_closed: asyncio.Future[None], within_s: float) -> bool:
        """Whether the server connects the bot with its media leg. False if it refuses that leg."""
        waiting = asyncio.ensure_future(self._has_media.wait())
        await asyncio.wait((waiting, media_closed), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self._has_media.is_set()

    async def is_taken(self, within_s: float) -> bool:
        """Whether the server's first answer is that the call of this name has a bot already."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_answered.wait(), within_s)
        return self.was_taken

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_answered.set()
        super().connection_lost(exc)

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        if not self._is_answered.is_set():
            self._is_answered.set()
            self.was_taken = message.get("code") == "call_taken"
        if self.was_taken:
            return
        if self.close_code is not None:
            self.oracle.closed()
        if message.get("type") == "call":
            self._has_media.set()
        if message.get("event") == "media":
            self.oracle.frame(base64.b64decode(message["media"]["payload"]), at_ns)
        else:
            self.oracle.event(message, at_ns)

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        self.oracle.frame(payload, at_ns)


class AudioSocketLink(asyncio.Protocol):
    """Asterisk's end of an AudioSocket call: it speaks silence every 20 ms and gets audio."""

    SILENCE = b"\x10\x01\x40" + bytes(320)

    def __init__(self, call: bytes, on_audio: Callable[[bytes, int], None]) -> None:
        self._call = call
        self._on_audio = on_audio
        self._rest = b""
        self._ticker: asyncio.TimerHandle | None = None
        self.transport: Any = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_ns = 0
        self.wrong: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(b"\x01\x00\x10" + self._call)
        self._tick()

    def _tick(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self.SILENCE)
            self._ticker = asyncio.get_running_loop().call_later(0.02, self._tick)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self._rest += data
        while len(self._rest) >= 3:
            n = int.from_bytes(self._rest[1:3], "big")
            if len(self._rest) < 3 + n:
                return
            kind, payload, self._rest = self._rest[0], self._rest[3 : 3 + n], self._rest[3 + n :]
            if kind == 0x10:
                self.last_ns = now_ns
                self._on_audio(payload, now_ns)
            elif kind != 0:
                self.wrong.append(f"a frame of kind {kind}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(bytes(3))
            self.transport.close()

    def reset(self) -> None:
        self.transport.abort()
