"""The peers of a call: a Twilio-shaped platform that plays in real time, and a bot that can speak without end."""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from harness.peer import Peer, frame

FRAME_S = 0.02
FRAME_NS = 20_000_000
_MEDIA = (b'{"event":"media"', b'{"event": "media"')
_INBOUND = bytes(range(1, 161))
_CLOCK = b"ms_____"

TURNS = [
    "Thank you for calling, I can see your account right here. Your last payment reached us on the third of May.",
    "The technician will be with you tomorrow between nine and eleven. He calls half an hour before he arrives.",
    "I have found two flights that would suit you. The first one leaves early, the second one is a little cheaper.",
    "Your parcel left our warehouse this morning. It should be at your door by the end of the week if all goes well.",
    "Let me read that back to you, so that we both have it right. You want to move the appointment to next Tuesday.",
]


class MediaPeer(Peer):
    """The telephone side. It records when frames came, plays 20 ms each, and echoes a mark when playing reaches it."""

    def __init__(self, call: str, *, marks: bool = True) -> None:
        super().__init__("/media/twilio")
        self.call = call
        self.stream = f"MZ{call}"
        self.arrivals_ns = array("q")
        self.on_frame: Callable[[bytes, int], None] | None = None
        self.on_clear: Callable[[int], None] | None = None
        self._marks = marks
        self._loop = asyncio.get_running_loop()
        self._played_ns = 0
        inbound = frame(
            b'{"event":"media","sequenceNumber":"1234","media":{"track":"inbound","chunk":"1232","timestamp":"%s",'
            b'"payload":"%s"},"streamSid":"%s"}' % (_CLOCK, b64encode(_INBOUND), self.stream.encode())
        )
        # The clock has a fixed number of digits, so the rest of the frame stays as it is.
        self._inbound_head, _, self._inbound_tail = inbound.partition(_CLOCK)
        self._inbound_ms = 0

    async def start(self, port: int) -> None:
        await self.connect(port)
        self.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        self.send(
            {
                "event": "start",
                "sequenceNumber": "1",
                "streamSid": self.stream,
                "start": {
                    "streamSid": self.stream,
                    "accountSid": "AC1",
                    "callSid": self.call,
                    "tracks": ["inbound"],
                    "customParameters": {},
                    "mediaFormat": form,
                },
            }
        )

    def speak_in(self) -> None:
        """Send 20 ms of the caller's voice."""
        self.write(b"%s%07d%s" % (self._inbound_head, self._inbound_ms, self._inbound_tail))
        self._inbound_ms += 20

    def on_message(self, payload: bytes, at_ns: int) -> None:
        if payload.startswith(_MEDIA):
            self.arrivals_ns.append(at_ns)
            self._played_ns = max(self._played_ns, at_ns) + FRAME_NS
            if self.on_frame is not None:
                self.on_frame(payload, at_ns)
            return
        event = json.loads(payload)
        if event["event"] == "mark" and self._marks:
            echo = frame(payload)
            wait_ns = self._played_ns - at_ns
            if wait_ns <= 0:
                self.write(echo)
            else:
                self._loop.call_later(wait_ns / 1e9, self.write, echo)
        elif event["event"] == "clear":
            self._played_ns = at_ns
            if self.on_clear is not None:
                self.on_clear(at_ns)


class BotPeer(Peer):
    """The bot. With audio on the same socket it also records when frames came."""

    def __init__(self, call: str, *, audio: str = "none", options: str = "") -> None:
        super().__init__(f"/v1/stream?call={call}&audio={audio}{options}")
        self.call = call
        self.arrivals_ns = array("q")
        self.on_frame: Callable[[bytes, int], None] | None = None
        self.on_event: Callable[[dict[str, Any], int], None] | None = None
        self.n_inbound = 0
        self.n_underruns = 0
        self.errors: list[str] = []

    def on_message(self, payload: bytes, at_ns: int) -> None:
        if payload.startswith(_MEDIA):
            if b'"inbound"' in payload[:48]:
                self.n_inbound += 1
                return
            self.arrivals_ns.append(at_ns)
            if self.on_frame is not None:
                self.on_frame(payload, at_ns)
            return
        event = json.loads(payload)
        kind = event["type"]
        if kind == "error":
            self.errors.append(event["code"])
        elif kind == "done":
            self.n_underruns += event["underruns"]
        if self.on_event is not None:
            self.on_event(event, at_ns)

    def talk_without_end(self, first: int) -> None:
        """Say `TURNS` from number `first` on, without end: one turn is spoken and one more waits, also after errors."""
        numbers = itertools.count(first)

        def say_next() -> None:
            self.send({"type": "say", "text": TURNS[next(numbers) % len(TURNS)]})

        def on_event(event: dict[str, Any], _at_ns: int) -> None:
            if event["type"] == "done" or (event["type"] == "error" and "turn" in event):
                say_next()

        self.on_event = on_event
        say_next()
        say_next()
