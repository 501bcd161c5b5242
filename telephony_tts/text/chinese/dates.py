"""Dates, times of day and years in Mandarin."""

from __future__ import annotations

import re

from telephony_tts.text.chinese import numbers as zh
from telephony_tts.text.patterns import CLOCK_DURATION, DURATION, END_OF_DATE, FRACTION_DENOMINATORS
from telephony_tts.text.scanner import Rule, after, before

_MERIDIEM = r"(?:[aApP]\.[mM]\.|[aApP]\.?[mM](?![A-Za-z]))"
_END = r"(?![0-9A-Za-z]|[-/.][0-9])"
_TO = r"\s?(?:-|–|—|~|至|到)\s?"
_DAY_PART = re.compile(r"(?:上午|下午|晚上|早上|凌晨|中午|傍晚|今晚|明晚|当晚|明早|今早|清晨|午后|夜里)\s?$")


def _say_day(year: str, month: int, day: int) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    said = f"{zh.number(str(month))}月{zh.number(str(day))}日"
    return f"{zh.digits(year)}年{said}" if year else said


def _say_iso(match: re.Match[str]) -> str | None:
    return _say_day(match["year"], int(match["month"]), int(match["day"]))


def _say_year_month(match: re.Match[str]) -> str:
    return f"{zh.digits(match['year'])}年{zh.cardinal(int(match['month'] or match['short']))}月"


def _say_day_first(match: re.Match[str]) -> str | None:
    """ "12/31/2024" or "31/12/2024"."""
    first, second = int(match["first"]), int(match["second"])
    if first > 12:
        first, second = second, first
    return _say_day(match["year"], first, second)


_DATED = re.compile(r"(?:日期|时间|截至|截止|于|在|自|从|至|到|期|今天|明天|昨天|周[一二三四五六日天])[为是:：]?\s?$")


def _say_month_slash_day(match: re.Match[str]) -> str | None:
    """ "12/31" is a day; "1/5" is a fraction unless a date is expected there."""
    month, day = int(match["month"]), int(match["day"])
    if day >= 20 and 1 <= month <= 12 and re.search(r"有效期[为是至到:：]?\s?$", before(match, 6)):
        return f"{zh.digits(str(2000 + day))}年{zh.cardinal(month)}月"
    is_dated = match["month"][0] == "0" or _DATED.search(before(match, 6))
    if month < day and day in FRACTION_DENOMINATORS and not is_dated:
        return None
    if after(match, 1) in ("以", "的") and month < day:
        return None
    if month == day and day in FRACTION_DENOMINATORS and not is_dated:
        return None
    return _say_day("", month, day)


def _say_month_dot_day(match: re.Match[str]) -> str:
    """ "12.25号"."""
    return f"{zh.cardinal(int(match['month']))}月{zh.cardinal(int(match['day']))}"


def _say_month_dash_day(match: re.Match[str]) -> str | None:
    """ "08-15": it is a day only with a leading zero, else a range."""
    if "0" not in (match["month"][0], match["day"][0]):
        return None
    return _say_day("", int(match["month"]), int(match["day"]))


def _say_year(match: re.Match[str]) -> str:
    return zh.digits(match.group())


def _say_year_range(match: re.Match[str]) -> str:
    return f"{zh.digits(match['first'])}到{zh.digits(match['last'])}"


def _say_padded(match: re.Match[str]) -> str:
    """ "03月05日09时": a zero that only fills the field is not said."""
    number = match.group()[1]
    return "两" if number == "2" and after(match, 1) == "点" else zh.number(number)


def _say_short_year(match: re.Match[str]) -> str | None:
    """ "98年", "08年": two digits that are a year and not a length of time."""
    number = match.group()
    if number[0] == "0" or int(number) >= 60 or re.match("年(?:[0-9]{1,2}月|[底初末春夏秋冬中])", after(match, 4)):
        return zh.digits(number)
    return None


