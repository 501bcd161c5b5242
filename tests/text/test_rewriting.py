"""Readings of a lexicon or a mark: the sentence is read with them, and its spans stay the bot's characters."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from telephony_tts.text import rewriting
from telephony_tts.text.normalizer import Sounds, SpokenSpan, normalize_spans
from telephony_tts.text.rewriting import Reading, spoken_spans


def said(text: str, *readings: Reading, lang: str | None = "en", control: tuple[str, ...] = ()) -> str:
    return "".join(span.spoken for span in spoken_spans(text, lang, control, readings))


def put(text: str, part: str, spoken: str, **others: object) -> Reading:
    at = text.index(part)
    return Reading(at, at + len(part), spoken, **others)  # type: ignore[arg-type]


def test_a_replaced_word_covers_its_own_characters() -> None:
    text = "Query SQL now."
    assert spoken_spans(text, "en", (), [put(text, "SQL", "sequel")]) == [
        SpokenSpan(0, 6, "Query "),
        SpokenSpan(6, 9, "sequel", True),
        SpokenSpan(9, 14, " now."),
    ]


def test_a_replacement_is_read_with_the_words_around_it() -> None:
    text = "It costs X kg."
    assert said(text, put(text, "X", "5")) == "It costs five kilograms."
    assert spoken_spans(text, "en", (), [put(text, "X", "5")]) == [
        SpokenSpan(0, 9, "It costs "),
        SpokenSpan(9, 13, "five kilograms", True),
        SpokenSpan(13, 14, "."),
    ]


def test_a_replacement_may_have_numbers_of_its_own() -> None:
    text = "Take ACME-12 home."
    assert said(text, put(text, "ACME-12", "acme 12")) == "Take acme twelve home."


def test_a_verbatim_reading_is_spoken_as_it_stands() -> None:
    text = "Code 12 kg."
    verbatim = put(text, "12", "1*2", verbatim=True)
    assert said(text, verbatim) == "Code 1*2 kg."
    assert said("a12b", put("a12b", "12", "one two", verbatim=True)) == "a one two b"


def test_a_reading_may_say_nothing() -> None:
    text = "Hello <x>world."
    assert spoken_spans(text, "en", (), [put(text, "<x>", "")]) == [
        SpokenSpan(0, 6, "Hello "),
        SpokenSpan(6, 9, ""),
        SpokenSpan(9, 15, "world."),
    ]
    assert said("$<x>5", put("$<x>5", "<x>", "")) == "five dollars"
    assert said("$<x>5", put("$<x>5", "<x>", "", verbatim=True)) == "five dollars"


def test_sounds_stay_with_their_word() -> None:
    text = "我在重庆。"
    reading = put(text, "重庆", "重庆", pronunciation=("pinyin", "chong2 qing4"))
    assert spoken_spans(text, "zh", (), [reading])[1] == SpokenSpan(2, 4, "重庆", True, ("pinyin", "chong2 qing4"))


def test_sounds_are_dropped_where_the_text_was_read_otherwise() -> None:
    text = "Take 5 now"
    spans = spoken_spans(text, "en", (), [put(text, "5", "5", pronunciation=("ipa", "faɪv"))])
    assert spans[1] == SpokenSpan(5, 6, "five", True)


def test_readings_that_overlap_or_lie_outside_are_dropped() -> None:
    text = "one two three"
    spans = spoken_spans(
        text, "en", (), [Reading(0, 7, "A"), Reading(4, 9, "B"), Reading(8, 99, "C"), Reading(9, 9, "D")]
    )
    assert "".join(span.spoken for span in spans) == "A three"


def test_a_control_token_is_not_replaced() -> None:
    text = "Ha [laugh] laugh."
    readings = [Reading(4, 9, "cry"), Reading(11, 16, "cry")]
    assert said(text, *readings, control=("[laugh]",)) == "Ha [laugh] cry."


def test_marks_around_a_replaced_word_are_still_dropped() -> None:
    text = "Use **SQL** now"
    assert said(text, put(text, "SQL", "sequel")) == said("Use **sequel** now")


def test_without_readings_the_text_is_read_as_ever() -> None:
    text = "Pay **$5** by 12/31."
    assert spoken_spans(text, "en") == normalize_spans(text, "en")


_TEXTS = st.text(st.sampled_from("ab 5$%*#-.重庆 kg<>/"), max_size=24)


@given(
    _TEXTS,
    st.lists(st.tuples(st.integers(-1, 25), st.integers(-1, 25), _TEXTS, st.booleans()), max_size=4),
    st.sampled_from(["en", "zh", None]),
)
def test_the_spans_cover_any_text_in_order(
    text: str, readings: list[tuple[int, int, str, bool]], lang: str | None
) -> None:
    given_readings = [Reading(start, end, spoken, None, verbatim) for start, end, spoken, verbatim in readings]
    spans = spoken_spans(text, lang, (), given_readings)
    at = 0
    for span in spans:
        assert span.start == at and span.end > at
        at = span.end
    assert at == len(text)


_SOUNDS = st.none() | st.just(("ipa", "a"))


@pytest.mark.slow
@settings(max_examples=400)
@given(
    _TEXTS,
    st.lists(st.tuples(st.integers(0, 24), st.integers(1, 6), _TEXTS, _SOUNDS), max_size=5),
    st.sampled_from(["en", "zh", "de"]),
    st.sampled_from([(), ("<b>",)]),
)
def test_the_fast_way_back_gives_the_same_spans(
    text: str, readings: list[tuple[int, int, str, Sounds | None]], lang: str, control: tuple[str, ...]
) -> None:
    given_readings = [Reading(start, start + n, spoken, sounds) for start, n, spoken, sounds in readings]
    kept = rewriting._apart(text, control, given_readings)
    assume(kept)
    way = rewriting._Rewritten(text, kept)
    fast = rewriting._mapped_back(len(text), way, normalize_spans(way.text, lang, control))
    assert fast == rewriting._pieces_mapped_back(len(text), rewriting._Rewritten(text, kept), lang, control, "")


@given(_TEXTS, st.sampled_from(["en", "zh"]))
def test_a_reading_that_changes_nothing_changes_no_speech(text: str, lang: str) -> None:
    whole = "".join(span.spoken for span in normalize_spans(text, lang))
    for at in range(len(text)):
        assert said(text, Reading(at, at + 1, text[at]), lang=lang) == whole
