"""Pausing the speech: nothing is lost, nothing is repeated beyond the asked-for step back, and the bot knows the place.

The engine's audio counts its own samples, so each frame tells which samples of the turn it has.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from world import MS, World

from telephony_tts.engines.api import Chunk, Timing, Utterance
from telephony_tts.runtime.errors import EngineError
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

RATE_HZ = 8_000
MS_PER_CHAR = 23
"""No word ends where a frame does."""
TEXT = "One two three four. Five six, seven eight nine. Ten."


def settings(**others: Any) -> SessionSettings:
    """Linear audio without fades, so that frames show the engine's samples."""
    return SessionSettings(codec="pcm", rate_hz=RATE_HZ, fade_ms=0, first_clause_chars=0, **others)


class CountingWorld(World):
    """A World whose turns count their samples: sample n of a turn is n + 1, so that 0 is silence."""

    def __init__(self, speech: SessionSettings | None = None, **others: Any) -> None:
        self.n_made: dict[str, int] = {}
        super().__init__(speech or settings(), ms_per_char=MS_PER_CHAR, **others)

    def chunks_of(self, utterance: Utterance, number: int) -> list[Chunk]:
        n_char = MS_PER_CHAR * RATE_HZ // 1000
        start = self.n_made.get(utterance.turn, 0)
        self.n_made[utterance.turn] = start + len(utterance.text) * n_char
        pcm = (np.arange(start, self.n_made[utterance.turn]) % 32_000 + 1).astype(np.int16)
        timings, at = [], 0
        for word in utterance.text.split(" "):
            timings.append(Timing(at, at + len(word), at * n_char, (at + len(word)) * n_char))
            at += len(word) + 1
        n_chunk = RATE_HZ // 10
        return [
            Chunk(
                pcm[first : first + n_chunk], RATE_HZ,
                tuple(t for t in timings if first <= t.start_sample < first + n_chunk) if self.timings else (),
            )
            for first in range(0, len(pcm), n_chunk)
        ]  # fmt: skip

    def heard(self, payload: bytes) -> int:
        return 0

    def samples(self, since: int = 0) -> np.ndarray[Any, Any]:
        return np.frombuffer(b"".join(payload for _, _, payload in self.frames[since:]), "<i2")


