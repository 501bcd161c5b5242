"""How much of a sentence a recogniser heard wrong: characters, toned syllables of Mandarin, or English words.

The reference is what a person would say, in words: "二十元". It may have alternatives, "{三十分|半}"; the nearest one
counts. A Mandarin character with more than one reading has the right one behind it: "还[huan2]款".

A recogniser writes numbers and punctuation as it likes, so both sides are folded before they are compared:
- Unicode NFKC, lower case, no punctuation, no blanks (English: no apostrophes, one blank between words).
- Digits that were heard become words. A run of digits has several readings ("12": 一二, 十二; "one two", "twelve"); the
  one nearest to the reference counts. So do a decimal point, a colon of a clock time, a percent sign and ℃.
- Mandarin: 幺 is 一, 两 is 二, 〇 is 零. As a syllable, 一 may be yao1, the 幺 of codes, with any character. An English
  word is one token, as a Han character is, and so is a letter of a code ("SF": two). Latin letters in a row that were
  heard are a word or letters, whichever is nearer. The recogniser itself gives simplified characters.
- Japanese: ゼロ is 零, and the usual kanji of some polite words are kana (下さい, 致す, 頂く, 居る, 御).
- English: dollars, pounds, units and titles as words; letters of an abbreviation one by one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pypinyin import Style, lazy_pinyin

Tokens = list[str]


@dataclass(frozen=True, slots=True)
class Errors:
    """Tokens that differ (replaced, missing or too many), and the tokens of the reference."""

    n_wrong: int
    n_tokens: int


def rate(errors: Sequence[Errors]) -> dict[str, float]:
    """The errors of all sentences together, in percent. 95 % of the rates are between "low" and "high" if the sentences
    are drawn again with replacement."""
    wrong, of = (np.array([getattr(each, name) for each in errors]) for name in ("n_wrong", "n_tokens"))
    drawn = np.random.default_rng(1).integers(len(errors), size=(2000, len(errors)))
    rates = 100 * wrong[drawn].sum(axis=1) / of[drawn].sum(axis=1)
    low, high = np.percentile(rates, (2.5, 97.5))
    percent = 100 * wrong.sum() / of.sum()
    return {
        "percent": round(float(percent), 2), "low": round(float(low), 2), "high": round(float(high), 2),
        "wrong": int(wrong.sum()), "of": int(of.sum()),
    }  # fmt: skip


def character_errors(spoken: str, heard: str, language: str) -> Errors:
    """Of Mandarin ("zh") or Japanese ("ja") text. `spoken` is the reference."""
    return _errors(*_nearest_characters(spoken, heard, language))


def syllable_errors(spoken: str, heard: str) -> Errors:
    """Of Mandarin. Another character with the same toned syllable is no error. Latin letters count as they are."""
    reference, found = _nearest_characters(spoken, heard, "zh")
    given = next(_annotated(each) for each in _alternatives(spoken) if _reference_tokens(each, "zh") == reference)
    wanted = list(zip(reference, _syllables(reference, given), strict=True))
    heard_syllables = list(zip(found, _syllables(found, {}), strict=True))

    def same(a: tuple[str, str], b: tuple[str, str]) -> bool:
        return a[0] == b[0] or a[1] == b[1] or (a[0] == "一" and b[1] == "yao1")

    return Errors(_distance(wanted, heard_syllables, same), len(wanted))


def word_errors(spoken: str, heard: str) -> Errors:
    """Of English words."""
    references = [_english_words(each) for each in _alternatives(spoken)]
    pieces = _ENGLISH_DIGITS.split(_english_text(heard))
    parts = [_english_readings(piece) if n % 2 else [piece.split()] for n, piece in enumerate(pieces)]
    return _errors(*_nearest(references, parts))


# ------------------------------------------------------------------------------ the nearest reading


def _errors(reference: Tokens, heard: Tokens) -> Errors:
    return Errors(_distance(reference, heard), len(reference))


def _distance(
    reference: Sequence[object], heard: Sequence[object], same: Callable[..., bool] = lambda a, b: a == b
) -> int:
    """Levenshtein's."""
    row = list(range(len(heard) + 1))
    for n, wanted in enumerate(reference, 1):
        diagonal, row[0] = row[0], n
        for m, found in enumerate(heard, 1):
            diagonal, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, diagonal + (not same(wanted, found)))
    return row[-1]


