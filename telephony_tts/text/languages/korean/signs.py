"""What is said for a sign in Korean text that belongs to no number, and for letters that only decorate."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.languages.korean.money import CURRENCIES
from telephony_tts.text.languages.korean.numbers import cardinal
from telephony_tts.text.languages.korean.units import UNIT_CHARACTERS, UNITS
from telephony_tts.text.patterns import vulgar_fraction
from telephony_tts.text.reader import Shape

_WORDS = {
    "&": "앤드", "@": "골뱅이", "%": "퍼센트", "×": " 곱하기 ", "÷": " 나누기 ", "±": "플러스마이너스 ",
    "≤": "이하", "≥": "이상", "§": "제", "√": "루트 ", "℡": "전화 ",
    "≠": "같지 않음", "≈": "약", "№": "넘버 ", "²": "제곱", "³": "세제곱", "¢": "센트",
}  # fmt: skip
_DASHES, _WAVES = "-–—", "~∼〜"
_DAYS = re.compile(r"[월화수목금토일](?![가-힣])|[월화수목금토일](?:요일|까지|에|은|만|입|이)")
_ASIDE = re.compile(r"\([가-힣 ]{1,8}\)")
_DAY_BEFORE = re.compile(r"(?:(?<![가-힣])[월화수목금토일]|요일) ?$")
_ROUTE = re.compile(r"(?:[가-힣]{2,6}) ?(?:구간|사이|노선|행|방면|왕복|편도|운행|간|까지)")
_PART_OF_DAY = re.compile(r" ?(?:[0-9$€£¥₩]|오전|오후|낮|밤|새벽|저녁|다음|익일|당일|내일)")
_KEY_AFTER = re.compile(r" ?(?:[*#]{1,2}(?:[0-9]|을)|을|를|표|버튼|키|누르|눌|정자|샵)")
_MASKED_NAME = re.compile("(?<![가-힣])[가-힣]$")
_CHANGE = re.compile(
    r" ?[₩$€¥]?[0-9][0-9.,]*+ ?(?:%p|[%원만억천p]|포인트)(?P<said>[가-힣 ]{0,6}(?:상승|증가|올라|올랐|오른))?"
)
_KEY_BEFORE = re.compile(r"(?:별표|우물 ?정자?|샵|버튼|키) ?\(?$")


def say_sign(shape: Shape) -> str | None:
    """The word of the sign; "" if it is silent, None if it stays as it is written."""
    char, left, right = shape.written, shape.left, shape.right
    if char in CURRENCIES:
        return CURRENCIES[char]
    if char in _WAVES or char in _DASHES:
        return _say_stroke(shape, char)
    if char in "▲△":
        change = _CHANGE.match(right)
        return "" if change is None or change["said"] else "상승 " if char == "▲" else "마이너스 "
    if char in "*#":
        if _KEY_BEFORE.search(left):
            return ""
        if char == "*" and _MASKED_NAME.search(left) and re.match("[가-힣]", right):
            return " 별표 "
        if not _KEY_AFTER.match(right):
            return "" if char == "*" or not right[:1].isdigit() else "우물정 "
        if char == "#":
            return "우물정"
        shape.end += right.startswith("을")
        return "별" if right.startswith("표") else "별표를" if right.startswith("을") else "별표"
    if char == "+":
        return "플러스" if left[-1:].isalnum() and not right[:1].strip() else " 플러스 "
    if char == "=":
        return ("은 " if _is_closed(shape) else "는 ") if left.strip() else ""
    if char == "/":
        return "당 " if left.endswith("원") and right[:1].isalpha() else " "
    if char == "_":
        return "언더바" if (left[-1:] + right[:1]).isascii() and left[-1:].isalnum() and right[:1].isalnum() else ""
    if char in UNIT_CHARACTERS:
        return UNITS[char]
    if char in _WORDS:
        return _WORDS[char]
    if char in "^<>\\|{}`":
        return ""
    value = unicodedata.numeric(char, None)
    if value is None:
        return None
    if value == int(value):
        return cardinal(int(value))
    fraction = vulgar_fraction(value)
    return None if fraction is None else f"{cardinal(fraction[1])}분의 {cardinal(fraction[0])}"


def _say_stroke(shape: Shape, char: str) -> str | None:
    """A wave or a dash: from one to another, minus, or nothing."""
    left, right = shape.left.rstrip(" "), shape.right
    if _is_counted(shape) and _PART_OF_DAY.match(right):
        return "에서 "
    if _DAY_BEFORE.search(left) and _DAYS.match(right):
        return "에서 "
    if shape.left[-1:].isalpha() and _ROUTE.match(right):
        return "에서 "
    if char in _WAVES:
        return ", " if shape.left[-1:].isalpha() and right[:1].isalpha() else ""
    if (right[:1].isdigit() or right[:1] in CURRENCIES) and not shape.left[-1:].isalnum():
        return "마이너스 "
    return " " if left[-1:].isalnum() and right[:1].isdigit() else None


def _is_counted(shape: Shape) -> bool:
    """Whether a number, perhaps with its unit, stands directly before the sign: not the house of 101동-1203호."""
    before = shape.before
    if before is None:
        return False
    between = shape.text[before.end : shape.start].strip()
    if not between or _ASIDE.fullmatch(between):
        return True
    is_house = between in ("동", "호", "로", "길")
    return before.unit is not None and len(between) <= 3 and between.isalpha() and not is_house


def _is_closed(shape: Shape) -> bool:
    """Whether what is said for the shape before ends in a consonant: 십은, 이는."""
    digits = shape.left.rstrip()[-1:]
    return digits in "013678" if digits.isdigit() else ((ord(digits) - 0xAC00) % 28 > 0 if digits >= "가" else False)
