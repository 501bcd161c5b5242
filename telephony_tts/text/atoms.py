"""Atoms are numbers, amounts, ids and addresses: text that must not be cut.

`held_tail` finds the part of a text that more text could still change. `forced_cut` finds the best place to cut a text
that does not end.
"""

from __future__ import annotations

import re

from telephony_tts.text.characters import CLOSING, PAIRS, is_cjk
from telephony_tts.text.languages.english import abbreviations

_ADDRESS = re.compile(r"://|www\.|[@/]")
_SCHEME = re.compile(
    r"http|https|ws|wss|ftp|ftps|sftp|file|s3|gs|ssh|git|git\+ssh|postgres|mailto|tel|sip|sips", re.IGNORECASE
)
_GLUE = frozenset("._:/%+-,@#&=~$€£¥￥°'’．，：／－＃")
_CLAUSE_GLUE = frozenset(",:，：")
_NUMERALS = frozenset("零〇一二三四五六七八九十百千万亿两点")
_CLAUSE_END = re.compile(r"[，、；：](?!\d)[”’」』）)\"]*|[,;:][\"”’)]*(?=\s)|(?<!\d)[—–―]+(?!\d)")
_GROUPS = re.compile(r"(?<![^\s\u2e80-\u9fff\uff00-\uffef])(?:[0-9]{1,8} ){1,5}$")
"""Groups of digits before one more: "138 0013 8000"."""
_LAST_WORD = re.compile(r"[^\s]+$")
_ELLIPSIS = re.compile(r"[^\W_]\.{3,}$")


def held_tail(text: str) -> tuple[int, bool]:
    """(index, is_atom) of the tail of `text` that could become one atom together with the text that follows.

    `is_atom` is false if the tail is an ordinary word so far ("exam" of "example.com"). The index is `len(text)` if
    nothing must be held back.
    """
    index, is_atom = _held_word(text)
    if is_atom and text[index : index + 1].isdigit() and (groups := _GROUPS.search(text, max(0, index - 60), index)):
        index = groups.start()
    return index, is_atom


def _held_word(text: str) -> tuple[int, bool]:
    """`held_tail` for a tail without blanks."""
    end = len(text.rstrip())
    if end < len(text):
        last = _LAST_WORD.search(text, 0, end)
        if last is None:
            return len(text), False
        word = _latin_start(text, end)
        token = text[word:end]
        if token[-1:].isdigit() or token[-1:] in "$€£¥￥":
            return word, True
        if token.endswith(".") and abbreviations.is_abbreviated_name(token[:-1].lstrip('*_(["“')):
            return word, False
        return len(text), False
    start = _latin_start(text, end)
    tail = text[start:]
    if not tail:
        return _numeral_start(text), True
    if _ADDRESS.search(tail):
        return start, True
    if not (tail[-1].isalnum() or tail[-1] in _GLUE) or _ELLIPSIS.search(tail):
        return end, False
    run = end
    while run > start and (text[run - 1].isalnum() or text[run - 1] in _GLUE):
        run -= 1
    while run < end - 1 and text[run] in _CLAUSE_GLUE:
        run += 1
    atom = text[run:]
    if atom.endswith(".") and abbreviations.is_dotted(atom[:-1]):
        return run, False  # p.m., U.S.
    if any(c.isdigit() for c in atom) or not any(c.isalnum() for c in atom):
        return run, True
    if atom[-1] in ",，：":
        return end, False
    if atom[-1] == ":":
        return (run, True) if _SCHEME.fullmatch(atom[:-1]) else (end, False)
    return run, "." in atom[:-1] or "_" in atom


def last_clause_end(text: str) -> int:
    """The index after the last mark in `text` at which a voice may pause; 0 without one."""
    place = 0
    for mark in _CLAUSE_END.finditer(text):
        place = mark.end()
    return place


def forced_cut(text: str, start: int, limit: int) -> int:
    """The best place in `text[start:limit]` to cut a sentence that does not end; `text[limit]` must be known.

    It is after a clause mark in the last two thirds, else at the last blank or beside a wide character, never inside an
    atom. It is `limit` only if a single atom fills all of it.
    """
    clause = last_clause_end(text[start : limit + 1])
    if (limit - start) // 3 <= clause <= limit - start:
        return start + clause
    blank = _last_blank(text, start, limit)
    wide = _last_wide(text, max(start, blank), limit)
    return wide or blank or (start + clause if clause and start + clause <= limit else limit)


def _last_blank(text: str, start: int, limit: int) -> int:
    """The last blank that does not separate two numbers, or a title from its name; 0 without one."""
    fallback = 0
    for place in range(limit, start, -1):
        if not text[place].isspace():
            continue
        left, right = text[place - 1], text[place + 1 : min(place + 2, limit + 1)]
        word = text[max(start, text.rfind(" ", start, place) + 1) : place]
        parts_name = word.endswith(".") and abbreviations.is_abbreviated_name(word[:-1])
        if not (parts_name or (left.isdigit() and (right.isdigit() or not right))):
            return place
        fallback = fallback or place
    return fallback


def _last_wide(text: str, start: int, limit: int) -> int:
    for place in range(limit, start, -1):
        left, right = text[place - 1], text[place]
        if not (is_cjk(left) or is_cjk(right)) or (left in _NUMERALS and right in _NUMERALS):
            continue
        if (left.isdigit() and is_cjk(right)) or (left in _NUMERALS and right.isdigit()):
            continue  # 3元, 第3
        if left in PAIRS or right in CLOSING or not (right.isalnum() or right in PAIRS):
            continue
        return place
    return 0


def _latin_start(text: str, end: int) -> int:
    """The start of the run without blanks and wide characters that ends at `end`."""
    place = end
    while place > 0 and not text[place - 1].isspace() and not _is_wide(text[place - 1]):
        place -= 1
    return place


def _is_wide(char: str) -> bool:
    return is_cjk(char) or ("\u3000" <= char <= "\u303f") or char in "。！？；、（）…—“”"


def _numeral_start(text: str) -> int:
    place = len(text)
    while place > 0 and text[place - 1] in _NUMERALS:
        place -= 1
    return place if len(text) - place > 1 else len(text)
