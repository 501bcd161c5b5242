"""A bot that writes without a full stop: the text is spoken in pieces of bounded length, each word once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_open_sentences import SETTINGS, given_to_engine, new_world
from world import World

from telephony_tts.session.settings import CallLimits
from telephony_tts.text.normalizer import normalize
from telephony_tts.wire import messages as m

LONGEST = 480
"""The most characters of an utterance: up to where the segmenter stops waiting, with what was fed and its reading."""
CLAUSE = "and then we looked into all of the papers that you had sent to our office in the spring of that year, "
HAN_CLAUSE = "然后我们仔细看了您在春天寄到我们办公室的所有文件和所有照片并且把它们都好好地收了起来，"


def spoken(text: str, n_at_once: int, pause_ms: float = 20) -> tuple[World, list[str]]:
    settings = replace(SETTINGS, limits=CallLimits(turn_chars=10_000, text_chars_per_s=0, turn_idle_s=0))
    world = new_world(settings)
    for at in range(0, len(text), n_at_once):
        world.send(m.Text(text[at : at + n_at_once]))
        world.run(pause_ms)
    world.send(m.End())
    world.run(900_000)
    return world, given_to_engine(world)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_at_once", "pause_ms"), [(1, 20), (7, 20), (40, 20), (1, 130), (5, 490)], ids=str
)
@pytest.mark.parametrize("clause", [CLAUSE, CLAUSE.replace(", ", " "), HAN_CLAUSE], ids=["commas", "none", "Mandarin"])
def test_run_on_text_is_cut_and_every_word_is_spoken_once(clause: str, n_at_once: int, pause_ms: float) -> None:
    text = (clause * (3800 // len(clause))).strip()
    world, utterances = spoken(text, n_at_once, pause_ms)
    assert max(map(len, utterances)) <= LONGEST
    assert "".join("".join(utterances).split()) == "".join(normalize(text).split())
    sentences = world.of(m.SentenceSpoken)
    assert "".join("".join(each.text for each in sentences).split()) == "".join(text.split())
    assert [each.index for each in sentences] == list(range(len(utterances)))
    (done,) = world.of(m.Done)
    assert done is not None and not world.of(m.ErrorEvent)


@pytest.mark.slow
def test_numbers_and_the_last_word_of_run_on_text_are_spoken_once() -> None:
    clause = "then {} people came to the big house by the river and said that they liked it a lot"
    text = " ".join(clause.format(n) for n in range(30, 60))
    for pause_ms in (20, 490):
        _, utterances = spoken(text, 5, pause_ms)
        assert max(map(len, utterances)) <= LONGEST
        assert " ".join(" ".join(utterances).split()) == " ".join(normalize(text).split())


def test_the_heard_part_of_run_on_text_is_exact() -> None:
    text = (CLAUSE * 8).strip()
    for cleared_ms in range(500, 12_000, 1_700):
        world = new_world(replace(SETTINGS, limits=CallLimits(text_chars_per_s=0)))
        for at in range(0, len(text), 9):
            world.send(m.Text(text[at : at + 9]))
            world.run(20)
        world.run(cleared_ms)
        world.send(m.Clear())
        (cleared,) = world.of(m.Cleared)
        assert cleared.heard_text + cleared.unheard_text == text
        assert cleared.heard_text and text.startswith(cleared.heard_text)
