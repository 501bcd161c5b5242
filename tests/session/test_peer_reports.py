"""Peers that report less than marks, or cannot be relied on: what then tells what the caller has heard."""

from __future__ import annotations

from world import World

from telephony_tts.wire import messages as m

TEXT = "One two three four five six seven eight."
"""2000 ms: 50 ms a character."""


def reached(world: World) -> list[tuple[str, str]]:
    return [(event.name, event.state) for event in world.of(m.MarkReached)]


def without_marks() -> World:
    world = World()
    world.session.attach_media(world.now_ns, marks=False, clears=True)
    return world


# ------------------------------------------------------ a peer that tells when it begins


def test_the_clock_waits_for_a_peer_that_begins_late() -> None:
    world = without_marks()
    world.say(TEXT, "a")
    world.run(300)
    world.send(m.MediaPlayback("playing"))
    world.run(500)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_ms, cleared.basis, cleared.heard_text) == (500, "clock", "One two")


def test_the_end_of_a_turn_waits_too_and_the_next_turn_begins_behind_it() -> None:
    world = without_marks()
    world.say(TEXT, "a")
    world.say(TEXT, "b")
    world.run(300)
    world.send(m.MediaPlayback("playing"))
    world.run(1990)
    assert not world.of(m.Done)
    world.run(20)
    assert [done.turn for done in world.of(m.Done)] == ["a"]
    world.run(1000)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.turn == "b" and abs(cleared.heard_ms - 1010) <= 20


def test_a_report_about_other_audio_moves_nothing() -> None:
    world = without_marks()
    world.send(m.MediaPlayback("playing"))
    world.say(TEXT, "a")
    world.run(100)
    world.send(m.MediaPlayback("playing"))
    world.run(400)
    for state in ("playing", "played", "failed"):
        world.send(m.MediaPlayback(state))  # it has moved already
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_ms == 400


def test_a_peer_cannot_move_a_turn_for_ever() -> None:
    world = without_marks()
    world.say("One. " * 200, "a")
    world.run(10_000)
    world.send(m.MediaPlayback("playing"))
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_ms == 8000


# -------------------------------------------------------- a peer whose marks are lost


def test_when_marks_are_lost_the_clock_tells_what_was_heard() -> None:
    world = World(peer=True)
    world.say(TEXT, "a")
    world.run(2500)
    assert len(world.terminals("a")) == 1
    world.peer = False  # it reports nothing more
    world.send(m.Text("One two three. ", "b"))
    world.send(m.Mark("mid", "b"))
    world.send(m.Text("Four five six.", "b", last=True))
    world.run(700)
    world.send(m.MediaMarksLost())
    world.run(80)
    assert reached(world) == [("mid", "played")], "its time has come"
    world.run(300)
    n_marks = sum(isinstance(effect, m.MediaMark) for effect in world.log)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.basis == "clock" and 1000 <= cleared.heard_ms <= 1100
    world.say(TEXT, "c")
    world.send(m.Mark("end", "c"))
    world.run(2050)
    assert reached(world)[1:] == [("end", "played")] and len(world.terminals("c")) == 1
    assert n_marks == sum(isinstance(effect, m.MediaMark) for effect in world.log), "no more marks are sent"


def test_lost_marks_do_not_hold_up_a_turn_that_was_sent() -> None:
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.say(TEXT, "a")
    world.send(m.Mark("end", "a"))
    world.run(1900)
    world.send(m.MediaMarksLost())
    world.run(50)
    assert reached(world) == [] and not world.of(m.Done)
    world.run(70)
    assert reached(world) == [("end", "played")] and len(world.of(m.Done)) == 1


# ------------------------------------------------------------ a peer with few marks


def test_a_peer_gets_no_more_marks_than_it_can_have() -> None:
    world = World(peer=True)
    world.session.attach_media(world.now_ns, marks=True, clears=True, most_marks=10)
    world.send(m.Text("One two three.", "a"))
    for n in range(20):
        world.send(m.Mark(f"m{n}", "a"))
    world.send(m.End("a"))
    at_once = []
    for _ in range(60):
        world.run(20)
        at_once.append(len(world._peer_marks))
    assert 4 <= max(at_once) <= 10
    assert sorted(reached(world)) == sorted((f"m{n}", "played") for n in range(20))
    (done,) = world.of(m.Done)
    assert done.audio_ms == 700
