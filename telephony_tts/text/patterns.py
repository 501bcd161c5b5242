"""Patterns that the rules of several languages share: numbers, units after them, codes, signs and fractions."""

from __future__ import annotations

import re

NUMBER = (
    r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,8}(?![0-9])|[0-9]{1,2}(?:,[0-9]{2}){1,4},[0-9]{3}(?![0-9]|,[0-9])|[0-9]+)(?:\.[0-9]+)?"
)
"""Digits, with or without commas between thousands, also as in India ("1,25,340"), and with or without decimals."""

COMMA_AMOUNT = (
    r"(?<![0-9.,])(?:[1-9][0-9]{0,2}(?:\.[0-9]{3}){1,4}(?:,[0-9]{2}|(?<=00))|[0-9]{1,4},[0-9]{2})"
    r"(?![0-9]|[.,][0-9])"
)
"""An amount as in most of Europe: "1.299,00", "49,90", "2.500". Only beside the sign or name of such a currency: "4,50"
may be two numbers of a list, and "2.500" a decimal."""


def from_comma(written: str) -> str:
    """ "1.299,00" -> "1299.00"."""
    return written.replace(".", "").replace(",", ".")


NAMED_DECIMAL = re.compile(r"(?P<name>[A-Za-z]{1,20})-?(?P<number>[0-9]{1,4}\.[0-9]{1,4})(?![0-9A-Za-z]|\.[0-9])")
"""A name with a decimal number: "iOS17.4", "PM2.5"."""

LETTERS_OR_DIGITS = re.compile("[A-Za-z]+|[0-9]+")
"""The runs of letters and of digits in such a word."""

WITH_VOWEL = re.compile("[A-Za-z]*[aeiouyAEIOUY][A-Za-z]*$")
"""Letters that may be read as a word."""

AIRLINER = re.compile(r"7[0-9]7-(?:[89]|10|[1-9]00)(?![0-9A-Za-z-])")
"""The type of a Boeing: "737-800"."""

FRACTION_DENOMINATORS = frozenset((2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 32, 64, 100))
"""Denominators that make "1/4" a fraction rather than a day of a month."""

_VULGAR_DENOMINATORS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 16)


def vulgar_fraction(value: float) -> tuple[int, int] | None:
    """Numerator and denominator of a sign such as ½, given its numeric value; None if it has no small denominator."""
    for denominator in _VULGAR_DENOMINATORS:
        numerator = round(value * denominator)
        if abs(numerator / denominator - value) < 1e-6:
            return numerator, denominator
    return None
