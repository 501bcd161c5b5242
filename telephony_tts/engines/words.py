"""Facts about a text that an engine needs: its scripts, its words, and where it may be cut."""

from __future__ import annotations

import re
import unicodedata

LATIN = "LATIN"

LANGUAGE_OF_SCRIPT = {
    "HANGUL": "ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh",
    "BOPOMOFO": "zh",
    "CYRILLIC": "ru",
    "GREEK": "el",
    "ARABIC": "ar",
    "HEBREW": "he",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "SINHALA": "si",
    "THAI": "th",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am",
    "KHMER": "km",
    "LAO": "lo",
    "MYANMAR": "my",
    "TIBETAN": "bo",
}
"""The most likely language of a script. Hangul and kana come first: Japanese also uses Han, Korean quotes both."""

MAX_WORD_CHARS = 48
"""The longest English dictionary word has 45 letters. The rest of a longer word is noise and is not spoken."""

_WRITTEN_WITHOUT_SPACES = (
    "\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u3100-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_CHUNK = re.compile(rf"[{_WRITTEN_WITHOUT_SPACES}]|[^\s{_WRITTEN_WITHOUT_SPACES}]+")
_ENDLESS = re.compile(rf"(?<=[^\W_{_WRITTEN_WITHOUT_SPACES}]{{{MAX_WORD_CHARS}}})[^\W_{_WRITTEN_WITHOUT_SPACES}]+")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s|[。！？]")
_CLAUSE_END = re.compile(r"[,;:—][\"'”’)\]]*\s|[，、；：]")
_SPACE = re.compile(r"\s")


def is_speakable(text: str) -> bool:
    """Whether the text has a letter or a digit."""
    return any(char.isalnum() for char in text)


def scripts(text: str) -> frozenset[str]:
    """The scripts of the text's letters, by the first word of their Unicode name ("LATIN", "CJK", "CYRILLIC")."""
    if text.isascii():
        return frozenset({LATIN}) if any(char.isalpha() for char in text) else frozenset()
    return frozenset(script for char in set(text) if (script := _script(char)) is not None)


def language_of(text: str) -> str | None:
    """The language prefix of the text's script; None if the script is Latin, unknown or absent."""
    found = scripts(text)
    return next((language for script, language in LANGUAGE_OF_SCRIPT.items() if script in found), None)


def words(text: str) -> list[tuple[int, int]]:
    """`[start, end)` of each word without the punctuation around it. Each Han or kana character is a word."""
    spans = []
    for match in _CHUNK.finditer(text):
        start, end = match.span()
        while start < end and not text[start].isalnum():
            start += 1
        while start < end and not text[end - 1].isalnum():
            end -= 1
        if start < end:
            spans.append((start, end))
    return spans


def clause_ends(text: str) -> list[tuple[int, bool]]:
    """Where clauses and sentences end: the position after each, and whether it is a sentence's. The text's own end is
    none of them."""
    ends = {match.end(): False for match in _CLAUSE_END.finditer(text)}
    ends |= {match.end(): True for match in _SENTENCE_END.finditer(text)}
    return sorted((end, is_sentence) for end, is_sentence in ends.items() if end < len(text))


def without_endless_words(text: str) -> str:
    """The text with spaces for the rest of each word after MAX_WORD_CHARS. All offsets stay the same."""
    return _ENDLESS.sub(lambda match: " " * len(match[0]), text)


def pieces(text: str, soft_chars: int = 120, hard_chars: int = 200, first_chars: int = 40) -> list[tuple[int, int]]:
    """`[start, end)` spans that cover the text, each short enough for one call of a synthesiser.

    A text of up to `soft_chars` is one piece. A longer text is cut after a sentence or clause. The first cut is the
    earliest after `first_chars`, so that speech starts soon. Later cuts are the last before `soft_chars`. Without a
    sentence or clause the cut is at the last space before `hard_chars`, without a space at `hard_chars`.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > soft_chars:
        end = _cut(text, start, soft_chars, hard_chars, first_chars if not spans else 0)
        spans.append((start, end))
        start = end
    if start < len(text):
        spans.append((start, len(text)))
    return spans


def _cut(text: str, start: int, soft_chars: int, hard_chars: int, first_chars: int) -> int:
    soft, hard = start + soft_chars, start + hard_chars
    for boundary in (_SENTENCE_END, _CLAUSE_END):
        ends = [match.end() for match in boundary.finditer(text, start, soft) if match.end() - start > first_chars]
        if ends:
            return ends[0] if first_chars else ends[-1]
    ends = [match.end() for match in _SPACE.finditer(text, start, hard) if match.end() - start > first_chars]
    return ends[-1] if ends else min(hard, len(text))


def _script(char: str) -> str | None:
    if char < "\u0250":  # Latin with accents; the micro sign would otherwise count as Greek
        return LATIN if char.isalpha() else None
    char = unicodedata.normalize("NFKC", char)[0]  # full-width and mathematical letters are Latin letters
    if unicodedata.category(char) not in ("Lu", "Ll", "Lt", "Lo"):
        return None
    return unicodedata.name(char, "UNKNOWN").split()[0]
