"""How numbers, codes and signs are read in English text: what the reader needs to know, and the words for each kind."""

from __future__ import annotations

import re
from dataclasses import replace

from telephony_tts.text import addresses, reader
from telephony_tts.text.languages.english import codes, dates, money, units, words
from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import EVIDENCE, any_case, is_counted, names_code
from telephony_tts.text.languages.english.signs import say_sign
from telephony_tts.text.languages.english.units import UNIT, UNIT_CHARACTERS, say_measured, say_quantity
from telephony_tts.text.patterns import NUMBER
from telephony_tts.text.reader import Shape


def _say_amount(shape: Shape) -> str | None:
    """A number with its unit. Four digits that may be a year are one if nothing is counted."""
    written, unit = shape.written, shape.unit
    number = written.lstrip("+")
    sign = "plus " if written.startswith("+") else ""
    if unit is not None and unit["weak"] and names_code(shape):
        shape.unit = unit = None
    if len(number.replace(",", "").partition(".")[0]) > 1 and number[0] == "0" and number.isdigit():
        return sign + en.digits(number)
    time = dates.say_dotted_time(shape)
    if time:
        return time
    whole, point, decimals = number.partition(".")
    if point and len(whole) > 3 and whole.isdigit() and names_code(shape):
        return f"{en.digits(whole)} point {en.digits(decimals)}"
    return sign + say_quantity(shape, number)


_OPEN = re.compile(rf"(?:{dates.WEEKDAY}|day|open|from|hours)[,:]?\s$", re.IGNORECASE)
_SECTION = re.compile(r"(?:§|\bsection)\s?$", re.IGNORECASE)
"""Before the number of a paragraph: "§12-4" is not a range."""


def _say_range(shape: Shape) -> str | None:
    first, last = (part.strip() for part in re.split(r" ?[~∼〜–—-] ?", shape.written, maxsplit=1))
    has_more = "-" in last or "–" in last
    if has_more or re.match("0[0-9]", first) or re.match("0[0-9]", last) or _SECTION.search(shape.left):
        return None
    if len(first) > 4 and first.isdigit() and names_code(shape):
        return f"{en.digits(first)} to {en.digits(last)}"
    is_spaced = " " in shape.written and not _OPEN.search(shape.left)
    if (is_spaced and en.value(first) >= en.value(last)) or re.match(r"\s?=", shape.right):
        return f"{en.number(first)} minus {en.number(last)}"
    if re.fullmatch("[1-9]0", first) and int(first) >= 50 and last == str(100 - int(first)):
        return f"{en.number(first)} {en.number(last)}"  # "a 60-40 split"
    joint = "and" if re.search(r"\bbetween\s$", shape.left, re.IGNORECASE) else "to"
    return say_measured(shape, f"{en.number(first)} {joint} {en.number(last)}", is_one=False)


def _say_measured_range(shape: Shape) -> str | None:
    """ "110-240V"."""
    return _say_range(shape) if shape.unit is not None and not shape.unit["counted"] else None


def _say_ratio(shape: Shape) -> str | None:
    if shape.form == "dashed":
        return None
    return " to ".join(en.number(part) for part in re.split(r"\s?:\s?", shape.written))


def _say_pair(shape: Shape) -> str | None:
    """ "120/80", "80/20 rule", "Unit 5/12", "12/24 months"; three parts are said one by one."""
    parts = shape.written.split("/")
    numbers = [en.number(part) for part in parts]
    if len(parts) > 2:
        return ", ".join(numbers)
    if re.match(r"\s?=", shape.right):
        return " divided by ".join(numbers)
    if shape.written.isascii() and "." not in shape.written and sum(map(int, shape.groups)) == 100:
        return " ".join(numbers)  # "80/20"
    unit = shape.unit
    are_two = re.search(r"\b(?:(?:unit|flat|apt\.?|lot|ports?)|limits?(?: is| are| of)?)\s$", shape.left, re.IGNORECASE)
    if are_two or (unit is not None and unit["counted"]):
        return ", ".join(numbers)
    if re.search(r"\b(?:tier|level|phase|grade)\s$", shape.left, re.IGNORECASE):
        return " or ".join(numbers)
    is_part = is_counted(shape) and en.value(parts[0]) < en.value(parts[1])
    if unit is None and (is_part or ("." in parts[0] and "." not in parts[1])):
        return " out of ".join(numbers)
    is_pressure = unit is None or unit["written"] == "mmHg"
    return say_measured(shape, (" over " if is_pressure else ", ").join(numbers), is_one=False)


def _say_rating(shape: Shape) -> str | None:
    first, last = shape.written.split("/")
    return f"{en.number(first)} out of {en.number(last)}" if en.value(first) <= en.value(last) else None


def _say_fraction(shape: Shape) -> str | None:
    rating = EVIDENCE["rating"].behind
    if rating is not None and rating.match(shape.right):
        return None
    said = en.fraction(int(shape.groups[0]), int(shape.groups[1]))
    return say_measured(shape, said, is_one=True)


