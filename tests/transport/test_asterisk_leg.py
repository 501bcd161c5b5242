"""The leg alone, in simulated time: an Asterisk that sends XOFF and no XON, or does not answer."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import virtual_loop
from log_lines import lines
from virtual_loop import at, play

from telephony_tts.doors.asterisk import leg as asterisk_leg
from telephony_tts.doors.asterisk.leg import AsteriskLeg
from telephony_tts.runtime import logs, metrics
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import DirectConnection
from telephony_tts.wire import messages as m

START = {"event": "MEDIA_START", "channel": "WebSocket/tts/0x1", "channel_id": "1.2", "format": "ulaw", "ptime": 20}
SPEECH = m.Frame(b"\x01" * 160)
OTHER = m.Frame(b"\x02" * 160)


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asterisk_leg, "monotonic_ns", virtual_loop.clock)


class AsteriskLine:
    """A leg between a pretended socket and a pretended call."""

    def __init__(self) -> None:
        self.sent: list[str | bytes] = []
        """The names of commands, and frames."""
        self.times_ms: list[int] = []
        self.open = True
        self.held: list[int] = []
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.paused = False
        self.observers = ()
        self.session = SimpleNamespace(wants_audio=False, peer_holds=lambda n_frames, _ns: self.held.append(n_frames))
        self.id = "c1"
        self.log = logs.get("test").bind(call="c1")
        self.leg = AsteriskLeg(cast(DirectConnection, self))
        self.hears(**START)
        self.leg.call = cast(Call, self)

    # as the socket
    def send_now(self, payload: bytes, is_text: bool) -> None:
        self.sent.append(json.loads(payload)["command"] if is_text else payload)
        self.times_ms.append(round(virtual_loop.clock() / 1e6))

    # as the call
    def writable(self, flag: bool) -> None:
        self.open = flag

    def say(self, *messages: m.ToMedia) -> None:
        """Send these messages, which are due at the same moment."""
        for message in messages:
            if (wire := self.leg.encode(message)) is not None:
                self.send_now(*wire)
        self.leg.send_gathered()

    def hears(self, event: str, **fields: Any) -> None:
        self.leg.on_message(json.dumps({"event": event, **fields}).encode(), True)

    def has(self, n_frames: int, *, is_paused: bool = False) -> None:
        self.hears("STATUS", queue_length=n_frames, queue_full=False, media_paused=is_paused)

    def asked_ms(self) -> list[int]:
        return [ms for ms, what in zip(self.times_ms, self.sent, strict=True) if what == "GET_STATUS"]

    def leaves(self) -> None:
        self.left.set_result(None)


def test_xoff_holds_frames_back_until_xon(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        assert not line.open
        await at(900)
        line.hears("MEDIA_XON")
        assert line.open
        await at(10_000)
        assert line.sent == [] and line.open, "no question about a queue that is not full"
        line.leaves()

    play(act)
    assert lines(caplog, "xoff_without_xon") == []


def test_an_xoff_sent_after_its_xon_is_detected_within_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XON")
        line.hears("MEDIA_XOFF")
        await at(999)
        assert not line.open and line.asked_ms() == []
        await at(1001)
        assert line.asked_ms() == [1000]
        line.has(3)
        assert line.open and line.held == [3]
        await at(10_000)
        assert line.asked_ms() == [1000]
        line.leaves()

    play(act)
    (line,) = lines(caplog, "xoff_without_xon")
    assert line == {"call": "c1", "why": "its queue has 3 frames"}


def test_frames_wait_while_the_queue_is_really_full(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        for second in range(1, 31):
            await at(1000 * second + 5)
            line.has(990)
        assert not line.open and line.asked_ms() == [1000 * second for second in range(1, 31)]
        await at(31_001)
        line.has(800)
        assert not line.open, "XON comes below 800"
        await at(32_001)
        line.has(799)
        assert line.open
        line.leaves()

    play(act)
    assert len(lines(caplog, "xoff_without_xon")) == 1


def test_an_asterisk_that_sends_xoff_and_then_nothing_gets_frames_again(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        await at(5_999)
        assert not line.open and line.asked_ms() == [1000, 2000, 3000, 4000, 5000]
        await at(6_001)
        assert line.open
        await at(60_000)
        assert len(line.asked_ms()) == 5
        line.leaves()

    play(act)
    (line,) = lines(caplog, "xoff_without_xon")
    assert "GET_STATUS was not answered" in line["why"]


def test_a_second_xoff_starts_no_second_timer() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        await at(500)
        line.hears("MEDIA_XOFF")
        await at(2_600)
        assert line.asked_ms() == [1500, 2500]
        line.leaves()

    play(act)


def test_room_in_the_socket_does_not_release_a_full_queue() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        line.leg.on_writable(True)
        assert not line.open
        line.hears("MEDIA_XON")
        assert line.open
        line.leg.on_writable(False)
        assert not line.open
        line.leg.on_writable(True)
        assert line.open
        line.leaves()

    play(act)


def test_an_xon_does_not_release_a_full_socket() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        line.paused = True
        line.hears("MEDIA_XON")
        assert not line.open
        line.leaves()

    play(act)


def test_a_clear_releases_a_full_queue_without_an_xon(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        line.say(m.MediaClear())
        assert line.sent == ["FLUSH_MEDIA", "GET_STATUS"]
        line.has(0)
        assert line.open
        line.hears("MEDIA_XON")
        assert line.open
        line.leaves()

    play(act)
    assert lines(caplog, "xoff_without_xon") == [], "nothing is wrong with that"


def test_a_full_and_paused_queue_gets_continue_media() -> None:
    """While the queue is full no frame is sent, so no frame asks about it."""

    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        await at(1_001)
        line.has(900, is_paused=True)
        assert line.sent == ["GET_STATUS", "CONTINUE_MEDIA"]
        line.leaves()

    play(act)


def test_a_leg_that_ends_while_it_is_full_leaves_no_timer() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.hears("MEDIA_XOFF")
        line.leaves()
        await asyncio.sleep(0)
        await at(10_000)
        assert line.sent == []

    play(act)


def test_an_xoff_that_is_taken_after_the_leg_has_left_starts_no_timer() -> None:
    """Asterisk sent it before the call began, and hung up meanwhile."""

    async def act() -> None:
        line = AsteriskLine()
        line.leg.call = None
        line.hears("MEDIA_XOFF")
        line.leaves()
        await asyncio.sleep(0)
        (waiting,) = line.leg._waiting
        line.leg.take(cast(Call, line), waiting)
        await at(10_000)
        assert line.sent == []

    play(act)


def test_a_missing_answer_to_a_clear_does_not_cut_later_speech(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seconds later 5 frames in the queue are new speech. They are not frames that should have been flushed."""

    async def act() -> None:
        line = AsteriskLine()
        line.say(SPEECH)
        await at(1_000)
        line.say(m.MediaClear())
        while line.asked_ms() == [1_000]:
            await at(virtual_loop.clock() / 1e6 + 20)
            line.say(SPEECH)
        n_before = len(line.sent)
        line.has(5)
        assert line.sent[n_before:] == [] and line.held == [5]
        line.leaves()

    play(act)
    assert lines(caplog, "clear_unconfirmed") == [{"call": "c1", "why": "Asterisk has not answered GET_STATUS"}]