def boundaries(text: str) -> list[int]:
    """The ends of the words of a text that is one sentence after the other, in samples of its turn."""
    ends, n = [0], 0
    for sentence in text.replace(". ", ".|").split("|"):
        at = 0
        for word in sentence.split(" "):
            ends.append((n + at + len(word)) * MS_PER_CHAR * RATE_HZ // 1000)
            at += len(word) + 1
        n += len(sentence)
    return ends


def place_of(heard_ms: int, text: str = TEXT, step_back_ms: int = 0) -> int:
    """Where speech must go on, in ms: the step back before the last boundary that was heard. In the silence that fills
    the last frame of a turn it is the step back before the pause."""
    heard, ends = heard_ms * RATE_HZ // 1000, boundaries(text)
    sample = heard if heard > max(ends) else max(end for end in ends if end <= heard)
    sample -= step_back_ms * RATE_HZ // 1000
    return max(0, sample) * 1000 // RATE_HZ


# ----------------------------------------------------------------- by the bot


def test_speech_goes_on_from_the_last_word_that_was_heard() -> None:
    world = CountingWorld()
    world.say(TEXT, "a")
    world.run(530)
    world.send(m.PauseSpeech())
    (paused,) = world.of(m.Paused)
    assert paused.heard_ms == 530 and paused.heard_text == "One two three four. Five" and paused.reason == "bot"
    n_frames = len(world.frames)
    world.run(5_000)
    assert len(world.frames) <= n_frames + 1, "only the frame that fades out"
    assert not world.of(m.Done)
    n_frames = len(world.frames)
    world.send(m.ResumeSpeech())
    (resumed,) = world.of(m.Resumed)
    assert resumed == m.Resumed("a", place_of(530)) and 300 < resumed.from_ms <= 530
    world.run(10_000)
    again = world.samples(n_frames)
    n_all, n_silent = world.n_made["a"], resumed.from_ms * 8 % 160
    assert n_silent > 0 == again[:n_silent].max(), "nothing before the place is repeated"
    said = again[n_silent:][: n_all - resumed.from_ms * 8]
    np.testing.assert_array_equal(said, np.arange(resumed.from_ms * 8, n_all) + 1)
    (done,) = world.of(m.Done)
    assert done.audio_ms == -(-n_all // 160) * 20


@pytest.mark.slow
@pytest.mark.parametrize("timings", [True, False])
@pytest.mark.parametrize(("peer", "lead_ms"), [(False, 200), (True, 200), (True, 1000), (False, 20)])
@pytest.mark.parametrize("step_back_ms", [0, 250])
def test_random_pauses_lose_and_repeat_nothing(timings: bool, peer: bool, lead_ms: int, step_back_ms: int) -> None:
    """All samples between a resumed place and the next pause come once, in order; the place is the right one. Together
    the cases of this test have more than 2,000 pauses."""
    random.seed(f"{timings} {peer} {lead_ms} {step_back_ms}")
    n_pauses = 0
    for _ in range(40):
        n_pauses += pause_at_random(random.randrange(2**32), timings, peer, lead_ms, step_back_ms)
    assert n_pauses > 2_000 / 16


@pytest.mark.soak
@pytest.mark.parametrize("timings", [True, False])
@pytest.mark.parametrize("peer", [False, True])
def test_ten_thousand_pauses_lose_and_repeat_nothing(timings: bool, peer: bool) -> None:
    n_pauses = sum(pause_at_random(seed, timings, peer, 200, 100) for seed in range(600))
    assert n_pauses > 2_500


def pause_at_random(seed: int, timings: bool, peer: bool, lead_ms: int, step_back_ms: int) -> int:
    """Returns the number of pauses."""
    rng = random.Random(seed)
    world = CountingWorld(settings(lead_ms=lead_ms), timings=timings, peer=peer, first_audio_ms=rng.choice([0, 60]))
    world.send(m.Configure(step_back_ms=step_back_ms))
    turns = ["a", "b", "c"]
    for turn in turns:
        world.say(TEXT, turn)
    played: dict[str, list[int]] = {turn: [] for turn in turns}
    n_pauses = 0
    for _ in range(rng.randrange(1, 12)):
        world.run(rng.randrange(0, 1200))
        if not world.session.turns:
            break
        heard_before = {turn.id: turn.heard_samples for turn in world.session.turns}
        world.send(m.PauseSpeech())
        world.run(rng.randrange(0, 700))
        paused = world.of(m.Paused)[-1]
        world.send(m.ResumeSpeech())
        resumed = world.of(m.Resumed)[-1]
        n_pauses += 1
        if resumed.turn == paused.turn:
            assert resumed.from_ms <= paused.heard_ms
            if timings and heard_before[paused.turn] < paused.heard_ms * 8:
                assert resumed.from_ms == place_of(paused.heard_ms, TEXT, step_back_ms)
    world.run(30_000)
    assert [done.turn for done in world.of(m.Done)] == turns
    assert_each_sample_once(world, played)
    return n_pauses


def assert_each_sample_once(world: CountingWorld, played: dict[str, list[int]]) -> None:
    """Between two pauses the frames of a turn follow each other without a gap, and the turn ends with its last sample.
    The frame in which speech goes on is silent before the place, which `resumed` tells in whole milliseconds."""
    expected = {turn: 0 for turn in played}
    places: dict[str, int] = {}
    for event in world.log:
        if isinstance(event, m.Resumed):
            places[event.turn] = event.from_ms * 8
            expected[event.turn] = event.from_ms * 8 // 160 * 160
        elif isinstance(event, m.Paused):
            later = [turn for turn in expected if turn > event.turn]
            expected |= dict.fromkeys(later, 0)
        elif isinstance(event, m.Frame) and event.turn:
            pcm = np.frombuffer(event.payload, "<i2")
            first = expected[event.turn]
            n_all = world.n_made[event.turn]
            count = np.arange(first, first + 160)
            samples = np.where(count < n_all, count % 32_000 + 1, 0)
            if (place := places.pop(event.turn, None)) is not None:
                begin = first + int(np.flatnonzero(pcm)[0]) if pcm.any() else place
                assert place <= begin < place + 8
                samples[: begin - first] = 0
            np.testing.assert_array_equal(pcm, samples)
            expected[event.turn] = first + 160
    for turn, end in expected.items():
        assert end >= world.n_made[turn]


def test_text_that_comes_during_the_pause_is_spoken_after_it() -> None:
    world = CountingWorld()
    world.send(m.Text("One two three. ", "a"))
    world.run(100)
    world.send(m.PauseSpeech())
    world.send(m.Text("Four five six.", "a", True))
    world.say("Seven.", "b")
    world.run(2_000)
    assert not world.of(m.Done)
    world.send(m.ResumeSpeech())
    world.run(10_000)
    assert [done.turn for done in world.of(m.Done)] == ["a", "b"]
    assert world.samples()[-400:].max() == world.n_made["b"]


def test_a_pause_before_the_first_audio_holds_it_back() -> None:
    world = CountingWorld(first_audio_ms=300)
    world.say(TEXT, "a")
    world.run(100)
    world.send(m.PauseSpeech())
    world.run(2_000)
    assert not world.frames and not world.of(m.Started)
    assert world.of(m.Paused) == [m.Paused("a", "", 0, 0, "clock", "bot")]
    world.send(m.ResumeSpeech())
    world.run(10_000)
    assert world.of(m.Done) and world.samples()[0] == 1


def test_a_clear_while_paused_tells_what_was_heard_before() -> None:
    for peer in (False, True):
        world = CountingWorld(peer=peer)
        world.say(TEXT, "a")
        world.run(530)
        world.send(m.PauseSpeech())
        world.run(1_000)
        n_frames = len(world.frames)
        world.send(m.Clear())
        (cleared,), (paused,) = world.of(m.Cleared), world.of(m.Paused)
        assert (cleared.heard_text, cleared.heard_ms) == (paused.heard_text, paused.heard_ms)
        assert cleared.heard_text + cleared.unheard_text == TEXT
        world.say("New.", "b")
        world.run(2_000)
        assert [done.turn for done in world.of(m.Done)] == ["b"], "the pause is over"
        assert world.samples(n_frames)[0] == 1, "no fade is sent into the silence"


def test_heard_text_never_shrinks_when_words_are_repeated() -> None:
    world = CountingWorld()
    world.send(m.Configure(step_back_ms=500))
    world.say(TEXT, "a")
    world.run(700)
    world.send(m.PauseSpeech())
    world.send(m.ResumeSpeech())
    assert world.of(m.Resumed)[0].from_ms <= 200
    world.run(40)
    world.send(m.Clear())
    assert world.of(m.Cleared)[0].heard_ms == world.of(m.Paused)[0].heard_ms == 700


@pytest.mark.parametrize("peer", [False, True])
def test_each_mark_is_reported_once_and_at_its_time(peer: bool) -> None:
    world = CountingWorld(peer=peer)
    for n, word in enumerate(TEXT.split(" ")):
        world.send(m.Text(word + " ", "a"))
        world.send(m.Mark(f"m{n}", "a"))
    world.send(m.End("a"))
    for _ in range(8):
        world.run(170)
        world.send(m.PauseSpeech())
        n_marks = len(world.of(m.MarkReached))
        world.run(900)
        assert len(world.of(m.MarkReached)) == n_marks, "nothing is heard during a pause"
        world.send(m.ResumeSpeech())
    world.run(10_000)
    assert [mark.name for mark in world.of(m.MarkReached)] == [f"m{n}" for n in range(10)]
    assert all(mark.state == "played" for mark in world.of(m.MarkReached))


def test_a_hang_up_and_an_engine_failure_while_paused() -> None:
    world = CountingWorld(chunk_interval_ms=50)
    world.say(TEXT, "a")
    world.say(TEXT, "b")
    world.run(300)
    world.send(m.PauseSpeech())
    world.session.audio_failed(world.submitted[-1][1].id, EngineError("broken"), world.now_ns)
    world.pump()
    (error,) = world.of(m.ErrorEvent)
    assert error.turn == "a" and error.heard_ms == world.of(m.Paused)[0].heard_ms
    world.send(m.MediaStop())
    assert [cleared.turn for cleared in world.of(m.Cleared)] == ["b"] and world.finished is not None


def test_nothing_to_pause_and_nothing_to_resume_are_warnings() -> None:
    world = CountingWorld()
    world.send(m.PauseSpeech())
    world.send(m.ResumeSpeech())
    world.say("One.", "a")
    world.send(m.PauseSpeech())
    world.send(m.ResumeSpeech())
    world.send(m.ResumeSpeech())
    codes = [warning.code for warning in world.of(m.WarningEvent)]
    assert codes == ["no_active_turn", "not_paused", "not_paused"]
    world.run(2_000)
    assert world.of(m.Done)


def test_a_close_speaks_what_was_paused() -> None:
    world = CountingWorld()
    world.say(TEXT, "a")
    world.run(300)
    world.send(m.PauseSpeech())
    world.send(m.Close())
    world.run(10_000)
    assert world.of(m.Done) and world.finished is not None


def test_the_place_can_come_from_the_bot() -> None:
    world = CountingWorld()
    world.say(TEXT, "a")
    world.run(900)
    world.send(m.PauseSpeech(heard_ms=400))
    assert world.of(m.Paused)[0].basis == "client" and world.of(m.Paused)[0].heard_ms == 400
    world.send(m.ResumeSpeech())
    assert world.of(m.Resumed)[0].from_ms == place_of(400)


def test_speech_fades_in_after_a_pause() -> None:
    world = CountingWorld(SessionSettings(codec="pcm", rate_hz=RATE_HZ, fade_ms=5, first_clause_chars=0))
    world.say(TEXT, "a")
    world.run(470)
    world.send(m.PauseSpeech())
    n_frames = len(world.frames)
    world.send(m.ResumeSpeech())
    first = world.of(m.Resumed)[0].from_ms * 8 + 1
    n_silent = (first - 1) % 160
    world.run(100)
    pcm = world.samples(n_frames)
    assert n_silent > 120, "the fade goes on in the frame after the first one"
    assert not pcm[:n_silent].any()
    assert pcm[n_silent] < first // 100 and pcm[n_silent + 20] < 0.7 * first
    np.testing.assert_array_equal(pcm[n_silent + 40 : 480], np.arange(first + 40, first + 480 - n_silent))


def test_the_frames_after_a_pause_are_not_late() -> None:
    """Their lateness decides whether the server is overloaded."""
    world = CountingWorld()
    world.say(TEXT, "a")
    world.run(400)
    world.send(m.PauseSpeech())
    world.run(3_000)
    world.send(m.ResumeSpeech())
    world.run(1_000)
    assert max(event.late_ns for event in world.log if isinstance(event, m.Frame)) < 20 * MS
