"""Turns written text into spoken words: numbers, amounts, dates, codes, units, signs, addresses. Marks are dropped.

English, Mandarin, Japanese and Korean are read by the reader (`reader.py`) with the tables of `languages/`. Digits in
Mandarin text are read in Mandarin, and its English words stay. Text in another language keeps its digits for the engine
and only loses what is never spoken.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from telephony_tts.text import markdown
from telephony_tts.text.languages.chinese import CHINESE
from telephony_tts.text.languages.english import DAY_FIRST_REGIONS, ENGLISH, ENGLISH_DAY_FIRST
from telephony_tts.text.languages.japanese import JAPANESE, JAPANESE_DIGITS
from telephony_tts.text.languages.korean import KOREAN
from telephony_tts.text.reader import Tables, read
from telephony_tts.text.unspoken import DIRECTION, token_of

WITH_DIGITS = "-x-digits"
"""The end of a language tag for a voice that reads counters, dates and amounts of the language itself, in digits."""

_LANGUAGES: dict[str, Tables] = {
    "en": ENGLISH, "zh": CHINESE, "ja": JAPANESE, "ja-x-digits": JAPANESE_DIGITS, "ko": KOREAN,
    "en-x-day-first": ENGLISH_DAY_FIRST,
}  # fmt: skip
_CODES = {"cmn": "zh", "yue": "zh", "chi": "zh", "zho": "zh", "eng": "en", "jpn": "ja", "kor": "ko"}

_CJK_MARK = re.compile("[，。、；：？！（）《》「」【】￥]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_CHINESE_WORDS = re.compile("[您你妳我們這嗎呢吧麼]|谢|不是|可以|需要")
"""In characters that Japanese has too."""
_KANA = re.compile("[\u3041-\u309f\u30a1-\u30fa\u31f0-\u31ff\uff66-\uff9d]")
_HANGUL = re.compile("[\uac00-\ud7a3\u1100-\u11ff\u3131-\u318e]")
_LATIN_WORD = re.compile(r"[A-Za-z]{2,}")
_OTHER_LETTER = re.compile("[\u0370-\u1fff\ua4d0-\uabff\ufb50-\ufdff\ufe70-\ufefc]")
_ENDED = re.compile(r"[.!?。！？…]\W*\Z")
_ARROW = re.compile("[↑↓]")
_UNREAD = re.compile(rf"[~～〜∼*/#_^<>\\|{{}}]|{_ARROW.pattern}")
"""What no rule has read is silent: an engine would say its name, or stumble."""
_N_BEFORE = 44
"""Characters before a text that may say how it is read. No rule looks further back."""
_N_HEARD = 400
"""Characters that `detect_lang` reads: a sentence shows its language early."""


Alphabet = Literal["ipa", "pinyin"]
Sounds = tuple[Alphabet, str]
"""How something sounds: ("ipa", "təˈmɑːtoʊ"), ("pinyin", "chong2 qing4")."""


@dataclass(frozen=True, slots=True)
class SpokenSpan:
    """`spoken` is said for `text[start:end]` of the input; it is "" if nothing is said.

    The spans of a text cover it in order without gaps. `is_reading`: a lexicon or a mark of the bot says what is
    spoken. `sounds` is then how `spoken` sounds, if its letters do not say that.
    """

    start: int
    end: int
    spoken: str
    is_reading: bool = False
    sounds: Sounds | None = None

    @property
    def is_written(self) -> bool:
        """Whether each character is spoken as it is written. Otherwise the span is heard as a whole."""
        return len(self.spoken) == self.end - self.start and not self.is_reading


def detect_lang(text: str) -> str:
    """The language by the characters: "zh", "en", "ja" or "ko"; "und" for another script.

    English with a few Chinese characters is English. Text without letters is "en".
    """
    text = text[:_N_HEARD]
    if text.isascii():
        return "en"
    n_hangul, n_kana = len(_HANGUL.findall(text)), len(_KANA.findall(text))
    if n_hangul or n_kana:
        return "ja" if n_kana >= n_hangul else "ko"
    n_han = len(_HAN.findall(text))
    n_words = len(_LATIN_WORD.findall(text))
    if n_han or not n_words:  # marks alone do not make words Chinese: "Yes，5 days。"
        n_han += len(_CJK_MARK.findall(text))
    if n_han:
        return "zh" if 2 * n_han >= n_words else "en"
    return "und" if len(_OTHER_LETTER.findall(text)) > n_words else "en"


def has_cjk_marks(text: str) -> bool:
    """Whether the marks of Latin words are those of Chinese and Japanese: "OK。"."""
    return 2 * len(_CJK_MARK.findall(text)) >= len(_LATIN_WORD.findall(text)) and bool(_CJK_MARK.search(text))


def may_be_japanese(text: str) -> bool:
    """Whether a text that `detect_lang` calls Chinese may be Japanese without kana: "合計12,500円。"."""
    try:
        "".join(_HAN.findall(text)).encode("cp932")
    except UnicodeEncodeError:
        return False  # it has a character that Japanese does not use
    return not _CHINESE_WORDS.search(text)


def normalize_spans(
    text: str,
    lang: str | None = None,
    control: Collection[str] = (),
    before: str = "",
    codes: set[str] | None = None,
) -> list[SpokenSpan]:
    """The spoken form of each part of `text`. `lang` is a BCP 47 tag or None; the characters overrule a wrong tag.
    With WITH_DIGITS at its end the voice reads most numbers itself, if there are such rules for the language.

    The strings in `control` are tokens for the engine and pass unchanged. `before` is spoken already, and may say how
    `text` is read (`said_before`). `codes` are the digits that the call has said as codes: they stay codes, and those
    of `text` are added. Never raises, whatever the text is.
    """
    if not control:
        return _spans(text, lang, before, codes)
    lang = lang or detect_lang(text)
    spans: list[SpokenSpan] = []
    at = 0
    tokens = "|".join(map(re.escape, control))
    for piece in re.split(f"({tokens}|(?x:{DIRECTION}))", text):
        token = piece if piece in control else token_of(piece, control)
        before = "" if at else before
        said = [SpokenSpan(0, len(piece), token)] if token is not None else _spans(piece, lang, before, codes)
        spans += [SpokenSpan(at + span.start, at + span.end, span.spoken) for span in said]
        at += len(piece)
    return spans


def said_before(text: str, start: int) -> str:
    """The part of `text` before `start` that may say how the text from there on is read: after "your code is" a number
    is read digit by digit. "" behind the end of a sentence."""
    before = text[max(0, start - _N_BEFORE) : start]
    return "" if _ENDED.search(before) else before


def _spans(text: str, lang: str | None, before: str, codes: set[str] | None) -> list[SpokenSpan]:
    stripped = markdown.strip(text)
    clean, origins = stripped.text, stripped.origins
    chosen = choose_language(clean, lang)
    with_digits = WITH_DIGITS if (lang or "").endswith(WITH_DIGITS) else ""
    if chosen == "en" and not DAY_FIRST_REGIONS.isdisjoint(re.split("[-_]", (lang or "").lower())[1:]):
        chosen = "en-x-day-first"
    language = _LANGUAGES.get(chosen + with_digits, _LANGUAGES.get(chosen))
    spans = _Spans(text, origins)
    said = markdown.strip(before).text if before else ""
    at = 0
    found = [] if language is None else read(clean, language, said, codes)
    written = (_ARROW if language is None or with_digits else _UNREAD).sub(" ", clean)
    for start, end, spoken in found:
        spans.verbatim(written, at, start)
        spans.reading(start, end, spoken)
        at = end
    spans.verbatim(written, at, len(clean))
    return spans.close()


def normalize(text: str, lang: str | None = None) -> str:
    """The spoken form of `text`. See `normalize_spans`."""
    return "".join(span.spoken for span in normalize_spans(text, lang))


def is_speakable(text: str, control: Collection[str] = ()) -> bool:
    """Whether `text` has anything to say: False for punctuation, emoji, white space, markdown marks and stage
    directions for which `control` has no token."""
    if not any(c.isalnum() for c in text):
        return False
    if control and any(span.spoken in control for span in normalize_spans(text, control=control)):
        return True
    return any(c.isalnum() for c in markdown.strip(text).text)


def choose_language(text: str, lang: str | None) -> str:
    """The language of the rules: the hint, unless the characters contradict it."""
    hint = re.split("[-_]", (lang or "").lower(), maxsplit=1)[0]
    hint = _CODES.get(hint, hint)
    seen = detect_lang(text)
    if hint in ("en", "zh", "ja", "ko"):
        if seen == "en" and hint != "en":
            return "en" if len(_LATIN_WORD.findall(text[:_N_HEARD])) >= 4 and not _HAN.search(text) else hint
        if seen == "zh" and hint == "ja":
            return "ja"
        return seen
    if len(hint) in (2, 3) and hint.isalpha() and seen == "en":
        return hint
    return seen


class _Spans:
    """Builds the spans. A removed mark becomes a silent span. A space separates words that would touch."""

    def __init__(self, text: str, origins: list[int]) -> None:
        self._text = text
        self._origins = origins
        self._spans: list[SpokenSpan] = []
        self._at = 0
        self._last = ""

    def verbatim(self, clean: str, start: int, end: int) -> None:
        """Add characters that are spoken as written, one span for each unbroken run of the input."""
        while start < end:
            stop = self._run_end(start, end)
            self._add(self._origins[start], self._origins[stop - 1] + 1, clean[start:stop])
            start = stop

    def _run_end(self, start: int, end: int) -> int:
        """The end of the unbroken run from `start`. Origins grow by one in a run, so its last element shows it."""
        origins = self._origins
        offset = origins[start] - start
        if origins[end - 1] - (end - 1) == offset:
            return end
        low, high = start + 1, end - 1
        while low < high:
            middle = (low + high) // 2
            if origins[middle] - middle == offset:
                low = middle + 1
            else:
                high = middle
        return low

    def reading(self, start: int, end: int, spoken: str) -> None:
        self._add(self._origins[start], self._origins[end - 1] + 1, spoken)

    def close(self) -> list[SpokenSpan]:
        if self._at < len(self._text):
            self._spans.append(SpokenSpan(self._at, len(self._text), ""))
        return self._spans

    def _add(self, start: int, end: int, spoken: str) -> None:
        if start > self._at:
            self._spans.append(SpokenSpan(self._at, start, ""))
        if spoken:
            if touch(self._last, spoken[0]):
                spoken = " " + spoken
            self._last = spoken[-1]
        self._spans.append(SpokenSpan(start, end, spoken))
        self._at = end


def touch(left: str, right: str) -> bool:
    """Whether two characters that follow each other would be read as one word."""
    return left.isascii() and right.isascii() and left.isalnum() and right.isalnum()
