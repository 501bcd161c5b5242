"""Dates, times of day, years and decades in English. Numeric dates have the month first if that is possible."""

from __future__ import annotations

import re

from telephony_tts.text.english import numbers as en
from telephony_tts.text.english.codes import context
from telephony_tts.text.patterns import CLOCK_DURATION, DURATION, END_OF_DATE, FRACTION_DENOMINATORS
from telephony_tts.text.scanner import Rule, after, before

_MONTH_NAMES = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?"
)
MONTH = rf"(?:{_MONTH_NAMES})(?![a-z])\.?"
_SHORT_MONTH = "(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)"
_INDEX = {name[:3].lower(): i for i, name in enumerate(en.MONTHS)}
_DAY = r"(?:0?[1-9]|[12][0-9]|3[01])(?![0-9])"
_SUFFIX = r"(?:st|nd|rd|th)(?![a-z])"
_YEAR = r"[12][0-9]{3}(?![0-9]|[.,:][0-9])"
_MERIDIEM = r"(?:[ap]\.m\.|[ap]\.?m(?![a-z]))"


def _month(written: str) -> str:
    return en.MONTHS[_INDEX[written[:3].lower()]]


def _full_year(written: str) -> str:
    """ "24" -> the year 2024, "98" -> 1998."""
    value = int(written)
    if len(written) == 2:
        value += 2000 if value < 70 else 1900
    return en.year(value)


def _say_date(month: int, day: int, year: str = "") -> str:
    said = f"{en.MONTHS[month - 1]} {en.ordinal(day)}"
    return f"{said}, {_full_year(year)}" if year else said


def _say_month_day(match: re.Match[str]) -> str | None:
    month = match["month"]
    if month.lower() in ("may", "mar") and month[0] == "m" and not (match["suffix"] or match["year"]):
        return None
    said = f"{_month(month)} {en.ordinal(int(match['day']))}"
    if match["last"]:
        said += f" to {en.ordinal(int(match['last']))}"
    return f"{said}, {_full_year(match['year'])}" if match["year"] else said


def _say_month_year(match: re.Match[str]) -> str:
    return f"{_month(match['month'])} {en.year(int(match['year']))}"


def _say_months(match: re.Match[str]) -> str:
    """ "Jan-Mar"."""
    return f"{_month(match['first'])} to {_month(match['last'])}"


def _say_month_name(match: re.Match[str]) -> str | None:
    """ "Sept." alone: only an abbreviation with its full stop, and only before a lower-case word or a digit."""
    return (
        _month(match["month"]) if re.match(r"\s[a-z0-9]", after(match, 2)) and match["month"].lower() != "may" else None
    )


def _say_day_month(match: re.Match[str]) -> str | None:
    if match["month"] == "may" and not match["suffix"]:
        return None
    month, day = _month(match["month"]), en.ordinal(int(match["day"]))
    if match["last"]:
        day += f" to {'the ' if not match['suffix'] else ''}{en.ordinal(int(match['last']))}"
    article = "" if match["suffix"] or re.search(r"\bthe\s$", before(match, 5), re.I) else "the "
    said = f"{article}{day} of {month}"
    return f"{said}, {_full_year(match['year'])}" if match["year"] else said


def _say_iso(match: re.Match[str]) -> str | None:
    month, day = int(match["month"]), int(match["day"])
    return _say_date(month, day, match["year"]) if 1 <= month <= 12 and 1 <= day <= 31 else None


def _say_numeric(match: re.Match[str]) -> str | None:
    first, second, year = int(match["first"]), int(match["second"]), match["year"]
    if match["dot"] and (len(year) == 2 or re.search(r"(?:version|release|build|v)\s?$", before(match, 9), re.I)):
        return None
    if match["sep"] == "-" and context(before(match, 44), "") == "strong":
        return None
    if match["dot"] or first > 12:
        first, second = second, first
    if first > 12:
        first, second = second, first
    return _say_date(first, second, year) if 1 <= first <= 12 and 1 <= second <= 31 else None


