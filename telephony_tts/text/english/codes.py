"""English numbers that are names and not amounts: telephone numbers, codes, order and account numbers."""

from __future__ import annotations

import re

from telephony_tts.text.english import numbers as en
from telephony_tts.text.patterns import (
    AIRLINER,
    LETTERS_OR_DIGITS,
    MASKED,
    MEASURED,
    MIXED,
    NAMED_DECIMAL,
    SPAN,
    WITH_VOWEL,
)
from telephony_tts.text.scanner import Rule, after, before

# After these words any number of two or more digits is read digit by digit.
_STRONG = (
    r"codes?|pin|otp|pass ?codes?|passwords?|zip|postcode|ssn|social security|imei|vin|iban|pnr|cvv2?|cvc|sku|serial|"
    r"tracking|ref(?:erence)?\.?|confirmation|routing|extension|ext\.?|ending(?: in| with)?|ends? (?:in|with)|"
    r"(?:last|first) (?:two|three|four|five|six|[2-6])(?: digits)?|license plate|plate|passport|dial|fax|mobile|cell|"
    r"(?:tele)?phone|hotline|verification|awb|isbn|mrn|npi|ein|swift|iccid|imsi|"
    r"digits(?: of (?:your|the)(?: [a-z]+){1,3})?"
)
# After these words only longer numbers are, because they cannot be a count of things.
_WEAK = (
    r"order|account|acct\.?|case|ticket|invoice|policy|claim|booking|reservation|member(?:ship)?|customer|client|user|"
    r"card|flight|room|rm\.?|suite|ste\.?|apartment|apt\.?|unit|gate|number|no\.?|nr\.?|num|license|parcel|shipment|"
    r"package|call|calling|text|model|badge|employee|patient|prescription|rx|loan|transaction|meter|locker|access|"
    r"security|voucher|coupon|bus|train|channel|form|student|contract|request|incident|complaint|agent|operator|box|"
    r"branch|store|job|text [\"“]?[a-z]{1,12}[\"”]? to|file|docket|id|registration|receipt|payment id|batch|"
    r"device|sms|press|enter|error"
)
_LINK = (
    r"(?:[\s:#=\"'“”‘(\[,*…]|\.(?=\.|$)|-(?![0-9])|(?<![a-z])(?:numbers?|no\.?|num|codes?|ids?|pin|is|was|are|reads|be|called|named|"
    r"(?-i:[A-Z]{2}(?= $))|or|and|[0-9][0-9-]{0,12}(?=,? (?:or|and) )|"
    r"at|on|it's|as|the|us|me|card|account|order|again|digits|follows|following|slash|will|should|has|been|now|set|reset|changed|you|just|entered|gave|provided|"
    r"to(?= ?$))(?![a-z]))*$"
)
_CONTEXT = re.compile(rf"(?:^|[^a-z])(?:(?P<strong>{_STRONG})|(?P<weak>{_WEAK})){_LINK}", re.I)
_CODE_FOLLOWS = re.compile(
    r"\s+(?:(?:is|as|was)\s+(?:your|the|my|our)\s+(?:[a-z-]+\s+){0,3}(?:code|pin|otp|passcode|password|number|id)\b"
    r"|to\s+(?:sign in|log ?in|verify|authenticate|unlock|confirm your))",
    re.I,
)
_COUNTED = re.compile(
    r"\s?(?:%|°|¢|(?:dollar|cent|euro|pound|percent|minute|min|hour|hr|day|business|working|week|month|year|second|sec|"
    r"time|item|point|mile|people|person|guest|night|character|piece|credit|kilo|unit|thousand|million|billion|usd|eur)"
    r"s?\b)",
    re.I,
)
_THINGS = re.compile(
    r"\s(?:customers|orders|users|tickets|messages|stores|results|members|visitors|subscribers|employees|products|entries|"
    r"records|votes|reviews|parcels|packages|students|patients)\b"
)
"""Nouns that 911 counts. With most others it is the telephone number: "911 access", "911 calls"."""
_YEAR = re.compile(r"(?:19|20)[0-9]{2}$")


def context(left: str, right: str) -> str:
    """How surely a number between `left` and `right` is a code: "strong", "weak" or ""."""
    if _COUNTED.match(right) or MEASURED.match(right):
        return ""
    found = _CONTEXT.search(left)
    if found:
        return "strong" if found["strong"] else "weak"
    return "strong" if _CODE_FOLLOWS.match(right) else ""


def _groups(text: str) -> str:
    """Each group digit by digit, with a comma between groups so that the voice pauses."""
    groups = re.findall("[0-9]+", text)
    pause = ", " if any(len(g) > 1 for g in groups) else " "
    return pause.join(en.digits(g) for g in groups)


