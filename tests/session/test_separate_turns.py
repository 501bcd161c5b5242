"""Turns that the peer keeps apart, and open turns that give way: what clients of other vendors' protocols rely on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

AHEAD_MS = 10_000
SETTINGS = SessionSettings(
    first_clause_chars=0, pace="realtime", lead_ms=AHEAD_MS, ahead_ms=AHEAD_MS, separate_turns=True, fade_on_clear=False
)


def sent(world: World) -> list[str]:
    return [event.turn for event in world.of(m.TurnSent)]


def heard_of(world: World, turn: str) -> int:
    """How many frames carry the audio of the turn, by their samples."""
    number = world.turn_numbers.get(turn)
    return sum(heard == number for _, heard, _ in world.frames)


def payloads(world: World) -> list[bytes]:
    return [payload for *_, payload in world.frames]


def labelled(world: World) -> list[str]:
    """The turn of each frame as the frame says."""
    return [effect.turn for effect in world.log if isinstance(effect, m.Frame)]


# --------------------------------------------------------------------- giving way


def test_an_open_turn_whose_text_is_spoken_gives_way() -> None:
    world = World(SETTINGS)
    world.send(m.Text("One two three. ", "a"))
    world.run(2000)
    assert sent(world) == [], "it waits for more text"
    world.send(m.Text("Four five six. ", "b"))
    world.run(2000)
    assert sent(world) == ["a"] and heard_of(world, "b") > 20
    world.send(m.End("b"))
    world.run(3000)
    assert sent(world) == ["a", "b"]


def test_an_open_turn_with_text_to_speak_does_not_give_way() -> None:
    world = World(SETTINGS, first_audio_ms=300)
    world.send(m.Text("One two three. Half a sen", "a"))
    world.send(m.Text("Four. ", "b", last=True))
    world.run(200)
    assert sent(world) == []
    world.send(m.Text("tence.", "a"))
    world.run(20_000)
    assert world.texts["a"] == "One two three. Half a sentence."
    assert [u.text for _, u in world.submitted] == ["One two three.", "Half a sentence.", "Four."]
    assert sent(world) == ["a", "b"]


def test_without_another_turn_an_open_turn_stays_open() -> None:
    world = World(SETTINGS)
    world.send(m.Text("One. ", "a"))
    world.run(5000)
    world.send(m.Text("Two. ", "a", last=True))
    world.run(5000)
    assert [u.text for _, u in world.submitted] == ["One.", "Two."] and sent(world) == ["a"]


def test_a_turn_without_text_gives_way() -> None:
    world = World(SETTINGS)
    world.send(m.Text("", "a"))
    world.send(m.Text("Four. ", "b", last=True))
    world.run(3000)
    assert sent(world) == ["a", "b"]


def test_text_for_a_turn_that_gave_way_is_refused_and_not_lost_silently() -> None:
    """A dialect then begins a turn that follows it."""
    world = World(replace(SETTINGS, lead_ms=200))
    world.send(m.Text("One two three four five six seven eight nine ten. ", "a"))
    world.run(1000)
    world.send(m.Text("Five. ", "b"))
    assert sent(world) == []
    world.send(m.Text("Late. ", "a"))
    (error,) = world.of(m.ErrorEvent)
    assert (error.code, error.about, error.turn) == ("turn_closed", "a", None)


def test_a_call_whose_turns_do_not_give_way_waits() -> None:
    world = World()
    world.send(m.Text("One. ", "a"))
    world.send(m.Text("Two. ", "b", last=True))
    world.run(5000)
    assert [u.text for _, u in world.submitted] == ["One."]


# ------------------------------------------------------------------------- clears


def test_a_clear_takes_back_no_frames_of_another_turn() -> None:
    """Each frame of the others is sent once, although all of them are still in the client's buffers."""
    world = World(SETTINGS)
    for turn in ("a", "b", "c"):
        world.say("One two three four.", turn)
    world.run(200)
    n_before = {turn: heard_of(world, turn) for turn in ("a", "b", "c")}
    assert all(n_before.values())
    world.send(m.Clear("b"))
    world.run(10_000)
    assert {turn: heard_of(world, turn) for turn in ("a", "b", "c")} == n_before
    assert [c.turn for c in world.of(m.Cleared)] == ["b"]


def test_a_clear_in_the_middle_leaves_the_next_turn_whole() -> None:
    world = World(SETTINGS, chunk_interval_ms=30)
    world.say("One two three four five six.", "a")
    world.say("Seven eight nine.", "b")
    world.run(200)
    n_before = heard_of(world, "a")
    assert 0 < n_before < 60 and not heard_of(world, "b")
    world.send(m.Clear("a"))
    world.run(10_000)
    assert heard_of(world, "a") == n_before and "a" not in sent(world)
    alone = World(SETTINGS, chunk_interval_ms=30)
    alone.turn_numbers["a"] = 1
    alone.say("Seven eight nine.", "b")
    alone.run(10_000)
    assert payloads(world)[n_before:] == payloads(alone) and labelled(world)[n_before:] == labelled(alone)
    assert sent(world) == ["b"]


def test_the_next_turn_is_not_delayed_by_what_was_cleared() -> None:
    """The client has thrown the cleared audio away, so nothing must be played before the next turn."""
    world = World(SETTINGS)
    text = "One two three four five six seven eight nine ten. " * 3  # 7.4 s, sent at once
    world.say(text, "a")
    world.run(100)
    world.send(m.Clear("a"))
    world.say(text, "b")
    world.run(100)
    assert sent(world) == ["a", "b"]


