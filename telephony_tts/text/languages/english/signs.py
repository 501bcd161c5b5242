"""What is said for a sign in English text that belongs to no number."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import names_code
from telephony_tts.text.languages.english.money import CURRENCIES
from telephony_tts.text.languages.english.units import UNIT_CHARACTERS, UNITS
from telephony_tts.text.patterns import vulgar_fraction
from telephony_tts.text.reader import Shape

_WORDS = {
    "&": "and", "@": "at", "=": "equals", "%": "percent", "≥": "greater than or equal to", "≤": "less than or equal to",
    "≠": "not equal to", "≈": "approximately", "×": "times", "÷": "divided by", "±": "plus or minus", "º": "",
    "§": "section", "℡": "telephone",
    "²": "squared", "³": "cubed", "№": "number", "√": "square root of", "¢": "cents", "µ": "micro", "∞": "infinity",
    "+": "plus",
}  # fmt: skip
_DASHES = "-–—"
_MONTH_FOLLOWS = re.compile(r"\s?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s[0-9]", re.IGNORECASE)
_VALUE_FOLLOWS = re.compile(r"\s?[-+$€£¥₩₹₽฿₱]?[0-9]|\s?(?:noon|midnight)\b")
_BETWEEN = re.compile(r"\bbetween\s\S+(?:\s[ap]\.?m\.?)?\s?$", re.IGNORECASE)
_PART_OF_DAY = re.compile(r"\b(?:noon|midnight|now|today)\s?$", re.IGNORECASE)
_KEY_BEFORE = re.compile(r"(?:press|dial|hit|enter|the|or|and|then)\s?$", re.IGNORECASE)
_PER = {
    "mo": "month", "yr": "year", "wk": "week", "hr": "hour", "h": "hour", "min": "minute", "kwh": "kilowatt hour",
    "btl": "bottle", "qtr": "quarter", "nt": "night",
}  # fmt: skip
_PER_WORD = re.compile(r"\s?(?P<word>[A-Za-z]+[²³]?)(?![A-Za-z0-9])(?:\.(?=[,;:)]|\s[a-z]))?")


def say_sign(shape: Shape) -> str | None:
    """The word of the sign; "" if it is silent, None if it stays as it is written."""
    char, left, right = shape.written, shape.left, shape.right
    if char in "-–—~":
        return _say_stroke(shape, char)
    if char == "#":
        return _say_hash(shape)
    if char == "*":
        return _say_star(left, right)
    if char == "/":
        return _say_slash(shape)
    if char in "<>":
        return _say_compare(shape)
    if char == "." or char in "\\|{}[]_^`":
        return None if char == "." else ""
    if char in CURRENCIES:
        return CURRENCIES[char][1]
    if char in _WORDS:
        return _WORDS[char]
    if char in UNIT_CHARACTERS:
        return UNITS[char][1]
    return say_vulgar(char)


def say_vulgar(char: str) -> str | None:
    """ "½" -> "one half", "②" -> "two"; None for a character without such a value."""
    value = unicodedata.numeric(char, None)
    if value is None:
        return None
    if value == int(value):
        return en.cardinal(int(value))
    parts = vulgar_fraction(value)
    return en.fraction(*parts) if parts else ""


def _say_stroke(shape: Shape, char: str) -> str | None:
    """Between two values "to", before a single one "minus" or "about", else punctuation."""
    left, right, before = shape.left, shape.right, shape.before
    between = "?" if before is None else shape.text[before.end : shape.start].strip(" )")
    is_value = not between or _PART_OF_DAY.search(left) is not None
    follows = _VALUE_FOLLOWS.match(right) or _MONTH_FOLLOWS.match(right)
    is_even = left[-1:].isspace() == right[:1].isspace() or right[:1].isspace()
    if names_code(shape) and re.match("[0-9]{3}", right):
        return ""  # "ending in **-4471"
    if is_value and follows and is_even and (char != "—" or not left[-1:].isspace()):
        if before is not None and left[-1:].isspace() and (names_code(before) or _is_apart(before, right)):
            return None  # "Order no. 57 - 2x burger"
        return "and" if _BETWEEN.search(left) else "to"
    if char == "–" and left[-1:].isalpha() and re.match("[0-9]{1,2}(?:st|nd|rd|th)", right):
        return " to "  # "Pre-K–5th"
    if char == "~":
        return "about" if follows else ""
    return "minus" if char in "-–" and follows and not left[-1:].isalnum() and not right[:1].isspace() else None


def _is_apart(before: Shape, right: str) -> bool:
    """ "8:40 PM - 2 adults": a number of things is not the end of a range of time."""
    return before.kind == "time" and re.match(r"\s[0-9]+\s(?![ap]m|hours)[a-z]{2}", right) is not None


def _say_hash(shape: Shape) -> str:
    """Beside "key" it is the pound key, "#word" is a hashtag."""
    left, right = shape.left, shape.right
    if right.startswith(" key") or _KEY_BEFORE.search(left[-8:]) or left[-1:] in tuple("*0123456789"):
        return "pound"
    if right[:1].isalpha():
        return "number" if re.match("[A-Za-z]{0,6}-?[0-9]", right) else "hashtag"
    if left[-1:].isupper():
        return "sharp"
    return "number" if right[:2].strip() else ""


def _say_star(left: str, right: str) -> str:
    if left[-1:] == "*" or right[:1] == "*":
        return "star" if re.search(r"\b(?:press|dial|hit|enter)\b", left, re.IGNORECASE) else ""
    is_key = _KEY_BEFORE.search(left[-8:]) or right.startswith(" key") or re.search(r"[#*][0-9]*$", left[-8:])
    if is_key or re.match("[0-9]+[#*]|#[0-9]", right):
        return "star"
    if re.search(r"[0-9A-Za-z)]\s?$", left) and re.match(r"\s?[0-9]", right):
        return "times"
    return "star" if right[:1].isdigit() or re.search(r"(?:press|dial|hit|enter)\s[0-9]+$", left, re.IGNORECASE) else ""


_SEAT = r"(?:[0-9]{1,2}[A-Z]{1,2}|Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_SEAT_OR_DAY_BEFORE, _SEAT_OR_DAY = re.compile(rf"(?<![A-Za-z0-9]){_SEAT}$"), re.compile(rf"\s?{_SEAT}(?![A-Za-z])")
_QUANTITY = re.compile(
    r"[0-9%][A-Za-z]{0,3}$|[$€£¥₩₹]$|[0-9]\s[a-z]{1,8}$|[0-9]/[a-z]{2,10}$|[0-9]\s?[A-Za-zµμ]{1,4}/[A-Za-z]{1,4}$"
)
"""What is counted behind its number, or measured per one thing and per another."""
_PRICES = ("money", "money_behind", "times")
_IMPERIAL_UNIT = "(?:lbs?|oz|ft|in|mi|mph|gal|yd)"
_IMPERIAL = re.compile(rf"[0-9] ?{_IMPERIAL_UNIT}$")
_IMPERIAL_BEHIND = re.compile(rf"[0-9.,]{{1,9}} ?{_IMPERIAL_UNIT}\b")


def _say_slash(shape: Shape) -> str:
    """Behind an amount "per", between words "or", between initials nothing, elsewhere the name of the sign."""
    left, right, before = shape.left, shape.right, shape.before
    between = "?" if before is None else shape.text[before.end : shape.start]
    if re.search(r"[0-9]\s$", left) and re.match(r"\s[0-9]", right):
        return "divided by"
    word = _PER_WORD.match(right)
    if right.startswith("-") and not right[1:2].isalnum():
        shape.end += 1  # "Rs 1,899/-"
        return ""
    if re.search(r"[0-9]V$", left) or re.match("-?[0-9]{1,3}(?:(?<=[0-9]{2})V| ?°|%)", right):
        return ", "
    is_time = re.search(r"[0-9]\s?[ap]\.?m\.?(?P<zone>\s[A-Z]{1,3}T)?\s?$", left, re.IGNORECASE)
    if _SEAT_OR_DAY_BEFORE.search(left) and _SEAT_OR_DAY.match(right):
        return "and"
    if is_time and re.match(r"\s?[0-9]", right):
        return ", " if is_time["zone"] else "or"
    is_measured = not between and before is not None and (before.unit is not None or before.kind in _PRICES)
    if is_measured and bool(_IMPERIAL.search(left)) != bool(_IMPERIAL_BEHIND.match(right)) and right[:1].isdigit():
        return ", "  # "50 lb/23 kg"
    if not between and before is not None and before.kind == "range" and right[:1].isdigit():
        return " out of "
    is_quantity = (is_measured or _QUANTITY.search(left)) and not is_time
    if is_quantity and word and word["word"] == "ea":
        shape.end += word.end()
        return "each"
    if is_quantity and word and (between == "" or len(between) < 14):
        unit = word["word"]
        if (unit in UNITS and len(unit) > 1) or unit[-1] in "²³":
            return _take(shape, word, UNITS.get(unit, (unit, unit))[0])
        if unit in ("l", "L", "g"):
            return _take(shape, word, UNITS[unit][0])
        return _take(shape, word, _PER.get(unit.lower(), unit)) if unit.lower() in _PER or unit.islower() else "per"
    if re.search(r"[A-Za-z]\s$", left) and right[:1].isalpha():
        return "slash"  # "ipconfig /all"
    if re.search(r"[A-Za-z]\s?$", left) and re.match(r"\s?[A-Za-z]", right):
        return "" if left[-2:].isupper() and len(left[-2:].strip()) == 2 and right[:1].isupper() else "or"
    is_price = re.search(r"[$€£][0-9.,]+$", left) and re.match(r"[0-9]+ ?(?:m[Ll]|k?g|L|oz|lb|[GM]B|min)\b", right)
    if is_price or (right[:1].isdigit() and re.search(r"[0-9]\s?[A-Za-z]{1,3}$|[0-9] (?:[a-z]+)$", left)):
        return "per"
    if right[:1] in tuple("$€£¥₹"):
        return ", "  # "$50K/$100K"
    return "slash" if left[-1:].isalnum() and right[:1].isalnum() else ""


def _take(shape: Shape, word: re.Match[str], said: str) -> str:
    shape.end += word.end()
    return f"per {said}"


def _say_compare(shape: Shape) -> str:
    char, right = shape.written, shape.right
    if right.startswith("="):
        shape.end += 1
        right = right[1:]
    equal = " or equal to" if shape.end - shape.start > 1 else ""
    if re.match(r"\s?[-+$€£]?[0-9]|\s?[a-z](?![A-Za-z])", right):
        return {"<": "less than", ">": "greater than"}[char] + equal
    return "," if char == ">" and not equal and re.match(r"\s[A-Za-z]", right) else ""
