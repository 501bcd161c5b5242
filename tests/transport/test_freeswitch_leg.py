"""The leg alone, on a clock that jumps: what it gathers, what it sends, and when marks come back."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import virtual_loop
from virtual_loop import at, play
from websockets.datastructures import Headers
from websockets.http11 import Request

from telephony_tts import logs
from telephony_tts.transport import freeswitch_leg
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.freeswitch_leg import FreeSwitchLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.freeswitch import MAX_FILE_BYTES


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeswitch_leg, "monotonic_ns", virtual_loop.clock)


class Line:
    """A leg between a pretended socket and a pretended call."""

    def __init__(self, path: str = "/media/freeswitch", protocol: str | None = None, **headers: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.marks: list[tuple[float, str]] = []
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.paused = False
        self.subprotocol = protocol
        self.request = Request(path, Headers({name.replace("_", "-"): value for name, value in headers.items()}))
        self.leg = FreeSwitchLeg(cast(CallConnection, self))
        self.session = SimpleNamespace(wants_audio=False)
        self.id = "c1"
        self.log = logs.get("test").bind(call="c1")

    # as the socket
    def send_now(self, payload: bytes, is_text: bool) -> None:
        assert is_text
        self.sent.append(json.loads(payload))

    def end(self, code: int, reason: str) -> None:
        self.closed = self.closed or (code, reason)
        if not self.left.done():
            self.left.set_result(None)

    # as the call
    def receive(self, message: Any) -> None:
        if isinstance(message, m.MediaMark):
            self.marks.append((round(virtual_loop.clock() / 1e6), message.name))

    def begin(self) -> None:
        self.leg.on_message(b'{"call":"c1"}', True)
        self.leg.call = cast(Call, self)

    def frames(self, n: int, level: int = 1) -> None:
        for _ in range(n):
            self.say(m.Frame(bytes([level]) * 320))

    def say(self, message: m.ToMedia) -> None:
        wire = self.leg.encode(message)
        if wire is not None:
            self.send_now(*wire)

    def sentence(self, n: int, name: str, level: int = 1) -> None:
        self.frames(n, level)
        self.say(m.MediaMark(name, ends_sentence=True))

    def hears(self, **report: str) -> None:
        self.leg.on_message(json.dumps(report).encode(), True)

    @property
    def files(self) -> list[tuple[str, bytes]]:
        data = [said["data"] for said in self.sent if said["type"] == "streamAudio"]
        return [(each["id"], base64.b64decode(each["audioData"])) for each in data]

    def words(self) -> list[Any]:
        return [said["data"] for said in self.sent if said["type"] == "json"]


def test_frames_are_gathered_up_to_the_end_of_their_sentence() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.frames(3, 1)
        assert line.files == []
        line.say(m.MediaMark("begun"))
        line.sentence(2, "end", 2)
        line.sentence(4, "next", 3)
        assert line.files == [("1", b"\x01" * 960 + b"\x02" * 640), ("2", b"\x03" * 1280)]
        line.end(1000, "")

    play(act)


def test_marks_come_back_with_what_is_heard() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.frames(1)
        line.say(m.MediaMark("begun"))
        line.frames(9)
        line.say(m.MediaMark("middle"))
        line.sentence(10, "end")
        line.say(m.MediaMark("behind"))
        await at(1000)
        assert line.marks == []
        line.hears(esl="playing", file="1")
        await at(1390)
        assert line.marks == [(1020, "begun"), (1200, "middle")]
        await at(1500)
        assert len(line.marks) == 2, "the end is where FreeSWITCH says it is"
        line.hears(esl="played", file="1")
        line.say(m.MediaMark("late"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert line.marks[2:] == [(1500, "end"), (1500, "behind"), (1500, "late")]
        line.end(1000, "")

    play(act)


def test_after_a_clear_nothing_of_before_is_sent_or_told() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.sentence(10, "end")
        line.hears(esl="playing", file="1")
        line.frames(5, 7)
        line.say(m.MediaMark("never"))
        line.say(m.MediaClear())
        assert line.words() == [{"tts": "clear", "before": 2}]
        line.sentence(3, "new", 2)
        line.hears(esl="played", file="1")
        assert line.files[1:] == [("2", b"\x02" * 960)] and line.marks == []
        line.hears(esl="playing", file="2")
        line.hears(esl="played", file="2")
        assert [name for _, name in line.marks] == ["new"]
        line.end(1000, "")

    play(act)


def test_a_clear_of_what_has_not_left_yet_tells_freeswitch_nothing() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.frames(5)
        line.say(m.MediaClear())
        assert line.sent == []
        line.end(1000, "")

    play(act)


def test_a_fork_is_told_to_stop_once() -> None:
    """With its own word killAudio besides, the second of two breaks cut into the sentence behind the clear."""

    async def act() -> None:
        line = Line(protocol="audio.drachtio.org")
        line.begin()
        line.sentence(10, "end")
        line.say(m.MediaClear())
        assert [said["type"] for said in line.sent] == ["playAudio", "json"]
        line.end(1000, "")

    play(act)


def test_what_was_not_played_is_sent_again_and_no_mark_comes_twice() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.frames(1, 1)
        line.say(m.MediaMark("begun"))
        line.sentence(9, "end", 1)
        line.sentence(5, "end2", 2)
        line.hears(esl="playing", file="1")
        await at(100)
        line.hears(esl="again")
        assert line.files[2:] == [("3", line.files[0][1]), ("4", line.files[1][1])]
        line.hears(esl="played", file="1")
        for number in "34":
            line.hears(esl="playing", file=number)
            line.hears(esl="played", file=number)
        assert [name for _, name in line.marks] == ["begun", "end", "end2"]
        line.end(1000, "")

    play(act)


def test_an_end_that_was_lost_is_made_up_for_by_the_next_file() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.sentence(2, "one")
        line.sentence(2, "two")
        line.hears(esl="playing", file="1")
        line.hears(esl="playing", file="2")
        assert [name for _, name in line.marks] == ["one"]
        line.end(1000, "")

    play(act)


def test_a_sentence_that_is_too_long_for_a_message_becomes_two() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.sentence(MAX_FILE_BYTES // 320 + 3, "end")
        assert [len(pcm) for _, pcm in line.files] == [MAX_FILE_BYTES, 960]
        line.end(1000, "")

    play(act)


@pytest.mark.parametrize("has_begun", [False, True])
def test_nobody_who_plays_is_noticed(has_begun: bool) -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.sentence(50, "end")  # a second
        patience_ms = freeswitch_leg._PATIENCE_S * 1000
        if has_begun:
            line.hears(esl="playing", file="1")
            patience_ms += 1000
        await at(patience_ms - 10)
        assert line.closed is None
        await at(patience_ms + 10)
        assert line.closed is not None and line.closed[0] == 1011
        assert (line.leg.reason, line.words()[-1]) == ("playback_failed", {"tts": "hangup"})

    play(act)


def test_a_file_that_cannot_be_played_ends_the_call() -> None:
    async def act() -> None:
        line = Line()
        line.begin()
        line.sentence(5, "end")
        line.hears(esl="failed", file="1")
        assert line.closed is not None and line.closed[0] == 1011 and line.marks == []
        assert line.leg.reason == "playback_failed"

    play(act)


def test_what_the_handshake_tells_begins_the_call_without_a_word() -> None:
    async def act() -> None:
        line = Line("/media/freeswitch?rate=16000&token=x", X_Call="c9", X_From="+4930")
        await at(490)
        assert not line.leg.started.done()
        await at(510)
        start = line.leg.started.result()
        assert (start.call, start.rate_hz, start.parameters) == ("c9", 16000, {"from": "+4930"})
        line.end(1000, "")

    play(act)


@pytest.mark.parametrize("query", ["rate=abc", "rate=8000&rate=16000", "rate=", "rate=²", "&" * 500, "rate=1e4"])
def test_an_address_that_says_nonsense_is_as_if_it_said_nothing(query: str) -> None:
    async def act() -> None:
        line = Line(f"/media/freeswitch?{query}")
        line.begin()
        assert line.leg.started.result().rate_hz == 8000
        line.end(1000, "")

    play(act)
