"""Character classes of the segmenter. A class depends on one character only, not on its neighbours."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

STRONG = frozenset("。！？｡।؟‼⁉")
"""Always end a sentence."""
EXCLAIM = frozenset("!?")
ELLIPSIS = frozenset("…‥")
TERMINATORS = STRONG | EXCLAIM | ELLIPSIS | frozenset(".．")

CLAUSE = frozenset(",，、;；:：")
"""Marks at which a voice may pause while the sentence continues."""
DASHES = frozenset("-–—―")

PAIRS = {
    "(": ")", "[": "]", "{": "}", "（": "）", "［": "］", "｛": "｝", "【": "】", "〔": "〕",
    "《": "》", "〈": "〉", "「": "」", "『": "』", "｢": "｣", "“": "”", "«": "»",
}  # fmt: skip
CLOSING = frozenset(PAIRS.values())
APOSTROPHES = frozenset("'’")
MARKUP = frozenset("*_`~～")
NEWLINES = frozenset("\n\r\u2028\u2029")

CONTENT = re.compile(r"[^\W_]")
"""A letter, digit or ideograph: a character that can be spoken."""
NON_SPACE = re.compile(r"\S")


def is_cjk(char: str) -> bool:
    """An ideograph, kana or Hangul syllable (not CJK punctuation, not full-width Latin)."""
    if char < "\u1100":
        return False
    inside = "\u2e80" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7a3" or "\uf900" <= char <= "\ufaff"
    return (inside or "\uff66" <= char <= "\uff9f" or "\U00020000" <= char <= "\U0003ffff") and char.isalnum()


def is_hangul(char: str) -> bool:
    return "\uac00" <= char <= "\ud7a3"


@lru_cache(maxsize=4096)
def is_pictograph(char: str) -> bool:
    """An emoji, another symbol that is not spoken, or a character that joins or modifies emoji."""
    return bool(char) and char > "\u00ff" and unicodedata.category(char) in ("So", "Sk", "Mn", "Me", "Cf")


def width(text: str) -> int:
    """The length in Latin letters. A wide character counts as two, like its speech."""
    return sum(2 if char >= "\u2e80" else 1 for char in text)
