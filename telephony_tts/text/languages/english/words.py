"""English abbreviations as words: titles, streets and their houses, notes, roman numerals."""

from __future__ import annotations

import re

from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.languages.english.evidence import any_case, is_counted
from telephony_tts.text.reader import Say, Shape

_BEFORE_NAMES = """
mr.: Mister|mrs.: Missus|ms.: Miz|prof.: Professor|lt.: Lieutenant|col.: Colonel|capt.: Captain|sgt.: Sergeant
gen.: General|rev.: Reverend|hon.: Honorable|maj.: Major|smt.: Shrimati|mr: Mister|mrs: Missus|ms: Miz|gov.: Governor
sen.: Senator|mt.: Mount
"""
_BEFORE_NUMBERS = """
rte.: route|rte: route|exp.: expires|ref.: reference|acc.: account|inv.: invoice|dep.: departs|arr.: arrives
max.: maximum|min.: minimum|ver.: version|yr.: year|lic.: license|temp.: temperature|app.: appendix|sched.: schedule
ext.: extension|ext: extension|nos.: numbers|no.: number|nr.: number|num.: number|pp.: pages|p.: page|fig.: figure
sec.: section|q.: question|ch.: chapter|art.: article|pg.: page|pgs.: pages|std.: standard|hwy: Highway|hwy.: Highway
fl.: floor|rm.: room|blk: block|blk.: block|qty: quantity|acct: account|apt: apartment|ste: suite|bldg: building
rt.: route|rm: room|vol.: volume
"""
_ELSEWHERE = """
jr.: Junior|sr.: Senior|e.g.: for example|i.e.: that is|etc.: et cetera|vs.: versus|vs: versus|approx.: approximately
approx: approximately|dept.: department|dept: department|govt.: Government|w/o: without|w/e: week ending|w/: with
and/or: and or|n/a: not applicable|c/o: care of|a/c no: account number|a/c: account|p/m: per month|p/a: per annum
p/w: per week|y/o: years old|y.o.: years old|m-f: Monday to Friday|m–f: Monday to Friday|m-th: Monday to Thursday
m–th: Monday to Thursday|m-sat: Monday to Saturday|m–sat: Monday to Saturday|reg. no.: registration number|ea.: each
y/y: year on year|w/c: week commencing|w/in: within|b/c: because|s/n: serial number|p/e: P E|doz.: dozen
m/w/f: Monday, Wednesday, Friday|t/th: Tuesday, Thursday|tu/th: Tuesday, Thursday|unlimited mi.: unlimited miles
bus. days: business days|401(k): four oh one K|401k: four oh one K|403(b): four oh three B|403b: four oh three B
ctrl: control|ave.: Avenue|rd.: Road|blvd.: Boulevard|ln.: Lane|txn: transaction|apt.: apartment|ste.: suite
bldg.: building|acct.: account|qty.: quantity|tel.: telephone|mob.: mobile|est.: estimated|avg.: average
appt.: appointment|appt: appointment|appts: appointments|excl.: excluding|incl.: including|attn: attention
attn.: attention|wk: week|misc.: miscellaneous|1099s: ten ninety nines
p.a.: per annum|p.w.: per week|p.c.m.: per calendar month|inc.: including|inc: including|exc.: excluding
asst.: assistant|sq. mile: square mile|sq. miles: square miles
"""


def _words(table: str) -> dict[str, str]:
    entries = (entry.partition(": ") for entry in table.strip().replace("\n", "|").split("|"))
    return {written: said for written, _, said in entries}


