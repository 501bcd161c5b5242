"""The leg alone, in simulated time: what it gathers, what it sends, and when marks come back."""

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

from telephony_tts.doors.freeswitch import leg as freeswitch_leg
from telephony_tts.doors.freeswitch.codec import MAX_FILE_BYTES
from telephony_tts.doors.freeswitch.leg import FreeSwitchLeg
from telephony_tts.runtime import logs
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.wire import messages as m


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeswitch_leg, "monotonic_ns", virtual_loop.clock)


class FreeSwitchLine:
    """A leg between a pretended socket and a pretended call."""

    def __init__(self, path: str = "/media/freeswitch", protocol: str | None = None, **headers: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.marks: list[tuple[float, str]] = []
        self.places: list[Any] = []
        """The begins and stops reported to the session."""
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.paused = False
        self.observers = ()
        self.max_unsent_bytes = 0
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
        else:
            self.places.append(message)

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

    def sentence(self, n: int, name: str, level: int = 1, *, ends_turn: bool = False) -> None:
        self.frames(n, level)
        self.say(m.MediaMark(name, ends_sentence=True, ends_turn=ends_turn))

    def hears(self, **report: str) -> None:
        self.leg.on_message(json.dumps(report).encode(), True)

    @property
    def files(self) -> list[tuple[str, bytes]]:
        data = [said["data"] for said in self.sent if said["type"] == "streamAudio"]
        return [(each["id"], base64.b64decode(each["audioData"])) for each in data]

    def words(self) -> list[Any]:
        return [said["data"] for said in self.sent if said["type"] == "json"]


def test_a_turn_that_ends_where_its_file_begins_again_leaves_no_timer() -> None:
    """Pinned: the other side was asked about a file that was over."""

    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(50, "end")
        line.hears(esl="playing", file="1")

        def interrupt(message: Any) -> None:
            if isinstance(message, m.MediaLost):
                line.say(m.MediaClear())

        line.receive = interrupt  # type: ignore[method-assign]
        line.hears(esl="playing", file="1")
        n_said = len(line.sent)
        await at(60_000)
        assert line.closed is None and line.sent[n_said:] == []
        line.end(1000, "")

    play(act)


def test_the_leg_may_have_all_resent_files_unsent_at_once() -> None:
    async def act() -> None:
        line = FreeSwitchLine("/media/freeswitch?rate=16000")
        line.begin()
        for n in range(12):
            line.sentence(250, str(n), ends_turn=True)
            line.hears(esl="playing", file=str(n + 1))
        n_before = len(json.dumps(line.sent))
        line.hears(esl="again")
        assert 1 << 20 < len(json.dumps(line.sent)) - n_before < line.max_unsent_bytes
        line.end(1000, "")

    play(act)


def test_frames_are_gathered_up_to_the_end_of_their_sentence() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.frames(3, 1)
        assert line.files == []
        line.say(m.MediaMark("begun"))
        line.sentence(2, "end", 2)
        line.sentence(4, "next", 3)
        assert line.files == [("1", b"\x01" * 960 + b"\x02" * 640), ("2", b"\x03" * 1280)]
        line.end(1000, "")

    play(act)


@pytest.mark.parametrize("is_played", [False, True])
def test_a_mark_whose_timer_is_late_tells_when_it_was_reached(is_played: bool) -> None:
    """Pinned: our process was busy for some time. The speech behind the mark counted as late, though FreeSWITCH plays
    on: a recording had a gap inside of a file, and what was heard was wrong by that time. `is_played`: it also reads
    before its timer that the file is over."""

    async def act() -> None:
        line = FreeSwitchLine()
        came: list[tuple[str, int]] = []
        line.receive = lambda message: (  # type: ignore[method-assign]
            came.append((message.name, message.ago_ms)) if isinstance(message, m.MediaMark) else None
        )
        line.begin()
        line.frames(1)
        line.say(m.MediaMark("begun"))
        line.frames(9)
        line.say(m.MediaMark("middle"))
        line.sentence(10, "end")
        line.hears(esl="playing", file="1")
        await at(100)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_loop.VirtualLoop)
        loop.now_s = 0.4273 if is_played else 0.2273
        if is_played:
            line.hears(esl="played", file="1")
        await at(430)
        expected = [("begun", 1), ("middle", 228), ("end", 0)] if is_played else [("begun", 1), ("middle", 28)]
        assert came == expected, "rounded up to milliseconds: never later than it was"
        line.end(1000, "")

    play(act)


def test_marks_come_back_with_what_is_heard() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
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


