"""How <say-as> reads its text: as characters, digits, a date, a time, a telephone number, an amount or an ordinal.

Most of it writes the text in the usual form of the language, which the rules of that language then read. English and
Mandarin have all of it, Japanese and Korean have dates, times, amounts and ordinals. For other languages characters and
digits are only set apart, and all else stays as it is.
"""

from __future__ import annotations

import re

from telephony_tts.text.languages.chinese import numbers as zh
from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.money import CURRENCIES
from telephony_tts.text.markdown import fold
from telephony_tts.text.normalizer import normalize
from telephony_tts.text.patterns import NUMBER

SAY_AS = {
    "characters": "characters", "character": "characters", "spell-out": "characters", "verbatim": "characters",
    "digits": "digits", "digit": "digits", "date": "date", "time": "time", "telephone": "telephone",
    "currency": "currency", "ordinal": "ordinal", "cardinal": "cardinal", "number": "cardinal",
}  # fmt: skip
"""The values of `interpret-as`, and what each of them means."""

_SIGNS = {
    "en": {
        ".": "dot", ",": "comma", "-": "dash", "_": "underscore", "@": "at", "/": "slash", "\\": "backslash",
        ":": "colon", ";": "semicolon", "#": "hash", "*": "star", "+": "plus", "=": "equals", "%": "percent",
        "&": "and", "?": "question mark", "!": "exclamation mark", "$": "dollar", "~": "tilde", "(": "open bracket",
        ")": "close bracket", '"': "quote", "'": "apostrophe",
    },
    "zh": {
        ".": "点", ",": "逗号", "-": "杠", "_": "下划线", "@": "艾特", "/": "斜杠", "\\": "反斜杠", ":": "冒号",
        ";": "分号", "#": "井号", "*": "星号", "+": "加号", "=": "等号", "%": "百分号", "&": "和", "?": "问号",
        "!": "感叹号", "$": "美元", "~": "波浪号", "(": "左括号", ")": "右括号", '"': "引号", "'": "撇号",
    },
}  # fmt: skip
_DIGITS = re.compile("[0-9]+")
_YEARLESS = re.compile("[^ymd]")
_REPEATED = re.compile(r"(.)\1+")
_LENGTHS = {"y": 4, "m": 2, "d": 2}
_DATES = {
    "en": {"ymd": "{month} {d}, {y}", "md": "{month} {d}", "ym": "{month} {y}"},
    "zh": {"ymd": "{y}年{m}月{d}日", "md": "{m}月{d}日", "ym": "{y}年{m}月", "y": "{y}年"},
    "ko": {"ymd": "{y}년 {m}월 {d}일", "md": "{m}월 {d}일", "ym": "{y}년 {m}월", "y": "{y}년"},
}
_DATES["ja"] = _DATES["zh"]
_CLOCK = re.compile(r"([0-2]?[0-9])(?:[:.h时点]?)([0-5][0-9])(?:[:.m分]?([0-5][0-9])[s秒]?)?\s?([ap]\.?m\.?)?", re.I)
_DURATION = re.compile(r"(?=[0-9])(?:([0-9]{1,3})['′’])?\s?(?:([0-9]{1,2})(?:[\"″”]|''|’’))?")
"""Minutes and seconds: 1'30", or one of them."""
_DURATIONS = {
    "en": ("{n} minute{s}", " ", "{n} second{s}"), "zh": ("{n}分钟", "", "{n}秒"), "ja": ("{n}分", "", "{n}秒"),
    "ko": ("{n}분", " ", "{n}초"),
}  # fmt: skip
_EXTENSION = re.compile(r"[\s,;]*(?:x|ext\.?|extension|转|分机)\s*(?=[0-9]+$)", re.I)
_ORDINAL = re.compile(r"第?\s?([0-9]{1,15})(?:st|nd|rd|th)?", re.I)
_AMOUNT = re.compile(rf"-?{NUMBER}")


def say_as(text: str, kind: str, form: str, lang: str) -> str | None:
    """The spoken form of `text`. None: as it would be read without <say-as>.

    `kind` is a value of `SAY_AS`, `form` the `format` of the tag, `lang` a language such as "en".
    """
    text = fold(text).strip()
    match kind:
        case "characters":
            return _characters(text, lang)
        case "digits":
            return _digits(text, lang)
        case "date":
            return _date(text, form, lang)
        case "time":
            return _time(text, lang)
        case "telephone":
            return _telephone(text, lang)
        case "currency":
            currency = form.upper()
            if currency in CURRENCIES and _AMOUNT.fullmatch(text):
                text = f"{currency} {text}"
            return _rules(text, lang)
        case "ordinal":
            return _ordinal(text, lang)
        case "cardinal":
            return _cardinal(text, lang)
    return None


def _rules(written: str, lang: str) -> str | None:
    """What the rules of the language make of it; None if they leave digits."""
    said = normalize(written, lang)
    return None if _DIGITS.search(said) else said


