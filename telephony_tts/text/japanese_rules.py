"""The Japanese rules for the common forms of numbers, amounts, dates, times and telephone numbers, in kanji."""

from __future__ import annotations

import re

from telephony_tts.text import addresses
from telephony_tts.text.patterns import NUMBER
from telephony_tts.text.scanner import Language, Rule, before
from telephony_tts.text.units import CURRENCIES

_DIGITS = "零一二三四五六七八九"
_TELEPHONE_DIGITS = ["ゼロ", "一", "二", "三", "四", "五", "六", "七", "八", "九"]
_CURRENCIES = {
    "¥": "円",
    "JPY": "円",
    "$": "ドル",
    "USD": "ドル",
    "€": "ユーロ",
    "EUR": "ユーロ",
    "£": "ポンド",
    "GBP": "ポンド",
}
_UNITS = {
    "kg": "キログラム", "g": "グラム",
    "km": "キロメートル", "m": "メートル", "cm": "センチメートル", "mm": "ミリメートル",
    "km/h": "キロメートル毎時", "L": "リットル", "ml": "ミリリットル", "mL": "ミリリットル", "°C": "度", "℃": "度",
    "GB": "ギガバイト", "MB": "メガバイト",
    "m²": "平方メートル", "㎡": "平方メートル", "%": "パーセント", "kWh": "キロワット時",
}  # fmt: skip
_UNIT = "(?:" + "|".join(re.escape(u) for u in sorted(_UNITS, key=len, reverse=True)) + ")(?![A-Za-z0-9])"


def cardinal(number: int) -> str:
    """`number` >= 0 in kanji: 1100 -> "千百", 10000 -> "一万"."""
    if number == 0:
        return "零"
    if number >= 10**16:
        return "".join(_DIGITS[int(c)] for c in str(number))
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


def _number(text: str) -> str:
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > 16 or (len(whole) > 1 and whole[0] == "0"):
        return _code(whole)
    said = cardinal(int(whole))
    return f"{said}点{''.join(_DIGITS[int(c)] for c in fraction)}" if fraction else said


def _code(text: str) -> str:
    return "".join(_TELEPHONE_DIGITS[int(c)] for c in text if "0" <= c <= "9")


def _say_code(match: re.Match[str]) -> str:
    return ("プラス" if match.group()[0] == "+" else "") + _code(match.group())


def _say_named_code(match: re.Match[str]) -> str | None:
    named = re.search(
        r"(?:番号|コード|暗証|パスワード|郵便|電話|口座|末尾|下[四4]桁|内線|ID)[はがの:：「\s]*$", before(match, 14)
    )
    return _code(match.group()) if named else None


def _say_date(match: re.Match[str]) -> str | None:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{cardinal(int(match['year']))}年{cardinal(month)}月{cardinal(day)}日"


def _say_time(match: re.Match[str]) -> str:
    part = {"a": "午前", "p": "午後"}.get((match["meridiem"] or "")[:1].lower(), "")
    minute = int(match["minute"] or "0")
    return f"{part}{cardinal(int(match['hour']))}時" + (f"{cardinal(minute)}分" if minute else "")


def _say_money(match: re.Match[str]) -> str:
    currency = match["currency"].upper()
    return _number(match["number"]) + (match["scale"] or "") + _CURRENCIES.get(currency, CURRENCIES[currency][4])


def _say_quantity(match: re.Match[str]) -> str:
    return _number(match["number"]) + _UNITS[match["unit"]]


def _say_range(match: re.Match[str]) -> str:
    return f"{_number(match['first'])}から{_number(match['last'])}"


def _say_number(match: re.Match[str]) -> str:
    return _number(match.group())


def _say_ip(match: re.Match[str]) -> str:
    return "点".join(_code(part) for part in re.split("[.:]", match.group()))


def _say_version(match: re.Match[str]) -> str:
    parts = (match["v_parts"] or match["parts"]).split(".")
    return (match["v"] or "") + "点".join(_number(p) for p in parts)


def _say_sign(match: re.Match[str]) -> str:
    return {"&": "アンド", "@": "アット", "+": "プラス", "=": "イコール", "-": "マイナス", "%": "パーセント"}[
        match.group()
    ]


_WORDS = addresses.AddressWords(
    at="アットマーク",
    signs={".": "ドット", "/": "スラッシュ", "-": "ハイフン", "_": "アンダーバー", ":": "コロン"},
    digits=_code,
    space=" ",
)
_MONEY = rf"\s?(?P<number>{NUMBER})(?P<scale>[万億兆])?"
_CODES = "|".join(c for c in CURRENCIES if c.isalpha())
_MERIDIEM = r"[aApP]\.?[mM]\.?(?![A-Za-z])"
_DATE = r"(?P<year>[12][0-9]{3})(?P<sep>[-/.])(?P<month>[01]?[0-9])(?P=sep)(?P<day>[0-3]?[0-9])日?(?![0-9])"
_TIME = rf"(?P<hour>[01]?[0-9]|2[0-4])[:：](?P<minute>[0-5][0-9])(?![0-9:])(?:\s?(?P<meridiem>{_MERIDIEM}))?"
_RULES: tuple[Rule, ...] = (
    *addresses.address_rules(_WORDS),
    (addresses.IP, _say_ip),
    (addresses.VERSION, _say_version),
    (re.compile(rf"(?P<currency>[$€£¥₩]|{_CODES}){_MONEY}"), _say_money),
    (re.compile(_DATE), _say_date),
    (re.compile(_TIME), _say_time),
    (re.compile(rf"(?P<hour>1[0-2]|0?[1-9])(?P<minute>(?!))?\s?(?P<meridiem>{_MERIDIEM})"), _say_time),
    (re.compile(r"\+?[0-9]{1,5}(?:-[0-9]{1,5}){2,4}(?![0-9])|0[0-9]{4,400}(?![0-9])"), _say_code),
    (re.compile(r"[0-9]{2,400}(?:-[0-9]{2,8}){0,3}(?![0-9.,])"), _say_named_code),
    (re.compile(rf"(?P<number>{NUMBER})\s?(?P<unit>{_UNIT})"), _say_quantity),
    (re.compile(rf"(?P<first>{NUMBER})\s?[-–~〜]\s?(?P<last>{NUMBER})"), _say_range),
    (re.compile(NUMBER), _say_number),
    (re.compile(r"[&@+=%]|(?<![A-Za-z0-9])-(?=[0-9])"), _say_sign),
)  # fmt: skip
JAPANESE = Language(
    trigger=re.compile(
        rf"(?P<any>[0-9$€£¥₩&@+=%-]|(?<![A-Za-z0-9])(?:(?:{_CODES})\s?[0-9]|[vV][0-9]|[A-Za-z]{{1,40}}[@./:_-][A-Za-z0-9/]))"
    ),
    rules={"any": _RULES},
)
