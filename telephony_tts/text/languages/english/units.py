"""English units of measure, and nouns that a number surely counts."""

from __future__ import annotations

import re

from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.money import forms, is_adjective
from telephony_tts.text.reader import Shape

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
mIU: milli international unit~|pts: point~|cal: calorie~|lm: lumen~|qt qts: quart~|pt: pint~
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
    "points?|miles?|"
    "business|working|calendar|people|persons?|guests?|nights?|characters?|credits?|kilo[a-z]*|units?|thousand|million|"
    "billion|"
    "trillion|lakhs?|crores?|square|feet|foot|inches|calories|copies"
)
_STREETS = "St|Ave|Rd|Road|Blvd|Dr|Lane|Ln|Way|Pl|Ct"
UNIT = re.compile(
    rf"(?:(?P<plus>\+)?(?:\s|(?P<hyphen>-))?(?P<written>{_ANY})(?![A-Za-z0-9²³])"
    r"|(?P<tight>[A-Za-z])(?:(?<=[0-9][gmLlhsWVtU])|(?<=\.[0-9][cp])|(?<=\.[0-9][0-9][cp])"
    r"|(?<=[0-9][cp])(?=\s?/\s?[A-Za-z]|\s(?:per|each|off|cheaper)\b)"
    r"|(?<=[0-9]A)(?=/[0-9]{1,3}V|\s(?:breaker|fuse|circuit|plug|socket|outlet|charger|hookup)s?\b))(?![A-Za-z0-9²³'’-])"
    rf"|\s(?P<weak>[gmLlhsVtU]|W(?!\.\s[A-Z0-9][a-z0-9]{{1,20}}\s(?:{_STREETS})))(?![A-Za-z0-9²³'’-]|\s[A-Z0-9])"
    rf"|[\s-](?P<counted>(?:{_SURE}))(?![A-Za-z]))(?P<stop>\.(?=\s(?:[a-z]|[NSEW]\.)))?"
    r"|\s?(?P<inches>in)(?:\.(?=\s[a-z]|[,;:])|(?=\s(?:wide|long|tall|thick|deep|high|across)(?:[.,;:)]|$|\s(?:and|by|x|or|at)\b)"
    r"|\s(?:of\s(?:rain|snow)|monitor|screen|display|laptop|tv)\b))"
)
"""What is measured or counted behind a number. A letter with a blank before it may belong to a code."""
LENGTHS = frozenset(("cm", "mm", "m", "ft", "km", "px", "yd", "mi"))
PER_UNIT = re.compile(rf"(?:[Pp]er|a(?=\skWh))\s(?P<unit>{_ANY}|[gmLh])(?<!\spp)(?:\.(?=,|\s[a-z]))?(?![\w²³'’-]|\.\w)")
_MILLIONS = re.compile(r"\s(?:users|people|customers|members|subscribers|views|downloads|visitors|accounts|homes)\b")


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
    return f"{said} {one if is_one or unit['hyphen'] or is_adjective(shape, shape.end) else many}"


def say_quantity(shape: Shape, number: str) -> str:
    return say_measured(shape, en.number(number), number == "1")
