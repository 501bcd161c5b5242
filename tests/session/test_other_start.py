"""A call that starts with other settings after all, as an arm of an experiment says, and a quota of characters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from world import World

from telephony_tts.session.settings import BargeInSettings, SessionSettings
from telephony_tts.wire import messages as m

START = SessionSettings(first_clause_chars=0, voice="heart", speed=1.0)


def changed(world: World, **changes: Any) -> None:
    world.session.start_with(replace(world.session.settings, **changes))


def spoken(world: World) -> list[tuple[str | None, str | None, float]]:
    return [(utterance.voice, utterance.lang, utterance.speed) for _, utterance in world.submitted]


def test_turns_that_begin_later_have_the_other_settings() -> None:
    world = World(START)
    assert not world.session.has_begun
    changed(world, voice="anna", lang="de", speed=1.5)
    world.say("Guten Tag.", "a")
    world.run(100)
    assert spoken(world) == [("anna", "de", 1.5)] and world.session.has_begun


def test_what_the_bot_has_asked_for_stays() -> None:
    world = World(START)
    world.send(m.Configure(voice="bella", speed=0.75))
    changed(world, voice="anna", speed=1.5, lang="en")
    world.say("Hello.", "a")
    world.run(100)
    assert spoken(world) == [("bella", "en", 0.75)]


def test_an_empty_voice_of_the_bot_is_the_one_of_the_other_start() -> None:
    world = World(START)
    changed(world, voice="anna")
    world.send(m.Configure(voice="bella"))
    world.send(m.Configure(voice=""))
    world.say("Hello.", "a")
    world.run(100)
    assert spoken(world)[0][0] == "anna"


def test_how_text_is_cut_changes_too() -> None:
    text = "If that is fine with you, then I would like to go on with the next question now."
    whole, cut = World(START), World(START)
    changed(cut, first_clause_chars=10)
    for world in (whole, cut):
        world.say(text, "a")
        world.run(100)
    assert whole.submitted[0][1].text == text
    assert cut.submitted[0][1].text == "If that is fine with you,"


def test_times_of_barge_in_change_but_for_those_of_the_bot() -> None:
    world = World(START)
    world.send(m.Configure(hold_off_ms=100, step_back_ms=300))
    changed(world, barge_in=BargeInSettings(min_speech_ms=640, hold_off_ms=900, step_back_ms=1, resume_after_ms=50))
    spurt, pause = world.session.caller._spurt.settings, world.session._pause.settings
    assert (spurt.min_speech_ms, spurt.hold_off_ms) == (640, 100)
    assert (pause.step_back_ms, pause.resume_after_ms) == (300, 50)


def test_a_quota_refuses_turns_and_pieces_and_counts_what_is_taken() -> None:
    world, counted = World(START), []

    def quota(n_chars: int) -> str | None:
        if sum(counted) + n_chars > 20:
            return "no more"
        counted.append(n_chars)
        return None

    world.session.use_quota(quota)
    world.send(m.Text("Ten chars.", "a"))
    world.send(m.Text(" Too many chars.", "a"))
    world.send(m.End("a"))
    world.say("Beyond the quota.", "b")
    world.say("Ten chars.", "c")
    world.run(9000)
    refused = [(event.turn, event.about, event.code, event.message) for event in world.of(m.ErrorEvent)]
    assert refused == [(None, "a", "key_limit", "no more"), ("b", None, "key_limit", "no more")]
    assert [(done.turn, done.chars) for done in world.of(m.Done)] == [("a", 10), ("c", 10)] and counted == [10, 10]


def test_text_that_another_limit_refuses_is_not_counted() -> None:
    world, counted = World(replace(START, limits=replace(START.limits, turn_chars=15))), []

    def quota(n_chars: int) -> str | None:
        counted.append(n_chars)
        return None

    world.session.use_quota(quota)
    world.say("This is too long for a turn.", "a")
    world.send(m.Text("Ten chars.", "b"))
    world.send(m.Text("Ten chars.", "b"))
    assert counted == [10]
