"""A telephone on hold plays nothing: speech waits, nothing counts as heard meanwhile, and every mark stays honest."""

from __future__ import annotations

import random
from typing import Any

import pytest
from world import World

from telephony_tts.session.settings import CallerSettings, SessionSettings
from telephony_tts.wire import messages as m

TEXT = "Your parcel left the depot and comes soon."
STARTED, ENDED = m.MediaHold(True), m.MediaHold(False)


def spoken(peer: bool = True, **how: Any) -> World:
    """A turn of 2.1 s with a mark in the middle and one at its end, one second after it began."""
    world = World(SessionSettings(first_clause_chars=0), peer=peer, peer_delay_ms=20 if peer else 0, **how)
    world.send(m.Text("Your parcel left the depot and ", "a"))
    world.send(m.Mark("middle", "a"))
    world.send(m.Text("comes soon.", "a", last=True))
    world.send(m.Mark("end", "a"))
    world.run(1000)
    return world


def kinds(world: World) -> list[str]:
    told = (m.Hold, m.Paused, m.Resumed, m.Started, m.Done, m.Cleared, m.MarkReached, m.WarningEvent)
    return [
        f"hold {event.state}" if isinstance(event, m.Hold) else type(event).__name__
        for event in world.events if isinstance(event, told)
    ]  # fmt: skip


@pytest.mark.parametrize("peer", [True, False], ids=["by marks", "by the clock"])
def test_nothing_is_sent_or_heard_in_a_hold_and_speech_goes_on_at_the_word(peer: bool) -> None:
    world = spoken(peer)
    world.send(STARTED)
    n_frames = len(world.frames)
    (paused,) = world.of(m.Paused)
    assert paused.reason == "hold" and 900 <= paused.heard_ms <= 1000
    assert TEXT.startswith(paused.heard_text)
    assert not peer or world.of(m.MediaClear), "what the peer has would be played into the hold"
    world.run(60_000)
    assert len(world.frames) <= n_frames + (not peer), "a fade at most"
    assert not world.of(m.Done) and not world.of(m.MarkReached)
    at_ms = world.now_ms
    world.send(ENDED)
    (resumed,) = world.of(m.Resumed)
    assert resumed.from_ms <= paused.heard_ms and resumed.from_ms in (0, *_word_ends_ms())
    world.run(5_000)
    (done,) = world.of(m.Done)
    assert done.chars == len(TEXT) and done.underruns == 0
    assert [(mark.name, mark.state) for mark in world.of(m.MarkReached)] == [("middle", "played"), ("end", "played")]
    again = [ms for ms, _, _ in world.frames if ms >= at_ms]
    assert again[0] - at_ms < 50 and len(again) >= (done.audio_ms - resumed.from_ms) // 20
    told = [kind for kind in kinds(world) if kind != "MarkReached"]
    assert told == ["Started", "hold started", "Paused", "hold ended", "Resumed", "Done"]


def _word_ends_ms() -> list[int]:
    return [50 * at for at, char in enumerate(TEXT + " ") if char == " "] + [50 * len(TEXT)]


def test_what_is_said_into_a_hold_waits_and_its_wait_is_no_latency() -> None:
    world = World(peer=True)
    world.send(STARTED)
    assert world.of(m.Hold) == [m.Hold("started")] and not world.of(m.Paused), "there was nothing to pause"
    world.send(m.Text("", "a"))
    world.send(m.Mark("beginning", "a"))
    world.send(m.Text(TEXT, "a", last=True))
    world.run(30_000)
    assert not world.frames and not world.of(m.Started) and not world.of(m.Done) and not world.of(m.MarkReached)
    world.send(ENDED)
    world.run(5_000)
    assert [mark.state for mark in world.of(m.MarkReached)] == ["played"]
    assert world.of(m.Hold)[1:] == [m.Hold("ended")]
    (started,), (done,) = world.of(m.Started), world.of(m.Done)
    assert started.first_audio_ms < 50 and done.chars == len(TEXT)
    assert not world.of(m.Paused) and not world.of(m.Resumed)


