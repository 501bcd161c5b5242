"""How numbers, codes and signs are read in English text: what the reader needs to know, and the words for each kind."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace

from telephony_tts.text import addresses, reader
from telephony_tts.text.languages.english import dates, money, units, words
from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import EVIDENCE, any_case, names_code
from telephony_tts.text.languages.english.money import is_adjective
from telephony_tts.text.languages.english.signs import say_sign
from telephony_tts.text.languages.english.units import LENGTHS, UNIT, UNIT_CHARACTERS, UNITS, say_measured, say_quantity
from telephony_tts.text.patterns import AIRLINER, NUMBER, WITH_VOWEL, from_comma, vulgar_fraction
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
        said = say(shape.found) if shape.found else None
        return said and _TWO_LETTER_NAMES.sub(lambda name: en.letters(name.group()), said)

    return say_address


def _say_code(shape: Shape) -> str | None:
    written, groups = shape.written, shape.groups
    if len(groups) == 2 and shape.form == "dashed" and not names_code(shape) and _is_round(groups):
        return None  # "100-1500" is a range
    if shape.form == "number" and len(written) > 16 and len(written.lstrip("+0123456789")):
        return None
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
        said.pop()
    return " ".join(said)


def _say_hash(shape: Shape) -> str:
    """ "#04-123", "#22/117"."""
    joint = " slash " if "/" in shape.written else ", "
    return f"number {joint.join(map(en.digits, shape.groups))}"


def _say_amount(shape: Shape) -> str | None:
    """A number with its unit. Four digits that may be a year are one if nothing is counted."""
    written, unit = shape.written, shape.unit
    number = written.lstrip("+")
    sign = "plus " if written.startswith("+") else ""
    if unit is not None and unit["weak"] and names_code(shape):
        shape.unit = unit = None
    if len(number.replace(",", "").partition(".")[0]) > 1 and number[0] == "0" and number.isdigit():
        return sign + en.digits(number)
    return sign + say_quantity(shape, number)


def _say_year(shape: Shape) -> str | None:
    return en.year(int(shape.written)) if shape.unit is None and shape.written.isdigit() else None


_OPEN = re.compile(rf"(?:{dates.WEEKDAY}|day|open|from|hours)[,:]?\s$", re.IGNORECASE)


_SECTION = re.compile(r"(?:§|\bsection)\s?$", re.IGNORECASE)
"""Before the number of a paragraph: "§12-4" is not a range."""


def _say_range(shape: Shape) -> str | None:
    first, last = (part.strip() for part in re.split(r" ?[~∼〜–—-] ?", shape.written, maxsplit=1))
    has_more = "-" in last or "–" in last
    if has_more or re.match("0[0-9]", first) or _SECTION.search(shape.left):
        return None
    is_spaced = " " in shape.written and not _OPEN.search(shape.left)
    if (is_spaced and float(first.replace(",", "")) >= float(last.replace(",", ""))) or re.match(r"\s?=", shape.right):
        return f"{en.number(first)} minus {en.number(last)}"
    if first == last == "50":
        return "fifty fifty"
    joint = "and" if re.search(r"\bbetween\s$", shape.left, re.IGNORECASE) else "to"
    return say_measured(shape, f"{en.number(first)} {joint} {en.number(last)}", is_one=False)


def _say_measured_range(shape: Shape) -> str | None:
    """ "110-240V"."""
    return _say_range(shape) if shape.unit is not None and not shape.unit["counted"] else None


def _say_size(shape: Shape) -> str:
    """ "8.5 x 11", "3 x 50mg", "5 x 3 = 15"."""
    numbers = re.split(r" ?[x×X*] ?", shape.written)
    written = shape.unit and (shape.unit["written"] or shape.unit["tight"])
    is_product = "*" in shape.written or re.match(r"\s?=", shape.right) or (written and written not in LENGTHS)
    first = [en.number(number) for number in numbers[:-1]]
    said = (" times " if is_product else " by ").join([*first, say_quantity(shape, numbers[-1])])
    if shape.unit is not None or (inches := _INCHES_OF_SIZE.match(shape.right)) is None:
        return said
    shape.end += inches.end()
    return f"{said} {'inch' if inches['noun'] else 'inches'}"


_INCHES_OF_SIZE = re.compile(
    r"\s?in(?:(?=\.?(?:\s*$|[,;:)])|\.\s[A-Z]|\s(?:and|or|by)\b)|(?=\s(?P<noun>prints?|photos?|frames?|box(?:es)?|posters?)\b))"
)


def _say_parts(joint: str) -> Say:
    return lambda shape: joint.join(en.number(part) for part in re.split(r"\s?[:.]\s?", shape.written))


def _say_ip(shape: Shape) -> str:
    host, _, port = shape.written.partition(":")
    said = " dot ".join(en.digits(part) for part in host.split("."))
    return f"{said} colon {en.digits(port)}" if port else said


def _say_version(shape: Shape) -> str | None:
    """ "v2.10.3", "3.10.12"."""
    parts = shape.written.lstrip("vV").split(".")
    is_named = re.search(r"\bversion:?\s$", shape.left, re.IGNORECASE)
    if shape.written[0] in "vV" and len(parts) == 1 and len(parts[0]) > 3:
        return None
    said = " point ".join(en.number(part) if len(part) < 4 else en.digits(part) for part in parts)
    return f"version {said}" if shape.written[0] in "vV" and not is_named else said


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
    if (unit is not None and unit["counted"]) or re.search(r"\b(?:unit|flat|apt\.?|lot)\s$", shape.left, re.IGNORECASE):
        return ", ".join(numbers)
    if re.search(r"\b(?:tier|level|phase|grade)\s$", shape.left, re.IGNORECASE):
        return " or ".join(numbers)
    if "." in parts[0] and "." not in parts[1] and unit is None:
        return " out of ".join(numbers)
    is_pressure = unit is None or unit["written"] == "mmHg"
    return say_measured(shape, (" over " if is_pressure else ", ").join(numbers), is_one=False)


def _say_rating(shape: Shape) -> str:
    return " out of ".join(en.number(part) for part in shape.written.split("/"))


def _say_fraction(shape: Shape) -> str | None:
    rating = EVIDENCE["rating"].behind
    if rating is not None and rating.match(shape.right):
        return None
    said = en.fraction(int(shape.groups[0]), int(shape.groups[1]))
    return say_measured(shape, said, is_one=True)


def _say_mixed_fraction(shape: Shape) -> str | None:
    """ "2 1/2", "2½"."""
    parts = tuple(map(int, shape.groups[1:]))
    top, bottom = parts or vulgar_fraction(unicodedata.numeric(shape.written[-1])) or (0, 0)
    if not 0 < top < bottom:
        return None
    return f"{en.number(shape.groups[0])} and {'a half' if bottom == 2 else en.fraction(top, bottom)}"


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


def _say_named(shape: Shape) -> str | None:
    """ "iOS17.4", "PM2.5"."""
    found = shape.found
    return found and f"{_say_run(found['name'], False, False)} {en.number(found['number'])}"


def _say_slashed_code(shape: Shape) -> str | None:
    """ "ABC/123/45", "H/12345"."""
    return " slash ".join(en.digits(part) if part.isdigit() else part for part in shape.written.split("/"))


def _say_house_number(shape: Shape) -> str | None:
    """ "1600 Pennsylvania Avenue" is read in pairs of digits; "350 5th Avenue" too, with a pause: it is not 355th."""
    written, joint = shape.written, "," if _NUMBERED_STREET.match(shape.right) else ""
    first, last = int(shape.groups[0]), int(shape.groups[-1])
    if "-" in written:  # "48-02 Vernon Blvd" and "31-10 47th Ave"; "10-12 Main St" are two houses
        return en.pair(first, last) + joint if joint or last <= max(9, first) else None
    if written[0] == "0":
        return None
    said = en.pair(*divmod(first, 100)) if len(written) == 3 else en.year(first)
    return (en.digits(written) if len(written) > 4 else said) + joint


def _say_height(shape: Shape) -> str:
    feet, inches = (int(group) for group in shape.groups)
    if shape.written[-1].isdigit():
        return f"{en.cardinal(feet)} {en.cardinal(inches)}"
    said = f"{en.cardinal(feet)} {'foot' if feet == 1 else 'feet'}"
    return f"{said} {en.cardinal(inches)} {'inch' if inches == 1 else 'inches'}"


_SIZED = "tvs?|screens?|monitors?|laptops?|displays?|tablets?|televisions?|pizzas?|pipes?|wheels?|rims?|models?"
_SIZED_BEHIND = re.compile(rf"\s(?:(?:and|or|to) (?:an? )?[0-9.]+[\"″”]\s)?(?:{_SIZED}|ones?)\b", re.IGNORECASE)
_SIZED_BEFORE = re.compile(rf"\b(?:{_SIZED}|measures?|size|diagonal|width|height|length|depth)\b", re.IGNORECASE)
_OPEN_QUOTE = re.compile(r"(?<![\w.,!?%)])[\"“][^\"“”]*$")
_N_QUOTED = 200
"""An opening quotation mark is looked for in so many characters."""


def _say_inches(shape: Shape) -> str | None:
    """ "a 15.6\" laptop", "The TV is 55\"", "a 3/4\" pipe"; behind an opening quotation mark it is the closing one.

    At the end of a sentence the opening one may stand in the sentence before.
    """
    quoted = shape.text[max(0, shape.start - _N_QUOTED) : shape.start]
    is_measured = re.match(r"\s[A-Za-z]|,\s[a-z]", shape.right) or _SIZED_BEFORE.search(shape.left)
    if _OPEN_QUOTE.search(quoted) or not is_measured:
        return None
    numbers = [int(group) for group in shape.groups]
    is_fraction = "/" in shape.written
    if is_fraction and len(numbers) == 2:
        return f"{en.fraction(*numbers)} inch"
    parts = re.split("[-–]", shape.written[:-1])
    said = _say_mixed_fraction(shape) if is_fraction else " to ".join(map(en.number, parts))
    is_one = said == "one" or _SIZED_BEHIND.match(shape.right) or is_adjective(shape, shape.end)
    return said and f"{said} {'inch' if is_one else 'inches'}"


_THING = re.compile(r"\s(?!(?:per|an?|daily|weekly|each|every|or|and|the|in|at|is|as|more|faster|speed|zoom)\b)[a-z]")
_LIST = re.compile(r"[0-9] ?x(?: [a-z]+){1,2}(?:,| and) [0-9] ?x\b")


def _say_times(shape: Shape) -> str:
    """ "3x", "3 x $5"; of things, in "2 x Large Fries", "1x curry" and lists, only the number is said."""
    number = re.sub(r"\s?[xX×]", "", shape.written)
    if shape.written[-1] == "X" and names_code(shape):
        return None  # bus 38X
    is_listed = number == "1" or _LIST.search(shape.left + shape.written + shape.right)
    if (is_listed and _THING.match(shape.right)) or (" " in shape.written and re.match(r"\s[A-Z]", shape.right)):
        return en.number(number)
    return f"{en.number(number)} time{'' if number == '1' else 's'}"


def _say_big(shape: Shape) -> str | None:
    """ "10k", "100K"; "4K" and "14K" are names, and a lamp has 2700K."""
    found = shape.found
    if found is None or (found["scale"] == "K" and len(found["number"]) < 3):
        return None
    if found["scale"] == "K" and re.fullmatch("[0-9],?[0-9]{3}", found["number"]):
        return f"{en.number(found['number'])} kelvin"
    return f"{en.number(found['number'])} {money.say_scale(found['scale'])}"


def _say_comma_quantity(shape: Shape) -> str | None:
    """ "12,5 %", "1,5 GB", "3,5 million". With two digits after the comma it may be a list."""
    found = shape.found
    unit = shape.unit
    if found is None or (unit is None and not found["first"]) or (unit and (unit["weak"] or unit["tight"])):
        return None
    said = en.number(from_comma(found["number"]))
    if found["first"]:
        said = f"{en.number(from_comma(found['first']))} to {said}"
    return say_measured(shape, said, is_one=False)


_THINGS = re.compile(
    r"\s(?:customers|orders|users|tickets|messages|stores|results|members|visitors|employees|products|parcels)\b"
)


def _say_emergency(shape: Shape) -> str | None:
    """911 and 999 are telephone numbers wherever they count nothing."""
    return None if shape.unit is not None or _THINGS.match(shape.right) else en.digits(shape.written)


def _say_decimal(shape: Shape) -> str:
    said = f"point {en.digits(shape.written)}"
    return say_measured(shape, said, is_one=False)


def _say_formula(shape: Shape) -> str | None:
    """ "x^2", "10^-6", r"\\frac{1}{2}"."""
    found = shape.found
    if found is None:
        return None
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
    article = "the " if is_day and not re.match(rf"\s(?:{_STREET_WORD})\b", shape.right) else ""
    return article + en.ordinal(int(digits)) if len(digits) <= 15 else en.digits(digits)


_SIDES = {"W": " wide", "D": " deep", "H": " high", "L": " long", None: ""}
_SIDE = rf"(?P<number>(?>{NUMBER}))\s?(?P<unit>[\"″'′]|cm|mm|m|in|ft)(?:\s?(?P<side>[WDHL])(?![A-Za-z0-9]))?"
_ANY_SIDE = re.sub(r"\?P<[a-z]+>", "?:", _SIDE)
_SIZE_NAMES = {'"': ("inch", "inches"), "″": ("inch", "inches"), "in": ("inch", "inches"), "'": ("foot", "foot")}


def _say_sizes(shape: Shape) -> str:
    """ "55cm x 40cm x 20cm", "10'x12'", "48\" W x 24\" D"."""
    said = []
    for side in re.finditer(_SIDE, shape.written):
        one, many = _SIZE_NAMES.get(side["unit"].replace("′", "'")) or UNITS[side["unit"]]
        said.append(f"{en.number(side['number'])} {one if side['number'] == '1' else many}{_SIDES[side['side']]}")
    return " by ".join(said)


def _say_zone(shape: Shape) -> str:
    """ "GMT+8", and "EST" alone."""
    name, sign = en.letters(shape.written.rstrip("+-0123456789")), "plus" if "+" in shape.written else "minus"
    return f"{name} {sign} {en.number(shape.groups[0])}" if shape.groups else name


def _say_blood(shape: Shape) -> str:
    return f"{en.letters(shape.written[:-1])} {'positive' if shape.written[-1] == '+' else 'negative'}"


def _say_vanity(shape: Shape) -> str | None:
    """ "1-800-FLOWERS": the word stays, because people remember it."""
    found = shape.found
    return found and f"{en.groups(found['digits'])}, {found['words'].replace('-', ' ')}"


_CLOTHES = "(?:[2-6]X[SL]|X{1,4}[SL]|[SML])"
_ZONES = "IST|E[SD]T|P[SD]T|C[SD]T|AK[SD]T|GMT|UTC|A[EWC][SD]T|NZ[SD]T|CES?T|EES?T|JST|KST"
_ZONES_OF_TIMES = "[ECMP]T|M[SD]T|BST|WAT|EAT|CAT|GST|PKT|WIB|SGT|HKT|SAST"
_COUNTS = r"\s(?:(?:to|or|and)\s[0-9]|(?:business |working )?(?:minutes|hours|days?|weeks|months|years|times)\b)"
"""What stands behind a number that is not the end of the code before it."""
_STREET_WORD = "St|Street|Ave|Avenue|Road|Rd|Drive|Lane|Ln|Blvd|Boulevard|Way|Court|Place|Pkwy|Parkway"
_NAMED_STREET = rf"(?:\s[NSEW]\.?)?(?:\s[A-Z][a-z]{{1,20}}){{1,3}}\s(?:{_STREET_WORD})\b"
_NUMBERED_STREET = re.compile(
    rf"\s(?:[0-9]{{1,3}}(?:st|nd|rd|th)|First|Second|Third|Fourth|Fifth|Sixth|Seventh|Eighth|Ninth)\s(?:{_STREET_WORD})\b"
)
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", addresses.EMAIL), ("url", addresses.URL),
    ("formula", re.compile(
        r"\$?(?<![A-Za-z0-9])(?P<base>[A-Za-z]|[0-9]{1,6})\^\{?(?P<power>-?[0-9]{1,3})\}?\$?|"
        r"\\frac\{(?P<top>[0-9]{1,4})\}\{(?P<bottom>[0-9]{1,4})\}"
    )),
    ("roman", words.ROMAN), ("street", words.STREET), ("word", words.WORD),
    ("numero", words.NUMERO), ("direction", words.DIRECTION), ("hyphenated", words.HYPHENATED),
    ("always", re.compile(r"(?:24[/x]7|20/20)(?![0-9/])")),
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
    ("pair", re.compile("[0-9]{2,4}/[0-9]{3}/[0-9]{1,3}(?:/[0-9]{1,3})?(?![0-9/])")),
    ("keys", re.compile(r"(?:\*[*#]|##)[0-9]{1,20}(?:\*\+?[0-9]{1,20}){0,4}[*#](?![0-9A-Za-z*])")),
    ("zone", re.compile(
        rf"(?:GMT|UTC)[+-][0-9]{{1,2}}(?![0-9])|(?:{_ZONES})(?![A-Za-z0-9])"
        rf"|(?:(?<=:[0-9]{{2}} )|(?<=[0-9 ][apAP][mM] )|(?<=[ap][.]m[.] ))(?:{_ZONES_OF_TIMES})(?![A-Za-z0-9])"
    )),
    ("blood", re.compile(r"(?:AB|[ABO])[-+](?=\s(?:blood|type|donor|plasma))")),
    ("letters", re.compile(
        rf"(?:Q[1-4][-–]Q[1-4]|{_CLOTHES}[-–]{_CLOTHES}|[A-Z]–[A-Z]|(?<=[a-rt-z]s )[A-Z]-[A-Z])(?![A-Za-z0-9])"
    )),
    ("rand", money.RAND), ("rupiah", money.RUPIAH),
    ("money_with_comma", money.WITH_COMMA), ("money", money.MONEY), ("money_behind", money.BEHIND),
    *dates.FORMS,
    ("measured_range", re.compile(rf"(?>{NUMBER})[-–](?>{NUMBER})(?=[A-Za-z%°])")),
    ("comma_quantity", re.compile(
        r"(?<![0-9.,])(?:(?P<first>[0-9]{1,3},[0-9])\s?(?:-|–|\bto\b)\s?)?(?P<number>[0-9]{1,3},[0-9])(?![0-9]|"
        r"[.,-][0-9])"
    )),
    ("version", re.compile(
        r"[vV][0-9]{1,6}(?:\.[0-9]{1,6}){0,6}(?![0-9A-Za-z-])"
        r"|(?:(?<=\bPython )|(?<=\b[Bb]uild ))[0-9]{1,5}\.[0-9]{1,5}(?![0-9]|\.[0-9])"
    )),
    ("hundreds", re.compile(r"100s(?=\sof\b)")),
    ("ordinal", re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})(?:st|nd|rd|th)(?![A-Za-z])", re.IGNORECASE)),
    ("sizes", re.compile(rf"{_ANY_SIDE}(?:\s?[x×X]\s?{_ANY_SIDE}){{1,3}}(?![A-Za-z0-9])")),
    ("inches", re.compile(
        r"(?:(?:[0-9]{1,2}[ -])?[0-9]{1,2}/[0-9]{1,2}|(?:[0-9]{1,3}[-–])?[0-9]{1,3}(?:\.[0-9]{1,2})?)[\"″”]"
    )),
    ("mixed_fraction", re.compile(r"[0-9]{1,6}(?:[\s-][0-9]{1,2}/[0-9]{1,2}(?![0-9/])|\s?[¼-¾⅐-⅞])")),
    ("height", re.compile(
        r"[1-9](?:'|′|\s?ft\.?)\s?(?:1[01]|[0-9])(?:\"|″|''|\s?in(?:ch(?:es)?)?\.?(?![A-Za-z]))|[1-9]['′](?:1[01]|"
        r"[0-9])(?![0-9'])"
    )),
    ("per_unit", units.PER_UNIT),
    ("big", re.compile(rf"(?P<number>(?>{NUMBER}))(?P<scale>[kKM](?![A-Za-z0-9])|bn(?![A-Za-z0-9]))")),
    ("times", re.compile(rf"(?>{NUMBER})(?:[xX×](?![A-Za-z0-9])|\s[xX×](?=\s[A-Za-z$€£₹]))")),
    ("house_number", re.compile(
        rf"(?:[0-9]{{1,5}}|[0-9]{{1,3}}-[0-9]{{2}})(?={_NUMBERED_STREET.pattern})"
        rf"|[0-9]{{4}}(?=\s[NS][EW]{_NUMBERED_STREET.pattern})"
        rf"|[0-9]{{1,3}}-[0-9]{{2}}(?={_NAMED_STREET})"
        rf"|[0-9]{{4}}(?=(?:\s[A-Z][a-z]{{1,20}}){{1,3}}\s(?:{_STREET_WORD})\b)"
    )),
    ("emergency", re.compile(r"(?:911|999)(?![0-9A-Za-z]|[.,:/-][0-9])")),
    ("decimal", re.compile(r"(?<![A-Za-z0-9.])\.[0-9]+")),
)  # fmt: skip


def _tables(day_first: bool) -> reader.Tables:
    return reader.Tables(
        unit=UNIT,
        evidence=EVIDENCE,
        say={
            "email": _say_address(_SAY_EMAIL), "url": _say_address(_SAY_URL), "formula": _say_formula,
            "roman": words.say_roman, "street": words.say_street,
            "word": words.say_word,
            "numero": words.say_numero,
            "direction": lambda shape: "".join(words.DIRECTIONS[letter] for letter in shape.written.rstrip(".")),
            "hyphenated": lambda shape: shape.written[:-1] + " ",
            "always": lambda shape: " ".join(en.number(group) for group in shape.groups),
            "airliner": _say_code, "vanity": _say_vanity, "telephone": _say_telephone,
            "grouped_code": lambda shape: ", ".join(en.letters(part) for part in re.split("[ :]", shape.written)),
            "slashed_code": _say_slashed_code, "hash": _say_hash,
            "zone": _say_zone, "blood": _say_blood,
            "letters": lambda shape: " to ".join(_say_place(part) for part in re.split("[-–]", shape.written)),
            "rand": money.say_rand, "rupiah": money.say_rupiah, "money_with_comma": money.say_with_comma,
            "money": money.say_money, "money_behind": money.say_money_behind,
            **dates.say(day_first),
            "comma_quantity": _say_comma_quantity, "version": _say_version, "hundreds": lambda shape: "hundreds",
            "ordinal": _say_ordinal, "mixed_fraction": _say_mixed_fraction,
            "sizes": _say_sizes, "measured_range": _say_measured_range,
            "height": _say_height, "inches": _say_inches, "big": _say_big,
            "per_unit": lambda shape: shape.found and f"{shape.written.split()[0]} {UNITS[shape.found['unit']][0]}",
            "times": _say_times, "house_number": _say_house_number, "emergency": _say_emergency,
            "decimal": _say_decimal,
            "mask": _say_mask, "keys": _say_keys, "code": _say_code, "amount": _say_amount, "year": _say_year,
            "range": _say_range, "size": _say_size, "ratio": _say_ratio,
            "ip": _say_ip, "pair": _say_pair, "rating": _say_rating, "fraction": _say_fraction, "named": _say_named,
            "mixed": _say_mixed,
        },
        signs=say_sign,
        trigger=reader.trigger(
            rf"(?<![A-Za-z0-9])(?:{any_case('jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec')}"
            rf"|(?:{words.NUMBERED})\s[IVX]|(?:{words.RULERS})\s[A-Z]|Mon|Tue|Wed|Thu|Fri|Sat|Sun"
            rf"|(?:{any_case(words.WITHOUT_STOP)})(?![A-Za-z])"
            rf"|(?:{_ZONES}|{_ZONES_OF_TIMES})(?![A-Za-z])"
            r"|[Pp]er\s(?=[A-Za-zµμ°])|a\skWh|(?:St|Ave|Rd|Blvd|Ln|Dr|Pkwy|Ct|Pl|Fl|Rs|Rp)(?![A-Za-z])|Nos?\s[0-9]|[ABO]{1,2}[-+]\s"
            r"|[A-Z]{1,3}\$|(?:[A-Z]{3}|Rs|Rp|RM|R)\s?[0-9]|[A-Z]{1,4}[-–][0-9A-Z]|[A-Za-z]\^)"
            rf"|\s(?:【|\[[0-9])|【|[NSEW](?<=[0-9] [NSEW])[EW]? |\.(?<![A-Za-z0-9.]\.)[0-9]|['’][0-9]0s"
            rf"|\(0[0-9]{{2,4}}\)|\([0-9]{{3}}\)|[{UNIT_CHARACTERS}]|[\[\]√]|\([a-z]{{4,12}}[ )]|[√§∞‰µ℡]"
            r"|[\u00b9\u2070-\u2079\u2080-\u2089\u2150-\u2188\u2460-\u249b\u24ea-\u24ff\u2776-\u2793]"
        ),
        forms=reader.Forms(_FORMS),
        sentence_end=re.compile(r"[!?…](?=\s)|(?<=[A-Za-z0-9)\"'%][A-Za-z0-9)\"'%])\.(?=\s+[A-Z])|\n"),
    )


def _say_ratio(shape: Shape) -> str | None:
    return None if shape.form == "dashed" else _say_parts(" to ")(shape)


ENGLISH = _tables(day_first=False)
ENGLISH_DAY_FIRST = replace(ENGLISH, say={**ENGLISH.say, **dates.say(day_first=True)})
"""For the regions that write the day before the month: 03/12 is the third of December."""
DAY_FIRST_REGIONS = frozenset(["gb", "uk", "au", "in", "sg", "nz", "ie", "za", "hk", "my", "ke", "ng", "pk"])
