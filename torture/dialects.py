"""What the messages of each telephone platform are, by docs/protocol alone, and how late it plays.

A `Dialect` serves one call. Simulated platforms on the virtual clock (`platforms`) and clients of a real server
(`carriers`) have the same dialects.
"""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from torture import violations as v

MS = 1_000_000
PTIME_MS = 20
LATENESS = ("fixed", "drifting", "jumping", "stalling")
"""How a platform is late. fixed: by as much in the whole call. drifting: its clock is up to 0.5 % slow or fast, and it
begins later and later or sooner and sooner. jumping: by another time whenever its buffer was empty. stalling: as fixed,
and it stops for 40 to 400 ms in the middle of speech."""
_MOST_DRIFT = 0.005
MOST_STALL_MS = 400
"""How long a platform that is stalling stops until its buffer is empty, and how wrong its place may be until it has
reported that."""
_DRIFT_MS = 5
"""How wrong a place becomes by a clock that drifts, in the second until the next report at most."""
_STALL_SHARE = 1 / 150
"""So many frames have a stall before them."""


def more_error_ms(late: str) -> int:
    """How much more wrong a place may be behind a platform that is late so than behind one that plays evenly."""
    return {"stalling": MOST_STALL_MS, "drifting": _DRIFT_MS}.get(late, 0)


class Lateness:
    """When a platform plays, by a seed: never more than `most_ms` late."""

    def __init__(self, kind: str, seed: int, most_ms: int) -> None:
        self._choose = random.Random(f"{seed} late")
        self._kind = kind
        self._most_ms = most_ms
        self._left_ms = 0.0
        self._drift = 0.0
        self._delay_ms = self._choose.choice([0, self._choose.uniform(0, most_ms), most_ms])
        self._step_ms = self._choose.uniform(-40, 40)
        if kind == "drifting":
            self._drift = self._choose.uniform(-_MOST_DRIFT, _MOST_DRIFT)
        if kind == "stalling":
            self._delay_ms *= self._choose.random()

    def begin_ns(self) -> int:
        """How long the platform waits with what came when its buffer was empty."""
        if self._kind == "jumping":
            self._delay_ms = self._choose.uniform(0, self._most_ms)
        elif self._kind == "drifting":
            self._delay_ms = min(max(0, self._delay_ms + self._step_ms), self._most_ms)
        self._left_ms = self._most_ms - self._delay_ms
        if self._kind == "stalling":
            self._left_ms = min(self._left_ms, MOST_STALL_MS)
        return round(self._delay_ms * MS)

    def stretch(self) -> float:
        """How much longer than its length the next frame is played. A slow clock falls no further behind when the
        platform is as late as it may be: under a sound that goes on, its buffer is never empty."""
        slower_ms = self._drift * PTIME_MS
        if slower_ms > self._left_ms:
            return 1.0
        self._left_ms -= max(0.0, slower_ms)
        return 1.0 + self._drift

    def stall_ns(self) -> int:
        """How long it stops before the next frame."""
        if self._kind != "stalling" or self._choose.random() >= _STALL_SHARE:
            return 0
        stall_ms = min(self._choose.uniform(40, MOST_STALL_MS), self._left_ms)
        self._left_ms -= stall_ms
        return round(stall_ms * MS)


@dataclass(frozen=True, slots=True)
class Read:
    """What a message of the server means. `kind` is "audio", "file" (value: number and audio), "mark" (value: its
    name), "clear" (value: the number of the first file that stays, else 0), "question", or "" for anything else.
    `answers` are told to the server at once."""

    kind: str = ""
    value: Any = None
    answers: tuple[dict[str, Any], ...] = ()


