"""The settled part of an unfinished sentence: its beginning whose reading no further text can change.

Plain words settle as they are written. A number, a sign, an abbreviation, or text in quotes, brackets or emphasis
settles together with the ordinary words after it, in the reading of the normaliser. Its rules look a bounded distance
to the right, and settling waits for that many words. A possible end of the sentence (a full stop before a blank, a line
end) or an open quote or bracket holds back all text after it. Whether a place is settled depends only on the text up to
a fixed distance after it, so settled text stays settled. Not settling is always correct: the text is then spoken with
its sentence.

The language is the one thing that depends on the text so far and not on the text to come. If a sentence is English so
far, its numbers are read in English, even if enough Chinese follows to make the whole sentence Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from telephony_tts.text.characters import PAIRS, is_cjk
from telephony_tts.text.languages.english.dates import MONTH, WEEKDAY
from telephony_tts.text.normalizer import SpokenSpan, detect_lang, normalize_spans

_N_WORDS = 3
"""The least number of words in a settled part."""
_N_AFTER = 2
"""Words after a place where spoken text may end. These words and the one before are read alone."""
_N_HAN = 4
"""Chinese characters on each side of such a place."""
_N_NAMED = 4
"""Words to wait for after a number before a capital: "1600 Old Post Oak Road"."""
_N_CODE = 6
"""Words to wait for if the number may be a code: "482913 is your new one time code"."""
_N_HAN_CODE = 11
"""Characters to wait for after 是 if the number may be a code: 482913是您的本次登录临时验证码."""

_LETTER = "[A-Za-zÀ-ÖØ-öø-ɏ가-힣]"
_WORD = rf"{_LETTER}+(?:['’–—-]{_LETTER}+)*['’]?"
_HAN = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_PLAIN = re.compile(rf"(?:{_WORD}(?:[,;:](?= )|[，、；：])?|{_HAN}+[，、；：]?|(?<= )[-–—]{{1,2}}(?= )| +)+")
_CHUNK = re.compile(r"[^ ]+")
_ORDINARY = re.compile(rf"{_LETTER}+(?:['’-]{_LETTER}+)*['’]?[,;:]?")
_MONTH_OR_DAY = re.compile(rf"(?:{MONTH}(?: ?[-–] ?{MONTH})?|{WEEKDAY})[,;:]?", re.IGNORECASE)
_DAYS = re.compile(
    rf"\b(?:{WEEKDAY}|(?i:(?:{MONTH}|{WEEKDAY}|m) ?[-–])|[A-Z]{{1,4}}[-–][A-Z]|(?i:per)(?: [A-Za-z]{{1,4}}\b| ?$))"
)
"""A day in short form, months, a range of letters, or a unit. They have only letters but may be read in another way:
"Mon-Fri", "Sat and Sun", "Jan-Mar", "seats A-C", "per kg"."""
_NUMERALS = "零〇一二三四五六七八九十百千万亿两几点分秒时号年月日周第元块角"
_HAN_PLACE = re.compile(
    rf"(?=(?:(?![{_NUMERALS}])(?:{_HAN}|[，、；：])){{3}}(?![{_NUMERALS}]){_HAN}"
    rf"(?![{_NUMERALS}]){_HAN}(?:(?![{_NUMERALS}])(?:{_HAN}|[，、；：])){{3}})"
)
_OTHER_THAN_ENGLISH = re.compile(rf"{_HAN}|[가-힣，、；：（）《》「」【】￥]")
_DIGIT = re.compile("[0-9]")
_IS = re.compile("(?:is|as|was)", re.IGNORECASE)
_WHOSE = re.compile("(?:your|the|my|our)", re.IGNORECASE)
_HAN_IS = re.compile("(?<=[0-9A-Za-z]) ?[是为]")

_SIGN = "[-–—,;:，、；：$€£¥￥₩₹%‰°℃℉+=@/²³½¼¾×]"
_HARMLESS = re.compile(
    rf"""(?: {_LETTER} | {_HAN} | [0-9] | [ ] | (?!\$[A-Za-z\\]){_SIGN}
        | (?<=[A-Za-z0-9])\.(?=[a-z0-9,;:])       # inside a number, an address or an abbreviation
        | (?<=[A-Za-z0-9])_(?=[A-Za-z0-9])
        | (?<!\#)\#(?=[0-9]) | (?<!~)~(?=[0-9]) | &(?![A-Za-z0-9\#]+;)
    )+""",
    re.VERBOSE,
)
_NO_OPENING = "\"'’"
"""Apostrophes and inch signs that neither open nor close a quote."""
_EMPHASIS = re.compile(r"(?<![\w*`])(\*\*|\*(?=[^\n*`]+\*[ ])|`)(?=[^\s*`])[^\n*`]{1,80}(?<=[^\s*`])\1(?![\w*`])")
_ENGLISH = ("", "en", "eng")
_CHINESE = ("", "zh", "cmn", "yue", "chi", "zho", "en", "eng")


def settled_spans(text: str, lang: str | None = None, control: Collection[str] = ()) -> list[SpokenSpan]:
    """The spoken form of the settled part of `text`, an unfinished sentence, in spans that cover it; [] without one.

    The part ends between two words, after at least three, or between two Chinese characters, after at least four. It
    never shrinks when `text` grows. `lang` and `control` are those of `normalize_spans`.
    """
    plain = _PLAIN.match(text)
    n_plain = plain.end() if plain else 0
    first = _CHUNK.match(text)
    if first is None or not any(char.isalnum() for char in first.group()):
        return []
    end, closed = _harmless(text)
    for place, known in _places(text, end):
        if any(opened < place < shut for opened, shut in closed):
            continue
        if place <= n_plain and not _DAYS.search(text, 0, place):
            return [SpokenSpan(0, place, text[:place])]
        if _reads_the_same(text[:known], place, lang):
            seen = text[:known]
            spans = _before(normalize_spans(seen, lang or detect_lang(seen), control), seen, place)
            if spans:
                return spans
    return []


def behind(spans: list[SpokenSpan], n_chars: int) -> list[SpokenSpan]:
    """The part of `spans` after the first `n_chars`, which are a settled part."""
    rest = [span for span in spans if span.end > n_chars]
    if rest and rest[0].start < n_chars:
        first = rest[0]
        rest[0] = SpokenSpan(n_chars, first.end, first.spoken[-(first.end - n_chars) :])
    return rest


def _harmless(text: str) -> tuple[int, list[tuple[int, int]]]:
    """(the length of `text` without a possible end of the sentence or an open mark, the places of closed marks).

    Marks are quotes, brackets and emphasis. A place goes from the opening mark to after the closing one.
    """
    closed: list[tuple[int, int]] = []
    awaited: list[tuple[str, int]] = []
    at = emphasised = 0
    while at < len(text):
        char = text[at]
        if run := _HARMLESS.match(text, at):
            at = run.end()
        elif emphasis := _EMPHASIS.match(text, at):
            emphasised = emphasis.end()
            closed.append(emphasis.span())
            at += len(emphasis[1])
        elif at < emphasised and char in "*`":
            at += 1
        elif awaited and char == awaited[-1][0]:
            closed.append((awaited.pop()[1], at + 1))
            at += 1
        elif closer := _closer(text, at):
            awaited.append((closer, at))
            at += 1
        elif char in _NO_OPENING:
            at += 1
        else:
            break
    return (awaited[0][1] if awaited else at), closed


def _closer(text: str, at: int) -> str:
    """The mark that closes the one at `at`; "" if the character opens nothing."""
    char, left = text[at], text[at - 1 : at]
    if char in PAIRS:
        return PAIRS[char]
    if left.isalnum() and not is_cjk(left):
        return ""
    return {'"': '"', "'": "'", "‘": "’"}.get(char, "")


def _places(text: str, end: int) -> Iterator[tuple[int, int]]:
    """The places where `text[:end]` may be cut, the last first, each with the end of the text that decides it."""
    chunks = list(_CHUNK.finditer(text, 0, end))
    han = [(found.start() + _N_HAN, found.start() + 2 * _N_HAN) for found in _HAN_PLACE.finditer(text, 0, end)]
    n_ordinary = 0
    for index in range(len(chunks) - 1, _N_WORDS - 2, -1):
        complete = chunks[index].end() < end  # a blank follows, because a chunk only ends at a blank
        n_ordinary = n_ordinary + 1 if complete and _is_ordinary(chunks[index].group()) else 0
        if n_ordinary <= _N_AFTER:
            continue
        place = chunks[index].end()
        while han and han[-1][0] > place:
            yield han.pop()
        yield place, chunks[index + _N_AFTER].end()
    yield from reversed(han)


def _is_ordinary(chunk: str) -> bool:
    """Whether a word is read the same beside any other: no month, short day, abbreviation in capitals or dash."""
    if not _ORDINARY.fullmatch(chunk) or _MONTH_OR_DAY.fullmatch(chunk):
        return False
    return not (chunk.isupper() and sum(char.isalpha() for char in chunk) > 1)


def _reads_the_same(seen: str, place: int, lang: str | None) -> bool:
    """Whether `seen` is enough to know how `seen[:place]` is read, given the language so far."""
    hint = re.split("[-_]", (lang or "").lower(), maxsplit=1)[0]
    if is_cjk(seen[place - 1]):
        return hint in _CHINESE and _is_surely_chinese(seen) and not _may_be_han_code(seen, place)
    return hint in _ENGLISH and not _OTHER_THAN_ENGLISH.search(seen) and not _may_be_read_on(seen, place)


def _is_surely_chinese(seen: str) -> bool:
    """Whether there are so many Chinese characters that a few more Latin words change nothing."""
    n_han = sum(is_cjk(char) for char in seen)
    return detect_lang(seen) == "zh" and n_han >= len(re.findall("[A-Za-z]{2,}", seen))


def _may_be_read_on(seen: str, place: int) -> bool:
    """Whether words to come could make a number before `place` a house number or a code."""
    words = seen.split()
    n_before = len(seen[:place].split())
    for index in range(max(0, n_before - _N_CODE), n_before):
        if not _DIGIT.search(words[index]):
            continue
        following = words[index + 1 :]
        n_needed = _N_WORDS
        if _IS.fullmatch(following[0]) and _WHOSE.fullmatch(following[1]):
            n_needed = _N_CODE
        elif following[0][:1].isupper():
            n_needed = _N_NAMED
        if len(following) < n_needed:
            return True
    return False


def _may_be_han_code(seen: str, place: int) -> bool:
    """Whether characters to come could make a number before `place` a code."""
    return any(len(seen) < number.end() + _N_HAN_CODE for number in _HAN_IS.finditer(seen, 0, place))


def _before(spans: list[SpokenSpan], text: str, place: int) -> list[SpokenSpan]:
    """The part of `spans` for `text[:place]`; [] if a reading crosses that place."""
    kept = [span for span in spans if span.start < place]
    last = kept[-1]
    n_beyond = last.end - place
    if n_beyond > 0:
        around = text[max(last.start, place - 1) : last.end]
        if not last.spoken.endswith(around):
            return []
        kept[-1] = SpokenSpan(last.start, place, last.spoken[:-n_beyond])
    return kept