def _say_formula(shape: Shape) -> str:
    """ "x^2", "10^-6", r"\\frac{1}{2}"."""
    found = shape.found
    if found["top"]:
        return en.fraction(int(found["top"]), int(found["bottom"]))
    base = found["base"] if found["base"].isalpha() else en.number(found["base"])
    if found["base"].isalpha() and found["power"] in "23":
        return f"{base} {'squared' if found['power'] == '2' else 'cubed'}"
    minus = "minus " if found["power"][0] == "-" else ""
    return f"{base} to the power of {minus}{en.number(found['power'].lstrip('-'))}"


def _say_ordinal(shape: Shape) -> str:
    digits = "".join(shape.groups)
    is_day = re.search(rf"(?:{dates.WEEKDAY}|day|\b(?:on|by|until|till|from))\s$", shape.left)
    article = "the " if is_day and not re.match(rf"\s(?:{words.STREET_WORD})\b", shape.right) else ""
    return article + en.ordinal(int(digits)) if len(digits) <= 15 else en.digits(digits)


_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", addresses.EMAIL), ("url", addresses.URL),
    ("formula", re.compile(
        r"\$?(?<![A-Za-z0-9])(?P<base>[A-Za-z]|[0-9]{1,6})\^\{?(?P<power>-?[0-9]{1,3})\}?\$?|"
        r"\\frac\{(?P<top>[0-9]{1,4})\}\{(?P<bottom>[0-9]{1,4})\}"
    )),
    *words.FORMS,
    ("always", re.compile(r"(?:24[/x]7|20/20)(?![0-9/])")),
    *codes.FORMS,
    ("pair", re.compile("[0-9]{2,4}/[0-9]{3}/[0-9]{1,3}(?:/[0-9]{1,3})?(?![0-9/])")),
    *money.FORMS,
    *dates.FORMS,
    ("measured_range", re.compile(rf"(?>{NUMBER})[-–](?>{NUMBER})(?=[A-Za-z%°])")),
    ("hundreds", re.compile(r"100s(?=\sof\b)")),
    ("ordinal", re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})(?:st|nd|rd|th)(?![A-Za-z])", re.IGNORECASE)),
    *units.FORMS,
    ("emergency", codes.EMERGENCY),
)  # fmt: skip
ENGLISH = reader.Tables(
    unit=UNIT,
    evidence=EVIDENCE,
    say={
        **words.SAY, **codes.SAY, **money.SAY, **dates.say(day_first=False), **units.SAY,
        "amount": _say_amount, "ordinal": _say_ordinal, "formula": _say_formula,
        "range": _say_range, "measured_range": _say_measured_range, "ratio": _say_ratio, "pair": _say_pair,
        "fraction": _say_fraction, "hundreds": lambda shape: "hundreds",
        "year": lambda shape: en.year(int(shape.written)) if shape.written.isdigit() else None,
        "rating": _say_rating,
        "always": lambda shape: " ".join(en.number(group) for group in shape.groups),
    },
    signs=say_sign,
    trigger=reader.trigger(
        rf"(?<![A-Za-z0-9])(?:{any_case('jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec')}"
        rf"|(?:{words.NUMBERED})\s[IVX]|(?:{words.RULERS})\s[A-Z]|Mon|Tue|Wed|Thu|Fri|Sat|Sun"
        rf"|(?:{any_case(words.WITHOUT_STOP)})(?![A-Za-z])"
        rf"|(?:{dates.ZONES})(?![A-Za-z])"
        r"|[Pp]er\s(?=[A-Za-zµμ°])|a\skWh|(?:St|Ave|Rd|Blvd|Ln|Dr|Pkwy|Ct|Pl|Fl|Rs|Rp)(?![A-Za-z])|Nos?\s[0-9]|[ABO]{1,2}[-+]\s"
        r"|[A-Z]{1,3}\$|(?:[A-Z]{3}|Rs|Rp|RM|R)\s?[0-9]|[A-Z]{1,4}[-–][0-9A-Z]|[A-Za-z]\^)"
        rf"|\s(?:【|\[[0-9])|【|[NSEW](?<=[0-9] [NSEW])[EW]? |\.(?<![A-Za-z0-9.]\.)[0-9]|['’][0-9]0s"
        rf"|\(0[0-9]{{2,4}}\)|\([0-9]{{3}}\)|[{UNIT_CHARACTERS}]|[\[\]√]|\([a-z]{{4,12}}[ )]|[√§∞‰µ℡]"
        r"|[\u00b9\u2070-\u2079\u2080-\u2089\u2150-\u2188\u2460-\u249b\u24ea-\u24ff\u2776-\u2793]"
    ),
    forms=reader.Forms(_FORMS),
    sentence_end=re.compile(r"[!?…](?=\s)|(?<=[A-Za-z0-9)\"'%][A-Za-z0-9)\"'%])\.(?=\s+[A-Z])|\n"),
)  # fmt: skip
ENGLISH_DAY_FIRST = replace(ENGLISH, say={**ENGLISH.say, **dates.say(day_first=True)})
"""For the regions that write the day before the month: 03/12 is the third of December."""
DAY_FIRST_REGIONS = frozenset(["gb", "uk", "au", "in", "sg", "nz", "ie", "za", "hk", "my", "ke", "ng", "pk"])
