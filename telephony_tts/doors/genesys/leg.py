"""A media leg of Genesys Cloud's Audio Connector (PROTOCOL.md §9.12).

Frames are gathered into packets. Genesys has no marks, so the clock tells what was heard. A session ends in two steps:
one side asks with `disconnect`, and Genesys answers with `close`, or it closes by itself. The server confirms `close`
with `closed`.
"""

from __future__ import annotations

import asyncio

from telephony_tts.doors.genesys.codec import PACKET_MS, RATE_HZ, GenesysCodec
from telephony_tts.runtime import metrics
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import Wire

_REST_S = 0.1
"""How long a packet that is not full waits for more frames, if the speech before it and its own frames play so long."""

_EARLY_S = 0.005
"""A packet is sent so long before its last frame counts as played. Then the turn may be over, and the call too."""

_CLOSE_S = 3.0
"""How long Genesys may take to answer `disconnect`."""


class GenesysLeg(MediaLeg):
    kind = "genesys"
    reports_marks = False

    def __init__(self, connection: CallConnection, call: str | None) -> None:
        """`call` is the call's name if the address has it."""
        self._codec = GenesysCodec(call)
        super().__init__(connection, self._codec)
        self._loop = asyncio.get_running_loop()
        self._sent_bytes = metrics.SENT_BYTES.labels(leg="media")
        self._packet = bytearray()
        self._packet_bytes = 0
        """The length of a full packet."""
        self._packet_s = 0.0
        """When the first frame of the packet came, by the loop's clock."""
        self._plays_until_s = 0.0
        """When Genesys has played all that was sent."""
        self._rest: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        connection.left.add_done_callback(lambda _left: self._forget())

    # ------------------------------------------------------- as the call sees it

    def attach(self, call: Call, start: m.MediaStart) -> None:
        self._packet_bytes = start.rate_hz * PACKET_MS // 1000 * (2 if start.codec == "pcm" else 1)
        self.send_now(*self._codec.opened())
        super().attach(call, start)

    def encode(self, message: m.ToMedia) -> Wire | None:
        if self._codec.is_closed:
            return None
        if type(message) is not m.Frame:
            self._drop_packet()
            self._plays_until_s = 0.0
            return self._codec.encode(message)
        if not self._packet:
            self._packet_s = self._loop.time()
        self._packet += message.payload
        if len(self._packet) >= self._packet_bytes:
            self._send_packet()
        elif self._rest is None:
            self._rest = self._loop.call_later(self._rest_s(), self._rest_is_due)
        return None

    def n_held_samples(self) -> int:
        return len(self._packet) * RATE_HZ * PACKET_MS // 1000 // max(1, self._packet_bytes)

    def end(self, code: int, reason: str) -> None:
        """Ask Genesys to close the session. All speech was played by now, or is not wanted."""
        self._drop_packet()
        if not self._codec.is_open or self._codec.is_broken or self.connection.left.done():
            super().end(code, reason)
        elif self._closing is None:
            completed = code == 1000
            self.send_now(*self._codec.disconnect("completed" if completed else "error", "" if completed else reason))
            self._wait_for_close(code, reason)

    async def refuse(self, code: int, reason: str) -> None:
        self.end(code, reason)
        await self.connection.left

    # ----------------------------------------------------- as the socket sees it

    def decode(self, payload: bytes, want_audio: bool, is_text: bool) -> m.FromMedia | None:
        message = self._codec.decode(payload, want_audio, is_text)
        for reply in self._codec.replies():
            self.send_now(*reply)
        if isinstance(message, m.MediaStop) and self.call is None:
            super().end(1000, "closed")  # a probe, or a session that was refused
            return None
        return message

    def complain(self, mistake: m.Invalid) -> None:
        """End the call if the peer has broken the protocol. It was told so, and has to close the session."""
        if self._codec.is_broken and self._closing is None:
            self._wait_for_close(1002, mistake.message)
            if self.call is not None:
                self.call.media_left(self, "protocol_error")

    def _wait_for_close(self, code: int, reason: str) -> None:
        self._closing = self._loop.call_later(_CLOSE_S, self.connection.end, code, reason)

    # ------------------------------------------------------------------- packets

    def _rest_s(self) -> float:
        """How long the packet still waits for more frames."""
        played_s = max(self._packet_s, self._plays_until_s) + self._length_s() - _EARLY_S
        return min(self._packet_s + _REST_S, played_s) - self._loop.time()

    def _rest_is_due(self) -> None:
        if (wait_s := self._rest_s()) > 0:  # frames have come since
            self._rest = self._loop.call_later(wait_s, self._rest_is_due)
        else:
            self._send_packet()

    def _length_s(self) -> float:
        return len(self._packet) / self._packet_bytes * PACKET_MS / 1000

    def _send_packet(self) -> None:
        self._plays_until_s = max(self._loop.time(), self._plays_until_s) + self._length_s()
        payload = bytes(self._packet)
        self._drop_packet()
        self._sent_bytes.inc(len(payload))
        self.send_now(payload, False)

    def _drop_packet(self) -> None:
        self._packet.clear()
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _forget(self) -> None:
        self._drop_packet()
        if self._closing is not None:
            self._closing.cancel()