class Dialect:
    """The messages of one call on one platform. What the server did wrong is added to `wrong`: (check, what)."""

    path = ""
    reports_marks = True
    pads = False
    """Whether the server fills messages up with silence, which is not told from the silence of speech."""
    message_ms: int | None = PTIME_MS
    """How much audio each message has. None: any whole number of frames."""
    lead_ms: int | None = 200
    """How far ahead of real time the server may send. None: there is no such limit."""
    most_marks: int | None = None
    """How many marks the platform keeps."""
    most_late_ms = 2000
    """How late the platform plays at most."""
    most_error_ms = PTIME_MS
    """How far what counts as heard may be from what was heard: a frame, or a message of a leg that sends longer ones,
    or what the clock does not know."""
    most_lost_ms = 0
    """How much of a turn may be lost when another turn is cleared: what is wrong about the place in it."""
    heard_late_ms = 0
    """The caller hears so much later what the platform reports as played. A bridge reports what it has passed on to the
    telephone, and cannot take that back."""

    def __init__(self, call: str = "c1", codec: str = "ulaw", rate_hz: int = 8000) -> None:
        self.call = call
        self.codec = codec
        self.rate_hz = rate_hz
        self.frame_bytes = rate_hz * PTIME_MS // 1000 * (2 if codec == "pcm" else 1)
        self.wrong: list[tuple[str, str]] = []
        self.may_refuse = False
        """The server may have no room for a new call."""
        self.is_refused = False
        """It has said so, where the dialect has a message for that."""
        """How often the server has said that it ends the call, where the dialect has a message for that."""

    # ------------------------------------------------------------ what is sent

    def start(self) -> list[dict[str, Any]]:
        """What begins the leg."""
        raise NotImplementedError

    def report(self, name: str) -> dict[str, Any]:
        """A mark was reached."""
        raise NotImplementedError

    def cleared(self, names: list[str]) -> list[dict[str, Any]]:
        """What is told when a clear has dropped these marks."""
        return []

    def hang_up(self) -> dict[str, Any] | None:
        """The message that the caller has hung up. None: the platform closes its socket."""
        return None

    def caller_audio(self, payload: bytes, at_ms: int) -> dict[str, Any] | bytes:
        """20 ms of the caller's audio."""
        return payload

    def harmless(self) -> list[dict[str, Any]]:
        """Messages that change nothing in a call, as examples from which unreadable ones are made."""
        return [self.report("none")] if self.reports_marks else []

    def stamp(self) -> dict[str, Any]:
        """What each message has besides its content: the next number."""
        return {}

    # ------------------------------------------------------------ what is read

    def read(self, message: dict[str, Any]) -> Read:
        raise NotImplementedError

    def is_filler(self, payload: bytes) -> bool:
        """Whether this audio is of no turn."""
        return False

    def check_audio(self, payload: bytes) -> None:
        """Each message of audio must be as long as the platform asks for."""
        n_bytes = self.frame_bytes * (self.message_ms or PTIME_MS) // PTIME_MS
        is_right = len(payload) == n_bytes if self.message_ms else payload and not len(payload) % n_bytes
        if not is_right and not self.is_filler(payload):
            self.wrong.append((v.FRAMES, f"{self.path}: a message of {len(payload)} bytes of audio"))


