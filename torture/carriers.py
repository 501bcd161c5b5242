"""The telephone side of carriers whose media streams have Twilio's shape. Each one has names and habits of its own."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, ClassVar

from torture.links import Link
from torture.oracle import NativeOracle
from torture.surroundings import Surroundings


class CarrierLink(Link):
    """A carrier's side of a media stream. It plays as the oracle's player does, and reports marks as that reaches them.

    `codec` is that of the call. The class attributes are what a carrier calls things.
    """

    carrier = ""
    stream_key = "streamSid"
    sequence_key = "sequenceNumber"
    media_event, mark_event, clear_event = "media", "mark", "clear"
    echoes_dropped = True
    """Whether marks come back that a clear has dropped."""
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw"}

    def __init__(self, around: Surroundings, oracle: NativeOracle, call: str, codec: str = "ulaw") -> None:
        super().__init__(f"/media/{self.carrier}", around)
        self._oracle = oracle
        self._call = call
        self._codec = codec
        self._sequence = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Send what begins the stream."""
        self.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        self.report("start", **self.start_fields())

    def start_fields(self) -> dict[str, Any]:
        raise NotImplementedError

    def report(self, event: str, **fields: Any) -> None:
        self._sequence += 1
        self.send({"event": event, self.sequence_key: str(self._sequence), self.stream_key: "MZ1", **fields})

    def hang_up_call(self) -> None:
        self.report("stop", stop={"callSid": self._call})

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        event = message["event"]
        if event == self.media_event:
            self._oracle.frame(base64.b64decode(message["media"]["payload"]), at_ns)
        elif event == self.mark_event:
            name = self.name_in(message)
            loop = asyncio.get_running_loop()
            wait_s = max(0, self._oracle.player.end_ns - at_ns) / 1e9
            self._timers[name] = loop.call_later(wait_s, self._reached, name)
        elif event == self.clear_event:
            self._oracle.media_clear(at_ns)
            for name, timer in list(self._timers.items()):
                timer.cancel()
                if self.echoes_dropped:
                    self._reached(name)
            self._timers.clear()

    def name_in(self, message: dict[str, Any]) -> str:
        return str(message["mark"]["name"])

    def echo(self, name: str) -> None:
        """Tell that a mark was reached."""
        self.report("mark", mark={"name": name})

    def _reached(self, name: str) -> None:
        del self._timers[name]
        self.echo(name)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        super().connection_lost(exc)


class TwilioLink(CarrierLink):
    carrier = "twilio"

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self._codec], "sampleRate": 8000, "channels": 1}
        return {"start": {"streamSid": "MZ1", "accountSid": "AC1", "callSid": self._call, "tracks": ["inbound"],
                          "customParameters": {}, "mediaFormat": sound}}  # fmt: skip


class SignalWireLink(TwilioLink):
    carrier = "signalwire"
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw", "pcm": "audio/x-l16"}


class TelnyxLink(CarrierLink):
    carrier = "telnyx"
    stream_key, sequence_key = "stream_id", "sequence_number"
    encodings: ClassVar[dict[str, str]] = {"ulaw": "PCMU", "alaw": "PCMA"}

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self._codec], "sample_rate": 8000, "channels": 1}
        return {"start": {"call_control_id": self._call, "call_session_id": "s1", "from": "+491", "to": "+492",
                          "custom_parameters": {}, "media_format": sound}}  # fmt: skip


class PlivoLink(CarrierLink):
    """It reports no mark that was dropped, and hangs up by closing its socket."""

    carrier = "plivo"
    stream_key = "streamId"
    media_event, mark_event, clear_event = "playAudio", "checkpoint", "clearAudio"
    echoes_dropped = False
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw", "pcm": "audio/x-l16"}

    def start(self) -> None:
        self.report("start", **self.start_fields())

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self._codec], "sampleRate": 8000}
        start = {"callId": self._call, "streamId": "MZ1", "accountId": "a1", "tracks": ["inbound"]}
        return {"start": {**start, "mediaFormat": sound}, "extra_headers": "{}"}

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        super().take(message, at_ns)
        if message["event"] == self.clear_event:
            self.report("clearedAudio")

    def name_in(self, message: dict[str, Any]) -> str:
        return str(message["name"])

    def echo(self, name: str) -> None:
        self.report("playedStream", name=name)

    def hang_up_call(self) -> None:
        self.leave()


CARRIER_LINKS: dict[str, type[CarrierLink]] = {
    link.carrier: link for link in (TwilioLink, TelnyxLink, PlivoLink, SignalWireLink)
}
