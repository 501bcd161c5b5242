"""Korean numbers in hangul: Sino-Korean (삼십), native before counters (서른), and digit by digit (삼공)."""

from __future__ import annotations

DIGITS = ("영", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구")
_CODE_DIGITS = str.maketrans("0123456789", "공일이삼사오육칠팔구")
_NATIVE = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_NATIVE_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_MAX_DIGITS = 16


def cardinal(number: int) -> str:
    """`number` >= 0 in Sino-Korean: 15000 -> "만오천"."""
    if number == 0:
        return "영"
    if number >= 10**_MAX_DIGITS:
        return code(str(number))
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
                said += ("" if digit == 1 else DIGITS[digit]) + unit_name
        said += (DIGITS[group % 10] if group % 10 else "") + name
    return said


def native(number: int) -> str:
    """1..99 before a counter: 3 -> "세", 20 -> "스무"."""
    return "스무" if number == 20 else _NATIVE_TENS[number // 10] + _NATIVE[number % 10]


def amount(written: str) -> str:
    """A number with or without commas and decimals, with up to 16 digits before the point: "1,385.50"."""
    whole, _, fraction = written.replace(",", "").partition(".")
    if len(whole) > _MAX_DIGITS:
        return code(whole)
    said = cardinal(int(whole))
    return f"{said}점{''.join(DIGITS[int(digit)] for digit in fraction)}" if fraction else said


def code(digits: str) -> str:
    """Digit by digit, zero as 공: "010" -> "공일공". Other characters are left out."""
    return "".join(char for char in digits if "0" <= char <= "9").translate(_CODE_DIGITS)