class JsonStream(Dialect):
    """Streams of Twilio's shape. Each carrier has names of its own."""

    call_key, stream_key, sequence_key = "callSid", "streamSid", "sequenceNumber"
    has_connected = True
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw"}

    def __init__(self, call: str = "c1", codec: str = "ulaw", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)
        self._n_sent = 0

    def start(self) -> list[dict[str, Any]]:
        begin = [{"event": "connected", "protocol": "Call", "version": "1.0.0"}] * self.has_connected
        return [*begin, {"event": "start", **self.start_fields()}]

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self.codec], "sampleRate": self.rate_hz, "channels": 1}
        return {"start": {self.stream_key: "MZ1", "accountSid": "AC1", self.call_key: self.call, "tracks": ["inbound"],
                          "customParameters": {}, "mediaFormat": sound}}  # fmt: skip

    def stamp(self) -> dict[str, Any]:
        self._n_sent += 1
        return {self.sequence_key: str(self._n_sent), self.stream_key: "MZ1"}

    def report(self, name: str) -> dict[str, Any]:
        return {"event": "mark", "mark": {"name": name}}

    def cleared(self, names: list[str]) -> list[dict[str, Any]]:
        """These carriers echo marks that were dropped, too."""
        return [self.report(name) for name in names]

    def hang_up(self) -> dict[str, Any] | None:
        return {"event": "stop", "stop": {self.call_key: self.call}}

    def caller_audio(self, payload: bytes, at_ms: int) -> dict[str, Any] | bytes:
        media = {"track": "inbound", "chunk": str(at_ms // PTIME_MS + 1), "timestamp": str(at_ms)}
        return {"event": "media", "media": {**media, "payload": base64.b64encode(payload).decode()}}

    def harmless(self) -> list[dict[str, Any]]:
        silence = bytes(160) if self.codec == "pcm" else b"\xff" * 80
        dtmf = {"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": "5"}}
        return [*super().harmless(), *self.start(), self.caller_audio(silence, 0), dtmf]  # type: ignore[list-item]

    def read(self, message: dict[str, Any]) -> Read:
        match message["event"]:
            case "media":
                return Read("audio", base64.b64decode(message["media"]["payload"]))
            case "mark":
                return Read("mark", message["mark"]["name"])
            case "clear":
                return Read("clear", 0)
        self.wrong.append((v.ANSWERS, f"{self.path}: the unknown message {str(message)[:100]}"))
        return Read()


class Twilio(JsonStream):
    path = "/media/twilio"


class SignalWire(JsonStream):
    path = "/media/signalwire"
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw", "pcm": "audio/x-l16"}

    def read(self, message: dict[str, Any]) -> Read:
        return Read() if message["event"] == "dtmf" else super().read(message)


class Telnyx(JsonStream):
    path = "/media/telnyx"
    call_key, stream_key, sequence_key = "call_control_id", "stream_id", "sequence_number"
    encodings: ClassVar[dict[str, str]] = {"ulaw": "PCMU", "alaw": "PCMA"}

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self.codec], "sample_rate": self.rate_hz, "channels": 1}
        return {"start": {self.call_key: self.call, "call_session_id": "s1", "from": "+491", "to": "+492",
                          "custom_parameters": {}, "media_format": sound}}  # fmt: skip


class Plivo(JsonStream):
    """It reports no mark that was dropped, and hangs up by closing its socket."""

    path = "/media/plivo"
    call_key, stream_key = "callId", "streamId"
    has_connected = False
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw", "pcm": "audio/x-l16"}

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self.codec], "sampleRate": self.rate_hz}
        start = {self.call_key: self.call, "streamId": "MZ1", "accountId": "a1", "tracks": ["inbound"]}
        return {"start": {**start, "mediaFormat": sound}, "extra_headers": "{}"}

    def report(self, name: str) -> dict[str, Any]:
        return {"event": "playedStream", "name": name}

    def cleared(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"event": "clearedAudio"}]

    def hang_up(self) -> dict[str, Any] | None:
        return None

    def read(self, message: dict[str, Any]) -> Read:
        match message["event"]:
            case "playAudio":
                return Read("audio", base64.b64decode(message["media"]["payload"]))
            case "checkpoint":
                return Read("mark", message["name"])
            case "clearAudio":
                return Read("clear", 0)
            case "sendDTMF":
                return Read()
        self.wrong.append((v.ANSWERS, f"{self.path}: the unknown message {str(message)[:100]}"))
        return Read()


