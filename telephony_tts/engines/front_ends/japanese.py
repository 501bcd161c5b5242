"""Japanese text as kana, and kana as the symbols of Kokoro. No event loop.

The dictionary of Open JTalk reads the text, with its numbers in digits (pyopenjtalk-plus, an extra). Own readings come
first: the words and patterns of `japanese.txt`, then Latin words, which the dictionary would spell letter by letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from telephony_tts.engines.front_ends.english import EnglishReader

_LATIN_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_KANA = re.compile("[ァ-ヺー]+")
_NAMES_OF_LETTERS = (
    "エー ビー シー ディー イー エフ ジー エイチ アイ ジェー ケー エル エム "
    "エヌ オー ピー キュー アール エス ティー ユー ブイ ダブリュー エックス ワイ ゼット"
)
_LETTERS = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", _NAMES_OF_LETTERS.split(), strict=True))


@dataclass(frozen=True, slots=True)
class JapaneseWord:
    """A part of the text, its kana as they are spoken, or a mark as it stands."""

    start: int
    end: int
    kana: str


class Japanese:
    """Loads the dictionary and its own readings in its constructor (0.5 s). Several threads may call `read` at once."""

    def __init__(self, english: EnglishReader) -> None:
        import pyopenjtalk

        self._openjtalk: Any = pyopenjtalk
        self._english = english
        self._latin = lru_cache(maxsize=2048)(self._kana_of)
        self.read("何名様ですか。")  # loads what reads 何

    def read(self, text: str) -> list[JapaneseWord]:
        """The words of a text in order, with marks. A number may be several words at one place."""
        given, places = self._with_own_readings(text)
        words: list[JapaneseWord] = []
        for piece in self._openjtalk.g2p_mapping(given) if given.strip() else ():
            kana = str(piece["pron"]).replace("’", "")
            first, last = piece["char_span"]
            if first == last:  # 万 of 12,000 has no letter of its own
                start = end = words[-1].end if words else 0
            else:
                start, end = places[first][0], places[last - 1][1]
            if not _KANA.fullmatch(kana):
                kana = text[start:end]
            if words and words[-1].end > start and _KANA.fullmatch(kana):  # a part of one replaced word
                words[-1] = JapaneseWord(words[-1].start, max(end, words[-1].end), words[-1].kana + kana)
            else:
                words.append(JapaneseWord(start, end, kana))
        return words

    def _with_own_readings(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The text with own readings in kana, and the place of each of its characters in `text`."""
        patterns = _data().patterns
        own = {m.start(1): (m.end(1), kana) for pattern, kana in patterns for m in pattern.finditer(text)}
        own |= {match.start(): (match.end(), self._latin(match[0])) for match in _LATIN_WORD.finditer(text)}
        given: list[str] = []
        places: list[tuple[int, int]] = []
        at = 0
        while at < len(text):
            end, kana = own.get(at, (at + 1, text[at]))
            given.append(kana)
            places += [(at, end)] * len(kana)
            at = end
        return "".join(given), places

    def _kana_of(self, word: str) -> str:
        """A Latin word in katakana: as we have it, as the dictionary has it, letter by letter, or as it sounds."""
        if own := _data().words.get(word.lower()):
            return own
        if "-" in word:
            return "".join(map(self._kana_of, word.split("-")))
        if len(word) > 1 and (known := self._known(word)):
            return known
        if word.isupper() or len(word) == 1:
            return "".join(_LETTERS.get(letter, "") for letter in word.upper())
        stem = word[:-1] if word.endswith("s") and len(word) > 3 else ""
        if stem and (known := _data().words.get(stem.lower()) or self._known(stem)):
            return known + ("ス" if word[-2] in "ptkf" else "ズ")
        return katakana(self._english.letters(self._english.read(word).ids[1:-1]), word) or word

    def _known(self, word: str) -> str:
        """The dictionary's reading of a Latin word. "" if it has none, and would spell it."""
        pieces = self._openjtalk.g2p_mapping(word)
        kana = str(pieces[0]["pron"]).replace("’", "")
        if len(pieces) == 1 and not pieces[0]["is_unknown"] and _KANA.fullmatch(kana):
            spelt = "".join(_LETTERS.get(letter, "") for letter in word.upper())
            return spelt if word.isupper() and kana.replace("エイ", "エー") == spelt.replace("エイ", "エー") else kana
        return ""


