"""The Korean names of currencies, and of their hundredths where amounts are said with them."""

from __future__ import annotations

import re

from telephony_tts.text.languages.korean.numbers import amount, cardinal
from telephony_tts.text.patterns import NUMBER

CURRENCIES = {
    "₩": "원", "KRW": "원", "$": "달러", "US$": "달러", "USD": "달러", "€": "유로", "EUR": "유로", "¥": "엔",
    "JPY": "엔",
    "£": "파운드", "GBP": "파운드", "CNY": "위안", "RMB": "위안", "HK$": "홍콩 달러", "HKD": "홍콩 달러",
    "NT$": "대만 달러",
    "TWD": "대만 달러", "A$": "호주 달러", "AUD": "호주 달러", "C$": "캐나다 달러", "CAD": "캐나다 달러",
    "S$": "싱가포르 달러",
    "SGD": "싱가포르 달러", "₹": "루피", "INR": "루피", "CHF": "스위스 프랑", "฿": "밧", "THB": "밧", "₫": "동",
    "VND": "동",
    "₽": "루블", "RUB": "루블", "MYR": "링깃", "₱": "페소", "PHP": "페소", "MOP": "파타카", "IDR": "루피아",
}  # fmt: skip
_HUNDREDTHS = {"달러": "센트", "유로": "센트", "파운드": "펜스"}
_ANY = "|".join(re.escape(written) for written in sorted(CURRENCIES, key=len, reverse=True))
CURRENCY = rf"(?:{_ANY})(?![A-Za-z])"
MONEY = re.compile(
    rf"(?P<currency>{_ANY}) ?(?P<minus>-)?(?P<number>{NUMBER})(?P<scale>[십백천만억조]+)?(?![A-Za-z])"
    rf"|(?P<number_first>(?>{NUMBER}))(?P<scale_between>[십백천만억조]+)? ?(?P<currency_behind>{CURRENCY})"
)


def money(found: re.Match[str]) -> str:
    """What is said for a match of `MONEY`: $42.50 -> "사십이달러 오십센트"."""
    name = CURRENCIES[found["currency"] or found["currency_behind"]]
    number, scale = found["number"] or found["number_first"], found["scale"] or found["scale_between"] or ""
    sign = "마이너스 " if found["minus"] else ""
    whole, _, hundredths = number.replace(",", "").partition(".")
    if not scale and len(hundredths) == 2 and name in _HUNDREDTHS and len(whole) <= 15:
        said = f"{cardinal(int(whole))}{name}" if int(whole) else ""
        if int(hundredths):
            said += (" " if said else "") + cardinal(int(hundredths)) + _HUNDREDTHS[name]
        return sign + (said or "영" + name)
    return sign + amount(number) + scale + name