def _say_code(match: re.Match[str]) -> str | None:
    text = match.group()
    n_digits = sum(c.isdigit() for c in text)
    if n_digits < 2 or ("/" in text and n_digits < 6):
        return None
    kind = context(before(match, 44), after(match, 60))
    if kind == "strong":
        return _groups(text)
    if (
        kind == "weak"
        and n_digits >= 3
        and not (n_digits == 4 and _YEAR.match(text) and "-" not in text and _is_year_like(match))
    ):
        return _groups(text)
    return None


def _is_year_like(match: re.Match[str]) -> bool:
    """ "on 2024", "to 2024": after a weak word and a preposition four digits are probably a year."""
    return re.search(r"\b(?:on|to|at)\s$", before(match, 4)) is not None


_NORTH_AMERICAN = re.compile("[2-9][0-9]{2}[2-9][0-9]{6}")


def _say_plain_code(match: re.Match[str]) -> str | None:
    """A long number without separators is an identifier, unless it is round and no American telephone number."""
    text = match.group()
    if _NORTH_AMERICAN.fullmatch(text) or not text.endswith("000"):
        return en.digits(text)
    return None


def _say_local(match: re.Match[str]) -> str | None:
    """ "555-0199"; but "100-1500" with round ends is a range."""
    if match.group()[2] == "0" and match.group().endswith("0") and match.group()[4] != "0":
        return None
    return _groups(match.group())


def _say_telephone(match: re.Match[str]) -> str | None:
    text = match.group()
    number, _, extension = re.sub(r"(?i)[\s,]*(?:x|ext\.?|extension)\s?", "x", text).partition("x")
    said = ("plus " if text[0] == "+" else "") + _groups(number)
    return f"{said}, extension {en.digits(extension)}" if extension else said


def _say_foreign(match: re.Match[str]) -> str | None:
    """ "0044 20 7946 0958"."""
    text, right = match.group(), after(match, 12)
    if sum(map(str.isdigit, text)) < 10 or _COUNTED.match(right) or MEASURED.match(right):
        return None
    return _groups(text)


def _say_vanity(match: re.Match[str]) -> str:
    """ "1-800-FLOWERS": the word stays, because people remember it."""
    digits, words = match["digits"], match["words"].replace("-", " ")
    return f"{_groups(digits)}, {words}"


_STATE = re.compile(
    r"\b(?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY])"
    r",?\s$"
)


def _say_zip(match: re.Match[str]) -> str | None:
    """ "Springfield, IL 62704": five digits after a state of the United States."""
    return en.digits(match.group()) if _STATE.search(before(match, 5)) else None


def _say_service(match: re.Match[str]) -> str | None:
    """ "call 988", "text 4444", and 911 wherever it counts nothing."""
    number, right = match.group(), after(match, 16)
    emergency = number == "911" and not (_COUNTED.match(right) or MEASURED.match(right) or _THINGS.match(right))
    called = re.search(r"\b(?:call|dial|text|ring)(?:ing)?\s$", before(match, 9), re.I)
    return en.digits(number) if emergency or called else None


def _say_mixed(match: re.Match[str]) -> str | None:
    """Letters with digits: a code ("SF1234") is spelled, a name ("COVID-19", "24-hour", "5G") is read."""
    text = match.group()
    runs = LETTERS_OR_DIGITS.findall(text)
    if not any(r.isdigit() for r in runs) or not any(r.isalpha() for r in runs):
        return None
    kind = context(before(match, 44), after(match, 60))
    compound = re.fullmatch(r"([0-9]{1,6})((?:-[a-z]{2,})+(?:-[0-9]+)?)", text) or re.fullmatch(
        r"([0-9]{1,3})([a-z]{4,})", text
    )
    if compound:
        return " ".join(en.number(r) if r.isdigit() else r for r in runs)
    if re.fullmatch("[BCPODGM]2[BCPODGEM]", text):
        return f"{en.letters(text[0])} to {en.letters(text[2])}"
    if re.fullmatch(r"(?:mid|pre|post|early|late|FY)-?[12][0-9]{3}", text):
        return f"{runs[0]} {en.year(int(runs[1]))}"
    if kind != "strong" and (span := SPAN.fullmatch(text)):
        return f"{_say_place(span['first'] or span['start'])} to {_say_place(span['last'])}"
    longest = max(len(r) for r in runs if r.isdigit())
    zeros = any(len(r) > 1 and r[0] == "0" for r in runs if r.isdigit())
    spelled = kind == "strong" or longest >= 3 or zeros or len(runs) > 4 or (kind == "weak" and len(runs) > 2)
    said: list[str] = []
    for run in runs:
        if run.isdigit():
            said.append(en.digits(run) if spelled else en.number(run))
        else:
            said.append(_say_letters(run, spelled))
    return " ".join(said)


