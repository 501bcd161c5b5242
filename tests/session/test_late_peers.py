"""A peer that plays late: what counts as heard, and what it has to get again when its buffer was emptied."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

TEXT = "One two three four five six seven."  # 1700 ms
N_FRAMES = 85


def late_world(late_ms: int, **settings: int) -> World:
    return World(SessionSettings(first_clause_chars=0, **settings), peer=True, peer_delay_ms=late_ms)


def n_marks(world: World) -> int:
    return sum(isinstance(effect, m.MediaMark) for effect in world.log)


def frames_since(world: World, n_before: int, turn: int) -> int:
    return sum(number == turn for _, number, _ in world.frames[n_before:])


@pytest.mark.parametrize("late_ms", [0, 100, 700, 1400])
def test_a_turn_that_stays_goes_on_where_a_late_peer_was(late_ms: int) -> None:
    """Pinned: the frames that the peer had in its buffer were lost, if our schedule had passed them."""
    world = late_world(late_ms)
    world.say(TEXT, "a")
    world.say("Eight nine ten.", "b")
    world.run(1600)
    assert frames_since(world, 0, 2), "it is sent ahead of time"
    n_before = len(world.frames)
    world.send(m.Clear("b"))
    world.run(5000)
    n_again = frames_since(world, n_before, 1)
    n_not_played = N_FRAMES - (1600 - late_ms) // 20
    assert n_not_played <= n_again <= n_not_played + 1
    assert [done.turn for done in world.of(m.Done)] == ["a"]


@pytest.mark.parametrize("late_ms", [200, 900])
def test_nothing_counts_as_heard_before_the_first_report_of_the_call(late_ms: int) -> None:
    """Pinned: the first speech of a call was taken to be heard at once, until the peer had reported something."""
    world = late_world(late_ms)
    world.say(TEXT, "a")
    world.run(late_ms - 40)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.basis) == ("", "marks") and cleared.heard_ms <= 20


def test_a_mark_before_all_speech_asks_whether_the_peer_reports_marks() -> None:
    world = late_world(0)
    assert [effect.name for effect in world.log if isinstance(effect, m.MediaMark)] == ["0.0"]
    without = World()
    for settings in ({"marks": False}, {"marks": True, "most_marks": 30}):
        without.session.attach_media(without.now_ns, clears=True, **settings)  # type: ignore[arg-type]
        without.pump()
    assert not [effect for effect in without.log if isinstance(effect, m.MediaMark)]


def test_a_late_peer_is_late_again_when_its_buffer_was_emptied() -> None:
    """Pinned: the turn that stayed went on counting from its last mark, as if the peer had played on."""
    world = late_world(600)
    world.say(TEXT, "a")
    world.say("Eight nine ten.", "b")
    world.run(1550)
    world.send(m.Clear("b"))
    world.run(400)
    world.send(m.Clear("a"))
    cleared = {event.turn: event for event in world.of(m.Cleared)}
    assert cleared["a"].basis == "marks" and 940 <= cleared["a"].heard_ms <= 970


def test_what_a_pause_took_back_is_not_played_until_the_peer_says_so() -> None:
    """Pinned: a pause before the peer had begun ended our mark behind the first frame. Then our schedule counted, and a
    clear of the next turn lost speech."""
    world = late_world(2000)
    world.send(m.Text("One two.", "a"))  # 400 ms
    world.send(m.Flush("a"))
    world.run(1900)
    world.send(m.PauseSpeech())
    world.run(500)
    world.send(m.End("a"))
    world.say("Three four five.", "b")
    world.send(m.ResumeSpeech())
    world.run(350)
    n_before = len(world.frames)
    assert frames_since(world, 0, 2), "it is sent ahead of time"
    world.send(m.Clear("b"))
    world.run(6000)
    assert frames_since(world, n_before, 1) == 20, "nothing of it was played"
    assert [done.turn for done in world.of(m.Done)] == ["a"]


def test_a_peer_that_begins_a_turn_again_has_to_say_so_again() -> None:
    """Pinned: a pause in the first word takes the turn back to its beginning, whose mark had come back already. So no
    mark told when the peer played it again, and our schedule counted up to a second of speech that was not heard."""
    world = late_world(100)
    world.say("Onehundred two three.", "a")
    world.run(200)
    world.send(m.PauseSpeech())
    world.run(1000)
    world.peer_delay_ms = 1500
    world.send(m.ResumeSpeech())
    world.run(1300)
    world.send(m.Clear())
    (paused,), (cleared,) = world.of(m.Paused), world.of(m.Cleared)
    assert (cleared.heard_ms, cleared.heard_text, cleared.basis) == (paused.heard_ms, "", "marks")


def test_the_place_in_tones_is_exact() -> None:
    """Pinned: the mark at which the platform sends its tones is sent behind that of the first frame. When it came back,
    the place was set back by a frame."""
    world = World(SessionSettings(first_clause_chars=0), peer=True, peer_dtmf=True, peer_delay_ms=300)
    world.say("One two.", "a")  # 400 ms
    world.run(100)
    world.send(m.SendDtmf("123456789"))
    world.run(1000)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_ms, cleared.basis) == (1100 - 300 - 400, "marks")


def test_a_pause_with_nothing_to_hear_leaves_what_the_peer_has() -> None:
    """Pinned: no clear is sent then, and the peer still plays the silence that filled up a message. Speech behind the
    pause counted as heard at once."""
    world = World(SessionSettings(first_clause_chars=0, lead_ms=0))
    world.session.attach_media(world.now_ns, marks=False, clears=True)
    world.say("One.", "a")  # 250 ms
    world.run(235)
    world.session.padded(300, world.now_ns)
    world.run(100)
    world.say(TEXT, "b")
    world.send(m.PauseSpeech())
    world.send(m.ResumeSpeech())
    assert not [effect for effect in world.log if isinstance(effect, m.MediaClear)]
    world.run(400)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.turn, cleared.heard_text) == ("b", "One") and 150 <= cleared.heard_ms <= 200


def test_what_a_leg_still_holds_is_not_heard() -> None:
    """Pinned: a leg that sends longer messages than frames holds the rest, and the clock counted it."""
    held = [0]
    world = World(SessionSettings(first_clause_chars=0, lead_ms=0))
    world.session.attach_media(world.now_ns, marks=False, clears=True, n_held=lambda: held[0])
    world.say(TEXT, "a")
    world.run(610)
    held[0] = 480  # 60 ms
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_ms, cleared.basis) == (560, "clock")


def test_a_peer_that_runs_dry_in_a_turn_has_not_begun_the_turn_anew() -> None:
    """Pinned: Genesys reports that it plays whenever its buffer was empty. The report behind a gap moved the whole
    turn, and 0.8 s less counted as heard."""
    world = World(SessionSettings(first_clause_chars=0, lead_ms=400))
    world.send(m.Text("One two three. ", "a"))  # 700 ms
    world.send(m.Flush("a"))
    world.run(0)
    world.send(m.MediaPlayback("playing"))  # at once
    world.run(1000)
    world.send(m.MediaPlayback("playing"))
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.basis) == ("One two three.", "clock") and cleared.heard_ms >= 700


def test_a_peer_that_stops_in_the_middle_of_speech_is_asked_more_often() -> None:
    """The next mark comes 300 ms later than the one before it. From then on marks of ours stand every 100 ms, and
    nothing counts as heard beyond the first that has not come back."""
    world = late_world(0)
    world.send(m.Text(f"{TEXT} ", "a"))
    world.run(1000)
    world._peer_end_ns += 300_000_000
    assert n_marks(world) == 2, "the mark before all speech, and the one behind the first frame"
    world.run(2000)
    n_before = n_marks(world)
    world.send(m.Text(TEXT, "a", last=True))
    world.run(800)
    assert 8 <= n_marks(world) - n_before <= 11
    world._peer_end_ns += 400_000_000  # it plays the 200 ms that it has, and stops
    world.run(500)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert 2700 <= cleared.heard_ms <= 2830
