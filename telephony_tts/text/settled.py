"""How much of a sentence still being written may be spoken already: what no further text can make sound otherwise.

Only plain words settle. They are spoken exactly as they are written, so nothing needs to be normalised before the whole
sentence is there; the first character that is anything else (a digit, a full stop, a quote, a sign, a markdown mark, a
line end) holds back all that follows it. Not settling is always right: the text is then spoken with its sentence.
"""

from __future__ import annotations

import re

_N_BEFORE = 3
_N_AFTER = 2
"""Words on either side of a place at which spoken text may end; none may be one that reads with its neighbours."""
_N_HAN = 4
"""The same in Chinese characters."""

_LETTER = "[A-Za-zÀ-ÖØ-öø-ɏ가-힣]"
_WORD = rf"{_LETTER}+(?:['’–—-]{_LETTER}+)*['’]?"
_HAN = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_PLAIN = re.compile(rf"(?:{_WORD}(?:[,;:](?= )|[，、；：])?|{_HAN}+[，、；：]?|(?<= )[-–—]{{1,2}}(?= )| +)+")
_CHUNK = re.compile(r"[^ ]+")
_ORDINARY = re.compile(rf"{_LETTER}+(?:['’-]{_LETTER}+)*['’]?[,;:]?")
_MONTH = re.compile(
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)[,;:]?",
    re.IGNORECASE,
)
_NUMERALS = "零〇一二三四五六七八九十百千万亿两半几点分秒时号年月日周第元块角"
_HAN_PLACE = re.compile(
    rf"(?=(?:(?![{_NUMERALS}])(?:{_HAN}|[，、；：])){{3}}(?![{_NUMERALS}]){_HAN}"
    rf"(?![{_NUMERALS}]){_HAN}(?:(?![{_NUMERALS}])(?:{_HAN}|[，、；：])){{3}})"
)


def settled(text: str) -> int:
    """The length of the beginning of `text`, a sentence without its end, whose reading is certain; 0 for none.

    It ends between two words (three Latin words at least) or two Chinese characters (four at least), is its own
    normalised form, and grows or stays as `text` goes on.
    """
    plain = _PLAIN.match(text)
    if plain is None or text.startswith(" "):
        return 0
    return max(_last_blank(text, plain.end()), _last_han(text, plain.end()))


def _last_blank(text: str, end: int) -> int:
    """The last place behind a word in `text[:end]` that is surrounded by ordinary and complete ones."""
    chunks = list(_CHUNK.finditer(text, 0, end))
    n_ordinary = 0
    for last in reversed(chunks):
        complete = last.end() < end  # a blank stands behind it, for a chunk ends nowhere else inside plain text
        n_ordinary = n_ordinary + 1 if complete and _is_ordinary(last.group()) else 0
        if n_ordinary == _N_BEFORE + _N_AFTER:
            return chunks[chunks.index(last) + _N_BEFORE - 1].end()
    return 0


def _is_ordinary(chunk: str) -> bool:
    """A word that is read the same whatever stands beside it: no month, no abbreviation in capitals, no dash."""
    if not _ORDINARY.fullmatch(chunk) or _MONTH.fullmatch(chunk):
        return False
    return not (chunk.isupper() and sum(char.isalpha() for char in chunk) > 1)


def _last_han(text: str, end: int) -> int:
    """The last place in `text[:end]` between two Chinese characters far from numbers, Latin letters and blanks."""
    place = 0
    for found in _HAN_PLACE.finditer(text, 0, end):
        place = found.start() + _N_HAN
    return place
