"""Amounts of money in Mandarin."""

from __future__ import annotations

import re
from decimal import Decimal

from telephony_tts.text.languages.chinese.units import money_number
from telephony_tts.text.patterns import COMMA_AMOUNT, NUMBER, from_comma

CURRENCIES = {
    "$": "美元", "US$": "美元", "USD": "美元", "HK$": "港元", "HKD": "港元", "NT$": "新台币", "TWD": "新台币",
    "A$": "澳元", "AUD": "澳元", "C$": "加元", "CAD": "加元", "S$": "新加坡元", "SGD": "新加坡元", "€": "欧元",
    "EUR": "欧元", "£": "英镑", "GBP": "英镑", "¥": "元", "CNY": "元", "RMB": "元", "JPY": "日元", "₩": "韩元",
    "KRW": "韩元", "₹": "卢比", "INR": "卢比", "CHF": "瑞士法郎", "฿": "泰铢", "THB": "泰铢", "MOP": "澳门元",
    "₽": "卢布", "RUB": "卢布", "MYR": "林吉特", "₱": "比索", "PHP": "比索", "VND": "越南盾", "₫": "越南盾",
}  # fmt: skip
TO = r"\s?(?:[-–—~∼〜]|至|到)\s?"
_NO_NAME = "(?![A-Za-z0-9码款型级号区座恤])"
"""Behind a letter that scales an amount: M码 and T恤 are words."""
SCALE = "(?:百万|千万|百亿|千亿|万亿|[万亿千百])"
_ANY = "(?:" + "|".join(re.escape(written) for written in sorted(CURRENCIES, key=len, reverse=True)) + ")"
_CODE = "(?:" + "|".join(written for written in CURRENCIES if written.isalpha() and written.isascii()) + ")"
MONEY = re.compile(
    rf"(?![0-9])(?P<currency>{_ANY})\s?(?P<minus>-(?=[0-9]))?(?P<first>[0-9]{{1,3}}(?=,[0-9]{{3}}(?:m?l|k?g|[cm]m|gb)(?![A-Za-z]))|{NUMBER})"
    rf"(?:{TO}(?:[$€£¥])?(?P<last>{NUMBER}))?(?:(?P<scale>{SCALE})|(?P<letter>[wkt]|[mb]n?){_NO_NAME})?"
    rf"|(?=[0-9][0-9,.]{{0,24}}{SCALE}?\s?[A-Za-z$€£¥])(?P<number>{NUMBER})(?P<scale_between>{SCALE})?\s?(?P<behind>{_CODE}(?![A-Za-z0-9])|[$€£¥](?![0-9]))",
    re.IGNORECASE,
)
COMMA_MONEY = re.compile(
    rf"(?=[€EC]|[0-9]{{1,4}}[.,][0-9])(?:(?P<before>€|EUR|CHF)\s?)?(?P<first>{COMMA_AMOUNT})(?:{TO}€?(?P<last>{COMMA_AMOUNT}))?"
    r"(?:\s?(?P<after>€|(?:EUR|CHF)(?![A-Za-z0-9])|欧元|瑞士法郎))?"
)
MONEY_STARTS = rf"{_ANY}\s?[0-9]"


def is_discount(left: str, first: str, last: str) -> bool:
    """ "满200-50" takes 50 off from 200 on. "不满200-300" is a range."""
    return left.endswith("满") and float(first.replace(",", "")) > float(last.replace(",", ""))


def say_money(found: re.Match[str], left: str, right: str) -> str:
    """What is said for a match of `MONEY`: "$1.5万" -> 一点五万美元."""
    if found["number"]:
        return _amount(found["number"]) + (found["scale_between"] or "") + CURRENCIES[found["behind"].upper()]
    currency, letter = CURRENCIES[found["currency"].upper()], found["letter"] or ""
    said = ("负" if found["minus"] else "") + scaled(found["first"], letter)
    if found["last"]:
        joint = "减" if is_discount(left, found["first"], found["last"]) else "到"
        said += joint + scaled(found["last"], letter)
    if currency == "元" and re.search(r"日[元币]\s?$", left):
        currency = ""  # 日元¥10,000
    return said + (found["scale"] or "") + ("" if right.startswith(currency) else currency)


def scaled(number: str, letter: str) -> str:
    """A number with w (万), k, M, B, T or nothing behind it: ("2.5", "M") -> 两百五十万."""
    if not letter or letter in "wW":
        return _amount(number) + "万" * bool(letter)
    power = {"k": 3, "m": 6, "b": 9, "t": 12}[letter[0].lower()]
    return money_number(f"{Decimal(number.replace(',', '')) * 10**power:f}")


def _amount(written: str) -> str:
    return "两" if written == "2" else money_number(written)


def say_comma_money(found: re.Match[str]) -> str | None:
    """ "1.299,00€", "49,90-59,90欧元"; None without a currency of Europe."""
    currency = found["before"] or found["after"]
    if currency is None:
        return None
    numbers = [found["first"], *([found["last"]] if found["last"] else [])]
    return "到".join(money_number(from_comma(each)) for each in numbers) + CURRENCIES.get(currency, currency)
