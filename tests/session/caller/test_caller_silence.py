"""`caller_silent`: the bot is told when there was no speech for a while. Simulated time, and a detector by level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from world import World

from telephony_tts.audio.g711 import encode_ulaw
from telephony_tts.runtime.errors import AudioError
from telephony_tts.session.settings import BargeInSettings, CallerSettings, SessionSettings
from telephony_tts.wire import messages as m

N_FRAME = 160
QUIET = b"\xff" * N_FRAME
VOICE = encode_ulaw(np.full(N_FRAME, 8000, np.int16) * np.tile([1, -1], N_FRAME // 2).astype(np.int16))


def by_level() -> Any:
    """A detector that takes every loud window for voice."""
    return lambda window, state: (1.0 if np.abs(window).max() > 0.1 else 0.0, state)


def line(silent_ms: int = 1000, **world: Any) -> World:
    settings = SessionSettings(
        first_clause_chars=0, barge_in=world.pop("barge_in", BargeInSettings()), caller=CallerSettings(silent_ms),
        whole_sentences=world.pop("whole_sentences", False),
    )  # fmt: skip
    return World(settings, peer=True, **{"voice_model": by_level, **world})


def told(world: World) -> list[tuple[float, int]]:
    """(when, ms) of each event."""
    return [(at_ms, event.ms) for at_ms, event in timeline(world)]


def timeline(world: World) -> list[tuple[float, Any]]:
    return world.__dict__.setdefault("silences", [])


def listen(world: World, ms: int, frame: bytes | None = None, step_ms: int = 20) -> None:
    """Let time pass. The peer sends `frame` every 20 ms, or nothing."""
    seen = len(world.of(m.CallerSilent))
    for _ in range(ms // step_ms):
        world.run(step_ms)
        if frame is not None:
            world.send(m.MediaAudio(frame))
        new = world.of(m.CallerSilent)[seen:]
        timeline(world).extend((world.now_ms, event) for event in new)
        seen += len(new)


@pytest.mark.parametrize("frame", [None, QUIET], ids=["the peer sends nothing", "the peer sends silence"])
def test_the_bot_is_told_after_the_time_and_at_each_multiple(frame: bytes | None) -> None:
    world = line(1000)
    listen(world, 3500, frame)
    assert told(world) == [(1000, 1000), (2000, 2000), (3000, 3000)]


def test_nothing_is_told_and_nothing_is_heard_while_it_is_off() -> None:
    def never() -> Any:
        raise AssertionError("the detector is not needed")

    world = line(0, voice_model=never)
    listen(world, 3000, VOICE)
    assert told(world) == []
    assert not world.session.wants_audio
    assert world.session.deadline_ns() == world.start_ns + 3600 * 1_000_000_000, "only the idle limit wakes it"


def test_the_time_begins_when_the_media_leg_comes() -> None:
    waiting = World(SessionSettings(caller=CallerSettings(1000)), media=False, voice_model=by_level)
    waiting.run(5000)
    assert waiting.of(m.CallerSilent) == []
    waiting.session.attach_media(waiting.now_ns, marks=False, clears=True)
    waiting.pump()
    waiting.run(990)
    assert waiting.of(m.CallerSilent) == []
    waiting.run(20)
    assert waiting.of(m.CallerSilent) == [m.CallerSilent(1000)]


def test_a_call_without_a_media_leg_is_told_nothing() -> None:
    world = World(SessionSettings(caller=CallerSettings(500)), voice_model=by_level)
    world.say("Hello there.")
    world.run(10_000)
    assert world.of(m.CallerSilent) == []


@pytest.mark.parametrize("frame", [None, QUIET], ids=["then nothing", "then silence"])
def test_the_callers_voice_begins_the_time_anew_from_its_end(frame: bytes | None) -> None:
    world = line(1000)
    listen(world, 800)
    listen(world, 600, VOICE)
    listen(world, 2500, frame)
    (first, one), (second, two) = told(world)
    assert (one, two) == (1000, 2000)
    assert 2400 - 32 <= first <= 2400 + 40 and second - first == 1000
    assert world.of(m.CallerSpeech) == [], "barge-in is off"
    assert not world.of(m.Cleared)


def test_nothing_is_told_while_the_caller_speaks() -> None:
    world = line(500)
    listen(world, 400)
    listen(world, 3000, VOICE)
    assert told(world) == []


def test_a_voice_that_has_just_begun_is_not_talked_over() -> None:
    """It is too short so far to be speech, and becomes speech."""
    world = line(1000)
    listen(world, 940)
    listen(world, 1000, VOICE)
    assert told(world) == []


def test_a_cough_delays_and_does_not_begin_the_time_anew() -> None:
    world = line(1000)
    listen(world, 920)
    listen(world, 100, VOICE)
    listen(world, 400, QUIET)
    ((at_ms, ms),) = told(world)
    assert ms == 1000 and 1020 + 128 < at_ms <= 1020 + 128 + 96


def test_a_key_begins_the_time_anew() -> None:
    world = line(1000)
    listen(world, 900)
    world.send(m.MediaDtmf("5"))
    listen(world, 1500)
    assert told(world) == [(1900, 1000)]


def test_the_time_counts_from_the_end_of_what_the_caller_hears() -> None:
    """A second of speech is sent well ahead, and the peer plays 300 ms late."""
    world = line(1000, peer_delay_ms=300, ms_per_char=50)
    listen(world, 900)
    world.say("a" * 39 + ".")  # 2 s
    listen(world, 5000)
    (first, one), (second, _) = told(world)
    assert one == 1000 and second - first == 1000
    assert 900 + 300 + 2000 + 1000 <= first <= 900 + 300 + 2000 + 1000 + 60


def test_each_silence_is_counted_for_itself() -> None:
    world = line(1000, ms_per_char=20)
    listen(world, 1500)
    world.say("a" * 49 + ".")  # 1 s
    listen(world, 2500)
    assert [ms for _, ms in told(world)] == [1000, 1000]


def test_a_bot_that_pauses_inside_its_turn_is_told() -> None:
    world = line(1000, ms_per_char=50)
    world.send(m.Text("Hello there. ", "a"))
    listen(world, 600)  # `text_timeout_ms` is over
    assert world.frames
    listen(world, 2000)
    ((at_ms, ms),) = told(world)
    assert ms == 1000 and at_ms == pytest.approx(500 + 12 * 50 + 1000, abs=40)


def test_speech_that_was_cleared_is_not_waited_for() -> None:
    world = line(1000)
    world.say("a" * 200 + ".")
    listen(world, 500)
    world.send(m.Clear())
    assert world.of(m.Cleared)
    listen(world, 1600)
    assert told(world) == [(1500, 1000)]


def test_a_pause_is_silence() -> None:
    world = line(1000)
    world.say("a" * 200 + ".")
    listen(world, 500)
    world.send(m.PauseSpeech())
    assert world.of(m.Paused)
    listen(world, 1200)
    assert told(world) == [(1500, 1000)]
    world.send(m.ResumeSpeech())
    listen(world, 5000)
    assert len(told(world)) == 1


def test_a_late_wake_up_tells_the_last_multiple_once() -> None:
    world = line(1000)
    world.jump(2500)
    world.pump()
    assert world.of(m.CallerSilent) == [m.CallerSilent(2000)]
    world.run(1000)
    assert world.of(m.CallerSilent)[1:] == [m.CallerSilent(3000)]


def test_a_bot_can_turn_it_on_and_off() -> None:
    world = line(0)
    listen(world, 5000)
    world.send(m.Configure(caller_silent_ms=700))
    listen(world, 1500)
    assert told(world) == [(5700, 700), (6400, 1400)]
    world.send(m.Configure(caller_silent_ms=0))
    listen(world, 3000, VOICE)
    assert len(told(world)) == 2 and not world.session.wants_audio


def test_barge_in_beside_it_works_as_ever() -> None:
    world = line(1000, barge_in=BargeInSettings(enabled=True, hold_off_ms=0))
    world.say("a" * 200 + ".", "a")
    listen(world, 600, QUIET)
    listen(world, 500, VOICE)
    (cleared,) = world.of(m.Cleared)
    assert cleared.reason == "barge_in"
    listen(world, 2000, QUIET)
    assert [event.state for event in world.of(m.CallerSpeech)] == ["speaking", "silent"]
    assert [ms for _, ms in told(world)] == [1000]


def test_barge_in_can_be_turned_on_while_the_caller_speaks() -> None:
    world = line(1000)
    listen(world, 600, VOICE)
    world.send(m.Configure(barge_in="on"))
    listen(world, 200, VOICE)
    listen(world, 800, QUIET)
    assert [event.state for event in world.of(m.CallerSpeech)] == ["speaking", "silent"]
    world.send(m.Configure(barge_in="off"))
    listen(world, 3000, QUIET)
    assert told(world), "it still listens"


@pytest.mark.parametrize("after_ms", [0, 60_000])
@pytest.mark.parametrize("sends_silence", [True, False])
def test_speech_in_which_barge_in_is_turned_off_interrupts_nothing_later(after_ms: int, sends_silence: bool) -> None:
    """Whether or not the server goes on listening."""
    world = line(after_ms, barge_in=BargeInSettings(enabled=True, hold_off_ms=0))
    listen(world, 600, VOICE)
    world.send(m.Configure(barge_in="off"))
    listen(world, 10_000, QUIET if sends_silence else None)
    world.say("a" * 200 + ".", "a")
    listen(world, 2000, QUIET if sends_silence else None)
    world.send(m.Configure(barge_in="on"))
    listen(world, 2000, QUIET)
    assert [event.state for event in world.of(m.CallerSpeech)] == ["speaking", "silent"]
    assert not world.of(m.Cleared)
    listen(world, 600, VOICE)
    assert [cleared.reason for cleared in world.of(m.Cleared)] == ["barge_in"]


def test_speech_in_which_barge_in_is_turned_on_interrupts_nothing_after_its_end() -> None:
    """The peer sends nothing while the caller is silent."""
    world = line(60_000, barge_in=BargeInSettings(enabled=False, hold_off_ms=0))
    listen(world, 600, VOICE)
    world.send(m.Configure(barge_in="on"))
    listen(world, 10_000)
    world.say("a" * 200 + ".", "a")
    listen(world, 2000)
    listen(world, 2000, QUIET)
    assert [event.state for event in world.of(m.CallerSpeech)] == ["speaking", "silent"]
    assert not world.of(m.Cleared)


def test_a_server_without_a_detector_says_so() -> None:
    world = line(0, voice_model=None)
    world.send(m.Configure(caller_silent_ms=1000))
    listen(world, 3000, VOICE)
    (warning,) = world.of(m.WarningEvent)
    assert warning.code == "caller_silent_unavailable" and "does not listen" in warning.message
    assert told(world) == []


def test_a_detector_that_cannot_be_loaded_ends_both_uses_with_a_warning_each() -> None:
    def broken() -> Any:
        raise AudioError("no model")

    world = line(1000, voice_model=broken, barge_in=BargeInSettings(enabled=True))
    listen(world, 3000, VOICE)
    assert [warning.code for warning in world.of(m.WarningEvent)] == [
        "barge_in_unavailable", "caller_silent_unavailable",
    ]
    assert told(world) == [] and not world.session.wants_audio


def test_a_call_that_has_ended_is_told_nothing() -> None:
    world = line(1000)
    world.send(m.MediaStop())
    world.jump(5 * 1000)
    world.pump()
    assert world.of(m.CallerSilent) == []


def test_a_file_that_waits_to_be_played_is_speech_of_ours() -> None:
    """A peer that plays files reports their begin and end, and nothing is silent before that."""
    world = line(1000, whole_sentences=True, peer_delay_ms=4000, ms_per_char=20)
    world.say("a" * 49 + ".")  # 1 s, played 4 s late
    listen(world, 8000)
    assert told(world)[0][0] == pytest.approx(4000 + 1000 + 1000, abs=100)