_BEFORE_NAME, _BEFORE_NUMBER = _words(_BEFORE_NAMES), _words(_BEFORE_NUMBERS)
"""Titles, and what is a word only before a number: "my app." and the answer "No." do not count."""
_WORDS = _BEFORE_NAME | _BEFORE_NUMBER | _words(_ELSEWHERE)
_ENDS = frozenset(("etc.", "dept.", "est.", "jr.", "sr.", "y.o.", "appt.", "fl.", "govt.", "p.a.", "p.w.", "p.c.m."))
"""Their full stop is that of the sentence too if nothing or a capital follows."""
_ANY = "|".join(re.escape(written).replace(r"\ ", " ") for written in sorted(_WORDS, key=len, reverse=True))
_NUMBER = re.compile(
    r"\s(?:is|was)\s(?:#\s?)?[$€£₹]?[A-Z0-9]|\s?(?:#\s?)?[$€£₹]?[A-Z]{0,4}-?[0-9]|\s(?:no|nos|number)\.?\s?[0-9]",
    re.IGNORECASE,
)
_LIMITED = re.compile(r"\s(?:of|order|stay|spend|purchase|payment|balance|age|deposit|weight|speed|height)\b")
"""Behind "max." and "min."."""
_TAXED = re.compile(
    r"\s(?:VAT|GST|HST|(?:sales )?tax(?:es)?|bills?|breakfast|delivery|postage|shipping|p ?& ?p|fees?|service|parts|"
    r"labou?r)\b"
)
"""Behind "inc." that is no company."""
_STREETS = {
    "St": "Street", "Ave": "Avenue", "Rd": "Road", "Blvd": "Boulevard", "Ln": "Lane", "Dr": "Drive", "Pkwy": "Parkway",
    "Ct": "Court", "Pl": "Place", "Fl": "floor",
}  # fmt: skip
_HOUSE = re.compile(r"[0-9][A-Z]?\s(?:[NSEW]\.?\s)?(?:[A-Z][a-z]+\s){1,3}$|[0-9](?:st|nd|rd|th)\s$")
_STREET_NAME = re.compile(r"(?:[a-z,;]\s|^)(?:[A-Z][a-z]+\s){1,3}$")
_NAME = re.compile(r"\s(?!(?:Apt|Apartment|Suite|Ste|Unit|Floor|Room|Rm)\b)[A-Z]")
_OWNER = re.compile(r"\b(?:your|my|a|the|his|her|our|their|see|ask|call|visit|contact|tell)\s$", re.IGNORECASE)
_ROMANS = {
    "I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10, "XI": 11, "XII": 12,
}  # fmt: skip
NUMBERED = any_case(
    "chapter|phase|part|section|volume|act|type|stage|class|level|tier|article|title|schedule|appendix|book|step|war|"
    "division"
)
RULERS = "King|Queen|Pope|Prince|Emperor|Saint"

WITHOUT_STOP = "|".join(written for written in _WORDS if re.fullmatch("[a-z–-]{2,}", written))
"""What is an abbreviation without a full stop or a slash."""
STREET_WORD = "St|Street|Ave|Avenue|Road|Rd|Drive|Lane|Ln|Blvd|Boulevard|Way|Court|Place|Pkwy|Parkway"
_NAMED_STREET = rf"(?:\s[NSEW]\.?)?(?:\s[A-Z][a-z]{{1,20}}){{1,3}}\s(?:{STREET_WORD})\b"
_NUMBERED_STREET = re.compile(
    rf"\s(?:[0-9]{{1,3}}(?:st|nd|rd|th)|First|Second|Third|Fourth|Fifth|Sixth|Seventh|Eighth|Ninth)\s(?:{STREET_WORD})\b"
)
_WORD = re.compile(rf"(?<![A-Za-z0-9.])(?:{_ANY})(?![A-Za-z])(?!(?<!\.)['’])", re.IGNORECASE)
_STREET = re.compile(rf"(?:{'|'.join(_STREETS)})(?![A-Za-z'’])\.?")
_NUMERO = re.compile(r"Nos?\s(?=[0-9]{1,6}(?![0-9]))")
_DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_DIRECTION = re.compile(
    r"[NSEW]\.(?=\sof\b)|(?<=[0-9] )[NS]?[NSEW]\.?(?=\s(?:[A-Z][a-z]+|[0-9]{1,3}(?:st|nd|rd|th))\s"
    rf"(?:{STREET_WORD}|Dr|Pl|Ct)\b)"
)
_ROMAN = re.compile(
    rf"(?P<noun>(?:{NUMBERED}|(?P<ruler>{RULERS})(?:\s[A-Z][a-z]+){{1,2}})\s)"
    r"(?P<numeral>VIII|VII|III|XII|IV|VI|IX|XI|II|I|V|X)(?![A-Za-z0-9'’-]|\.[A-Za-z])"
)
"""A roman numeral behind a noun that is numbered, or behind the name of a ruler."""
_HYPHENATED = re.compile(
    r"(?:(?:mid|pre|post)-(?=(?:[12][0-9]{2}0|[1-9]0)['’]?s(?![0-9A-Za-z]))|(?:under|over)-(?=[1-9][0-9]?s(?![0-9A-Za-z])))",
    re.IGNORECASE,
)


