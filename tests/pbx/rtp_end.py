"""A phone's end of RTP (RFC 3550): it records each packet's time of arrival, and sends speech and digits on time.

One thread serves all ends of an exchange, so that fifty phones are not fifty threads.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.g711 import ALAW_SILENCE, ULAW_SILENCE, Pcm, decode_alaw, decode_ulaw
from telephony_tts.audio.g722 import G722Decoder

RATE_HZ = 8000
"""The RTP clock, and bytes per second, of every codec here; also of G.722, whose samples are at 16 kHz."""
FRAME_MS = 20
FRAME_BYTES = 160
FRAME_NS = FRAME_MS * 1_000_000

PAYLOAD_TYPES = {"ulaw": 0, "alaw": 8, "g722": 9}
SAMPLES_PER_BYTE = {"ulaw": 1, "alaw": 1, "g722": 2}
DTMF_PAYLOAD_TYPE = 101
"""The payload type for telephone events that the phones offer and Asterisk accepts."""
_SILENCE = {"ulaw": ULAW_SILENCE, "alaw": ALAW_SILENCE, "g722": b"\xfd"}
"""No byte of G.722 decodes to zero samples. This one, repeated, decodes to a constant of about -56 dB."""
_DIGITS = "0123456789*#ABCD"

_HEADER = struct.Struct("!BBHII")
_EVENT = struct.Struct("!BBH")
_N_END_PACKETS = 3
"""RFC 4733, 2.5.1.4: the last packet of an event is sent three times."""
_END_BIT = 0x80
_VOLUME_DBM0 = 10

_SO_TIMESTAMPNS = 35  # Linux on amd64; the socket module has no name for it
_TIMESPEC = struct.Struct("@qq")
_RECEIVE_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RtpPacket:
    """A received packet, with the monotonic time at which the kernel received it."""

    arrival_ns: int
    sequence: int
    timestamp: int
    marker: bool
    payload_type: int
    ssrc: int
    payload: bytes


@dataclass(frozen=True)
class Reception:
    """The audio that a phone received, placed by RTP timestamps, and how it arrived."""

    codes: bytes
    """The bytes of the codec from the first packet to the last, with silence in place of missing packets."""
    pcm: Pcm
    """At 8 kHz; at 16 kHz from G.722."""
    first_arrival_ns: int
    holes: list[tuple[int, int]]
    """(first, n) in steps of the RTP clock: each stretch that no packet carried."""
    n_lost: int
    """Sequence numbers that never arrived."""
    n_duplicates: int
    n_reordered: int
    gaps_ms: npt.NDArray[np.float64]
    """Times between one packet's arrival and the next, shape [n_packets - 1]."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One packet of a digit; `offset` is how many samples ago the digit began."""

    payload: bytes
    offset: int
    first: bool


class RtpExchange:
    """The thread that receives for all its ends, and sends each end's next frame when it is due."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._ends: set[RtpEnd] = set()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain)
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="rtp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close what is still open."""
        self._ending = True
        self.wake()
        self._thread.join()
        for end in list(self._ends):
            end.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def add(self, end: RtpEnd) -> None:
        with self.lock:
            self._ends.add(end)
        self.watch(end.descriptor, end.receive)

    def remove(self, end: RtpEnd) -> None:
        self.unwatch(end.descriptor)
        with self.lock:
            self._ends.discard(end)

    def watch(self, descriptor: int, read: Callable[[], None]) -> None:
        """Call `read` in the thread whenever the socket is readable."""
        with self.lock:
            self._selector.register(descriptor, selectors.EVENT_READ, read)
        self.wake()

    def unwatch(self, descriptor: int) -> None:
        with self.lock, contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _run(self) -> None:
        while not self._ending:
            with self.lock:
                due_ns = min((end.due_ns for end in self._ends if end.due_ns is not None), default=None)
            wait_s = None if due_ns is None else max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
            for key, _ in self._selector.select(wait_s):
                with self.lock:
                    still_there = self._selector.get_map().get(key.fd) is key
                if still_there:
                    key.data()
            with self.lock:
                for end in self._ends:
                    end.send_due(time.monotonic_ns())


