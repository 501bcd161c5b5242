"""The characters of a turn, as the audio that speaks them is sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from telephony_tts.engines.api import Chunk, Timing
from telephony_tts.engines.words import words as engine_words
from telephony_tts.session.heard import mark_sample
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

SPEECH = SessionSettings(first_clause_chars=0, separate_turns=True, lead_ms=100)
Timed = list[tuple[str, float, float]]
"""Each character with its begin and end, in milliseconds of the turn's audio."""


def aligned(
    text: str, *, step_ms: float = 100, splits_words: bool = False, timings: bool = True, world: World | None = None
) -> list[tuple[float, m.SpokenText]]:
    """What comes with the audio of a turn, which is looked at each `step_ms`: with the audio sent so far, in ms."""
    world = world or World(SPEECH, timings=timings)
    world.send(m.Configure(words="on"))
    world.send(m.Text(text, "a"))
    (turn,) = world.session.turns
    alignment = world.session.alignment("a", splits_words=splits_words)
    assert alignment is not None
    world.send(m.End("a"))
    steps = []
    while not steps or not turn.sent_all:
        world.run(step_ms)
        n_samples = turn.n_sent_samples
        steps.append((n_samples / 8, alignment.advance(n_samples, is_whole=turn.sent_all)))
        assert len(steps) < 5000
    return steps


def characters(steps: list[tuple[float, m.SpokenText]]) -> Timed:
    """The characters with their times, checked to fit together."""
    found: Timed = []
    for _, spoken in steps:
        assert spoken.start == len(found)
        assert len(spoken.times_ms) == len(spoken.text) + 1
        assert spoken.times_ms[0] >= (found[-1][2] if found else 0)
        assert spoken.times_ms[-1] == (spoken.spans_ms[-1][1] if spoken.text else spoken.times_ms[0])
        found += [(char, begin, end) for char, (begin, end) in zip(spoken.text, spoken.spans_ms, strict=True)]
    return found


def words(found: Timed) -> list[tuple[str, float]]:
    """The words with their ends."""
    text = "".join(char for char, _, _ in found)
    ends = [at for at in range(1, len(text) + 1) if at == len(text) or (text[at].isspace() and text[at - 1] != " ")]
    return [(word, found[end - 1][2]) for word, end in zip(text.split(), ends, strict=True)]


# 50 ms per character, and the engine tells when each word ends.
HELLO = "Hello, dear friend. How are you?"
HELLO_ENDS = [("Hello,", 300), ("dear", 550), ("friend.", 950), ("How", 1100), ("are", 1300), ("you?", 1550)]


@pytest.mark.parametrize("splits_words", [False, True])
@pytest.mark.parametrize("step_ms", [20, 100, 330, 5000])
def test_words_end_exactly_where_the_engine_says(step_ms: float, splits_words: bool) -> None:
    """However the audio is cut."""
    found = characters(aligned(HELLO, step_ms=step_ms, splits_words=splits_words))
    assert dict(words(found)) == pytest.approx(dict(HELLO_ENDS))


class GappyWorld(World):
    """An engine that is silent for 300 ms before each word, and tells so."""

    def _chunks(self, text: str, number: int, n_before: int) -> list[Chunk]:
        n_gap, n_char = 24 * 300, 24 * 50
        timings, at = [], 0
        for start, end in engine_words(text):
            begin = at + n_gap
            at = begin + (end - start) * n_char
            timings.append(Timing(start, end, begin, at))
        pcm = np.full(at + n_gap, 1500 * number, np.int16)
        return [
            Chunk(pcm[n : n + 2400], 24_000, tuple(t for t in timings if n <= t.start_sample < n + 2400))
            for n in range(0, len(pcm), 2400)
        ]


@pytest.mark.parametrize("splits_words", [False, True])
@pytest.mark.parametrize("step_ms", [20, 330])
@pytest.mark.parametrize(
    "text", [HELLO, 'He said: "Well (almost) done," and left.', "It is $42.50 today, sir.", "您好，请稍等。我马上来。"]
)
def test_words_begin_and_end_where_the_event_words_says(text: str, step_ms: float, splits_words: bool) -> None:
    steps = aligned(text, step_ms=step_ms, splits_words=splits_words, world=(world := GappyWorld(SPEECH)))
    found = characters(steps)
    told = [word for event in world.of(m.WordsSpoken) for word in event.words]
    assert "".join(word["text"] for word in told) == "".join(text.split())
    last_ms = 0
    for word in told:
        begin, end = found[word["from"]][1], found[word["to"] - 1][2]
        assert (int(begin), int(end)) == (word["start_ms"], word["end_ms"]), word
        assert begin >= last_ms + 299, "the silence belongs to no word"
        last_ms = end