def _nearest(references: Sequence[Tokens], parts: Sequence[Sequence[Tokens]]) -> tuple[Tokens, Tokens]:
    """The reference and the heard tokens that differ least. Each part of what was heard has one or more readings. One
    part after the other gets its best reading while the others stay as they are."""

    def joined(chosen: Sequence[Tokens]) -> Tokens:
        return [token for part in chosen for token in part]

    def found(reference: Tokens) -> tuple[int, Tokens, Tokens]:
        chosen = [readings[0] for readings in parts]
        for n, readings in enumerate(parts):
            if len(readings) > 1:
                chosen[n] = min(
                    readings,
                    key=lambda reading: _distance(reference, joined([*chosen[:n], reading, *chosen[n + 1 :]])),
                )
        heard = joined(chosen)
        return _distance(reference, heard), reference, heard

    _, reference, heard = min(map(found, references), key=lambda each: each[0])
    return reference, heard


def _alternatives(spoken: str) -> Iterator[str]:
    match = re.search(r"\{([^}]*)}", spoken)
    if match is None:
        yield spoken
        return
    for each in match[1].split("|"):
        yield from _alternatives(spoken[: match.start()] + each + spoken[match.end() :])


# ------------------------------------------------------------------------------ Mandarin and Japanese

_CJK_FOLDS = {
    "zh": {"幺": "一", "两": "二", "〇": "零", "°c": "摄氏度", "@": " at "},
    "ja": {
        "ゼロ": "零", "〇": "零", "下さ": "くださ", "致し": "いたし", "頂": "いただ", "居り": "おり", "御": "ご",
        "%": "パーセント", "°c": "度",
    },
}  # fmt: skip
_CJK_DIGITS = "零一二三四五六七八九"
_RUNS = {"zh": re.compile(r"(\d+|[a-z]+(?:-[a-z]+)*)"), "ja": re.compile(r"(\d+)")}


def _nearest_characters(spoken: str, heard: str, language: str) -> tuple[Tokens, Tokens]:
    references = [_reference_tokens(each, language) for each in _alternatives(spoken)]
    text = unicodedata.normalize("NFKC", heard).lower()
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"(?<=\d):(?=\d)", {"zh": "点", "ja": "時"}[language], text)
    if language == "zh":
        text = re.sub(r"(\d+(?:\.\d+)?)%", r"百分之\1", text)
    text = re.sub(r"(?<=\w)\.(?=\w)", "点", text)
    for written, folded in _CJK_FOLDS[language].items():
        text = text.replace(written, folded)
    pieces = _RUNS[language].split(text)
    parts = [
        _cjk_readings(piece, language, after=pieces[n - 1]) if n % 2 else [_characters(piece)]
        for n, piece in enumerate(pieces)
    ]
    return _nearest(references, parts)


def _reference_tokens(spoken: str, language: str) -> Tokens:
    """Of a reference without alternatives."""
    text = unicodedata.normalize("NFKC", _plain(spoken))
    for written, folded in _CJK_FOLDS[language].items():
        text = text.replace(written, folded)
    if language != "zh":
        return _characters(text.lower())
    return [token for each in re.findall(r"[A-Za-z]+|.", text) for token in _word_or_characters(each)]


def _word_or_characters(text: str) -> Tokens:
    """Letters of a reference in capitals are said one by one, others as a word."""
    is_word = text[0].isascii() and text.isalpha() and not text.isupper()
    return [text.lower()] if is_word else _characters(text.lower())


def _characters(text: str) -> Tokens:
    return [char for char in text if char.isalnum() or char == "ー"]


def _cjk_readings(run: str, language: str, after: str) -> list[Tokens]:
    """A run of digits in Chinese characters, as a number and digit by digit; behind a decimal point only the latter. A
    run of letters as a word and letter by letter."""
    if not run.isdecimal():
        return [[run.replace("-", "")], _characters(run)]
    one_by_one = [_CJK_DIGITS[int(digit)] for digit in run]
    if len(run) > 8 or (run[0] == "0" and len(run) > 1) or (after.endswith("点") and language == "ja"):
        return [one_by_one]
    return [list(_cjk_number(int(run), language)), one_by_one]


def _cjk_number(n: int, language: str) -> str:
    """Below 10^8. Mandarin says 一百零五 where Japanese says 百五."""
    if n >= 10_000:
        high, low = divmod(n, 10_000)
        gap = "零" if language == "zh" and 0 < low < 1000 else ""
        return _cjk_number(high, language) + "万" + gap + (_cjk_number(low, language) if low else "")
    if n < 10:
        return _CJK_DIGITS[n]
    said = ""
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, n = divmod(n, unit)
        if digit:
            is_bare = digit == 1 and name and (language == "ja" or (name == "十" and not said))
            said += ("" if is_bare else _CJK_DIGITS[digit]) + name
            if language == "zh" and 0 < n < unit // 10:
                said += "零"
    return said


