"""Peers that report less than marks, or cannot be relied on: what then tells what the caller has heard."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.settings import CallLimits, SessionSettings
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


def silent_peer(*, dtmf: bool = False) -> World:
    """A world whose peer can report marks, and never does."""
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True, dtmf=dtmf)
    return world


def test_a_peer_that_never_reports_holds_up_no_mark_of_an_open_turn() -> None:
    """Pinned: the mark waited for the end of its turn."""
    world = silent_peer()
    world.send(m.Text("One two three. ", "a"))  # 700 ms
    world.send(m.Flush("a"))
    world.send(m.Mark("m1", "a"))
    world.run(2600)
    assert reached(world) == []
    world.run(200)
    assert reached(world) == [("m1", "played")] and not world.of(m.Done)


def test_a_short_gap_behind_a_mark_does_not_delay_it() -> None:
    world = silent_peer()
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Flush("a"))
    world.send(m.Mark("m1", "a"))
    world.run(1700)
    world.send(m.Text(TEXT, "a"))
    world.send(m.Flush("a"))
    world.run(1100)
    assert reached(world) == [("m1", "played")]


def test_a_mark_of_a_turn_that_waited_for_tones_is_held_up_no_longer() -> None:
    world = silent_peer(dtmf=True)
    world.send(m.SendDtmf("123456"))
    world.send(m.Text("One two three.", "a"))
    world.send(m.Mark("m1", "a"))
    world.run(500)
    assert world.of(m.MediaTones) and not world.of(m.Started)
    begin_ms = 1300  # behind six tones
    world.run(begin_ms + 700 + 1980 - 500)
    assert reached(world) == []
    world.run(40)
    assert reached(world) == [("m1", "played")]


def test_a_peer_that_never_reports_holds_up_no_tones() -> None:
    """Pinned: the platform got the keys behind all speech of the turn."""
    world = silent_peer(dtmf=True)
    world.send(m.Text("Please wait now.", "a"))
    world.send(m.SendDtmf("12#"))
    world.send(m.Text(" And this is behind the tones." * 6, "a", last=True))
    world.say("Next turn.", "b")
    world.run(15_000)
    kinds = [type(event) for event in world.events if isinstance(event, m.MediaTones | m.Started)]
    assert kinds == [m.Started, m.MediaTones, m.Started]


def test_a_peer_that_begins_later_than_any_mark_counts_is_believed_when_it_reports() -> None:
    """Its first mark comes back 2.5 s late. From then on the peer tells what was heard."""
    world = silent_peer()
    world.peer, world.peer_delay_ms = True, 2500
    world.say("One two three four. " * 5, "a")  # 5 s
    world.run(4000)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.basis == "marks" and 1480 <= cleared.heard_ms <= 1520


def test_the_marks_of_ours_at_a_peer_that_never_reports_have_a_bound() -> None:
    """Pinned: there was one more each second, for hours of hold music too."""
    world = World(SessionSettings(first_clause_chars=0, pace="burst", limits=CallLimits(turn_chars=10_000)))
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.say("More, " * 1600, "a")  # 480 s in one sentence
    world.run(10_000)
    (turn,) = world.session.turns
    assert turn.sent_all and len(turn.marks) <= 256 + len(turn.parts) + 1


@pytest.mark.parametrize("end", ["One two three four five. ", ""])
def test_marks_keep_their_order_if_an_echo_is_lost(end: str) -> None:
    """Pinned: the mark whose echo was lost was reported behind all others, at the end of its turn."""
    world = World(peer=True)
    echo = world._echo

    def lose_first(name: str) -> None:
        mark = world.session.turns[0].marks.sent_as(name) if world.session.turns else None
        if mark is None or mark.name != "m1":
            echo(name)

    world._echo = lose_first  # type: ignore[method-assign]
    world.send(m.Text("One two three four five. ", "a"))
    world.send(m.Mark("m1", "a"))
    world.send(m.Text(end, "a"))
    world.send(m.Mark("m2", "a"))
    world.send(m.Text(TEXT * 4, "a"))
    world.run(4000)
    assert reached(world) == [("m1", "played"), ("m2", "played")]
    assert not world.of(m.Done)


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
