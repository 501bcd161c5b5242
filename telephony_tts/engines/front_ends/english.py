"""English text as the phonemes of hibari and Kokoro, which share one set of symbols. No threads, no event loop."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from telephony_tts.engines.api import Timing
from telephony_tts.engines.front_ends.english_tables import Phonemes, TagWeights
from telephony_tts.engines.speech import share_time
from telephony_tts.engines.words import words
from telephony_tts.engines.workers import give_back_unused_memory

_DIGIT_GROUPS = re.compile(r"(?<![\w.,:/-])(?!\d{4}-\d\d-\d\d\b)\d+(?:[-\u2010-\u2013]\d+){2,}(?![\w-])")
_DIGITS = re.compile(r"(?<![\d.,:/-])\d+(?!\d|[.,:/-]\d)")


@dataclass(frozen=True, slots=True)
class EnglishReading:
    """The input of a network: symbols between two zeros, and the span of symbols of each word."""

    ids: list[int]
    words: list[str]
    spans: list[tuple[int, int]]


@cache
def english_reader() -> EnglishReader:
    """The reader of this process."""
    return EnglishReader()


class EnglishReader:
    """Loads hibari's dictionary and its network for unknown words. Several threads may call `read` at once."""

    def __init__(self) -> None:
        from hibari.g2p import G2P
        from hibari.g2p.normalize import normalize
        from hibari.voices import ASSETS

        self._normalize = normalize
        self._g2p = G2P()
        for known in (self._g2p.lexicon.golds, self._g2p.lexicon.silvers):
            known.d = Phonemes(known.d)
        self._g2p.tagger.weights = TagWeights(self._g2p.tagger.weights)
        self._g2p.oov("warmup")  # built on first use without a lock, so not by two threads
        self.symbols: dict[str, int] = json.loads(Path(ASSETS, "vocab.json").read_text(encoding="utf-8"))
        """The number of each symbol."""
        self._letters = {number: letter for letter, number in self.symbols.items()}
        give_back_unused_memory()  # what reading the files took

    def read(self, text: str, sounds: Sequence[tuple[int, int, str]] = ()) -> EnglishReading:
        """The phonemes of each word of hibari's normalised text, whose words may differ from those of the text."""
        plain = _LETTER_A.sub("A.", _spell_ids(text.translate(_NO_MARKUP)))
        tokens = self._g2p.tokenize(self._normalize(plain))
        if sounds:
            _give_sounds(tokens, text, sounds)
        tokens = self._g2p.phonemize_tokens(tokens)
        reading = EnglishReading([0], [], [])
        word, start = "", 1
        for token in tokens:
            word += token.text
            reading.ids.extend(self.ids(token.phonemes or ""))
            if token.whitespace or token is tokens[-1]:
                if (key := _key(word)) and len(reading.ids) > start:
                    reading.words.append(key)
                    reading.spans.append((start, len(reading.ids)))
                if len(reading.ids) > 1:
                    reading.ids.extend(self.ids(" "))
                word, start = "", len(reading.ids)
        while len(reading.ids) > 1 and reading.ids[-1:] == self.ids(" "):
            reading.ids.pop()
        reading.ids.append(0)
        return reading

    def ids(self, phonemes: str) -> list[int]:
        """The numbers of symbols; those that the networks lack are left out."""
        return [self.symbols[char] for char in phonemes if char in self.symbols]

    def letters(self, ids: Sequence[int]) -> str:
        """The symbols of numbers, one letter each."""
        return "".join(self._letters[number] for number in ids)


_LETTER_A = re.compile(r"(?<![\w.'’])A(?=[,;:?!]|[ \"”)]*\Z| [B-HJ-Z]\b(?!['’]))")
"""The letter, which hibari reads as the article if it has no full stop: "A, N, N, A", "five A M". Not "A I"."""
_NO_MARKUP = str.maketrans("[]", "  ")
"""hibari reads `[word](/phonemes/)` as phonemes; text from a bot must not have that effect."""


