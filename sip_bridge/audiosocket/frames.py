"""AudioSocket's frames: one byte of kind, two bytes of length (big-endian), then the payload. Pure.

Both directions carry hang-up and audio. Only Asterisk sends the call's UUID, digits and errors. Asterisk ends a call in
which it receives one of these, or audio without a payload.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

HANGUP, CALL_UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF

RATE_HZ = {
    0x10: 8_000,
    0x11: 12_000,
    0x12: 16_000,
    0x13: 24_000,
    0x14: 32_000,
    0x15: 44_100,
    0x16: 48_000,
    0x17: 96_000,
    0x18: 192_000,
}
"""The sample rate of each kind of audio: signed 16-bit little-endian, mono."""

KIND_OF_RATE = {rate_hz: kind for kind, rate_hz in RATE_HZ.items()}

HANGUP_FRAME = bytes(3)

DIGITS = "0123456789*#ABCD"

_HEADER_BYTES = 3
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class HangupFrame:
    """Asterisk ends the call. (Mostly it closes the connection instead.)"""


@dataclass(frozen=True, slots=True)
class UuidFrame:
    """The first frame: the UUID of the call."""

    call: uuid.UUID


@dataclass(frozen=True, slots=True)
class DigitFrame:
    digit: str


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """The caller's audio, s16 little-endian, any whole number of samples."""

    rate_hz: int
    pcm: bytes


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """Asterisk reports an error of its own. `code` is -1 if Asterisk gives none."""

    code: int


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame that cannot be used and was skipped. `kind` is one of `BAD_KINDS`; `why` is for the log."""

    kind: str
    why: str


BAD_KINDS = ("not_audiosocket", "second_uuid", "unknown_kind", "empty_audio", "odd_audio", "bad_digit")

AudioSocketFrame = HangupFrame | UuidFrame | DigitFrame | AudioFrame | ErrorFrame | BadFrame


def audio_header(rate_hz: int, n_bytes: int) -> bytes:
    """The header of an audio frame of `n_bytes`. Raises KeyError for a rate that AudioSocket does not have."""
    return bytes((KIND_OF_RATE[rate_hz],)) + n_bytes.to_bytes(2, "big")


class AudioSocketReader:
    """Reads frames from a stream that may be cut anywhere; holds at most one incomplete frame of 64 kB.

    A bad header gives one `BadFrame` as soon as the header is complete, and its payload is skipped. Before the UUID,
    every other frame except a hang-up and an error is `not_audiosocket`: the peer is not Asterisk.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._n_to_skip = 0
        self._named = False

    def feed(self, data: bytes | memoryview) -> list[AudioSocketFrame]:
        """The frames that are complete with `data`."""
        self._held += data
        items: list[AudioSocketFrame] = []
        at = 0
        while True:
            if self._n_to_skip:
                n = min(self._n_to_skip, len(self._held) - at)
                self._n_to_skip -= n
                at += n
            start = at + _HEADER_BYTES
            if self._n_to_skip or len(self._held) < start:
                break
            kind, length = self._held[at], int.from_bytes(self._held[at + 1 : start], "big")
            bad = self._problem(kind, length)
            if bad is not None:
                items.append(bad)
                at, self._n_to_skip = start, length
                continue
            if len(self._held) < start + length:
                break
            items.append(self._read(kind, bytes(self._held[start : start + length])))
            at = start + length
        del self._held[:at]
        return items

    def _problem(self, kind: int, length: int) -> BadFrame | None:
        """The problem with a header, None for a good one."""
        if not self._named:
            if (kind, length) == (CALL_UUID, _UUID_BYTES) or kind in (HANGUP, ERROR):
                return None
            seen = f"{kind:02x} {length:04x}"
            why = f"the first frame must be 01 0010 and the call's UUID, got {seen}: is this Asterisk?"
            return BadFrame("not_audiosocket", why)
        if kind in RATE_HZ:
            if length == 0:
                return BadFrame("empty_audio", f"an audio frame {kind:02x} without audio")
            if length % 2:
                why = f"an audio frame {kind:02x} of {length} bytes: not a whole number of samples"
                return BadFrame("odd_audio", why)
        elif kind == CALL_UUID:
            return BadFrame("second_uuid", "a second UUID on one connection")
        elif kind == DTMF and length != 1:
            return BadFrame("bad_digit", f"a DTMF frame of {length} bytes; expected one character")
        elif kind not in (HANGUP, DTMF, ERROR):
            return BadFrame("unknown_kind", f"frame kind {kind:02x} (of {length} bytes) is not known")
        return None

    def _read(self, kind: int, payload: bytes) -> AudioSocketFrame:
        """The frame of a good header and its payload."""
        if kind in RATE_HZ:
            return AudioFrame(RATE_HZ[kind], payload)
        if kind == DTMF:
            digit = payload.decode("latin-1").upper()
            if digit in DIGITS:
                return DigitFrame(digit)
            return BadFrame("bad_digit", f"DTMF {payload.hex()} is not one of {DIGITS}")
        if kind == CALL_UUID:
            self._named = True
            return UuidFrame(uuid.UUID(bytes=payload))
        if kind == HANGUP:
            return HangupFrame()
        return ErrorFrame(payload[0] if payload else -1)
