"""What an engine says wrongly by itself, and its table puts right: heard in the engine's own phonemes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telephony_tts.engines.espeak import engine as espeak
from telephony_tts.engines.front_ends.english import english_reader

pytestmark = pytest.mark.slow

IN_ENGLISH = "(en)"
"""What eSpeak NG writes before letters that it spells in English."""


@pytest.fixture(scope="module")
def mandarin() -> Iterator[Callable[[str, bool], str]]:
    """The phonemes of eSpeak's Mandarin, as IPA with True."""
    import espeakng_loader

    library = espeak._Library(Path(espeakng_loader.get_library_path()), Path(espeakng_loader.get_data_path()))
    yield library.reader("cmn")


@pytest.mark.parametrize(
    "text",
    [
     "您稍等一会儿。", "这儿", "那儿",
     "哪儿", "一点儿", "有点儿贵", "没事儿", "今儿", "熊先生", "英雄", "兄弟", "贫穷", "很窘"],
)  # fmt: skip
def test_espeak_spells_nothing_in_english(text: str, mandarin: Callable[[str, bool], str]) -> None:
    assert IN_ENGLISH in mandarin(text, True), "the table is not needed any more"
    written, sounds = espeak._mandarin(text, [])
    assert len(written) == len(text)
    assert IN_ENGLISH not in mandarin(espeak._with_phonemes(written, sounds)[0], True)


@pytest.mark.parametrize("text", ["女儿", "儿童", "儿子", "幼儿园", "新生儿", "今儿子", "用户永远"])
def test_words_that_espeak_knows_stay(text: str) -> None:
    assert espeak._mandarin(text, []) == (text, [])


def test_phonemes_of_a_lexicon_stay() -> None:
    assert espeak._mandarin("熊猫", [(0, 1, "[[a]]")]) == ("熊猫", [(0, 1, "[[a]]")])
    assert espeak._mandarin("熊雄", [(0, 1, "[[a]]")])[1] == [(0, 1, "[[a]]"), (1, 2, "[[S;j'ong35]]")]


@pytest.mark.parametrize(
    ("written", "digits"),
    [
        ("World War III is over.", "World War 3   is over."),
        ("Parts II, IV and XX", "Parts 2 , 4  and 20"),
        ("Henry VIII.", "Henry 8   ."),
        ("I am a VIP, V. I. P., XIV-b", "I am a VIP, V. I. P., 14 -b"),
        ("XIX IX XI VII", "19  9  11 7  "),
    ],
)
def test_roman_numerals_are_numbers_for_espeak(written: str, digits: str) -> None:
    assert espeak._ROMAN.sub(espeak._in_digits, written) == digits


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Spell it: A, N, N, A.", "spˈɛl ɪt: ˈA, ˈɛn, ˈɛn, ˈA."),
        ("It is five A M now.", "ˌɪt ɪz fˈIv ˈA ˈɛm nˈW."),
        ("In category A", "ɪn kˈæTəɡˌɔɹi ˈA"),
        ("A dog.", "ɐ dˈɔɡ."),
        ("Grade A is a grade.", "ɡɹˈAd ˈA ɪz ɐ ɡɹˈAd."),
        ("A I'd say.", "ɐ ˌId sˈA."),
    ],
)
def test_the_letter_a_is_no_article(text: str, phonemes: str) -> None:
    reader = english_reader()
    letters = {number: letter for letter, number in reader.symbols.items()}
    said = "".join(letters.get(number, "") for number in reader.read(text).ids)
    assert said.rstrip(". ") == phonemes.rstrip(". "), said