class Exotel(JsonStream):
    """It wants long messages, so the server gathers frames and fills the last message of a turn up."""

    path = "/media/exotel"
    call_key, stream_key, sequence_key = "call_sid", "stream_sid", "sequence_number"
    encodings: ClassVar[dict[str, str]] = {"ulaw": "audio/x-mulaw", "pcm": "raw/slin"}
    pads = True
    most_late_ms, most_error_ms = 1800, 200

    def __init__(self, call: str = "c1", codec: str = "pcm", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)
        self.message_ms = 200 if rate_hz == 8000 else 100
        self.lead_ms = max(200, 2 * self.message_ms + 100)

    def start_fields(self) -> dict[str, Any]:
        sound = {"encoding": self.encodings[self.codec], "sample_rate": str(self.rate_hz), "bit_rate": "128kbps"}
        return {"start": {self.stream_key: "MZ1", self.call_key: self.call, "account_sid": "AC1", "from": "+91",
                          "to": "+92", "custom_parameters": {}, "media_format": sound}}  # fmt: skip

    def hang_up(self) -> dict[str, Any] | None:
        return {"event": "stop", "stop": {self.call_key: self.call, "account_sid": "AC1", "reason": "callended"}}


class Vonage(Dialect):
    """Each message of audio is one frame of exactly 20 ms."""

    path = "/media/vonage"

    def __init__(self, call: str = "c1", codec: str = "pcm", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)

    def start(self) -> list[dict[str, Any]]:
        kind = f"audio/l16;rate={self.rate_hz}"
        return [{"event": "websocket:connected", "content-type": kind, "call": self.call, "plan": "gold"}]

    def report(self, name: str) -> dict[str, Any]:
        return {"event": "websocket:notify", "payload": {"id": name}}

    def cleared(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"event": "websocket:cleared"}]

    def harmless(self) -> list[dict[str, Any]]:
        return [*super().harmless(), {"event": "websocket:dtmf", "digit": "5", "duration": 260}, *self.start()]

    def read(self, message: dict[str, Any]) -> Read:
        match message["action"]:
            case "notify":
                return Read("mark", message["payload"]["id"])
            case "clear":
                return Read("clear", 0)
        self.wrong.append((v.ANSWERS, f"{self.path}: the unknown message {str(message)[:100]}"))
        return Read()


class NativeMedia(Dialect):
    """A process that holds the telephone call itself."""

    path = "/media/native"

    def start(self) -> list[dict[str, Any]]:
        return [{"type": "start", "call": self.call, "codec": self.codec, "rate_hz": self.rate_hz, "ptime_ms": PTIME_MS,
                 "lead_ms": self.lead_ms}]  # fmt: skip

    def report(self, name: str) -> dict[str, Any]:
        return {"type": "mark", "name": name}

    def hang_up(self) -> dict[str, Any] | None:
        return {"type": "stop"}

    def harmless(self) -> list[dict[str, Any]]:
        return [*super().harmless(), {"type": "dtmf", "digit": "5"}, *self.start()]

    def read(self, message: dict[str, Any]) -> Read:
        match message["type"]:
            case "mark":
                return Read("mark", message["name"])
            case "clear":
                return Read("clear", 0)
            case "error" | "dtmf":
                return Read()
        self.wrong.append((v.ANSWERS, f"{self.path}: the unknown message {str(message)[:100]}"))
        return Read()


class Bridge(NativeMedia):
    """Our bridge. It reports what it has passed on; the telephone plays it later, so `done` comes before that."""

    lead_ms = 60
    most_late_ms, heard_late_ms = 60, 40
    most_error_ms = most_lost_ms = PTIME_MS + heard_late_ms

    def __init__(self, call: str = "c1", codec: str = "pcm", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)


class Asterisk(Dialect):
    path = "/media/asterisk"
    message_ms = None
    lead_ms = 1000

    def start(self) -> list[dict[str, Any]]:
        return [{"event": "MEDIA_START", "format": self.codec, "channel_id": self.call, "ptime": PTIME_MS}]

    def report(self, name: str) -> dict[str, Any]:
        return {"event": "MEDIA_MARK_PROCESSED", "correlation_id": name}

    def read(self, message: dict[str, Any]) -> Read:
        match message["command"]:
            case "MARK_MEDIA":
                return Read("mark", message["correlation_id"])
            case "FLUSH_MEDIA":
                return Read("clear", 0)
            case "GET_STATUS":
                return Read("question")
        return Read()


