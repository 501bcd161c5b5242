"""Simulated telephone platforms on the virtual clock: the real media leg of each dialect, and a player behind it.

A platform plays what its leg sends, as late as it likes, and reports in its dialect what it has played. Only the
socket between the two is left out. So what the caller has heard is known to the sample when a turn is interrupted.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

from virtual_loop import clock
from websockets.datastructures import Headers
from websockets.http11 import Request

from telephony_tts import logs
from telephony_tts.session.session import Session
from telephony_tts.transport import asterisk_leg, carrier_legs, freeswitch_leg, jambonz_leg, media_leg
from telephony_tts.transport.asterisk_leg import AsteriskLeg
from telephony_tts.transport.call import Call
from telephony_tts.transport.carrier_legs import ExotelLeg, PlivoLeg, SignalWireLeg, TelnyxLeg
from telephony_tts.transport.freeswitch_leg import FreeSwitchLeg
from telephony_tts.transport.genesys_leg import GenesysLeg
from telephony_tts.transport.jambonz_leg import JambonzLeg
from telephony_tts.transport.media_leg import MediaLeg, NativeLeg, TwilioLeg, VonageLeg
from telephony_tts.wire import messages as m
from torture.oracle import NativeOracle

MS = 1_000_000
S = 1_000_000_000
LATENESS = ("fixed", "drifting", "jumping", "stalling")
"""How a platform is late. fixed: by as much in the whole call. drifting: its clock is up to 0.5 % slow or fast, and it
begins later and later or sooner and sooner. jumping: by another time whenever its buffer was empty. stalling: as fixed,
and it stops for 40 to 400 ms in the middle of speech."""
_MOST_DRIFT = 0.005
MOST_STALL_MS = 400
"""How long a platform that is stalling stops, and how wrong its place may be until it has reported that."""
_STALL_SHARE = 1 / 150
"""So many frames have a stall before them."""


class Lateness:
    """When a platform plays, by a seed: never more than `most_ms` late."""

    def __init__(self, kind: str, seed: int, most_ms: int) -> None:
        self._choose = random.Random(f"{seed} late")
        self._kind = kind
        self._most_ms = most_ms
        self._left_ms = 0.0
        self.stretch = 1.0
        """How much longer than its length a frame is played."""
        self._delay_ms = self._choose.choice([0, self._choose.uniform(0, most_ms), most_ms])
        self._step_ms = self._choose.uniform(-40, 40)
        if kind == "drifting":
            self.stretch += self._choose.uniform(-_MOST_DRIFT, _MOST_DRIFT)
        if kind == "stalling":
            self._delay_ms *= self._choose.random()

    def begin_ns(self) -> int:
        """How long the platform waits with what came when its buffer was empty."""
        if self._kind == "jumping":
            self._delay_ms = self._choose.uniform(0, self._most_ms)
        elif self._kind == "drifting":
            self._delay_ms = min(max(0, self._delay_ms + self._step_ms), self._most_ms)
        self._left_ms = self._most_ms - self._delay_ms
        return round(self._delay_ms * MS)

    def stall_ns(self) -> int:
        """How long it stops before the next frame."""
        if self._kind != "stalling" or self._choose.random() >= _STALL_SHARE:
            return 0
        stall_ms = min(self._choose.uniform(40, MOST_STALL_MS), self._left_ms)
        self._left_ms -= stall_ms
        return round(stall_ms * MS)


@dataclass(frozen=True)
class Dialect:
    """How a leg is made and begun, and what its messages mean. `read` gives (kind, value): "audio" and bytes, "mark"
    and its name, "clear", or something else. `report` makes the message that reports a mark. With `drops_marks` the
    marks that were not reached are dropped at a clear; otherwise they are reported then. `most_late_ms` is how late the
    platform plays at most."""

    leg: Callable[[Any], MediaLeg]
    start: tuple[dict[str, Any], ...]
    read: Callable[[dict[str, Any]], tuple[str, Any]]
    report: Callable[[str], dict[str, Any]] | None
    drops_marks: bool = True
    codec: str = "ulaw"
    path: str = "/"
    most_late_ms: int = 2000
    most_error_ms: int = 20
    """How far what counts as heard may be from what was heard: a frame, or a message of a leg that sends longer ones,
    or what the clock does not know."""
    most_lost_ms: int = 0
    """How much of a turn may be lost when another turn is cleared: what is wrong about the place in it."""
    heard_late_ms: int = 0
    """The caller hears so much later what the platform reports as played: a bridge reports what it has passed on."""


def _json_stream(message: dict[str, Any]) -> tuple[str, Any]:
    match message["event"]:
        case "media" | "playAudio":
            return "audio", base64.b64decode(message["media"]["payload"])
        case "mark":
            return "mark", message["mark"]["name"]
        case "checkpoint":
            return "mark", message["name"]
        case "clear" | "clearAudio":
            return "clear", None
    return "other", message


def _vonage(message: dict[str, Any]) -> tuple[str, Any]:
    if message["action"] == "notify":
        return "mark", message["payload"]["id"]
    return "clear", None


def _native(message: dict[str, Any]) -> tuple[str, Any]:
    return message["type"], message.get("name")


def _asterisk(message: dict[str, Any]) -> tuple[str, Any]:
    match message["command"]:
        case "MARK_MEDIA":
            return "mark", message["correlation_id"]
        case "FLUSH_MEDIA":
            return "clear", None
    return message["command"], message


def _jambonz(message: dict[str, Any]) -> tuple[str, Any]:
    match message["type"]:
        case "mark":
            return "mark", message["data"]["name"]
        case "killAudio":
            return "clear", None
    return message["type"], message


def _genesys(message: dict[str, Any]) -> tuple[str, Any]:
    return ("clear" if message["type"] == "event" else message["type"]), message


def _freeswitch(message: dict[str, Any]) -> tuple[str, Any]:
    if message["type"] == "streamAudio":
        return "file", (message["data"]["id"], base64.b64decode(message["data"]["audioData"]))
    told = message["data"]["tts"]
    return ("clear" if told == "clear" else told), message


def _start_of(call: str, stream: str, **more: Any) -> dict[str, Any]:
    return {"event": "start", "start": {call: "c1", stream: "s1", **more}}


def _bridge_start() -> tuple[dict[str, Any], ...]:
    return ({"type": "start", "call": "c1", "codec": "pcm", "rate_hz": 8000, "ptime_ms": 20, "lead_ms": 60},)


_GENESYS_OPEN = {
    "version": "2", "type": "open", "id": "s1", "seq": 1, "serverseq": 0, "position": "PT0S",
    "parameters": {
        "conversationId": "7a0f0000-0000-0000-0000-000000000001",
        "media": [{"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}],
    },
}  # fmt: skip

DIALECTS: dict[str, Dialect] = {
    "twilio": Dialect(
        TwilioLeg, (_start_of("callSid", "streamSid"),), _json_stream,
        lambda name: {"event": "mark", "streamSid": "s1", "mark": {"name": name}}, drops_marks=False,
    ),
    "signalwire": Dialect(
        SignalWireLeg, (_start_of("callSid", "streamSid"),), _json_stream,
        lambda name: {"event": "mark", "streamSid": "s1", "mark": {"name": name}}, drops_marks=False,
    ),
    "telnyx": Dialect(
        TelnyxLeg, (_start_of("call_control_id", "stream_id"),), _json_stream,
        lambda name: {"event": "mark", "stream_id": "s1", "mark": {"name": name}}, drops_marks=False,
    ),
    "plivo": Dialect(
        PlivoLeg, (_start_of("callId", "streamId"),), _json_stream,
        lambda name: {"event": "playedStream", "streamId": "s1", "name": name},
    ),
    "exotel": Dialect(
        lambda connection: ExotelLeg(connection, 1000),
        (_start_of("call_sid", "stream_sid", media_format={"encoding": "slin", "sample_rate": "8000"}),), _json_stream,
        lambda name: {"event": "mark", "stream_sid": "s1", "mark": {"name": name}}, drops_marks=False, codec="pcm",
        most_late_ms=1800, most_error_ms=200,
    ),
    "vonage": Dialect(
        lambda connection: VonageLeg(connection, None),
        ({"event": "websocket:connected", "content-type": "audio/l16;rate=8000", "call": "c1"},), _vonage,
        lambda name: {"event": "websocket:notify", "payload": {"id": name}}, codec="pcm",
    ),
    "native media": Dialect(
        NativeLeg, ({"type": "start", "call": "c1", "codec": "ulaw", "lead_ms": 200},), _native,
        lambda name: {"type": "mark", "name": name},
    ),
    "bridge": Dialect(
        NativeLeg, _bridge_start(), _native, lambda name: {"type": "mark", "name": name}, codec="pcm",
        most_late_ms=60, most_error_ms=100, most_lost_ms=100, heard_late_ms=40,
    ),
    "asterisk": Dialect(
        lambda connection: AsteriskLeg(connection, 1000),
        ({"event": "MEDIA_START", "format": "ulaw", "channel_id": "c1", "ptime": 20},), _asterisk,
        lambda name: {"event": "MEDIA_MARK_PROCESSED", "correlation_id": name},
    ),
    "jambonz": Dialect(
        lambda connection: JambonzLeg(connection, None, None), ({"callSid": "c1", "sampleRate": 8000},), _jambonz,
        lambda name: {"type": "mark", "data": {"name": name, "event": "playout"}}, codec="pcm", most_late_ms=80,
        most_error_ms=100, most_lost_ms=100,
    ),
    "freeswitch": Dialect(
        FreeSwitchLeg, ({"call": "c1"},), _freeswitch, None, codec="pcm", most_lost_ms=20,
    ),
    "genesys": Dialect(
        lambda connection: GenesysLeg(connection, None), (_GENESYS_OPEN,), _genesys, None, most_late_ms=0,
        most_error_ms=100, most_lost_ms=100,
    ),
}  # fmt: skip


@dataclass(slots=True)
class _SentFrame:
    """A frame that the session has sent. `place_ns` is its place in the audio of its turn; `turn` is "" if it is no
    frame of a turn."""

    turn: str
    place_ns: int
    n_bytes: int


@dataclass
class SentPlaces:
    """Listens to a session, and knows the place of each frame in the audio of its turn."""

    session: Session
    waiting: deque[_SentFrame] = field(default_factory=deque)

    def playing(self, payload: bytes, heard_ns: int, now_ns: int) -> None:
        effect = self.session._out[-1]
        if isinstance(effect, m.Frame) and effect.turn:
            turn = next(turn for turn in self.session.turns if turn.id == effect.turn)
            place_ns = turn.playout.n_sent * turn.playout.ptime_ns
            self.waiting.append(_SentFrame(turn.id, place_ns, len(payload)))

    def moved(self, late_ns: int) -> None:
        pass

    def peer_is_late(self, late_ns: int) -> None:
        pass

    def emptied(self, now_ns: int) -> None:
        pass


class Platform:
    """The leg of a call and what is behind it. `oracle` has the player, and is told what the caller hears."""

    def __init__(self, name: str, call: Call, oracle: NativeOracle, lateness: Lateness) -> None:
        self.dialect = DIALECTS[name]
        self.call = call
        self._oracle = oracle
        self._late = lateness
        self._loop = asyncio.get_running_loop()
        self._places = SentPlaces(call.session)
        self._gathered: deque[_SentFrame] = deque()
        """Frames that the leg has and that were not sent as a message yet."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The marks that were not reached."""
        self._file: asyncio.TimerHandle | None = None
        self._files: deque[tuple[str, bytes]] = deque()
        self._genesys_seq = 1
        self._is_playing = False
        self._end: asyncio.TimerHandle | None = None
        # as a CallConnection
        self.left: asyncio.Future[None] = self._loop.create_future()
        self.paused = False
        self.subprotocol = None
        self.max_unsent_bytes = 0
        self.request = Request(self.dialect.path, Headers())
        self.log = logs.get(__name__).bind(call=call.id)
        self._leg = self.dialect.leg(cast(Any, self))

    def join(self) -> None:
        """The telephone side joins the call."""
        for message in self.dialect.start:
            self._tell(message)
        leg, start = self._leg, self._leg.started.result()
        encode = leg.encode

        def noted(message: m.ToMedia) -> Any:
            if type(message) is m.Frame:
                sent = self._places.waiting.popleft() if message.turn else _SentFrame("", 0, len(message.payload))
                self._gathered.append(sent)
            elif isinstance(message, m.MediaClear):
                self._gathered.clear()
            return encode(message)

        leg.encode = noted  # type: ignore[method-assign]
        self.call.session.listeners.append(self._places)
        leg.attach(self.call, start)

    def hang_up(self) -> None:
        """The platform is gone: nothing is reported any more."""
        self._drop()
        if not self.left.done():
            self.left.set_result(None)

    # ------------------------------------------------------- as the leg's socket

    def send_now(self, payload: bytes, is_text: bool) -> None:
        if self.left.done():
            return
        if not is_text:
            self._play(payload)
            return
        kind, value = self.dialect.read(json.loads(payload))
        match kind:
            case "audio":
                self._play(value)
            case "file":
                self._files.append(value)
                if len(self._files) == 1:
                    self._begin_file()
            case "mark":
                wait_ns = max(0, self._oracle.player.end_ns - clock() - self.dialect.heard_late_ms * MS)
                self._timers[value] = self._loop.call_later(wait_ns / S, self._report, value)
            case "clear":
                self._clear()
            case "GET_STATUS":
                held_ns = max(0, self._oracle.player.end_ns - clock())
                self._soon({"event": "STATUS", "queue_length": held_ns // (20 * MS), "media_paused": False})

    def end(self, code: int, reason: str) -> None:
        self.hang_up()

    def listen(self, *_callbacks: object) -> None:
        pass

    # ------------------------------------------------------------ what is played

    def _play(self, payload: bytes) -> None:
        now_ns, player = clock(), self._oracle.player
        at = 0
        while at < len(payload):
            sent = self._gathered.popleft() if self._gathered else _SentFrame("", 0, len(payload) - at)
            if now_ns >= player.end_ns:
                player.delay_ns = self._late.begin_ns() + self.dialect.heard_late_ms * MS
            player.stretch, player.stall_ns = self._late.stretch, self._late.stall_ns()
            part = payload[at : at + sent.n_bytes]
            self._oracle.played_frame(sent.turn, sent.place_ns, part, now_ns)
            at += sent.n_bytes
        if self.dialect.leg is DIALECTS["genesys"].leg:
            self._tell_genesys(now_ns)

    def _tell_genesys(self, now_ns: int) -> None:
        """Genesys reports when it begins to play from an empty buffer, and when its buffer is empty again."""
        player = self._oracle.player
        if self._end is not None:
            self._end.cancel()
        if not self._is_playing:
            self._is_playing = True
            self._loop.call_later(player.delay_ns / S, self._genesys, "playback_started")
        self._end = self._loop.call_later((player.end_ns - now_ns) / S, self._genesys_ended)

    def _genesys_ended(self) -> None:
        self._is_playing = False
        self._genesys("playback_completed")

    def _genesys(self, kind: str) -> None:
        self._genesys_seq += 1
        self._tell({"version": "2", "type": kind, "id": "s1", "seq": self._genesys_seq, "serverseq": 0,
                    "position": "PT0S", "parameters": {}})  # fmt: skip

    def _begin_file(self) -> None:
        """FreeSWITCH begins the next file, after a moment."""
        self._file = self._loop.call_later(self._late.begin_ns() / S, self._play_file)

    def _play_file(self) -> None:
        number, pcm = self._files[0]
        player, now_ns = self._oracle.player, clock()
        self._tell({"esl": "playing", "file": number})
        if not self._files or self._files[0][0] != number:
            return
        at = 0
        while at < len(pcm):
            sent = self._gathered.popleft() if self._gathered else _SentFrame("", 0, len(pcm) - at)
            player.delay_ns, player.stretch, player.stall_ns = 0, 1.0, 0
            self._oracle.played_frame(sent.turn, sent.place_ns, pcm[at : at + sent.n_bytes], now_ns)
            at += sent.n_bytes
        self._file = self._loop.call_later(max(0, player.end_ns - now_ns) / S, self._file_over)

    def _file_over(self) -> None:
        number, _ = self._files.popleft()
        if self._files:
            self._begin_file()
        self._tell({"esl": "played", "file": number})

    def _clear(self) -> None:
        names = list(self._timers)
        self._drop()
        self._oracle.media_clear(clock())
        if self._is_playing:
            self._is_playing = False
        if not self.dialect.drops_marks:
            for name in names:
                self._timers[name] = self._loop.call_later(0, self._report, name)

    def _drop(self) -> None:
        for timer in (*self._timers.values(), self._file, self._end):
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        self._files.clear()
        self._file = self._end = None

    # ------------------------------------------------------------ what is told

    def _report(self, name: str) -> None:
        del self._timers[name]
        assert self.dialect.report is not None
        self._tell(self.dialect.report(name))

    def _soon(self, message: dict[str, Any]) -> None:
        self._loop.call_soon(self._tell, message)

    def _tell(self, message: dict[str, Any]) -> None:
        if not self.left.done():
            self._leg.on_message(json.dumps(message).encode(), True)


def virtual_legs() -> ExitStack:
    """The legs read the virtual clock until the stack is closed."""
    stack = ExitStack()
    for module in (media_leg, carrier_legs, asterisk_leg, freeswitch_leg, jambonz_leg):
        stack.enter_context(mock.patch.object(module, "monotonic_ns", clock))
    return stack
