"""The reference's text rules (specification 3.2 and 3.3): its cuts and spellings, exactly.

The server normalises text before any engine gets it. A profile that imitates the reference uses these rules as well.
Where the reference fails (only whitespace, a quotation mark after a leading stop) these rules continue.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

ENDS = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
COMMAS = "，,"
CLOSING_QUOTES = '"”'
MAX_PIECE, FULL_PIECE, SHORT_PIECE = 80, 60, 20

Lang = Literal["zh", "en"]


def normalize(text: str, n_tokens: Callable[[str], int], frontend: bool = True) -> list[str]:
    """The pieces of a text, each synthesised separately. `n_tokens` measures English text."""
    if not frontend or has_control_tokens(text) or not text:
        return [text]
    plain = spell(text)
    if not plain:
        return []
    lang: Lang = "zh" if contains_chinese(plain) else "en"
    pieces = split_paragraph(plain, len if lang == "zh" else n_tokens, lang)
    return [piece for piece in pieces if not is_only_punctuation(piece)]


def has_control_tokens(text: str) -> bool:
    return "<|" in text and "|>" in text


def spell(text: str) -> str:
    """Rewrite signs and numbers as the reference does without a text normaliser."""
    text = text.strip()
    if not contains_chinese(text):
        return spell_out_numbers(text)
    text = drop_blanks(text.replace("\n", ""))
    text = spell_corner_marks(text).replace(".", "。").replace(" - ", "，")
    return re.sub(r"[，,、]+$", "。", drop_brackets(text))


def contains_chinese(text: str) -> bool:
    return any("一" <= char <= "鿿" for char in text)


def drop_blanks(text: str) -> str:
    """Drop each space that is not between two ASCII characters."""
    kept = []
    for i, char in enumerate(text):
        if char == " ":
            before, after = text[i - 1], text[i + 1 : i + 2]  # before the first is the last, as in the reference
            if not (before.isascii() and after.isascii() and before.strip(" ") and after.strip(" ")):
                continue
        kept.append(char)
    return "".join(kept)


def spell_corner_marks(text: str) -> str:
    return text.replace("²", "平方").replace("³", "立方")


def drop_brackets(text: str) -> str:
    return re.sub("[（）【】`]", "", text).replace("——", " ")


def is_only_punctuation(text: str) -> bool:
    """Whether there is nothing to say: only punctuation and symbols, or no text."""
    return all(unicodedata.category(char)[0] in "PS" for char in text)


# ---------------------------------------------------------------------------- pieces


def split_paragraph(
    text: str,
    length: Callable[[str], int],
    lang: Lang,
    max_piece: int = MAX_PIECE,
    full_piece: int = FULL_PIECE,
    short_piece: int = SHORT_PIECE,
    comma_split: bool = False,
) -> list[str]:
    """Sentences joined into pieces up to `max_piece`. A last piece below `short_piece` joins the one before."""
    ends = ENDS[lang] + (COMMAS if comma_split else "")
    if not text:
        return []
    if text[-1] not in ends:
        text += "。" if lang == "zh" else "."
    pieces: list[str] = []
    piece = ""
    for sentence in _sentences(text, ends):
        if length(piece + sentence) > max_piece and length(piece) > full_piece:
            pieces.append(piece)
            piece = ""
        piece += sentence
    if not piece:
        return pieces
    if pieces and length(piece) < short_piece:
        pieces[-1] += piece
    else:
        pieces.append(piece)
    return pieces


def _sentences(text: str, ends: str) -> Iterator[str]:
    """Text up to each stop. A closing quotation mark joins the sentence before. A stop without words is dropped."""
    sentences: list[str] = []
    pending = ""
    i = 0
    while i < len(text):
        char = text[i]
        if char in ends:
            if pending:
                sentences.append(pending + char)
                pending = ""
            if text[i + 1 : i + 2] in tuple(CLOSING_QUOTES) and sentences:
                sentences[-1] += text[i + 1]
                i += 1
        else:
            pending += char
        i += 1
    return iter(sentences)


# --------------------------------------------------------------------------- numbers

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)
_GROUPS = (
    "", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion", "sextillion", "septillion",
    "octillion", "nonillion", "decillion",
)


def spell_out_numbers(text: str) -> str:
    """Each run of digits in English words: "10086" is "ten thousand and eighty-six"."""
    spelt = []
    digits = ""
    for char in text:
        if char.isdigit():
            digits += char
            continue
        if digits:
            spelt.append(number_words(digits))
            digits = ""
        spelt.append(char)
    if digits:
        spelt.append(number_words(digits))
    return "".join(spelt)


def number_words(digits: str) -> str:
    """A run of digits as a number. A superscript "²" does not count; more than 36 digits are read one by one."""
    plain = [char for char in digits if char.isdecimal()]
    number = int("".join(plain) or "0") if len(plain) <= 36 else -1
    if number < 0:
        return " ".join(_ONES[int(char)] for char in plain)
    if number < 1000:
        return _below_1000(number)
    groups: list[int] = []
    while number:
        groups.append(number % 1000)
        number //= 1000
    words = [f"{_below_1000(groups[i])} {_GROUPS[i]}" for i in range(len(groups) - 1, 0, -1) if groups[i]]
    head = ", ".join(words)
    last = groups[0]
    if not last:
        return head
    return f"{head}{' and ' if last < 100 else ', '}{_below_1000(last)}"


def _below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = _ONES[rest] if rest < 20 else _TENS[rest // 10 - 2] + (f"-{_ONES[rest % 10]}" if rest % 10 else "")
    if not hundreds:
        return words
    return f"{_ONES[hundreds]} hundred" + (f" and {words}" if rest else "")
