"""English units of measure, nouns that a number surely counts, sizes and other quantities."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import names_code
from telephony_tts.text.languages.english.money import forms, is_adjective, say_scale
from telephony_tts.text.languages.english.words import STREET_WORD
from telephony_tts.text.patterns import NUMBER, from_comma, vulgar_fraction
from telephony_tts.text.reader import Say, Shape

_TABLE = """
kg kgs Kg KG ㎏: kilogram~|g gm: gram~|mg ㎎: milligram~|µg μg mcg: microgram~|ng: nanogram~|lb lbs: pound~|oz: ounce~
tbsp: tablespoon~|tsp: teaspoon~|km KM ㎞: kilometer~|m: meter~|cm CM ㎝: centimeter~|mm MM ㎜: millimeter~
µm: micrometer~|nm: nanometer~|mi: mile~|ft: foot/feet|yd: yard~|L l: liter~|mL ml ML ㎖: milliliter~|gal: gallon~
kL: kiloliter~|c: cent~|p: penny/pence|hp HP: horsepower|pcs pc: piece~|cl: centiliter~|dL dl: deciliter~
km/h kph kmh: kilometer~ per hour|m/s: meter~ per second|mph: mile~ per hour|mpg: mile~ per gallon
fl oz;fl. oz.: fluid ounce~|rpm: revolution~ per minute|bpm: beat~ per minute|fps: frame~ per second
°C;° C;℃;º C;ºC: degree~ Celsius|px: pixel~|°F;° F;℉: degree~ Fahrenheit|° º: degree~|GB: gigabyte~|TB: terabyte~
MB: megabyte~|KB kB: kilobyte~|t: ton~|Mbps mbps Mb/s: megabit~ per second|Gbps gbps Gb/s: gigabit~ per second
Kbps kbps: kilobit~ per second|dpi: dot~ per inch|MB/s: megabyte~ per second|GB/s: gigabyte~ per second
KB/s: kilobyte~ per second|Hz: hertz|kHz: kilohertz|MHz: megahertz|GHz: gigahertz|W: watt~|kW KW: kilowatt~
MW: megawatt~|kWh KWh kwh kW·h: kilowatt hour~|MWh: megawatt hour~|Wh: watt hour~|V: volt~|kV: kilovolt~
mV: millivolt~|mA: milliamp~|mAh: milliamp hour~|Ω: ohm~|dB: decibel~|kPa: kilopascal~|A: amp~|hPa: hectopascal~
psi: pound~ per square inch|kcal: kilocalorie~|kJ: kilojoule~|mmHg: millimeter~ of mercury|IU: international unit~
mmol: millimole~|µmol μmol umol: micromole~|nmol: nanomole~|mol: mole~|mEq: milliequivalent~|pg: picogram~|U: unit~
mIU: milli international unit~|pts: point~|cal: calorie~|lm: lumen~|btl: bottle~|qt qts: quart~|pt: pint~
cu ft;cu. ft: cubic foot/cubic feet|bps: basis point~|Mb: megabit~|Gb: gigabit~|kg/m²: kilogram~ per square meter
min mins: minute~|hr hrs h: hour~|sec secs s: second~|ms: millisecond~|wk wks: week~|yr yrs: year~
mo mos mth mths: month~|m²;m2;m^2;㎡;sqm;sq m: square meter~|km² km2: square kilometer~|ppm: part~ per million
cm² cm2: square centimeter~|mm²: square millimeter~|ft²;ft2;sqft;sq ft;sq. ft;sq.ft: square foot/square feet
acres: acres|m³ m3 m^3 ㎥: cubic meter~|cm³ cm3: cubic centimeter~|%: percent|‰: per mille|%p pp: percentage point~
"""
UNITS: dict[str, tuple[str, str]] = {}
"""What is written -> one, many."""
for _entry in _TABLE.replace("\n", "|").strip("|").split("|"):
    _written, _, _name = _entry.partition(": ")
    for _part in _written.split(";"):
        for _each in [_part] if ";" in _written else _part.split(" "):
            UNITS[_each] = forms(_name)
UNIT_CHARACTERS = "".join(written for written in UNITS if len(written) == 1 and not written.isascii())
_NO_LETTER = (written for written in UNITS if len(written) > 1 or not written.isalpha())
_ANY = "|".join(re.escape(written) for written in sorted(_NO_LETTER, key=len, reverse=True))
_SURE = (
    "dollars?|cents?|euros?|pounds?|rupees?|percent|minutes?|hours?|days?|weeks?|months?|years?|seconds?|times?|items?|"
    "points?|miles?|business|working|calendar|people|persons?|guests?|nights?|characters?|credits?|kilo[a-z]*|units?|"
    "thousand|million|billion|trillion|lakhs?|crores?|square|feet|foot|inches|calories|copies"
)
UNIT = re.compile(
    rf"(?:(?P<plus>\+)?(?:\s|(?P<hyphen>-))?(?P<written>{_ANY})(?![A-Za-z0-9²³])"
    r"|(?P<tight>[A-Za-z])(?:(?<=[0-9][gmLlhsWVtU])(?<![0-9]{4}s)|(?<=\.[0-9][cp])|(?<=\.[0-9][0-9][cp])"
    r"|(?<=[0-9][cp])(?=\s?/\s?[A-Za-z]|\s(?:per|each|off|cheaper)\b)"
    r"|(?<=[0-9]p)(?<![0-9]{3}p)(?=\sa (?:day|week|month|minute|text|call|mile|litre|unit)\b)"
    r"|(?<=[0-9]A)(?=/[0-9]{1,3}V|\s(?:breaker|fuse|circuit|plug|socket|outlet|charger|hookup)s?\b))(?![A-Za-z0-9²³'’-])"
    rf"|\s(?P<weak>[gmLlhsVtU]|W(?!\.\s[A-Z0-9][a-z0-9]{{1,20}}\s(?:{STREET_WORD})))(?![A-Za-z0-9²³'’-]|\s[A-Z0-9])"
    rf"|[\s-](?P<counted>(?:{_SURE}))(?![A-Za-z]))(?P<stop>\.(?=\s(?:[a-z]|[NSEW]\.)|[,;:)]))?"
    r"|\s?(?P<inches>in)(?:\.(?=\s[a-z]|[,;:])|(?=\s(?:wide|long|tall|thick|deep|high|across)(?:[.,;:)]|$|\s(?:and|by|x|or|at)\b)"
    r"|\s(?:of\s(?:rain|snow)|monitor|screen|display|laptop|tv)\b))"
)
"""What is measured or counted behind a number. A letter with a blank before it may belong to a code."""
_LENGTHS = frozenset(("cm", "mm", "m", "ft", "km", "px", "yd", "mi"))
_MILLIONS = re.compile(r"\s(?:users|people|customers|members|subscribers|views|downloads|visitors|accounts|homes)\b")


_PACKED = frozenset(("oz", "GB", "TB", "g", "kg", "ml", "mL", "cl", "L", "l", "cm"))
_NAMED = re.compile(r"\s(?:is|costs|comes|has|was)\b")


def _is_name(shape: Shape, written: str) -> bool:
    """Whether a thing is called by its size: "the 10oz is £26"."""
    is_joined = shape.text[shape.end - len(written) - 1].isdigit()
    return is_joined and shape.left.lower().endswith("the ") and _NAMED.match(shape.text, shape.end) is not None


def say_measured(shape: Shape, said: str, is_one: bool) -> str:
    """`said`, which is a number or a range, with the unit of `shape`. The shape ends behind what is said."""
    unit = shape.unit
    if unit is None or unit["counted"]:
        return said
    written = unit["written"] or unit["tight"] or unit["weak"]
    shape.end = unit.end()
    if unit["plus"]:
        said += " plus"
    if unit["inches"]:
        return f"{said} {'inch' if is_one or is_adjective(shape, shape.end) else 'inches'}"
    if written == "m" and _MILLIONS.match(shape.text, shape.end):
        return f"{said} million"
    one, many = UNITS[written]
    is_one = is_one or (written in _PACKED and _is_name(shape, written))
    return f"{said} {one if is_one or unit['hyphen'] or is_adjective(shape, shape.end) else many}"


def say_quantity(shape: Shape, number: str) -> str:
    return say_measured(shape, en.number(number), number == "1")


def _say_size(shape: Shape) -> str:
    """ "8.5 x 11", "3 x 50mg", "5 x 3 = 15"."""
    numbers = re.split(r" ?[x×X*] ?", shape.written)
    written = shape.unit and (shape.unit["written"] or shape.unit["tight"])
    is_product = "*" in shape.written or re.match(r"\s?=", shape.right) or (written and written not in _LENGTHS)
    first = [en.number(number) for number in numbers[:-1]]
    said = (" times " if is_product else " by ").join([*first, say_quantity(shape, numbers[-1])])
    inches = _INCHES_OF_SIZE.match(shape.right)
    if shape.unit is not None or inches is None or (not inches.group().strip().isalpha() and _is_quoted(shape)):
        return said
    shape.end += inches.end()
    return f"{said} {'inch' if inches['noun'] else 'inches'}"


_INCHES_OF_SIZE = re.compile(
    r"\s?in(?:(?=\.?(?:\s*$|[,;:)])|\.\s[A-Z]|\s(?:and|or|by)\b)|(?=\s(?P<noun>prints?|photos?|frames?|box(?:es)?|posters?)\b))|[\"″]"
)


def _say_mixed_fraction(shape: Shape) -> str | None:
    """ "2 1/2", "2½"."""
    parts = tuple(map(int, shape.groups[1:]))
    top, bottom = parts or vulgar_fraction(unicodedata.numeric(shape.written[-1])) or (0, 0)
    if not 0 < top < bottom:
        return None
    return f"{en.number(shape.groups[0])} and {'a half' if bottom == 2 else en.fraction(top, bottom)}"


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


def _is_quoted(shape: Shape) -> bool:
    """Whether a quotation mark behind the shape is the closing one."""
    return _OPEN_QUOTE.search(shape.text, max(0, shape.start - _N_QUOTED), shape.start) is not None


def _say_inches(shape: Shape) -> str | None:
    """ "a 15.6\" laptop", "The TV is 55\"", "a 3/4\" pipe"; behind an opening quotation mark it is the closing one.

    At the end of a sentence the opening one may stand in the sentence before.
    """
    is_measured = re.match(r"\s[A-Za-z]|,\s[a-z]", shape.right) or _SIZED_BEFORE.search(shape.left)
    if not is_measured or _is_quoted(shape):
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


def _say_times(shape: Shape) -> str | None:
    """ "3x", "3 x $5"; of things, in "2 x Large Fries", "1x curry" and lists, only the number is said."""
    number = re.sub(r"\s?[xX×]", "", shape.written)
    if shape.written[-1] == "X" and names_code(shape):
        return None  # bus 38X
    is_listed = number == "1" or _LIST.search(shape.left + shape.written + shape.right)
    if (is_listed and _THING.match(shape.right)) or (" " in shape.written and re.match(r"\s[A-Z]", shape.right)):
        return en.number(number)
    return f"{en.number(number)} time{'' if number == '1' else 's'}"


_RACE = re.compile(r"\s(?:charity |fun |park |night |trail )?(?:run|race|walk|jog|swim)\b")


def _say_big(shape: Shape) -> str | None:
    """ "10k", "100K"; "4K" and "14K" are names, a lamp has 2700K, and a race is a 5k run."""
    found = shape.found
    if found["scale"] in "kK" and _RACE.match(shape.right):
        return None
    if found["scale"] == "K" and len(found["number"]) < 3:
        return None
    if found["scale"] == "K" and re.fullmatch("[0-9],?[0-9]{3}", found["number"]):
        return f"{en.number(found['number'])} kelvin"
    return f"{en.number(found['number'])} {say_scale(found['scale'])}"


def _say_comma_quantity(shape: Shape) -> str | None:
    """ "12,5 %", "1,5 GB", "3,5 million". With two digits after the comma it may be a list."""
    found = shape.found
    unit = shape.unit
    if (unit is None and not found["first"]) or (unit and (unit["weak"] or unit["tight"])):
        return None
    said = en.number(from_comma(found["number"]))
    if found["first"]:
        said = f"{en.number(from_comma(found['first']))} to {said}"
    return say_measured(shape, said, is_one=False)


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


FORMS = (
    ("comma_quantity", re.compile(
        r"(?<![0-9.,])(?:(?P<first>[0-9]{1,3},[0-9])\s?(?:-|–|\bto\b)\s?)?(?P<number>[0-9]{1,3},[0-9])(?![0-9]|"
        r"[.,-][0-9])"
    )),
    ("sizes", re.compile(rf"{_ANY_SIDE}(?:\s?[x×X]\s?{_ANY_SIDE}){{1,3}}(?![A-Za-z0-9])")),
    ("inches", re.compile(
        r"(?:(?:[0-9]{1,2}[ -])?[0-9]{1,2}/[0-9]{1,2}|(?:[0-9]{1,3}[-–])?[0-9]{1,3}(?:\.[0-9]{1,2})?)[\"″”]"
    )),
    ("mixed_fraction", re.compile(
        r"[0-9]{1,6}(?:(?:\s[0-9]{1,2}/[0-9]{1,2}|-[0-9]{1,2}/(?:[2-48]|16))(?![0-9/])|\s?[¼-¾⅐-⅞])"
    )),
    ("height", re.compile(
        r"[1-9](?:'|′|\s?ft\.?)\s?(?:1[01]|[0-9])(?:\"|″|''|\s?in(?:ch(?:es)?)?\.?(?![A-Za-z]))|[1-9]['′](?:1[01]|"
        r"[0-9])(?![0-9'])"
    )),
    ("per_unit", re.compile(
        rf"(?:[Pp]er|a(?=\skWh))\s(?P<unit>{_ANY}|[gmLh])(?<!\spp)(?:\.(?=,|\s[a-z]))?(?![\w²³'’-]|\.\w)"
    )),
    ("big", re.compile(rf"(?P<number>(?>{NUMBER}))(?P<scale>[kKM](?![A-Za-z0-9])|bn(?![A-Za-z0-9]))")),
    ("times", re.compile(rf"(?>{NUMBER})(?:[xX×](?![A-Za-z0-9])|\s[xX×](?=\s[A-Za-z$€£₹]))")),
    ("decimal", re.compile(r"(?<![A-Za-z0-9.])\.[0-9]+")),
)  # fmt: skip
"""The shapes that only English writes, in the order to try them."""
SAY: dict[str, Say] = {
    "comma_quantity": _say_comma_quantity, "size": _say_size, "sizes": _say_sizes, "inches": _say_inches,
    "mixed_fraction": _say_mixed_fraction, "height": _say_height, "big": _say_big, "times": _say_times,
    "decimal": lambda shape: say_measured(shape, f"point {en.digits(shape.written)}", is_one=False),
    "per_unit": lambda shape: f"{shape.written.split()[0]} {UNITS[shape.found['unit']][0]}",
}  # fmt: skip
