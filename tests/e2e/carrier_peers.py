"""Telnyx, Plivo, SignalWire and Exotel as peers: like Twilio's, each with its own names, formats and limits.

Their messages follow the carriers' documents. tests/peers/test_pipecat_serializers.py compares them with pipecat's.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from rig import FRAME_MS
from twilio_peer import TwilioPeer
from websockets.asyncio.client import ClientConnection

ENCODINGS = {
    "telnyx": {"ulaw": "PCMU", "alaw": "PCMA", "pcm": "L16"},
    "plivo": {"ulaw": "audio/x-mulaw", "pcm": "audio/x-l16"},
    "signalwire": {"ulaw": "audio/x-mulaw", "pcm": "audio/x-L16"},
    "exotel": {"ulaw": "audio/x-mulaw", "pcm": "raw/slin"},
}


class CarrierPeer(TwilioPeer):
    """`codec` and `rate_hz` are the format of the call, `spoken` that of the server's speech if it differs."""

    name = ""

    def __init__(
        self,
        socket: ClientConnection,
        call: str,
        codec: str = "ulaw",
        rate_hz: int = 8000,
        spoken: tuple[str, int] | None = None,
    ) -> None:
        self.encoding = ENCODINGS[self.name][codec]
        self.rate_hz = rate_hz
        self.spoken_codec, self.spoken_hz = spoken or (codec, rate_hz)
        self.frame_bytes = self.spoken_hz * (2 if self.spoken_codec == "pcm" else 1) // 50
        super().__init__(socket, call)

    async def say(self, frames: list[bytes], order: list[int] | None = None) -> None:
        """The caller's voice, 20 ms in each message, in this order."""
        for n in order or range(len(frames)):
            payload = base64.b64encode(frames[n]).decode()
            await self.send("media", media=self.media(n, payload))

    def media(self, n: int, payload: str) -> dict[str, Any]:
        return {"track": "inbound", "chunk": str(n + 1), "timestamp": str(n * FRAME_MS), "payload": payload}


class TelnyxPeer(CarrierPeer):
    name = "telnyx"
    stream_key = "stream_id"
    sequence_key = "sequence_number"

    async def start(self, **parameters: str) -> None:
        await self.socket.send('{"event":"connected","version":"1.0.0"}')
        await self.send(
            "start",
            start={
                "user_id": "u", "call_control_id": self.call, "call_session_id": "s", "from": "+491", "to": "+492",
                "custom_parameters": parameters,
                "media_format": {"encoding": self.encoding, "sample_rate": self.rate_hz, "channels": 1},
            },
        )  # fmt: skip

    def read(self, message: dict[str, Any]) -> tuple[str, str]:
        assert self.stream_key not in message, "Telnyx needs none"
        kind, value = super().read({**message, self.stream_key: self.stream})
        if kind == "media":
            assert self.frame_bytes <= len(base64.b64decode(value)) <= 1500 * self.frame_bytes, "20 ms to 30 s"
        return kind, value


class PlivoPeer(CarrierPeer):
    name = "plivo"
    stream_key = "streamId"
    echoes_cleared = False

    async def start(self, **parameters: str) -> None:
        await self.send(
            "start",
            start={
                "callId": self.call, "streamId": self.stream, "accountId": "a", "tracks": ["inbound"],
                "mediaFormat": {"encoding": self.encoding, "sampleRate": self.rate_hz},
            },
            extra_headers=json.dumps(parameters),
        )  # fmt: skip

    async def press(self, digit: str) -> None:
        await self.send("dtmf", dtmf={"track": "inbound", "digit": digit, "timestamp": "20"})

    async def hang_up(self) -> None:
        """Without a `stop`: the socket just closes."""
        await self.socket.close()

    async def report(self, name: str) -> None:
        await self.send("playedStream", name=name)

    async def _clear(self) -> None:
        await super()._clear()
        await self.send("clearedAudio")

    def read(self, message: dict[str, Any]) -> tuple[str, str]:
        message = dict(message)
        assert message.pop("streamId", self.stream if message["event"] == "sendDTMF" else None) == self.stream
        match message:
            case {"event": "playAudio", "media": media}:
                form = {"contentType": self.encoding, "sampleRate": self.rate_hz}
                assert message.keys() == {"event", "media"} and media == {**form, "payload": media["payload"]}
                return "media", media["payload"]
            case {"event": "checkpoint", "name": name}:
                assert message.keys() == {"event", "name"}
                return "mark", name
            case {"event": "sendDTMF", "dtmf": digits}:
                assert message.keys() == {"event", "dtmf"}
                return "dtmf", digits
        assert message == {"event": "clearAudio"}
        return "clear", ""


class SignalWirePeer(CarrierPeer):
    name = "signalwire"

    async def start(self, **parameters: str) -> None:
        await self.socket.send('{"event":"connected","protocol":"Call","version":"0.2.0"}')
        await self.send(
            "start",
            start={
                "streamSid": self.stream, "accountSid": "p", "callSid": self.call, "tracks": ["inbound"],
                "customParameters": parameters,
                "mediaFormat": {"encoding": self.encoding, "sampleRate": self.rate_hz, "channels": 1},
            },
        )  # fmt: skip

    def read(self, message: dict[str, Any]) -> tuple[str, str]:
        if message["event"] == "dtmf":
            return "dtmf", message["dtmf"]["digit"]
        return super().read(message)


class ExotelPeer(CarrierPeer):
    name = "exotel"
    stream_key = "stream_sid"
    sequence_key = "sequence_number"

    async def start(self, **parameters: str) -> None:
        await self.socket.send('{"event":"connected"}')
        await self.send(
            "start",
            start={
                "stream_sid": self.stream, "call_sid": self.call, "account_sid": "a", "from": "+911", "to": "+912",
                "custom_parameters": parameters,
                "media_format": {"encoding": self.encoding, "sample_rate": str(self.rate_hz), "bit_rate": "128kbps"},
            },
        )  # fmt: skip

    def media(self, n: int, payload: str) -> dict[str, Any]:
        return {"chunk": n + 1, "timestamp": str(n * FRAME_MS), "payload": payload}

    async def press(self, digit: str) -> None:
        await self.send("dtmf", dtmf={"digit": digit, "duration": "100"})

    def read(self, message: dict[str, Any]) -> tuple[str, str]:
        kind, value = super().read(message)
        if kind == "media":
            n_bytes = len(base64.b64decode(value))
            least = 1600 if self.spoken_codec == "ulaw" else 3200
            assert least <= n_bytes <= 100_000 and n_bytes % 320 == 0, n_bytes
        return kind, value