def _plain(reference: str) -> str:
    return re.sub(r"\[\w+]", "", reference)


def _annotated(reference: str) -> dict[int, str]:
    """The readings that a Mandarin reference gives, by the number of their token."""
    return {
        len(_reference_tokens(reference[: match.start()], "zh")) - 1: match[1]
        for match in re.finditer(r"\[(\w+)]", reference)
    }


def _syllables(tokens: Tokens, given: dict[int, str]) -> list[str]:
    """Toned syllables, with 一 and 不 in the tones that they have by themselves. Letters, words and digits stay."""
    found: list[str] = lazy_pinyin(
        "".join(token if len(token) == 1 else "*" for token in tokens), style=Style.TONE3, neutral_tone_with_five=True,
        errors=lambda chars: list(chars),
    )  # fmt: skip
    usual = {"一": "yi1", "不": "bu4"} | {token: token for token in tokens if len(token) > 1}
    return [given.get(n, usual.get(token, found[n])) for n, token in enumerate(tokens)]


# ------------------------------------------------------------------------------ English

_ENGLISH_DIGITS = re.compile(r"((?<=\d )point(?= \d)|\d+(?:st|nd|rd|th)?)")
"""The point also stands in a clock time that is written "6.40"."""
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_ENGLISH_WORDS = {
    "mr": "mister", "mrs": "miss", "ms": "miss", "dr": "doctor", "st": "saint", "apt": "apartment", "kg": "kilograms",
    "gb": "gigabytes", "o": "oh", "labour": "labor",
}  # fmt: skip


def _english_text(text: str) -> str:
    """Lower case, with signs as words and without punctuation. Digits stay."""
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"(?<![A-Za-z])[A-Z]{2,}(?![a-z])", lambda match: " ".join(match[0]), text).lower()
    text = re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    for sign, name in (("$", "dollars"), ("£", "pounds")):
        text = re.sub(rf"\{sign}\s?(\d+)(?:\.(\d\d))?", rf"\1 {name} \2", text)
    for sign, name in (("%", " percent "), ("@", " at "), ("'", ""), ("’", "")):
        text = text.replace(sign, name)
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)
    text = re.sub(r"(?<=[a-z])\.(?=[a-z])", " dot ", text)
    text = re.sub(r"[^a-z0-9]+", " ", text)
    text = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?!st\b|nd\b|rd\b|th\b)(?=[a-z])", " ", text)
    text = re.sub(r"\bg b\b", "gb", re.sub(r"\bwi fi\b", "wifi", text))
    return " ".join(_ENGLISH_WORDS.get(word, word) for word in text.split())


def _english_words(reference: str) -> Tokens:
    return _english_text(reference).split()


def _english_readings(digits: str) -> list[Tokens]:
    """A run of digits in words: as a number, digit by digit, in pairs, in hundreds, or as a day of a month ("March 3").
    "21st" is an ordinal only."""
    if digits == "point":
        return [[digits], []]
    if not digits.isdecimal():
        return [_ordinal(int(digits[:-2]))]
    one_by_one = [_ONES[int(digit)] for digit in digits]
    found = [one_by_one, ["oh" if word == "zero" else word for word in one_by_one]]
    if len(digits) <= 6 and not (digits[0] == "0" and len(digits) > 1):
        found.insert(0, _english_number(int(digits)))
    if len(digits) in (3, 4) and digits[-2] != "0" and digits[0] != "0":
        found.append(_english_number(int(digits[:-2])) + _english_number(int(digits[-2:])))
    if len(digits) == 3 and digits[0] != "0":
        found.append([_ONES[int(digits[0])], "hundred", *(_english_number(int(digits[1:])) if int(digits[1:]) else [])])
    if 0 < int(digits) <= 31:
        found.append(_ordinal(int(digits)))
    return found


def _ordinal(n: int) -> Tokens:
    *before, last = _english_number(n)
    return [*before, _ORDINALS.get(last, f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")]


def _english_number(n: int) -> Tokens:
    """Below a million, without "and"."""
    if n < 20:
        return [_ONES[n]]
    if n < 100:
        return [_TENS[n // 10 - 2], *(_english_number(n % 10) if n % 10 else [])]
    unit, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    return [*_english_number(n // unit), name, *(_english_number(n % unit) if n % unit else [])]
