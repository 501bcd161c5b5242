"""The delay that the bridge adds: numbered frames from a stand-in server to a stand-in Asterisk, and back.

The bridge is the real one and uses real sockets. A numbered frame of speech is sent only while the bridge holds no
other speech. So the delay is the bridge's own work and the wait for its next 20 ms. The way back has no schedule.
Both stand-ins are one loop of this process. The kernel's timestamps say when bytes came.
"""

from __future__ import annotations

import gc
import random
import selectors
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from harness import arrivals, report
from harness.pbx_peers import PeerFailed, Standstills, free_port
from harness.pbx_setup import bridge_command, program
from harness.process import place, placed_here
from telephony_tts.bench.measures import NS_PER_MS

LIMIT_MS = 25.0
FRAME_NS = 20_000_000
_FRAME_BYTES = 320
"""20 ms at 8 kHz."""
_SPEECH_EVERY_NS = (60_000_000, 100_000_000)
"""Between two numbered frames, at random; longer than the bridge needs to become idle again."""
_UUID, _AUDIO = b"\x01\x00\x10", b"\x10\x01\x40"
_HEADER_BYTES = 3
_UP_WITHIN_S = 10.0
_LAST_WITHIN_S = 1.0
_PROGRESS_S = 10.0
_SO_TIMESTAMPNS = 35  # Linux on amd64; the socket module has no name for it
_TIMESPEC = struct.Struct("@qq")

OnBytes = Callable[[bytes, int], None]
"""(the bytes that came, the time in ns); no bytes at the end."""


def measure(
    n_frames: int, n_calls: int, cores: tuple[int | None, int | None], priority: int | str, machine: Standstills
) -> dict[str, Any]:
    """Send at least `n_frames` frames each way in `n_calls` simultaneous calls. `cores` are those of the bridge and of
    this process. Raises PeerFailed."""
    bridge_core, own_core = cores
    port, http_port = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    with ExitStack() as stack:
        loop = stack.enter_context(_loop())
        command = bridge_command(loop.server_url, port, http_port)
        bridge = stack.enter_context(program("bridge", command, http_port))
        place(bridge.pid, bridge_core, priority)
        stack.enter_context(placed_here(own_core, priority))
        calls = loop.call(port, n_calls)
        print(f"  {n_calls} calls are up", flush=True)
        stack.enter_context(_no_collection())
        begun_ns = time.monotonic_ns()
        loop.exchange(n_frames)
        ended_ns = time.monotonic_ns()
        loop.hang_up()
    return {
        "calls": n_calls,
        "to_the_phone_ms": summary([one for call in calls for one in call.spoken.values()], machine),
        "to_the_server_ms": summary([one for call in calls for one in call.heard.values()], machine),
        "unknown_frames": sum(call.n_unknown for call in calls),
        "standstills": arrivals.standstills(machine, begun_ns, ended_ns),
    }