def test_a_mark_behind_a_sign_stands_at_the_end_of_its_word() -> None:
    """The engine's words end before the comma."""
    world = GappyWorld(SPEECH)
    world.say(HELLO, "a")
    world.run(1_000)
    (turn,) = world.session.turns
    for offset in (5, 6, 7):
        assert mark_sample(turn, offset) == 550 * 8
    assert mark_sample(turn, 8) == mark_sample(turn, 11) == (550 + 500) * 8


def test_words_are_whole_unless_they_may_be_split() -> None:
    whole = [spoken.text for _, spoken in aligned(HELLO, step_ms=20) if spoken.text]
    assert whole == ["Hello,", " dear", " friend.", " How", " are", " you?"]
    split = [spoken.text for _, spoken in aligned(HELLO, step_ms=20, splits_words=True) if spoken.text]
    assert max(map(len, split)) <= 4 and "".join(split) == HELLO


@pytest.mark.parametrize("timings", [True, False])
def test_what_was_not_sent_is_not_spoken(timings: bool) -> None:
    for sent_ms, spoken in aligned(HELLO, step_ms=20, splits_words=True, timings=timings):
        assert spoken.times_ms[-1] <= sent_ms


def test_a_character_is_given_as_soon_as_its_audio_was_sent() -> None:
    n_chars = 0
    for sent_ms, spoken in aligned("Hello dear friend", step_ms=20, splits_words=True):
        n_chars += len(spoken.text)
        assert n_chars == min(int(sent_ms // 50), 17)


def test_a_word_begins_behind_the_word_before() -> None:
    found = characters(aligned("One two."))
    assert [begin for char, begin, _ in found] == pytest.approx([50.0 * n for n in range(8)])


@pytest.mark.parametrize("timings", [True, False])
@pytest.mark.parametrize("splits_words", [False, True])
def test_a_number_is_as_long_as_its_reading(splits_words: bool, timings: bool) -> None:
    text = "It is $42.50 today, sir."
    world = World(SPEECH)
    world.say(text)
    world.run(1)
    spoken = world.submitted[0][1].text
    assert "42" not in spoken
    found = characters(aligned(text, step_ms=20, splits_words=splits_words, timings=timings))
    ends = dict(words(found))
    assert ends["$42.50"] == pytest.approx(50 * spoken.index(" today"), abs=0 if timings else 60)
    assert ends["today,"] == pytest.approx(50 * (spoken.index("today") + 6), abs=0 if timings else 60)


def test_half_a_number_is_not_a_word() -> None:
    texts = [spoken.text for _, spoken in aligned("It is $42.50 today, sir.", step_ms=20) if spoken.text]
    assert texts == ["It", " is", " $42.50", " today,", " sir."]


@pytest.mark.parametrize("timings", [True, False])
def test_chinese_is_given_character_by_character(timings: bool) -> None:
    text = "您的订单已经发出了。请稍等。"
    steps = aligned(text, step_ms=60, splits_words=True, timings=timings)
    found = characters(steps)
    assert "".join(char for char, _, _ in found) == text
    if timings:
        assert [end for _, _, end in found] == pytest.approx([50.0 * (n + 1) for n in range(len(text))])
        assert max(len(spoken.text) for _, spoken in steps[1:]) <= 2


def test_without_timings_a_known_sentence_is_spread_over_its_words() -> None:
    found = characters(aligned(HELLO, timings=False))
    for (word, end), (expected_word, expected) in zip(words(found), HELLO_ENDS, strict=True):
        assert word == expected_word and end == pytest.approx(expected, abs=120)


def test_the_end_gives_the_rest_though_nothing_of_it_is_spoken() -> None:
    found = characters(aligned("Hello. ***  "))
    assert "".join(char for char, _, _ in found) == "Hello. ***  "
    assert [spoken.text for _, spoken in aligned("...")] == ["..."]


def test_text_between_two_turns_is_none_of_either() -> None:
    world = World(SPEECH)
    world.say("One.", "a")
    world.say("Two.", "b")
    alignments = [world.session.alignment(name) for name in ("a", "b", "c")]
    assert alignments[2] is None
    world.run(2000)
    texts = [each.advance(100_000, is_whole=True).text for each in alignments if each is not None]
    assert texts == ["One.", "Two."]


TEXT = st.text(alphabet="ab 4.,$€-'您的。！\n*한국 ", max_size=60)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(TEXT, st.sampled_from([20, 60, 250]), st.booleans(), st.booleans())
def test_every_character_comes_once_in_order_with_times_that_never_go_back(
    text: str, step_ms: float, splits_words: bool, timings: bool
) -> None:
    steps = aligned(text or "a", step_ms=step_ms, splits_words=splits_words, timings=timings)
    found = characters(steps)
    assert "".join(char for char, _, _ in found) == (text or "a")
    assert all(begin <= end for _, begin, end in found)
    assert all(spoken.times_ms[-1] <= sent_ms + 0.1 for sent_ms, spoken in steps)
