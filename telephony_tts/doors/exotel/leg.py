"""A media leg of Exotel, which gathers frames into long messages (docs/protocol/exotel.md)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from telephony_tts.doors.exotel.codec import PTIME_MS, ExotelCodec, rate_in
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire

_MOST_AWAITED = 256
"""The places of so many marks are kept. A peer that reports none must not make us keep more."""


class ExotelLeg(MediaLeg):
    """Sends frames together, because Exotel wants long messages.

    A message that would be too short at the end of a turn, or because no frames follow in time, is filled up with
    silence. A mark inside a message is sent behind it, and its echo then says how long ago the mark was reached.
    """

    kind = "exotel"

    def __init__(self, connection: CallConnection, lead_ms: int) -> None:
        self._codec = ExotelCodec(rate_in(connection.target), lead_ms)
        super().__init__(connection, self._codec)
        self._sent_bytes = metrics.SENT_BYTES.labels(leg="media")
        self._silence = b""
        self._gathered = bytearray()
        self._inside: list[tuple[int, m.MediaMark]] = []
        """Marks in the gathered audio, each behind so many bytes."""
        self._ends_turn = False
        self._behind_ms: dict[str, int] = {}
        """How far behind its own place each awaited mark was sent."""
        self._timer: asyncio.TimerHandle | None = None
        connection.left.add_done_callback(lambda _left: self._stop_waiting())

    def attach(self, call: Call, start: m.MediaStart) -> None:
        self._silence = b"\xff" if start.codec == "ulaw" else b"\0"
        super().attach(call, start)

    def encode(self, message: m.ToMedia) -> Wire | None:
        if type(message) is m.Frame:
            self._ends_turn = False  # the next turn follows in the same message
            self._gathered += message.payload
            if len(self._gathered) >= self._codec.bulk_bytes:
                self._send_bulk()
            elif self._timer is None:
                # The rest comes one message's length later at the latest, if the engine keeps pace.
                wait_s = (self._codec.bulk_bytes / self._codec.bytes_per_ms + PTIME_MS) / 1000
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._fill_up)
            return None
        if isinstance(message, m.MediaMark):
            if not self._gathered:
                return self._codec.encode(message)
            self._inside.append((len(self._gathered), message))
            self._ends_turn = message.ends_turn
            return None
        if isinstance(message, m.MediaClear):
            self._stop_waiting()
            self._gathered.clear()
            self._inside.clear()
            self._behind_ms.clear()
            self._ends_turn = False
        return self._codec.encode(message)

    def n_held_samples(self) -> int:
        return len(self._gathered) // (1 if self._silence == b"\xff" else 2)

    def send_gathered(self) -> None:
        if self._ends_turn:
            self._fill_up()

    def take(self, call: Call, message: m.FromMedia) -> None:
        if isinstance(message, m.MediaMark):
            message = replace(message, ago_ms=self._behind_ms.pop(message.name, 0))
        super().take(call, message)

    def _fill_up(self) -> None:
        """Send what there is. The message is filled up with silence, of which the session must know."""
        self._stop_waiting()
        missing = self._codec.bulk_bytes - len(self._gathered)
        if not self._gathered:
            return
        self._gathered += self._silence * missing
        self._send_bulk()
        if self.call is not None:
            self.call.session.padded(missing // self._codec.bytes_per_ms, monotonic_ns())

    def _send_bulk(self) -> None:
        self._stop_waiting()
        n_bytes = len(self._gathered)
        self._send(m.Frame(bytes(self._gathered)))
        inside, self._inside = self._inside, []
        self._gathered.clear()
        self._ends_turn = False
        for at, mark in inside:
            if at < n_bytes:
                self._behind_ms[mark.name] = (n_bytes - at) // self._codec.bytes_per_ms
            self._send(mark)
        while len(self._behind_ms) > _MOST_AWAITED:
            del self._behind_ms[next(iter(self._behind_ms))]

    def _send(self, message: m.ToMedia) -> None:
        payload, is_text = self._codec.encode(message)
        self._sent_bytes.inc(len(payload))
        self.send_now(payload, is_text)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
