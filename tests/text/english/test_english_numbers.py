from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.text.languages.english import numbers as en

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_VALUES = {word: value for value, word in enumerate(_SMALL.split())}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}


def _parse(words: str) -> int:
    """The value of English number words, computed independently."""
    total = group = 0
    for word in words.split():
        if word == "hundred":
            group *= 100
        elif word in ("thousand", "million", "billion", "trillion"):
            total += group * 1000 ** (("thousand", "million", "billion", "trillion").index(word) + 1)
            group = 0
        else:
            group += _VALUES[word]
    return total + group


@given(st.integers(0, 10**15 - 1))
def test_cardinal_reads_back(number: int) -> None:
    assert _parse(en.cardinal(number)) == number


@pytest.mark.parametrize(
    ("number", "spoken"),
    [(1, "first"), (12, "twelfth"), (20, "twentieth"), (23, "twenty third"), (100, "one hundredth")],
)
def test_ordinal(number: int, spoken: str) -> None:
    assert en.ordinal(number) == spoken


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (1984, "nineteen eighty four"),
        (1905, "nineteen oh five"),
        (1900, "nineteen hundred"),
        (2000, "two thousand"),
        (2006, "two thousand six"),
        (2024, "twenty twenty four"),
    ],
)
def test_year(number: int, spoken: str) -> None:
    assert en.year(number) == spoken


def test_number_keeps_what_is_written() -> None:
    assert en.number("1,234.50") == "one thousand two hundred thirty four point five zero"
    assert en.number("007") == "zero zero seven"
    assert en.number("1" * 5000).startswith("one one one")


def test_fraction_and_decade() -> None:
    assert [en.fraction(1, 2), en.fraction(3, 4), en.fraction(2, 3)] == ["one half", "three quarters", "two thirds"]
    assert [en.decade(1980), en.decade(80), en.decade(1800)] == ["nineteen eighties", "eighties", "eighteen hundreds"]


def test_letters_say_the_letter_a_and_not_the_article() -> None:
    assert en.letters("AB12") == "A. B one two"
