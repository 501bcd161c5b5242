"""A mark is reported as played when the caller has heard its place, and only then."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.marks import MarkState
from telephony_tts.session.settings import CallLimits, SessionSettings
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


def test_a_mark_waits_for_the_peers_echo() -> None:
    world = World(peer=True, peer_delay_ms=300)
    world.send(m.Text("One two three.", "a", last=True))
    world.send(m.Mark("end", "a"))
    world.run(900)
    assert reached(world) == [] and not world.of(m.Done)
    world.run(200)
    assert reached(world) == [("end", "played")]
    assert len(world.of(m.Done)) == 1


def test_an_echo_caused_by_our_own_clear_is_not_played() -> None:
    """Twilio echoes pending marks when it clears. Their turn is over, so the echoes are ignored."""
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


def test_a_mark_without_a_turn_or_after_its_turn_is_answered_at_once() -> None:
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
    world.send(m.Mark("who", "stranger"))
    assert world.of(m.ErrorEvent)[0].code == "unknown_turn"
    assert len(reached(world)) == 3


def test_a_mark_without_a_turn_has_the_fate_of_the_turn_that_ended_last() -> None:
    """Pinned: it was `played`, although the bot set it behind text that the caller had just interrupted."""
    world = World()
    world.say("One two three four.")
    world.run(300)
    world.send(m.Clear())
    world.send(m.Mark("told"))
    assert world.of(m.MarkReached) == [m.MarkReached("told", "cleared", "t1")]
    world.say("One.")
    world.run(3000)
    world.send(m.Mark("said"))
    assert world.of(m.MarkReached)[1:] == [m.MarkReached("said", "played", "t2")]


@pytest.mark.parametrize("peer", [False, True])
def test_a_mark_at_the_beginning_of_a_turn_that_was_cleared_before_it_began_is_not_played(peer: bool) -> None:
    world = World(peer=peer)
    world.say("One two three four.", "a")
    world.say('<speak><mark name="begin"/>Five six.</speak>', "b")
    world.run(300)
    world.send(m.Clear())
    assert reached(world) == [("begin", "cleared")]


def test_a_mark_on_a_turn_without_speech() -> None:
    world = World()
    world.send(m.Text("…", "a"))
    world.send(m.Mark("x", "a"))
    world.send(m.End("a"))
    world.run(100)
    assert reached(world) == [("x", "played")]
    assert world.of(m.Done)[0].audio_ms == 0


def test_a_mark_of_an_interrupted_turn_whose_place_was_heard_is_played() -> None:
    world = World()
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Mark("first", "a"))
    world.send(m.Text("Four five six seven.", "a", last=True))
    world.send(m.Mark("second", "a"))
    world.run(1000)
    world.send(m.Clear())
    assert reached(world) == [("first", "played"), ("second", "cleared")]


def test_a_mark_whose_frames_are_sent_again_is_placed_again() -> None:
    """Clearing turn a also drops b's first frames at the peer. It echoes b's mark, but b was not heard yet."""
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
    world = World(SessionSettings(pending_marks=3))
    world.say("One two three four.", "a")
    for n in range(5):
        world.send(m.Mark(f"m{n}"))
    assert [event.code for event in world.of(m.ErrorEvent)] == ["too_many_marks"] * 2
    world.run(5000)
    assert dict(reached(world)) == {"m3": "cleared", "m4": "cleared", "m0": "played", "m1": "played", "m2": "played"}


def errors_of_marks(world: World, n: int) -> list[str]:
    """Set `n` marks. Returns the codes of the errors."""
    for at in range(n):
        world.send(m.Mark(f"m{at}"))
    return [event.code for event in world.of(m.ErrorEvent)]


def test_the_servers_own_marks_leave_the_bot_its_number_of_marks() -> None:
    """Pinned: the server sets a mark each second, and each behind a sentence. With everything sent at once, the first
    mark of the bot was refused."""
    world = World(SessionSettings(first_clause_chars=0, pace="burst", limits=CallLimits(turn_chars=10_000)))
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.say("More words are said to you now and then. " * 150, "a")  # 300 s
    world.run(2000)
    assert len(world.session.turns[0].marks) > 256
    assert errors_of_marks(world, 256) == []
    assert errors_of_marks(world, 1) == ["too_many_marks"]


def ahead(lead_ms: int, bulk_ms: int) -> SessionSettings:
    return SessionSettings(first_clause_chars=0, lead_ms=lead_ms, bulk_ms=bulk_ms)


LEADS = pytest.mark.parametrize(("lead_ms", "bulk_ms"), [(100, 0), (1000, 200)])


@LEADS
def test_a_mark_set_when_the_next_turn_is_with_the_peer_already_is_no_later_for_it(lead_ms: int, bulk_ms: int) -> None:
    """Pinned: the mark was sent behind a second of that turn, so `played` and `done` came a second late."""
    world = World(ahead(lead_ms, bulk_ms), peer=True)
    late_ns: list[int] = []
    world.session.caller.peer_is_late = late_ns.append  # type: ignore[method-assign]
    world.say("one two three four five six seven.", "a")  # 1700 ms
    world.say("four five six seven eight nine ten eleven twelve.", "b")
    world.run(1400)
    world.send(m.Mark("m", "a"))
    world.run(290)
    assert reached(world) == [] and not world.of(m.Done)
    world.run(20)
    assert reached(world) == [("m", "played")] and [done.turn for done in world.of(m.Done)] == ["a"]
    world.run(390)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.turn, cleared.heard_ms) == ("b", 400)
    assert max(late_ns) <= 20_000_000, "the peer is not late, and is not reported as late"


@pytest.mark.parametrize(("late_ms", "state"), [(100, "cleared"), (250, "played")])
def test_a_mark_whose_place_was_known_late_was_played_if_the_clear_came_before_the_loop_had_looked(
    late_ms: int, state: str
) -> None:
    world = World(ahead(1000, 200), peer=True, timings=False)
    text = "five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen."
    world.send(m.Text(f"One two three four {text[:74]}", "a"))
    world.send(m.Mark("m", "a"))  # at 93 characters of 50 ms
    world.send(m.Text(text[74:], "a", last=True))
    world.run(4500)
    assert world.session.turns[0].marks.in_state(MarkState.TIMED)
    world.jump(late_ms)
    world.send(m.Clear())
    assert reached(world) == [("m", state)]


@pytest.mark.parametrize("delay_ms", [0, 150, 300])
@pytest.mark.parametrize("pause_ms", [0, 1000])
def test_two_marks_at_one_place_have_one_fate_though_one_was_set_late(delay_ms: int, pause_ms: int) -> None:
    """Pinned: the clock decided about the late mark and the peer about the other, and the clear came in between."""
    world = World(ahead(200, 0), peer=True, peer_delay_ms=delay_ms)
    world.send(m.Text("One two three four. ", "a"))
    world.send(m.Flush("a"))
    world.run(950 + pause_ms)
    world.send(m.Text("Five six seven eight nine.", "a"))
    world.send(m.Mark("m1", "a"))
    world.send(m.End("a"))
    while not (world.session.turns and world.session.turns[0].marks.end_is_sent):
        world.run(20)
    world.send(m.Mark("m2", "a"))
    world.run(100)
    world.send(m.Clear())
    assert [name for name, _ in reached(world)] == ["m1", "m2"]
    assert len({state for _, state in reached(world)}) == 1


def test_a_mark_set_late_in_the_first_turn_waits_for_a_peer_that_has_told_nothing_yet() -> None:
    world = World(ahead(1000, 200), peer=True, peer_delay_ms=600)
    world.say("One two.", "a")  # 400 ms
    world.run(50)
    world.send(m.Mark("m", "a"))
    world.run(900)
    assert reached(world) == []
    world.run(60)
    assert reached(world) == [("m", "played")]


@LEADS
@pytest.mark.parametrize(("cut_ms", "state"), [(4300, "cleared"), (4500, "played")])
def test_a_mark_whose_place_is_known_late_is_where_its_text_ended(
    lead_ms: int, bulk_ms: int, cut_ms: int, state: str
) -> None:
    """Without timings a place inside a sentence is known when the sentence is complete. Most of it was sent by then."""
    world = World(ahead(lead_ms, bulk_ms), peer=True, timings=False)
    text = "five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen."
    world.send(m.Text(f"One two three four {text[:69]}", "a"))
    world.send(m.Mark("m", "a"))  # at 88 characters of 50 ms
    world.send(m.Text(text[69:], "a", last=True))
    world.run(cut_ms)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert reached(world) == [("m", state)] and cleared.heard_ms == cut_ms


@LEADS
def test_a_mark_set_too_late_is_reported_once_though_its_frames_are_sent_again(lead_ms: int, bulk_ms: int) -> None:
    world = World(ahead(lead_ms, bulk_ms), peer=True)
    world.say("One two.", "a")  # 400 ms
    world.say("Four.", "b")  # 250 ms
    world.run(380)
    world.send(m.Mark("m", "b"))
    world.send(m.Clear("a"))
    world.run(230)
    assert reached(world) == []
    world.run(50)
    assert reached(world) == [("m", "played")] and [done.turn for done in world.of(m.Done)] == ["b"]


def test_a_mark_behind_text_that_is_not_spoken_is_reported_before_the_end_of_an_idle_turn() -> None:
    """The turn ends by itself. Its last mark stands behind text without anything to speak, and still has its own place
    before the mark of the turn's end. So the heard time is that of the marks that came back, not of audio behind
    them."""
    settings = SessionSettings(first_clause_chars=0, limits=CallLimits(turn_idle_s=1))
    world = World(settings, peer=True, peer_delay_ms=700)
    world.send(m.Text("Hello. ", "a"))
    world.send(m.Text(" ***", "a"))
    world.send(m.Mark("behind", "a"))
    world.run(1150)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_ms, cleared.heard_text, cleared.basis) == (300, "Hello.", "marks")
    assert len([e for e in world.log if isinstance(e, m.MediaMark) and e.name != "0.0"]) == 5
    assert reached(world) == [("behind", "cleared")]