_DATED = re.compile(
    r"\b(?:on|by|due|until|til|till|before|after|dated|since|expires?|expiring|from|date|as of|effective|scheduled for|"
    r"arrives?|delivery|born|dob|through|thru|to|(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}|day)[,.:]?\s(?:the\s)?$",
    re.I,
)
_PART = re.compile(r"\s?(?:of\b|cup|inch|in\b|mile|tsp|tbsp|teaspoon|tablespoon|pound|lb|hour|price|full|off\b)", re.I)
_EXPIRY = re.compile(
    r"\b(?:exp|expiry|expiration|valid thru|good thru|card expires)\.?(?: date)?:?(?: is| of)?\s$", re.I
)


def _say_month_slash_day(match: re.Match[str]) -> str | None:
    """ "12/31" is a day; "1/4" is a fraction unless a date is expected there."""
    first, second = int(match["first"]), int(match["second"])
    if (first, second) == (24, 7) or re.match(r"\s?=", after(match, 2)):
        return None
    if second >= 20 and 1 <= first <= 12 and _EXPIRY.search(before(match, 18)):
        return f"{en.MONTHS[first - 1]} {_full_year(str(second))}"
    dated = _DATED.search(before(match, 20)) is not None
    if not dated and (_PART.match(after(match, 14)) or (first < second and second in FRACTION_DENOMINATORS)):
        return None
    if 1 <= first <= 12 and 1 <= second <= 31:
        return _say_date(first, second)
    return _say_date(second, first) if 1 <= second <= 12 and 1 <= first <= 31 else None


def _say_year_month(match: re.Match[str]) -> str:
    return f"{en.MONTHS[int(match['month']) - 1]} {en.year(int(match['year']))}"


def _meridiem(written: str) -> str:
    """ "a.m." as capitals: lower-case "am" would be read as the verb."""
    return "AM" if written[0] in "aA" else "PM"


def _say_clock(hour: int, minute: int, second: str, meridiem: str) -> str:
    if not meridiem and hour == 0:
        hour, meridiem = 12, "AM"
    said = en.cardinal(hour)
    if minute:
        said += f" oh {en.cardinal(minute)}" if minute < 10 else f" {en.cardinal(minute)}"
    elif not meridiem:
        said += " o'clock" if hour <= 12 else " hundred"
    if second.strip("0"):
        said += f" and {en.cardinal(int(second))} second{'' if int(second) == 1 else 's'}"
    return f"{said} {meridiem}".strip()


def _stop(match: re.Match[str]) -> str:
    """The full stop of "p.m." also ends the sentence if nothing or a capital follows."""
    if match.group().endswith(".") and re.match(
        r"\s*(?:$|(?!(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Pac|Eas|Cen|Mou)[a-z])[A-Z](?![A-Z]))", after(match, 6)
    ):
        return "."
    return ""


def _say_time(match: re.Match[str]) -> str | None:
    minute = match["minute"]
    meridiem = _meridiem(match["meridiem"]) if match["meridiem"] else ""
    if minute is None and not meridiem:
        return None
    hour = int(match["hour"])
    if meridiem and hour > 12:
        meridiem = ""
    return _say_clock(hour, int(minute or "0"), match["second"] or "", meridiem) + _stop(match)


_UNTIL = r"\s?(?:-|–|—|~)\s?"


def _say_time_range(match: re.Match[str]) -> str:
    """ "9-5pm", "9-11:30 am": only the second number shows that the first is a time."""
    last = _say_clock(int(match["hour"]), int(match["minute"] or "0"), "", _meridiem(match["meridiem"]))
    first = en.cardinal(int(match["first"]))
    if match["first_minute"]:
        first = _say_clock(int(match["first"]), int(match["first_minute"]), "", " ").strip()
    joint = "and" if re.search(r"\bbetween\s$", before(match, 9), re.I) else "to"
    return f"{first} {joint} {last}{_stop(match)}"


_DURATION_BEFORE = re.compile(
    r"\b(?:duration|lasted|lasts|length|elapsed|remaining|runtime|took|(?:wait|hold|call|talk|run|total)\s?time)\b"
    r"[:\s]{0,3}(?:(?:is|was|of|for|about|around|approximately|time)[:\s]{1,3}){0,2}$",
    re.I,
)


