"""What the model of a call must not take for a broken promise, each beside the broken promise that is like it."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import pytest

from telephony_tts.audio.g711 import encode_ulaw
from telephony_tts.engines.fake.engine import render
from torture import nemesis
from torture import violations as v
from torture.dialects import DIALECTS
from torture.histories import Fault, make_round
from torture.letters import MS_PER_LETTER, FrameReader
from torture.oracle import NativeOracle
from torture.player import Player
from torture.recordings import judge_recordings
from torture.surroundings import Surroundings
from torture.vendor_oracle import VendorOracle
from torture.violations import RecordingEnd, Stops, Tally

MS = 1_000_000


class NamedFrames(FrameReader):
    """A frame tells its letter in its first byte; "-" is a sound or a tone."""

    def letter(self, payload: bytes) -> str:
        return payload[:1].decode().replace("-", "")


class Watched:
    """A bot and its media leg, or a bot that has the audio. Times are in milliseconds from the begin."""

    def __init__(self, *, has_media: bool = True, may_fail: bool = False) -> None:
        self.tally, self.stops = Tally(), Stops()
        self.oracle = NativeOracle(
            self.tally, self.stops, has_media=has_media, may_fail=may_fail, reader=NamedFrames(), keeps_recorded=True
        )
        self.gets(0, {"type": "ready"})

    def sends(self, at_ms: float, message: dict[str, Any], letter: str = "") -> None:
        self.oracle.sent(message, round((1000 + at_ms) * MS), letter)

    def gets(self, at_ms: float, event: dict[str, Any]) -> None:
        self.oracle.event(event, round((1000 + at_ms) * MS))

    def hears(self, at_ms: float, letter: str, n: int = 1) -> None:
        for _ in range(n):
            self.oracle.frame(letter.encode() * 160, round((1000 + at_ms) * MS))

    def stopped(self, begin_ms: float, end_ms: float) -> None:
        self.stops.add(round((1000 + begin_ms) * MS), round((1000 + end_ms) * MS))

    def found(self, at_ms: float) -> list[str]:
        self.oracle.finish(round((1000 + at_ms) * MS), is_torn=True)
        return [violation.check for violation in self.tally.violations]

    def says(self, turn: str, letter: str, at_ms: float, n_frames: int = 10) -> None:
        """A turn of two words begins."""
        self.sends(at_ms, {"type": "say", "turn": turn, "text": letter * 3}, letter)
        self.hears(at_ms + 1, letter, n_frames)
        self.gets(at_ms + 2, {"type": "started", "turn": turn})


def cleared(turn: str, reason: str) -> dict[str, Any]:
    return {
        "type": "cleared", "turn": turn, "heard_text": "", "unheard_text": "ddd", "heard_chars": 0, "heard_ms": 0,
        "basis": "marks", "reason": reason,
    }  # fmt: skip


@pytest.mark.parametrize(("reason", "found"), [("hangup", []), ("clear", [v.SILENCE])])
def test_the_clear_of_a_pause_is_not_that_of_a_hangup(reason: str, found: list[str]) -> None:
    """A pause and its end come shortly before the telephone hangs up: speech goes on, and the leg that would be told
    to drop it is gone."""
    call = Watched()
    call.says("b1", "d", 0, 3)
    call.sends(3, {"type": "pause"})
    call.sends(3, {"type": "resume"})
    call.oracle.media_clear(round(1005 * MS))
    call.hears(6, "d", 8)
    if reason == "clear":
        call.sends(7, {"type": "clear"})
    call.gets(8, cleared("b1", reason))
    assert call.found(100) == found


@pytest.mark.parametrize(("what_comes", "found"), [
    ("the telephone leaves", []), ("its hangup is told", []), ("it leaves later", [v.SILENCE]),
    ("nothing", [v.SILENCE]), ("frames", [v.SILENCE]),
])  # fmt: skip
def test_the_clear_of_a_pause_is_not_that_of_the_turn(what_comes: str, found: list[str]) -> None:
    """Pinned: speech that goes on after a pause is cleared at once, and the telephone breaks its connection at the same
    time, so that it does not read the clear. The clear of the pause was taken for it, and the speech behind that for
    late. Without such a break its own clear has to come, also just behind that of a pause."""
    call = Watched()
    call.says("b1", "d", 0, 3)
    call.sends(3, {"type": "pause"})
    call.sends(3, {"type": "resume"})
    call.oracle.media_clear(round(1005 * MS))
    paused = {"type": "paused", "turn": "b1", "heard_text": "", "heard_ms": 2, "basis": "marks", "reason": "bot"}
    call.gets(5, paused)
    call.gets(5, {"type": "resumed", "turn": "b1", "from_ms": 0})
    call.hears(6, "d", 8)
    call.sends(7, {"type": "clear"})
    if what_comes == "the telephone leaves":
        call.oracle.telephone_left(round(1007 * MS))
    elif what_comes == "frames":
        call.oracle.media_clear(round(1008 * MS))
        call.hears(9, "d", 1)
    call.gets(9, cleared("b1", "clear"))
    if what_comes == "its hangup is told":
        call.gets(10, {"type": "hangup", "reason": "closed"})
    elif what_comes == "it leaves later":
        call.oracle.telephone_left(round(1200 * MS))
    assert call.found(300) == found


@pytest.mark.parametrize(("n_late", "found"), [(0, []), (1, [v.SILENCE])])
def test_the_clear_of_a_pause_is_that_of_a_turn_that_ends_in_it(n_late: int, found: list[str]) -> None:
    call = Watched()
    call.says("b1", "d", 0, 3)
    call.sends(3, {"type": "pause"})
    call.oracle.media_clear(round(1005 * MS))
    call.gets(5, {"type": "paused", "turn": "b1", "heard_text": "", "heard_ms": 2, "basis": "marks", "reason": "bot"})
    call.sends(6, {"type": "clear"})
    call.hears(8, "d", n_late)
    call.gets(9, cleared("b1", "clear"))
    assert call.found(300) == found


@pytest.mark.parametrize("is_file", [True, False])
def test_silence_at_the_beginning_of_a_file_is_of_the_turn_in_the_file(is_file: bool) -> None:
    """A turn has begun, and the file that comes next is still of the turn before it, behind a break."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    call.sends(1, {"type": "say", "turn": "b2", "text": "ggg"}, "g")
    call.gets(2, {"type": "started", "turn": "b2"})
    if is_file:
        call.oracle.file([frame.encode() * 160 for frame in "---dd"])
    call.hears(200, "-", 3)
    call.hears(200, "d", 2)
    frames = {turn: call.oracle.turns[turn].n_frames for turn in ("b1", "b2")}
    assert frames == ({"b1": 15, "b2": 0} if is_file else {"b1": 12, "b2": 3})


