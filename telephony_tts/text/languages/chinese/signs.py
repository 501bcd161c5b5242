"""What is said for a sign in Mandarin text that belongs to no number: & @ # % + = / - and others."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.languages.chinese import numbers as zh
from telephony_tts.text.languages.chinese.money import CURRENCIES, MONEY_STARTS
from telephony_tts.text.languages.chinese.units import UNIT_CHARACTERS, UNITS, WRITTEN
from telephony_tts.text.patterns import vulgar_fraction
from telephony_tts.text.reader import Shape

_WORDS = {
    "@": "艾特", "=": "等于", "%": "百分号", "≥": "大于等于", "≤": "小于等于", "≠": "不等于", "≈": "约等于", "×": "乘",
    "÷": "除以", "±": "正负", "§": "第", "²": "平方", "³": "立方", "№": "编号", "√": "根号", "℡": "电话", "‰": "千分号",
    "‱": "万分号", "∞": "无穷大", "¢": "美分", "+": "加", "·": "每", "↑": "上升", "↓": "下降",
}  # fmt: skip
UNDERSCORE = "下划线"
_SURNAMES = (
    "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛叶阎余潘杜戴夏钟汪田任姜范方石姚谭廖邹熊"
    "金陆郝孔崔康毛邱秦江史顾侯邵孟龙段雷钱汤尹黎易常武乔贺赖龚"
)
_LETTER = r"[A-Za-z\u4e00-\u9fff]"
_SENDS = re.compile(r"(?:发送?|编辑|回复)(?:短信|内容)?[为是:：]?\s?[\"“‘「]?[A-Za-z]{1,9}(?:[#*+][^，。；\s]{0,12})?$")
"""A message to the operator, whose signs the caller types too: "CXXZ#姓名"."""
_DIALS = re.compile(
    rf"{_SENDS.pattern}|(?:按|拨打?|输入|键入|密码锁?|口令)[为是:：]?\s?[0-9*#]*$|[0-9*#]$|[0-9]\*[电话手机]{{0,2}}号码?$"
)
_ENDS_VALUE = re.compile(
    r"(?:[0-9%‰°℃元年月日号点分时周级万亿千米]|[0-9][A-Za-z]{1,3}|(?:周|星期)[一二三四五六日天]|[aApP]\.?[mM]\.?)\s?$"
)
_NAMED_NUMBER = re.compile("[位房桌柜]号$")
_MONEY = re.compile(MONEY_STARTS)
_STARTS_VALUE = re.compile(
    rf"\s?(?:[-+]?[0-9]|{MONEY_STARTS}|(?:周|星期)[一二三四五六日天1-7]|[上下中]午|[早晚]|凌晨|次日|明)"
)
_OPERAND_BEHIND, _OPERAND_BEFORE = re.compile(r"\s?[0-9A-Za-z]"), re.compile(r"[\w)）]\s?$")
_PLACE_BEFORE = re.compile("[0-9]{1,3}(号楼|单元|[栋幢楼层座期排区章页级班])$")
_PART_OF_ADDRESS = re.compile("(?:[0-9A-Za-z栋幢座楼室]|(?<!楼)层|单元|号院)$")
_AMOUNT_BEFORE = re.compile(
    r"(?:[0-9]起?|[0-9].{0,3}[元块角分米克斤里度升特次转人笔条件点片粒颗袋滴支包MGKBgkmlLtW%％]|(?:元起?|[块角米克升%㎡㎥]))\s?$"
    rf"|[0-9]\s?{WRITTEN}$"
)
_PER = re.compile(
    r"\s?(?:[月年日天周次个人时小分秒件位晚平立米公千吨斤升户单条台间套份度片粒颗袋支包盒期碗瓶杯串桌碟盘盆壶锅罐箱筐笼根朵枝束块幅册卷页"
    "题课局圈克毫学季车班字程轮头棵亩板贴针管对双听扎把枚门场组队匹hms]|[张本打只节](?![人先女小折假需要]))"
)
_PER_COUNT = re.compile(
    r"[0-9]{1,3}(?:\.[0-9])?\s?(?:h|min|km|k?g|m[lL]|小时|分钟|公[里斤]|千[米克]|[天日月年次片粒盒人位桌米斤个碗瓶杯串份只张件袋包支根])"
)
_COUNT_BEFORE = re.compile(r"(?:[0-9][位瓶杯碗串个盒箱张包片支本只袋卷条粒台套节]|元/[天日晚月年次人位间台])\s?$")
_PER_UNIT = re.compile(rf"\s?({WRITTEN})")
_MANY = "[个种家款项条人位名岁座城所间门场国]"
_COMPARED = re.compile(r"=?\s?(?:[-+¥$]?[0-9]|[a-zA-Z](?![A-Za-z]))")


def say_sign(shape: Shape) -> str | None:
    """The word of the sign; "" if it is silent, None if it stays as it is written."""
    char, left, right = shape.written, shape.left, shape.right
    if char in "-–—~∼〜":
        return _say_stroke(shape)
    if char in CURRENCIES:
        return CURRENCIES[char]
    if char == "&":
        return "and" if re.search("[A-Za-z] ?$", left) and re.match(" ?[A-Za-z]", right) else "和"
    if char == "_":
        around = left[-1:] + right[:1]
        return UNDERSCORE if len(around) == 2 and around.isascii() and around.isalnum() else ""
    if char in _SPECIAL:
        return _SPECIAL[char](shape)
    if (char == "√" and not _OPERAND_BEHIND.match(right)) or (char == "×" and not _OPERAND_BEFORE.search(left)):
        return ""  # it ticks an item
    if char == "+" and re.search(r"(?:[0-9]0|[千万亿])\s?$", left) and re.match(rf"\s?{_MANY}", right):
        return "多"  # 50+个国家
    if char == "¹" or (char in "²³⁴⁵⁶⁷⁸⁹" and re.search("[\u4e00-\u9fff](?<!米)$", left)):
        return ""  # it refers to a note
    if char in UNIT_CHARACTERS:
        return UNITS[char]
    if char in _WORDS:
        return _WORDS[char]
    value = unicodedata.numeric(char, None)
    if value is None or char.isalpha():
        return None if char.isalnum() or char == "(" else ""
    if value == int(value):
        return zh.cardinal(int(value))
    parts = vulgar_fraction(value)
    if parts is None:
        return ""
    return f"{'又' if left[-1:].isdigit() else ''}{zh.cardinal(parts[1])}分之{zh.cardinal(parts[0])}"


def _say_stroke(shape: Shape) -> str | None:
    """Between two values 到, before a single number 负, between the parts of an address nothing."""
    char, left, right = shape.written, shape.left, shape.right
    if char == "—" and "—" in (left[-1:], right[:1]):
        return None
    if _STARTS_VALUE.match(right):
        if re.search(r"满[0-9.,]{1,8}元\s?$", left):
            return "减"
        place = _PLACE_BEFORE.search(left)
        tight = not right[:1].isspace()
        is_range = _ENDS_VALUE.search(left) and not _NAMED_NUMBER.search(left) and not (tight and left[-1:].isspace())
        if is_range or (place and re.match(f"[0-9]{{1,3}}{place[1]}", right)):
            return "到"
        if char in "-–" and tight and (right[0].isdigit() or _MONEY.match(right)):
            return "" if _PART_OF_ADDRESS.search(left) else "负"
    return "" if char in "~∼〜" else None


def _key(sign: str, right: str) -> str:
    """The name of a key: 井 of "#号键"."""
    return ("井" if sign == "#" else "星") + "号" * (not re.match("号(?!码)", right))


def say_hash(shape: Shape) -> str:
    """ "按#键" is the key, "工单#4815" is a number of a thing."""
    left, right = shape.left, shape.right
    if _DIALS.search(left) or re.search(r"[0-9*键][或和]者?\s?$", left) or re.match(r"\s?(?:号?键|号)", right):
        return _key("#", right)
    if re.search("(?<![A-Za-z0-9])[CF]$", left):
        return " sharp"  # C#
    return "号" if re.match(r"\s?[A-Za-z]{0,4}-?[0-9]", right) and not re.search(r"[号码]\s?$", left) else ""


def _say_star(shape: Shape) -> str:
    left, right = shape.left, shape.right
    if left[-1:] and left[-1] in _SURNAMES and re.match("[\u4e00-\u9fff，,。]", right):
        return "某"  # 刘*华
    is_typed = re.search(r"(?:按|拨|或|和|[0-9]#)\s?$", left) or _SENDS.search(left)
    if is_typed or re.match(r"\s?(?:号?键|号)|#?[0-9]+#|\*[0-9]+[*#]", right):
        return _key("*", right)
    return "乘" if re.search(rf"(?:{_LETTER}|[0-9])\s?$", left) and re.match(r"\s?[0-9]{1,2}(?![0-9])", right) else ""


def _say_slash(shape: Shape) -> str:
    """After an amount or a unit 每, between two words 或."""
    left, right = shape.left, shape.right
    unit = _PER_UNIT.match(right)
    if unit and (re.search(r"[0-9][^，,;；。\s/]{0,6}$|元$", left) or re.search(rf"/\s?{WRITTEN}$", left)):
        shape.end += unit.end()
        return f"每{UNITS[unit[1]]}"
    if re.search(r"[0-9](?:kg|KG|千克|公斤|吨|t)\s?$", left) and re.match(r"\s?[0-9]{1,3}人", right):
        return "，"  # the load of a lift: 1000kg/13人
    if re.search("[0-9](?:L|升|度|kWh)$", left) and re.match("百公里", right):
        return "每"
    if _AMOUNT_BEFORE.search(left) and (_PER.match(right) or (not left[-1:].isdigit() and _PER_COUNT.match(right))):
        return "每"
    if _COUNT_BEFORE.search(left) and re.match(r"\s?[桌人份间天日月周次位箱盒包袋卷件打瓶罐套本]", right):
        return "每"
    if re.search(rf"{_LETTER}\s?$", left) and re.match(rf"\s?{_LETTER}", right):
        if left[-1:] == "和" and right[:1] == "或":
            return ""
        return "" if left[-1:].isascii() and right.strip()[:1].isascii() and left[-1:].isupper() else "或"
    if left[-1:].isdigit() and right[:1].isdigit() and not re.search(":[0-9]{2}$", left):
        return "斜杠"
    return "，" if re.search(r"[\w%‰℃]$", left) and right[:1].isalnum() else ""


def _say_less(shape: Shape) -> str:
    found = _COMPARED.match(shape.right)
    if found:
        is_equal = shape.right[0] == "="
        shape.end += is_equal
        return ("小于" if shape.written[0] == "<" else "大于") + "等于" * is_equal
    is_path = shape.written == ">" and re.match(rf"\s?{_LETTER}", shape.right)
    return "，" if is_path else ""


_SPECIAL = {"#": say_hash, "*": _say_star, "/": _say_slash, "<": _say_less, ">": _say_less}


def say_keys(shape: Shape) -> str | None:
    """Digits beside * or #: keys of a telephone, the number of a thing (#4815), or a topic (#618#)."""
    written, left, right = shape.written, shape.left, shape.right
    number = shape.groups[0]
    dials = _DIALS.search(left) is not None or re.search(r"\*[0-9]{1,20}#", left) is not None
    spelled = len(number) >= 3 or number[0] == "0"
    keys = zh.code(number) if len(number) > 1 else zh.number(number)
    if written[0] == "*":
        is_times = not dials and len(number) <= 2 and re.search(rf"{_LETTER}\s?$", left)
        last = "" if written[-1].isdigit() else _key(written[-1], right)
        return None if is_times else ("星号" if dials or written[-1] == "#" else "") + keys + last
    if written[-1] == "#":
        if written[0] == "#":
            return f"井号{keys}井号" if dials else zh.digits(number)
        said = zh.code(number) if spelled else zh.number(number)
        if not dials and (len(number) <= 2 or re.match("(?!号|键)[\u4e00-\u9fff]", right)):
            return said + "号"
        return said + _key("#", right)
    if written[-1] == "*":
        return "井号" * (written[0] == "#") + keys + _key("*", right)
    if dials:
        return "井号" + keys
    said = zh.code(number) if spelled else zh.number(number)
    return said if re.search(r"[号码]\s?$", left) or right.startswith("号") else f"号{said}"
