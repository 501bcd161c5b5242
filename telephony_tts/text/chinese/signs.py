"""The Mandarin rules for signs between words: & @ # % + = / - and others."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.chinese import codes as chinese_codes
from telephony_tts.text.chinese import numbers as zh
from telephony_tts.text.patterns import SIGNS, vulgar_fraction
from telephony_tts.text.scanner import Rule, after, before
from telephony_tts.text.units import CURRENCY_CODE, CURRENCY_SIGN, UNIT, UNITS

_SIGNS = {
    "@": "艾特",
    "=": "等于",
    "%": "百分号",
    "≥": "大于等于",
    "≤": "小于等于",
    "≠": "不等于",
    "≈": "约等于",
    "×": "乘",
    "÷": "除以",
    "±": "正负",
    "°": "度",
    "€": "欧元",
    "£": "英镑",
    "¥": "元",
    "$": "美元",
    "₩": "韩元",
    "₹": "卢比",
    "§": "第",
    "²": "平方",
    "³": "立方",
    "℃": "摄氏度",
    "℉": "华氏度",
    "№": "编号",
    "√": "根号",
    "‰": "千分号",
    "∞": "无穷大",
    "¢": "美分",
}


def _say_sign(match: re.Match[str]) -> str | None:
    sign = match.group()
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign in "-–—":
        return None
    value = unicodedata.numeric(sign, None)
    if value is None:
        return ""
    if value == int(value):
        return zh.cardinal(int(value))
    parts = vulgar_fraction(value)
    if parts is None:
        return ""
    top, bottom = parts
    joint = "又" if before(match, 1).isdigit() else ""
    return f"{joint}{zh.cardinal(bottom)}分之{zh.cardinal(top)}"


_ENDS_VALUE = re.compile(
    r"(?:[0-9%°℃元年月日号点分时周级万亿千米]|[0-9][A-Za-z]{1,3}|(?:周|星期)[一二三四五六日天]|[aApP]\.?[mM]\.?)\s?$"
)
_MONEY = re.compile(rf"(?:{CURRENCY_SIGN}|{CURRENCY_CODE})\s?[0-9]")
_STARTS_VALUE = re.compile(
    rf"[-+]?[0-9]|{_MONEY.pattern}|(?:周|星期)[一二三四五六日天1-7]|(?:上|下|中)午|晚上|凌晨|次日|明"
)


def _say_dash(match: re.Match[str]) -> str | None:
    """Between two values 到, before a single number 负. Elsewhere a tilde is silent."""
    left, right = before(match, 4), after(match, 6)
    sign = match.group().strip()
    tight = not match.group()[-1:].isspace()
    if _STARTS_VALUE.match(right):
        if re.search(r"满[0-9.,]{1,8}元\s?$", before(match, 12)):
            return "减"
        if _ENDS_VALUE.search(left) and not (tight and left[-1:].isspace()):
            return "到"
        if sign == "—":
            return None
        if sign in "-–" and tight and (right[0].isdigit() or _MONEY.match(right)):
            return "" if re.search("[0-9A-Za-z栋幢座楼层]$|单元$|号院$", left) else "负"
    return "" if sign == "~" else None


def _say_and(match: re.Match[str]) -> str:
    return "and" if re.search("[A-Za-z] ?$", before(match, 2)) and re.match(" ?[A-Za-z]", after(match, 2)) else "和"


def _say_hash(match: re.Match[str]) -> str:
    """ "按#键" is the key, "工单#4815" is a number of a thing."""
    right = after(match, 8)
    keyed = re.search(r"(?:按|拨打?|输入|\*)\s?[0-9*#]*$", before(match, 8))
    if not keyed and before(match, 1).isdigit() and re.match("(?!号|键)[\u4e00-\u9fff]", right):
        return "号"
    if keyed or re.match(r"\s?(?:号?键|号)", right) or re.search(r"[0-9]\s?$", before(match, 2)):
        return "井" if right.startswith("号") else "井号"
    if re.match(r"\s?[A-Za-z]{0,4}-?[0-9]", right):
        return "" if re.search(r"[号码]\s?$", before(match, 2)) else "号"
    return ""


def _say_between_hashes(match: re.Match[str]) -> str | None:
    """In "密码#2580#" the signs are keys, and "#618#" is a topic."""
    left, number = before(match, 8), zh.code(match["number"])
    if re.search(r"(?:[0-9*#]|(?:按|拨打?)\s?)$", left):
        return None
    return f"井号{number}井号" if re.search(r"(?:密码|口令|输入|键入)[为是:：]?\s?$", left) else number


def _say_hash_number(match: re.Match[str]) -> str | None:
    if re.search(r"(?:按|拨打?|输入|[0-9*])\s?$", before(match, 3)):
        return None
    number = match["number"]
    said = zh.code(number) if len(number) >= 3 or number[0] == "0" else zh.number(number)
    return said if re.search(r"[号码]\s?$", before(match, 2)) else f"号{said}"


def _say_star(match: re.Match[str]) -> str:
    left, right = before(match, 3), after(match, 2)
    if (
        re.match(r"\s?(?:号?键|号)", right)
        or re.search(r"(?:按|拨|或|和)\s?$", left)
        or re.match("[0-9]+#", after(match, 8))
    ):
        return "星" if right.startswith("号") else "星号"
    if re.search(r"[0-9]\s?$", left) and re.match(r"\s?[0-9]", right):
        return "乘"
    return "乘" if re.search(rf"{_LETTER}\s?$", left) and re.match(r"\s?[0-9]{1,2}(?![0-9])", after(match, 4)) else ""


_LETTER = r"[A-Za-z\u4e00-\u9fff]"


def _say_per_unit(match: re.Match[str]) -> str | None:
    """ "元/㎡": a unit after a slash, if an amount precedes it."""
    amount = re.search(r"[0-9][^，,;；。\s/]{0,6}$|元$", before(match, 8))
    return f"每{UNITS[match['unit']][2]}" if amount and match["unit"] != "%" else None


def _say_slash(match: re.Match[str]) -> str:
    """After an amount or a unit 每, between two words 或."""
    left, right = before(match, 6), after(match, 2)
    measure = "元块角分米克斤里度升特次人笔条件点片粒颗袋滴支包MGKBgkmlLtW%％"
    amount = re.search(rf"(?:[0-9]|[0-9].{{0,3}}[{measure}]|[元块角米克升%㎡㎥])\s?$", left)
    per = r"\s?[月年日天周次个人时小分秒件位晚平立米公千吨斤升户单条台间套份度片粒颗袋支包盒期hms]"
    if amount and re.match(per, right):
        return "每"
    if re.search(rf"{_LETTER}\s?$", left) and re.match(rf"\s?{_LETTER}", right):
        if left[-1:] == "和" and right[:1] == "或":
            return ""
        return "" if left[-1:].isascii() and right.strip()[:1].isascii() and left[-1:].isupper() else "或"
    return "斜杠" if left[-1:].isdigit() and right[:1].isdigit() else ""


def _say_compare(match: re.Match[str]) -> str:
    words = {"<": "小于", ">": "大于", "<=": "小于等于", ">=": "大于等于"}
    right = after(match, 4)
    if re.match(r"\s?[-+¥$]?[0-9]|\s?[a-zA-Z](?![A-Za-z])", right):
        return words[match.group()]
    return "，" if match.group() == ">" and re.match(r"\s?[A-Za-z\u4e00-\u9fff]", right) else ""


def _say_plus(match: re.Match[str]) -> str:
    return "加" * len(match.group())


SIGN_RULES: tuple[Rule, ...] = (
    (re.compile(r"\s?[-–~]\s?|(?<!—)—(?!—)"), _say_dash),
    (re.compile(r"\++"), _say_plus),
    (re.compile(r"#(?P<number>[0-9]{1,8})#(?![0-9])"), _say_between_hashes),
    (re.compile(r"#\s?(?P<number>[0-9]+)(?![0-9A-Za-z]|[-.,][0-9])"), _say_hash_number),
    (re.compile("#"), _say_hash),
    chinese_codes.MASKED_RULE,
    (re.compile(r"\*"), _say_star),
    (re.compile("&"), _say_and),
    (re.compile(rf"/\s?(?P<unit>{UNIT})"), _say_per_unit),
    (re.compile("/"), _say_slash),
    (re.compile("[<>]=?"), _say_compare),
    (re.compile("[㎡㎥㎏㎞㎝㎜㎎㎖]|m[²³]"), lambda match: UNITS[match.group()][2]),
    (re.compile(SIGNS), _say_sign),
)