def summary(frames: list[tuple[int, int | None]], machine: Standstills) -> dict[str, Any]:
    """The figures of frames: (when it was sent, when it came or None)."""
    came = [(sent_ns, came_ns) for sent_ns, came_ns in frames if came_ns is not None]
    over = [times for times in came if times[1] - times[0] > LIMIT_MS * NS_PER_MS]
    return {
        **report.percentiles([(came_ns - sent_ns) / 1e6 for sent_ns, came_ns in came]),
        "lost": len(frames) - len(came),
        "over_25_ms": {"n": len(over), **arrivals.due_to_standstills(over, LIMIT_MS, machine)},
    }


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: it would look like a late frame."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Call:
    """Both ends of a call. `spoken` and `heard` have (when sent, when it came or None) by the number of a frame."""

    def __init__(self, name: uuid.UUID, asterisk: socket.socket, rng: random.Random) -> None:
        self.name = str(name)
        self.asterisk = asterisk
        self.server: _ServerEnd | None = None
        self.spoken: dict[int, tuple[int, int | None]] = {}
        self.heard: dict[int, tuple[int, int | None]] = {}
        self.n_unknown = 0
        self._rng = rng
        self._held = b""
        self._speak_ns = self._listen_ns = 0

    def begin(self, now_ns: int) -> None:
        self._listen_ns = now_ns + self._rng.randrange(FRAME_NS)
        self._speak_ns = now_ns + self._rng.randrange(*_SPEECH_EVERY_NS)

    def due_ns(self) -> int:
        return min(self._speak_ns, self._listen_ns)

    def act(self, now_ns: int, is_speaking: bool) -> None:
        """Send what is due: the caller's audio every 20 ms, and from time to time a frame of speech."""
        if self._listen_ns <= now_ns:
            self._listen_ns += FRAME_NS
            frame = _numbered(len(self.heard))
            if is_speaking:
                self.heard[len(self.heard)] = (time.monotonic_ns(), None)
            self.asterisk.sendall(_AUDIO + (frame if is_speaking else bytes(_FRAME_BYTES)))
        if self._speak_ns <= now_ns:
            self._speak_ns = now_ns + self._rng.randrange(*_SPEECH_EVERY_NS)
            if is_speaking and self.server is not None:
                frame = _numbered(len(self.spoken))
                self.spoken[len(self.spoken)] = (time.monotonic_ns(), None)
                self.server.send(frame)

    def on_asterisk(self, data: bytes, came_ns: int) -> None:
        if not data:
            raise PeerFailed(f"the bridge has ended call {self.name}")
        self._held += data
        while len(self._held) >= _HEADER_BYTES:
            n = _HEADER_BYTES + int.from_bytes(self._held[1:_HEADER_BYTES], "big")
            if len(self._held) < n:
                break
            self._came(self.spoken, self._held[_HEADER_BYTES:n], came_ns)
            self._held = self._held[n:]

    def on_server(self, payload: bytes, came_ns: int) -> None:
        """The caller's audio: as many frames as the bridge has read at once."""
        for at in range(0, len(payload), _FRAME_BYTES):
            self._came(self.heard, payload[at : at + _FRAME_BYTES], came_ns)

    def _came(self, sent: dict[int, tuple[int, int | None]], frame: bytes, came_ns: int) -> None:
        if not any(frame):
            return
        number = _number(frame)
        if number is None or number not in sent or sent[number][1] is not None:
            self.n_unknown += 1
        else:
            sent[number] = (sent[number][0], came_ns)


def _numbered(number: int) -> bytes:
    """A frame that is not silence and has its number in it."""
    return struct.pack("<I", number) + b"\x01\x02" * (_FRAME_BYTES // 2 - 2)


def _number(frame: bytes) -> int | None:
    """The number in a frame; None for a frame that was changed on its way."""
    number = int(struct.unpack_from("<I", frame)[0])
    return number if frame == _numbered(number) else None


class _ServerEnd:
    """The server's end of a bridge's connection: what the measurement needs of docs/protocol/native-media.md §9.4."""

    def __init__(self, connection: socket.socket, on_start: Callable[[str, _ServerEnd], _Call]) -> None:
        self._socket = connection
        self._protocol = ServerProtocol()
        self._on_start = on_start
        self._call: _Call | None = None

    def send(self, frame: bytes) -> None:
        self._protocol.send_binary(frame)
        self._flush()

    def on_bytes(self, data: bytes, came_ns: int) -> None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._protocol.send_response(self._protocol.accept(event))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT and self._call is None:
                self._call = self._on_start(bytes(event.data).decode(), self)
            elif isinstance(event, Frame) and event.opcode is Opcode.BINARY and self._call is not None:
                self._call.on_server(bytes(event.data), came_ns)
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                with suppress(OSError):
                    self._socket.sendall(data)
        if self._protocol.close_expected():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)


