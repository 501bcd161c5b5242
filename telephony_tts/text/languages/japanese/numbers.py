"""Japanese numbers, in kanji or for a voice that reads digits itself.

A voice that reads kana by a dictionary reads counters, dates and amounts better than from kanji: "10分" is ジュップン,
"十分" may be ジューブン. It is given these in digits, and codes in katakana:

| written | `KANJI` | `DIGITS` |
|---|---|---|
| 3名、1,980円、10分 | 三名、千九百八十円、十分 | 3名、1980円、10分 |
| 03-1234-5678 | ゼロ三一二三四五六七八 | ゼロサン、イチニーサンヨン、ゴーロクナナハチ |
| コードAB4071 | コードAB四ゼロ七一 | コードA B ヨンゼロナナイチ |
"""

from __future__ import annotations

import re

_DIGITS = ("ゼロ", "一", "二", "三", "四", "五", "六", "七", "八", "九")
_KANA_DIGITS = ("ゼロ", "イチ", "ニー", "サン", "ヨン", "ゴー", "ロク", "ナナ", "ハチ", "キュー")
_MAX_DIGITS = 16


def cardinal(number: int) -> str:
    """`number` >= 0 in kanji: 1100 -> "千百", 10000 -> "一万"."""
    if number == 0:
        return _DIGITS[0]
    said = ""
    for scale, name in ((10**12, "兆"), (10**8, "億"), (10**4, "万"), (1, "")):
        group = number // scale % 10000
        if not group:
            continue
        for unit, unit_name in ((1000, "千"), (100, "百"), (10, "十")):
            digit = group // unit % 10
            if digit:
                said += ("" if digit == 1 else _DIGITS[digit]) + unit_name
        said += (_DIGITS[group % 10] if group % 10 else "") + name
    return said


def kanji_value(written: str) -> int | None:
    """The number that is written in kanji, below ten thousand; None for other kanji: "一一"."""
    digit = "[二三四五六七八九]?"
    match = re.fullmatch(f"(?:({digit})千)?(?:({digit})百)?(?:({digit})十)?(一|{digit})", written)
    if match is None:
        return None
    value = 0
    for said, scale in zip(match.groups(), (1000, 100, 10, 1), strict=True):
        if said or (said is not None and scale > 1):
            value += scale * (_DIGITS.index(said) if said else 1)
    return value


class Kanji:
    """All numbers in kanji."""

    point = "点"
    pause = ""
    """Between the groups of a code."""
    _digits = _DIGITS

    def amount(self, written: str) -> str:
        """A number with or without commas and decimals; a longer one than can be said is read as a code."""
        whole, _, fraction = written.replace(",", "").partition(".")
        return self.code(whole) if len(whole) > _MAX_DIGITS else self._amount(int(whole), fraction)

    def _amount(self, whole: int, fraction: str) -> str:
        said = cardinal(whole)
        return f"{said}点{''.join(_DIGITS[int(digit)] for digit in fraction)}" if fraction else said

    def code(self, written: str) -> str:
        """Digit by digit, group by group. Other characters than digits end a group."""
        groups = re.findall("[0-9]+", written)
        return self.pause.join("".join(self._digits[int(digit)] for digit in group) for group in groups)

    def mixed(self, parts: list[str]) -> str:
        """What is said for letters and digits, one after the other."""
        return "".join(parts)

    def letters(self, written: str) -> str:
        return written

    def weekday(self, char: str) -> str:
        return char + "曜"


class Digits(Kanji):
    """Amounts in digits, for a voice that reads them by a dictionary; codes in katakana."""

    point = "テン"
    pause = "、"
    _digits = _KANA_DIGITS

    def _amount(self, whole: int, fraction: str) -> str:
        return f"{whole}.{fraction}" if fraction else str(whole)

    def mixed(self, parts: list[str]) -> str:
        return " ".join(parts)

    def letters(self, written: str) -> str:
        return " ".join(written.upper())

    def weekday(self, char: str) -> str:
        return dict(zip("月火水木金土日", ("ゲツ", "カ", "スイ", "モク", "キン", "ド", "ニチ"), strict=True))[char]


KANJI, DIGITS = Kanji(), Digits()
