"""Numbers as English words: plain lower-case words with single spaces, no hyphens, no "and"."""

from __future__ import annotations

import re

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", "thousand", "million", "billion", "trillion")
_IRREGULAR_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_INDIAN = re.compile("[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}")
_LONGEST_CARDINAL = 15
"""A number with more digits is read digit by digit: quadrillions cannot be understood on the telephone."""


def digits(text: str) -> str:
    """The ASCII digits of `text` one by one: "0199" -> "zero one nine nine". Everything else is dropped."""
    return " ".join(DIGITS[ord(c) - 48] for c in text if "0" <= c <= "9")


def cardinal(number: int) -> str:
    """`number` >= 0 in words; beyond fifteen digits, digit by digit."""
    if number == 0:
        return "zero"
    if number >= 10**_LONGEST_CARDINAL:
        return digits(str(number))
    words: list[str] = []
    for scale in range(len(_SCALES) - 1, -1, -1):
        group = number // 1000**scale % 1000
        if not group:
            continue
        if group >= 100:
            words += [DIGITS[group // 100], "hundred"]
        rest = group % 100
        if rest >= 20:
            words.append(_TENS[rest // 10])
            rest %= 10
        if rest >= 10:
            words.append(_TEENS[rest - 10])
        elif rest:
            words.append(DIGITS[rest])
        if scale:
            words.append(_SCALES[scale])
    return " ".join(words)


def ordinal(number: int) -> str:
    """23 -> "twenty third"."""
    head, _, last = cardinal(number).rpartition(" ")
    if last in _IRREGULAR_ORDINALS:
        last = _IRREGULAR_ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return f"{head} {last}".strip()


def plural(word: str) -> str:
    """The plural of a number word: "eighty" -> "eighties", "six" -> "sixes"."""
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("x") else "s")


def value(written: str) -> float:
    """ "1,234.50" -> 1234.5."""
    return float(written.replace(",", ""))


def number(text: str) -> str:
    """A written number, unsigned, with optional thousands commas and decimals: "1,234.50" -> words.

    A number with a leading zero is an identifier, so its digits are read one by one. Who groups the digits as in India
    counts in lakh and crore.
    """
    is_indian = _INDIAN.match(text) is not None
    whole, _, fraction = text.replace(",", "").partition(".")
    if is_indian and len(whole) <= _LONGEST_CARDINAL:
        spoken = _lakhs(int(whole))
    elif len(whole) > _LONGEST_CARDINAL or (len(whole) > 1 and whole[0] == "0"):
        spoken = digits(whole)
    else:
        spoken = cardinal(int(whole or "0"))
    return f"{spoken} point {digits(fraction)}" if fraction else spoken


def _lakhs(number: int) -> str:
    """12500000 -> "one crore twenty five lakh"."""
    crores, rest = divmod(number, 10**7)
    lakhs, rest = divmod(rest, 10**5)
    parts = (f"{cardinal(crores)} crore" if crores else "", f"{cardinal(lakhs)} lakh" if lakhs else "")
    return " ".join(part for part in (*parts, cardinal(rest) if rest else "") if part) or "zero"


def year(number: int) -> str:
    """1984 -> "nineteen eighty four", 2006 -> "two thousand six", 1905 -> "nineteen oh five"."""
    century, rest = divmod(number, 100)
    if number < 1000 or number > 9999 or 2000 <= number <= 2009 or number % 1000 == 0:
        return cardinal(number)
    return pair(century, rest)


def pair(head: int, rest: int) -> str:
    """(48, 2) -> "forty eight oh two", (3, 50) -> "three fifty"."""
    return f"{cardinal(head)} {'oh ' if 0 < rest < 10 else ''}{cardinal(rest) if rest else 'hundred'}"


def decade(number: int) -> str:
    """The years from `number` on: 1980 -> "nineteen eighties", 80 -> "eighties", 1800 -> "eighteen hundreds"."""
    head, _, last = (year(number) if number >= 1000 else cardinal(number)).rpartition(" ")
    return f"{head} {plural(last)}".strip()


def fraction(numerator: int, denominator: int) -> str:
    """1/4 -> "one quarter", 3/8 -> "three eighths"; a denominator without a name is read with "over"."""
    if denominator in (0, 1):
        return f"{cardinal(numerator)} over {cardinal(denominator)}"
    one = {2: "half", 4: "quarter"}.get(denominator) or ordinal(denominator)
    if numerator == 1:
        return f"one {one}"
    return f"{cardinal(numerator)} {'halves' if denominator == 2 else plural(one) if one != 'quarter' else 'quarters'}"


def groups(written: str) -> str:
    """Each group of digits one by one, with a comma between groups so that the voice pauses."""
    found = re.findall("[0-9]+", written)
    return (", " if any(len(group) > 1 for group in found) else " ").join(map(digits, found))


def letters(text: str) -> str:
    """Letters and digits one by one, as in a code: "SF12" -> "S F one two".

    "A" becomes "A.", so that a voice reads the letter and not the article.
    """
    said = (DIGITS[ord(c) - 48] if "0" <= c <= "9" else "A." if c in "aA" else c.upper() for c in text if c.isalnum())
    return " ".join(said)