class Jambonz(Dialect):
    """Its audio module passes audio on in pieces of 80 ms, so the server sends so much silence behind speech."""

    path = "/media/jambonz"
    most_late_ms, most_error_ms, most_lost_ms = 80, 100, 100
    most_marks = 30

    def __init__(self, call: str = "c1", codec: str = "pcm", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)
        self._filler = bytes(self.frame_bytes * self.most_late_ms // PTIME_MS)

    def start(self) -> list[dict[str, Any]]:
        return [{"callSid": self.call, "direction": "inbound", "from": "1508", "to": "1509", "callId": "252d9117",
                 "sampleRate": self.rate_hz, "mixType": "mono", "bot": "sales"}]  # fmt: skip

    def report(self, name: str) -> dict[str, Any]:
        return {"type": "mark", "data": {"name": name, "event": "playout"}}

    def cleared(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"type": "mark", "data": {"name": name, "event": "cleared"}} for name in names]

    def harmless(self) -> list[dict[str, Any]]:
        return [*super().harmless(), {"event": "dtmf", "dtmf": "2", "duration": "1600"}, *self.start()]

    def read(self, message: dict[str, Any]) -> Read:
        match message["type"]:
            case "mark":
                return Read("mark", message["data"]["name"])
            case "killAudio":
                return Read("clear", 0)
            case "clearMarks":
                return Read()
            case "disconnect":
                return Read()
        self.wrong.append((v.ANSWERS, f"{self.path}: the unknown message {str(message)[:100]}"))
        return Read()

    def is_filler(self, payload: bytes) -> bool:
        return payload == self._filler

    def check_audio(self, payload: bytes) -> None:
        super().check_audio(payload)
        if np.any(np.frombuffer(payload, "<i2") == -1):
            self.wrong.append((v.FRAMES, "a sample of -1, which jambonz takes for a mark"))


class Genesys(Dialect):
    """AudioHook: all messages are numbered, and nothing reports what was played but the begin and the end of it."""

    path = "/media/genesys"
    reports_marks = False
    message_ms = None
    most_message_ms = 200
    lead_ms = 400 + 200
    most_late_ms, most_error_ms, most_lost_ms = 0, 100, 100

    def __init__(self, call: str = "c1", codec: str = "ulaw", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)
        self._n_sent = self._server_seq = 0
        self._at_ms = 0
        self._is_opened = self._is_closed = False

    def start(self) -> list[dict[str, Any]]:
        form = "L16" if self.codec == "pcm" else "PCMU"
        media = [{"type": "audio", "format": form, "channels": ["external"], "rate": 8000}]
        about = {"organizationId": "o", "conversationId": self.call, "participant": {"ani": "+1", "dnis": "+2"}}
        return [{"type": "open", "parameters": {**about, "media": media}}]

    def stamp(self) -> dict[str, Any]:
        self._n_sent += 1
        position = f"PT{self._at_ms / 1000}S"
        return {"version": "2", "id": "e160e428", "seq": self._n_sent, "serverseq": self._server_seq,
                "position": position}  # fmt: skip

    def playback(self, kind: str) -> dict[str, Any]:
        return {"type": f"playback_{kind}", "parameters": {}}

    def hang_up(self) -> dict[str, Any] | None:
        return {"type": "close", "parameters": {"reason": "end"}}

    def caller_audio(self, payload: bytes, at_ms: int) -> dict[str, Any] | bytes:
        self._at_ms = at_ms + PTIME_MS
        return payload

    def harmless(self) -> list[dict[str, Any]]:
        return [
            {"type": "dtmf", "parameters": {"digit": "5"}}, {"type": "paused", "parameters": {}},
            {"type": "error", "parameters": {"code": 429, "message": "too many"}},
            {"type": "resumed", "parameters": {"start": "PT9S", "discarded": "PT3S"}},
        ]  # fmt: skip

    def read(self, message: dict[str, Any]) -> Read:
        kind, is_head_right = message["type"], (message["version"], message["id"]) == ("2", "e160e428")
        if message["seq"] != self._server_seq + 1 or message["clientseq"] > self._n_sent or not is_head_right:
            self.wrong.append((v.ORDER, f"genesys: {kind} has a wrong number: {str(message)[:200]}"))
        if self._is_closed:
            self.wrong.append((v.CLOSE, f"genesys: {kind} came behind closed"))
        self._server_seq = message["seq"]
        match kind:
            case "opened":
                if self._is_opened:
                    self.wrong.append((v.ANSWERS, "genesys: opened came twice"))
                self._is_opened = True
            case "event":
                if message["parameters"] != {"entities": [{"type": "barge_in", "data": {}}]}:
                    self.wrong.append((v.ANSWERS, f"genesys: the event {message['parameters']}"))
                return Read("clear", 0)
            case "disconnect":
                self.is_refused = message["parameters"].get("info") == "no room for another call"
                if message["parameters"].get("reason") == "error" and not (self.is_refused and self.may_refuse):
                    self.wrong.append((v.CLOSE, f"genesys: disconnect with {message['parameters']}"))
                return Read("", None, ({"type": "close", "parameters": {"reason": "disconnect"}},))
            case "closed":
                self._is_closed = True
            case "pong" | "updated":
                pass
            case _:
                self.wrong.append((v.ANSWERS, f"genesys: the unknown message {str(message)[:100]}"))
        return Read()

    def check_audio(self, payload: bytes) -> None:
        super().check_audio(payload)
        if not self._is_opened:
            self.wrong.append((v.ORDER, "genesys: audio came before opened"))
        if len(payload) > self.frame_bytes * self.most_message_ms // PTIME_MS:
            self.wrong.append((v.FRAMES, f"genesys: a message of {len(payload)} bytes"))


