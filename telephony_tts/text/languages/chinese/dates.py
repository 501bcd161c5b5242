"""Mandarin dates, times of day, years and lengths of time."""

from __future__ import annotations

import re

from telephony_tts.text.languages.chinese import numbers as zh
from telephony_tts.text.languages.chinese.evidence import DATED
from telephony_tts.text.languages.chinese.money import TO
from telephony_tts.text.patterns import FRACTION_DENOMINATORS
from telephony_tts.text.reader import Shape

_END = r"(?![0-9A-Za-z]|[-/.][0-9])"
_MERIDIEM = r"(?:[aApP]\.[mM]\.|[aApP]\.?[mM](?![A-Za-z]))"
_AFTER_CLOCK = re.compile(rf"\s?(?P<meridiem>{_MERIDIEM})|Z|\.[0-9]+|分(?![钟之])")
_DAY_PART = re.compile(r"(?:上午|下午|晚上|早上|凌晨|中午|傍晚|今晚|明晚|当晚|明早|今早|清晨|午后|夜里)\s?$")
_WEEKDAY = re.compile("(?:周|星期|礼拜)[一二三四五六日、]{0,6}(?<=[一二三四五六])$")
"""星期三十点 would be heard as thirty o'clock."""
_MINUTES_BEFORE = re.compile(r"(?:通话|录音|留言|倒计时)(?:时长|时间|持续)?[为是约了:：\s]{0,3}$")
_DATES_BEFORE = re.compile(
    r"(?:活动|优惠|促销|放假|假期|报名|施工|展览|停[水电气])[^，。；0-9价幅率折度]{0,6}[:：]?\s?$"
)
_DATED = re.compile(rf"{DATED.pattern}|效期[至到为是:：]?\s?$")
_NUMBERED = re.compile("号[线口门]|号?[楼栋幢]|单元|个|名额")
"""What of 2/3号口 and 3/15个 is numbered or counted, so that it is no day."""
_PLACED = re.compile(r"(?:床位?号?|[货书]架|[库工座车]位|编号|[房桌柜箱]号|码)[为是在:：]?\s?$")
"""What is numbered with dashes: bed 12-03."""
_ENDS_DAY = re.compile("[日号前起]|之前|[到过]期|失效|截止|送达")
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PARTS = (("d", "天"), ("h", "小时"), ("m", "分"), ("s", "秒"))
_LETTERS_OF_TIME = re.compile(r"([0-9]{1,3})\s?(d|h|m|s)")

