"""RTP (RFC 3550) of one call in mu-law: packets made, and packets that came put in order. Pure."""

from __future__ import annotations

import struct

from telephony_tts.audio.g711 import ULAW_SILENCE
from telephony_tts.clock import NS_PER_MS

ULAW = 0
"""The payload type (RFC 3551)."""

SAMPLES_PER_MS = 8

_QUIET_TYPES = frozenset((13, 101))
"""Comfort noise, and digits as Asterisk numbers them: it tells digits by an event as well."""

_HEADER = struct.Struct("!BBHII")
_MAX_HELD = 3
_HOLD_NS = 60 * NS_PER_MS
"""How many packets, and for how long, wait for one that may still be on its way."""
_MAX_FILLED_BYTES = 1600
"""Lost packets are replaced by at most 200 ms of silence, so that what was said keeps its pace."""
_MAX_JUMP = 1000
"""A sequence number farther away than this is a sender that began anew."""
_MAX_LATE_IN_A_ROW = 10
"""So many late ones, each following the last, are no delay but a sender that began anew a little farther back, or that
one stray number had been believed (RFC 3550 A.1 does the same with two)."""


class RtpSender:
    """The stream we send."""

    def __init__(self, sequence: int, timestamp: int, ssrc: int) -> None:
        self._sequence = sequence
        self._timestamp = timestamp
        self._ssrc = ssrc
        self._begins = True

    def packet(self, codes: bytes) -> bytes:
        """The next one. The first has the marker."""
        kind = ULAW | (0x80 if self._begins else 0)
        header = _HEADER.pack(0x80, kind, self._sequence & 0xFFFF, self._timestamp & 0xFFFFFFFF, self._ssrc)
        self._begins = False
        self._sequence += 1
        self._timestamp += len(codes)
        return header + codes

    def skip(self, n_samples: int) -> None:
        """Time has passed in which nothing was sent."""
        self._timestamp += n_samples


class RtpReceiver:
    """Gives audio in the order it was said. What is late, lost, doubled or unreadable is counted."""

    def __init__(self) -> None:
        self.n_lost = 0
        self.n_late = 0
        self.n_doubled = 0
        self.n_unreadable = 0
        self._ssrc: int | None = None
        self._next = 0
        """The sequence number that is to be given next, counted on past 65535."""
        self._last_late = 0
        self._n_late_in_a_row = 0
        self._held: dict[int, tuple[int, bytes]] = {}
        self._frame_bytes = 160

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take a packet; returns the audio that can be given now."""
        read = _read(data)
        if read is None:
            self.n_unreadable += 1
            return b""
        kind, sequence, ssrc, codes = read
        if kind in _QUIET_TYPES:
            # Its sequence number has passed, as that of a packet without audio.
            codes = b""
        elif kind != ULAW or not codes:
            self.n_unreadable += 1
            return b""
        else:
            self._frame_bytes = len(codes)
        given = b""
        step = _signed(sequence - self._next)
        if ssrc != self._ssrc or abs(step) > _MAX_JUMP:
            given = self._give(now_ns, all_of_it=True)
            self._ssrc, self._next, step = ssrc, sequence, 0
        if step < 0:
            self.n_late += 1
            follows = self._n_late_in_a_row > 0 and _signed(sequence - self._last_late) == 1
            self._last_late = sequence
            self._n_late_in_a_row = self._n_late_in_a_row + 1 if follows else 1
            if self._n_late_in_a_row < _MAX_LATE_IN_A_ROW:
                return given
            given += self._give(now_ns, all_of_it=True)
            self._next, step = sequence, 0
        self._n_late_in_a_row = 0
        number = self._next + step
        if number in self._held:
            self.n_doubled += 1
            return given
        self._held[number] = (now_ns, codes)
        return given + self._give(now_ns)

    def due(self, now_ns: int) -> bytes:
        """What has waited long enough for a packet before it."""
        return self._give(now_ns) if self._held else b""

    def _give(self, now_ns: int, *, all_of_it: bool = False) -> bytes:
        given = bytearray()
        while self._held:
            if self._next in self._held:
                given += self._held.pop(self._next)[1]
                self._next += 1
                continue
            first = min(self._held)
            waited_ns = now_ns - self._held[first][0]
            if not all_of_it and len(self._held) <= _MAX_HELD and waited_ns < _HOLD_NS:
                break
            n_missing = first - self._next
            self.n_lost += n_missing
            given += ULAW_SILENCE * min(n_missing * self._frame_bytes, _MAX_FILLED_BYTES)
            self._next = first
        return bytes(given)


def _read(data: bytes) -> tuple[int, int, int, bytes] | None:
    """(payload type, sequence number, source, payload) of a packet; None for what is none."""
    if len(data) < _HEADER.size or data[0] >> 6 != 2:
        return None
    first, second, sequence, _timestamp, ssrc = _HEADER.unpack_from(data)
    start = _HEADER.size + 4 * (first & 0x0F)
    if first & 0x10:  # a header extension: two words, the second half of the first is how many follow
        if len(data) < start + 4:
            return None
        start += 4 + 4 * int.from_bytes(data[start + 2 : start + 4], "big")
    end = len(data) - (data[-1] if first & 0x20 else 0)
    if start > end:
        return None
    return second & 0x7F, sequence, ssrc, data[start:end]


def _signed(number: int) -> int:
    """The difference of two sequence numbers, which wrap at 16 bits."""
    return (number + 0x8000) % 0x10000 - 0x8000