class FreeSwitch(Dialect):
    """The module makes a file of each message, and the client of the event socket plays it."""

    path = "/media/freeswitch"
    reports_marks = False
    message_ms = None
    lead_ms = None
    most_lost_ms = PTIME_MS
    most_file_bytes = 480_000

    def __init__(self, call: str = "c1", codec: str = "pcm", rate_hz: int = 8000) -> None:
        super().__init__(call, codec, rate_hz)
        self._next = 1

    def start(self) -> list[dict[str, Any]]:
        return [{"call": self.call, "rate_hz": self.rate_hz, "from": "+4930123456"}]

    def playback(self, state: str, number: str) -> dict[str, Any]:
        return {"esl": state, "file": number}

    def harmless(self) -> list[dict[str, Any]]:
        return [{"esl": "dtmf", "digit": "5"}, {"esl": "played", "file": "0"}, {"esl": "playing", "file": "0"}]

    def read(self, message: dict[str, Any]) -> Read:
        data = message["data"]
        if message["type"] == "streamAudio":
            number, audio = data["id"], base64.b64decode(data["audioData"])
            if int(number) != self._next or data["sampleRate"] != self.rate_hz:
                self.wrong.append(
                    (v.ORDER, f"freeswitch: file {number} of {data['sampleRate']} Hz, expected {self._next}")
                )
            if len(audio) > self.most_file_bytes or not audio:
                self.wrong.append((v.FRAMES, f"freeswitch: a file of {len(audio)} bytes"))
            self._next = int(number) + 1
            return Read("file", (number, audio))
        match data["tts"]:
            case "clear":
                if data["before"] != self._next:
                    what = f"freeswitch: clear before {data['before']}, and the next file is {self._next}"
                    self.wrong.append((v.SILENCE, what))
                return Read("clear", data["before"])
        return Read()


DIALECTS: dict[str, type[Dialect]] = {
    "twilio": Twilio, "signalwire": SignalWire, "telnyx": Telnyx, "plivo": Plivo, "exotel": Exotel, "vonage": Vonage,
    "native media": NativeMedia, "bridge": Bridge, "asterisk": Asterisk, "jambonz": Jambonz, "freeswitch": FreeSwitch,
    "genesys": Genesys,
}  # fmt: skip