_MONTH, _DAY = "(?:1[0-2]|0?[1-9])", "(?:3[01]|[12][0-9]|0?[1-9])"
_TWO_DIGITS = "(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
FORMS = (
    ("duration_letters", re.compile(
        r"(?=[0-9]{1,3}\s?[dhm])(?:[0-9]{1,3}\s?d)?(?:\s?[0-9]{1,3}\s?(?:hrs?|h))?(?:\s?[0-9]{1,3}\s?(?:mins?|m))?"
        r"(?:\s?[0-9]{1,2}\s?(?:secs?|s))?(?![A-Za-z0-9])"
    )),
    ("pace", re.compile(r"[0-9]{1,3}['′’][0-9]{1,2}(?:['’]{2}|[\"″”])")),
    ("months", re.compile(rf"(?:19|20)[0-9]{{2}}\.{_MONTH}{TO}(?:19|20)[0-9]{{2}}\.{_MONTH}月?(?![0-9.])")),
    ("months", re.compile(rf"(?:19|20)[0-9]{{2}}\.{_MONTH}{TO}{_MONTH}(?=月|账单|[期的])月?")),
    ("days", re.compile(rf"(?:19|20)[0-9]{{2}}\.{_MONTH}\.{_DAY}{TO}{_MONTH}\.{_DAY}(?![0-9.])")),
    ("timestamp", re.compile(r"[12][0-9]{3}-[01]?[0-9]-[0-3]?[0-9]T(?=[0-9]{2}:)")),
    ("year_month", re.compile(
        rf"(?:19|20)[0-9]{{2}}(?:[-/.](?:0[1-9]|1[0-2])|/[1-9])月?{_END}|(?:0?[1-9]|1[0-2])/20[0-9]{{2}}{_END}"
    )),
    ("dot_dates", re.compile(
        rf"(?:1[0-2]|[1-9])\.{_DAY}{TO}(?:1[0-2]|[1-9])\.{_DAY}"
        r"(?![0-9.%]|\s?(?:个?小时|个?月|分|秒|天|年|周|倍|元|米|折|万|公里|[A-Za-z]))"
    )),
    ("days", re.compile(rf"{_TWO_DIGITS}{TO}{_TWO_DIGITS}(?![0-9A-Za-z-])")),
    ("month_day", re.compile(
        rf"{_MONTH}\.{_DAY}(?=[日号]|大促|促销|购物节|狂欢|晚会)|(?:0[1-9]-{_DAY}|1[0-2]-0[1-9])(?=日|号|{_END})"
        rf"|{_MONTH}-{_DAY}(?=\s[0-9]{{1,2}}:[0-9]{{2}})"
        r"|1[0-2]-(?:[12][0-9]|3[01])(?=送达|签收|到期|截止|发货|到货|入住|离店|前(?!后))"
    )),
    ("years", re.compile(
        rf"[12][0-9]{{3}}年?(?:{TO}|/)(?:[12][0-9]{{3}}|[0-9]{{2}}(?=[学财赛]))(?=年|学年|财年|赛季)"
    )),
    ("year", re.compile(
        r"[12][0-9]{3}(?=年|财年|年度|学年|款|届|级|版|赛季|春|秋|元旦|新年|Q[1-4]|〕)|(?<![0-9.])[0-9][05](?=后(?![天来面续期半]))"
    )),
    ("short_year", re.compile(
        "(?<![0-9.])[0-9]{2}(?=年(?![代后前来内间期多以之的半]|级|历史|时间|寿|产权|期限|质保|工龄))"
    )),
    ("padded", re.compile("(?<![0-9.:：/-])0[1-9](?=[月日]|[时点](?!间))")),
    ("minute", re.compile("(?<=[点时])0[0-9](?![0-9]|[:：][0-9])")),
    ("hour", re.compile(rf"(?:1[0-2]|0?[1-9])\s?{_MERIDIEM}")),
)  # fmt: skip


def _two(number: int) -> str:
    """A minute or second: 05 -> 零五."""
    return ("零" if number < 10 else "") + zh.cardinal(number)


def _day(year: str, month: str, day: str) -> str | None:
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    said = f"{zh.cardinal(int(month))}月{zh.cardinal(int(day))}日"
    return f"{zh.digits(year)}年{said}" if year else said


def _take(shape: Shape, words: str) -> None:
    """Let the shape take the one character behind it, if it is one of `words`."""
    shape.end += bool(shape.right) and shape.right[0] in words


def say_date(shape: Shape) -> str | None:
    """Year, month and perhaps day; or "12/31/2024", "31/12/2024"."""
    groups = shape.groups
    if len(groups) == 2:
        return say_year_month(shape)
    if len(groups[0]) <= 2 and len(groups[2]) == 4:
        month, day, year = groups
        groups = [year, day, month] if int(month) > 12 else [year, month, day]
    said = _day(*groups) if len(groups[0]) in (2, 4) else None
    if said:
        _take(shape, "日号")
    return said


def say_year_month(shape: Shape) -> str | None:
    """ "2008-08", "05/2027"."""
    year, month = sorted(shape.groups, key=len, reverse=True)
    if not 1 <= int(month) <= 12:
        return None
    _take(shape, "月")
    return f"{zh.digits(year)}年{zh.cardinal(int(month))}月"


def say_month_day(shape: Shape) -> str | None:
    """ "12/31"; of 5/5 a day only where one is expected."""
    month, day = shape.groups
    is_placed = "-" in shape.written and _PLACED.search(shape.left) and not _ENDS_DAY.match(shape.right)
    if is_placed or _NUMBERED.match(shape.right):
        return None
    if month == day and "/" in shape.written and int(day) in FRACTION_DENOMINATORS and not _DATED.search(shape.left):
        return None
    said = _day("", month, day)
    if said and shape.right[:1] in ("日", "号"):
        return said[:-1]
    return said