def _say_duration(match: re.Match[str]) -> str | None:
    """ "2h 35m"."""
    parts = [(int(match[key]), name) for key, name in _PARTS if match[key]]
    if len(parts) < 2:
        return None
    said = [f"{en.cardinal(n)} {name}{'' if n == 1 else 's'}" for n, name in parts if n]
    return " ".join(said) if said else "zero seconds"


def _say_clock_duration(match: re.Match[str]) -> str | None:
    """ "wait time: 00:05:30"; elsewhere it is a time of day. "5:32" are minutes and seconds only if it is of a call."""
    left = before(match, 40)
    if not _DURATION_BEFORE.search(left) or not (match["h"] or _MINUTES_BEFORE.search(left)):
        return None
    return _say_duration(match)


_MINUTES_BEFORE = re.compile(r"\b(?:call|talk|hold|wait|recording|voicemail)\b", re.I)
_PARTS = (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second"))
_DECADE_BEFORE = re.compile(r"(?:the|your|his|her|their|my|our|early|late|mid|low|upper|high|and)[\s-]$", re.I)


def _say_decade(match: re.Match[str]) -> str | None:
    number = int(match["number"])
    if match.group() == match["number"] + "s" and number < 100 and not _DECADE_BEFORE.search(before(match, 7)):
        return None  # "30s" is a length of time
    if number % 10 or (len(match["number"]) == 2 and number < 20):
        return None
    return en.decade(number)


_YEAR_BEFORE = re.compile(
    r"(?:\b(?:in|since|year|during|until|till|til|of|before|after|from|early|late|mid|circa|fiscal|calendar|model year|"
    r"spring|summer|autumn|fall|winter|q[1-4]|h[12]|quarter|class|copyright|by|anno|late-|early-|mid-)|\b(?:19|20)[0-9]{2}\s?(?:to|and|or|"
    rf"through|-|–))\s?$|\b{MONTH},?\s$|©\s?$",
    re.I,
)
_YEAR_AFTER = re.compile(r"\s(?:and|to|or|through)\s(?:19|20)[0-9]{2}(?![0-9])|\s(?:was|is|will|has|had)\b")
_COUNT_NOUN = re.compile(r"\s(?:(?!was\b|is\b|has\b)[a-z]+s\b|people|dollars|percent|of\b)")


def _say_year(match: re.Match[str]) -> str | None:
    """Four digits from 1500 to 2099 if a year is expected there and nothing is counted."""
    number = int(match.group())
    left = before(match, 24)
    if not 1500 <= number <= 2099 or _COUNT_NOUN.match(after(match, 10)):
        return None
    if _YEAR_BEFORE.search(left) or _YEAR_AFTER.match(after(match, 12)) or re.match("['’]s ", after(match, 3)):
        return en.year(number)
    if re.search(r"\b(?:the|your|our|a)\s$", left, re.I) and re.match(r"\s[A-Za-z]", after(match, 2)):
        return en.year(number)
    return None


def _say_years(match: re.Match[str]) -> str | None:
    """ "2010-2015", "2026/27"."""
    first, last = match["first"], match["last"]
    if len(last) == 2 and (int(last) != int(first) % 100 + 1 or context(before(match, 44), "")):
        return None
    return f"{en.year(int(first))} to {_full_year(last)}"


WORD_RULES: tuple[Rule, ...] = (
    (
        re.compile(
            rf"(?P<month>{MONTH})\s(?P<day>{_DAY})(?P<suffix>{_SUFFIX})?(?:\s?(?:-|–|to\s)\s?(?P<last>{_DAY})(?:{_SUFFIX})?)?"
            rf"(?:,?\s(?P<year>{_YEAR}))?(?![0-9A-Za-z]|[.:,/][0-9]|\s?[ap]\.?m)",
            re.I,
        ),
        _say_month_day,
    ),
    (
        re.compile(rf"(?<![-–])(?P<first>{_SHORT_MONTH})\.?[-–](?P<last>{_SHORT_MONTH})(?![A-Za-z–-]|\.?\s[0-3]?[0-9](?![0-9]))"),
        _say_months,
    ),
    (re.compile(rf"(?P<month>{MONTH}),?\s(?P<year>{_YEAR})(?![A-Za-z-])", re.I), _say_month_year),
    (re.compile(r"(?P<month>Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec)\."), _say_month_name),
)

TIME_RULES: tuple[Rule, ...] = (
    (DURATION, _say_duration),
    (CLOCK_DURATION, _say_clock_duration),
    (
        re.compile(
            rf"(?P<first>1[0-2]|0?[1-9])(?::(?P<first_minute>[0-5][0-9]))?{_UNTIL}"
            rf"(?P<hour>1[0-2]|0?[1-9])(?::(?P<minute>[0-5][0-9]))?\s?(?P<meridiem>{_MERIDIEM})",
            re.I,
        ),
        _say_time_range,
    ),
    (
        re.compile(
            rf"(?P<hour>1[0-2]|0?[1-9])\.(?P<minute>[0-5][0-9])(?P<second>(?!))?\s?(?P<meridiem>{_MERIDIEM})(?![A-Za-z])",
            re.I,
        ),
        _say_time,
    ),
    (
        re.compile(
            r"(?P<hour>[01]?[0-9]|2[0-4])(?::(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9])(?:\.[0-9]+)?)?)?"
            rf"(?![0-9]|:[0-9])(?:\s?(?P<meridiem>{_MERIDIEM})|(?:Z|\s?(?:hrs?|h)(?![A-Za-z])))?(?![A-Za-z])",
            re.I,
        ),
        _say_time,
    ),
)

DATE_RULES: tuple[Rule, ...] = (
    (
        re.compile(
            rf"(?P<day>{_DAY})(?P<suffix>{_SUFFIX})?(?:\s?(?:-|–|to\s)\s?(?P<last>{_DAY})(?:{_SUFFIX})?)?[\s-](?:of\s)?"
            rf"(?P<month>{MONTH})(?:(?:,?\s|-)(?P<year>{_YEAR}))?(?![A-Za-z])",
            re.I,
        ),
        _say_day_month,
    ),
    (
        re.compile(
            r"(?P<year>[12][0-9]{3})(?P<sep>[-/.])(?P<month>[01]?[0-9])(?P=sep)(?P<day>[0-3]?[0-9])"
            rf"(?:T(?=[0-9]{{2}}:)|{END_OF_DATE})"
        ),
        _say_iso,
    ),
    (
        re.compile(
            r"(?P<first>[0-3]?[0-9])(?:(?P<sep>[-/])|(?P<dot>\.))(?P<second>[0-3]?[0-9])(?:(?P=sep)|(?(dot)\.|(?!)))"
            rf"(?P<year>(?:19|20)[0-9]{{2}}|[0-9]{{2}}){END_OF_DATE}"
        ),
        _say_numeric,
    ),
    (re.compile(r"(?P<year>[12][0-9]{3})[-/](?P<month>0[1-9]|1[0-2])(?![0-9A-Za-z]|[-/.][0-9])"), _say_year_month),
    (
        re.compile(
            r"(?P<first>[12][0-9]{3})(?:\s?[-–]\s?(?=[0-9]{4})|[-–/])(?P<last>(?:19|20)[0-9]{2}|[0-9]{2})"
            r"(?![0-9A-Za-z]|[-/.][0-9])"
        ),
        _say_years,
    ),
    (re.compile(r"(?P<month>0?[1-9]|1[0-2])/(?P<year>20[0-9]{2})(?![0-9A-Za-z]|[-/.][0-9])"), _say_year_month),
    (re.compile(rf"(?P<first>[0-3]?[0-9])/(?P<second>[0-3]?[0-9]){END_OF_DATE}"), _say_month_slash_day),
    (re.compile(r"['’]?(?P<number>[1-9]0|1[0-9]{2}0|20[0-9]0)['’]?s(?![A-Za-z0-9])"), _say_decade),
    (re.compile(r"[12][0-9]{3}(?![0-9A-Za-z%°]|[-/.,:][0-9])"), _say_year),
)