def _characters(text: str, lang: str) -> str:
    signs = _SIGNS.get(lang, {})
    said = []
    for char in text:
        if char.isspace():
            continue
        if lang == "en" and char.isascii() and char.isalnum():
            said.append(en.letters(char))
        elif lang == "zh" and char.isascii() and char.isdigit():
            said.append(zh.code(char))
        else:
            said.append(signs.get(char, char.upper() if char.isascii() else char))
    if lang == "zh" and not any(char.isascii() for char in "".join(said)):
        return "".join(said)
    return " ".join(said)


def _digits(text: str, lang: str) -> str | None:
    """Digit by digit, with a pause between groups."""
    groups = _DIGITS.findall(text)
    if not groups:
        return None
    if lang == "en":
        return ", ".join(en.digits(group) for group in groups)
    if lang == "zh":
        return "，".join(zh.code(group) for group in groups)
    return ", ".join(normalize(" ".join(group), lang) for group in groups)


def _date(text: str, form: str, lang: str) -> str | None:
    order = _REPEATED.sub(r"\1", _YEARLESS.sub("", form))
    numbers = _DIGITS.findall(text)
    if re.sub(r"[0-9\s./年月日号\-]", "", text):
        return None  # a name of a month: the rules read it
    if not order:
        if len(numbers) == 3:
            order = "ymd" if len(numbers[0]) == 4 or lang != "en" else "mdy"
        elif len(numbers) == 1 and len(numbers[0]) == 8:
            order = "ymd"
        else:
            return None
    if len(numbers) == 1 and len(order) > 1 and len(numbers[0]) == sum(_LENGTHS[part] for part in order):
        numbers, rest = [], numbers[0]
        for part in order:
            numbers.append(rest[: _LENGTHS[part]])
            rest = rest[_LENGTHS[part] :]
    if len(numbers) != len(order) or len(set(order)) != len(order) or max(map(len, numbers)) > 4:
        return None
    parts = dict(zip(order, numbers, strict=True))
    written = _DATES.get(lang, {}).get("".join(part for part in "ymd" if part in parts))
    if written is None:
        return en.year(int(parts["y"])) if lang == "en" and order == "y" else None
    year, month, day = (int(parts.get(part, 1)) for part in "ymd")
    if "y" in parts and len(parts["y"]) <= 2:
        year += 2000 if year < 70 else 1900
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return _rules(written.format(y=year, m=month, d=day, month=en.MONTHS[month - 1]), lang)


def _time(text: str, lang: str) -> str | None:
    if (duration := _DURATION.fullmatch(text)) is not None:
        return _duration(duration[1], duration[2], lang)
    clock = _CLOCK.fullmatch(text)
    if clock is None or int(clock[1]) > 24:
        return _rules(text, lang)
    second = f":{clock[3]}" if clock[3] else ""
    meridiem = clock[4].replace(".", "") if clock[4] else ""
    return _rules(f"{int(clock[1])}:{clock[2]}{second}{meridiem}", lang)


def _duration(minutes: str | None, seconds: str | None, lang: str) -> str | None:
    words = _DURATIONS.get(lang)
    if words is None:
        return None
    minute, blank, second = words
    said = [
        form.format(n=int(number), s="" if int(number) == 1 else "s")
        for form, number in ((minute, minutes), (second, seconds))
        if number is not None
    ]
    return _rules(blank.join(said), lang)


def _telephone(text: str, lang: str) -> str | None:
    """Its groups digit by digit; a number without groups is one."""
    if lang not in ("en", "zh"):
        return _digits(text, lang) if lang in ("ja", "ko") else None
    number, *extension = _EXTENSION.split(text)
    said = _digits(number, lang)
    if said is None or re.search(r"[A-Za-z]", number):
        return _rules(text, lang)  # 1-800-FLOWERS
    if number.startswith("+"):
        said = ("plus " if lang == "en" else "加") + said
    if extension and (last := _digits(extension[0], lang)):
        said += (", extension " if lang == "en" else "转") + last
    return said


def _ordinal(text: str, lang: str) -> str | None:
    found = _ORDINAL.fullmatch(text.replace(",", ""))
    if found is None:
        return None
    number = int(found[1])
    if lang == "en":
        return en.ordinal(number)
    if lang == "zh":
        return "第" + zh.cardinal(number)
    sign = {"ja": "第", "ko": "제"}.get(lang)
    return None if sign is None else _rules(f"{sign}{number}", lang)


def _cardinal(text: str, lang: str) -> str | None:
    if not _AMOUNT.fullmatch(text) or lang not in ("en", "zh"):
        return None
    sign, number = text[: text.startswith("-")], text.lstrip("-")
    whole, _, fraction = number.replace(",", "").partition(".")
    written = f"{int(whole or '0')}" + (f".{fraction}" if fraction else "")
    if lang == "en":
        return ("minus " if sign else "") + en.number(written)
    return ("负" if sign else "") + zh.number(written)
