"""Marks never lie: played when and only when the caller got there."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.settings import Limits, SessionSettings
from telephony_tts.wire import messages as m


def reached(world: World) -> list[tuple[str, str]]:
    return [(event.name, event.state) for event in world.of(m.MarkReached)]


@pytest.mark.parametrize("peer", [False, True])
def test_a_mark_is_played_where_its_text_ends(peer: bool) -> None:
    world = World(peer=peer)
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Mark("here", "a"))
    world.send(m.Text("Four five six.", "a", last=True))
    world.run(690)
    assert reached(world) == []
    world.run(30)
    assert reached(world) == [("here", "played")]
    world.run(3000)
    assert reached(world) == [("here", "played")]


def test_a_mark_inside_a_sentence_is_played_there() -> None:
    world = World()
    world.send(m.Text("one two ", "a"))
    world.send(m.Mark("mid", "a"))
    world.send(m.Text("three four.", "a", last=True))
    world.run(330)
    assert reached(world) == []
    world.run(40)
    assert reached(world) == [("mid", "played")]


def test_the_peers_echo_is_waited_for() -> None:
    world = World(peer=True, peer_delay_ms=300)
    world.send(m.Text("One two three.", "a", last=True))
    world.send(m.Mark("end", "a"))
    world.run(900)
    assert reached(world) == [] and not world.of(m.Done)
    world.run(200)
    assert reached(world) == [("end", "played")]
    assert len(world.of(m.Done)) == 1


def test_an_echo_caused_by_our_own_clear_is_not_played() -> None:
    """Twilio echoes pending marks when it clears: they reach a turn that is over and mean nothing."""
    world = World(peer=True)
    world.send(m.Say("One two three four.", "a"))
    world.send(m.Mark("end", "a"))
    world.run(300)
    names = [effect.name for effect in world.log if isinstance(effect, m.MediaMark)]
    world.send(m.Clear())
    assert reached(world) == [("end", "cleared")]
    for name in names:
        world.send(m.MediaMark(name))
    world.send(m.MediaMark("never sent"))
    assert reached(world) == [("end", "cleared")]


def test_a_peer_that_loses_marks_does_not_hold_the_turn_for_ever() -> None:
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.send(m.Say("One two three.", "a"))
    world.send(m.Mark("end", "a"))
    world.run(2600)
    assert not world.of(m.Done)
    world.run(400)
    assert reached(world) == [("end", "played")] and len(world.of(m.Done)) == 1


def test_marks_on_the_wire_are_short() -> None:
    world = World(peer=True)
    world.send(m.Say("One. Two. Three.", "a" * 100))
    world.send(m.Mark("x" * 200))
    world.run(5000)
    names = [effect.name for effect in world.log if isinstance(effect, m.MediaMark)]
    assert names and all(len(name) <= 40 for name in names)
    assert len(names) == len(set(names))


def test_with_nothing_to_wait_for_the_answer_is_immediate() -> None:
    world = World()
    world.send(m.Mark("alone"))
    assert reached(world) == [("alone", "played")]
    world.say("One.", "a")
    world.run(3000)
    world.send(m.Mark("late", "a"))
    assert reached(world)[1:] == [("late", "played")]
    world.say("Two.", "b")
    world.send(m.Clear("b"))
    world.send(m.Mark("dead", "b"))
    assert reached(world)[2:] == [("dead", "cleared")]
    world.send(m.Mark("who", "nobody"))
    assert world.of(m.ErrorEvent)[0].code == "unknown_turn"
    assert len(reached(world)) == 3


def test_a_mark_on_a_turn_without_speech() -> None:
    world = World()
    world.send(m.Text("…", "a"))
    world.send(m.Mark("x", "a"))
    world.send(m.End("a"))
    world.run(100)
    assert reached(world) == [("x", "played")]
    assert world.of(m.Done)[0].audio_ms == 0


def test_an_interrupted_mark_that_was_passed_says_played() -> None:
    world = World()
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Mark("first", "a"))
    world.send(m.Text("Four five six seven.", "a", last=True))
    world.send(m.Mark("second", "a"))
    world.run(1000)
    world.send(m.Clear())
    assert reached(world) == [("first", "played"), ("second", "cleared")]


def test_a_mark_whose_frames_are_sent_again_is_placed_again() -> None:
    """Clearing a empties the peer of b's first frames too; b's mark comes back from that, but b was not heard yet."""
    world = World(peer=True)
    world.say("one two.", "a")
    world.send(m.Text("x ", "b"))
    world.send(m.Mark("early", "b"))
    world.send(m.Text("three four five six.", "b", last=True))
    world.run(300)
    world.send(m.Clear("a"))
    world.run(0)
    assert reached(world) == []
    world.run(150)
    assert reached(world) == [("early", "played")]
    world.run(5000)
    assert reached(world) == [("early", "played")] and [d.turn for d in world.of(m.Done)] == ["b"]


def test_marks_have_a_bound() -> None:
    world = World(SessionSettings(limits=Limits(pending_marks=3)))
    world.say("One two three four.", "a")
    for n in range(5):
        world.send(m.Mark(f"m{n}"))
    assert [event.code for event in world.of(m.ErrorEvent)] == ["too_many_marks"] * 2
    world.run(5000)
    assert dict(reached(world)) == {"m3": "cleared", "m4": "cleared", "m0": "played", "m1": "played", "m2": "played"}