# ------------------------------------------------------------------------------- kana to symbols

_NASALS = (("m", "mpb"), ("ŋ", "kɡ"), ("ɲ", "ɲʨʥ"), ("n", "ntdɾzʣʦ"))
_MORA = re.compile("[ァ-ヺー][ァィゥェォャュョヮ]?")


def kana_symbols(kana: str) -> str:
    """Kokoro's symbols of katakana. What is no katakana is left out."""
    table = _data().kana
    symbols = ""
    for mora in reversed(_MORA.findall(kana)):
        if mora[0] == "ン":  # it takes the place of the sound behind it
            sound = next((nasal for nasal, before in _NASALS if symbols and symbols[0] in before), "ɴ")
            symbols = sound + table.get(mora[1:], "") + symbols
        else:
            symbols = (table.get(mora) or "".join(table.get(char, "") for char in mora)) + symbols
    return symbols


# ------------------------------------------------------------------------------- English in katakana

_SAME = str.maketrans({"l": "ɹ", "θ": "s", "ð": "z", "ʒ": "ʤ", "T": "t", "ɾ": "t", "ʔ": "t", "ˈ": "", "ˌ": "", "ː": ""})


def katakana(phonemes: str, spelling: str) -> str:
    """English phonemes in katakana, as Japanese takes over English words: "səpˈɔɹt" is サポート."""
    data = _data()
    said = f"{spelling.lower()}_{phonemes.translate(_SAME)}"
    for pattern, spoken in data.respellings:
        said = pattern.sub(spoken, said)

    def kana(match: re.Match[str]) -> str:
        row, vowel = data.sounds[match[1]], match[2]
        if vowel and vowel in "ュャ":
            return row["イ"][0] + vowel
        return row.get(vowel, "")

    said = re.sub(f"([{''.join(data.sounds)}])([アイウエオュャ]?)", kana, said)
    return "".join(_KANA.findall(re.sub("(?<![ァ-ヺー])ュ", "ユ", said)))


# ------------------------------------------------------------------------------- the data file


@dataclass(frozen=True, slots=True)
class _Data:
    """What `japanese.txt` has; it says how."""

    words: dict[str, str]
    patterns: list[tuple[re.Pattern[str], str]]
    kana: dict[str, str]
    sounds: dict[str, dict[str, str]]
    """By the consonant and the vowel behind it, as a kana; "" is the consonant alone."""
    respellings: list[tuple[re.Pattern[str], str]]


@cache
def _data() -> _Data:
    data = _Data({}, [], {}, {}, [])
    for line in resources.files(__package__).joinpath("japanese.txt").read_text(encoding="utf-8").splitlines():
        first, *rest = line.split("#")[0].split() or [""]
        if first == "~":
            data.patterns.append((re.compile(rest[0]), rest[1]))
        elif first == "kana":
            data.kana.update(zip(rest[::2], rest[1::2], strict=True))
        elif first == "sound":
            data.sounds[rest[0]] = dict(zip([*"アイウエオ", ""], [each.strip(".") for each in rest[1:]], strict=True))
        elif first == "respell":
            data.respellings.append((re.compile(rest[0].replace("%V", _VOWELS)), rest[1].strip(".")))
        elif first:
            data.words[first.lower()] = rest[0]
    return data


_VOWELS = "AIWYOiuɔɑæʌəɛɪᵻʊɜᵊ"