def _say_place(text: str) -> str:
    """ "14A", "B10"."""
    return " ".join(en.number(r) if r.isdigit() else en.letters(r) for r in LETTERS_OR_DIGITS.findall(text))


_SYLLABLES = re.compile("[^aeiouAEIOU]?[aeiouAEIOU][^aeiouAEIOU][aeiouAEIOU]$")


def _say_letters(run: str, spelled: bool) -> str:
    """Letters as a word if they form one ("SAVE20", "COVID-19"), else one by one."""
    if len(run) == 1 or (len(run) == 2 and run.isupper()) or not WITH_VOWEL.match(run):
        return en.letters(run)
    if spelled and (len(run) <= 3 or (run.isupper() and len(run) == 4 and not _SYLLABLES.match(run))):
        return en.letters(run)
    return run


def _say_named_decimal(match: re.Match[str]) -> str:
    """ "iOS17.4", "PM2.5"."""
    return f"{_say_letters(match['name'], False)} {en.number(match['number'])}"


def _say_groups(match: re.Match[str]) -> str:
    """Digit by digit in groups, without hidden digits: "****4821", "XXXX-4821", "737-800"."""
    return _groups(match.group())


def _say_pension(match: re.Match[str]) -> str:
    """ "401(k)"."""
    return f"four oh {en.digits(match['last'])} {match['letter'].upper()}"


_GROUPED = re.compile(r"[0-9]+(?:[- /][0-9]{2,}){0,8}(?![0-9A-Za-z]|[.,:/][0-9]|-[A-Za-z0-9])")

CODE_RULES: tuple[Rule, ...] = (
    (re.compile(r"40(?P<last>[13])\(?(?P<letter>[kKbB])(?![A-Za-z0-9])\)?"), _say_pension),
    (MASKED, _say_groups),
    (AIRLINER, _say_groups),
    (_GROUPED, _say_code),
)

TELEPHONE_RULES: tuple[Rule, ...] = (
    (
        re.compile(r"(?P<digits>1?[- .]?8[0-9]{2})-(?P<words>[A-Z]{2,10}(?:-[A-Z]{2,10}){0,2})(?![A-Za-z0-9])"),
        _say_vanity,
    ),
    (
        re.compile(
            r"(?:\+?1[-. ]?)?(?:\([0-9]{3}\)[ -]?|[0-9]{3}[-. ])[0-9]{3}[-. ][0-9]{4}(?![0-9])"
            r"(?:[\s,]{0,2}(?:x|ext\.?|extension)\s?[0-9]{1,6}(?![0-9]))?",
            re.I,
        ),
        _say_telephone,
    ),
    (
        re.compile(r"\+(?=(?:[-. ()]{0,2}[0-9]){7})[0-9]{1,3}(?:[-. ]?\(?[0-9]{1,6}\)?){2,6}(?![0-9])"),
        _say_telephone,
    ),
    (re.compile(r"\+[0-9]{6,15}(?![0-9])"), _say_telephone),
    (re.compile(r"00[1-9][0-9]{0,2}(?:[- ]\(?[0-9]{1,8}\)?){0,5}[- ][0-9]{2,8}(?![0-9])"), _say_foreign),
    (re.compile(r"\(0[0-9]{1,4}\)[ -]?[0-9]{3,4}[ -]?[0-9]{3,4}(?![0-9])"), _say_telephone),
    (re.compile(r"[0-9]{4}(?:[- ][0-9]{4}){2,4}(?:[- ][0-9]{2,3}(?!\s[a-z]))?(?![0-9])"), _say_telephone),
    (re.compile(r"(?:0[0-9]{2,4}|1[38]00)[- ][0-9]{3,4}[- ][0-9]{3,4}(?!-?[0-9])"), _say_telephone),
    (re.compile(r"[0-9]{1,12}(?:-[0-9]{1,12}){2,8}(?![0-9A-Za-z])"), _say_telephone),
    (re.compile(r"[0-9]{3}-[0-9]{4}(?![0-9A-Za-z-])"), _say_local),
    (re.compile(r"[0-9]{5}-[0-9]{4}(?![0-9-])"), _say_telephone),
    (re.compile(r"[0-9]{5}(?![0-9A-Za-z]|[.,:/-][0-9])"), _say_zip),
    (re.compile(r"[0-9]{3,6}(?![0-9A-Za-z]|[.,:/-][0-9])"), _say_service),
    (re.compile(r"[0-9]{7,400}(?![0-9A-Za-z]|[.,][0-9])"), _say_plain_code),
)

MIXED_RULES: tuple[Rule, ...] = (
    (NAMED_DECIMAL, _say_named_decimal),
    (MASKED, _say_groups),
    (MIXED, _say_mixed),
)
