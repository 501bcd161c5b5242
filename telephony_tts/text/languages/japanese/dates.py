"""Japanese dates and times of day."""

from __future__ import annotations

import re

from telephony_tts.text.languages.japanese.numbers import Kanji

WEEKDAYS = "月火水木金土日"
_ERAS = {"R": "令和", "H": "平成", "S": "昭和"}
_YEAR = r"[1-9][0-9]?"
_MONTH_AND_DAY = r"(?:1[0-2]|0?[1-9])[./](?:3[01]|[12][0-9]|0?[1-9])(?![0-9/]|\.[0-9])\.?"
ERA = re.compile(
    rf"(?:令和|平成|昭和) ?{_YEAR}[./](?:1[0-2]|0?[1-9])(?![0-9./])"
    rf"|(?:令和|平成|昭和|(?<![A-Za-z0-9])[RHS]) ?{_YEAR}[./]{_MONTH_AND_DAY}|(?<![A-Za-z0-9])[RHS](?={_YEAR}年)"
)
WEEKDAY = re.compile(rf" ?[(（](?P<day>[{WEEKDAYS}])(?:曜日?)?(?P<holiday>・祝日?)?[)）]")
"""Behind a date: (土), （月・祝）."""
LAST_DAY = re.compile(r" ?[~〜–-] ?([12][0-9]|3[01]|[1-9])(?![0-9/:：.,])")
"""Behind a month and day: 11/26〜28."""
_ALONE = "(?![^\\W\\d_はがにをのとで祝])"
_NOT_PART_OF_WORD = "(?<![祝平休本当前翌])"  # 平日・祝日
DAYS = re.compile(
    rf"{_NOT_PART_OF_WORD}[{WEEKDAYS}](?:(?:[・、/][{WEEKDAYS}]){{0,6}}[・、/]祝日?|(?:[・、/][{WEEKDAYS}]){{1,6}}{_ALONE})"
    rf"|(?<![^\W\d_はがにをのと毎])[{WEEKDAYS}] ?[-–~〜] ?[{WEEKDAYS}]{_ALONE}"
)
"""Days of the week that are listed or go from one to another: 月・水・金, 月〜金."""


def month_day(groups: list[str], style: Kanji) -> str | None:
    month, day = (int(group) for group in groups)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{style.amount(str(month))}月{style.amount(str(day))}日"


def date(groups: list[str], style: Kanji) -> str | None:
    """Year and month, perhaps with the day; the year has two or four digits."""
    if len(groups) == 2:
        month = int(groups[1])
        return f"{style.amount(groups[0])}年{style.amount(str(month))}月" if 1 <= month <= 12 else None
    day = month_day(groups[1:], style)
    return f"{style.amount(groups[0])}年{day}" if day else None


def era(written: str, groups: list[str], style: Kanji) -> str:
    """The name of the era, and the date if there is one: R8.11.29 -> "令和八年十一月二十九日"."""
    name = _ERAS.get(written[0], written[:2])
    return name + (date(groups, style) or "") if groups else name


def clock(groups: list[str], style: Kanji, part: str = "") -> str | None:
    """Hour, minute and perhaps second: "三時二十分". `part` is "a", "p" or ""."""
    hour, minute, second = (int(group) for group in [*groups, "0", "0"][:3])
    if hour > 29 or minute > 59 or second > 59:
        return None
    said = {"a": "午前", "p": "午後"}.get(part.lower(), "") + style.amount(str(hour)) + "時"
    said += f"{style.amount(str(minute))}分" if minute or second else ""
    return said + (f"{style.amount(str(second))}秒" if len(groups) > 2 else "")


def duration(groups: list[str], style: Kanji) -> str:
    """Hours, minutes and seconds: "三分二十五秒"."""
    values = [int(group) for group in groups]
    said = (style.amount(str(value)) + unit for value, unit in zip(values, ("時間", "分", "秒"), strict=True) if value)
    return "".join(said) or style.amount("0") + "秒"


def weekdays(written: str, style: Kanji) -> str:
    """What is said for a match of `DAYS`."""
    days = re.findall(f"[{WEEKDAYS}]", written)
    if re.search("[-–~〜]", written):
        return "曜から".join(days) + "曜"
    if "祝" in written:
        return "、".join([*map(style.weekday, days[: len(days) - written.endswith("日")]), "祝日"])
    return "、".join(map(style.weekday, days))
