"""English names of currencies and amounts of money."""

from __future__ import annotations

import re

from telephony_tts.text.languages.english import numbers as en
from telephony_tts.text.patterns import COMMA_AMOUNT, NUMBER, from_comma
from telephony_tts.text.reader import Say, Shape

# What is written: one, many, a hundredth, hundredths. A "~" is where a plural has an s.
_TABLE = """
$: dollar~, cent~|US$ USD: U S dollar~, cent~|HK$ HKD: Hong Kong dollar~, cent~|NT$ TWD: New Taiwan dollar~, cent~
A$ AU$ AUD: Australian dollar~, cent~|C$ CA$ CAD: Canadian dollar~, cent~|S$ SGD: Singapore dollar~, cent~
NZ$ NZD: New Zealand dollar~, cent~|€ EUR: euro~, cent~|£ GBP: pound~, penny/pence|¥ JPY: yen|CNY RMB: yuan|KRW ₩: won
INR ₹ Rs Rs. Re.: rupee~, paisa/paise|CHF: Swiss franc~, centime~|THB ฿: baht|MOP: pataca~|₽ RUB: ruble~
MYR RM: ringgit, sen|₱ PHP: peso~, centavo~|AED: dirham~|SAR: riyal~|QAR: riyal~|ZAR: rand, cent~|IDR Rp Rp.: rupiah
VND ₫: dong|SEK: krona/kronor|NOK DKK: krone/kroner|PLN: zloty|KES: shilling~|NGN: naira|BRL: real/reais|MXN: peso~
TRY: lira|ILS: shekel~|PKR LKR: rupee~
"""


def forms(name: str) -> tuple[str, str]:
    """One and many: "dollar~" -> ("dollar", "dollars"), "penny/pence" -> ("penny", "pence")."""
    one, _, many = name.partition("/")
    return one.replace("~", ""), many or one.replace("~", "s")


CURRENCIES: dict[str, tuple[str, str, str, str]] = {}
"""What is written -> one, many, a hundredth, hundredths; the hundredths are "" where they are left out."""
for _entry in _TABLE.replace("\n", "|").strip("|").split("|"):
    _written, _, _names = _entry.partition(": ")
    _name, _, _cent = _names.partition(", ")
    for _each in _written.split(" "):
        CURRENCIES[_each] = (*forms(_name), *forms(_cent))