def _say_clock(hour: int, minute: int, second: int | None, meridiem: str, left: str) -> str:
    part = ""
    if meridiem and not _DAY_PART.search(left):
        if meridiem[0] in "aA":
            part = "凌晨" if hour < 5 else "上午"
        else:
            part = "中午" if hour == 12 else "下午" if hour < 6 else "晚上"
    said = part + ("两" if hour == 2 else zh.cardinal(hour)) + "点"
    if minute or second:
        said += ("零" if minute < 10 and minute else "") + zh.cardinal(minute) + "分"
    if second:
        said += ("零" if second < 10 else "") + zh.cardinal(second) + "秒"
    return said


SCORED = re.compile(r"(?:比分|比例|配比|赔率|比率|比值|[胜负]|战平|领先|落后|战胜|击败|大比分)[^0-9，。,;；]{0,8}$")


def _say_time(match: re.Match[str]) -> str | None:
    left = before(match, 14)
    if not match["meridiem"] and SCORED.search(left):
        return None
    second = match["second"]
    said = _say_clock(
        int(match["hour"]), int(match["minute"]), int(second) if second else None, match["meridiem"] or "", left
    )
    return f"，{said}" if int(match["hour"]) >= 10 and _WEEKDAY.search(left) else said


_WEEKDAY = re.compile("(?:周|星期|礼拜)[一二三四五六]$")
"""星期三十点 would be heard as thirty o'clock."""
_DATES_BEFORE = re.compile("(?:活动|优惠|促销|放假|报名)(?:时间|日期|期间|期)?[为是:：]{0,2}$")
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _say_dot_dates(match: re.Match[str]) -> str | None:
    """ "活动时间：11.11-11.20"."""
    dates = [(int(match[f"month_{i}"]), int(match[f"day_{i}"])) for i in "12"]
    if not _DATES_BEFORE.search(before(match, 8)) or any(day > _DAYS_OF_MONTH[month - 1] for month, day in dates):
        return None
    return "到".join(f"{zh.cardinal(month)}月{zh.cardinal(day)}日" for month, day in dates)


_DURATION_BEFORE = re.compile(r"(?:时长|用时|耗时|历时|倒计时|持续|剩余)(?:时间)?[为是约了:：\s]{0,3}$")


def _say_duration(match: re.Match[str]) -> str | None:
    """ "2h35m"."""
    parts = [(match[key].lstrip("0"), name) for key, name in _PARTS if match[key]]
    if len(parts) < 2:
        return None
    said = "".join(zh.quantity(n) + name for n, name in parts if n) or "零秒"
    return said + "钟" if said.endswith("分") else said


def _say_clock_duration(match: re.Match[str]) -> str | None:
    """ "通话时长00:05:32"; elsewhere it is a time of day. "5:32" are minutes and seconds only if it is of a call."""
    left = before(match, 14)
    if not _DURATION_BEFORE.search(left) or not (match["h"] or _MINUTES_BEFORE.search(left)):
        return None
    return _say_duration(match)


_MINUTES_BEFORE = re.compile("通话|录音|留言|倒计时")
_PARTS = (("d", "天"), ("h", "小时"), ("m", "分"), ("s", "秒"))


def _say_hour(match: re.Match[str]) -> str:
    return _say_clock(int(match["hour"]), 0, None, match["meridiem"], before(match, 6))


def _say_clock_minute(match: re.Match[str]) -> str:
    """ "8点05分": the minute's leading zero is said once."""
    minute = int(match.group())
    return ("零" if 0 < minute < 10 else "") + zh.cardinal(minute) if minute else "零"


def _say_months(match: re.Match[str]) -> str:
    """ "2026.1-2026.6"."""
    return "到".join(f"{zh.digits(match[f'year_{i}'])}年{zh.cardinal(int(match[f'month_{i}']))}月" for i in "12")