class RtpEnd:
    """The media of one phone: a UDP port on loopback."""

    def __init__(self, exchange: RtpExchange, codec: str = "ulaw") -> None:
        self.codec = codec
        self.packets: list[RtpPacket] = []
        """All received packets, audio and events, in order of arrival."""
        self.sent_ns: list[int] = []
        """When each frame of speech was sent. Silence is not included."""
        self.due_ns: int | None = None
        self._exchange = exchange
        self._socket = _even_port_socket()
        self._remote: tuple[str, int] | None = None
        self._silent = self._was_silent = False
        self._queue: deque[bytes | _Event] = deque()
        self._sequence = random.getrandbits(16)
        self._timestamp = random.getrandbits(32)
        self._ssrc = random.getrandbits(32)
        self._fresh = True
        self._closed = False
        exchange.add(self)

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._exchange.remove(self)
            self._socket.close()

    # ------------------------------------------------------------------- sending

    def start(self, port: int, *, silent: bool = False) -> None:
        """Send a frame every 20 ms to a port on loopback: queued speech, else silence, or nothing if `silent`."""
        with self._exchange.lock:
            self._remote = ("127.0.0.1", port)
            self._silent = silent
            self.due_ns = time.monotonic_ns()
        self._exchange.wake()

    def pause(self) -> None:
        """Send nothing until `go_on`, not even silence."""
        with self._exchange.lock:
            self._was_silent, self._silent = self._silent, True

    def go_on(self) -> None:
        with self._exchange.lock:
            self._silent = self._was_silent

    def stop(self) -> None:
        """Stop sending."""
        with self._exchange.lock:
            self.due_ns = None
            self._queue.clear()

    def say(self, codes: bytes) -> None:
        """Queue bytes of the codec; the last frame is filled up with silence."""
        silence = _SILENCE[self.codec]
        frames = [codes[at : at + FRAME_BYTES].ljust(FRAME_BYTES, silence) for at in range(0, len(codes), FRAME_BYTES)]
        with self._exchange.lock:
            self._queue.extend(frames)

    def dial(self, digits: str, duration_ms: int = 100, pause_ms: int = 100) -> None:
        """Queue digits as RFC 4733 events, each followed by a pause."""
        silence = _SILENCE[self.codec] * FRAME_BYTES
        n_packets = duration_ms // FRAME_MS
        for digit in digits:
            code = _DIGITS.index(digit)
            sent: list[bytes | _Event] = []
            for number in range(n_packets + _N_END_PACKETS - 1):
                ends = number >= n_packets - 1
                duration = min(number + 1, n_packets) * FRAME_BYTES
                payload = _EVENT.pack(code, _VOLUME_DBM0 | (_END_BIT if ends else 0), duration)
                sent.append(_Event(payload, number * FRAME_BYTES, number == 0))
            with self._exchange.lock:
                self._queue.extend([*sent, *[silence] * (pause_ms // FRAME_MS)])

    def n_queued(self) -> int:
        """The number of frames and events not sent yet."""
        with self._exchange.lock:
            return len(self._queue)

    def send_due(self, now_ns: int) -> None:
        """Send what is due. The exchange calls it, holding its lock."""
        while self.due_ns is not None and self.due_ns <= now_ns:
            item = self._queue.popleft() if self._queue else None
            if isinstance(item, _Event):
                self._send(DTMF_PAYLOAD_TYPE, item.payload, self._timestamp - item.offset, item.first)
            elif item is not None:
                self._send(PAYLOAD_TYPES[self.codec], item, self._timestamp, self._fresh)
                self._fresh = False
                self.sent_ns.append(now_ns)
            elif self._silent:
                self._fresh = True
            else:
                self._send(PAYLOAD_TYPES[self.codec], _SILENCE[self.codec] * FRAME_BYTES, self._timestamp, self._fresh)
                self._fresh = False
            self._timestamp += FRAME_BYTES
            self.due_ns += FRAME_NS

    def _send(self, payload_type: int, payload: bytes, timestamp: int, marker: bool) -> None:
        assert self._remote is not None
        header = _HEADER.pack(
            0x80, payload_type | (0x80 if marker else 0), self._sequence & 0xFFFF, timestamp & 0xFFFFFFFF, self._ssrc
        )
        self._sequence += 1
        # A full buffer or a closed port loses the packet, as on any network.
        with contextlib.suppress(OSError):
            self._socket.sendto(header + payload, self._remote)

    # ------------------------------------------------------------------- receiving

    def receive(self) -> None:
        """Read all packets that have arrived. The exchange calls it."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(2048, 64)
            except OSError:
                return  # no more for now, or it was closed meanwhile
            offset_ns = time.time_ns() - time.monotonic_ns()
            if len(data) < _HEADER.size or data[0] >> 6 != 2:
                continue
            first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
            start = _HEADER.size + 4 * (first & 0x0F)
            arrival_ns = _kernel_time_ns(ancillary) - offset_ns
            marker, payload_type = bool(second & 0x80), second & 0x7F
            self.packets.append(RtpPacket(arrival_ns, sequence, timestamp, marker, payload_type, ssrc, data[start:]))

    def audio_packets(self) -> list[RtpPacket]:
        """The packets of the codec, in order of arrival."""
        return [packet for packet in list(self.packets) if packet.payload_type == PAYLOAD_TYPES[self.codec]]

    def digits(self) -> str:
        """The digits received as RFC 4733 events. Each counts once, by its beginning."""
        begun: dict[tuple[int, int], str] = {}
        for packet in list(self.packets):
            if packet.payload_type == DTMF_PAYLOAD_TYPE and len(packet.payload) >= _EVENT.size:
                begun.setdefault((packet.ssrc, packet.timestamp), _DIGITS[packet.payload[0] & 0x0F])
        return "".join(begun.values())

    def heard(self, since_ns: int = 0) -> Reception:
        """All audio that arrived from `since_ns` on. Raises ValueError if no audio arrived."""
        return lay_out([packet for packet in self.audio_packets() if packet.arrival_ns >= since_ns], self.codec)


def lay_out(packets: list[RtpPacket], codec: str) -> Reception:
    """Place packets of one codec, in order of arrival, by timestamp. A new source begins where its first arrived."""
    if not packets:
        raise ValueError("no audio came")
    placed: dict[int, bytes] = {}
    n_duplicates = n_reordered = n_lost = 0
    first_ns = packets[0].arrival_ns
    for ssrc in dict.fromkeys(packet.ssrc for packet in packets):
        own = [packet for packet in packets if packet.ssrc == ssrc]
        base = round((own[0].arrival_ns - first_ns) * RATE_HZ / 1e9)
        seen: set[int] = set()
        highest = 0
        for packet in own:
            number = highest + _signed(packet.sequence - own[0].sequence - highest, 16)
            if number in seen:
                n_duplicates += 1
                continue
            n_reordered += bool(seen) and number < highest
            seen.add(number)
            highest = max(highest, number)
            placed[base + _signed(packet.timestamp - own[0].timestamp, 32)] = packet.payload
        n_lost += max(seen) - min(seen) + 1 - len(seen)
    start = min(placed)
    codes = bytearray()
    holes = []
    for at in sorted(placed):
        missing = at - start - len(codes)
        if missing > 0:
            holes.append((len(codes), missing))
            codes += _SILENCE[codec] * missing
        codes[at - start :] = placed[at]
    arrivals = np.array([packet.arrival_ns for packet in packets], dtype=np.int64)
    pcm = decoded(codec, bytes(codes))
    gaps_ms = np.diff(arrivals) / 1e6
    return Reception(bytes(codes), pcm, first_ns, holes, n_lost, n_duplicates, n_reordered, gaps_ms)


def decoded(codec: str, codes: bytes) -> Pcm:
    """The samples of a stream from its beginning: at 16 kHz from G.722, else at 8 kHz."""
    if codec == "g722":
        return G722Decoder().feed(codes)
    return decode_alaw(codes) if codec == "alaw" else decode_ulaw(codes)


def _signed(number: int, n_bits: int) -> int:
    """The difference of two counters that wrap."""
    half = 1 << (n_bits - 1)
    return (number + half) % (2 * half) - half


def _kernel_time_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(data[: _TIMESPEC.size])
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return time.time_ns()


def _even_port_socket() -> socket.socket:
    """RTP has the even port (RFC 3550, 11)."""
    while True:
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end.bind(("127.0.0.1", 0))
        if end.getsockname()[1] % 2 == 0:
            break
        end.close()
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return end


@contextlib.contextmanager
def exchange() -> Iterator[RtpExchange]:
    running = RtpExchange()
    try:
        yield running
    finally:
        running.close()
