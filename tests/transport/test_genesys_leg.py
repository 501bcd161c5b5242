"""The leg alone, in simulated time: when frames become a message."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import virtual_loop
from virtual_loop import at, play

from telephony_tts.doors.genesys.leg import GenesysLeg
from telephony_tts.runtime import logs
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.wire import messages as m

FRAME = b"\x55" * 160


class GenesysLine:
    """A leg between a pretended socket and a pretended call. `sent` has (when, ms of audio) of each message."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log = logs.get("test").bind(call="c1")
        self.leg = GenesysLeg(cast(CallConnection, self), None)
        media = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}
        about = {"conversationId": "c1", "media": [media]}
        told = {"version": "2", "type": "open", "id": "s1", "seq": 1, "serverseq": 0, "parameters": about}
        self.leg.on_message(json.dumps(told).encode(), True)
        self.session = self
        self.leg.attach(cast(Call, self), self.leg.started.result())

    # as the socket
    paused = False

    def send_now(self, payload: bytes, is_text: bool) -> None:
        if not is_text:
            self.sent.append((round(virtual_loop.clock() / 1e6), len(payload) // 8))

    # as the call and its session
    def attach_media(self, *_what: Any, **_how: Any) -> None: ...
    def join_media(self, *_what: Any) -> None: ...
    def receive(self, message: m.FromMedia) -> None: ...

    def say(self, n_frames: int) -> None:
        for _ in range(n_frames):
            assert self.leg.encode(m.Frame(FRAME)) is None


def test_frames_wait_for_a_full_message_while_speech_is_ahead() -> None:
    async def act() -> None:
        line = GenesysLine()
        line.say(23)
        await at(60)
        line.say(3)
        await at(90)
        line.say(4)
        assert line.sent == [(0, 200), (0, 200), (90, 200)]
        line.say(2)
        await at(300)
        assert line.sent[3:] == [(190, 40)], "the rest of a turn is sent when no more frames come"
        line.left.set_result(None)

    play(act)


def test_late_frames_are_sent_before_they_count_as_played() -> None:
    """The engine is late: nothing is ahead, and the call may end when the last frame should have been heard."""

    async def act() -> None:
        line = GenesysLine()
        line.say(2)
        await at(10)
        line.say(1)
        await at(60)
        assert line.sent == [(55, 60)], "what it waits for would come behind a gap anyway"
        await at(250)
        line.say(1)
        await at(270)
        assert line.sent[1:] == [(265, 20)]
        line.say(1)
        await at(400)
        assert line.sent[2:] == [(300, 20)], "the frame before it plays until 285 ms"
        line.left.set_result(None)

    play(act)


def test_what_a_clear_has_dropped_is_not_played_any_more() -> None:
    async def act() -> None:
        line = GenesysLine()
        line.say(20)
        line.say(3)
        assert line.leg.encode(m.MediaClear()) is not None
        await at(10)
        line.say(2)
        await at(50)
        assert line.sent == [(0, 200), (0, 200), (45, 40)], "nothing is played before these two frames"
        line.left.set_result(None)

    play(act)
