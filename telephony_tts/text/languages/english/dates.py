"""English dates, times of day, lengths of time, years and decades."""

from __future__ import annotations

import re
from functools import partial

from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import EVIDENCE, names_code
from telephony_tts.text.languages.english.money import is_adjective
from telephony_tts.text.reader import Say, Shape

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
_UNTIL = r"\s?(?:-|–|—|~|\bto\b)\s?"
_NAMES_OF_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WEEKDAYS = {name[:3].lower(): name for name in _NAMES_OF_DAYS}
WEEKDAY = r"(?:Mon|Tues?|Weds?|Thu(?:rs?)?|Fri|Sat|Sun)(?![A-Za-z])\.?"

MONTH_DAY = re.compile(
    rf"(?P<month>{MONTH})\s(?P<day>{_DAY})(?P<suffix>{_SUFFIX})?(?:\s?(?:-|–|to\s)\s?(?P<last>{_DAY})(?:{_SUFFIX})?)?"
    rf"(?:,?\s(?P<year>{_YEAR}))?(?![0-9A-Za-z]|[.:,/][0-9]|\s?[ap]\.?m)",
    re.IGNORECASE,
)
DAY_MONTH = re.compile(
    rf"(?P<day>{_DAY})(?P<suffix>{_SUFFIX})?(?:\s?(?:-|–|to\s)\s?(?P<last>{_DAY})(?:{_SUFFIX})?)?[\s-](?:of\s)?"
    rf"(?P<month>{MONTH})(?:(?:,?\s|-)(?P<year>{_YEAR}))?(?![A-Za-z])",
    re.IGNORECASE,
)
MONTHS_RANGE = re.compile(
    rf"(?<![-–])(?P<first>{_SHORT_MONTH})\.?[-–](?P<last>{_SHORT_MONTH})(?![A-Za-z–-]|\.?\s[0-3]?[0-9](?![0-9]))"
)
MONTH_YEAR = re.compile(
    rf"(?P<month>{MONTH}),?\s(?:(?P<year>{_YEAR})|['’](?P<short>[0-9]{{2}})(?![0-9]))(?![A-Za-z-])",
    re.IGNORECASE,
)
MONTH_ALONE = re.compile(r"(?P<month>Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)(?![A-Za-z–-])(?P<stop>\.)?")
_DAY_BEHIND_DASH = r"[12][0-9]{3}[-/.][01]?[0-9][-/.][0-3]?[0-9]|[0-3]?[0-9][/.][0-3]?[0-9](?:[/.](?:19|20)?[0-9]{2})?"
END_OF_DATE = rf"(?![0-9A-Za-z]|[/.][0-9]|-(?!(?:{_DAY_BEHIND_DASH})(?![0-9A-Za-z]))[0-9])"
"""After a date in digits. A dash may follow if another date comes after it: "12/05/2026-12/09/2026"."""
ISO = re.compile(
    r"(?P<year>[12][0-9]{3})(?:-[01]?[0-9]-|/[01]?[0-9]/|\.[01]?[0-9]\.)[0-3]?[0-9]"
    rf"(?:T(?=[0-9]{{2}}:)|{END_OF_DATE})"
)
NUMERIC = re.compile(
    rf"[0-3]?[0-9](?:-[0-3]?[0-9]-|/[0-3]?[0-9]/|\.[0-3]?[0-9]\.)(?P<year>(?:19|20)[0-9]{{2}}|[0-9]{{2}}){END_OF_DATE}"
)
DAYS_RANGE = re.compile(r"[0-3]?[0-9]/[0-3]?[0-9]\s?[-–]\s?[0-3]?[0-9]/[0-3]?[0-9](?![0-9/])")
MONTH_OF_YEAR = re.compile(
    r"(?:[12][0-9]{3}/(?:0[1-9]|1[0-2])|(?:0?[1-9]|1[0-2])/(?:19|20)[0-9]{2})(?![0-9A-Za-z]|[-/.][0-9])"
)
LENGTH = re.compile(
    r"(?=[0-9]{1,3}\s?(?:d|hrs?|h|mins?|m)\s?[0-9])(?:(?P<d>[0-9]{1,3})\s?d)?(?:\s?(?P<h>[0-9]{1,3})\s?(?:hrs?|h))?"
    r"(?:\s?(?P<m>[0-9]{1,3})\s?(?:mins?|m))?(?:\s?(?P<s>[0-9]{1,2})\s?(?:secs?|s))?(?![A-Za-z0-9])"
)
YEARS = re.compile(
    r"(?P<first>[12][0-9]{3})(?:\s?[-–]\s?(?=[0-9]{4})|[-–/])(?P<last>(?:19|20)[0-9]{2}|[0-9]{2})(?![0-9A-Za-z]|"
    r"[-/.][0-9])"
)
DECADE = re.compile(r"(?:['’]?(?:[1-9]0|1[0-9]{2}0|20[0-9]0)['’]?|(?<=nder-|over-|Over-)[1-9][0-9]?)s(?![A-Za-z0-9])")
TIME_RANGE = re.compile(
    rf"(?P<first>1[0-2]|0?[1-9])(?::(?P<first_minute>[0-5][0-9]))?{_UNTIL}"
    rf"(?P<hour>1[0-2]|0?[1-9])(?::(?P<minute>[0-5][0-9]))?\s?(?P<meridiem>{_MERIDIEM})",
    re.IGNORECASE,
)
TIME = re.compile(
    r"(?P<hour>[01]?[0-9]|2[0-4])(?:[:.](?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9])(?:\.[0-9]+)?)?)?"
    rf"(?:\s?(?P<meridiem>{_MERIDIEM})|(?P<short>[ap](?![A-Za-z]))|(?<=:[0-9]{{2}})(?:Z|\s?(?:hrs?|h))(?![A-Za-z])"
    r"|(?<=\.[0-9]{2})(?=\s(?:tonight|(?:this|in the) (?:morning|evening|afternoon)|o'clock)\b))"
    r"(?!(?!ish)[a-z])",
    re.IGNORECASE,
)
"""A time of day that more than its digits shows to be one."""
_ZONES = "IST|E[SD]T|P[SD]T|C[SD]T|AK[SD]T|GMT|UTC|A[EWC][SD]T|NZ[SD]T|CES?T|EES?T|JST|KST"
_ZONES_OF_TIMES = "[ECMP]T|M[SD]T|BST|WAT|EAT|CAT|GST|PKT|WIB|SGT|HKT|SAST"
ZONES = f"{_ZONES}|{_ZONES_OF_TIMES}"
ZONE = re.compile(
    rf"(?:GMT|UTC)[+-][0-9]{{1,2}}(?![0-9])|(?:{_ZONES})(?![A-Za-z0-9])"
    rf"|(?:(?<=:[0-9]{{2}} )|(?<=[0-9 ][apAP][mM] )|(?<=[ap][.]m[.] ))(?:{_ZONES_OF_TIMES})(?![A-Za-z0-9])"
)
HOURS = re.compile(r"(?:[01][0-9]|2[0-4])[0-5][0-9]\s?(?:hours|hrs)\b")


