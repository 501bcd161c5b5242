"""English codes: telephone numbers, keys, masks, addresses on the net, versions, and words of letters and digits."""

from __future__ import annotations

import re
from collections.abc import Callable

from telephony_tts.text import addresses
from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import names_code
from telephony_tts.text.languages.english.units import UNIT
from telephony_tts.text.patterns import AIRLINER, WITH_VOWEL
from telephony_tts.text.reader import Say, Shape

_PART = re.compile("[A-Za-z]+|[0-9]+|_")
_PART_OR_PAUSE = re.compile("[A-Za-z]+|[0-9]+|_|(?<=[0-9])-(?=[0-9])")
_SYLLABLES = re.compile("[^aeiouAEIOU]?[aeiouAEIOU][^aeiouAEIOU][aeiouAEIOU]$")
_TWO_LETTER_NAMES = re.compile(r"(?<=\bdot )(?:au|us|ie|uk|ca|nz|in|sg|za|hk|eu|de|fr|io|ai)(?= |$)")
_PRESSED = re.compile(
    r"\b(?:press|dial|hit|enter|key)\s?(?:in\s)?(?:[*#]?[0-9]{1,3}#?,?\s(?:or\s|and\s|then\s)?){0,3}$",
    re.IGNORECASE,
)
_KEYED = re.compile(r"\b(?:code|pin|passcode)s?\b(?:\s(?:is|was|now|are)|:)*\s$", re.IGNORECASE)
_WORDS = addresses.AddressWords(
    at="at",
    signs={
        ".": "dot", "/": "slash", "-": "dash", "_": "underscore", ":": "colon", "?": "question mark", "=": "equals",
        "&": "and", "+": "plus", "%": "percent", "#": "hash", "~": "tilde",
    },
    digits=en.digits,
    space=" ",
)  # fmt: skip
(_, _SAY_EMAIL), (_, _SAY_URL) = addresses.address_rules(_WORDS)


def _say_address(say: Callable[[re.Match[str]], str | None]) -> Say:
    """The names of countries at the end are spelled: "dot A. U"."""

    def say_address(shape: Shape) -> str | None:
        said = say(shape.found)
        return said and _TWO_LETTER_NAMES.sub(lambda name: en.letters(name.group()), said)

    return say_address


def _say_code(shape: Shape) -> str | None:
    written, groups = shape.written, shape.groups
    if len(groups) == 2 and shape.form == "dashed" and not names_code(shape) and _is_round(groups):
        return None  # "100-1500" is a range
    return ("plus " if written.startswith("+") else "") + en.groups(written)


def _is_round(groups: list[str]) -> bool:
    return all(group[0] != "0" and group.endswith("0") for group in groups) and int(groups[0]) < int(groups[1])


def _say_telephone(shape: Shape) -> str:
    number, _, extension = re.sub(r"(?i)[\s,]*(?:x|ext\.?|extension)\s?", "x", shape.written).partition("x")
    said = ("plus " if number[0] == "+" else "") + en.groups(number)
    return f"{said}, extension {en.digits(extension)}" if extension else said


def _say_mask(shape: Shape) -> str | None:
    """The digits that are shown."""
    if shape.groups:
        return en.groups(shape.written)
    if "*" not in shape.written:
        return shape.written  # xxx, once for its whole length
    return "star star" if shape.written == "**" and _PRESSED.search(shape.left) else ""


def _say_keys(shape: Shape) -> str:
    """ "*67", "611#", "#9" after "press"; "#4815" numbers a thing, and a star before four digits hides others."""
    written, digits = shape.written, shape.groups[0]
    is_pressed = _PRESSED.search(shape.left) is not None or shape.left.endswith("*")
    is_code = len(shape.groups) > 1 or _KEYED.search(shape.left) is not None
    is_key = is_code or (is_pressed and (len(digits) <= 3 or written[-1] == "*"))
    if written[0] == "#" and written[-1] != "#" and not is_key:
        return f"number {en.digits(digits) if len(digits) > 2 or digits[0] == '0' else en.number(digits)}"
    if written[0] == "*" and written[-1].isdigit() and len(digits) == 4 and not (is_pressed or is_code):
        return en.digits(digits)
    names = {"*": "star", "#": "pound", "+": "plus"}
    said = [names.get(part) or en.digits(part) for part in re.findall("[0-9]+|[*#+]", written)]
    if written[-1] == "*" and written[0].isdigit() and not (is_pressed or is_code):
        return en.number(digits) + (" star" if re.match(r"[\s-](?:hotel|resort|review|rating)", shape.right) else "")
    return " ".join(said)


def _say_hash(shape: Shape) -> str:
    """ "#04-123", "#22/117"."""
    joint = " slash " if "/" in shape.written else ", "
    return f"number {joint.join(map(en.digits, shape.groups))}"