def _say_word(shape: Shape) -> str | None:
    written, lower = shape.written, shape.written.lower()
    is_flat = written in ("Apt", "Ste", "Bldg") and re.match(r"\s[A-Z](?![A-Za-z'’])", shape.right)
    is_word = written == "apt" and re.search(r"\b(?:an?|the|very|more|most|is|are)\s$", shape.left)
    is_limit = lower in ("max.", "min.") and _LIMITED.match(shape.right)
    has_number = is_flat or is_limit or (_NUMBER.match(shape.right) and not is_word)
    if written in ("EST.", "RM", "EA.") or (lower in _BEFORE_NUMBER and not has_number):
        return None
    is_title = re.match(r"\s(?:(?:&|and)\s)?[A-Z]", shape.right) and (lower[-1] == "." or written.istitle())
    if lower in _BEFORE_NAME and not is_title:
        return None
    if lower in ("inc.", "inc", "exc.") and (written[0] == "I" or not _TAXED.match(shape.right)):
        return None
    if lower in ("p.a.", "p.w.", "p.c.m.") and not re.search(r"(?:[0-9%km]|percent|million)\s?$", shape.left):
        return None
    if lower == "wk" and not re.match(r"\s(?:of|ending|beginning|commencing)\b", shape.right):
        return None
    ends = lower in _ENDS and re.match(r"\s*$|\s[A-Z]", shape.right)
    return _WORDS[lower] + ("." if ends else "")


def _say_street(shape: Shape) -> str | None:
    """ "123 Main St", "5th Ave", "Oak Dr and"; "Dr. Lee", "your Dr." and "St. Mary"."""
    word = shape.written.rstrip(".")
    has_stop = len(shape.written) > len(word)
    end = "." if has_stop and re.match(r"\s*$", shape.right) else ""
    is_house = _HOUSE.search(shape.left) is not None
    before_name = _NAME.match(shape.right) is not None
    if is_house and word in _STREETS and not (word == "Dr" and _OWNER.search(shape.left)):
        return _STREETS[word] + end
    if before_name and word in ("Dr", "St"):
        return ("Doctor" if word == "Dr" else "Saint") if has_stop or word == "Dr" else None
    if word != "Fl" and _STREET_NAME.search(shape.left) and not _OWNER.search(shape.left):
        return _STREETS[word] + end
    if word == "Dr" and (has_stop or _OWNER.search(shape.left)):
        return "doctor" + end
    return _STREETS[word] + end if has_stop and word not in ("Ct", "Pl", "Fl") else None


def _say_roman(shape: Shape) -> str:
    number = _ROMANS[shape.found["numeral"]]
    is_ruler = shape.found["ruler"] is not None
    return shape.found["noun"] + (f"the {en.ordinal(number).capitalize()}" if is_ruler else en.cardinal(number))


def _say_numero(shape: Shape) -> str | None:
    """ "No 1 in the queue"; but not of "No 5 minute wait"."""
    number = re.match("[0-9]+", shape.right)
    after = Shape("number", shape.text, shape.end, shape.end + (number.end() if number else 0))
    return None if is_counted(after) or re.match(r"[0-9]+ (?:minute|hour|day|people)", shape.right) else "number"


def _say_house_number(shape: Shape) -> str | None:
    """ "1600 Pennsylvania Avenue" is read in pairs of digits; "350 5th Avenue" too, with a pause: it is not 355th."""
    written, joint = shape.written, "," if _NUMBERED_STREET.match(shape.right) else ""
    first, last = int(shape.groups[0]), int(shape.groups[-1])
    if "-" in written:  # "48-02 Vernon Blvd" and "31-10 47th Ave"; "10-12 Main St" are two houses
        return en.pair(first, last) + joint if joint or last <= max(9, first) else None
    said = en.pair(*divmod(first, 100)) if len(written) == 3 else en.year(first)
    return (en.digits(written) if len(written) > 4 else said) + joint


FORMS = (
    ("roman", _ROMAN), ("street", _STREET), ("word", _WORD), ("numero", _NUMERO),
    ("direction", _DIRECTION), ("hyphenated", _HYPHENATED),
    ("house_number", re.compile(
        rf"(?:[0-9]{{1,5}}|[0-9]{{1,3}}-[0-9]{{2}})(?={_NUMBERED_STREET.pattern})"
        rf"|[0-9]{{4}}(?=\s[NS][EW]{_NUMBERED_STREET.pattern})"
        rf"|[0-9]{{1,3}}-[0-9]{{2}}(?={_NAMED_STREET})"
        rf"|[0-9]{{4}}(?=(?:\s[A-Z][a-z]{{1,20}}){{1,3}}\s(?:{STREET_WORD})\b)"
    )),
)  # fmt: skip
"""The shapes that only English writes, in the order to try them."""
SAY: dict[str, Say] = {
    "roman": _say_roman, "street": _say_street, "word": _say_word, "numero": _say_numero,
    "house_number": _say_house_number,
    "direction": lambda shape: "".join(_DIRECTIONS[letter] for letter in shape.written.rstrip(".")),
    "hyphenated": lambda shape: shape.written[:-1] + " ",
}  # fmt: skip