def _month(written: str) -> str:
    return en.MONTHS[_INDEX[written[:3].lower()]]


def full_year(written: str) -> str:
    """ "24" -> the year 2024, "98" -> 1998."""
    value = int(written)
    if len(written) == 2:
        value += 2000 if value < 70 else 1900
    return en.year(value)


def say_day(month: int, day: int, year: str = "", *, day_first: bool = False) -> str | None:
    """A day of a month, in the other order too if the first number cannot be what it should be; None without one."""
    if day_first:
        month, day = day, month
    if month > 12:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    name, ordinal = en.MONTHS[month - 1], en.ordinal(day)
    said = f"the {ordinal} of {name}" if day_first else f"{name} {ordinal}"
    return f"{said}, {full_year(year)}" if year else said


def say_month_day(shape: Shape) -> str | None:
    found = shape.found
    if found["month"] in ("may", "mar") and not (found["suffix"] or found["year"]):
        return None
    said = f"{_month(found['month'])} {en.ordinal(int(found['day']))}"
    if found["last"]:
        said += f" to {en.ordinal(int(found['last']))}"
    return f"{said}, {full_year(found['year'])}" if found["year"] else said


def say_day_month(shape: Shape) -> str | None:
    found = shape.found
    if found["month"] == "may" and not found["suffix"]:
        return None
    day = en.ordinal(int(found["day"]))
    if found["last"]:
        day += f" to {'the ' if not found['suffix'] else ''}{en.ordinal(int(found['last']))}"
    article = "" if re.search(r"\b(?:the|this|next|last)\s$", shape.left, re.IGNORECASE) else "the "
    said = f"{article}{day} of {_month(found['month'])}"
    return f"{said}, {full_year(found['year'])}" if found["year"] else said + stop(shape)


