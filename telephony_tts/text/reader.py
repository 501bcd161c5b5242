"""Reads the numbers, codes and signs of a text: shapes, what each of them can be, and the least harmful reading of it.

`_FORMS` finds shapes in one pass without any language: digits with their separators, masks, keys, words of letters
and digits. A shape can be of a few kinds. Its own look, its unit, the words of the language on both sides, the shape
before it and the codes that the call has heard are evidence, each with a weight. The kind with the most weight is read
by the tables of the language.

What decides without evidence is harm: an amount that is said digit by digit is understood, and a code that is said as
an amount is useless. So four and more digits are a code unless something says that they count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from telephony_tts.text import addresses
from telephony_tts.text.patterns import FRACTION_DENOMINATORS, NAMED_DECIMAL, NUMBER

_RANGE = "[~∼〜–—]"
_AMOUNT = f"(?>{NUMBER})"
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", addresses.EMAIL),
    ("url", addresses.URL),
    ("mask", re.compile(
        r"(?!\*\*[0-9]{1,20}[*#])"  # **21* are keys
        r"(?:[0-9]{1,8}+[- ]?+){0,3}+(?:(?:\*{2,}+|[xX●]{3,}+)[- ]?+){1,6}+[0-9]{0,12}+(?![0-9A-Za-z])"
    )),
    ("keys", re.compile(r"[*#][0-9]{1,20}[*#]?(?![0-9A-Za-z]|-[0-9])|[0-9]{1,20}[*#](?![0-9A-Za-z])")),
    ("dotted", re.compile(
        r"(?:[0-9]{2}|[12][0-9]{3})\. ?[0-9]{1,2}\. ?[0-9]{1,2}(?!\.?[0-9])\.?"
        r"|(?:19|20)[0-9]{2}\. ?[0-9]{1,2}\.(?! ?[0-9])"
        r"|[0-9]{1,6}(?:\.[0-9]{1,6}){2,6}(?![0-9]|\.[0-9])(?::[0-9]{1,5}(?![0-9]))?"
    )),
    ("mixed_code", re.compile(r"(?>[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5})(?![0-9A-Za-z]|[:-][0-9A-Za-z])")),  # MAC
    ("clock", re.compile(r"[0-9]{1,3}:[0-9]{2}(?::[0-9]{2})?(?![0-9:])")),
    ("ratio", re.compile(rf"{_AMOUNT}(?:(?: : ?|:){_AMOUNT}){{1,3}}(?![0-9:])")),
    ("slashed", re.compile(rf"[0-9]{{1,4}}/[0-9]{{1,2}}/[0-9]{{1,4}}(?![0-9/])|{_AMOUNT}/{_AMOUNT}(?![0-9/])")),
    ("size", re.compile(  # 0x80070005 is a code
        rf"(?!0[xX][0-9A-Fa-f]{{2}}){_AMOUNT}(?: ?[x×X*] ?{_AMOUNT}){{1,3}}(?![0-9])"
    )),
    ("range", re.compile(rf"{_AMOUNT} ?{_RANGE} ?{_AMOUNT}(?![0-9:/])")),
    ("dashed", re.compile(
        rf"\(?0[0-9]{{1,3}}\) ?[0-9]{{3,4}}(?:[ -][0-9]{{4}})?(?![0-9])"
        rf"|\+?{_AMOUNT}(?: ?- ?{_AMOUNT}){{1,8}}(?![0-9A-Za-z]|:[0-9])"
    )),
    ("blanked", re.compile(
        r"(?:\+[0-9]{1,3}(?: [0-9]{1,6}){2,6}|[0-9]{1,6}(?: [0-9]{2,6}){1,6})(?![0-9]|[.,:/~-][0-9])"
    )),
    ("named", NAMED_DECIMAL),
    ("mixed", re.compile(
        r"(?=[0-9_-]{0,80}[A-Za-z])(?=[A-Za-z_-]{0,80}[0-9])"
        r"[A-Za-z0-9]{1,80}(?:[-_][A-Za-z0-9]{1,40}){0,8}(?![A-Za-z0-9])"
    )),
    ("number", re.compile(rf"\+?{_AMOUNT}")),
)  # fmt: skip
"""The shapes in the order to try them. What one of them cannot be read as is tried as the next."""
_TRIGGER = re.compile(
    r"[0-9$€£¥₩₹฿₽₱&@+=%*#~∼〜_^<>\\|/{}`×÷±≤≥≠≈°º℃℉№²³½¼¾¢–—-]|\((?=0[0-9]{1,3}\))"
    r"|(?<![A-Za-z0-9])[A-Za-z](?=[A-Za-z_-]{0,40}[0-9@./:_$€£¥₩])|[xX●]{3}"
)
_DIGITS = re.compile("[0-9]+")
_LETTERS_OR_DIGITS = re.compile("[A-Za-z]+|[0-9]+|_")
_SENTENCE_END = re.compile(r"[.!?…](?=\s)|[。！？]|\n")
_N_LEFT, _N_RIGHT = 44, 24
"""Characters on each side of a shape that are kept with it. Words behind a shape may be evidence farther away."""
_YEAR = re.compile("(?:19[0-9]{2}|20[0-9]{2})")
_N_CODES = 200
"""Codes of a call that are remembered."""
_APART = "apart"
"""The kind of groups that are read one after the other, each as a shape of its own."""
_N_AMOUNT = 16
"""An amount has at most so many digits; longer numbers cannot be said as one."""


_NO_FORM = next(re.finditer("", ""))
"""The match of a sign, which has no form."""


@dataclass(slots=True)
class Shape:
    """A shape in `text[start:end]`, its digit groups, and what is written around it.

    `unit` is the match of the language's unit behind it. `before` is the last shape with digits before this one.
    `found` is the match of its form; that of a sign is empty.
    """

    form: str
    text: str
    start: int
    end: int
    groups: list[str] = field(default_factory=list)
    unit: re.Match[str] | None = None
    left: str = ""
    right: str = ""
    before: Shape | None = None
    kind: str = ""
    found: re.Match[str] = _NO_FORM

    @property
    def written(self) -> str:
        return self.text[self.start : self.end]


Say = Callable[[Shape], str | None]
"""What is said for a shape, "" if nothing; None if it cannot be of this kind."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Words that say what a number beside them is. `near` stands directly before it, `far` anywhere before it in the
    sentence, `behind` directly after it. None of them is looked for where a pattern is None."""

    near: re.Pattern[str] | None = None
    far: re.Pattern[str] | None = None
    behind: re.Pattern[str] | None = None


_NEAR, _FAR, _BEHIND = 3.0, 1.0, 2.0
_LIKE_THE_ONE_BEFORE, _HEARD = 2.0, 4.0
"""The weights of evidence. What stands before its unit is an amount, whatever else is said."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What the reader needs to know of a language.

    `unit` matches behind a number what is counted or measured; its group `weak` is a word that also follows codes.
    `forms` are shapes with letters of the language. `say` has a function for each kind, which may move the shape's end
    over what it has said too; a kind that is missing there cannot be said. `signs` says what no shape has, at the place
    of a sign. `trigger` is `trigger(...)`. `sentence_end` is where the words before stop being evidence.
    """

    unit: re.Pattern[str]
    evidence: Mapping[str, Evidence]
    say: Mapping[str, Say]
    signs: Say
    trigger: re.Pattern[str]
    forms: Forms
    sentence_end: re.Pattern[str] = _SENTENCE_END


class Forms:
    """The shapes of a language in the order to try them: its own, then those of every language."""

    def __init__(self, of_language: tuple[tuple[str, re.Pattern[str]], ...]) -> None:
        self.all = (*of_language, *_FORMS)
        flags = {0: "", re.IGNORECASE: "i", re.VERBOSE | re.IGNORECASE: "xi"}
        parts = (
            f"(?{flags[pattern.flags & ~re.UNICODE]}:{re.sub('[(][?]P<[a-z_]+>', '(?:', pattern.pattern)})"
            for _, pattern in self.all
        )
        # The empty group tells which part has matched. It stands behind the part, because Python skips a part by its
        # first character only if no group begins before it.
        self._any = re.compile("|".join(f"{part}()" for part in parts))

    def first(self, text: str, start: int) -> int:
        """The index in `all` of the first form that matches at `start`; `len(all)` if none does."""
        found = self._any.match(text, start)
        return len(self.all) if found is None or found.lastindex is None else found.lastindex - 1


def trigger(of_language: str) -> re.Pattern[str]:
    """Where a shape may begin, with the places `of_language`."""
    return re.compile(f"{_TRIGGER.pattern}|{of_language}")


def read(text: str, tables: Tables, said: str = "", codes: set[str] | None = None) -> list[tuple[int, int, str]]:
    """Every part of `text` that is spoken in another form than written, in order and without overlap.

    Each is (start in the text, end, spoken form). `said` was said before in the sentence. `codes` are the digits that
    the call has heard as codes; those of `text` are added.
    """
    found: list[tuple[int, int, str]] = []
    at = first = len(said)
    text = said + text
    heard = codes if codes is not None else set()
    last: Shape | None = None
    while place := tables.trigger.search(text, at):
        start = place.start()
        at = start + 1
        shape, spoken = _read_at(text, start, tables, last, heard)
        if spoken is None:
            continue
        found.append((start - first, shape.end - first, spoken))
        at = max(at, shape.end)
        if shape.groups:
            last = shape
            if shape.kind == "code" and len(heard) < _N_CODES:
                heard.add("".join(shape.groups))
    return found


def _read_at(
    text: str, start: int, tables: Tables, last: Shape | None, heard: set[str]
) -> tuple[Shape, str | None]:
    """The shape at `start` and what is said for it."""
    n_passed = tables.forms.first(text, start)
    if n_passed == len(tables.forms.all) and text[start].isalpha():
        return Shape("sign", text, start, start + 1), None
    left = text[max(0, start - _N_LEFT) : start]
    for end in tables.sentence_end.finditer(left):
        left = text[max(0, start - _N_LEFT) + end.end() : start]
    for form, pattern in tables.forms.all[n_passed:]:
        found = pattern.match(text, start)
        if found is None or found.end() == start:
            continue
        shape = Shape(form, text, start, found.end(), _DIGITS.findall(found.group()), None, left)
        shape.before, shape.found = last, found
        shape.unit = tables.unit.match(text, found.end()) if shape.groups else None
        shape.right = text[found.end() : found.end() + _N_RIGHT]
        for kind in _kinds(shape, tables.evidence, heard):
            if kind == _APART:
                break
            shape.kind = kind
            say = tables.say.get(kind)
            spoken = say(shape) if say is not None else None
            if spoken is not None:
                return shape, spoken
    shape = Shape("sign", text, start, start + 1, [], None, left, text[start + 1 : start + 1 + _N_RIGHT], last)
    return shape, tables.signs(shape)


def _kinds(shape: Shape, evidence: Mapping[str, Evidence], heard: set[str]) -> list[str]:
    """What the shape can be, the most likely first. Of equals the first one of `_CANDIDATES` harms least."""
    weights = _CANDIDATES[shape.form](shape) if shape.form in _CANDIDATES else {shape.form: 1.0}
    if len(weights) > 1:
        for kind in weights:
            if kind in evidence:
                weights[kind] += _weight(evidence[kind], shape)
        if "code" in weights and (shape.unit is None or shape.unit["weak"]):
            before = shape.before
            if before is not None and before.kind == "code" and before.form == shape.form:
                same = [len(group) for group in before.groups] == [len(group) for group in shape.groups]
                weights["code"] += _LIKE_THE_ONE_BEFORE * same
            weights["code"] += _HEARD * ("".join(shape.groups) in heard)
    return sorted(weights, key=lambda kind: -weights[kind])


def _weight(evidence: Evidence, shape: Shape) -> float:
    if evidence.near is not None and evidence.near.search(shape.left):
        weight = _NEAR
    else:
        weight = _FAR if evidence.far is not None and evidence.far.search(shape.left) else 0.0
    if evidence.behind is not None and evidence.behind.match(shape.text, shape.end):
        weight += _BEHIND
    return weight


def _number(shape: Shape) -> dict[str, float]:
    """A code or an amount: by its length, its zeros, and whether something counts."""
    written, digits = shape.written.lstrip("+"), "".join(shape.groups)
    unit = shape.unit
    if "," in written or (unit is not None and not unit["weak"]):
        return {"amount": 1.0}
    if "." in written:
        return ({"month_day": 0.0} if _is_day(shape.groups) else {}) | {"amount": 2.0}
    n = len(digits)
    if n > _N_AMOUNT:
        return {"code": 1.0}
    if n > 1 and digits[0] == "0":
        return {"code": 2.0, "amount": 0.0}
    if n <= 3:
        return {"code": 0.0, "amount": 4.0 if n < 3 else 2.0}
    is_round = n - len(digits.rstrip("0")) >= n - 2
    is_year = n == 4 and _YEAR.match(digits) is not None and unit is None
    weights = {"code": 2.0, "amount": 1.0 + 2.0 * is_round + 1.5 * is_year}
    if n == 4 and unit is None and "1500" <= digits <= "2099":
        weights["year"] = 2.6 if is_year else 0.5
    return weights


def _is_day(groups: list[str]) -> bool:
    """Whether two groups may be a month and a day of it."""
    if len(groups) != 2 or max(map(len, groups)) > 2:
        return False
    return 1 <= int(groups[0]) <= 12 and 1 <= int(groups[1]) <= 31


def _is_date(groups: list[str]) -> bool:
    return len(groups) == 3 and len(groups[0]) in (2, 4) and _is_day(groups[1:])


def _dotted(shape: Shape) -> dict[str, float]:
    groups = shape.groups
    if len(groups) == 2:
        return {"date": 1.0}
    if len(groups[0]) > 1 and groups[0][0] == "0" and sum(map(len, groups)) >= 7:
        return {"code": 1.0}
    weights = {"version": 1.5}
    if _is_date(groups):
        is_padded = len(groups[0]) == 4 or (len(groups[1]) == 2 and len(groups[2]) == 2)
        weights["date"] = 3.0 if is_padded or " " in shape.written else 1.0
    if len(groups) in (4, 5) and all(int(group) <= 255 for group in groups[:4]):
        weights["ip"] = 2.0
    return weights


def _clock(shape: Shape) -> dict[str, float]:
    hour, minute = int(shape.groups[0]), int(shape.groups[1])
    weights = {"ratio": 0.0}
    if len(shape.groups) == 3:
        weights = {"duration": 3.0 if not hour else 1.0}
    if hour <= 29 and minute <= 59:  # 25:30 is in the night in Japanese
        weights["clock"] = 2.0
    return weights


def _slashed(shape: Shape) -> dict[str, float]:
    groups = shape.groups
    if len(groups) == 3 and "." not in shape.written:
        return {"date": 2.0, "pair": 1.0}
    weights = {"pair": 1.0, "rating": 0.0}
    if "." in shape.written or "," in shape.written:
        return weights
    upper, lower = int(groups[0]), int(groups[1])
    if _is_day(groups):
        weights["month_day"] = 2.0
    elif _is_day(groups[::-1]):
        weights["day_month"] = 2.0
    if 1 <= upper <= 12 and len(groups[1]) == 2:
        weights["expiry"] = 0.0
    if _YEAR.fullmatch(groups[0]) and 1 <= lower <= 12:
        weights["year_month"] = 2.0
    if 0 < upper < lower and (lower in FRACTION_DENOMINATORS or (upper == 1 and lower % 100 == 0)):
        weights["fraction"] = 3.0
    return weights


def _range(shape: Shape) -> dict[str, float]:
    dotted = shape.written.count(".") == 2 and all(_is_day(shape.groups[n : n + 2]) for n in (0, 2))
    return {"range": 1.0} | ({"day_range": 0.5} if dotted and shape.unit is None else {})


def _dashed(shape: Shape) -> dict[str, float]:
    """Groups with dashes: a telephone number or another code, a date, a range, or the parts of an address."""
    written, groups = shape.written, shape.groups
    n = sum(len(group) for group in groups)
    if "," in written or "." in written:
        return {"range": 1.0}
    if written[0] in "+(0" or ")" in written:
        return {"range": 1.0, "code": 0.0} if _is_short(groups) else {"code": 1.0}
    if len(groups) > 2:
        weights = {"code": 2.0} | ({"address": 0.0} if _may_be_house(groups) else {})
        return weights | ({"date": 3.5} if _is_date(groups) and len(groups[0]) == 4 else {})
    unit = shape.unit
    counted = 3.0 if unit is not None and not unit["weak"] else 0.0
    first, last = int(groups[0]), int(groups[1])
    weights = {"code": 3.0 * (n >= 7), "ratio": 1.75 * (last == 0), "minus": 0.0}  # 3-0 is the result of a match
    weights |= {"address": 0.5 + (first > last), "range": 1.0 + counted}
    if _YEAR.fullmatch(groups[0]) and len(groups[1]) == 2:
        if 1 <= last <= 12:
            weights["year_month"] = 2.0
        elif last == (first + 1) % 100:  # the season 2025-26
            weights["range"] += 1.0
    return weights


def _may_be_house(groups: list[str]) -> bool:
    """Whether three groups and more may be block, house and room: 2-15-8, 1-1-4-2501."""
    return len(groups[0]) <= 3 and sum(map(len, groups)) <= 8 and all(group[0] != "0" for group in groups)


def _is_short(groups: list[str]) -> bool:
    """Whether two groups that begin with a zero may be a range: 0-5, 08-10, and 0-230, as no prefix is 0 alone."""
    if len(groups) != 2:
        return False
    return all(len(group) <= 2 for group in groups) or (groups[0] == "0" and len(groups[1]) <= 6)


def _blanked(shape: Shape) -> dict[str, float]:
    """Groups with blanks are one code if they are long enough and nothing is counted behind them.

    Few digits, and groups of three and fewer, are numbers of their own if no word names a code.
    """
    n = sum(len(group) for group in shape.groups)
    is_long = shape.written[0] in "+0" or max(map(len, shape.groups)) >= 4
    if not (shape.unit is None or shape.unit["weak"] is not None):
        return {}
    if n < 7:
        return {"code": 0.0, _APART: 2.5}
    return {"code": 1.0} if is_long else {"code": 0.0, _APART: 0.5}


def _mixed(shape: Shape) -> dict[str, float]:
    """Letters and digits in one word: digits one by one if there are many of them, or they change with letters."""
    parts = _LETTERS_OR_DIGITS.findall(shape.written)
    if not shape.groups or all(part.isdigit() for part in parts):
        return {}
    is_long = max(map(len, shape.groups)) >= 3 or any(len(g) > 1 and g[0] == "0" for g in shape.groups)
    return {"mixed_code": 1.0 + 2.0 * (is_long or len(parts) > 2), "mixed": 2.0}


_CANDIDATES: dict[str, Callable[[Shape], dict[str, float]]] = {
    "number": _number,
    "dotted": _dotted,
    "clock": _clock,
    "slashed": _slashed,
    "range": _range,
    "dashed": _dashed,
    "blanked": _blanked,
    "mixed": _mixed,
}
"""What a shape of each form can be, with the weight of its look. Another form is a kind itself."""
