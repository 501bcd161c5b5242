"""The Korean rules for the common forms of numbers, amounts, dates, times and telephone numbers, in hangul.

Most numbers are Sino-Korean. Hours are native (세 시), and months six and ten are 유월 and 시월.
"""

from __future__ import annotations

import re

from telephony_tts.text import addresses
from telephony_tts.text.patterns import NUMBER
from telephony_tts.text.scanner import Language, Rule, after, before
from telephony_tts.text.units import CURRENCIES

_DIGITS = ("영", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구")
_HOURS = ("영", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉", "열", "열한", "열두")
_NATIVE = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_NATIVE_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_COUNTERS = re.compile(r"\s?(?:개(?!월)|명|시간|시(?!리|스)|살|번째|마리|잔|병|권|장|대|달|가지|그릇|벌|켤레|송이)")
_CURRENCIES = {
    "₩": "원",
    "KRW": "원",
    "$": "달러",
    "USD": "달러",
    "€": "유로",
    "EUR": "유로",
    "¥": "엔",
    "JPY": "엔",
    "£": "파운드",
}
_UNITS = {
    "kg": "킬로그램", "g": "그램", "km": "킬로미터", "m": "미터", "cm": "센티미터", "mm": "밀리미터",
    "km/h": "킬로미터 매 시",
    "L": "리터", "ml": "밀리리터", "mL": "밀리리터", "°C": "도", "℃": "도", "GB": "기가바이트", "MB": "메가바이트",
    "m²": "제곱미터", "㎡": "제곱미터", "%": "퍼센트", "kWh": "킬로와트시",
}  # fmt: skip
_UNIT = "(?:" + "|".join(re.escape(u) for u in sorted(_UNITS, key=len, reverse=True)) + ")(?![A-Za-z0-9])"


def cardinal(number: int) -> str:
    """`number` >= 0 in Sino-Korean: 15000 -> "만오천"."""
    if number == 0:
        return "영"
    if number >= 10**16:
        return _code(str(number))
    said = ""
    for scale, name in ((10**12, "조"), (10**8, "억"), (10**4, "만"), (1, "")):
        group = number // scale % 10000
        if not group:
            continue
        if group == 1 and name == "만" and not said:
            said = name
            continue
        for unit, unit_name in ((1000, "천"), (100, "백"), (10, "십")):
            digit = group // unit % 10
            if digit:
                said += ("" if digit == 1 else _DIGITS[digit]) + unit_name
        said += (_DIGITS[group % 10] if group % 10 else "") + name
    return said


def native(number: int) -> str:
    """1..99 before a counter: 3 -> "세", 20 -> "스무"."""
    return "스무" if number == 20 else _NATIVE_TENS[number // 10] + _NATIVE[number % 10]


def _number(text: str) -> str:
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > 16 or (len(whole) > 1 and whole[0] == "0"):
        return _code(whole)
    said = cardinal(int(whole))
    return f"{said}점{''.join(_DIGITS[int(c)] for c in fraction)}" if fraction else said


def _code(text: str) -> str:
    return "".join(_DIGITS[int(c)] for c in text if "0" <= c <= "9")


def _say_code(match: re.Match[str]) -> str:
    return ("플러스 " if match.group()[0] == "+" else "") + " ".join(
        _code(g) for g in re.findall("[0-9]+", match.group())
    )


def _say_named_code(match: re.Match[str]) -> str | None:
    named = re.search(r"(?:번호|코드|비밀번호|인증|우편|전화|계좌|내선|끝자리|ID)[은는이가의:\s]*$", before(match, 14))
    return _code(match.group()) if named else None


def _month(number: int) -> str:
    return {6: "유", 10: "시"}.get(number, cardinal(number)) + "월"


def _say_date(match: re.Match[str]) -> str | None:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{cardinal(int(match['year']))}년 {_month(month)} {cardinal(day)}일"


def _say_month(match: re.Match[str]) -> str:
    return _month(int(match["month"]))


def _say_time(match: re.Match[str]) -> str:
    part = {"a": "오전 ", "p": "오후 "}.get((match["meridiem"] or "")[:1].lower(), "")
    hour, minute = int(match["hour"]), int(match["minute"] or "0")
    said = f"{part}{_HOURS[hour] if hour <= 12 else cardinal(hour)}시"
    return said + (f" {cardinal(minute)}분" if minute else "")


def _say_money(match: re.Match[str]) -> str:
    currency = match["currency"].upper()
    return _number(match["number"]) + (match["scale"] or "") + _CURRENCIES.get(currency, CURRENCIES[currency][0])


def _say_quantity(match: re.Match[str]) -> str:
    return f"{_number(match['number'])} {_UNITS[match['unit']]}"


def _say_range(match: re.Match[str]) -> str:
    return f"{_number(match['first'])}에서 {_number(match['last'])}"


def _say_number(match: re.Match[str]) -> str:
    text = match.group()
    if len(text) <= 2 and text[0] != "0" and _COUNTERS.match(after(match, 4)):
        return native(int(text))
    return _number(text)


def _say_ip(match: re.Match[str]) -> str:
    return "점".join(_code(part) for part in re.split("[.:]", match.group()))


def _say_version(match: re.Match[str]) -> str:
    parts = (match["v_parts"] or match["parts"]).split(".")
    return (match["v"] or "") + "점".join(_number(p) for p in parts)


def _say_sign(match: re.Match[str]) -> str:
    return {"&": "앤드", "@": "골뱅이", "+": "플러스", "=": "는", "-": "마이너스 ", "%": "퍼센트"}[match.group()]


_WORDS = addresses.AddressWords(
    at="골뱅이",
    signs={".": "점", "/": "슬래시", "-": "하이픈", "_": "언더바", ":": "콜론"},
    digits=_code,
    space=" ",
)
_CODES = "|".join(c for c in CURRENCIES if c.isalpha())
_MERIDIEM = r"[aApP]\.?[mM]\.?(?![A-Za-z])"
_DATE = r"(?P<year>[12][0-9]{3})(?P<sep>[-/.])(?P<month>[01]?[0-9])(?P=sep)(?P<day>[0-3]?[0-9])(?![0-9])"
_TIME = rf"(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])(?![0-9:])(?:\s?(?P<meridiem>{_MERIDIEM}))?"
_TELEPHONE = r"\+?[0-9]{1,5}(?:-[0-9]{1,5}){2,4}(?![0-9])|0[0-9]{4,400}(?![0-9])|1[0-9]{3}-[0-9]{4}(?![0-9])"
_RULES: tuple[Rule, ...] = (
    *addresses.address_rules(_WORDS),
    (addresses.IP, _say_ip),
    (addresses.VERSION, _say_version),
    (re.compile(rf"(?P<currency>[$€£¥₩]|{_CODES})\s?(?P<number>{NUMBER})(?P<scale>[만억조천백])?"), _say_money),
    (re.compile(_DATE), _say_date),
    (re.compile(r"(?P<month>1[0-2]|0?[1-9])월"), _say_month),
    (re.compile(_TIME), _say_time),
    (re.compile(rf"(?P<hour>1[0-2]|0?[1-9])(?P<minute>(?!))?\s?(?P<meridiem>{_MERIDIEM})"), _say_time),
    (re.compile(_TELEPHONE), _say_code),
    (re.compile(r"[0-9]{2,400}(?:-[0-9]{2,8}){0,3}(?![0-9.,])"), _say_named_code),
    (re.compile(rf"(?P<number>{NUMBER})\s?(?P<unit>{_UNIT})"), _say_quantity),
    (re.compile(rf"(?P<first>{NUMBER})\s?[-–~]\s?(?P<last>{NUMBER})"), _say_range),
    (re.compile(NUMBER), _say_number),
    (re.compile(r"[&@+=%]|(?<![A-Za-z0-9])-(?=[0-9])"), _say_sign),
)  # fmt: skip
KOREAN = Language(
    trigger=re.compile(
        rf"(?P<any>[0-9$€£¥₩&@+=%-]|(?<![A-Za-z0-9])(?:(?:{_CODES})\s?[0-9]|[vV][0-9]|[A-Za-z]{{1,40}}[@./:_-][A-Za-z0-9/]))"
    ),
    rules={"any": _RULES},
)