_IN_OTHER_LETTERS = {
    "eɪ": "A", "oʊ": "O", "əʊ": "O", "aɪ": "I", "aʊ": "W", "ɔɪ": "Y", "dʒ": "ʤ", "tʃ": "ʧ", "ɝ": "ɜɹ", "ɚ": "əɹ",
    "r": "ɹ", "g": "ɡ", "ɫ": "l", "ʍ": "w", "ɐ": "ə", "ɒ": "ɑ", "e": "ɛ", "o": "O", "a": "ɑ",
}  # fmt: skip
"""IPA in the letters of hibari, which has one for each diphthong and affricate. The longer ones are replaced first."""
_NOT_IN_HIBARI = re.compile("[ː.̩̯͜͡]")
"""Length, syllables and ties."""
_STRESS = re.compile("([ˈˌ])([^ˈˌAIOWYæɑəɛɜɪiɔuʊʌ]+)")


def hibari_phonemes(ipa: str) -> str:
    """English IPA in hibari's letters. Its stress marks stand before the vowel, not before the syllable."""
    phonemes = _NOT_IN_HIBARI.sub("", ipa)
    for written, ours in _IN_OTHER_LETTERS.items():
        phonemes = phonemes.replace(written, ours)
    return _STRESS.sub(r"\2\1", phonemes)


def _give_sounds(tokens: list[Any], text: str, sounds: Sequence[tuple[int, int, str]]) -> None:
    """Make each word of `sounds` one token with its phonemes. hibari's normaliser may have moved it, so it is found as
    the same occurrence of its letters. A word that was changed keeps its usual sound."""
    for start, end, ipa in sounds:
        word = text[start:end]
        n_before = len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text[:start]))
        places = [(n, n_tokens) for n in range(len(tokens)) if (n_tokens := _n_tokens(tokens, n, word))]
        if n_before < len(places):
            first, n_tokens = places[n_before]
            token, last = tokens[first], tokens[first + n_tokens - 1]
            token.text, token.whitespace = word, last.whitespace
            token.phonemes, token.rating = hibari_phonemes(ipa), 5
            del tokens[first + 1 : first + n_tokens]


def _n_tokens(tokens: list[Any], n: int, word: str) -> int:
    """How many tokens from number `n` together are `word`; 0 if they are not."""
    letters = ""
    for end in range(n, len(tokens)):
        letters += tokens[end].text
        if letters == word:
            return end + 1 - n
        letters += tokens[end].whitespace
        if not word.startswith(letters):
            return 0
    return 0


def _spell_ids(text: str) -> str:
    """Separate the digits that hibari would misread: three hyphenated groups, leading zeros, "#", seven and more.

    The text should already be in words; this is a safeguard. "1-800-555-0199" would lose its zeros.
    """

    def spell(match: re.Match[str]) -> str:
        run = match[0]
        is_id = len(run) >= 7 or (run[0] == "0" and len(run) > 1) or text[: match.start()].endswith("#")
        return " ".join(run) if is_id else run

    text = _DIGIT_GROUPS.sub(lambda match: ", ".join(" ".join(run) for run in re.split(r"\D", match[0])), text)
    return _DIGITS.sub(spell, text)


def _key(word: str) -> str:
    return "".join(char for char in word.lower() if char.isalnum())


def aligned(text: str, reading: EnglishReading, edges: list[int]) -> list[Timing]:
    """The timings of the text's words from those of the normalised words; `edges[i]` is the first sample of phoneme i.

    Equal words are matched. If normalising changed some words, the written words share their time by length.
    """
    written = words(text)
    keys = [_key(text[start:end]) for start, end in written]
    timings: list[Timing] = []
    for _, w0, w1, r0, r1 in SequenceMatcher(None, keys, reading.words, autojunk=False).get_opcodes():
        if r0 == r1 or w0 == w1:
            continue
        if w1 - w0 == r1 - r0:
            for (start, end), (first, last) in zip(written[w0:w1], reading.spans[r0:r1], strict=True):
                timings.append(Timing(start, end, edges[first], edges[last]))
        else:
            timings.extend(share_time(written[w0:w1], edges[reading.spans[r0][0]], edges[reading.spans[r1 - 1][1]]))
    return timings