def _say_ip(shape: Shape) -> str:
    host, _, port = shape.written.partition(":")
    said = " dot ".join(en.digits(part) for part in host.split("."))
    return f"{said} colon {en.digits(port)}" if port else said


def _say_version(shape: Shape) -> str:
    """ "v2.10.3", "3.10.12"."""
    parts = shape.written.lstrip("vV").split(".")
    is_named = re.search(r"\bversion:?\s$", shape.left, re.IGNORECASE)
    said = " point ".join(en.number(part) if len(part) < 4 else en.digits(part) for part in parts)
    return f"version {said}" if shape.written[0] in "vV" and not is_named else said


def _say_mixed(shape: Shape) -> str | None:
    """Letters with digits: a code ("SF1234") is spelled, a name ("COVID-19", "24-hour", "5G") is read."""
    text = shape.written
    runs = _PART.findall(text)
    unit = UNIT.match(shape.text, shape.start + len(shape.groups[0])) if text[0].isdigit() else None
    if unit is not None and not unit["counted"] and len(shape.groups) == 1 and not _KEYED.search(shape.left):
        return None  # 5kg
    if re.fullmatch(r"[0-9]{1,6}(?:-[a-z]{2,})+(?:-[0-9]+)?|[0-9]{1,3}[a-z]{4,}", text):
        return " ".join(en.number(run) if run.isdigit() else run for run in runs)
    if re.fullmatch("[BCPODGM]2[BCPODGEM]", text):
        return f"{en.letters(text[0])} to {en.letters(text[2])}"
    if re.fullmatch(r"(?:mid|pre|post|early|late|FY)-?[12][0-9]{3}", text):
        return f"{runs[0]} {en.year(int(runs[1]))}"
    if plural := re.fullmatch("(?:([A-Z])-?)?([0-9]{1,4})s", text):
        digits = en.number(plural[2]) if len(plural[2]) < 3 else en.digits(plural[2])
        return f"{en.letters(plural[1] or '')} {en.plural(digits)}".strip()
    if span := _SPAN.fullmatch(text):
        return f"{_say_place(span['first'] or span['start'])} to {_say_place(span['last'])}"
    has_zeros = any(len(group) > 1 and group[0] == "0" for group in shape.groups)
    spells = names_code(shape) or max(map(len, shape.groups)) > 2 or has_zeros or len(runs) > 4
    is_long = len(runs) > 4 or "-" in text
    return " ".join(_say_run(run, spells, is_long) for run in _PART_OR_PAUSE.findall(text)).replace(" ,", ",")


_SPAN = re.compile(
    r"(?:(?P<first>[0-9]{1,2}[A-Z])|(?P<start>(?P<letter>[A-Z])[0-9]{1,3}))-"
    r"(?P<last>(?(letter)(?P=letter)[0-9]{1,3}|[0-9]{1,2}[A-Z]))"
)
"""A range of seats, gates or floors: "14A-14C", "B1-B10"."""


def _say_run(run: str, spells: bool, is_long: bool) -> str:
    if run in "_-":
        return "underscore" if run == "_" else ","
    if run.isdigit():
        return en.digits(run) if spells or len(run) > 2 or run[0] == "0" else en.number(run)
    if run in ("neo", "max", "pro"):
        return run
    if len(run) == 1 or (len(run) == 2 and run.isupper()) or not WITH_VOWEL.match(run):
        return en.letters(run)
    if _COUPON.fullmatch(run):
        return run
    is_word = run.islower() if is_long else not run.isupper() or (len(run) <= 4 and _SYLLABLES.match(run))
    return en.letters(run) if spells and (len(run) <= 3 or not is_word) else run


_COUPON = re.compile(
    "SAVE|FREE|SHIP|NOW|DEAL|SALE|OFF|GET|BUY|NEW|WELCOME|SUMMER|WINTER|SPRING|AUTUMN|HELLO|GIFT|CODE|EXTRA"
)
"""Words of vouchers, which people remember as words."""


def _say_place(text: str) -> str:
    """ "14A", "B10"."""
    return " ".join(en.number(part) if part.isdigit() else en.letters(part) for part in _PART.findall(text))


_THINGS = re.compile(
    r"\s(?:customers|orders|users|tickets|messages|stores|results|members|visitors|employees|products|parcels)\b"
)


def _say_emergency(shape: Shape) -> str | None:
    """911 and 999 are telephone numbers wherever they count nothing."""
    return None if shape.unit is not None or _THINGS.match(shape.right) else en.digits(shape.written)


