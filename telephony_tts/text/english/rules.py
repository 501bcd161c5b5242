"""The English rules for amounts, quantities, fractions and abbreviations; other files have dates, codes and signs."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text import addresses
from telephony_tts.text.english import codes as english_codes
from telephony_tts.text.english import dates as english_dates
from telephony_tts.text.english import numbers as en
from telephony_tts.text.english.signs import SIGN_RULES, say_vulgar
from telephony_tts.text.patterns import COMMA_AMOUNT, NUMBER, SIGNS, from_comma
from telephony_tts.text.scanner import Language, Rule, after, before
from telephony_tts.text.units import CURRENCIES, CURRENCY_CODE, CURRENCY_SIGN, UNIT, UNITS

_WORDS = addresses.AddressWords(
    at="at",
    signs={
        ".": "dot",
        "/": "slash",
        "-": "dash",
        "_": "underscore",
        ":": "colon",
        "?": "question mark",
        "=": "equals",
        "&": "and",
        "+": "plus",
        "%": "percent",
        "#": "hash",
        "~": "tilde",
    },
    digits=en.digits,
    space=" ",
)
_SCALE = r"(?:\s?(?:thousand|million|billion|trillion|lakhs?|crores?|bn|mn)(?![A-Za-z])|[kKmMbB](?![A-Za-z0-9]))"
_SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "mn": "million"}
_TO = r"\s?(?:-|–|—|~|\bto\b)\s?"


def _say_scale(written: str) -> str:
    return _SCALES.get(written.strip().lower(), written.strip())


def _is_adjective(match: re.Match[str]) -> bool:
    """ "a $5 fee", "a 10 GB plan": before a noun the unit is in the singular."""
    noun = re.match(r"[\s-](?!(?:or|and|to|per|for|in|on|at|of|by|from|with|is|was)\b)[A-Za-z]", after(match, 6))
    return bool(noun and re.search(r"\ban?\s$", before(match, 4), re.I))


def _say_amount(written: str, scale: str, currency: str, is_adjective: bool = False) -> str:
    """ "1,234.50" of "$" -> "... dollars and fifty cents"."""
    one, many, cent, cents, _ = CURRENCIES[currency]
    if is_adjective:
        many, cents = one, cent
    if scale:
        return f"{en.number(written)} {_say_scale(scale)} {many}"
    whole, _, part = written.replace(",", "").partition(".")
    if not part.strip("0"):
        return f"{en.number(whole)} {one if whole.lstrip('0') == '1' else many}"
    if not cent or len(part) > 2:
        return f"{en.number(written)} {many}"
    n_cents = int(part.ljust(2, "0"))
    small = f"{en.cardinal(n_cents)} {cent if n_cents == 1 else cents}"
    if not whole.strip("0"):
        return small
    return f"{en.number(whole)} {one if whole.lstrip('0') == '1' else many} and {small}"


def _say_money(match: re.Match[str]) -> str:
    currency, first, last = match["code"] or match["currency"], match["first"], match["last"]
    currency = "INR" if currency.startswith("Rs") else currency
    if first.startswith("."):
        first = "0" + first
    said = _say_amount(last or first, match["scale"] or "", currency, _is_adjective(match))
    if last and match["sign"] and float(first.replace(",", "")) >= float(last.replace(",", "")):
        said = f"{_say_amount(first, '', currency)} to {said}"  # "$500 to $1 million"
    elif last:
        said = f"{en.number(first)} to {said}"
    return ("minus " if match["minus"] else "") + said


def _say_money_after(match: re.Match[str]) -> str:
    if match["currency"] == "¢":
        return f"{en.number(match['first'])} {'cent' if match['first'] == '1' else 'cents'}"
    return _say_amount(match["first"], match["scale"] or "", match["currency"])


_PER_UNIT = re.compile(r"\s?(?:/|per\s|an?\s)\s?(?:l|liter|litre|kwh|kg|unit|min)", re.I)
"""After a price that may have three decimals: "1.800 €/l"."""


def _say_comma_money(match: re.Match[str]) -> str | None:
    """ "1.299,00 €", "€49,90-59,90", "49,90 euros"."""
    currency = match["before"] or match["after"]
    if currency is None:
        return None
    first, last = match["first"], match["last"]
    if "," not in first and _PER_UNIT.match(after(match, 10)):
        return None
    currency = "€" if currency.startswith("euro") else currency
    said = _say_amount(from_comma(last or first), "", currency, _is_adjective(match))
    return f"{_say_amount(from_comma(first), '', currency)} to {said}" if last else said


def _say_comma_quantity(match: re.Match[str]) -> str | None:
    """ "12,5 %", "1,5 GB", "3,5 million". With two digits after the comma it may be a list."""
    said, unit = en.number(from_comma(match["number"])), match["unit"]
    if match["first"]:
        said = f"{en.number(from_comma(match['first']))} to {said}"
    if unit is None:
        return said
    if len(unit) == 1 and unit.isalpha():
        return None
    one, many, _ = UNITS[unit]
    return f"{said} {one if match['hyphen'] or _is_adjective(match) else many}"


def _say_quantity(match: re.Match[str]) -> str | None:
    """A number or a range with its unit."""
    first, last, unit = match["first"], match["last"], match["unit"]
    if len(unit) == 1 and unit.isalpha() and english_codes.context(before(match, 44), ""):
        return None
    one, many, _ = UNITS[unit]
    number = last or first
    said = en.number(number)
    if last:
        said = f"{en.number(first)} to {said}"
    single = (number == "1" and not last) or match["hyphen"] or _is_adjective(match)
    return f"{said} {one if single else many}"


def _say_range(match: re.Match[str]) -> str | None:
    first, last = match["first"].replace(",", ""), match["last"].replace(",", "")
    if len(first) > 15 or len(last) > 15 or (first[0] == "0" and len(first) > 1 and first[1] != "."):
        return None
    if re.match(r"\s?=", after(match, 2)) or (match["spaced"] and float(first) >= float(last)):
        return f"{en.number(first)} minus {en.number(last)}"
    joint = "and" if re.search(r"\bbetween\s$", before(match, 9), re.I) else "to"
    return f"{en.number(first)} {joint} {en.number(last)}"


def _say_ordinal(match: re.Match[str]) -> str:
    digits = match["number"].replace(",", "")
    return en.ordinal(int(digits)) if len(digits) <= 15 else en.digits(digits)


def _say_mixed_fraction(match: re.Match[str]) -> str | None:
    top, bottom = int(match["top"]), int(match["bottom"])
    if not 0 < top < bottom:
        return None
    part = "a half" if bottom == 2 else en.fraction(top, bottom)
    return f"{en.number(match['whole'])} and {part}"


_RATED = re.compile(r"\s?(?:stars?|points?|rating|score)", re.I)


def _say_fraction(match: re.Match[str]) -> str:
    said = _fraction(match, int(match["top"]), int(match["bottom"]))
    return f"{said} {UNITS[match['unit']][0 if ' over ' not in said else 1]}" if match["unit"] else said


def _fraction(match: re.Match[str], top: int, bottom: int) -> str:
    if (top, bottom) in ((24, 7), (50, 50), (20, 20)):
        return f"{en.cardinal(top)} {en.cardinal(bottom)}"
    if re.match(r"\s?=", after(match, 2)):
        return f"{en.cardinal(top)} divided by {en.cardinal(bottom)}"
    if _RATED.match(after(match, 8)) or re.search(
        r"\b(?:rated|score[ds]?|rating|page|step|question|part)\s(?:of\s|is\s)?$", before(match, 14), re.I
    ):
        return f"{en.cardinal(top)} out of {en.cardinal(bottom)}"
    if top > bottom or bottom > 100:
        return f"{en.cardinal(top)} over {en.cardinal(bottom)}"
    return en.fraction(top, bottom)


def _say_rating(match: re.Match[str]) -> str:
    return f"{en.number(match['top'])} out of {en.number(match['bottom'])}"


def _say_slashed(match: re.Match[str]) -> str:
    """ "24/7/365" and other text that looks like a date but is not one."""
    return " slash ".join(en.number(n) for n in match.group().split("/"))


def _say_power(match: re.Match[str]) -> str:
    sign = "minus " if match["power"][0] == "-" else ""
    return f"{en.number(match['base'])} to the power of {sign}{en.number(match['power'].lstrip('-'))}"


def _say_ratio(match: re.Match[str]) -> str:
    return " to ".join(en.number(n) for n in match.group().split(":"))


def _say_times(match: re.Match[str]) -> str:
    """ "3x", "3 x 50mg"; in "2 x Large Fries" only the number is said."""
    if re.match(r"\s[A-Z]", after(match, 2)) and match.group()[-2].isspace():
        return en.number(match["number"])
    return f"{en.number(match['number'])} time{'' if match['number'] == '1' else 's'}"


def _say_size(match: re.Match[str]) -> str:
    return " by ".join(en.number(n) for n in re.split(r"\s?[x×X]\s?", match.group()))


def _say_height(match: re.Match[str]) -> str:
    feet, inches = int(match["feet"]), int(match["inches"])
    said = f"{en.cardinal(feet)} {'foot' if feet == 1 else 'feet'}"
    return f"{said} {en.cardinal(inches)} {'inch' if inches == 1 else 'inches'}"


def _say_big(match: re.Match[str]) -> str | None:
    """ "10k", "100K"; "4K" and "14K" are names."""
    if match["scale"] == "K" and len(match["number"]) < 3:
        return None
    return f"{en.number(match['number'])} {_say_scale(match['scale'])}"


def _say_street_number(match: re.Match[str]) -> str | None:
    """ "1600 Pennsylvania Avenue": house numbers are read in pairs of digits."""
    return en.year(int(match.group())) if match.group()[0] != "0" else None


def _say_ip(match: re.Match[str]) -> str:
    host, _, port = match.group().partition(":")
    said = " dot ".join(en.digits(part) for part in host.split("."))
    return f"{said} colon {en.digits(port)}" if port else said


def _say_version(match: re.Match[str]) -> str | None:
    parts = (match["v_parts"] or match["parts"]).split(".")
    if match["v"] and len(parts) == 1 and len(parts[0]) > 3:
        return None
    said = " point ".join(en.number(p) for p in parts)
    named = re.search(r"\bversion:?\s$", before(match, 10), re.I)
    return f"version {said}" if match["v"] and not named else said


def _say_number(match: re.Match[str]) -> str:
    return en.number(match.group())


_ABBREVIATIONS = {
    "mr.": "Mister",
    "mrs.": "Missus",
    "ms.": "Miz",
    "ave.": "Avenue",
    "rd.": "Road",
    "blvd.": "Boulevard",
    "ln.": "Lane",
    "prof.": "Professor",
    "e.g.": "for example",
    "i.e.": "that is",
    "etc.": "et cetera",
    "vs.": "versus",
    "approx.": "approximately",
    "dept.": "department",
    "w/o": "without",
    "w/": "with",
    "and/or": "and or",
    "n/a": "not applicable",
    "c/o": "care of",
    "ext.": "extension",
    "apt.": "apartment",
    "ste.": "suite",
    "acct.": "account",
    "qty.": "quantity",
    "tel.": "telephone",
    "est.": "estimated",
    "m-f": "Monday to Friday",
    "m–f": "Monday to Friday",
}
_ABBREVIATION = "|".join(re.escape(a) for a in _ABBREVIATIONS)


def _say_abbreviation(match: re.Match[str]) -> str | None:
    """At the end of a sentence the full stop is that of the sentence too."""
    written = match.group()
    if written == "EST.":
        return None  # the time zone
    last = written.lower() in ("etc.", "dept.", "est.") and re.match(r"\s*$|\s[A-Z]", after(match, 3))
    return _ABBREVIATIONS[written.lower()] + ("." if last else "")


def _say_vulgar(match: re.Match[str]) -> str:
    value = unicodedata.numeric(match["part"])
    return f"{en.number(match['whole'])} and {'a half' if value == 0.5 else say_vulgar(value)}"


_WEEKDAYS = {
    "mon": "Monday",
    "tue": "Tuesday",
    "wed": "Wednesday",
    "thu": "Thursday",
    "fri": "Friday",
    "sat": "Saturday",
    "sun": "Sunday",
}
_WEEKDAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)(?![a-z])\.?"


def _say_weekdays(match: re.Match[str]) -> str:
    return f"{_WEEKDAYS[match['first'][:3].lower()]} to {_WEEKDAYS[match['last'][:3].lower()]}"


_DAY_FOLLOWS = re.compile(rf"(?:,?\s|\s?[&/]\s?|,?\s(?:and|or|&)\s)(?:[0-9]|{english_dates.MONTH}|{_WEEKDAY})", re.I)
_DAY_PRECEDES = re.compile(
    rf"(?:{_WEEKDAY}|(?:mon|tues|wednes|thurs|fri|satur|sun)day)(?:,|,?\s?[&/]|,?\s(?:and|or))\s?$", re.I
)


def _say_weekday(match: re.Match[str]) -> str | None:
    """ "Sat 9am", "Tue, Dec 1", "Mon & Wed"; elsewhere "sun" and "sat" are words."""
    if _DAY_FOLLOWS.match(after(match, 16)) or _DAY_PRECEDES.search(before(match, 16)):
        return _WEEKDAYS[match.group()[:3].lower()]
    return None


_STREETS = {
    "St": "Street",
    "Ave": "Avenue",
    "Rd": "Road",
    "Blvd": "Boulevard",
    "Ln": "Lane",
    "Dr": "Drive",
    "Pkwy": "Parkway",
}
_STREET = rf"(?:{'|'.join(_STREETS)})(?![A-Za-z.])"
_HOUSE = re.compile(r"[0-9](?:[A-Z]?\s(?:[NSEW]\.?\s)?(?:[A-Z][a-z]+\s){1,3}|(?:st|nd|rd|th)\s)$")


def _say_street(match: re.Match[str]) -> str | None:
    """ "123 Main St", "5th Ave"."""
    return _STREETS[match.group()] if _HOUSE.search(before(match, 40)) else None


def _say_title_or_street(match: re.Match[str]) -> str:
    """ "Dr. Lee" and "St. Mary" before a name, "Maple Dr." and "Main St." after one."""
    named = re.match(r"\s[A-Z]", after(match, 2)) and not re.search(
        r"[0-9]\s(?:[A-Z][a-z]+\s){1,3}$", before(match, 30)
    )
    return {"D": ("Drive", "Doctor"), "S": ("Street", "Saint")}[match.group()[0]][1 if named else 0]


def _say_prefix(match: re.Match[str]) -> str:
    """ "mid-1990s"."""
    return match.group()[:-1] + " "


def _say_no(match: re.Match[str]) -> str:
    words = {"p": "page", "pp": "pages", "fig": "figure", "sec": "section", "nos": "numbers"}
    return words.get(match["word"].lower(), "number")


_ADDRESS_RULES = addresses.address_rules(_WORDS)

_MONEY = (
    rf"(?P<minus>-(?=[0-9]))?(?P<first>(?:{NUMBER}|\.[0-9]{{1,2}}))"
    rf"(?:{_TO}(?P<sign>{CURRENCY_SIGN}(?={NUMBER}{_SCALE}))?(?P<last>{NUMBER}))?(?P<scale>{_SCALE})?(?![0-9])"
)
_MONEY_SIGN: Rule = (
    re.compile(
        rf"(?P<currency>{CURRENCY_SIGN}|{CURRENCY_CODE}|Rs\.?)\s?{_MONEY}(?:\s(?P<code>{CURRENCY_CODE})(?![A-Za-z]))?"
    ),
    _say_money,
)

_COMMA_MONEY: Rule = (
    re.compile(
        rf"(?:(?P<before>€|EUR|CHF)\s?)?(?P<first>{COMMA_AMOUNT})(?:{_TO}€?\s?(?P<last>{COMMA_AMOUNT}))?"
        r"(?:\s?(?P<after>€|(?:EUR|CHF)(?![A-Za-z0-9])|euros?\b))?"
    ),
    _say_comma_money,
)
_COMMA_QUANTITY: Rule = (
    re.compile(
        rf"(?<![0-9.,])(?:(?P<first>[0-9]{{1,3}},[0-9]){_TO})?(?P<number>[0-9]{{1,3}},[0-9])(?![0-9]|[.,-][0-9])"
        rf"(?:(?:\s|(?P<hyphen>-))?(?P<unit>{UNIT})|(?=\s(?:thousand|million|billion|percent|hours?|years?)\b))"
    ),
    _say_comma_quantity,
)

_WORD_RULES: tuple[Rule, ...] = (
    *_ADDRESS_RULES,
    (re.compile(rf"(?:{_ABBREVIATION})(?![A-Za-z])", re.I), _say_abbreviation),
    (re.compile(r"(?:Dr|St)\."), _say_title_or_street),
    (re.compile(_STREET), _say_street),
    (re.compile(rf"(?P<first>{_WEEKDAY})\s?[-–]\s?(?P<last>{_WEEKDAY})", re.I), _say_weekdays),
    (re.compile(r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)(?![A-Za-z])\.?"), _say_weekday),
    (re.compile(r"(?:mid|pre|post)-(?=(?:[12][0-9]{2}0|[1-9]0)['’]?s(?![0-9A-Za-z]))", re.I), _say_prefix),
    (re.compile(r"(?P<word>no|nos|nr|num|pp?|fig|sec)\.\s?(?=#?[A-Z]{0,4}-?[0-9])", re.I), _say_no),
    _COMMA_MONEY,
    _MONEY_SIGN,
    *english_dates.WORD_RULES,
    (addresses.VERSION, _say_version),
    *english_codes.MIXED_RULES,
)

_DIGIT_RULES: tuple[Rule, ...] = (
    *_ADDRESS_RULES,
    (addresses.IP, _say_ip),
    _COMMA_MONEY,
    _COMMA_QUANTITY,
    *english_dates.DATE_RULES[:-1],
    *english_dates.TIME_RULES,
    *english_codes.CODE_RULES,
    *english_codes.TELEPHONE_RULES,
    (addresses.VERSION, _say_version),
    (
        re.compile(r"(?P<number>[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})(?:st|nd|rd|th)(?![A-Za-z])", re.I),
        _say_ordinal,
    ),
    (
        re.compile(
            rf"(?P<first>{NUMBER})(?P<scale>{_SCALE})?\s?(?P<currency>{CURRENCY_CODE}(?![A-Za-z0-9])|[$€£¥₩₹¢](?![0-9]))"
        ),
        _say_money_after,
    ),
    (
        re.compile(r"(?P<whole>[0-9]{1,6})[\s-](?P<top>[0-9]{1,2})/(?P<bottom>[0-9]{1,2})(?![0-9/])"),
        _say_mixed_fraction,
    ),
    (re.compile(r"(?P<whole>[0-9]{1,6})\s?(?P<part>[¼-¾⅐-⅞])"), _say_vulgar),
    (re.compile(rf"(?P<top>[0-9]{{1,4}})/(?P<bottom>[0-9]{{1,4}})(?![0-9/])(?:\s?(?P<unit>{UNIT}))?"), _say_fraction),
    (
        re.compile(
            r"(?P<feet>[1-9])(?:'|′|\s?ft\.?)\s?(?P<inches>1[01]|[0-9])(?:\"|″|''|\s?in(?:ch(?:es)?)?\.?(?![A-Za-z]))"
        ),
        _say_height,
    ),
    (
        re.compile(
            rf"(?P<first>{NUMBER})(?:{_TO}(?P<last>{NUMBER}))?(?:\s|(?P<hyphen>-))?(?P<unit>{UNIT})(?:\.(?=\s[a-z]))?"
        ),
        _say_quantity,
    ),
    (re.compile(rf"(?P<number>{NUMBER})(?P<scale>[kKM](?![A-Za-z0-9])|bn(?![A-Za-z0-9]))"), _say_big),
    (re.compile(r"(?P<top>[0-9]+\.[0-9]+)/(?P<bottom>[0-9]{1,4})(?![0-9/.])"), _say_rating),
    (re.compile(r"[0-9]{1,4}(?:/[0-9]{1,4}){2,4}(?![0-9/])"), _say_slashed),
    (re.compile(r"(?P<base>[0-9]{1,6})\^(?P<power>-?[0-9]{1,3})(?![0-9])"), _say_power),
    (
        re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,2})?(?:\s?[x×X]\s?[0-9]{1,5}(?:\.[0-9]{1,2})?){1,3}(?![0-9A-Za-z])"),
        _say_size,
    ),
    (
        re.compile(
            rf"(?P<first>{NUMBER})(?:-|–|(?P<spaced>\s[-–]\s))(?P<last>{NUMBER})(?![0-9A-Za-z]|[-–/.:,][0-9]|-[A-Za-z])"
        ),
        _say_range,
    ),
    (re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,4})?(?::[0-9]{1,6}(?:\.[0-9]{1,4})?){1,3}(?![0-9:])"), _say_ratio),
    (re.compile(rf"(?P<number>{NUMBER})(?:[xX×](?![A-Za-z0-9])|\s[xX×](?=\s[0-9A-Z]))"), _say_times),
    english_dates.DATE_RULES[-1],
    (
        re.compile(
            r"[0-9]{4}(?=(?:\s[A-Z][a-z]{1,20}){1,3}\s(?:St|Street|Ave|Avenue|Road|Rd|Drive|Lane|Ln|Blvd|Boulevard|Way|Court|Place|Pkwy|Parkway)\b)"
        ),
        _say_street_number,
    ),
    *english_codes.MIXED_RULES,
    (re.compile(NUMBER), _say_number),
)

_WORD = (
    rf"(?<![A-Za-z0-9])(?:{english_dates.MONTH}|(?:nos?|nr|num|pp?|fig|sec)\.\s?[A-Za-z0-9#]"
    rf"|(?:{CURRENCY_CODE}|Rs\.?)\s?[0-9]"
    rf"|(?:US|HK|NT|A|C|S)\$|(?:Dr|St)\.|{_STREET}|{_WEEKDAY}|[xX]{{3,}}[- ]?[0-9]|(?:{_ABBREVIATION})"
    r"|[A-Za-z]{1,40}(?:[@_0-9]|[./:-][A-Za-z0-9/]))"
)

ENGLISH = Language(
    trigger=re.compile(
        rf"(?P<digit>[0-9]|['’](?=[0-9]0s))|(?P<word>{_WORD})|(?P<sign>\s[-–](?=\s[0-9$])|"
        rf"{SIGNS}|\((?=[0-9]{{2,5}}\))|\.(?=[0-9]))",
        re.I,
    ),
    rules={
        "digit": _DIGIT_RULES,
        "word": _WORD_RULES,
        "sign": (*english_codes.TELEPHONE_RULES, _COMMA_MONEY, _MONEY_SIGN, *SIGN_RULES),
    },
)
