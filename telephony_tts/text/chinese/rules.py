"""How Mandarin reads what is not plain words: amounts, quantities, signs; other files have dates, codes and signs."""

from __future__ import annotations

import re

from telephony_tts.text import addresses
from telephony_tts.text.chinese import codes as chinese_codes
from telephony_tts.text.chinese import dates as chinese_dates
from telephony_tts.text.chinese import numbers as zh
from telephony_tts.text.chinese.signs import SIGN_RULES
from telephony_tts.text.patterns import COMMA_AMOUNT, NUMBER, SIGNS, from_comma
from telephony_tts.text.scanner import Language, Rule, after, before
from telephony_tts.text.units import CURRENCIES, CURRENCY_CODE, CURRENCY_SIGN, UNIT, UNITS

_WORDS = addresses.AddressWords(
    at="艾特",
    signs={
        ".": "点",
        "/": "斜杠",
        "-": "杠",
        "_": "下划线",
        ":": "冒号",
        "?": "问号",
        "=": "等于",
        "&": "和",
        "+": "加",
        "%": "百分号",
        "#": "井号",
        "~": "波浪号",
    },
    digits=zh.code,
    space=" ",
)
_SCALE = "(?:百万|千万|百亿|千亿|万亿|[万亿千百])"
_TO = r"\s?(?:-|–|—|~|至|到)\s?"
_MEASURE = re.compile(
    r"\s?(?:[个位件条张岁份笔间家本台部封种套盒箱包袋瓶杯片粒颗支把只双对组项倍次天周秒人元块角米斤公千百万亿吨升点场趟批遍句晚夜碗辆架座棵头匹根门顿节段股例成人口]|年(?!级)|栋(?!\s?[0-9])|[室厅](?=[0-9][厅卫])|单(?!元)|名(?!次)|小时|分钟|个月|星期|礼拜|"
    r"毫升|毫米|厘米|英里|英尺|平方|立方|美元|港元|欧元|英镑|磅)"
)
_NO_LIANG = re.compile(r"(?:[第周期初按选零点负]|第[0-9]{1,2}[、和与]|星期|礼拜|之|选择|[0-9]号?[排楼层])\s?$")


def _say_count(written: str, left: str, right: str) -> str:
    """A number with the text around it: 2 is 两 before a measure word, 二 in a rank or a date."""
    if written == "2" and _MEASURE.match(right) and not _NO_LIANG.search(left):
        return "两"
    return zh.number(written)


def _money_number(written: str) -> str:
    """Amounts lose the zeros at the end of the cents: "13.50" -> 十三点五."""
    if "." in written:
        written = written.rstrip("0").rstrip(".")
    return zh.number(written)


def _say_number(match: re.Match[str]) -> str:
    right = after(match, 3)
    if "." in match.group() and re.match(r"\s?(?:元|块|美元|美金|欧元|港|英镑|人民币)", right):
        return _money_number(match.group())
    return _say_count(match.group(), before(match, 4), right)


def _is_discount(left: str, first: str, last: str) -> bool:
    """ "满200-50" takes 50 off from 200 on. "不满200-300" is a range."""
    return left.endswith("满") and float(first.replace(",", "")) > float(last.replace(",", ""))


def _say_range(match: re.Match[str]) -> str | None:
    first, last = match["first"], match["last"]
    if first[0] == "0" and len(first) > 1 and first[1] != ".":
        return None
    left, right = before(match, 3), after(match, 3)
    if re.match(r"\s?=", right):
        return f"{zh.number(first)}减{zh.number(last)}"
    if _is_discount(left, first, last):
        return f"{_say_count(first, left, right)}减{_say_count(last, left, right)}"
    if chinese_dates.SCORED.search(before(match, 14)) or re.match("获?胜|战胜|击败|领先|落后|战平", right):
        return f"{zh.number(first)}比{zh.number(last)}"
    return f"{_say_count(first, left, right)}到{_say_count(last, left, right)}"


def _say_places(match: re.Match[str]) -> str:
    """ "3栋-5栋"."""
    return f"{zh.number(match['first'])}{match['name']}到{zh.number(match['last'])}{match['name']}"


def _say_comma_money(match: re.Match[str]) -> str | None:
    """ "1.299,00€", "49,90-59,90欧元"."""
    currency = match["before"] or match["after"]
    if currency is None or chinese_codes.context(before(match, 20), ""):
        return None
    said = _money_number(from_comma(match["first"]))
    if match["last"]:
        said += "到" + _money_number(from_comma(match["last"]))
    return said + (CURRENCIES[currency][4] if currency in CURRENCIES else currency)