_ANY = "|".join(re.escape(written) for written in sorted(CURRENCIES, key=len, reverse=True))
CODES = "|".join(written for written in CURRENCIES if written.isalpha() and written.isupper() and written != "RM")
_SCALE = (
    r"(?:\s?(?i:thousand|million|billion|trillion|lakhs?|crores?|lacs?|bn|mn|mio|cr)(?![A-Za-z])"
    r"|[kKmMbBL](?![A-Za-z0-9]))"
)
SCALES = {
    "k": "thousand", "m": "million", "b": "billion", "bn": "billion", "mn": "million", "mio": "million", "l": "lakh",
    "cr": "crore", "lac": "lakh", "lacs": "lakhs",
}  # fmt: skip
_TO = r"\s?(?:-|–|—|~|\bto\b)\s?"
_EACH = {
    "pp": "per person", "pcm": "per calendar month", "pw": "per week", "pa": "per annum", "ph": "per hour",
    "ea": "each",
}  # fmt: skip
"""What is written behind a price; "pm" only without a blank."""
MONEY = re.compile(
    rf"(?P<currency>(?<![A-Za-z])(?:{_ANY}))\s?(?P<minus>-(?=[0-9]))?(?P<first>(?>{NUMBER}|\.[0-9]{{1,2}}))(?![0-9])"
    rf"(?P<first_scale>{_SCALE}(?={_TO}))?"
    rf"(?:{_TO}(?P<sign>(?:{_ANY})\s?(?=[0-9]))?(?P<last>(?>{NUMBER})))?(?P<scale>{_SCALE})?(?:\s(?P<code>{CODES})(?![A"
    rf"-Za-z]))?(?:(?:\s?(?P<each>{'|'.join(_EACH)})|(?P<month>pm))(?![A-Za-z])(?:\.(?=\s[a-z]))?"
    r"|\s[xX×]\s(?P<times>[0-9]{1,3})(?![0-9A-Za-z]|[.,:/-][0-9]))?"
)
BEHIND = re.compile(
    rf"(?P<first>(?>{NUMBER}))(?:{_TO}(?P<last>(?>{NUMBER})))?(?P<scale>{_SCALE})?\s?"
    rf"(?P<currency>(?:{CODES})(?![A-Za-z0-9])|[$€£¥₩₹](?![0-9])|¢)"
)
WITH_COMMA = re.compile(
    rf"(?P<before>(?:€|EUR|CHF)\s?)?(?P<first>{COMMA_AMOUNT})(?:{_TO}€?\s?(?P<last>{COMMA_AMOUNT}))?"
    r"(?P<behind>\s?(?:€|(?:EUR|CHF)(?![A-Za-z0-9])|euros?\b))?"
)
RAND = re.compile(r"R ?(?P<number>[0-9]{1,3}(?:[, ][0-9]{3}){0,2}(?:\.[0-9]{2})?)(?![0-9A-Za-z-])")
RUPIAH = re.compile(r"(?:Rp\.?|IDR)\s?(?P<number>[0-9]{1,3}(?:\.[0-9]{3}){1,4})(?![0-9,])")
_PRICED = re.compile(
    r"\b(?:fee|price|cost|pay|paid|balance|owed?|charged?|bill|total|amount|saved?|spend|spent|fine|rent|deposit)s?"
    r"(?:\s(?:is|was|of|for|only|at|about|now|to|us|you|just|a|the))*\s$",
    re.I,
)
_PER_UNIT = re.compile(r"\s?(?:/|per\s|an?\s)\s?(?:l|liter|litre|kwh|kg|unit|min)", re.I)
"""After a price that may have three decimals: "1.800 €/l"."""
_NOUNS = (
    "fees?|plans?|deductibles?|co-?pays?|vouchers?|cards?|coupons?|discounts?|charges?|deposits?|minimum|limits?|"
    "credits?|refunds?|bonus|packages?|packs?|penalty|surcharges?|tolls?|gift|tablets?|capsules?|doses?|flights?|"
    "bottles?|bags?|box(?:es)?|tvs?|monitors?|screens?|contracts?|batter(?:y|ies)|chargers?|rooms?|motors?|trial|"
    "subscriptions?|notes?|steaks?|burgers?|drafts?|pints?|cocktails?|tins?|apartments?|condos?|studios?|houses?|"
    "off-?peak (?:rates?|fares?|tickets?|pass|prices?|travel|charges?)"
)
_NOUN = re.compile(rf"[\s-](?:(?:or|and|to) (?=[$€£₹])|(?:{_NOUNS})(?![A-Za-z]))", re.I)
_OTHER_NOUN = re.compile(r"[\s-](?!(?:or|and|to|per|for|in|on|at|of|by|from|with|is|was)\b)[A-Za-z]")
_OR_NOUN = re.compile(rf"\s?(?:or|and|to|-) [$€£₹][0-9,.]+\s(?:{_NOUNS})(?![A-Za-z])", re.I)
_ARTICLE = re.compile(r"\ban?\s$", re.I)


def is_adjective(shape: Shape, end: int) -> bool:
    """ "a $5 fee", "a 10 GB plan", "$500 deductible": before a noun the unit is in the singular."""
    behind = shape.text[end : end + 32]
    if _ARTICLE.search(shape.left) and (_OTHER_NOUN.match(behind) or behind.startswith("-per-")):
        return True
    return (_NOUN.match(behind) is not None and not behind.startswith((" or ", " and ", " to "))) or bool(
        _OR_NOUN.match(behind)
    )


