"""The event `words`: each word as the bot wrote it, its place in the turn's text, and when it is heard."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from world import World

from telephony_tts.session.words import _words
from telephony_tts.wire import messages as m


def spoken(text: str, **shape: Any) -> list[m.WordsSpoken]:
    world = World(ms_per_char=20, **shape)
    world.send(m.Configure(words="on"))
    world.say(text, "a")
    world.run(20_000)
    return world.of(m.WordsSpoken)


def test_words_have_the_times_of_the_engine() -> None:
    first, second = spoken("One three. It was seven!")
    assert (first.index, second.index, first.basis) == (0, 1, "engine")
    assert first.words == [
        {"text": "One", "start_ms": 0, "end_ms": 60, "from": 0, "to": 3},
        {"text": "three.", "start_ms": 80, "end_ms": 200, "from": 4, "to": 10},
    ]
    assert [(word["text"], word["from"], word["to"]) for word in second.words] == [
        ("It", 11, 13), ("was", 14, 17), ("seven!", 18, 24),
    ]  # fmt: skip
    assert second.words[0]["start_ms"] == 200


def test_a_number_is_one_word_while_its_reading_lasts() -> None:
    """"$25" is read as "twenty-five dollars"."""
    (event,) = spoken("Pay $25 now.")
    pay, amount, now = event.words
    assert (amount["text"], amount["from"], amount["to"]) == ("$25", 4, 7)
    assert pay["end_ms"] <= amount["start_ms"] and amount["end_ms"] - amount["start_ms"] >= 18 * 20 - 20
    assert now["start_ms"] >= amount["end_ms"]


@pytest.mark.parametrize("timings", [True, False])
@pytest.mark.parametrize(
    "text", ["Pay $25 by 3 pm, please. Thanks (a lot)!", "你好，请付25元。谢谢 Anna！", "A. “Quoted,” she said…"]
)
def test_words_cover_the_text_in_order(text: str, timings: bool) -> None:
    events = spoken(text, timings=timings)
    words = [word for event in events for word in event.words]
    assert [word["text"] for word in words] == [text[word["from"] : word["to"]] for word in words]
    assert "".join(word["text"] for word in words) == "".join(text.split())
    assert all(word["start_ms"] <= word["end_ms"] for word in words)
    assert all(a["end_ms"] <= b["start_ms"] and a["to"] <= b["from"] for a, b in pairwise(words))
    assert {event.basis for event in events} == {"engine" if timings else "estimate"}


def test_without_the_option_there_are_no_words() -> None:
    world = World()
    world.say("One two.", "a")
    world.run(3_000)
    assert world.of(m.SentenceSpoken) and not world.of(m.WordsSpoken)


def test_the_words_of_a_text() -> None:
    def cut(text: str) -> list[str]:
        return [text[start:end] for start, end in _words(text)]

    assert cut("Don't stop,  now!") == ["Don't", "stop,", "now!"]
    assert cut("你好，世界ok吗？") == ["你", "好，", "世", "界", "ok", "吗？"]
    assert cut("안녕 하세요.") == ["안녕", "하세요."]
    assert cut(" — ") == ["—"]
    assert cut("") == []