_NAMED_MONTH = re.compile(
    r"\b(?:in|for|of|by|until|till|since|from|through|next|last|this|late|early|mid|each|every|end)[\s-]$",
    re.IGNORECASE,
)
_OTHER_MONTH = re.compile(rf"\.?,?(?:\s(?:and|or|to|through|&)\s|[-–/&]|,\s){_SHORT_MONTH}(?![a-z])")


def say_month(shape: Shape) -> str | None:
    """ "Sept." or "Oct" alone. Jan and Mar may be names."""
    found = shape.found
    is_name = found["month"] in ("Jan", "Mar", "Jun", "Jul", "Dec")
    before_word = found["stop"] and re.match(r"\s[a-z0-9]", shape.right)
    named = _NAMED_MONTH.search(shape.left) or _OTHER_MONTH.match(shape.text, shape.start + 3)
    if is_name and not (before_word or named):
        return None
    return _month(found["month"]) + (stop(shape) if found["stop"] else "")


def stop(shape: Shape) -> str:
    """The full stop of an abbreviation also ends the sentence if nothing or a capital follows."""
    return "." if shape.written.endswith(".") and re.match(r"\s*(?:$|\s[A-Z])", shape.right) else ""


def say_weekday(shape: Shape) -> str | None:
    """ "Sat 9am", "Tue, Dec 1", "Mon & Wed"; the sun, and that she sat, are words."""
    written = shape.written
    named = _DAY_FOLLOWS.match(shape.right) or _DAY_PRECEDES.search(shape.left)
    if not named and (written.endswith(".") or shape.right[:1] in tuple(",;)")):
        named = _HOURS_PRECEDE.search(shape.left)
    if written[:3] in ("Sat", "Sun", "Mon", "Wed") and not named:
        return None
    return WEEKDAYS[written[:3].lower()] + stop(shape)


_DAY_FOLLOWS = re.compile(
    rf":|,?\s(?:@|at)\s[0-9]|(?:,?\s|\s?[&/–-]\s?|,?\s(?:and|or|to|through)\s)(?:[0-9]|{MONTH}|{WEEKDAY}|noon|"
    rf"morning|evening|afternoon|night|only|(?:mon|tues|wednes|thurs|fri|satur|sun)day)",
    re.IGNORECASE,
)
_DAY_PRECEDES = re.compile(
    rf"(?:{WEEKDAY}|(?:mon|tues|wednes|thurs|fri|satur|sun)day)(?:\s?[–-]|,|,?\s?[&/]|,?\s(?:and|or|to|through))\s?$"
    r"|\b(?:on|by|next|last|this|every|each|until|till|from|since|for|before|after|closed|open)\s$",
    re.IGNORECASE,
)


_HOURS_PRECEDE = re.compile(
    rf"(?<![0-9])[0-9]{{1,2}}(?::[0-9]{{2}})?{_UNTIL}[0-9]{{1,2}}(?::[0-9]{{2}})?(?:\s?{_MERIDIEM})?,?\s$",
    re.IGNORECASE,
)


def say_weekdays(shape: Shape) -> str:
    first, last = (WEEKDAYS[shape.found[key][:3].lower()] for key in ("first", "last"))
    return f"{first} to {last}{stop(shape)}"


def say_numeric(shape: Shape, *, day_first: bool) -> str | None:
    """A date in digits. With dots it has the day first everywhere, and a year of four digits may come first."""
    first, second, year = shape.groups
    if len(first) == 4:
        return say_day(int(second), int(year), first) if int(second) <= 12 else None
    has_dots = "." in shape.written
    if "-" in shape.written and names_code(shape):
        return None
    if has_dots and (len(year) == 2 or re.search(r"(?:version|release|build|v)\s?$", shape.left, re.IGNORECASE)):
        return None
    if has_dots and not day_first:
        first, second = second, first
    return say_day(int(first), int(second), year, day_first=day_first)