def _say_money(match: re.Match[str]) -> str:
    currency = CURRENCIES[match["currency"].upper()][4]
    scale = match["scale"] or ""
    said = _amount(match["first"], scale)
    if match["last"]:
        joint = "减" if _is_discount(before(match, 1), match["first"], match["last"]) else "到"
        said += joint + _amount(match["last"], scale)
    unit = "" if re.match(currency, after(match, 4)) else currency
    return ("负" if match["minus"] else "") + said + scale + unit


def _amount(written: str, scale: str) -> str:
    return "两" if written == "2" else _money_number(written)


def _say_money_after(match: re.Match[str]) -> str:
    scale = match["scale"] or ""
    return _amount(match["first"], scale) + scale + CURRENCIES[match["currency"].upper()][4]


def _say_percent(match: re.Match[str]) -> str:
    name = {"‰": "千分之", "‱": "万分之"}.get(match["sign"], "百分之")
    said = "" if not match["first"] else f"{name}{_of_hundred(match['first'])}到"
    return said + name + _of_hundred(match["last"])


def _of_hundred(written: str) -> str:
    return "百" if written == "100" else zh.number(written)


def _say_quantity(match: re.Match[str]) -> str | None:
    first, last, unit = match["first"], match["last"], match["unit"]
    if len(unit) == 1 and unit.isalpha() and chinese_codes.context(before(match, 20), ""):
        return None
    name = UNITS[unit][2]
    number = zh.number if unit in ("°C", "℃", "°F", "℉", "°") else zh.quantity
    said = number(first) + (f"到{number(last)}" if last else "")
    return said + name


def _say_size(match: re.Match[str]) -> str:
    return "乘".join(zh.number(n) for n in re.split(r"\s?[x×X*]\s?", match.group()))


def _say_discount(match: re.Match[str]) -> str:
    return zh.digits(match.group())


def _say_fraction(match: re.Match[str]) -> str:
    top, bottom = match["top"], match["bottom"]
    if (top, bottom) == ("24", "7"):
        return "七乘二十四"
    if re.search(r"(?:血压|压)[是为:：]?\s?$", before(match, 5)) or (len(top) > 2 and int(top) > int(bottom)):
        return f"{zh.number(top)}比{zh.number(bottom)}{UNITS['mmHg'][2] if match['unit'] else ''}"
    if after(match, 2) == "号线":
        return zh.number(top) + zh.number(bottom)
    whole = match["whole"]
    if before(match, 1) == "第":  # "第1/3步"
        return f"{zh.number(top)}，共{zh.number(bottom)}"
    said = f"{zh.number(bottom)}分之{zh.number(top)}"
    return f"{zh.number(whole)}又{said}" if whole else said


def _say_rating(match: re.Match[str]) -> str:
    return f"{zh.number(match['top'])}比{zh.number(match['bottom'])}"


def _say_power(match: re.Match[str]) -> str:
    sign = "负" if match["power"][0] == "-" else ""
    return f"{zh.number(match['base'])}的{sign}{zh.number(match['power'].lstrip('-'))}次方"


def _say_ratio(match: re.Match[str]) -> str:
    return "比".join(zh.number(n) for n in re.split("[:：]", match.group()))


def _say_letter_scale(match: re.Match[str]) -> str | None:
    """ "10w" ten thousands, "5k" thousands, "100M" broadband; "5G" and the like are names."""
    letter = match["letter"]
    if chinese_codes.context(before(match, 20), after(match, 20)):
        return None
    if letter == "k":
        return (
            zh.number(match["number"]) + "千"
            if len(match["number"]) == 1 or "." in match["number"]
            else zh.number(match["number"] + "000")
        )
    return zh.number(match["number"]) + {"w": "万", "M": "兆"}.get(letter, letter)


def _say_version(match: re.Match[str]) -> str | None:
    parts = (match["v_parts"] or match["parts"]).split(".")
    if match["v"] and len(parts) == 1 and len(parts[0]) > 2:
        return None
    return ("V" if match["v"] else "") + "点".join(zh.number(p) for p in parts)


def _say_ip(match: re.Match[str]) -> str:
    host, _, port = match.group().partition(":")
    said = "点".join(zh.code(p) for p in host.split("."))
    return f"{said}冒号{zh.code(port)}" if port else said


def _say_no(match: re.Match[str]) -> str:
    return "" if re.search("[号码]\\s?$", before(match, 2)) or re.match("[0-9]{3}", after(match, 3)) else "第"


