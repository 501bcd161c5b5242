"""The English rules for signs between words: & @ # % + = / - and others."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.english import numbers as en
from telephony_tts.text.patterns import MASKED, SIGNS, vulgar_fraction
from telephony_tts.text.scanner import Rule, after, before
from telephony_tts.text.units import UNIT, UNITS

_SIGNS = {
    "&": "and",
    "@": "at",
    "=": "equals",
    "%": "percent",
    "≥": "greater than or equal to",
    "≤": "less than or equal to",
    "≠": "not equal to",
    "≈": "approximately",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "°": "degrees",
    "º": "",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "$": "dollars",
    "₩": "won",
    "₹": "rupees",
    "§": "section",
    "²": "squared",
    "³": "cubed",
    "℃": "degrees Celsius",
    "℉": "degrees Fahrenheit",
    "№": "number",
    "√": "square root of",
    "‰": "per mille",
    "¢": "cents",
    "µ": "micro",
    "∞": "infinity",
    "฿": "baht",
    "₽": "rubles",
    "₱": "pesos",
}


def _say_sign(match: re.Match[str]) -> str | None:
    sign = match.group()
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign in "-–—":
        return None
    value = unicodedata.numeric(sign, None)
    if value is None:
        return ""
    if value == int(value):
        return en.cardinal(int(value))
    return say_vulgar(value)


def say_vulgar(value: float) -> str:
    """The words for the sign of a fraction, given its value: 0.5, which is ½, is "one half"; "" if there are none."""
    parts = vulgar_fraction(value)
    return en.fraction(*parts) if parts else ""


_ENDS_VALUE = re.compile(r"(?:[0-9%°]|[0-9][A-Za-z]{1,3}|[0-9](?:st|nd|rd|th)|[ap]\.?m\.?|\))\s?$", re.I)


def _say_dash(match: re.Match[str]) -> str | None:
    """Between two values "to", before a single one "minus", else punctuation."""
    left = before(match, 6)
    sign = match.group().strip()
    if _ENDS_VALUE.search(left) and (match.group()[-1].isspace() or not left[-1].isspace()):
        if sign == "-" or match.group() in ("–", "—", "~", " – ", " ~ "):
            return "to"
        return None
    if sign == "~":
        return "about"
    return "minus" if sign in "-–" and not left[-1:].isalnum() and not match.group()[-1].isspace() else None


def _say_point(match: re.Match[str]) -> str:
    return f"point {en.digits(match.group())}"


def _say_plus(match: re.Match[str]) -> str:
    return " ".join(["plus"] * len(match.group().strip()))


_KEYS_BEFORE = re.compile(r"\b(?:press|dial)\s(?:[*#]?[0-9]{1,2}#?,?\s(?:or\s|and\s|then\s)?){0,3}$", re.I)


def _say_hash(match: re.Match[str]) -> str:
    """ "#4815" is a number of a thing, "#" beside "key" is the pound key, "#word" is a hashtag."""
    number = match["number"]
    if number:
        is_key = len(number) <= 2 and _KEYS_BEFORE.search(before(match, 24))  # "press *1 or #9"
        if before(match, 1) == "*" or after(match, 1) == "#" or is_key:  # "*#06#"
            return f"pound {en.digits(number)}"
        if "-" in number:
            return f"number {', '.join(map(en.digits, number.split('-')))}"
        return f"number {en.digits(number) if len(number) >= 3 or number[0] == '0' else en.number(number)}"
    if match["key"]:
        return "pound"
    if re.match("[A-Za-z]", after(match, 1)):
        return "number" if re.match("[A-Za-z]{0,6}[-]?[0-9]", after(match, 8)) else "hashtag"
    if re.search(r"(?:press|dial|hit|enter|the|or|and|then|[0-9*])\s?$", before(match, 8), re.I):
        return "pound"
    if re.search(r"[A-Z]$", before(match, 1)):
        return "sharp"
    return "number" if after(match, 2).strip() else ""


def _say_masked(match: re.Match[str]) -> str:
    return en.digits(match.group())


def _say_last_four(match: re.Match[str]) -> str | None:
    """ "Visa *4821"."""
    return None if re.search(r"(?:press|dial|hit|enter)\s?$", before(match, 8), re.I) else en.digits(match.group())


_KEY_BEFORE = re.compile(r"(?:press|dial|hit|enter|the|or|and|then)\s?$", re.I)


def _say_star(match: re.Match[str]) -> str:
    left, right = before(match, 8), after(match, 5)
    key = _KEY_BEFORE.search(left) or re.match(r"\skey", right)
    if key or re.search(r"[#*][0-9]*$", left) or re.match("[0-9]+[#*]|#[0-9]", right):
        return "star"
    if re.search(r"[0-9A-Za-z)]\s?$", left) and re.match(r"\s?[0-9]", right):
        return "times"
    return "star" if re.match("[0-9]", right) or re.search(r"(?:press|dial|hit|enter)\s[0-9]+$", left, re.I) else ""


_PER = (
    r"(?P<unit>(?i:month|mo|year|yr|week|wk|day|hour|hr|h|minute|min|person|unit|night|kwh|kg|gb|lb|user|line|call|item))"
    r"(?![A-Za-z])"
)
_PER_NAMES = {
    "mo": "month",
    "yr": "year",
    "wk": "week",
    "hr": "hour",
    "h": "hour",
    "min": "minute",
    "kwh": "kilowatt hour",
    "kg": "kilogram",
    "gb": "gigabyte",
    "lb": "pound",
}


def _say_per(match: re.Match[str]) -> str | None:
    if not re.search(r"[0-9%A-Za-z$€£¥₩₹]\s?$", before(match, 2)):
        return None
    if not re.search(r"[0-9]", before(match, 14)):
        return None
    unit = match["unit"].lower()
    return f"per {_PER_NAMES.get(unit, unit)}"


def _say_per_unit(match: re.Match[str]) -> str | None:
    """ "$5/m²": a unit after a slash, if an amount precedes it."""
    amount = re.search(r"[0-9](?:[^,;.\s/]{0,8}|\s[$€£¥])$", before(match, 12))
    return f"per {UNITS[match['unit']][0]}" if amount and match["unit"] != "%" else None


def _say_slash(match: re.Match[str]) -> str:
    """Between lower-case words "or", between initials nothing, elsewhere the name of the sign."""
    left, right = before(match, 2), after(match, 2)
    if re.search(r"[0-9]\s$", left) and re.match(r"\s[0-9]", right):
        return "divided by"
    if re.search(r"[A-Za-z]\s?$", left) and re.match(r"\s?[A-Za-z]", right):
        return "" if left[-1:].isupper() and right[:1].isupper() and left[-2:].isupper() else "or"
    if right[:1].isdigit() and re.search(r"[0-9]\s?[A-Za-z]{1,3}$|[0-9] (?:[a-z]+)$", before(match, 16)):
        return "per"
    return "slash" if left[-1:].isalnum() and (right[:1].isalnum() or right[:1] in tuple("$€£¥₹")) else ""


def _say_compare(match: re.Match[str]) -> str:
    words = {"<": "less than", ">": "greater than", "<=": "less than or equal to", ">=": "greater than or equal to"}
    right = after(match, 4)
    if re.match(r"\s?[-+$€£]?[0-9]|\s?[a-z](?![A-Za-z])", right):
        return words[match.group()]
    return "," if match.group() == ">" and re.match(r"\s[A-Za-z]", right) else ""


def _say_nothing_or_dash(match: re.Match[str]) -> str | None:
    """A tilde is silent. A dash is punctuation and stays."""
    return "" if match.group() == "~" else None


SIGN_RULES: tuple[Rule, ...] = (
    (
        re.compile(
            r"(?<=[0-9])—(?=[0-9])|\s?[-–~]\s?(?=[-+$€£¥₩₹₽฿₱]?[0-9]|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s[0-9])",
            re.I,
        ),
        _say_dash,
    ),
    (re.compile(r"[–—~-]"), _say_nothing_or_dash),
    (re.compile(r"\++"), _say_plus),
    (re.compile(r"#\s?(?P<number>[0-9]+(?:-[0-9]+){0,3})(?![0-9A-Za-z]|[-.,][0-9])|#(?P<key>(?=\skey\b))?"), _say_hash),
    (MASKED, _say_masked),
    (re.compile(r"(?<![0-9A-Za-z)])\*[0-9]{4}(?![0-9*#]|[.,][0-9])"), _say_last_four),
    (re.compile(r"\*"), _say_star),
    (re.compile(r"(?<![A-Za-z0-9.])\.[0-9]+"), _say_point),
    (re.compile(rf"/\s?{_PER}"), _say_per),
    (re.compile(rf"/\s?(?P<unit>{UNIT})"), _say_per_unit),
    (re.compile(r"/"), _say_slash),
    (re.compile(r"[<>]=?"), _say_compare),
    (re.compile(SIGNS), _say_sign),
)