DATE_RULES: tuple[Rule, ...] = (
    (
        re.compile(
            rf"(?P<year_1>(?:19|20)[0-9]{{2}})\.(?P<month_1>1[0-2]|0?[1-9]){_TO}"
            rf"(?P<year_2>(?:19|20)[0-9]{{2}})\.(?P<month_2>1[0-2]|0?[1-9])月?(?![0-9.])"
        ),
        _say_months,
    ),
    (
        re.compile(
            r"(?P<year>[12][0-9]{3})(?P<sep>[-/.])(?P<month>[01]?[0-9])(?P=sep)(?P<day>[0-3]?[0-9])"
            rf"(?:日|号|T(?=[0-9]{{2}}:)|{END_OF_DATE})"
        ),
        _say_iso,
    ),
    (
        re.compile(rf"(?P<first>[0-3]?[0-9])/(?P<second>[0-3]?[0-9])/(?P<year>(?:19|20)[0-9]{{2}}){END_OF_DATE}"),
        _say_day_first,
    ),
    (
        re.compile(rf"(?P<year>(?:19|20)[0-9]{{2}})(?:[-/.](?P<month>0[1-9]|1[0-2])|/(?P<short>[1-9]))月?{_END}"),
        _say_year_month,
    ),
    (re.compile(rf"(?P<month>0?[1-9]|1[0-2])/(?P<short>(?!))?(?P<year>20[0-9]{{2}}){_END}"), _say_year_month),
    (re.compile(r"(?P<month>1[0-2]|0?[1-9])\.(?P<day>3[01]|[12][0-9]|0?[1-9])(?=[日号])"), _say_month_dot_day),
    (
        re.compile(
            rf"(?P<month_1>1[0-2]|[1-9])\.(?P<day_1>3[01]|[12][0-9]|0?[1-9]){_TO}"
            r"(?P<month_2>1[0-2]|[1-9])\.(?P<day_2>3[01]|[12][0-9]|0?[1-9])"
            r"(?![0-9.%]|\s?(?:个?小时|个?月|分|秒|天|年|周|倍|元|米|折|万|公里|[A-Za-z]))"
        ),
        _say_dot_dates,
    ),
    (
        re.compile(
            rf"(?P<first>[12][0-9]{{3}})年?(?:{_TO}|/)(?P<last>[12][0-9]{{3}}|[0-9]{{2}}(?=[学财赛]))(?=年|学年|财年|赛季)"
        ),
        _say_year_range,
    ),
    (re.compile(r"[12][0-9]{3}(?=年|财年|年度|学年|款|届|级|版|赛季|春|秋|元旦|新年|Q[1-4]|〕)"), _say_year),
    (re.compile(r"(?<![0-9.])[0-9]{2}(?=年(?![代后前来内间期多以之的半]|级|历史|时间|寿))"), _say_short_year),
    (re.compile(r"(?<![0-9.:：/-])0[1-9](?=[月日]|[时点](?!间))"), _say_padded),
    (re.compile(r"(?<![0-9.])[0-9][05](?=后(?![天来面续期半]))"), _say_year),
    (re.compile(r"(?P<month>1[0-2]|0?[1-9])/(?P<day>[12][0-9]|3[01]|0?[1-9])(?![0-9A-Za-z/])"), _say_month_slash_day),
)

MONTH_DASH_DAY: Rule = (
    re.compile(rf"(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12][0-9]|3[01])(?:日|号)?{_END}"),
    _say_month_dash_day,
)

TIME_RULES: tuple[Rule, ...] = (
    (DURATION, _say_duration),
    (CLOCK_DURATION, _say_clock_duration),
    (
        re.compile(
            r"(?P<hour>[01]?[0-9]|2[0-4])[:：](?P<minute>[0-5][0-9])(?:[:：](?P<second>[0-5][0-9])(?:\.[0-9]+)?)?"
            rf"(?![0-9]|[:：][0-9])(?:\s?(?P<meridiem>{_MERIDIEM})|Z|分(?![钟之]))?(?![A-Za-z])"
        ),
        _say_time,
    ),
    (re.compile(rf"(?P<hour>1[0-2]|0?[1-9])\s?(?P<meridiem>{_MERIDIEM})"), _say_hour),
    (re.compile(r"(?<=[点时])0[0-9](?=分|$|[^0-9])"), _say_clock_minute),
)