_CLOTHES = "(?:[2-6]X[SL]|X{1,4}[SL]|[SML])"
_COUNTS = r"\s(?:(?:to|or|and)\s[0-9]|(?:business |working )?(?:minutes|hours|days?|weeks|months|years|times)\b)"
"""What stands behind a number that is not the end of the code before it."""
_RHESUS = {"+": "positive", "-": "negative"}
EMERGENCY = re.compile(r"(?:911|999)(?![0-9A-Za-z]|[.,:/-][0-9])")
"""It is tried after units and money."""
FORMS = (
    ("airliner", AIRLINER),
    ("vanity", re.compile(r"(?P<digits>1?[- .]?8[0-9]{2})-(?P<words>[A-Z]{2,10}(?:-[A-Z]{2,10}){0,2})(?![A-Za-z0-9])")),
    ("telephone", re.compile(
        r"(?:(?:\+?1[-. ]?)?(?:\([0-9]{3}\)[ -]?|[0-9]{3}[-. ])[0-9]{3}[-. ][0-9]{4}(?![0-9])"
        r"|\+(?=(?:[-. ()]{0,2}[0-9]){6})[0-9]{1,15}(?:[-. ]?\(?[0-9]{1,6}\)?){0,6}(?![0-9])"
        r"|\(0[0-9]{1,4}\)[ -]?[0-9]{3,4}[ -]?[0-9]{3,4}(?![0-9]))"
        r"(?:[\s,]{0,2}(?:x|ext\.?|extension)\s?[0-9]{1,6}(?![0-9]))?",
        re.IGNORECASE,
    )),
    ("telephone", re.compile(
        r"00[1-9][0-9]{0,2}(?=(?:[- (]{0,2}[0-9]){8})(?:[- ]\(?[0-9]{1,8}\)?){1,5}(?![0-9])"
        rf"|[0-9]{{4}}(?:[- ][0-9]{{4}}){{2,4}}(?:[- ][0-9]{{2,3}}(?!{_COUNTS}))?(?![0-9])"
        r"|(?:0[0-9]{2,4}|1[38]00)[- ][0-9]{3,4}[- ][0-9]{3,4}(?!-?[0-9]| [0-9]{2})"
    )),
    ("grouped_code", re.compile(
        r"(?:[A-Z]{2}[0-9]{4}(?: [0-9]{4}){2}(?: [0-9]{1,4})?|[0-9]{3}(?: [0-9]{3}){1,3}[A-Z]|0x[0-9A-Fa-f]{2,16}"
        r"|[0-9A-F]{2}(?::[0-9A-F]{2}){5}(?!:))(?![0-9A-Za-z])"
    )),
    ("slashed_code", re.compile(
        r"(?:[A-Z]{1,5}(?:/[0-9]{2,10}){1,3}|[0-9]{2,4}/[0-9]{3,6}/[A-Z]{1,4})(?![0-9A-Za-z/]|\s?[AaPp]\.?[Mm]|:[0-9])"
    )),
    ("hash", re.compile(r"#\s?[0-9]{1,20}(?:[-/][0-9]{1,20}){1,3}(?![0-9A-Za-z]|[.,][0-9])")),
    ("keys", re.compile(r"(?:\*[*#]|##)[0-9]{1,20}(?:\*\+?[0-9]{1,20}){0,4}[*#](?![0-9A-Za-z*])")),
    ("blood", re.compile(r"(?:AB|[ABO])[-+](?=\s(?:blood|type|donor|plasma))")),
    ("letters", re.compile(
        rf"(?:Q[1-4][-–]Q[1-4]|{_CLOTHES}[-–]{_CLOTHES}|[A-Z]–[A-Z]|(?<=[a-rt-z]s )[A-Z]-[A-Z])(?![A-Za-z0-9])"
    )),
    ("version", re.compile(
        r"[vV][0-9]{1,6}(?:\.[0-9]{1,6}){0,6}(?![0-9A-Za-z-])"
        r"|(?:(?<=\bPython )|(?<=\b[Bb]uild ))[0-9]{1,5}\.[0-9]{1,5}(?![0-9]|\.[0-9])"
    )),
)  # fmt: skip
"""The shapes that only English writes, in the order to try them."""
SAY: dict[str, Say] = {
    "email": _say_address(_SAY_EMAIL), "url": _say_address(_SAY_URL), "ip": _say_ip, "version": _say_version,
    "code": _say_code, "airliner": _say_code, "mixed": _say_mixed, "telephone": _say_telephone,
    "emergency": _say_emergency, "mask": _say_mask, "keys": _say_keys, "hash": _say_hash,
    # iOS17.4, 1-800-FLOWERS (people remember the word), ABC/123/45
    "named": lambda shape: f"{_say_run(shape.found['name'], False, False)} {en.number(shape.found['number'])}",
    "vanity": lambda shape: f"{en.groups(shape.found['digits'])}, {shape.found['words'].replace('-', ' ')}",
    "slashed_code": lambda shape: " slash ".join(en.digits(part) or part for part in shape.written.split("/")),
    "grouped_code": lambda shape: ", ".join(en.letters(part) for part in re.split("[ :]", shape.written)),
    "letters": lambda shape: " to ".join(_say_place(part) for part in re.split("[-–]", shape.written)),
    "blood": lambda shape: f"{en.letters(shape.written[:-1])} {_RHESUS[shape.written[-1]]}",
}  # fmt: skip