@pytest.mark.parametrize(("passed_on_ms", "heard_ms"), [(0, 50), (40, 90)])
def test_what_a_bridge_has_passed_on_is_heard_after_a_clear(passed_on_ms: int, heard_ms: int) -> None:
    """The telephone plays 40 ms late, and what it was sent cannot be taken back. 90 ms were sent."""
    player = Player(20 * MS, delay_ns=40 * MS)
    player.passed_on_ns = passed_on_ms * MS
    for n in range(10):
        player.take("b1", n * 20 * MS, 0)
    player.drop(90 * MS)
    assert player.heard_ns("b1", 500 * MS) == heard_ms * MS
    assert player.end_ns == (90 + passed_on_ms) * MS


def test_tones_may_come_before_the_event_that_tells_of_them() -> None:
    """Both legs are sockets of their own, and the first 200 ms of the tones come at once."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    call.sends(3, {"type": "dtmf", "digits": "1"})
    call.hears(190, "-", 8)
    call.gets(191, {"type": "started", "turn": "t2"})
    for n in range(42):
        call.hears(200 + 20 * n, "-")
    call.gets(1300, {"type": "done", "turn": "t2", "audio_ms": 1000, "chars": 0, "underruns": 0})
    assert call.found(2000) == []


def test_frames_that_were_dropped_before_the_bot_read_of_its_turn_are_not_heard() -> None:
    """The bot reads nothing for some time, in which the turn is paused twice."""
    call = Watched()
    call.sends(0, {"type": "say", "turn": "b1", "text": "ddd"}, "d")
    call.hears(1, "d", 10)
    for _ in range(2):
        call.sends(2, {"type": "pause"})
        call.sends(2, {"type": "resume"})
    for at_ms in (3, 5):
        call.oracle.media_clear(round((1000 + at_ms) * MS))
        call.hears(at_ms + 1, "d", 10)
    paused = {"type": "paused", "turn": "b1", "heard_text": "", "heard_ms": 1, "basis": "marks", "reason": "bot"}
    resumed = {"type": "resumed", "turn": "b1", "from_ms": 0}
    for event in (paused, resumed, {"type": "started", "turn": "b1"}, paused, resumed):
        call.gets(140, event)
    assert call.found(200) == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_frames_and_events_that_were_read_late_come_in_any_order(is_stopped: bool) -> None:
    """The torture itself stood still for a second: tones of that time are taken for the speech behind them, and all of
    it seems to come at once."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    call.sends(3, {"type": "dtmf", "digits": "1"})
    call.sends(3, {"type": "say", "turn": "b2", "text": "ggg"}, "g")
    if is_stopped:
        call.stopped(20, 1120)
    call.gets(1120, {"type": "started", "turn": "t2"})
    call.gets(1120, {"type": "started", "turn": "b2"})
    call.hears(1121, "-", 20)
    call.hears(1121, "g", 40)
    call.gets(1122, {"type": "done", "turn": "t2", "audio_ms": 400, "chars": 0, "underruns": 0})
    assert set(call.found(3000)) == (set() if is_stopped else {v.CLOCK})