def test_an_answer_from_before_a_clear_does_not_cut_speech_after_it() -> None:
    """Pinned: the periodic question was on its way, and its answer was about the queue before the flush."""

    async def act() -> None:
        line = AsteriskLine()
        await at(5_001)
        line.say(*[SPEECH] * 50)
        assert line.asked_ms() == [5_001]
        line.say(m.MediaClear(), *[OTHER] * 12)
        line.has(51)
        assert line.sent.count("FLUSH_MEDIA") == 1 and line.held == []
        line.has(0)
        assert line.sent.count("FLUSH_MEDIA") == 1 and line.held == [0]
        line.leaves()

    play(act)


def test_after_two_clears_the_answer_to_the_second_counts() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.say(m.MediaClear(), m.MediaClear())
        line.has(7)
        assert line.sent.count("FLUSH_MEDIA") == 2 and line.held == []
        line.has(7)
        assert line.sent.count("FLUSH_MEDIA") == 3, "it is not empty"
        line.leaves()

    play(act)


def test_an_unanswered_status_request_does_not_affect_later_answers() -> None:
    async def act() -> None:
        line = AsteriskLine()
        await at(5_001)
        line.say(SPEECH)  # asks
        await at(8_000)
        line.say(m.MediaClear())
        line.has(200)
        assert line.sent.count("FLUSH_MEDIA") == 2, "this is the answer behind the clear"
        line.leaves()

    play(act)


def test_asterisks_queue_is_counted_from_the_moment_of_the_request() -> None:
    async def act() -> None:
        line = AsteriskLine()
        at_ns: list[int] = []
        line.session.peer_holds = lambda _n_frames, now_ns: at_ns.append(now_ns)
        await at(5_001)
        line.say(SPEECH)
        await at(5_101)
        line.has(3)
        assert [round(each / 1e6) for each in at_ns] == [5_001]
        line.leaves()

    play(act)


def test_all_audio_that_is_sent_is_counted() -> None:
    async def act() -> None:
        line = AsteriskLine()
        sent = metrics.SENT_BYTES.labels(leg="media")._value
        before = sent.get()
        line.say(SPEECH, SPEECH, m.MediaMark("1.1"), OTHER)
        assert sent.get() - before == 480
        line.leaves()

    play(act)


def test_an_answer_in_time_that_is_not_empty_is_flushed_again() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.say(m.MediaClear())
        line.say(SPEECH)
        line.has(200)
        assert line.sent == ["FLUSH_MEDIA", "GET_STATUS", SPEECH.payload, "FLUSH_MEDIA", "GET_STATUS"]
        line.has(0)
        assert line.held == [0] and len(line.sent) == 5
        line.leaves()

    play(act)