# --------------------------------------------------------------------- TurnSent


@pytest.mark.parametrize("text", ["", " ", "…", "。。。", "😀"])
def test_a_turn_without_speakable_text_is_sent_once(text: str) -> None:
    world = World(SETTINGS)
    world.send(m.Text(text, "a", last=True))
    world.run(3000)
    assert sent(world) == ["a"] and not world.frames
    assert [type(event) for event in world.terminals("a")] == [m.Done]


def test_a_clear_after_the_last_frame_is_no_second_end_for_the_client() -> None:
    world = World(SETTINGS)
    world.say("One.", "a")
    world.run(50)
    assert sent(world) == ["a"]
    world.send(m.Clear("a"))
    world.run(3000)
    assert sent(world) == ["a"]


def test_a_format_that_changes_between_turns_leaves_those_that_were_sent() -> None:
    """They are still being played, and must not be synthesised again."""
    world = World(SETTINGS)
    world.say("One two three four.", "a")
    world.run(100)
    assert sent(world) == ["a"]
    n_frames = len(world.frames)
    world.session.change_format("pcm", 16_000)
    world.send(m.Text("Five six. ", "b", last=True))
    world.run(10_000)
    assert [u.text for _, u in world.submitted] == ["One two three four.", "Five six."]
    assert {len(payload) for *_, payload in world.frames[:n_frames]} == {160}
    assert {len(payload) for *_, payload in world.frames[n_frames:]} == {640}
    assert sent(world) == ["a", "b"]


texts = st.sampled_from(["One two. ", "Three four five six. ", "half a", " sentence. ", "", "…", "你好。"])
turns = st.sampled_from(["a", "b", "c"])
actions = st.one_of(
    st.tuples(st.just("text"), texts, turns, st.booleans()),
    st.tuples(st.just("clear"), turns),
    st.tuples(st.just("end"), turns),
    st.tuples(st.just("run"), st.sampled_from([0, 20, 150, 700, 3000])),
)


@given(st.lists(actions, max_size=25), st.sampled_from([0, 40]), st.sampled_from([7, 60]))
def test_each_turn_is_sent_exactly_once_or_cleared(
    history: list[tuple[object, ...]], wait_ms: int, per_ms: int
) -> None:
    """A turn that was cleared has been sent at most once, before; any other exactly once, and no frame follows."""
    world = World(SETTINGS, chunk_interval_ms=wait_ms, ms_per_char=per_ms)
    for action in history:
        match action:
            case ("text", str(text), str(turn), bool(last)):
                world.send(m.Text(text, turn, last))
            case ("clear", str(turn)):
                world.send(m.Clear(turn))
            case ("end", str(turn)):
                world.send(m.End(turn))
            case ("run", int(ms)):
                world.run(ms)
    world.send(m.Close())
    world.run(120_000)
    counts = Counter(sent(world))
    cleared = {event.turn for event in world.of(m.Cleared)}
    done = {event.turn for event in world.of(m.Done)}
    for turn in cleared | done:
        assert counts[turn] <= 1 if turn in cleared else counts[turn] == 1, turn
    assert set(counts) <= cleared | done
    over: set[str] = set()
    for effect in world.log:
        if isinstance(effect, m.Frame):
            assert effect.turn not in over, f"a frame of {effect.turn} after its end"
            number = world.heard(effect.payload)
            assert number in (0, world.turn_numbers[effect.turn]), "audio of another turn"
        elif isinstance(effect, m.TurnSent | m.Cleared):
            over.add(effect.turn)


def test_frames_of_a_peer_that_drops_none_are_not_kept() -> None:
    """An HTTP response of an hour would otherwise be in memory until it ends."""
    world = World(SETTINGS)
    world.send(m.Text("One two three four five six seven. ", "a", last=True))
    world.run(1000)
    (turn,) = world.session.turns
    assert turn.playout.n_sent > 20 and not turn.recent


# ------------------------------------------------------------------ another bot


def test_a_bot_that_comes_back_begins_anew() -> None:
    world = World(SETTINGS)
    world.send(m.Configure(speed=1.5))
    world.send(m.Text("One two three. ", "1", last=True))
    world.run(5000)
    assert sent(world) == ["1"]
    world.session.new_bot(replace(SETTINGS.limits, turn_chars=20))
    world.send(m.Text("Four five. ", "1", last=True))
    world.run(5000)
    assert sent(world) == ["1", "1"]
    assert [utterance.speed for _, utterance in world.submitted] == [1.5, 1.0]
    world.send(m.Text("x" * 21, "2"))
    world.run(100)
    assert [error.code for error in world.of(m.ErrorEvent)] == ["text_too_long"]


def test_the_turns_of_the_next_bot_do_not_give_way_unless_its_protocol_says_so() -> None:
    world = World()
    world.session.let_turns_give_way()
    world.session.new_bot(world.session.settings.limits)
    world.send(m.Text("One. ", "a"))
    world.send(m.Text("Two. ", "b", last=True))
    world.run(5000)
    world.send(m.Text("Three. ", "a", last=True))
    world.run(5000)
    assert [u.text for _, u in world.submitted] == ["One.", "Three.", "Two."]