def test_a_clear_in_a_hold_ends_its_turns_and_the_next_turn_waits() -> None:
    world = spoken()
    world.send(STARTED)
    (paused,) = world.of(m.Paused)
    n_frames = len(world.frames)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.heard_ms) == (paused.heard_text, paused.heard_ms)
    assert {mark.state for mark in world.of(m.MarkReached)} <= {"cleared"}
    world.say("Hello again.", "b")
    world.run(10_000)
    assert len(world.frames) == n_frames
    world.send(ENDED)
    world.run(3_000)
    assert [each.turn for each in world.of(m.Done)] == ["b"] and not world.of(m.Resumed)


def test_a_pause_of_the_bot_outlives_a_hold() -> None:
    world = spoken()
    world.send(m.PauseSpeech())
    world.send(STARTED)
    world.run(1_000)
    world.send(ENDED)
    world.run(10_000)
    assert [each.reason for each in world.of(m.Paused)] == ["bot"] and not world.of(m.Resumed)
    world.send(m.ResumeSpeech())
    world.run(5_000)
    assert len(world.of(m.Resumed)) == len(world.of(m.Done)) == 1


def test_a_pause_in_a_hold_outlives_it_too() -> None:
    world = spoken()
    world.send(STARTED)
    world.send(m.PauseSpeech())
    world.send(ENDED)
    world.run(10_000)
    assert [each.reason for each in world.of(m.Paused)] == ["hold", "bot"] and not world.of(m.Done)
    world.send(m.ResumeSpeech())
    world.run(5_000)
    assert world.of(m.Done)


@pytest.mark.parametrize("paused_first", [True, False])
def test_a_resume_in_a_hold_takes_effect_at_its_end(paused_first: bool) -> None:
    world = spoken()
    if paused_first:
        world.send(m.PauseSpeech())
    world.send(STARTED)
    n_frames = len(world.frames)
    world.send(m.ResumeSpeech())
    world.run(10_000)
    assert len(world.frames) == n_frames and not world.of(m.Resumed) and not world.of(m.WarningEvent)
    world.send(ENDED)
    world.run(5_000)
    assert len(world.of(m.Resumed)) == len(world.of(m.Done)) == 1


def test_a_close_in_a_hold_speaks_behind_it() -> None:
    world = spoken()
    world.send(m.PauseSpeech())
    world.send(STARTED)
    world.send(m.Close())
    world.run(10_000)
    assert world.finished is None and not world.of(m.Done)
    world.send(ENDED)
    world.run(5_000)
    assert world.of(m.Done) and world.finished is not None


def test_a_hang_up_in_a_hold_tells_what_was_heard_before_it() -> None:
    world = spoken()
    world.send(STARTED)
    (paused,) = world.of(m.Paused)
    world.run(5_000)
    world.send(m.MediaStop("hangup"))
    (cleared,) = world.of(m.Cleared)
    assert cleared.reason == "hangup" and cleared.heard_ms == paused.heard_ms


def test_a_hold_that_is_told_twice_is_one_hold() -> None:
    world = spoken()
    for message in (STARTED, STARTED, ENDED, ENDED):
        world.send(message)
    assert [each.state for each in world.of(m.Hold)] == ["started", "ended"]
    assert len(world.of(m.Paused)) == len(world.of(m.Resumed)) == 1


def test_tones_by_message_wait_for_the_end_of_a_hold() -> None:
    world = World(peer=True, peer_dtmf=True)
    world.send(STARTED)
    world.send(m.SendDtmf("12"))
    world.run(5_000)
    assert not world.of(m.MediaTones)
    world.send(ENDED)
    world.run(2_000)
    assert [each.digits for each in world.of(m.MediaTones)] == ["12"]