@pytest.mark.parametrize("n_frames", [2, 50])
def test_frames_due_together_are_one_bulk_message(n_frames: int) -> None:
    frames = [m.Frame(bytes([n]) * 160) for n in range(n_frames)]
    whole = b"".join(frame.payload for frame in frames)

    async def act() -> None:
        line = AsteriskLine()
        line.say(*frames)
        line.say(*frames)
        assert line.sent == ["START_MEDIA_BUFFERING", whole, whole]
        line.leaves()

    play(act)


def test_a_single_frame_needs_no_bulk_mode() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.say(SPEECH)
        line.say(SPEECH, m.MediaMark("1.1", ends_turn=True))
        assert line.sent == [SPEECH.payload, SPEECH.payload, "MARK_MEDIA"]
        line.leaves()

    play(act)


def test_a_mark_is_in_its_place_between_frames_that_are_due_together() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.say(SPEECH, SPEECH, m.MediaMark("1.1"), OTHER, m.MediaMark("1.2"))
        both = SPEECH.payload * 2
        assert line.sent == ["START_MEDIA_BUFFERING", both, "MARK_MEDIA", OTHER.payload, "MARK_MEDIA"]
        line.leaves()

    play(act)


def test_the_bulk_ends_with_the_turn_and_the_next_one_begins_its_own() -> None:
    async def act() -> None:
        line = AsteriskLine()
        end = m.MediaMark("1.2", ends_turn=True)
        line.say(SPEECH, SPEECH, end)
        line.say(OTHER)  # silence between the turns
        line.say(OTHER, OTHER, end)
        a_turn = ["START_MEDIA_BUFFERING", SPEECH.payload * 2, "STOP_MEDIA_BUFFERING", "MARK_MEDIA"]
        assert line.sent[:5] == [*a_turn, OTHER.payload]
        assert line.sent[5:] == ["START_MEDIA_BUFFERING", OTHER.payload * 2, "STOP_MEDIA_BUFFERING", "MARK_MEDIA"]
        line.leaves()

    play(act)


def test_a_clear_ends_bulk_mode_and_drops_gathered_frames() -> None:
    """FLUSH_MEDIA ends Asterisk's bulk mode, and Asterisk cuts no messages until it is told again."""

    async def act() -> None:
        line = AsteriskLine()
        line.say(SPEECH, SPEECH)
        line.say(SPEECH, SPEECH, m.MediaClear(), OTHER, OTHER)
        assert line.sent == [
            "START_MEDIA_BUFFERING", SPEECH.payload * 2, "FLUSH_MEDIA", "GET_STATUS",
            "START_MEDIA_BUFFERING", OTHER.payload * 2,
        ]  # fmt: skip
        line.leaves()

    play(act)


def test_a_repeated_flush_ends_the_bulk_too() -> None:
    async def act() -> None:
        line = AsteriskLine()
        line.say(m.MediaClear(), SPEECH, SPEECH)
        line.has(200)
        line.say(OTHER, OTHER)
        assert line.sent[2:4] == ["START_MEDIA_BUFFERING", SPEECH.payload * 2]
        assert line.sent[4:] == ["FLUSH_MEDIA", "GET_STATUS", "START_MEDIA_BUFFERING", OTHER.payload * 2]
        line.leaves()

    play(act)


def test_frames_sent_after_a_clear_are_not_taken_for_flushed_ones() -> None:
    """Twenty frames in one message are twenty frames of its queue."""

    async def act() -> None:
        line = AsteriskLine()
        line.say(m.MediaClear(), *[SPEECH] * 20)
        line.has(20)
        assert line.sent.count("FLUSH_MEDIA") == 1 and line.held == [20]
        line.leaves()

    play(act)


def test_no_message_is_longer_than_asterisk_can_take() -> None:
    """With the widest format and the longest frames."""
    frame = m.Frame(bytes(48 * 2 * 60))

    async def act() -> None:
        line = AsteriskLine()
        line.say(*[frame] * 32)
        audio = [each for each in line.sent if isinstance(each, bytes)]
        assert max(map(len, audio)) <= 65_500 and b"".join(audio) == frame.payload * 32
        assert all(len(each) % len(frame.payload) == 0 for each in audio)
        line.leaves()

    play(act)


@pytest.mark.parametrize("n_frames", [1_001, 999_999_999])
def test_an_impossible_queue_length_is_ignored(n_frames: int, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the next speech would wait for months."""
    caplog.set_level(logging.WARNING)

    async def act() -> None:
        line = AsteriskLine()
        line.has(n_frames)
        assert line.held == []
        line.has(1_000)
        assert line.held == [1_000]
        line.leaves()

    play(act)
    (line,) = lines(caplog, "media_message_refused")
    assert line["call"] == "c1" and "room for 1000" in line["why"]
