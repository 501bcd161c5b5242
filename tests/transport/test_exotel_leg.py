"""The leg alone, in simulated time: how frames become messages of one length, and where the marks in them stand."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import virtual_loop
from virtual_loop import at, play

from telephony_tts.doors.exotel import leg as exotel_leg
from telephony_tts.doors.exotel.leg import ExotelLeg
from telephony_tts.runtime import logs
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.wire import messages as m

FRAME_BYTES = 320
N_FRAMES = 10
"""In a message at 8000 Hz."""


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exotel_leg, "monotonic_ns", virtual_loop.clock)


class ExotelLine:
    """A leg between a pretended socket and a pretended call. `sent` has the marks' names, and the audio of a message as
    one number for each frame."""

    def __init__(self) -> None:
        self.observers = ()
        self.sent: list[str | list[int]] = []
        self.times_ms: list[int] = []
        self.padded: list[int] = []
        self.came: list[Any] = []
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.target = "/media/exotel"
        self.session = SimpleNamespace(wants_audio=False, padded=lambda ms, _ns: self.padded.append(ms))
        self.log = logs.get("test").bind(call="c1")
        self.leg = ExotelLeg(cast(CallConnection, self), 0)
        start = {"call_sid": "c1", "stream_sid": "s1", "media_format": {"encoding": "slin", "sample_rate": 8000}}
        self.hears("start", start=start)
        self.leg._silence = b"\0"
        self.leg.call = cast(Call, self)

    # as the socket
    def send_now(self, payload: bytes, is_text: bool) -> None:
        message = json.loads(payload)
        self.times_ms.append(round(virtual_loop.clock() / 1e6))
        if message["event"] != "media":
            self.sent.append(message["mark"]["name"] if message["event"] == "mark" else message["event"])
            return
        audio = base64.b64decode(message["media"]["payload"])
        assert len(audio) == N_FRAMES * FRAME_BYTES
        frames = [audio[at : at + FRAME_BYTES] for at in range(0, len(audio), FRAME_BYTES)]
        assert all(set(frame) == {frame[0]} for frame in frames)
        self.sent.append([frame[0] for frame in frames])

    # as the call
    def receive(self, message: Any) -> None:
        self.came.append(message)

    def say(self, *what: int | str | m.MediaClear) -> None:
        """Frames, by number, and marks that are due at the same moment. A mark that begins with `end` ends its turn."""
        for each in what:
            message: m.ToMedia
            if isinstance(each, int):
                message = m.Frame(bytes([each]) * FRAME_BYTES)
            elif isinstance(each, str):
                message = m.MediaMark(each, ends_turn=each.startswith("end"))
            else:
                message = each
            if (wire := self.leg.encode(message)) is not None:
                self.send_now(*wire)
        self.leg.send_gathered()

    def hears(self, event: str, **fields: Any) -> None:
        self.leg.on_message(json.dumps({"event": event, **fields}).encode(), True)

    def leaves(self) -> None:
        self.left.set_result(None)


FULL = list(range(1, 11))


def test_frames_are_sent_ten_at_a_time() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(*FULL[:4])
        line.say(*FULL[4:9])
        assert line.sent == []
        line.say(10, 11, 12)
        assert line.sent == [FULL] and line.padded == []
        line.leaves()

    play(act)


def test_a_mark_inside_a_message_is_sent_behind_it_and_tells_how_far_behind() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say("at the beginning", 1, "first", *FULL[1:8], "eighth", 9, 10, "last", "again")
        assert line.sent == ["at the beginning", FULL, "first", "eighth", "last", "again"]
        for name in ("at the beginning", "first", "eighth", "last", "again", "first", "unknown"):
            line.hears("mark", mark={"name": name})
        assert [(mark.name, mark.ago_ms) for mark in line.came] == [
            ("at the beginning", 0), ("first", 180), ("eighth", 40), ("last", 0), ("again", 0), ("first", 0),
            ("unknown", 0),
        ]  # fmt: skip
        line.leaves()

    play(act)


def test_the_end_of_a_turn_is_filled_up_with_silence_at_once() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(*FULL, 11, 12, 13, "end")
        assert line.sent == [FULL, [11, 12, 13, *[0] * 7], "end"] and line.padded == [140]
        line.hears("mark", mark={"name": "end"})
        assert line.came == [m.MediaMark("end", ago_ms=140)]
        line.leaves()

    play(act)


def test_a_turn_that_follows_at_once_takes_the_place_of_the_silence() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(1, 2, 3, "end of a", 4, 5)
        assert line.sent == [], "no silence between the two turns"
        line.say(6, 7, 8, 9, 10)
        assert line.sent == [FULL, "end of a"] and line.padded == []
        line.leaves()

    play(act)


def test_frames_that_wait_in_vain_are_filled_up_after_the_length_of_a_message() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(1, 2)
        await at(100)
        line.say(3, "here")
        await at(219)
        assert line.sent == []
        await at(221)
        assert line.sent == [[1, 2, 3, *[0] * 7], "here"] and line.padded == [140]
        await at(1000)
        line.say(*FULL)
        assert line.sent[2:] == [FULL] and line.padded == [140], "the time is counted anew"
        line.leaves()

    play(act)


def test_the_wait_begins_anew_with_each_message() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(*FULL[:4])
        await at(200)
        line.say(*FULL[4:], 11)
        await at(419)
        assert line.sent == [FULL]
        await at(421)
        assert line.sent == [FULL, [11, *[0] * 9]]
        line.leaves()

    play(act)


def test_a_clear_drops_what_waits() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(*FULL, "kept", 11, 12, "dropped")
        line.say(m.MediaClear())
        assert line.sent == [FULL, "kept", "clear"]
        await at(1000)
        assert line.sent[3:] == [] and line.padded == [], "no message of what was dropped"
        line.say(*FULL, 11, 12, "end")
        assert line.sent[3:] == [FULL, [11, 12, *[0] * 8], "end"]
        line.leaves()

    play(act)


def test_a_leg_that_has_left_sends_nothing_later() -> None:
    async def act() -> None:
        line = ExotelLine()
        line.say(1, 2)
        line.leaves()
        await at(1000)
        assert line.sent == []

    play(act)


def test_a_peer_that_reports_no_marks_does_not_make_us_keep_them() -> None:
    async def act() -> None:
        line = ExotelLine()
        for n in range(2000):
            line.say(1, f"m{n}", *FULL[1:])
        assert len(line.leg._behind_ms) <= 256
        line.hears("mark", mark={"name": "m1999"})
        assert line.came == [m.MediaMark("m1999", ago_ms=180)]
        line.leaves()

    play(act)