@pytest.mark.parametrize("seed", range(60))
def test_holds_at_any_moment_lose_and_repeat_nothing(seed: int) -> None:
    """Holds, pauses and resumes at random. In the end everything was heard once, apart from repeated words."""
    chance = random.Random(seed)
    world = World(
        SessionSettings(first_clause_chars=0), peer=chance.random() < 0.7, peer_delay_ms=chance.choice([0, 40]),
        first_audio_ms=chance.choice([0, 150]), echoes_cleared=chance.random() < 0.5,
    )  # fmt: skip
    for turn in "ab":
        for word in TEXT.split(" "):
            world.send(m.Text(word + " ", turn))
            world.send(m.Mark(f"{turn} {word}", turn))
        world.send(m.End(turn))
    on_hold = False
    for _ in range(14):
        world.run(chance.randrange(20, 600))
        step = chance.random()
        if step < 0.6:
            on_hold = not on_hold
            world.send(m.MediaHold(on_hold))
        elif world.session.turns:
            world.send(m.PauseSpeech() if step < 0.8 else m.ResumeSpeech())
        if on_hold:
            n_frames, n_marks = len(world.frames), len(world.of(m.MarkReached))
            world.run(chance.randrange(500))
            assert len(world.frames) == n_frames and len(world.of(m.MarkReached)) == n_marks
    world.send(ENDED)
    if world.session.is_paused:
        world.send(m.ResumeSpeech())
    world.run(20_000)
    assert [each.turn for each in world.of(m.Done)] == ["a", "b"]
    names = [f"{turn} {word}" for turn in "ab" for word in TEXT.split(" ")]
    assert [(mark.name, mark.state) for mark in world.of(m.MarkReached)] == [(name, "played") for name in names]
    for done in world.of(m.Done):
        number = world.turn_numbers[done.turn]
        assert sum(heard == number for _, heard, _ in world.frames) * 20 >= done.audio_ms - 100


# ------------------------------------------------------------ a hold without an event


def warnings(world: World) -> list[float]:
    return [event for event in world.of(m.WarningEvent) if event.code == "no_caller_audio"]


def quiet_world(no_audio_ms: int = 5000, **settings: Any) -> World:
    return World(
        SessionSettings(first_clause_chars=0, caller=CallerSettings(no_audio_ms=no_audio_ms), **settings), peer=True
    )


LONG = " ".join([TEXT] * 20)  # 43 s


def test_speech_without_the_callers_audio_is_warned_of_once_until_audio_comes() -> None:
    world = quiet_world()
    world.say(LONG, "a")
    world.run(4_980)
    assert not warnings(world)
    world.run(40)
    (warning,) = warnings(world)
    assert warning.turn is None and "5000 ms" in warning.message and "may be on hold" in warning.message
    world.run(10_000)
    assert len(warnings(world)) == 1
    world.send(m.MediaAudio(b"\xff" * 160))
    world.run(4_980)
    assert len(warnings(world)) == 1
    world.run(5_040)
    assert len(warnings(world)) == 2


@pytest.mark.parametrize("payload", [b"", b"\xff" * 160], ids=["empty messages", "audio"])
def test_only_audio_is_audio(payload: bytes) -> None:
    world = quiet_world()
    world.say(LONG, "a")
    for _ in range(500):
        world.run(20)
        world.send(m.MediaAudio(payload))
    assert bool(warnings(world)) == (not payload)


def test_without_speech_there_is_no_warning_and_speech_brings_it() -> None:
    world = quiet_world()
    world.run(60_000)
    assert not warnings(world)
    world.say(TEXT, "a")
    world.run(100)
    assert len(warnings(world)) == 1
    world.run(5_000)
    world.say(TEXT, "b")
    world.run(5_000)
    assert len(warnings(world)) == 1


def test_a_hold_that_is_known_and_a_pause_are_no_reason_for_it() -> None:
    for stop in (STARTED, m.PauseSpeech()):
        world = quiet_world()
        world.say(LONG, "a")
        world.run(1_000)
        world.send(stop)
        world.run(60_000)
        assert not warnings(world)


def test_it_can_be_off_and_there_is_none_before_the_media_leg() -> None:
    world = quiet_world(0)
    world.say(LONG, "a")
    world.run(60_000)
    assert not warnings(world)
    world = World(SessionSettings(first_clause_chars=0))
    world.say(LONG, "a")
    world.run(60_000)
    assert not warnings(world)
