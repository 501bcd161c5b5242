"""The thinking of a reasoning model in a turn: silent, and still the bot's own text in all that it is told."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.text.thinking import Thinking
from telephony_tts.wire import messages as m

SILENT = SessionSettings(first_clause_chars=0)
SPOKEN = dataclasses.replace(SILENT, thinking="spoken")
TURN = "<think>The caller wants 5.\n\nSo I say it.</think>You have 5. <thinking>Well.</thinking>Goodbye."


def said(text: str, of: SessionSettings = SILENT, n_step: int | None = None) -> tuple[World, list[str]]:
    world = World(of)
    n_step = n_step or len(text)
    for at in range(0, len(text), n_step):
        world.send(m.Text(text[at : at + n_step], "a"))
    world.send(m.End("a"))
    world.run(120_000)
    return world, [utterance.text.strip() for _, utterance in world.submitted]


@pytest.mark.parametrize("n_step", [1, 2, 3, 5, 8, 13, 1000])
def test_thinking_is_silent_however_its_tags_are_cut(n_step: int) -> None:
    world, spoken = said(TURN, n_step=n_step)
    assert spoken == ["You have five.", "Goodbye."]
    assert [event.text for event in world.of(m.SentenceSpoken)] == ["You have 5.", "Goodbye."]
    assert world.of(m.Done)[0].chars == len(TURN)


def test_a_setting_and_a_message_make_it_heard() -> None:
    assert said(TURN, SPOKEN)[1][:2] == ["The caller wants five.", "So I say it."]
    world = World(SILENT)
    world.send(m.Configure(thinking="spoken"))
    world.say("<think>Hm, 5.</think>Yes.")
    world.run(20_000)
    assert [utterance.text.strip() for _, utterance in world.submitted] == ["Hm, five.", "Yes."]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Yes. <think>It never ends. 5 of them.", ["Yes."]),
        ("<think>Only that.</think>", []),
        ("<THINK>a.</Think>B is here.", ["B is here."]),
        ("No end.</think> After it.", ["No end.", "After it."]),
        ("I think <thin> is 5 < 6.", ["I think  is five less than six."]),
        ("A < b <t", ["A less than b less than t"]),
        ("Your balance is <think>a</think>$5.", ["Your balance is five dollars."]),
        ("Your balance is <think>" + "no " * 200 + "</think>$5.", ["Your balance is", "five dollars."]),
    ],
)
def test_what_is_left(text: str, spoken: list[str]) -> None:
    for n_step in (1, 1000):
        heard = [" ".join(sentence.split()) for sentence in said(text, n_step=n_step)[1]]
        assert heard == [" ".join(sentence.split()) for sentence in spoken]


def test_heard_text_is_the_bots_own_with_its_thinking() -> None:
    world = World(SILENT)
    world.send(m.Text(TURN, "a"))
    world.run(400)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_text + cleared.unheard_text == TURN
    assert cleared.heard_text.startswith("<think>") and not cleared.heard_text.endswith("Goodbye.")


def test_a_bot_is_not_asked_to_pause_while_it_thinks() -> None:
    world = World(dataclasses.replace(SILENT, pause_chars=100, resume_chars=50))
    world.send(m.Text("<think>" + "I wonder. " * 50, "a"))
    assert not world.of(m.Pause)
    world.send(m.Text("</think>" + "I am sure of it. " * 50, "a"))
    assert world.of(m.Pause)


def test_ssml_may_begin_behind_thinking() -> None:
    text = '<think>I use SSML.</think><speak>One <mark name="here"/>two.</speak>'
    for n_step in (1, 4, 1000):
        world, spoken = said(text, n_step=n_step)
        assert spoken == ["One two."] and [mark.name for mark in world.of(m.MarkReached)] == ["here"]


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "<thinking>", "a", " ", "</thinking>"])))
@settings(deadline=None, max_examples=200)
def test_every_character_keeps_its_place(pieces: list[str]) -> None:
    whole, streamed = (Thinking(is_spoken=False) for _ in range(2))
    text = "".join(pieces)
    left = whole.feed(text) + whole.close()
    assert "".join(streamed.feed(piece) for piece in pieces) + streamed.close() == left
    assert len(left) == len(text) == streamed.n_chars and streamed.source == text
    assert all(kept in (" ", char) for kept, char in zip(left, text, strict=True))
