"""How numbers, codes and signs are read in Mandarin text: what the reader needs to know, and each kind."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text import addresses, reader
from telephony_tts.text.languages.chinese import dates, money
from telephony_tts.text.languages.chinese import numbers as zh
from telephony_tts.text.languages.chinese.evidence import EVIDENCE
from telephony_tts.text.languages.chinese.money import COMMA_MONEY, MONEY, TO
from telephony_tts.text.languages.chinese.signs import UNDERSCORE, say_keys, say_sign
from telephony_tts.text.languages.chinese.units import UNIT, UNIT_CHARACTERS, UNITS, WRITTEN, count, measure
from telephony_tts.text.patterns import AIRLINER, LETTERS_OR_DIGITS, NUMBER, WITH_VOWEL
from telephony_tts.text.reader import Shape

_WORDS = addresses.AddressWords(
    at="艾特",
    signs={
        ".": "点", "/": "斜杠", "-": "杠", "_": UNDERSCORE, ":": "冒号", "?": "问号", "=": "等于", "&": "和", "+": "加",
        "%": "百分号", "#": "井号", "~": "波浪号",
    },
    digits=zh.code,
    space=" ",
)  # fmt: skip
(_, _SAY_EMAIL), (_, _SAY_URL) = addresses.address_rules(_WORDS)
_STAGES = re.compile(TO)
_EXTENSION = re.compile(r"\s?(?:转?分机号?|转)\s?([0-9]{1,6})(?![0-9])")
_CALENDAR_YEAR = re.compile("(?:19[5-9][0-9]|20[0-9]{2})")
_IN_HOUSE = re.compile(r"(?:[0-9]|[A-Z]座?)(?:[层楼栋幢座门室]|号楼|单元|号院|号)?$")
_PLACE = re.compile(
    r"(?:小区|花园|公寓|宿舍|考场|教室|会议室|诊室|地址|门牌|房号?|房间|送[到至]|单元|[住苑园路街巷弄村城府湾里庭邸厦号院栋幢])[是为在:：]{0,2}\s?$"
)
_CAR = re.compile("[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼][A-Z]·?$")
_PLAIN = re.compile(
    "(?<![米层楼栋幢座元门院、和/])[1-9][0-9]{0,2}(?=[\u4e00-\u9fff](?<![年折期号室房又至到后升度百千万亿胶消安杀工上和大活购促晚特预高院]))"
    r"|(?<!米)(?:[1-9][0-9]?(?=[号℃。，、；！？])|[0-9]{1,4}(?:\.[0-9]{1,2})?(?=(?:k?g|[ckm]?m|m?[lL])(?![A-Za-z0-9²³/_·-])))"
    r"|(?:[0-9]{1,3}(?:,[0-9]{3}){1,3}|[0-9]{1,8})(?:\.[0-9]{1,2})?(?=元(?!旦))"
    "|(?<![层楼栋幢座元门院])[0-9]{4,16}(?=[，。；！？、是的]|,(?![0-9]))"
)
"""What no other form begins with; most numbers are found here at once."""
_POWER = re.compile(r"(?:\^-?[0-9]{1,3}(?![0-9])|(?!¹(?![⁰¹²³⁴-⁹]))⁻?[⁰¹²³⁴-⁹]{1,4})")
_TYPED = re.compile(
    r"(?:密码|用户名|登录名|WiFi|Wi-Fi|无线(?:网络)?|热点|SSID|文件名?|主机名?|域名|微信号?)(?:名称?)?[为是叫:：\s\"“‘「『]{0,3}[A-Za-z0-9_-]{0,30}$"
)
"""What the listener types. No dash of it may be left out."""
_SECRET = re.compile(
    r"(?:密码|口令|激活码|兑换码|序列号|密钥|用户名|登录名|账号|Wi-?Fi名称?|SSID|(?:密码|口令)[^。]{0,12}(?:[例比]?如|[改设][成为]))[为是:：\s\"“‘「『]{0,4}$"
)
"""What a password or a name that is typed stands behind."""
_SECRET_SIGNS = {
    "@": "艾特", "#": "井号", "$": "美元符", "%": "，百分号", "&": "和号", "*": "星号", "+": "加号", "=": "等号",
    "^": "尖号", "~": "波浪号", "?": "问号", "!": "感叹号", ".": "点", "-": "杠", "_": UNDERSCORE,
}  # fmt: skip
_SECRET_RUNS = re.compile("[A-Za-z]+|[0-9]+|.")
_PERCENT = {"%": "百分之", "‰": "千分之", "‱": "万分之"}


def _groups(groups: list[str]) -> str:
    """Each group digit by digit, with a comma between groups so that the voice pauses."""
    return "，".join(zh.code(group) for group in groups)


def _say_code(shape: Shape) -> str | None:
    digits = shape.written
    if len(digits) in (4, 5) and shape.text == digits and digits[0] != "0":
        return None  # a number that is all there is
    said = ("加" if digits[0] == "+" else "") + _groups(shape.groups)
    if extension := _EXTENSION.match(shape.text, shape.end):
        shape.end = extension.end()
        said += f"转{zh.code(extension[1])}"
    return said


def _say_mask(shape: Shape) -> str:
    if shape.groups:
        return _groups(shape.groups)
    return "" if "*" in shape.written else shape.written  # xxx, once for its whole length


def _unit(shape: Shape) -> str | None:
    """The unit in letters or signs behind the shape, which is said with it."""
    if shape.unit is None or not shape.unit["written"]:
        return None
    shape.end = shape.unit.end()
    return shape.unit["written"].strip()


def _is_near(kind: str, shape: Shape) -> bool:
    """Whether the words directly before the shape say that it is of this kind."""
    near = EVIDENCE[kind].near
    return near is not None and near.search(shape.left) is not None


def _say_amount(shape: Shape) -> str:
    """A number with its unit, which is said too where it is written in letters or signs."""
    number = shape.written.lstrip("+")
    sign = "加" if shape.written[0] == "+" else ""
    if unit := _unit(shape):
        return sign + measure([number], unit)
    if shape.unit is None and _CALENDAR_YEAR.fullmatch(number) and number[2:] != "00" and not _is_near("amount", shape):
        return sign + zh.digits(number)
    if len(number) > 1 and number[0] == "0" and number.isdigit():
        return sign + zh.code(number)
    return sign + count(number, shape.left, shape.right)


def _say_range(shape: Shape) -> str | None:
    numbers = _STAGES.split(shape.written)
    if len(numbers) == 2 and money.is_discount(shape.left, *numbers):
        return "减".join(count(number, shape.left, shape.right) for number in numbers)
    if unit := _unit(shape):
        return measure(numbers, unit)
    return "到".join(count(number, shape.left, shape.right) for number in numbers)


def _say_address(shape: Shape) -> str | None:
    """ "1-1203": a house and a room of it; of other falling numbers the dash is said."""
    if shape.left.endswith("满"):
        return None
    if len(shape.groups) == 2 and len(shape.groups[1]) >= 3:
        return f"{zh.number(shape.groups[0])}，{zh.code(shape.groups[1])}"
    return "杠".join(zh.number(group) for group in shape.groups)


def _say_room(shape: Shape) -> str | None:
    """ "12层1203", "A座-1204", "18层1801户", "3号楼201-205"."""
    if not _IN_HOUSE.search(shape.left) or (shape.unit is not None and shape.right[:1] not in "户室号"):
        return None
    return "到".join(zh.code(group) for group in shape.groups)


def _say_rooms(shape: Shape) -> str | None:
    """ "2-3-1802", and "1-1203" of a place, where nothing is counted."""
    if len(shape.groups) == 2 and not _PLACE.search(shape.left):
        return None
    counted = shape.unit is not None and shape.right[:1] not in "户室号"
    if counted or _is_near("code", shape) or shape.groups[-1].endswith("00") or _is_near("amount", shape):
        return None
    return "，".join([*(zh.number(group) for group in shape.groups[:-1]), zh.code(shape.groups[-1])])


def _say_fraction(shape: Shape) -> str | None:
    *whole, top, bottom = shape.groups
    if shape.left.endswith("排名"):
        return f"{zh.number(top)}，共{zh.number(bottom)}"
    if (top, bottom) == ("24", "7"):
        return "七乘二十四"
    if top[0] == "0" or len(shape.groups) > 3:
        return None
    follows = int(bottom) == int(top) + 1 and re.match("号?[栋幢楼座口门]|单元", shape.right)
    if follows or shape.right.startswith("号线"):
        if max(len(top), len(bottom)) > 1:  # 二十号线 is another line than 2/10号线
            return f"{zh.number(top)}{'号' * (shape.right[0] == '号')}、{zh.number(bottom)}"
        return zh.number(top) + zh.number(bottom)
    said = f"{zh.number(bottom)}分之{zh.number(top)}"
    return f"{zh.number(whole[0])}又{said}" if whole else said


def _say_step(shape: Shape) -> str | None:
    """ "第1/3步", "步骤1/3", "已还12/24期", and a choice: "可选24/36期", "50/55岁"."""
    counter = shape.right[:1] if re.match("[次件位项条步页题关章集层期针剂回轮讲课个人]", shape.right) else ""
    first, last = shape.groups
    is_choice = re.match("周?岁|分期|[GT]B", shape.right) or re.search(r"(?:选|支持|分为?|提供)\s?$", shape.left)
    if is_choice and not re.search(r"[用剩载传]\s?$", shape.left):
        return f"{zh.number(first)}或{zh.number(last)}"
    if counter and int(first) > int(last):
        return None
    return f"{zh.number(first)}{counter}，共{zh.quantity(last) if counter else zh.number(last)}"


def _say_pair(shape: Shape) -> str | None:
    """ "120/80mmHg", "4.5/5", and 5/5 as a fraction."""
    parts = shape.written.split("/")
    if len(parts) == 2 and shape.written.replace("/", "").isdigit() and not _is_near("pair", shape):
        is_falling = len(parts[0]) > 2 and int(parts[0]) > int(parts[1])
        if parts[0][0] != "0" and not is_falling:
            return _say_fraction(shape)
    if unit := _unit(shape):
        joint = "，" if unit in ("GB", "MB", "TB", "G", "M") else "比"  # 14.8/16GB are used
        return f"{zh.number(parts[0])}{joint}{measure(parts[1:], unit)}"
    return ("比" if len(parts) == 2 else "，").join(zh.number(part) for part in parts)


def _say_rating(shape: Shape) -> str | None:
    """ "4.8/5" of a rating, "88/120分"."""
    score, best = shape.written.replace(",", "").split("/")
    if float(score) > float(best):
        return None
    shape.end += shape.right.startswith("分")
    return f"{zh.number(score)}分，满分{zh.number(best)}分"


def _say_parts(joint: str) -> reader.Say:
    return lambda shape: joint.join(zh.number(number) for number in re.findall("[0-9.,]+", shape.written))


def _say_size(shape: Shape) -> str | None:
    if _POWER.match(shape.right):
        return None
    *first, last = re.split(r"\s?[x×X*]\s?", shape.written)
    unit = _unit(shape)
    return "乘".join([*map(zh.number, first), measure([last], unit) if unit else zh.number(last)])


def _say_percent(shape: Shape) -> str:
    numbers = _STAGES.split(shape.written[:-1].strip("+ "))
    said = "到".join(_PERCENT[shape.written[-1]] + ("百" if n == "100" else zh.number(n)) for n in numbers)
    return "加" * (shape.written[0] == "+") + said


def _say_per_hundred(shape: Shape) -> str | None:
    """ "6.5L/100km"."""
    found = shape.found
    return found and f"每百公里{zh.number(found['number'])}{UNITS.get(found['unit'], found['unit'])}"


def _say_money(shape: Shape) -> str | None:
    return shape.found and money.say_money(shape.found, shape.left, shape.right)


def _say_comma_money(shape: Shape) -> str | None:
    return None if shape.found is None or _is_near("code", shape) else money.say_comma_money(shape.found)


def _say_letter_scale(shape: Shape) -> str | None:
    """ "10w" ten thousands, "5k" thousands, "100M" broadband; "5G" and the like are names."""
    *first, last, letter = *_STAGES.split(shape.written[:-1]), shape.written[-1]
    if _is_near("code", shape):
        return None
    if letter in "wk" or (letter != "G" and re.match(r"\s?(?:[美欧港]?元|美金|英镑)", shape.right)):
        return "到".join(money.scaled(number, letter) for number in (*first, last))
    return "到".join(map(zh.number, (*first, last))) + {"M": "兆"}.get(letter, letter)


def _say_version(shape: Shape) -> str | None:
    is_named = shape.written[0] in "vV"
    if is_named and len(shape.groups) == 1 and len(shape.groups[0]) > 2:
        return None
    return ("V" if is_named else "") + "点".join(zh.number(group) for group in shape.groups)


def _say_ip(shape: Shape) -> str:
    host, _, port = shape.written.partition(":")
    said = "点".join(zh.code(part) for part in host.split("."))
    return f"{said}冒号{zh.code(port)}" if port else said


def _say_power(shape: Shape) -> str:
    power = unicodedata.normalize("NFKC", shape.written[len(shape.groups[0]) :]).lstrip("^")
    return f"{zh.number(shape.groups[0])}的{'负' if power[0] in '-−' else ''}{zh.number(power.strip('-−'))}次方"


def _say_floor(shape: Shape) -> str | None:
    """ "5F", which is a seat behind 车 and 座位."""
    return None if re.search(r"(?:车厢?|座位|排)[号为是:：]?\s?$", shape.left) else f"{zh.number(shape.groups[0])}楼"


def _say_ampere(shape: Shape) -> str | None:
    is_current = re.search("(?:电流|空开|开关|保险丝|额定|插座|断路器)[^，。0-9]{0,6}$", shape.left)
    return f"{zh.number(shape.groups[0])}安" if is_current else None


def _say_span(shape: Shape) -> str | None:
    """Seats, gates or floors: "14A-14C", "B1-B10"."""
    first, last = shape.written.split("-")
    if first[0].isalpha() and first[0] != last[0]:
        return None
    return "到".join(
        "".join(zh.number(run) if run.isdigit() else run for run in LETTERS_OR_DIGITS.findall(each))
        for each in (first, last)
    )


def _letters(run: str, spelled: bool) -> str:
    if not WITH_VOWEL.match(run) or (spelled and (len(run) <= 3 or run.isupper())):
        return zh.letters(run)
    return run


def _say_mixed(spelled: bool) -> reader.Say:
    """Letters with digits: a code ("SF1234") is spelled, a name ("COVID-19", "5G") is read."""

    def say(shape: Shape) -> str | None:
        text = shape.written
        unit = UNIT.match(shape.text, shape.start + len(shape.groups[0])) if text[0].isdigit() else None
        if unit is not None and unit["written"] and shape.text[unit.end() : unit.end() + 1] not in ("-", "_"):
            return None  # 5kg, 5kg12元
        is_typed = _TYPED.search(shape.left) is not None
        runs = re.findall("[A-Za-z]+|[0-9]+|[_-]" if is_typed else "[A-Za-z]+|[0-9]+|_", text)
        is_name = len(runs) <= 4 and runs[-1][1:].islower() and max(map(len, shape.groups)) < 3
        is_seat = re.fullmatch("[0-9]{1,2}[A-Z]", text) is not None and text[0] != "0"
        if spelled and (is_name or is_seat) and not _CAR.search(shape.left):
            return None  # P40Pro, 23A
        said = ""
        for run in runs:
            if run in "_-":
                said += _WORDS.signs[run]
            elif run.isdigit():
                said += zh.code(run) if spelled and len(text) > 2 else zh.number(run)
            else:
                said += " " * (said[-1:].isascii() and bool(said)) + _letters(run, spelled)
        return said

    return say


def _say_secret(shape: Shape) -> str | None:
    """A password or name that is typed, "Tk9#4m": each of its signs is typed, and no part of it is a unit or money."""
    is_address = addresses.EMAIL.match(shape.text, shape.start) or addresses.URL.match(shape.text, shape.start)
    if is_address or not _SECRET.search(shape.left):
        return None
    said = ""
    for run in _SECRET_RUNS.findall(shape.written):
        if run in _SECRET_SIGNS:
            said += _SECRET_SIGNS[run]
        else:
            said += zh.code(run) if run.isdigit() else _letters(run, True)
    return said


def _say_named(shape: Shape) -> str | None:
    """ "iOS17.4", "PM2.5"."""
    found = shape.found
    return found and _letters(found["name"], False) + zh.number(found["number"])


def _say_numero(shape: Shape) -> str:
    is_code = re.search(r"[号码]\s?$", shape.left) or re.match("[0-9]{3}", shape.right)
    return "" if is_code else "第"


CHINESE = reader.Tables(
    unit=UNIT,
    evidence=EVIDENCE,
    say={
        "email": lambda shape: shape.found and _SAY_EMAIL(shape.found),
        "url": lambda shape: shape.found and _SAY_URL(shape.found),
        "mask": _say_mask,
        "keys": say_keys,
        "code": _say_code,
        "plain_code": lambda shape: _groups(shape.groups),
        "amount": _say_amount,
        "range": _say_range,
        "size": _say_size,
        "clock": dates.say_clock,
        "hour": dates.say_hour,
        "minute": dates.say_minute,
        "duration": dates.say_duration,
        "duration_letters": dates.say_duration_letters,
        "pace": lambda shape: "{}分{}秒".format(*map(zh.number, shape.groups)),
        "date": dates.say_date,
        "timestamp": dates.say_date,
        "year_month": dates.say_year_month,
        "month_day": dates.say_month_day,
        "expiry": dates.say_expiry,
        "months": dates.say_months,
        "days": dates.say_days,
        "per_unit": lambda shape: UNITS[shape.written],
        "dot_dates": dates.say_dot_dates,
        "years": lambda shape: "到".join(map(zh.digits, shape.groups)),
        "year": lambda shape: zh.digits(shape.written),
        "short_year": dates.say_short_year,
        "padded": dates.say_padded,
        "version": _say_version,
        "ip": _say_ip,
        "ratio": _say_parts("比"),
        "pair": _say_pair,
        "rating": _say_rating,
        "fraction": _say_fraction,
        "step": _say_step,
        "list": lambda shape: "，".join(map(zh.number, shape.groups)),
        "address": _say_address,
        "minus": _say_parts("减"),
        "room": _say_room,
        "rooms": _say_rooms,
        "named": _say_named,
        "codec": lambda shape: f"{shape.written[0]}点{zh.code(shape.groups[0])}",
        "secret": _say_secret,
        "mixed": _say_mixed(spelled=False),
        "mixed_code": _say_mixed(spelled=True),
        "business": lambda shape: f"{shape.written[0]} to {shape.written[2]}",
        "trading_day": lambda shape: f"T减{zh.number(shape.groups[0])}",
        "times": lambda shape: f"乘{zh.number(shape.groups[0])}",
        "span": _say_span,
        "comma_money": _say_comma_money,
        "money": _say_money,
        "percent": _say_percent,
        "per_hundred": _say_per_hundred,
        "digits": lambda shape: zh.digits(shape.written),
        "letter_scale": _say_letter_scale,
        "floor": _say_floor,
        "ampere": _say_ampere,
        "clothing": lambda shape: f"{zh.digits(shape.groups[0])}，{zh.digits(shape.groups[1])}{shape.written[-1]}",
        "hexadecimal": lambda shape: f"零 X {zh.letters(shape.written[2:])}",
        "tyre": lambda shape: "，".join(map(zh.letters, shape.written.split("/"))),
        "power": _say_power,
        "numero": _say_numero,
    },
    signs=say_sign,
    trigger=reader.trigger(
        r"(?<=[是为成如码令:： “\"])[A-Za-z](?=[A-Za-z]{0,20}[#%&*+=^~?!])"
        r"|(?<![A-Za-z0-9])(?:[Nn][Oo]\.\s?(?=[0-9])|[A-Za-z]{3}(?=\s?-?[0-9]))|(?<=[每百千万亿])[A-Za-z]|（(?=0[0-9]{2,3}）)"
        r"|(?<=[㎡²米户人间])·(?=[年月天日])"
        rf"|[↑↓{UNIT_CHARACTERS}\[\]§√∞‱‰µ℡\u00b9\u2070-\u2079\u2080-\u2089\u2150-\u2188⑩-⑳]"
    ),
    forms=reader.Forms((
        ("plain_code", re.compile(
            r"(?:(?<=提示)|(?<=报错)|(?<=返回)|(?<=[网页]页显示)|(?<=[页界]面显示))[45]0[0-9](?=[，。；！？、的吗吧呢]|,(?![0-9]))"
            r"|[45]0[0-9](?=错误|页面|报错)|(?<=[0-9]F-)[0-9]{3,4}(?![0-9A-Za-z]|[人位个])"
            r"|(?:(?<=发送)|(?<=短信)|(?<=编辑)|(?<=回复))[0-9]{3,6}(?=\s?(?:发送)?[至到]\s?1[0-9]{4})"
            r"|(?:(?<=回复[\"“「])|(?<=发送[\"“「]))[0-9]{3,6}(?=[\"”」])"
        )),
        ("secret", re.compile(
            r"(?=[^A-Za-z\s]{0,40}[A-Za-z])(?=[A-Za-z0-9_-]{0,40}(?:[#$%&*@^+=]|[~?!][A-Za-z0-9]|\.[a-z0-9]))"
            r"[#$%&@^+=]?[A-Za-z0-9]{1,40}+(?:(?:(?!\*\*)[#$%&*@^+=~?!_-]{1,2}|\.(?=[a-z0-9]))[A-Za-z0-9]{1,40}+){0,8}"
            r"[#$%&*@^+=]?(?![A-Za-z0-9*])"
        )),
        ("number", _PLAIN),
        ("url", re.compile("/(?:etc|usr|var|home|opt|dev|tmp|root|mnt|srv|api)(?:/[A-Za-z0-9_.-]{1,40}){1,6}")),
        ("numero", re.compile(r"[Nn][Oo]\.\s?(?=[0-9])")),
        ("step", re.compile(
            r"(?<=步骤)[0-9]{1,2}/[0-9]{1,2}|(?<=第)[0-9]{1,3}/[0-9]{1,3}(?=[针剂回轮讲课])|[0-9]{1,3}/[0-9]{1,3}(?=[次件位项条步页题关章集层]|期(?![间限])|周?岁|分期|[GT]B)"
            r"|(?<=[剩余满])[0-9]{1,3}/[0-9]{2,3}(?=个(?!月)|人)"
        )),
        ("rating", re.compile(r"(?:[0-9]{1,3}(?:\.[0-9])?/[0-9]{2,3}|[0-9]\.[0-9]/5)(?=分(?![钟之期]))")),
        ("list", re.compile("[0-9]{2,5}(?:/[0-9]{3,5}){2,4}(?![0-9/])")),
        ("comma_money", COMMA_MONEY),
        *dates.FORMS,
        ("plain_code", AIRLINER),
        ("plain_code", re.compile("[0-9]{5,8}(?=期)|(?<=第)[0-9]{7,20}(?=号)")),
        ("plain_code", re.compile("[0-9]{3,4}(?:[、,，/][0-9]{3,4}){1,5}(?=号?[室房](?![租贷产屋]))")),
        ("per_unit", re.compile(f"(?<=[每百千万亿]){WRITTEN}")),
        ("code", re.compile(
            r"（0[0-9]{2,3}）[0-9]{3,4}[- ]?[0-9]{3,4}(?![0-9])|0[0-9]{2,3}-[0-9]{5}(?![0-9])"
            r"|\+(?=(?:[- ()]{0,2}[0-9]){7})[0-9]{1,3}(?:[- ]?\(?[0-9]{2,11}+\)?){1,6}+(?![0-9])"
        )),
        ("room", re.compile(
            r"(?<=[层楼栋幢座元门院])[-—]?[0-9]{3,4}(?:(?:[-~]|至|到)[0-9]{3,4})?(?![0-9A-Za-z.,/-]|[多余几来])"
        )),
        ("rooms", re.compile(r"[0-9]{1,2}(?:-[0-9]{1,2})?-[0-9]{3,4}(?![0-9A-Za-z.,/:-])")),
        ("per_hundred", re.compile(
            r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s?(?P<unit>L|升|kWh|度)/100\s?(?:km|公里)"
        )),
        ("percent", re.compile(
            rf"\+?(?=[0-9][0-9,.]{{0,24}}(?:{TO}[0-9][0-9,.]{{0,24}})?\s?[%‰‱])(?:{NUMBER}{TO})?{NUMBER}\s?[%‰‱]"
        )),
        ("money", MONEY),
        ("fraction", re.compile(r"[0-9]{1,6}(?:又|\s)[0-9]{1,6}/[0-9]{1,6}(?![0-9/])")),
        ("power", re.compile(f"[0-9]{{1,6}}{_POWER.pattern}")),
        ("digits", re.compile(
            r"[1-9][1-9](?=折)|618(?=和双|大促|活动|期间|购物节|年中|促销|晚会|特惠|预售)|(?:985|211)(?=[高院]校|工程|大学|[、和/](?:985|211))"
            r"|(?<=(?:985|211)[、和/])(?:985|211)|(?<=双1[12][、和])618|[0-9]{1,2}·[0-9]{1,2}(?![0-9])|(?<=[0-9]米)[0-9]{2}(?![0-9.米厘cC])|502(?=胶)|84(?=消毒)|360(?=安全|杀毒|浏览器)"
            r"|996(?=工作制|上班|、007)|(?<=朝9晚5，)996"
        )),
        ("letter_scale", re.compile(
            rf"(?>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?)(?:{TO}[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?)?"
            r"(?:[wkKMGT]|B(?=美元|美金|欧元|英镑))(?![A-Za-z0-9²³]|/(?![0-9]{2,4}M(?![A-Za-z0-9])|[\u4e00-\u9fff])|(?<=M)(?:胶|口罩|公司))"
        )),
        ("range", re.compile(
            r"[0-9]{1,3}(?:\.[0-9]{1,4})?\s?[至到]\s?[0-9]{1,3}(?:\.[0-9]{1,4})?(?![0-9A-Za-z]|[-/.:,][0-9])"
        )),
        ("range", re.compile(rf"(?=[0-9][0-9,.]{{0,24}}{TO}[0-9]){NUMBER}{TO}{NUMBER}(?={WRITTEN})")),
        ("floor", re.compile("[1-9][0-9]?F(?:-(?=[0-9A-Z])|(?![A-Za-z0-9-]))")),
        ("ampere", re.compile("[0-9]{1,4}A(?![A-Za-z0-9-])")),
        ("clothing", re.compile("1[0-9]{2}/[0-9]{2,3}[ABCY](?![A-Za-z0-9])")),
        ("version", re.compile(r"[vV][0-9]{1,6}(?:\.[0-9]{1,6}){0,6}(?![0-9A-Za-z-])")),
        ("keys", re.compile("[0-9]{1,2}#(?=[0-9])")),
        ("hexadecimal", re.compile("0[xX][0-9A-Fa-f]{2,16}(?![0-9A-Za-z])")),
        ("tyre", re.compile(r"[1-3][0-9]{2}/[2-9][05]\s?Z?R[12][0-9](?:\s[0-9]{2,3}[A-Z])?(?![0-9A-Za-z])")),
        ("codec", re.compile(r"[A-Z]\.[0-9]{3,4}(?![0-9A-Za-z.])")),
        ("business", re.compile("[BCPODGM]2[BCPODGEM](?![A-Za-z0-9])")),
        ("trading_day", re.compile("T-[0-9](?=[日天交个])")),
        ("times", re.compile(r"(?<=[\u4e00-\u9fff）)])x[0-9]{1,2}(?![0-9A-Za-z])")),
        ("span", re.compile(r"(?:[0-9]{1,2}[A-Z]-[0-9]{1,2}[A-Z]|[A-Z][0-9]{1,3}-[A-Z][0-9]{1,3})(?![A-Za-z0-9])")),
    )),
)  # fmt: skip
