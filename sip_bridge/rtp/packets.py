"""RTP (RFC 3550) of one call: writes packets, and puts received packets in order. Pure."""

from __future__ import annotations

import struct

from telephony_tts.runtime.clock import NS_PER_MS

ULAW = 0
"""The payload type (RFC 3551)."""

TICKS_PER_MS = 8
"""Steps of the timestamp, and bytes: each format here has one byte per step (rtp/codec.py)."""

_QUIET_TYPES = frozenset((13, 101))
"""Payload types without audio: comfort noise, and Asterisk's number for digits, which also come as ARI events."""

_HEADER = struct.Struct("!BBHII")
_MAX_HELD = 3
_HOLD_NS = 60 * NS_PER_MS
"""How many packets wait, and how long, for a missing packet that may still come."""
_MAX_FILLED_BYTES = 1600
"""Lost packets are replaced by at most 200 ms of audio, so that the speech keeps its timing."""
_MAX_JUMP = 1000
"""A sequence number that jumps farther than this means that the sender has restarted."""
_MAX_LATE_IN_A_ROW = 10
"""So many consecutive late packets mean that the sender has restarted a little farther back, or that an earlier stray
number was wrongly accepted. (RFC 3550 A.1 does the same with two packets.)"""


class RtpSender:
    """Writes the packets of the stream to Asterisk."""

    def __init__(self, sequence: int, timestamp: int, ssrc: int, payload_type: int = ULAW) -> None:
        self._payload_type = payload_type
        self._sequence = sequence
        self._timestamp = timestamp
        self._ssrc = ssrc
        self._begins = True

    def packet(self, codes: bytes) -> bytes:
        """The next packet. The first one has the marker bit."""
        kind = self._payload_type | (0x80 if self._begins else 0)
        header = _HEADER.pack(0x80, kind, self._sequence & 0xFFFF, self._timestamp & 0xFFFFFFFF, self._ssrc)
        self._begins = False
        self._sequence += 1
        self._timestamp += len(codes)
        return header + codes

    def skip(self, n_ticks: int) -> None:
        """Advance the timestamp by `n_ticks` for which no packet was sent."""
        self._timestamp += n_ticks


RtpAudio = list[bytes | int]
"""Encoded audio in order. A number stands for so many lost bytes."""


class RtpReceiver:
    """Returns the audio in order. Late, lost, doubled and unreadable packets are counted.

    Audio of another `payload_type` is unreadable.
    """

    def __init__(self, payload_type: int = ULAW) -> None:
        self._payload_type = payload_type
        self.n_lost = 0
        self.n_late = 0
        self.n_doubled = 0
        self.n_unreadable = 0
        self._ssrc: int | None = None
        self._next = 0
        """The next sequence number to return, extended past 65535."""
        self._last_late = 0
        self._n_late_in_a_row = 0
        self._held: dict[int, tuple[int, int, bytes]] = {}
        """Arrival in ns, timestamp, and encoded audio."""
        self._frame_bytes = 160
        self._expected: int | None = None
        """The timestamp of the next audio. None behind a packet without audio, which may stand for any time."""
        self._is_steady = False
        """The last audio had the timestamp that was expected."""

    def feed(self, data: bytes, now_ns: int) -> RtpAudio:
        """Take a packet; returns the audio that is in order now."""
        read = _read(data)
        if read is None:
            self.n_unreadable += 1
            return []
        kind, sequence, timestamp, ssrc, codes = read
        if kind in _QUIET_TYPES:
            # Its sequence number is used up, as for a packet without audio.
            codes = b""
        elif kind != self._payload_type or not codes:
            self.n_unreadable += 1
            return []
        given: RtpAudio = []
        step = _signed(sequence - self._next)
        if ssrc != self._ssrc or abs(step) > _MAX_JUMP:
            given = self._give(now_ns, all_of_it=True)
            self._ssrc, self._next, self._expected, step = ssrc, sequence, None, 0
        if step < 0:
            self.n_late += 1
            follows = self._n_late_in_a_row > 0 and _signed(sequence - self._last_late) == 1
            self._last_late = sequence
            self._n_late_in_a_row = self._n_late_in_a_row + 1 if follows else 1
            if self._n_late_in_a_row < _MAX_LATE_IN_A_ROW:
                return given
            given += self._give(now_ns, all_of_it=True)
            self._next, self._expected, step = sequence, None, 0
        self._n_late_in_a_row = 0
        number = self._next + step
        if number in self._held:
            self.n_doubled += 1
            return given
        self._held[number] = (now_ns, timestamp, codes)
        return given + self._give(now_ns)

    def due(self, now_ns: int) -> RtpAudio:
        """The audio that has waited long enough for a missing packet before it."""
        return self._give(now_ns) if self._held else []

    def _give(self, now_ns: int, *, all_of_it: bool = False) -> RtpAudio:
        given: RtpAudio = []
        while self._held:
            first = self._next if self._next in self._held else min(self._held)
            arrival_ns, timestamp, codes = self._held[first]
            n_missing = first - self._next
            waits = len(self._held) <= _MAX_HELD and now_ns - arrival_ns < _HOLD_NS
            if n_missing and waits and not all_of_it:
                break
            del self._held[first]
            self._next = first + 1
            n_missing = n_missing or self._n_skipped(timestamp, codes)
            if n_missing:
                self.n_lost += n_missing
                given.append(min(n_missing * self._frame_bytes, _MAX_FILLED_BYTES))
            if codes:
                given.append(codes)
                self._frame_bytes = len(codes)
            self._expected = timestamp + len(codes) if codes else None
        return given

    def _n_skipped(self, timestamp: int, codes: bytes) -> int:
        """How many packets Asterisk did not get before this one. If it changes the codec it numbers its own packets
        without a gap, and only the timestamps tell. A sender with a wrong clock is never steady."""
        skipped = 0 if self._expected is None or not codes else _signed(timestamp - self._expected, 32)
        was_steady, self._is_steady = self._is_steady, self._expected is not None and not skipped
        n, rest = divmod(skipped, self._frame_bytes)
        return n if was_steady and not rest and 0 < skipped <= _MAX_FILLED_BYTES else 0


def _read(data: bytes) -> tuple[int, int, int, int, bytes] | None:
    """(payload type, sequence number, timestamp, source, payload) of a packet; None if it is not RTP."""
    if len(data) < _HEADER.size or data[0] >> 6 != 2:
        return None
    first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
    start = _HEADER.size + 4 * (first & 0x0F)
    if first & 0x10:  # a header extension: the second half of its first word is the number of words that follow
        if len(data) < start + 4:
            return None
        start += 4 + 4 * int.from_bytes(data[start + 2 : start + 4], "big")
    end = len(data) - (data[-1] if first & 0x20 else 0)
    if start > end:
        return None
    return second & 0x7F, sequence, timestamp, ssrc, data[start:end]


def _signed(number: int, n_bits: int = 16) -> int:
    """The signed difference of two counters that wrap: sequence numbers have 16 bits, timestamps 32."""
    half = 1 << (n_bits - 1)
    return (number + half) % (2 * half) - half