_ADDRESS_RULES = addresses.address_rules(_WORDS)
_MONEY_SIGN: Rule = (
    re.compile(
        rf"(?P<currency>{CURRENCY_SIGN}|{CURRENCY_CODE})\s?(?P<minus>-(?=[0-9]))?(?P<first>{NUMBER})"
        rf"(?:{_TO}(?:{CURRENCY_SIGN})?(?P<last>{NUMBER}))?(?P<scale>{_SCALE})?",
        re.I,
    ),
    _say_money,
)
_COMMA_MONEY: Rule = (
    re.compile(
        rf"(?:(?P<before>€|EUR|CHF)\s?)?(?P<first>{COMMA_AMOUNT})(?:{_TO}€?(?P<last>{COMMA_AMOUNT}))?"
        r"(?:\s?(?P<after>€|(?:EUR|CHF)(?![A-Za-z0-9])|欧元|瑞士法郎))?"
    ),
    _say_comma_money,
)
_DIGIT_RULES: tuple[Rule, ...] = (
    *_ADDRESS_RULES,
    (addresses.IP, _say_ip),
    _COMMA_MONEY,
    *chinese_dates.DATE_RULES,
    *chinese_dates.TIME_RULES,
    *chinese_codes.CODE_RULES,
    *chinese_codes.TELEPHONE_RULES,
    chinese_dates.MONTH_DASH_DAY,
    (addresses.VERSION, _say_version),
    (re.compile(rf"(?:(?P<first>{NUMBER}){_TO})?(?P<last>{NUMBER})\s?(?P<sign>[%‰‱])"), _say_percent),
    (
        re.compile(
            rf"(?P<first>{NUMBER})(?P<scale>{_SCALE})?\s?(?P<currency>{CURRENCY_CODE}(?![A-Za-z0-9])|[$€£¥](?![0-9]))",
            re.I,
        ),
        _say_money_after,
    ),
    (
        re.compile(
            r"(?:(?P<whole>[0-9]{1,6})(?:又|\s))?(?P<top>[0-9]{1,6})/(?P<bottom>[0-9]{1,6})(?![0-9/])(?P<unit>\s?mmHg)?"
        ),
        _say_fraction,
    ),
    (re.compile(r"(?P<top>[0-9]+\.[0-9]+)/(?P<bottom>[0-9]{1,4})(?![0-9/.])"), _say_rating),
    (re.compile(r"(?P<base>[0-9]{1,6})\^(?P<power>-?[0-9]{1,3})(?![0-9])"), _say_power),
    (re.compile(r"[1-9][1-9](?=折)"), _say_discount),
    (re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<letter>[wkMGT])(?![A-Za-z0-9²³/])"), _say_letter_scale),
    (
        re.compile(rf"(?P<first>{NUMBER})(?:{_TO}(?P<last>{NUMBER}))?\s?(?P<unit>{UNIT.replace('%|', '')})"),
        _say_quantity,
    ),
    (re.compile(r"[0-9]{1,5}(?:\s?[x×X*]\s?[0-9]{1,5}(?:\.[0-9]{1,4})?){1,3}(?![0-9A-Za-z^])"), _say_size),
    (re.compile(rf"(?P<first>{NUMBER}){_TO}(?P<last>{NUMBER})(?![0-9A-Za-z]|[-/.:,][0-9])"), _say_range),
    (
        re.compile(
            r"(?P<first>[1-9][0-9]{0,2})(?P<name>号楼|单元|[栋幢楼层座期排区章页级班])\s?[-–—~]\s?"
            r"(?P<last>[1-9][0-9]{0,2})(?P=name)"
        ),
        _say_places,
    ),
    (re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,4})?(?:[:：][0-9]{1,6}(?:\.[0-9]{1,4})?){1,3}(?![0-9])"), _say_ratio),
    *chinese_codes.MIXED_RULES,
    chinese_codes.UNEXPLAINED_RULE,
    (re.compile(NUMBER), _say_number),
)
_WORD_RULES: tuple[Rule, ...] = (
    *_ADDRESS_RULES,
    (re.compile(r"[Nn][Oo]\.\s?(?=[0-9])"), _say_no),
    _COMMA_MONEY,
    _MONEY_SIGN,
    (addresses.VERSION, _say_version),
    *chinese_codes.MIXED_RULES,
)
_WORD = (
    rf"(?<![A-Za-z0-9])(?:[Nn][Oo]\.\s?[0-9]|(?:{CURRENCY_CODE}|(?:US|HK|NT|A|C|S)\$)\s?[0-9]"
    r"|[A-Za-z]{1,40}(?:[@_0-9]|[./:-][A-Za-z0-9/]))"
)

CHINESE = Language(
    trigger=re.compile(
        rf"(?P<digit>[0-9])|(?P<word>{_WORD})|(?P<sign>\s[-–](?=\s[0-9$¥])|[㎡㎥㎏㎞㎝㎜㎎㎖]|(?<=每)m[²³]|{SIGNS}|[(（](?=0[0-9]{{2,3}}[)）]))",
        re.I,
    ),
    rules={
        "digit": _DIGIT_RULES,
        "word": _WORD_RULES,
        "sign": (*chinese_codes.TELEPHONE_RULES, _COMMA_MONEY, _MONEY_SIGN, *SIGN_RULES),
    },
)
