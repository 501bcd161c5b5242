"""Simulated telephone platforms on the virtual clock: the real media leg of each dialect, and a player behind it.

A platform plays what its leg sends, as late as it likes, and reports in its dialect what it has played. Only the
socket between the two is left out. So what the caller has heard is known to the sample when a turn is interrupted.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

from virtual_loop import clock
from websockets.datastructures import Headers
from websockets.http11 import Request

from telephony_tts.doors.asterisk import leg as asterisk_leg
from telephony_tts.doors.asterisk.leg import AsteriskLeg
from telephony_tts.doors.exotel import leg as exotel_leg
from telephony_tts.doors.exotel.leg import ExotelLeg
from telephony_tts.doors.freeswitch import leg as freeswitch_leg
from telephony_tts.doors.freeswitch.leg import FreeSwitchLeg
from telephony_tts.doors.genesys.leg import GenesysLeg
from telephony_tts.doors.jambonz import leg as jambonz_leg
from telephony_tts.doors.jambonz.leg import JambonzLeg
from telephony_tts.doors.native.door import NativeLeg
from telephony_tts.doors.plivo.door import PlivoLeg
from telephony_tts.doors.signalwire.door import SignalWireLeg
from telephony_tts.doors.telnyx.door import TelnyxLeg
from telephony_tts.doors.twilio.door import TwilioLeg
from telephony_tts.doors.vonage.door import VonageLeg
from telephony_tts.runtime import logs
from telephony_tts.session.session import Session
from telephony_tts.transport import media_leg
from telephony_tts.transport.call import Call
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from torture.dialects import DIALECTS, Lateness
from torture.oracle import NativeOracle
from torture.telephone import Telephone

_LEGS: dict[str, Callable[[Any], MediaLeg]] = {
    "twilio": TwilioLeg,
    "signalwire": SignalWireLeg,
    "telnyx": TelnyxLeg,
    "plivo": PlivoLeg,
    "exotel": lambda connection: ExotelLeg(connection, 1000),
    "vonage": lambda connection: VonageLeg(connection, None),
    "native media": NativeLeg,
    "bridge": NativeLeg,
    "asterisk": lambda connection: AsteriskLeg(connection, 1000),
    "jambonz": lambda connection: JambonzLeg(connection, None, None),
    "freeswitch": FreeSwitchLeg,
    "genesys": lambda connection: GenesysLeg(connection, None),
}


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


class Platform(Telephone):
    """The leg of a call and what is behind it."""

    def __init__(self, name: str, call: Call, oracle: NativeOracle, lateness: Lateness) -> None:
        super().__init__(DIALECTS[name](), oracle, lateness, clock)
        self.call = call
        self._places = SentPlaces(call.session)
        self._gathered: deque[_SentFrame] = deque()
        """Frames that the leg has and that were not sent as a message yet."""
        # as a CallConnection
        self.left: asyncio.Future[None] = self._loop.create_future()
        self.paused = False
        self.subprotocol = None
        self.max_unsent_bytes = 0
        self.request = Request("/", Headers())
        self.target = "/"
        self.log = logs.get(__name__).bind(call=call.id)
        self._leg = _LEGS[name](cast(Any, self))

    def join(self) -> None:
        """The telephone side joins the call."""
        for message in self.dialect.start():
            self.tell(message)
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
        self.drop()
        if not self.left.done():
            self.left.set_result(None)

    # ------------------------------------------------------- as the leg's socket

    def send_now(self, payload: bytes, is_text: bool) -> None:
        if not self.left.done():
            self.get(payload, is_text)
            for check, what in self.dialect.wrong:
                self._oracle.wrong(check, what)
            self.dialect.wrong.clear()

    def end(self, code: int, reason: str) -> None:
        self.hang_up()

    def listen(self, *_callbacks: object) -> None:
        pass

    # -------------------------------------------------------------- as a telephone

    def send(self, message: dict[str, Any]) -> None:
        if not self.left.done():
            self._leg.on_message(json.dumps(message).encode(), True)

    def hear(self, payload: bytes, now_ns: int, came_ns: int | None = None) -> None:
        at = 0
        while at < len(payload):
            sent = self._gathered.popleft() if self._gathered else _SentFrame("", 0, len(payload) - at)
            self.set_lateness(now_ns, in_file=came_ns is not None)
            self._oracle.played_frame(sent.turn, sent.place_ns, payload[at : at + sent.n_bytes], now_ns)
            at += sent.n_bytes


def virtual_legs() -> ExitStack:
    """The legs read the virtual clock until the stack is closed."""
    stack = ExitStack()
    for module in (media_leg, exotel_leg, asterisk_leg, freeswitch_leg, jambonz_leg):
        stack.enter_context(mock.patch.object(module, "monotonic_ns", clock))
    return stack