@pytest.mark.parametrize(
    ("n_silent", "has_tones", "found"), [(5, False, []), (1, True, []), (1, False, [v.DONE]), (0, False, [v.DONE])]
)
def test_the_silence_at_the_end_of_a_turn_may_count_for_the_next_one(
    n_silent: int, has_tones: bool, found: list[str]
) -> None:
    """A bridge passes frames on later than the server tells of the next turn. Tones have no letter either."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    if has_tones:
        call.sends(3, {"type": "dtmf", "digits": "1"})
    call.sends(4, {"type": "say", "turn": "b2", "text": "ggg"}, "g")
    call.gets(300, {"type": "started", "turn": "b2"})
    for n in range(n_silent):
        call.hears(301 + 20 * n, "-")
    call.gets(450, {"type": "sentence", "turn": "b1", "index": 0, "text": "ddd", "start_ms": 0, "end_ms": 200})
    call.gets(500, {"type": "done", "turn": "b1", "audio_ms": 300, "chars": 3, "underruns": 0})
    assert call.found(600) == found


@pytest.mark.parametrize(("until_ms", "is_kept"), [(600, False), (150, True)])
def test_a_recording_may_have_a_gap_where_the_server_stood_still(until_ms: int, is_kept: bool) -> None:
    """It has read the marks of the peer late, and takes that for a gap at the peer."""
    call = Watched()
    call.gets(0, {"type": "recording", "state": "started", "file": "a.wav"})
    call.says("b1", "d", 10, 10)
    call.stopped(100, until_ms)
    call.gets(700, {"type": "done", "turn": "b1", "audio_ms": 200, "chars": 3, "underruns": 0})
    assert [file for file, _ in call.oracle.recorded] == (["a.wav"] if is_kept else [])


def test_a_turn_in_two_files_is_recorded_in_two_parts() -> None:
    """Each from its begin to the begin of the next one; without the silence at the begin and at the end of the turn."""
    call = Watched()
    call.gets(0, {"type": "recording", "state": "started", "file": "a.wav"})
    call.sends(0, {"type": "say", "turn": "b1", "text": "ddd"}, "d")
    call.gets(2, {"type": "started", "turn": "b1"})
    for at_ms, letters in ((10, "-ddd-"), (130, "-dd-")):
        call.oracle.file([letter.encode() * 160 for letter in letters])
        for letter in letters:
            call.hears(at_ms, letter)
    call.gets(300, {"type": "done", "turn": "b1", "audio_ms": 180, "chars": 3, "underruns": 0})
    ((file, parts),) = call.oracle.recorded
    assert file == "a.wav"
    assert [(at_ms, len(samples) // 2 * 1000 // 8000) for at_ms, samples in parts] == [(0, 80), (100, 60)]


@pytest.mark.parametrize(("until_ms", "found"), [(600, []), (300, [v.SILENCE])])
def test_frames_that_a_stopped_bridge_held_come_when_it_goes_on(until_ms: int, found: list[str]) -> None:
    """It stops when the turn is cleared, and has frames from before."""
    call = Watched()
    call.says("b1", "d", 0, 3)
    call.sends(100, {"type": "clear"})
    call.gets(101, {**cleared("b1", "clear"), "heard_ms": 60})
    call.stopped(120, until_ms)
    call.hears(610, "d", 2)
    assert call.found(1000) == found


BED = {"type": "play", "name": "hold", "under": True}


@pytest.mark.parametrize(
    ("last", "found"), [({"type": "close"}, []), ({"type": "close", "now": True}, [v.SOUNDS]),
                        ({"type": "play", "stop": True}, [v.SOUNDS])],
)  # fmt: skip
def test_a_sound_under_the_speech_goes_on_behind_a_close(last: dict[str, Any], found: list[str]) -> None:
    """§6.16: it ends with the call, and that goes on until all is spoken."""
    call = Watched()
    call.sends(0, BED)
    call.says("b1", "d", 10, 1)
    call.sends(30, last)
    for n in range(60):
        call.hears(300 + 20 * n, "d")
    for n in range(30):
        call.hears(1500 + 20 * n, "-")
    assert call.found(2200) == found


@pytest.mark.parametrize(("has_bed", "found"), [(True, []), (False, [v.DONE])])
def test_tones_behind_a_close_have_frames_of_the_sound_under_them(has_bed: bool, found: list[str]) -> None:
    """One frame of the sound alone comes before the tones are over."""
    call = Watched(has_media=False)
    if has_bed:
        call.sends(0, BED)
    call.sends(10, {"type": "dtmf", "digits": "12"})
    call.sends(10, {"type": "close"})
    call.gets(1520, {"type": "started", "turn": "t1"})
    for n in range(21):
        call.hears(1521 + 20 * n, "-")
    call.gets(1950, {"type": "done", "turn": "t1", "audio_ms": 400, "chars": 0, "underruns": 0})
    assert call.found(2000) == found


@pytest.mark.parametrize(("has_speech", "found"), [(True, []), (False, [v.HEARD])])
def test_tones_behind_speech_are_not_told_from_its_silence_after_a_pause(has_speech: bool, found: list[str]) -> None:
    """Both turns have started, and `resumed` names the first one. Alone, the place in the tones is known."""
    call = Watched(has_media=False)
    if has_speech:
        call.sends(0, {"type": "say", "turn": "b1", "text": "ddd"}, "d")
        call.gets(0, {"type": "started", "turn": "b1"})
        for n in range(10):
            call.hears(20 * n, "d")
    call.sends(150, {"type": "dtmf", "digits": "12"})
    call.gets(180, {"type": "started", "turn": "t2"})
    call.hears(181, "-", 3)
    call.sends(190, {"type": "pause"})
    first = "b1" if has_speech else "t2"
    call.gets(190, {"type": "paused", "turn": first, "heard_text": "", "heard_ms": 190 if has_speech else 9,
                    "basis": "clock", "reason": "bot"})  # fmt: skip
    call.sends(200, {"type": "resume"})
    call.gets(200, {"type": "resumed", "turn": first, "from_ms": 180 if has_speech else 0})
    for n in range(10):
        call.hears(201 + 20 * n, "-")
    call.sends(390, {"type": "clear"})
    heard_ms = 170 if has_speech else 17
    call.gets(390, {**cleared("t2", "clear"), "unheard_text": "", "heard_ms": heard_ms, "basis": "clock"})
    if has_speech:
        call.gets(390, {**cleared("b1", "clear"), "heard_ms": 200, "basis": "clock"})
    assert call.found(500) == found


@pytest.mark.parametrize(("has_clear", "found"), [(True, []), (False, [v.SILENCE])])
def test_the_telephone_has_to_drop_what_it_was_sent_of_a_cleared_turn(has_clear: bool, found: list[str]) -> None:
    """The clear of the media leg may come a little after `cleared`: it is another socket."""
    call = Watched()
    call.says("b1", "d", 0, 10)
    call.sends(40, {"type": "clear"})
    call.gets(41, {**cleared("b1", "clear"), "heard_ms": 40})
    if has_clear:
        call.oracle.media_clear(round(1045 * MS))
    assert call.found(100) == found


def test_frames_come_too_early_also_while_a_sound_is_under_them() -> None:
    call = Watched()
    call.sends(0, BED)
    call.says("b1", "d", 10, 40)
    assert call.found(100) == [v.CLOCK] * 26


@pytest.mark.parametrize(("code", "may_fail", "found"), [
    ("no_media", False, []), ("engine_failed", True, []), ("engine_failed", False, [v.ONE_END]),
    ("rate_limited", False, [v.ONE_END]), ("internal", True, [v.ONE_END]),
])  # fmt: skip
def test_a_turn_fails_only_by_what_was_done_to_its_call(code: str, may_fail: bool, found: list[str]) -> None:
    call = Watched(may_fail=may_fail)
    call.says("b1", "d", 0)
    call.gets(50, {"type": "error", "turn": "b1", "code": code, "message": ""})
    assert call.found(100) == found


def test_nothing_comes_behind_the_close() -> None:
    call = Watched()
    call.oracle.closed()
    call.gets(10, {"type": "pong", "id": 1})
    assert call.found(100) == [v.CLOSE]


@pytest.mark.parametrize(("letters", "n_letters", "found"), [
    ("aaaaaaaaaa", 10, []), ("aaaaaaaaaa", 8, [v.DONE]), ("aaaa ddddd.", 10, [v.SILENCE]),
])  # fmt: skip
def test_a_text_of_a_vendor_has_its_own_tones_and_all_of_them(letters: str, n_letters: int, found: list[str]) -> None:
    tally = Tally()
    oracle = VendorOracle(tally, Stops(), call=1, answers_cancel=True)
    oracle.wrote("t1", "a", "aaaaaaaaaa")
    oracle.completed("t1")
    pcm = render(letters[:n_letters], sample_rate_hz=8000, ms_per_char=MS_PER_LETTER, speed=1.0)
    oracle.audio(encode_ulaw(pcm), 0)
    if found != [v.SILENCE]:
        oracle.ended("t1")
    oracle.finish(is_torn=True)
    assert sorted({each.check for each in tally.violations}) == found


def ended(reason: str, length_ms: int, begin_ms: int = 0, end_ms: int = 3000) -> RecordingEnd:
    return RecordingEnd("20260101T000000Z-c1-0123456789ab.wav", reason, length_ms, begin_ms * MS, end_ms * MS, 1)


@pytest.mark.parametrize(
    ("end", "wrong"),
    [
        (ended("write_failed", 0), ""),
        (ended("write_failed", 0, 5000, 8000), "write_failed"),
        (ended("write_failed", 0, 0, 900), "write_failed"),
        (ended("write_failed", 2000), "after 2000 ms, and has 0 ms"),
        (ended("disk_full", 0), "disk_full"),
        (ended("call_ended", 0), "ended with call_ended, and is not there"),
        (ended("max_s", 0), "max_s"),
    ],
)
def test_a_recording_fails_only_while_a_server_has_no_descriptor(end: RecordingEnd, wrong: str, tmp_path: Path) -> None:
    """The file was never opened. What is told of it is true: it has no length."""
    tally, no_descriptors = Tally(recording_ends=[end]), Stops()
    no_descriptors.add(1000 * MS, 2000 * MS)
    judge_recordings(tmp_path, [], tally, may_lack_ends=True, no_descriptors=no_descriptors, may_be_full=False)
    assert [wrong in each.what for each in tally.violations] == ([True] if wrong else [])
    assert not tally.recording_ends


@pytest.mark.parametrize(("length_ms", "is_right"), [(1000, True), (3000, False)])
def test_a_recording_that_a_full_disk_has_ended_is_as_long_as_it_is_told(
    length_ms: int, is_right: bool, tmp_path: Path
) -> None:
    end = ended("disk_full", length_ms)
    with wave.open(str(tmp_path / end.file), "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(4 * 8000))
    (tmp_path / end.file).with_suffix(".jsonl").write_text("")
    tally = Tally(recording_ends=[end])
    judge_recordings(tmp_path, [], tally, may_lack_ends=True, no_descriptors=Stops(), may_be_full=True)
    assert len(tally.violations) == (not is_right), tally.violations


@pytest.mark.parametrize(
    ("info", "may_refuse", "is_wrong"),
    [("no room for another call", True, False), ("no room for another call", False, True), ("a fault", True, True)],
)
def test_genesys_refuses_a_call_only_where_there_may_be_no_room(info: str, may_refuse: bool, is_wrong: bool) -> None:
    dialect = DIALECTS["genesys"]()
    dialect.may_refuse = may_refuse
    told = {"version": "2", "id": "e160e428", "seq": 1, "clientseq": 0, "type": "disconnect"}
    dialect.read({**told, "parameters": {"reason": "error", "info": info}})
    assert [check for check, _ in dialect.wrong] == [v.CLOSE] * is_wrong


def test_a_refused_text_excuses_no_error_of_a_sound_and_makes_none_wrong() -> None:
    call = Watched()
    call.says("b1", "d", 0)
    call.sends(20, {"type": "play", "turn": "b1", "url": "http://127.0.0.1/sounds/moved.wav?1"})
    call.gets(30, {"type": "error", "code": "turn_closed", "about": "b1", "message": "", "fatal": False})
    call.gets(40, {"type": "error", "code": "bad_sound", "about": "b1", "message": "", "fatal": False})
    assert v.SOUNDS not in call.found(600)


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_bad_sound_for_a_turn_that_the_server_has_ended_is_refused_and_not_looked_for(is_refused: bool) -> None:
    call = Watched()
    call.says("b1", "d", 0)
    call.sends(20, {"type": "play", "turn": "b1", "url": "http://127.0.0.1/sounds/moved.wav?1"})
    if is_refused:
        call.gets(21, {"type": "error", "code": "turn_closed", "about": "b1", "message": "", "fatal": False})
    call.gets(500, {"type": "done", "turn": "b1", "chars": 3, "audio_ms": 200, "underruns": 0})
    assert (v.SOUNDS in call.found(600)) is not is_refused


def test_a_connection_may_be_reset_only_while_the_server_gets_no_memory() -> None:
    around = Surroundings(0, Tally(), Stops())
    assert not around.excuses_failed_connection(ConnectionResetError(104, "Connection reset by peer"))
    around.has_memory = False
    assert around.excuses_failed_connection(ConnectionResetError(104, "Connection reset by peer"))
    assert not around.excuses_failed_connection(ConnectionRefusedError(111, "Connection refused"))
    assert not around.excuses_failed_connection(TimeoutError("no answer within 5 s"))


def test_new_calls_may_be_refused_only_after_a_long_stop_of_the_engine() -> None:
    assert nemesis.makes_engine_stale(make_round(75, 2, n_calls=90).faults)
    assert nemesis.makes_engine_stale((Fault(1000, "stop_engine", 700), Fault(1750, "stop_engine", 300)))
    assert not nemesis.makes_engine_stale((Fault(1000, "stop_engine", 700),))
    assert not nemesis.makes_engine_stale((Fault(1000, "stop_engine", 400), Fault(1300, "stop_engine", 300)))
    assert not nemesis.makes_engine_stale((Fault(1000, "stop_engine", 700), Fault(2500, "stop_engine", 700)))
    assert not nemesis.makes_engine_stale((Fault(1000, "stop_server", 700), Fault(1700, "stop_server", 700)))