class _Loop:
    """The loop over the sockets of all calls."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self.calls: list[_Call] = []

    @property
    def server_url(self) -> str:
        return f"ws://127.0.0.1:{self._listener.getsockname()[1]}/media/native"

    def call(self, port: int, n_calls: int) -> list[_Call]:
        """Start calls and wait until the bridge has connected each of them to the server."""
        rng = random.Random(11)
        for _ in range(n_calls):
            asterisk = self._stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            name = uuid.UUID(int=rng.getrandbits(128), version=4)
            call = _Call(name, asterisk, rng)
            asterisk.sendall(_UUID + name.bytes)
            self._watch(asterisk, call.on_asterisk)
            self.calls.append(call)
        now_ns = time.monotonic_ns()
        for call in self.calls:
            call.begin(now_ns)
        end_ns = now_ns + int(_UP_WITHIN_S * 1e9)
        while not all(call.server for call in self.calls):
            if time.monotonic_ns() > end_ns:
                raise PeerFailed(f"the bridge has not connected all calls to the server within {_UP_WITHIN_S:g} s")
            self._turn(False)
        self._go_on(0.5, lambda: False, False)
        return self.calls

    def exchange(self, n_frames: int) -> None:
        """Send until `n_frames` have been sent each way, then wait for the last of them."""

        def n_sent() -> int:
            return min(sum(len(call.spoken) for call in self.calls), sum(len(call.heard) for call in self.calls))

        while n_sent() < n_frames:
            self._go_on(_PROGRESS_S, lambda: n_sent() >= n_frames, True)
            print(f"  {min(n_sent(), n_frames)} of {n_frames} frames", flush=True)
        self._go_on(_LAST_WITHIN_S, lambda: False, False)

    def hang_up(self) -> None:
        """Close the sockets as Asterisk does, and wait until the bridge has left the server."""
        for call in self.calls:
            self._selector.unregister(call.asterisk)
            call.asterisk.close()
        end_ns = time.monotonic_ns() + int(_LAST_WITHIN_S * 1e9)
        while len(self._selector.get_map()) > 1 and time.monotonic_ns() < end_ns:
            for key, _ in self._selector.select(0.05):
                key.data()

    def _go_on(self, seconds: float, is_over: Callable[[], bool], is_speaking: bool) -> None:
        end_ns = time.monotonic_ns() + int(seconds * 1e9)
        while time.monotonic_ns() < end_ns and not is_over():
            self._turn(is_speaking)

    def _turn(self, is_speaking: bool) -> None:
        wait_ns = min(call.due_ns() for call in self.calls) - time.monotonic_ns()
        for key, _ in self._selector.select(max(0, wait_ns) / 1e9):
            key.data()
        now_ns = time.monotonic_ns()
        for call in self.calls:
            if call.due_ns() <= now_ns:
                call.act(now_ns, is_speaking)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._stack.enter_context(connection)
        self._watch(connection, _ServerEnd(connection, self._join).on_bytes)

    def _join(self, start: str, end: _ServerEnd) -> _Call:
        for call in self.calls:
            if f'"{call.name}"' in start:
                call.server = end
                return call
        raise PeerFailed(f"the bridge starts an unknown call: {start[:200]}")

    def _watch(self, connection: socket.socket, on_bytes: OnBytes) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

        def read() -> None:
            data, ancillary = b"", []
            with suppress(ConnectionError):
                data, ancillary, _, _ = connection.recvmsg(65_536, 64)
            if not data:
                self._selector.unregister(connection)
            on_bytes(data, _came_ns(ancillary))

        self._selector.register(connection, selectors.EVENT_READ, read)


def _came_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """When the kernel received the bytes, on the monotonic clock; of several pieces, the last."""
    now_ns = time.monotonic_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(data[: _TIMESPEC.size])
            return int(seconds) * 1_000_000_000 + int(nanoseconds) - (time.time_ns() - now_ns)
    return now_ns


@contextmanager
def _loop() -> Iterator[_Loop]:
    with ExitStack() as stack:
        yield _Loop(stack)