def say_expiry(shape: Shape) -> str | None:
    """ "12/26" of a card, which ends in a year from 2020 on."""
    month, year = shape.groups
    return f"{zh.digits('20' + year)}年{zh.cardinal(int(month))}月" if int(year) >= 20 else None


def say_months(shape: Shape) -> str:
    """ "2026.1-2026.6"."""
    year, month, *last_year, last_month = shape.groups
    first = f"{zh.digits(year)}年{zh.cardinal(int(month))}月"
    return f"{first}到{f'{zh.digits(last_year[0])}年' if last_year else ''}{zh.cardinal(int(last_month))}月"


def say_days(shape: Shape) -> str:
    """ "2026.1.1-6.30", "12-01至12-20"."""
    *year, first_month, first_day, month, day = shape.groups
    return f"{_day(''.join(year), first_month, first_day)}到{_day('', month, day)}"


def say_dot_dates(shape: Shape) -> str | None:
    """ "活动时间：11.11-11.20"."""
    days = [(int(month), int(day)) for month, day in (shape.groups[:2], shape.groups[2:])]
    is_dated = _DATES_BEFORE.search(shape.left) or re.match("期间|之间|有效|活动|放假|使用|进行|举[行办]", shape.right)
    if not is_dated or any(day > _DAYS_OF_MONTH[month - 1] for month, day in days):
        return None
    return say_days(shape)


def say_short_year(shape: Shape) -> str | None:
    """ "98年", "08年": two digits that are a year and not a length of time."""
    number = shape.groups[0]
    is_year = number[0] == "0" or int(number) >= 60
    return zh.digits(number) if is_year or re.match("年(?:[0-9]{1,2}月|[底初末春夏秋冬中])", shape.right) else None


def say_padded(shape: Shape) -> str:
    """ "03月05日09时": a zero that only fills the field is not said."""
    number = shape.written[1]
    return "两" if number == "2" and shape.right.startswith("点") else zh.number(number)


def say_minute(shape: Shape) -> str:
    """ "8点05分": the minute's leading zero is said once."""
    return _two(int(shape.written)) if int(shape.written) else "零"


def say_clock(shape: Shape) -> str | None:
    """ "2:05", "3:30pm", and of a call "5:32" as minutes and seconds."""
    if len(shape.groups) == 2 and _MINUTES_BEFORE.search(shape.left):
        return say_duration(shape)
    hour, minute, second = (int(group) for group in [*shape.groups, "0", "0"][:3])
    if hour > 24 or minute > 59 or second > 59:
        return None
    behind = _AFTER_CLOCK.match(shape.right)
    meridiem = (behind["meridiem"] if behind else "") or ""
    shape.end += behind.end() if behind else 0
    if meridiem[:1] in ("a", "A") and hour == 12:
        hour = 0
    said = ("两" if hour == 2 else zh.cardinal(hour)) + "点"
    if meridiem and not _DAY_PART.search(shape.left):
        is_morning = meridiem[0] in "aA"
        part = "凌晨" if hour < 5 else "上午"
        said = (part if is_morning else "中午" if hour == 12 else "下午" if hour < 6 else "晚上") + said
    if minute or second:
        said += (_two(minute) if minute else "零") + "分"
    if second:
        said += _two(second) + "秒"
    return f"，{said}" if hour >= 10 and _WEEKDAY.search(shape.left) else said


def say_hour(shape: Shape) -> str | None:
    """ "3pm" """
    shape.end = shape.start + len(shape.groups[0])
    shape.right = shape.text[shape.end : shape.end + 6]
    return say_clock(shape)


def say_duration(shape: Shape) -> str:
    """Hours, minutes and seconds in the form of a clock: "00:05:32"."""
    return _parts(dict(zip("smh", reversed(shape.groups), strict=False)))


def say_duration_letters(shape: Shape) -> str | None:
    """ "2h35m": with one part it is an amount with its unit."""
    parts = {unit: number for number, unit in _LETTERS_OF_TIME.findall(shape.written)}
    return _parts(parts) if len(parts) > 1 else None


def _parts(numbers: dict[str, str]) -> str:
    parts = [(numbers[key].lstrip("0"), name) for key, name in _PARTS if key in numbers]
    said = "".join(zh.quantity(number) + name for number, name in parts if number) or "零秒"
    return said + "钟" if said.endswith("分") else said
