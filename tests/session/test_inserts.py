"""Inserts: audio between the sentences of a turn that no engine speaks. They are paced, marked and cleared like
speech."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from world import World

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.inserts import Silence
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m


class Hum:
    """A constant level that never ends."""

    def chunks(self) -> Iterator[Chunk]:
        for _ in itertools.count():
            yield Chunk(np.full(2_400, 9_000, np.int16), 24_000)


class InsertWorld(World):
    """A World that plays inserts as the catalog's player does."""

    def chunks_of(self, utterance: Utterance, number: int) -> list[Chunk]:
        if utterance.insert is None:
            return super().chunks_of(utterance, number)
        assert not utterance.text
        return list(itertools.islice(utterance.insert.chunks(), 400))


def rests_ms(world: World) -> list[int]:
    """The lengths of the silences inside the frames that were sent."""
    quiet = [number == 0 for _, number, _ in world.frames]
    return [20 * len(list(group)) for is_quiet, group in itertools.groupby(quiet) if is_quiet]


def test_silence_stands_where_it_was_asked_for() -> None:
    world = InsertWorld(ms_per_char=20)
    world.send(m.Text("One two. ", "a"))
    world.session.insert(Silence(700), "a", world.now_ns)
    world.send(m.Text("Three.", "a", True))
    world.run(5_000)
    assert [utterance.text for _, utterance in world.submitted] == ["One two.", "", "Three."]
    (rest_ms,) = [ms for ms in rests_ms(world) if ms > 100]
    assert 680 <= rest_ms <= 740
    (done,) = world.of(m.Done)
    assert abs(done.audio_ms - (8 * 20 + 700 + 6 * 20)) <= 20
    told = [(sentence.index, sentence.text) for sentence in world.of(m.SentenceSpoken)]
    assert told == [(0, "One two."), (1, "Three.")], "an insert has no number"


def test_text_is_cut_at_an_insert() -> None:
    world = InsertWorld()
    world.send(m.Text("Your code is", "a"))
    world.session.insert(Silence(300), "a", world.now_ns)
    world.send(m.Text(" seven.", "a", True))
    world.run(10_000)
    assert [utterance.text.strip() for _, utterance in world.submitted] == ["Your code is", "", "seven."]


@pytest.mark.parametrize("peer", [False, True])
def test_marks_stand_on_their_side_of_an_insert(peer: bool) -> None:
    world = InsertWorld(ms_per_char=20, peer=peer)
    world.send(m.Text("One two. ", "a"))
    world.send(m.Mark("before", "a"))
    for _ in range(2):
        world.session.insert(Silence(400), "a", world.now_ns)
        world.send(m.Mark("between", "a")) if not world.of(m.Started) else None
    world.send(m.Mark("behind", "a"))
    world.send(m.Text("Three.", "a", True))
    reached: dict[str, float] = {}
    for _ in range(200):
        world.run(10)
        for mark in world.of(m.MarkReached):
            reached.setdefault(mark.name, world.now_ms)
    assert list(reached) == ["before", "between", "behind"]
    assert 150 <= reached["before"] <= 190
    assert 540 <= reached["between"] <= 600
    assert 940 <= reached["behind"] <= 1000


def test_an_endless_insert_is_paced_and_a_clear_ends_it() -> None:
    world = InsertWorld()
    turn = world.session.insert(Hum(), None, world.now_ns)
    assert turn is not None and turn.closed, "a turn of its own"
    world.pump()
    world.run(3_000)
    assert 3_000 <= 20 * len(world.frames) <= 3_220
    assert len(world.submitted) == 1
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.heard_ms, cleared.unheard_text) == ("", 3_000, "")
    n_frames = len(world.frames)
    world.run(1_000)
    assert len(world.frames) == n_frames and world.cancelled


def test_a_pause_inside_an_insert_goes_on_at_that_place() -> None:
    world = InsertWorld(SessionSettings(first_clause_chars=0))
    world.session.insert(Silence(2_000), None, world.now_ns)
    world.pump()
    world.run(1_010)
    world.send(m.PauseSpeech())
    world.run(500)
    world.send(m.ResumeSpeech())
    assert world.of(m.Resumed) == [m.Resumed("t1", 1_010)]
    world.run(1_500)
    assert world.of(m.Done)[0].audio_ms == 2_000


def test_an_insert_behind_a_turn_that_was_ended_is_refused() -> None:
    world = InsertWorld()
    world.say("Hello there.", "a")
    assert world.session.insert(Silence(100), "a", world.now_ns) is None
    world.pump()
    assert [error.code for error in world.of(m.ErrorEvent)] == ["turn_closed"]


def test_an_insert_is_played_again_in_another_format() -> None:
    world = InsertWorld(media=False)
    world.send(m.Text("One. ", "a"))
    world.session.insert(Silence(500), "a", world.now_ns)
    world.send(m.Text("Two.", "a", True))
    world.run(1_000)
    world.session.attach_media(world.now_ns, marks=False, clears=True, start=m.MediaStart("c", "s", "pcm", 16_000))
    world.pump()
    world.run(5_000)
    (done,) = world.of(m.Done)
    assert abs(done.audio_ms - (4 * 50 + 500 + 4 * 50)) <= 20
    assert {len(payload) for _, _, payload in world.frames} == {640}
