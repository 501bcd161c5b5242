"""English words that say what a number beside them is."""

from __future__ import annotations

import re

from telephony_tts.text.reader import Evidence, Shape


def any_case(words: str) -> str:
    """A pattern for any of `words`, which are separated by "|", in capitals or not.

    Python sees by the first letter that most of them do not match. It does not if the case of that letter is ignored.
    """
    by_letter: dict[str, list[str]] = {}
    for word in words.split("|"):
        by_letter.setdefault(word[0], []).append(word[1:])
    return "|".join(f"[{letter}{letter.upper()}](?i:{'|'.join(rest)})" for letter, rest in by_letter.items())


_CODES = any_case(
    r"codes?|pin|otp|pass ?codes?|passwords?|zips?|postcode|pin ?code|ssn|social security|imei|vin|iban|pnr|cvv2?|cvc|"
    r"sku|serial|tracking|ref\.?|reference|confirmation|routing|extension|ext\.?|ending in|ending with|ending|ends in|"
    r"ends with|ends|token|last [tfs2-6][a-z]{0,4}(?: digits)?|first [tfs2-6][a-z]{0,4} digits|license plate|plate|"
    r"passport|dial|ring|fax|mobile|mob\.?|cell|phone|telephone|tel\.?|hotline|helpline|verification|awb|isbn|mrn|npi|"
    r"ein|swift|iccid|imsi|bsb|abn|acn|crn|mpan|mprn|tfn|nhs|gstin|ifsc|bic|utr|upc|ean|hcpcs|cpt|icd|rx ?bin|rx ?pcn|"
    r"digits of your(?: [a-z]+){1,3}|digits of the(?: [a-z]+){1,3}|digits|order|account|acct\.?|acc\.?|case|ticket|"
    r"invoice|inv\.?|policy|claim|booking|reservation|member|membership|customer|client|user|card|visa|mastercard|"
    r"amex|flight|room|rm\.?|suite|ste\.?|apartment|apt\.?|gate|number|no\.?|nr\.?|num|lic\.?|license|licence|parcel|"
    r"shipment|package|call|calling|text|model|badge|employee|patient|prescription|rx|loan number|loan no\.?|loan id|"
    r"transaction|txn|meter|locker|access|security|bus|train|channel|form|student|contract|request|incident|complaint|"
    r"agent|operator|box|quote|stop|branch|store|job|text [\"“'‘]?[a-z]{1,12}[\"”'’]? to|file|docket|id|registration|"
    r"receipt|payment id|batch|blk|block|device|sms|press|enter|error|highway|hwy\.?|route|rte\.?|interstate|exit|"
    r"chip|tty"
)
_NAMES = (
    "AA|UA|DL|BA|EK|AI|SQ|QF|LH|AF|KL|VS|EY|QR|TK|CX|WN|JQ|NZ|NSW|VIC|QLD|TAS|ACT|WA|SA|NT|US(?= $)|, [A-Z]{2}(?= $)"
)
"""Airlines, states before a postal code."""
_LINKS = any_case(
    r"numbers?|no\.?|num|codes?|ids?|pin|is|isn't|was|are|reads|be|called|named|or|and|not|from|changed|at|on|it's|as|"
    r"the|us|me|card|account|order|again|digits|follows|following|slash|will|should|has|been|now|set|reset|you|just|"
    r"entered|gave|provided|to(?= ?$)"
)
_LINK = (
    r"(?:[\s:#=\"'“”‘(\[,*…]|\.(?=\.|$)|-(?![0-9])|(?<![A-Za-z])"
    rf"(?:{_LINKS}|[A-Z]{{2,4}}(?= $)|[0-9][0-9-]{{0,12}}(?=,? (?:or|and|to) ))(?![A-Za-z]))*$"
)
_YEAR_WORDS = any_case(
    r"in|since|year|during|until|till|til|of|before|after|from|early|late|mid|circa|fiscal|calendar|model year|spring|"
    r"summer|autumn|fall|winter|q[1-4]|h[1-2]|quarter|class|copyright|by|anno|late-|early-|mid-|established|est\.|"
    r"founded|tax year|thanksgiving|christmas|easter|diwali|the|your|our|a"
)
_COUNTED = re.compile(
    r"\s(?!was\b|is\b|has\b|this\b|as\b|its\b|expires\b|ends\b|arrives\b|leaves\b|does\b|works\b|means\b|needs\b|"
    r"says\b|shows\b|starts\b|departs\b|lands\b|closes\b|opens\b|remains\b|fails\b|belongs\b)[a-z]{3,20}s\b"
)
EVIDENCE: dict[str, Evidence] = {
    "code": Evidence(
        near=re.compile(rf"(?<![A-Za-z])(?:{_CODES}|{_NAMES}){_LINK}"),
        far=re.compile(
            r"\b(?:codes?|pin|otp|passcode|password|token|last four|account number|card number)\b",
            re.IGNORECASE,
        ),
        behind=re.compile(
            r"\s(?:(?:is|as|was)\s(?:your|the|my|our)\s(?:[a-z-]+\s){0,3}(?:code|pin|otp|passcode|password|number|id|"
            r"last four)\b"
            r"|to\s(?:sign in|log ?in|verify|authenticate|unlock|confirm your))|,? or text\b|\serror\b",
            re.IGNORECASE,
        ),
    ),
    "amount": Evidence(
        near=re.compile(
            r"\b(?:total|balance|about|around|approximately|over|under|nearly|almost|only|least|most|than|exactly|loan|"
            r"limit|score|salary|income|up to)(?:\s(?:is|was|of|for))*\s$",
            re.IGNORECASE,
        ),
        behind=re.compile(
            r"\s(?:or more|or less|or fewer|in total|each|of (?:your|our|the|them|these)\b)|" + _COUNTED.pattern
        ),
    ),
    "year": Evidence(
        near=re.compile(
            rf"(?<![A-Za-z])(?:{_YEAR_WORDS})\s?$|\b(?:19|20)[0-9]{{2}}\s?(?:to|and|or|through|-|–)\s?$|©\s?$"
        ),
    ),
    "month_day": Evidence(
        near=re.compile(
            r"\b(?:on|by|due|until|til|till|before|after|dated|since|expires?|expiring|from|date|as of|effective|"
            r"scheduled for|arrives?|delivery|born|dob|through|thru|to|"
            r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}|day)[,.:]?\s(?:the\s)?$",
            re.IGNORECASE,
        ),
        behind=re.compile(r"\s(?:appointment|slot|delivery|meeting|booking|visit|deadline|payment|flight|at [0-9])"),
    ),
    "expiry": Evidence(
        near=re.compile(r"\b(?:exp(?:ir[a-z]+)?|valid thru|good thru)\.?:?(?:\s[a-z]+){0,5}\s$", re.IGNORECASE)
    ),
    "fraction": Evidence(behind=re.compile(
        r"\s?(?:of\b|cup|inch|mile|tsp|tbsp|teaspoon|tablespoon|pound|lb|hour|price|full|off\b)",
        re.IGNORECASE,
    )),
    "rating": Evidence(
        near=re.compile(
            r"\b(?:rated|scored?|scores|rating|page|step|question|part|round|attempt|stage|pain|level)\s(?:(?:of|is|was|"
            r"it|us|them|a|level)\s)*$",
            re.IGNORECASE,
        ),
        behind=re.compile(r"\s?(?:stars?|points?|rating|score|or (?:worse|better|higher|lower))\b", re.IGNORECASE),
    ),
    "pair": Evidence(
        near=re.compile(r"\b(?:tier|level|unit|flat|apt\.?|lot|phase|grade)\s$", re.IGNORECASE),
        behind=re.compile(r"\s(?:months?|hours?|days?|weeks?|years?)\b|\s?="),
    ),
    "duration": Evidence(near=re.compile(
        r"\b(?:duration|last(?:ed|s)|length|elapsed|remaining|runtime|took|(?:wait|hold|call|talk|run|total) ?time|"
        r"wait(?:ed|ing)?|recording|voicemail|(?:hold|held)(?= for))\b[:\s]{0,3}"
        r"(?:(?:is|was|of|for|about|around|approximately|lasted|took)[:\s]{1,3}){0,2}$",
        re.IGNORECASE,
    )),
    "clock": Evidence(near=re.compile(r"\b(?:at|by|since|from|until|till|before|after)\s$", re.IGNORECASE)),
    "ratio": Evidence(near=re.compile(
        r"\b(?:ratio|odds|scale|score|won|lost|lead|diluted?)\s(?:is\s|of\s|it\s)?$", re.IGNORECASE,
    )),
}  # fmt: skip
_NEAR_CODE = EVIDENCE["code"].near


def names_code(shape: Shape) -> bool:
    """Whether the words directly before the shape name a code."""
    return _NEAR_CODE is not None and _NEAR_CODE.search(shape.left) is not None


def is_counted(shape: Shape) -> bool:
    """Whether a noun in the plural follows: "2019 members"."""
    return _COUNTED.match(shape.text, shape.end) is not None
