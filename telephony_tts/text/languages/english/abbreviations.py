"""English abbreviations that end in a full stop, by the text that may follow them."""

from __future__ import annotations

import re
from enum import Enum, auto


class Kind(Enum):
    """The kind of a word before a full stop. It decides how much of the next word is needed to judge the stop."""

    PLAIN = auto()
    TITLE = auto()  # Dr. — a name always follows
    REFERENCE = auto()  # No. — a number or label follows
    TIME = auto()  # p.m.
    ENDABLE = auto()  # etc., Ph.D., Jan., 5 lb. — often the last word of a sentence
    INSIDE = auto()  # Inc., Ave. — last word only when what follows clearly opens a sentence
    INITIALISM = auto()  # U.S.
    LETTER = auto()  # the E. of a name, the B of "plan B"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TITLES = _words(
    """mr mrs ms mx dr prof messrs gen sen rep gov capt cpt cmdr lt col sgt maj rev hon pres supt mt ft fr mme mlle"""
)
_LINKS = _words("""vs v viz cf attn tel e.g i.e f.e p.o p.s c/o""")
_REFERENCES = _words(
    """no nos nr n° p pp pg fig figs sec sect ch chap vol eq eqs art ext extn apt ste rm bldg ref rs para ln acct
    op ca est ed pt fn dept"""
)
_BEFORE_NUMBERS = _words("max min qty rte exp acc inv mob dep arr ver yr temp app sched lic")
"""What is an abbreviation only with a capital, before a number or a label: "Max. 5 people", but "use the app."."""
_ENDABLE = _words(
    """etc jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun ph.d m.d
    b.a m.a b.sc m.sc m.b.a d.d.s ll.b"""
)
_UNITS = _words("""lb lbs oz ft in mi ms yd gal qt sq fl hr hrs min mins sec secs km cm mm kg mg ml kb mb gb tb""")
_INSIDE = _words(
    """inc ltd co corp llc plc jr sr bros al cit st ave blvd rd pkwy hwy sq pl ctr asst assn assoc va ga dist intl
    natl univ avg misc med adm approx incl excl exc"""
)

STARTERS = _words(
    """I You He She It We They This That These Those There Here The A An My Your His Her Its Our Their What When
    Where Why Who Whose Which How If Then But And Or So Because However Also Please Thanks Thank Yes No Not
    Nobody Nothing Everyone Everything Someone Anyone Do Does Did Is Are Was Were Can Could Would Should Have
    Has Had Let Now Next Finally Meanwhile After Before As At In On For From To With Once While Although Though
    Since Unless Until Just Sorry Hello Hi Okay OK Sure Shall Don Press Call Any All Both Each Some Otherwise
    Instead Unfortunately Today Tomorrow See Good Great Welcome Enjoy Contact Visit Check Go Come Take Make Give
    Tell Ask Say Enter Select Choose Type Dial Hold Stay Follow Wait Bring Would"""
)
"""Capitalised words that start a sentence rather than continue a name."""

TIME_TAILS = _words(
    """Monday Tuesday Wednesday Thursday Friday Saturday Sunday Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar
    Apr Jun Jul Aug Sep Sept Oct Nov Dec Eastern Central
    Mountain Pacific Beijing January February March April June July August September October November December"""
)
"""Capitalised words that belong to a time of day."""

COURTESY = frozenset(("Mr", "Mrs", "Ms"))
PREPOSITIONS = _words("""At By On In Around From Since Until Till Before After During""")
CLAUSE_CORES = _words("""I you he she it we they is are was were will can""")
"""Words that show that a sentence already has its subject or verb."""

LABELLED = _words(
    """option options plan gate terminal section type grade vitamin class line zone building block seat group part
    level size answer letter choice is"""
)
"""Words that make a single capital after them a label, not the initial of a name."""

SPEECH_VERBS = _words(
    """said says asked asks replied replies added answered explained continued responded told shouted whispered
    noted suggested confirmed repeated"""
)

_DOTTED = re.compile(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}")
_TIME = re.compile(r"\d{0,2}[ap]\.m", re.IGNORECASE)
_VOWELS = re.compile(r"[aeiouy]", re.IGNORECASE)


def kind(word: str, *, after_number: bool) -> Kind:
    """Judge `word`, without its final full stop. With `after_number` a number precedes it, so "in." is a unit."""
    lower = word.lower()
    if _TIME.fullmatch(word):
        return Kind.TIME
    if after_number and lower in _UNITS:
        return Kind.ENDABLE
    if lower in _LINKS or (lower in _TITLES and word[0].isupper()):
        return Kind.TITLE
    is_note = lower in _BEFORE_NUMBERS and (word.istitle() or lower in ("max", "min", "qty", "arr", "dep", "exp"))
    if lower in _REFERENCES or is_note:
        return Kind.REFERENCE
    if lower in _ENDABLE:
        return Kind.PLAIN if lower in ("mar", "sat", "sun", "fri", "wed", "mon") and word == lower else Kind.ENDABLE
    if lower in _INSIDE:
        return Kind.INSIDE
    if len(word) == 1 and word.isalpha():
        return Kind.LETTER
    if _DOTTED.fullmatch(word):
        return Kind.INITIALISM
    if 2 <= len(word) <= 4 and word.isalpha() and word.isascii() and not word.isupper() and not _VOWELS.search(word):
        return Kind.ENDABLE if after_number else Kind.INSIDE  # "5 GHz.", "Bldg.": without a vowel it is not a word
    return Kind.PLAIN


def is_abbreviated_name(word: str) -> bool:
    """Whether a word must be spoken with the next one: a title or a reference ("Dr.", "No.")."""
    return kind(word, after_number=False) in (Kind.TITLE, Kind.REFERENCE)


def is_dotted(word: str) -> bool:
    """Whether a word is spelled with full stops, as a time of day or an initialism is ("p.m.", "U.S.")."""
    return kind(word, after_number=False) in (Kind.TIME, Kind.INITIALISM)