def test_after_a_clear_no_earlier_file_or_mark_is_sent_or_reported() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
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
        line = FreeSwitchLine()
        line.begin()
        line.frames(5)
        line.say(m.MediaClear())
        assert line.sent == []
        line.end(1000, "")

    play(act)


def test_a_fork_is_told_to_stop_once() -> None:
    """Pinned: with killAudio besides, the second of two breaks cut into the sentence behind the clear."""

    async def act() -> None:
        line = FreeSwitchLine(protocol="audio.drachtio.org")
        line.begin()
        line.sentence(10, "end")
        line.say(m.MediaClear())
        assert [said["type"] for said in line.sent] == ["playAudio", "json"]
        line.end(1000, "")

    play(act)


def test_what_was_not_played_is_sent_again_and_no_mark_comes_twice() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
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
        line = FreeSwitchLine()
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
        line = FreeSwitchLine()
        line.begin()
        line.sentence(MAX_FILE_BYTES // 320 + 3, "end", ends_turn=True)
        assert [len(pcm) for _, pcm in line.files] == [MAX_FILE_BYTES, 960]
        line.hears(esl="playing", file="1")
        assert line.places == [m.MediaBegun("end", (MAX_FILE_BYTES + 960) // 2)], "its mark is in the second"
        line.end(1000, "")

    play(act)


# ------------------------------------------------------------ what was not heard


def test_files_that_never_began_are_not_taken_as_played_by_a_later_one() -> None:
    """A restarted bridge does this: it does not know the files before the next one."""

    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(20, "one", 1)
        line.hears(esl="playing", file="1")
        for number, name in enumerate(("two", "three", "four"), 2):
            line.sentence(20, name, number, ends_turn=True)
        await at(1000)
        line.hears(esl="playing", file="4")
        assert [name for _, name in line.marks] == ["one"], "its time has passed, only the report of its end is missing"
        assert line.words()[-1] == {"tts": "clear", "before": 5}, "a file that plays out of order is stopped"
        assert line.files[4:] == [(str(n), line.files[n - 4][1]) for n in (5, 6, 7)]
        line.hears(esl="played", file="4")
        for number in "567":
            line.hears(esl="playing", file=number)
            line.hears(esl="played", file=number)
        assert [name for _, name in line.marks] == ["one", "two", "three", "four"]
        line.end(1000, "")

    play(act)


def test_a_file_that_had_no_time_to_be_heard_whole_is_sent_again() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        line.hears(esl="playing", file="1")
        line.sentence(20, "two", 2, ends_turn=True)
        await at(1000)  # of two seconds
        line.hears(esl="playing", file="2")
        assert line.marks == []
        assert [number for number, _ in line.files] == ["1", "2", "3", "4"]
        assert line.files[2][1] == line.files[0][1]
        line.end(1000, "")

    play(act)


def test_an_end_without_a_begin_is_believed_when_the_file_can_have_been_played() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(50, "one", ends_turn=True)
        await at(100)
        line.hears(esl="played", file="1")
        assert line.marks == [] and line.files[1:] == [("2", line.files[0][1])]
        await at(1100)
        line.hears(esl="played", file="2")
        assert line.marks == [(1100, "one")]
        line.hears(esl="played", file="2")
        line.hears(esl="playing", file="2")
        assert len(line.marks) == 1 and len(line.files) == 2
        line.end(1000, "")

    play(act)


def test_a_file_that_begins_twice_has_its_marks_by_its_last_begin() -> None:
    """Another program has stopped the file: the bridge lets FreeSWITCH play it again."""

    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.frames(30)
        line.say(m.MediaMark("inside"))
        line.sentence(20, "end")
        line.hears(esl="playing", file="1")
        await at(500)
        line.hears(esl="playing", file="1")
        assert line.places == [m.MediaBegun("inside", 4800), m.MediaLost(), m.MediaBegun("inside", 4800)]
        await at(1090)
        assert line.marks == []
        await at(1110)
        assert [name for _, name in line.marks] == ["inside"]
        line.end(1000, "")

    play(act)


def test_again_without_a_file_to_send_is_answered_and_sends_no_speech() -> None:
    """Pinned: without an answer a bridge cannot tell whether the server ended the call while it was not connected."""

    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.hears(esl="again")
        line.sentence(20, "one")
        line.say(m.MediaClear())
        line.hears(esl="again")
        assert len(line.files) == 1 and line.places == []
        assert line.words() == [{"tts": "hello"}, {"tts": "clear", "before": 2}, {"tts": "hello", "next": 2}]
        line.end(1000, "")

    play(act)


def test_again_asked_for_twice_sends_twice_and_reports_of_old_numbers_are_ignored() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(20, "one", 1)
        line.hears(esl="playing", file="1")
        line.hears(esl="again")
        line.hears(esl="again")
        assert line.words() == [{"tts": "clear", "before": 2}, {"tts": "clear", "before": 3}]
        line.hears(esl="playing", file="2")
        line.hears(esl="played", file="2")
        line.hears(esl="played", file="1")
        assert line.marks == []
        line.hears(esl="playing", file="3")
        line.hears(esl="played", file="3")
        assert [name for _, name in line.marks] == ["one"]
        line.end(1000, "")

    play(act)


def test_only_a_files_own_losses_count_against_it() -> None:
    """Files that wait behind it are sent again too, and that does not count against them."""

    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(20, "one", 1)
        line.sentence(20, "two", 2, ends_turn=True)
        for _ in range(4):
            line.hears(esl="again")
        line.hears(esl="playing", file="9")
        line.hears(esl="played", file="9")
        for _ in range(4):
            line.hears(esl="again")
        assert line.closed is None
        line.hears(esl="again")
        assert line.closed is not None and [name for _, name in line.marks] == ["one"]
        assert line.leg.reason == "playback_failed"

    play(act)


def test_a_silent_bridge_is_asked_whether_it_knows_the_call() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(50, "one", ends_turn=True)
        line.hears(esl="playing", file="1")
        await at(2990)
        assert line.words() == []
        await at(5010)
        assert line.words() == [{"tts": "hello", "next": 2}] * 2
        await at(7010)
        assert line.words()[2:] == [{"tts": "clear", "before": 2}] and line.files[1] == ("2", line.files[0][1])
        line.hears(esl="playing", file="2")
        await at(9500)
        assert len(line.words()) == 3 and line.closed is None, "it plays, so it is not asked"
        line.end(1000, "")

    play(act)


# ------------------------------------------------------- sentences that share a file


def test_sentences_that_are_ready_share_a_file_which_goes_before_the_first_has_ended() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        assert [number for number, _ in line.files] == ["1"], "the first goes at once"
        await at(100)
        line.hears(esl="playing", file="1")
        line.say(m.MediaMark("behind one"))
        line.sentence(50, "two", 2)
        await at(600)
        line.frames(10, 3)
        line.say(m.MediaMark("in three"))
        line.sentence(40, "three", 3)
        line.say(m.MediaMark("behind three"))
        line.frames(5, 4)
        await at(1590)
        assert len(line.files) == 1
        await at(1610)
        assert line.files[1:] == [("2", b"\x02" * 16000 + b"\x03" * 16000)]
        line.sentence(5, "four", 4)
        assert len(line.files) == 2, "there is enough to play again"
        await at(2100)
        line.hears(esl="played", file="1")
        await at(2130)
        line.hears(esl="playing", file="2")
        await at(4120)
        assert line.marks == [
            (2100, "one"), (2100, "behind one"), (3130, "two"), (3330, "in three"),
        ]  # fmt: skip
        assert line.files[2:] == [("3", b"\x04" * 3200)], "half a second before"
        line.hears(esl="played", file="2")
        assert [name for _, name in line.marks[4:]] == ["three", "behind three"]
        line.end(1000, "")

    play(act)


def test_the_rest_of_a_turn_goes_when_it_is_complete() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        line.hears(esl="playing", file="1")
        line.sentence(50, "two", 2)
        line.sentence(50, "three", 3, ends_turn=True)
        assert line.files[1:] == [("2", b"\x02" * 16000 + b"\x03" * 16000)]
        line.sentence(50, "another turn's", 4)
        assert len(line.files) == 2, "FreeSWITCH has four seconds to play"
        line.end(1000, "")

    play(act)


def test_a_sentence_that_comes_late_goes_at_once() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        line.hears(esl="playing", file="1")
        await at(1700)
        line.sentence(50, "two", 2)
        assert len(line.files) == 2
        line.hears(esl="playing", file="1")
        line.end(1000, "")

    play(act)


def test_what_is_held_goes_at_once_when_nothing_plays() -> None:
    """The end of a file may come earlier than expected."""

    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        line.hears(esl="playing", file="1")
        line.sentence(50, "two", 2)
        assert len(line.files) == 1
        await at(1000)
        line.hears(esl="played", file="1")
        assert len(line.files) == 2
        line.end(1000, "")

    play(act)


def test_sentences_share_a_file_no_longer_than_a_message_can_be() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        n_most = MAX_FILE_BYTES // 320
        line.sentence(200, "one", 1)
        line.sentence(n_most - 10, "two", 2)
        line.sentence(10, "three", 3)
        assert len(line.files) == 1
        line.sentence(1, "four", 4)
        assert [len(pcm) // 320 for _, pcm in line.files[1:]] == [n_most]
        line.say(m.MediaMark("end", ends_turn=True))
        assert [len(pcm) // 320 for _, pcm in line.files[2:]] == [1]
        line.end(1000, "")

    play(act)


def test_a_clear_forgets_what_is_held() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        line.hears(esl="playing", file="1")
        line.sentence(50, "two", 2)
        line.say(m.MediaClear())
        assert line.words() == [{"tts": "clear", "before": 2}]
        await at(3000)
        assert len(line.files) == 1
        line.sentence(50, "new", 3)
        assert line.files[1:] == [("2", b"\x03" * 16000)], "new speech is sent at once"
        line.end(1000, "")

    play(act)


def test_of_a_file_of_several_sentences_those_that_were_heard_are_not_sent_again() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        for level, name in enumerate(("two", "three", "four"), 2):
            line.sentence(50, name, level, ends_turn=level == 4)
        line.hears(esl="playing", file="1")
        await at(2000)
        line.hears(esl="played", file="1")
        line.hears(esl="playing", file="2")
        await at(3500)
        line.hears(esl="again")
        assert line.files[2:] == [("3", b"\x03" * 16000 + b"\x04" * 16000)]
        line.places.clear()
        line.hears(esl="playing", file="3")
        assert line.places == [m.MediaBegun("three", 8000)]
        await at(4510)
        assert [name for _, name in line.marks] == ["one", "two", "three"]
        line.hears(esl="again")
        assert line.files[3:] == [("4", b"\x04" * 16000)]
        await at(5000)
        line.hears(esl="playing", file="4")
        await at(6500)
        line.hears(esl="again")
        assert line.files[4:] == [("5", b"\x04" * 16000)], "only a report tells that the last file was heard whole"
        line.end(1000, "")

    play(act)


def test_what_is_sent_again_goes_in_front_of_what_is_held() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(100, "one", 1)
        line.hears(esl="playing", file="1")
        line.sentence(50, "two", 2)
        await at(1000)
        line.hears(esl="again")
        line.hears(esl="playing", file="2")
        await at(2400)
        assert [pcm[:1] for _, pcm in line.files] == [b"\x01", b"\x01"]
        await at(2600)
        assert [(number, pcm[:1]) for number, pcm in line.files[2:]] == [("3", b"\x02")]
        line.end(1000, "")

    play(act)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_call_without_a_player_ends(has_begun: bool) -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(50, "end")  # a second
        timeout_ms = freeswitch_leg._REPORT_TIMEOUT_S * 1000
        if has_begun:
            line.hears(esl="playing", file="1")
            timeout_ms += 1000
        await at(timeout_ms - 10)
        assert line.closed is None
        await at(timeout_ms + 10)
        assert line.closed is not None and line.closed[0] == 1011
        assert (line.leg.reason, line.words()[-1]) == ("playback_failed", {"tts": "hangup"})

    play(act)


def test_a_file_that_cannot_be_played_ends_the_call() -> None:
    async def act() -> None:
        line = FreeSwitchLine()
        line.begin()
        line.sentence(5, "end")
        line.hears(esl="failed", file="1")
        assert line.closed is not None and line.closed[0] == 1011 and line.marks == []
        assert line.leg.reason == "playback_failed"

    play(act)


def test_a_handshake_that_names_the_call_starts_it_without_metadata() -> None:
    async def act() -> None:
        line = FreeSwitchLine("/media/freeswitch?rate=16000&token=x", X_Call="c9", X_From="+4930")
        await at(490)
        assert not line.leg.started.done()
        await at(510)
        start = line.leg.started.result()
        assert (start.call, start.rate_hz, start.parameters) == ("c9", 16000, {"from": "+4930"})
        line.end(1000, "")

    play(act)


@pytest.mark.parametrize("query", ["rate=abc", "rate=8000&rate=16000", "rate=", "rate=²", "&" * 500, "rate=1e4"])
def test_a_nonsense_rate_in_the_address_is_ignored(query: str) -> None:
    async def act() -> None:
        line = FreeSwitchLine(f"/media/freeswitch?{query}")
        line.begin()
        assert line.leg.started.result().rate_hz == 8000
        line.end(1000, "")

    play(act)
