"""Numbers as Mandarin words (Standard Chinese, simplified characters)."""

from __future__ import annotations

DIGITS = "零一二三四五六七八九"
_LONGEST_CARDINAL = 16
"""A number with more digits is read digit by digit: 万亿 is the largest scale in common speech."""


def digits(text: str) -> str:
    """The ASCII digits of `text` one by one, with 一 for 1 (years, decimals): "2008" -> "二零零八"."""
    return "".join(DIGITS[ord(c) - 48] for c in text if "0" <= c <= "9")


def code(text: str) -> str:
    """The digits one by one as in a telephone number, with 幺 for 1 so that 一 is not taken for 七."""
    return digits(text).replace("一", "幺")


def letters(text: str) -> str:
    """Letters and digits one by one, as in a code: "SF12" -> "S F 幺二"."""
    said: list[str] = []
    for c in text:
        if "0" <= c <= "9":
            said.append(code(c))
        elif c.isascii() and c.isalpha():
            said.append((" " if said and said[-1] != " " else "") + c.upper() + " ")
    return "".join(said).replace("  ", " ").strip()


def _group(number: int, leads: bool) -> str:
    """1..9999. `leads`: nothing was said before it, so 10..19 drop their 一."""
    said = ""
    pending_zero = False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // unit % 10
        if not digit:
            pending_zero = bool(said)
            continue
        if pending_zero and not said.endswith("零"):
            said += "零"
        pending_zero = False
        if unit == 10 and digit == 1 and not said and leads:
            said += name
        elif digit == 2 and (unit == 1000 or (unit == 100 and not said)):
            said += "两" + name
        else:
            said += DIGITS[digit] + name
    return said


def cardinal(number: int) -> str:
    """`number` >= 0 in words: 1001 -> "一千零一", 20000 -> "两万"; beyond sixteen digits, digit by digit."""
    if number == 0:
        return "零"
    if number >= 10**_LONGEST_CARDINAL:
        return digits(str(number))
    for scale, name in ((10**8, "亿"), (10**4, "万")):
        if number >= scale:
            high, rest = divmod(number, scale)
            said = ("两" if high == 2 else cardinal(high)) + name
            if not rest:
                return said
            return (
                said + ("零" if rest < scale // 10 else "") + (cardinal(rest) if rest >= 10**4 else _group(rest, False))
            )
    return _group(number, True)


def number(text: str) -> str:
    """A written number, unsigned, with optional thousands commas and decimals: "1,234.5" -> words.

    A leading zero before another digit means the digits matter, so they are read one by one.
    """
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > _LONGEST_CARDINAL or (len(whole) > 1 and whole[0] == "0"):
        spoken = digits(whole)
    else:
        spoken = cardinal(int(whole or "0"))
    return f"{spoken}点{digits(fraction)}" if fraction else spoken


def quantity(text: str) -> str:
    """A number before a measure word: like `number`, but a bare 2 is 两."""
    return "两" if text == "2" else number(text)