def say_scale(written: str) -> str:
    return SCALES.get(written.strip().lower(), written.strip())


def say_amount(written: str, scale: str, currency: str, is_adjective: bool = False) -> str:
    """ "1,234.50" of "$" -> "... dollars and fifty cents"."""
    one, many, cent, cents = CURRENCIES[currency]
    if is_adjective:
        many, cents = one, cent
    if scale:
        return f"{en.number(written)} {say_scale(scale)} {many}"
    whole, _, part = written.partition(".")
    is_one = whole.lstrip("0") == "1"
    if not part.strip("0"):
        return f"{en.number(whole)} {one if is_one else many}"
    if not cent or len(part) > 2:
        return f"{en.number(written)} {many}"
    n_cents = int(part.ljust(2, "0"))
    small = f"{en.cardinal(n_cents)} {cent if n_cents == 1 else cents}"
    return f"{en.number(whole)} {one if is_one else many} and {small}" if whole.strip("0,") else small


def say_money(shape: Shape) -> str:
    found = shape.found
    currency, scale = found["code"] or found["currency"], found["scale"] or ""
    first, last = found["first"], found["last"]
    if first.startswith("."):
        first = "0" + first
    adjective = is_adjective(shape, shape.end)
    said = say_amount(last or first, scale, currency, adjective)
    if last and (found["first_scale"] or (found["sign"] and en.value(first) >= en.value(last))):
        said = f"{say_amount(first, found['first_scale'] or '', currency)} to {said}"  # "$500 to $1 million"
    elif last and found["sign"] and not scale:
        said = f"{say_amount(first, '', currency)} to {said}"
    elif last:
        said = f"{en.number(first)} to {said}"
    behind = " per month" if found["month"] else f" {_EACH[found['each']]}" if found["each"] else ""
    if found["times"]:
        behind = f" times {en.number(found['times'])}"
    return ("minus " if found["minus"] else "") + said + behind


def say_money_behind(shape: Shape) -> str:
    found = shape.found
    if found["currency"] == "¢":
        return f"{en.number(found['first'])} {'cent' if found['first'] == '1' else 'cents'}"
    adjective = is_adjective(shape, shape.end)
    said = say_amount(found["last"] or found["first"], found["scale"] or "", found["currency"], adjective)
    return f"{en.number(found['first'])} to {said}" if found["last"] else said


def say_with_comma(shape: Shape) -> str | None:
    """ "1.299,00 €", "€49,90-59,90", "49,90 euros"."""
    found = shape.found
    if not (found["before"] or found["behind"]):
        return None
    currency, first, last = (found["before"] or found["behind"]).strip(), found["first"], found["last"]
    if "," not in first and _PER_UNIT.match(shape.right):
        return None
    currency = "€" if currency.startswith("euro") else currency
    said = say_amount(from_comma(last or first), "", currency, is_adjective(shape, shape.end))
    return f"{say_amount(from_comma(first), '', currency)} to {said}" if last else said


def say_rand(shape: Shape) -> str | None:
    """ "Your fee is R250": only where a price is named, because R250 may be a model or a room."""
    if not _PRICED.search(shape.left):
        return None
    return say_amount(shape.found["number"].replace(" ", ""), "", "ZAR")


FORMS = (
    ("rand", RAND), ("rupiah", RUPIAH), ("money_with_comma", WITH_COMMA), ("money", MONEY), ("money_behind", BEHIND),
)  # fmt: skip
"""The shapes that only English writes, in the order to try them."""
SAY: dict[str, Say] = {
    "rand": say_rand, "money_with_comma": say_with_comma, "money": say_money,
    "money_behind": say_money_behind,
    "rupiah": lambda shape: say_amount(shape.found["number"].replace(".", ""), "", "IDR"),
}  # fmt: skip
