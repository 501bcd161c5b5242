"""The bot's tones stand in order with its speech, as a message to the platform or in the audio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dtmf_reader import HeardKey, heard_keys
from world import World

from telephony_tts.audio.encoder import CODECS
from telephony_tts.session.settings import DtmfSettings, SessionSettings
from telephony_tts.wire import messages as m

BEFORE_MS = 40
"""Silence before the first tone in the audio."""


def world(by: str = "auto", on_ms: int = 100, off_ms: int = 100, **others: Any) -> World:
    names = ("lead_ms", "codec", "rate_hz", "whole_sentences")
    settings = {name: others.pop(name) for name in names if name in others}
    how = SessionSettings(first_clause_chars=0, dtmf=DtmfSettings(by, on_ms, off_ms), **settings)
    return World(how, **{"ms_per_char": 20, **others})


def platform(by: str = "auto", **others: Any) -> World:
    """A leg that has a message for tones."""
    return world(by, peer=True, peer_dtmf=True, **others)


def audio(of: World) -> np.ndarray:
    codec = CODECS[of.session.settings.codec]
    return codec.decode(b"".join(payload for _, _, payload in of.frames))


def keys(of: World) -> list[HeardKey]:
    return heard_keys(audio(of), of.session.settings.rate_hz)


def digits(of: World) -> str:
    return "".join(key.digit for key in keys(of))


def when(of: World, kind: type, for_ms: int) -> list[float]:
    """Let time pass; the moments at which events of this kind came."""
    at_ms, n_seen = [], len(of.of(kind))
    for _ in range(for_ms // 5):
        of.run(5)
        at_ms += [of.now_ms] * (len(of.of(kind)) - n_seen)
        n_seen = len(of.of(kind))
    return at_ms


# ------------------------------------------------------------------------- as audio


@pytest.mark.parametrize(("codec", "rate_hz"), [("ulaw", 8000), ("alaw", 8000), ("pcm", 8000), ("pcm", 16000)])
def test_tones_without_speech_are_a_turn_of_their_own(codec: str, rate_hz: int) -> None:
    line = world(codec=codec, rate_hz=rate_hz)
    line.send(m.SendDtmf("159*0#AD"))
    line.run(5000)
    assert digits(line) == "159*0#AD"
    assert [fault for key in keys(line) for fault in key.faults()] == []
    assert [started.turn for started in line.of(m.Started)] == ["t1"]
    (done,) = line.of(m.Done)
    assert (done.turn, done.audio_ms, done.chars) == ("t1", BEFORE_MS + 1600, 0)
    assert not line.of(m.WarningEvent) and not line.of(m.SentenceSpoken)


@pytest.mark.parametrize("lead_ms", [0, 200, 1000])
def test_tones_stand_between_the_text_before_and_behind_them(lead_ms: int) -> None:
    line = world(lead_ms=lead_ms)
    line.send(m.Text("One two three. ", "a"))
    line.send(m.SendDtmf("4w2"))
    line.send(m.Text("Four five.", "a", True))
    line.run(8000)
    assert digits(line) == "42"
    one, two = keys(line)
    speech_ms = 14 * 20
    assert one.at_ms == pytest.approx(speech_ms + BEFORE_MS, abs=5) and one.before_ms >= BEFORE_MS - 5
    assert two.before_ms == pytest.approx(100 + 500, abs=5)
    behind = audio(line)[round((two.at_ms + 195) * 8) :]
    assert len(behind) == pytest.approx(10 * 20 * 8, abs=200) and np.median(np.abs(behind)) > 1000
    assert [done.turn for done in line.of(m.Done)] == ["a"]


def test_tones_behind_a_turn_that_is_complete_are_the_next_turn() -> None:
    line = world()
    line.say("One two three.", "a")
    line.send(m.SendDtmf("7"))
    line.say("Four.", "b")
    line.run(8000)
    assert [done.turn for done in line.of(m.Done)] == ["a", "t2", "b"]
    (key,) = keys(line)
    assert key.digit == "7" and key.at_ms == pytest.approx(14 * 20 + BEFORE_MS, abs=20)


def test_tones_stand_behind_all_turns_not_inside_the_first_open_one() -> None:
    line = world()
    line.send(m.Text("One. ", "a"))
    line.say("Two.", "b")
    line.send(m.SendDtmf("7"))
    line.send(m.Text("Three.", "a", True))
    line.run(8000)
    assert [done.turn for done in line.of(m.Done)] == ["a", "b", "t3"]
    (key,) = keys(line)
    assert key.at_ms == pytest.approx(4 * 20 + 6 * 20 + 4 * 20 + BEFORE_MS, abs=20)


def test_marks_tell_when_the_tones_are_over() -> None:
    line = world()
    line.send(m.Text("One two. ", "a"))
    line.send(m.Mark("before", "a"))
    line.send(m.SendDtmf("123"))
    line.send(m.Mark("behind", "a"))
    at_ms = when(line, m.MarkReached, 3000)
    assert [mark.name for mark in line.of(m.MarkReached)] == ["before", "behind"]
    assert at_ms[1] - at_ms[0] == pytest.approx(BEFORE_MS + 600, abs=10)


@pytest.mark.parametrize("peer", [False, True])
@pytest.mark.parametrize("timings", [False, True])
@pytest.mark.parametrize("into_ms", [0, 5, 400])
def test_a_step_back_after_a_pause_dials_no_tone_again(peer: bool, timings: bool, into_ms: int) -> None:
    line = world(peer=peer, timings=timings)
    line.send(m.Configure(step_back_ms=1000))
    line.send(m.Text("One two three. ", "a"))
    line.send(m.SendDtmf("59"))
    line.send(m.Text("Four five six seven eight nine ten eleven twelve.", "a", True))
    tones_end_ms = 14 * 20 + BEFORE_MS + 400
    line.run(tones_end_ms + into_ms)
    line.send(m.PauseSpeech())
    line.run(500)
    line.send(m.ResumeSpeech())
    line.run(5000)
    assert digits(line) == "59"
    (resumed,) = line.of(m.Resumed)
    assert resumed.from_ms == pytest.approx(tones_end_ms, abs=20), "all the speech behind the tones comes again"
    assert [done.turn for done in line.of(m.Done)] == ["a"]


def test_a_step_back_after_a_pause_goes_over_silence_in_which_the_platform_sent_tones() -> None:
    line = platform()
    line.send(m.Configure(step_back_ms=1000))
    line.send(m.Text("One two three. ", "a"))
    line.send(m.SendDtmf("59"))
    line.send(m.Text("Four five six seven eight nine ten eleven twelve.", "a", True))
    line.run(14 * 20 + 500 + 300)
    line.send(m.PauseSpeech())
    line.send(m.ResumeSpeech())
    line.run(5000)
    assert line.of(m.Resumed)[0].from_ms < 14 * 20
    assert line.of(m.MediaTones) == [m.MediaTones("59", 100, 100)], "it is not asked for them again"


def test_the_length_of_tones_can_be_set() -> None:
    line = world(on_ms=250, off_ms=60)
    line.send(m.SendDtmf("12"))
    line.run(3000)
    one, two = keys(line)
    assert one.on_ms == pytest.approx(250, abs=5) and two.before_ms == pytest.approx(60, abs=5)


@pytest.mark.parametrize("speed", [0.5, 0.98, 1.02, 2.0])
def test_tones_keep_pitch_and_length_in_a_turn_of_another_speed(speed: float) -> None:
    """Played 2 % faster, no key is read by spandsp or Asterisk."""
    line = world()
    line.send(m.Configure(speed=speed))
    line.send(m.Say("Please wait.", "t1"))
    line.send(m.SendDtmf("159D"))
    line.run(6000)
    assert digits(line) == "159D"
    assert [fault for key in keys(line) for fault in key.faults()] == []


def test_a_clear_drops_the_tones_that_were_not_heard_and_names_them() -> None:
    line = world(lead_ms=400)
    line.send(m.SendDtmf("12345"))
    line.run(BEFORE_MS + 330)  # the second tone ends at 300 ms
    line.send(m.Clear())
    (warning,) = line.of(m.WarningEvent)
    assert (warning.code, warning.turn) == ("dtmf_cleared", "t1") and warning.message.endswith(": 345")
    (cleared,) = line.of(m.Cleared)
    assert cleared.turn == "t1" and cleared.heard_text == ""
    assert line.events.index(warning) < line.events.index(cleared)


def test_tones_that_were_all_heard_are_not_warned_of() -> None:
    line = world()
    line.send(m.Text("One. ", "a"))
    line.send(m.SendDtmf("12"))
    line.run(1200)
    line.send(m.Clear())
    assert line.of(m.Cleared) and not line.of(m.WarningEvent)


def test_tones_survive_another_format_of_the_media_leg() -> None:
    line = world(peer=False)
    line.session.writable(False)
    line.send(m.SendDtmf("90"))
    line.run(100)
    line.session.attach_media(line.now_ns, marks=False, clears=True, start=m.MediaStart("c", "s", "pcm", 16_000))
    line.session.writable(True)
    line.pump()
    line.run(3000)
    assert digits(line) == "90" and [fault for key in keys(line) for fault in key.faults()] == []


# ----------------------------------------------------------------------- as a message


def test_a_platform_gets_tones_at_once_if_nothing_is_spoken_and_later_speech_waits() -> None:
    line = platform()
    line.send(m.SendDtmf("12#"))
    assert line.of(m.MediaTones) == [m.MediaTones("12#", 100, 100)]
    line.say("One two.", "a")
    line.run(5000)
    assert 700 <= line.frames[0][0] <= 720, "the peer has nothing to play and would play it at once"
    assert line.of(m.MediaTones) == [m.MediaTones("12#", 100, 100)]
    assert [done.turn for done in line.of(m.Done)] == ["a"], "the tones are no turn"


@pytest.mark.parametrize("whole_sentences", [False, True])
@pytest.mark.parametrize("lead_ms", [40, 200, 1000])
@pytest.mark.parametrize(("on_ms", "off_ms"), [(50, 40), (60, 300), (250, 100)])
def test_speech_waits_as_long_as_a_platform_takes_for_tones(
    on_ms: int, off_ms: int, lead_ms: int, whole_sentences: bool
) -> None:
    """Asterisk and FreeSWITCH send no tone shorter than 100 ms, or make a far longer one of it."""
    line = platform(on_ms=on_ms, off_ms=off_ms, lead_ms=lead_ms, whole_sentences=whole_sentences)
    line.send(m.SendDtmf("1234"))
    assert line.of(m.MediaTones) == [m.MediaTones("1234", max(on_ms, 100), off_ms)]
    line.say("One two.", "a")
    line.run(200)
    line.send(m.SendDtmf("567"))
    line.run(8000)
    tones_ms = 4 * (max(on_ms, 100) + off_ms)
    assert line.frames[0][0] >= tones_ms + 100
    assert line.of(m.MediaTones)[1:] == [m.MediaTones("567", max(on_ms, 100), off_ms)]
    assert line.of(m.Done)[-1].audio_ms == pytest.approx(3 * (max(on_ms, 100) + off_ms) + 100, abs=20)


def test_our_own_tones_may_be_shorter_than_those_of_a_platform() -> None:
    line = platform("tones", on_ms=50, off_ms=40)
    line.send(m.SendDtmf("12"))
    line.run(1000)
    assert digits(line) == "12" and [key.on_ms for key in keys(line)] == pytest.approx([50, 50], abs=5)


def test_a_platform_gets_tones_when_the_speech_before_them_was_heard() -> None:
    line = platform(peer_delay_ms=300)
    line.send(m.Text("One two three. ", "a"))
    line.send(m.SendDtmf("4w2"))
    line.send(m.Text("Four five.", "a", True))
    (at_ms,) = when(line, m.MediaTones, 5000)
    assert at_ms == pytest.approx(300 + 14 * 20, abs=60)
    assert digits(line) == "", "no tones in the audio"
    quiet = np.abs(audio(line)) < 100
    assert quiet.sum() == pytest.approx((200 + 500 + 200 + 100) * 8, abs=500), "speech waits for as long as they take"


def test_a_platform_gets_tones_behind_a_turn_that_is_complete() -> None:
    line = platform()
    line.say("One two three.", "a")
    line.run(200)
    line.send(m.SendDtmf("5"))
    line.say("Four.", "b")
    (at_ms,) = when(line, m.MediaTones, 5000)
    assert at_ms == pytest.approx(14 * 20, abs=80)
    assert [done.turn for done in line.of(m.Done)] == ["a", "t2", "b"]
    assert not line.of(m.WarningEvent) and not line.of(m.MarkReached)


def test_a_platform_never_gets_tones_of_a_turn_that_was_cleared_before_them() -> None:
    line = platform()
    line.send(m.Text("One two three four five six seven eight. ", "a"))
    line.send(m.SendDtmf("12"))
    line.send(m.SendDtmf("w3"))
    line.run(300)
    line.send(m.Clear())
    line.run(3000)
    assert not line.of(m.MediaTones)
    (warning,) = line.of(m.WarningEvent)
    assert warning.code == "dtmf_cleared" and warning.message.endswith(": 12w3") and warning.turn == "a"


@pytest.mark.parametrize("end", [m.MediaStop(), m.Close(now=True)])
def test_the_end_of_the_call_names_the_tones_that_wait(end: Any) -> None:
    line = platform()
    line.say("One two three four.", "a")
    line.send(m.SendDtmf("12"))
    line.run(100)
    line.send(end)
    assert [(warning.code, warning.turn) for warning in line.of(m.WarningEvent)] == [("dtmf_cleared", "t2")]
    assert not line.of(m.MediaTones)


def test_close_speaks_and_sends_everything_first() -> None:
    line = platform()
    line.say("One two three four.", "a")
    line.send(m.SendDtmf("12"))
    line.send(m.Close())
    line.run(5000)
    assert line.of(m.MediaTones) and line.finished and not line.of(m.WarningEvent)


def test_a_platform_that_plays_files_gets_tones_between_them() -> None:
    line = platform(whole_sentences=True)
    line.send(m.Text("One two three. ", "a"))
    line.send(m.SendDtmf("42"))
    line.send(m.Text("Four five.", "a", True))
    (at_ms,) = when(line, m.MediaTones, 5000)
    assert at_ms == pytest.approx(14 * 20, abs=80)
    assert [done.turn for done in line.of(m.Done)] == ["a"]


# --------------------------------------------------------------------------- which of them


def test_a_bot_decides_for_its_call() -> None:
    line = platform("tones")
    line.send(m.SendDtmf("1"))
    line.run(1000)
    assert not line.of(m.MediaTones) and digits(line) == "1"
    line.send(m.Configure(dtmf="auto"))
    line.send(m.SendDtmf("2"))
    line.run(1000)
    assert line.of(m.MediaTones) == [m.MediaTones("2", 100, 100)] and digits(line) == "1"
    other = world(peer=True)
    other.send(m.Configure(dtmf="message"))
    other.send(m.SendDtmf("3"))
    other.run(1000)
    (warning,) = other.of(m.WarningEvent)
    assert warning.code == "dtmf_not_supported" and not other.frames


def test_a_flood_of_requests_is_bounded() -> None:
    line = world(media=True)
    line.send(m.Text("One two three. ", "a"))
    for n in range(300):
        line.send(m.SendDtmf(str(n % 10)))
    warnings = line.of(m.WarningEvent)
    assert len(warnings) == 300 - 256 and {warning.code for warning in warnings} == {"dtmf_cleared"}
    line.send(m.Clear())
    assert len(line.of(m.WarningEvent)[-1].message) < 400