_CARD_ENDS = re.compile(r"\bcard\b[^.;]{0,24}\bexp[a-z.]*\s(?:[a-z]+\s){0,3}$", re.IGNORECASE)


def say_day_slash(shape: Shape, *, day_first: bool) -> str | None:
    if "." in shape.written and shape.written[0] != "0":
        return None  # "from 1.2 to 1.8" are decimals
    if _CARD_ENDS.search(shape.left) and len(shape.groups[1]) == 2:
        return None  # a card expires in a month of a year
    return say_day(int(shape.groups[0]), int(shape.groups[1]), day_first=day_first)


def say_days(shape: Shape, *, day_first: bool) -> str | None:
    first, last = (say_day(int(shape.groups[n]), int(shape.groups[n + 1]), day_first=day_first) for n in (0, 2))
    return f"{first} to {last}" if first and last else None


def say_month_of_year(shape: Shape) -> str | None:
    """ "2026/11", "11/2026", and "11/28" of a card."""
    first, last = shape.groups
    year, month = (first, last) if len(first) == 4 else (last, first)
    return f"{en.MONTHS[int(month) - 1]} {full_year(year)}" if 1 <= int(month) <= 12 else None


def say_years(shape: Shape) -> str | None:
    """ "2010-2015", "2026/27"."""
    found = shape.found
    if len(found["last"]) == 2 and (int(found["last"]) != int(found["first"]) % 100 + 1 or names_code(shape)):
        return None
    return f"{en.year(int(found['first']))} to {full_year(found['last'])}"


_DECADE_BEFORE = re.compile(
    r"(?:the|your|his|her|their|mid|my|our|early|late|low|upper|high|and|under|over)[\s-]$", re.IGNORECASE
)


def say_decade(shape: Shape) -> str | None:
    """ "1990s", "the '80s"; "30s" is a length of time, "100s" are hundreds."""
    number = shape.groups[0]
    if len(number) == 2 and shape.written == number + "s" and not _DECADE_BEFORE.search(shape.left):
        return None
    return None if number == "10" else en.decade(int(number))


def _clock(hour: int, minute: int, second: str, meridiem: str) -> str:
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


def _meridiem(written: str | None) -> str:
    """ "a.m." as capitals: lower-case "am" would be read as the verb."""
    return "" if not written else "AM" if written[0] in "aA" else "PM"


def _stop_of_time(shape: Shape) -> str:
    names = r"Mon|Tue|Wed|Thu|Fri|Sat|Sun|Pac|Eas|Cen|Mou"
    ends = re.match(rf"\s*(?:$|(?!(?:{names})[a-z])[A-Z](?![A-Z]))", shape.right)
    return "." if ends and shape.written.endswith(".") else ""


def say_time(shape: Shape) -> str | None:
    """ "3 PM", "9.30 am", "14:20 hrs", "8.15 tonight"."""
    found = shape.found
    if found["short"] and found["minute"] is None:
        return None
    hour, meridiem = int(found["hour"]), _meridiem(found["meridiem"] or found["short"])
    if hour > 12:
        meridiem = ""
    return _clock(hour, int(found["minute"] or "0"), found["second"] or "", meridiem) + _stop_of_time(shape)


def say_clock(shape: Shape) -> str | None:
    """ "14:20", "14:20:05", and of a call "5:32" as minutes and seconds."""
    length = EVIDENCE["duration"].near
    if length is not None and length.search(shape.left):
        return say_clock_length(shape)
    hour, minute, second = (*shape.groups, "")[:3]
    return _clock(int(hour), int(minute), second, "") if int(hour) <= 24 else None


_OPENS = re.compile(
    r"\b(?:arrives?|be (?:here|there)|departs?|leaves?|(?:we|shop|store|office|clinic|surgery|branch|library|doors)"
    r"(?: is| are)? (?:opens?|closes?))(?: us| again)?(?: on [A-Z][a-z]+)?"
    r"(?: (?:at|by|before|after|from|until|till)| from [0-9]{1,2}\.[0-9]{2} (?:to|until|till))\s$",
    re.IGNORECASE,
)


