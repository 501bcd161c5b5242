"""Korean dates and times of day."""

from __future__ import annotations

import re

from telephony_tts.text.languages.korean.numbers import cardinal, native

_MERIDIEM = re.compile(r" ?([aApP])\.?[mM]\.?(?![A-Za-z])")
_ELAPSED = re.compile(
    "(?:(?P<hours>남은|소요|걸리는|비행|주행)|(?:통화|녹음|재생|대기)(?= ?시간)|(?<!점수 )기록)"
    " ?(?:시간)?[은는이가:]? ?약? ?$"
)
ANNIVERSARY = re.compile(
    r"(?:3[.·]1|4[.·]19|5[.·]16|5[.·]18|6[.·]10|6[.·]25|8[.·]15|10[.·]26|12[.·]12)"
    r"(?= ?(?:절|혁명|전쟁|운동|행사|기념|민주|광복|사변|사태|정신|만세))"
    r"|(?:3·1|3·15|4·3|4·19|5·18|6·10|6·25|8·15)(?![0-9]| ?(?:층|호|번|학년|반|단지|차|월|일|분기))"
)


def month(number: int) -> str:
    return {6: "유", 10: "시"}.get(number, cardinal(number)) + "월"


def month_day(groups: list[str]) -> str:
    return f"{month(int(groups[0]))} {cardinal(int(groups[1]))}일"


def date(groups: list[str]) -> str | None:
    """Year, month and perhaps day; the year has two or four digits. With the year last, the day may be the first."""
    if len(groups) == 3 and len(groups[2]) == 4:
        first, second, year = groups
        groups = [year, second, first] if int(first) > 12 else [year, first, second]
    if not 1 <= int(groups[1]) <= 12 or (len(groups) > 2 and not 1 <= int(groups[2]) <= 31):
        return None
    said = f"{cardinal(int(groups[0]))}년 "
    return said + (month(int(groups[1])) if len(groups) == 2 else month_day(groups[1:]))


def clock(groups: list[str], part: str = "") -> str | None:
    """Hour, minute and perhaps second: "세시 이십분". `part` is "a", "p" or ""."""
    hour, minute, second = (int(group) for group in [*groups, "0", "0"][:3])
    if hour > 24 or minute > 59 or second > 59:
        return None
    said = {"a": "오전 ", "p": "오후 "}.get(part.lower(), "")
    said += (native(hour) if 1 <= hour <= 12 else cardinal(hour)) + "시"
    return said + (f" {cardinal(minute)}분" if minute or second else "") + (f" {cardinal(second)}초" if second else "")


def meridiem(behind: str) -> tuple[str, int]:
    """("a", "p" or "", the characters that it takes) of what is written behind a time."""
    found = _MERIDIEM.match(behind)
    return (found[1], found.end()) if found else ("", 0)


def elapsed(left: str, groups: list[str]) -> str | None:
    """What is said for "03:25" behind `left`, if that names a length of time: 통화 시간 삼분 이십오초."""
    found = _ELAPSED.search(left)
    return duration([*groups, "0"] if found["hours"] else ["0", *groups]) if found else None


def duration(groups: list[str]) -> str:
    """Hours, minutes and seconds: "삼분 이십오초"."""
    hours, minutes, seconds = (int(group) for group in groups)
    said = [f"{native(hours) if hours < 20 else cardinal(hours)}시간"] if hours else []
    said += [f"{cardinal(minutes)}분"] if minutes else []
    return " ".join(said + ([f"{cardinal(seconds)}초"] if seconds or not said else []))