def say_dotted_time(shape: Shape) -> str | None:
    """ "We open at 9.30", "arrive by 5.15": so a British shop writes it."""
    if shape.unit is not None or not re.fullmatch(r"(?:1[0-2]|[1-9])\.[0-5][05]", shape.written):
        return None
    hour, minute = map(int, shape.groups)
    return _clock(hour, minute, "", "") if _OPENS.search(shape.left) else None


def say_time_range(shape: Shape) -> str:
    """ "9-5pm", "9-11:30 am": only the second number shows that the first is a time."""
    found = shape.found
    last = _clock(int(found["hour"]), int(found["minute"] or "0"), "", _meridiem(found["meridiem"]))
    first = en.cardinal(int(found["first"]))
    if found["first_minute"]:
        first = _clock(int(found["first"]), int(found["first_minute"]), "", " ").strip()
    joint = "and" if re.search(r"\bbetween\s$", shape.left, re.IGNORECASE) else "to"
    return f"{first} {joint} {last}{_stop_of_time(shape)}"


def say_hours(shape: Shape) -> str:
    """ "0900 hours"."""
    hour, minute = int(shape.groups[0][:2]), int(shape.groups[0][2:])
    return f"{'oh ' if hour < 10 else ''}{en.pair(hour, minute)} hours"


_PARTS = (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second"))


def say_duration(shape: Shape) -> str | None:
    """ "2h 35m"."""
    parts = [(int(shape.found[key]), name) for key, name in _PARTS if shape.found[key]]
    if len(parts) < 2:
        return None
    singular = is_adjective(shape, shape.end)
    said = [f"{en.cardinal(n)} {name}{'' if n == 1 or singular else 's'}" for n, name in parts if n]
    return " ".join(said) if said else "zero seconds"


def say_zone(shape: Shape) -> str:
    """ "GMT+8", and "EST" alone."""
    name, sign = en.letters(shape.written.rstrip("+-0123456789")), "plus" if "+" in shape.written else "minus"
    return f"{name} {sign} {en.number(shape.groups[0])}" if shape.groups else name


def say_clock_length(shape: Shape) -> str:
    """ "00:05:30", "5:32"."""
    parts = zip(("hour", "minute", "second")[-len(shape.groups) :], shape.groups, strict=True)
    said = [f"{en.cardinal(int(n))} {name}{'' if int(n) == 1 else 's'}" for name, n in parts if int(n)]
    return " ".join(said) or "zero seconds"


FORMS = (
    ("written_month_day", MONTH_DAY), ("months", MONTHS_RANGE), ("month_year", MONTH_YEAR), ("month", MONTH_ALONE),
    ("weekdays", re.compile(rf"(?P<first>{WEEKDAY})(?:\s?[-–]\s?|\sto\s)(?P<last>{WEEKDAY})", re.IGNORECASE)),
    ("weekday", re.compile(WEEKDAY)), ("written_day_month", DAY_MONTH), ("numeric", ISO), ("numeric", NUMERIC),
    ("days", DAYS_RANGE),
    ("year_month", MONTH_OF_YEAR), ("years", YEARS), ("decade", DECADE), ("length", LENGTH),
    ("time_range", TIME_RANGE), ("time", TIME), ("hours", HOURS), ("zone", ZONE),
)  # fmt: skip
"""The shapes that only English writes, in the order to try them."""


def say(day_first: bool) -> dict[str, Say]:
    return {
        "month_day": partial(say_day_slash, day_first=day_first),
        "day_month": partial(say_day_slash, day_first=day_first),
        "numeric": partial(say_numeric, day_first=day_first), "days": partial(say_days, day_first=day_first),
        "written_month_day": say_month_day, "written_day_month": say_day_month,
        "month_year": lambda shape: f"{_month(shape.found['month'])} {full_year(''.join(shape.groups))}",
        "months": lambda shape: f"{_month(shape.found['first'])} to {_month(shape.found['last'])}",
        "month": say_month, "weekdays": say_weekdays, "weekday": say_weekday,
        "year_month": say_month_of_year, "expiry": say_month_of_year, "years": say_years, "decade": say_decade,
        "length": say_duration, "clock": say_clock, "duration": say_clock_length, "time_range": say_time_range,
        "time": say_time, "hours": say_hours, "zone": say_zone,
    }  # fmt: skip
