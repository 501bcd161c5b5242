"""How words are read that the language's rules would misread: entries of a lexicon, and where they match in a sentence.

An entry matches the characters that the bot wrote. A literal entry matches whole words: the sentence is cut into words
and single Chinese characters, and each is looked up as the beginning of an entry. So a sentence costs the same with ten
entries and with ten thousand. Patterns are searched by an engine of linear time, which `ops.lexicon_files` provides.
What an entry says is never matched again, so entries cannot form a cycle.

Of all matches the one that begins first counts, of these the longest, and of these the one of the last lexicon.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from telephony_tts.text.characters import is_cjk
from telephony_tts.text.markdown import fold
from telephony_tts.text.rewriting import Reading

MAX_WRITTEN_CHARS = 100
MAX_SAID_CHARS = 300
MAX_PATTERNS = 1_000
"""The most patterns of a lexicon."""
_MAX_EXPANDED_CHARS = 1_000
"""A pattern whose replacement becomes longer is not applied there."""

Case = Literal["any", "exact"]

_CJK = "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+|[^\w\s]|_")
"""A word, or one character of those that need no spaces between words, or a sign."""
_ONLY_PUNCTUATION = re.compile(r"[\s.,;:!?…，。、；：！？\"'“”‘’()（）-]*")
_SPACES = re.compile(r"\s+")
_HAN = re.compile("[〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_TONES = {"\u0304": "1", "\u0301": "2", "\u030c": "3", "\u0300": "4"}
_IPA = re.compile(r"/([^/\s][^/]{0,198})/")
_PATTERN = re.compile(r"/(.+)/(i?)", re.DOTALL)
_GROUP = re.compile(r"\$([0-9]|\$)")


class BadEntry(ValueError):
    """An entry that cannot be right. The message says what is wrong with it, and does not name it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`say` is read for `written`, which is a literal or, with `is_pattern`, a regular expression.

    With `ipa` or `syllables` (pinyin with tones, one for each character, "" for the usual reading) the text stays what
    the bot wrote, and only its sound is another.
    """

    written: str
    say: str
    any_case: bool = False
    is_pattern: bool = False
    ipa: str | None = None
    syllables: tuple[str, ...] = ()


class PatternSearch(Protocol):
    """Patterns that were compiled together."""

    def find(self, text: str) -> Iterable[tuple[int, int, int, Sequence[str | None]]]:
        """Each match: (number of the pattern, start, end, its groups from the whole match on). Takes linear time."""


def read_entry(written: str, say: str, case: Case | None = None) -> Entry:
    """The entry of a line such as `SQL: sequel`. Raises BadEntry.

    `written` may be a `/pattern/`, or `/pattern/i` for any case. A literal without capitals matches any case, one with
    capitals only itself; `case` says otherwise. `say` may be `/IPA/`, or pinyin with tones for Chinese characters.
    """
    written, say = written.strip(), _SPACES.sub(" ", say.strip())
    if not written:
        raise BadEntry("what the entry matches is empty; write the word as the bot writes it")
    if not say:
        raise BadEntry("has no reading; write how it is spoken")
    if len(say) > MAX_SAID_CHARS:
        raise BadEntry(f"its reading has {len(say)} characters; the limit is {MAX_SAID_CHARS}")
    if not (written + say).isprintable():
        raise BadEntry("has a character that cannot be printed")
    if len(written) > MAX_WRITTEN_CHARS:
        raise BadEntry(f"has {len(written)} characters; the limit is {MAX_WRITTEN_CHARS}")
    if not any(char.isalnum() for char in say):
        raise BadEntry("its reading has nothing to speak")
    if pattern := _PATTERN.fullmatch(written):
        return Entry(pattern[1], say, pattern[2] == "i" or case == "any", is_pattern=True)
    written = _SPACES.sub(" ", _plain(unicodedata.normalize("NFC", written)))
    if _ONLY_PUNCTUATION.fullmatch(written):
        raise BadEntry("is only punctuation, which sentences need")
    any_case = case == "any" or (case is None and written == written.lower())
    if any_case:
        written = _lowered(written)
    if ipa := _IPA.fullmatch(say):
        return Entry(written, "", any_case, ipa=ipa[1].strip())
    return Entry(written, say, any_case, syllables=_syllables(written, say))


def _syllables(written: str, say: str) -> tuple[str, ...]:
    """The syllables of pinyin such as "chong2 qing4" or "chóng qìng" for Chinese characters. () if `say` is not pinyin.

    Raises BadEntry if it is pinyin with a wrong tone, or with another number of syllables than there are characters.
    """
    if not _HAN.fullmatch(written):
        return ()
    said = say.lower().split(" ")
    read = [_syllable(syllable) for syllable in said]
    if wrong := [each for each in said if re.fullmatch("[a-zü]{1,6}[6-9]", each)]:
        raise BadEntry(f"{wrong[0]!r} has a tone that there is not; tones are 1 to 5")
    if not all(read) or all(syllable.endswith("5") for syllable in read):
        return ()  # not pinyin, or without any tone: other words to say
    if len(read) != len(written):
        raise BadEntry(f"has {len(written)} characters and {len(read)} syllables of pinyin; write one for each")
    return tuple(read)


def _syllable(written: str) -> str:
    """A syllable in letters and a tone: "lv4" of "lǜ", "lü4" or "lu:4"; "" for other text. Without a tone it is 5."""
    tone = ""
    letters = ""
    for char in unicodedata.normalize("NFD", written):
        if char in _TONES:
            tone = _TONES[char]
        elif char == "\u0308" and letters.endswith("u"):
            letters = letters[:-1] + "v"
        else:
            letters += char
    found = re.fullmatch("([a-z]{1,6})([0-5]?)", letters.replace("u:", "v"))
    if found is None or (tone and found[2]):
        return ""
    tone = tone or found[2] or "5"
    return found[1] + ("5" if tone == "0" else tone)


class Lexicon:
    """Entries that are ready to be found. `patterns` has the compiled patterns, in the order of the entries'.

    Of two literal entries for the same text the last counts. `n_groups` are the numbers of groups of the patterns.
    """

    def __init__(
        self, entries: Iterable[Entry] = (), patterns: PatternSearch | None = None, n_groups: Sequence[int] = ()
    ) -> None:
        self._literals: dict[str, list[Entry]] = {}
        """In lower case, because text in lower case is looked up."""
        self._templates: list[list[str | int]] = []
        self._patterns = patterns
        self.n_entries = 0
        self._is_plain = True
        for entry in entries:
            self.n_entries += 1
            if entry.is_pattern:
                self._templates.append(template(entry.say, n_groups[len(self._templates)]))
                self._is_plain = False
                continue
            self._is_plain = self._is_plain and not entry.ipa and not entry.syllables
            same = self._literals.setdefault(_lowered(entry.written), [])
            same[:] = [other for other in same if (other.written, other.any_case) != (entry.written, entry.any_case)]
            same.append(entry)
            same.sort(key=lambda each: each.any_case)
        self._lengths = _lengths(self._literals)
        self._in_order: list[str] | None = None

    def matches(self, sentence: Sentence) -> Iterator[tuple[int, int, Entry | str]]:
        """(start, end, the entry or what a pattern says): the longest literal at each word, and all of each pattern."""
        if not self._lengths.keys().isdisjoint(sentence.words):
            yield from self._literals_in(sentence)
        if self._patterns is not None:
            for number, start, end, groups in self._patterns.find(sentence.text):
                said = "".join(
                    part if isinstance(part, str) else groups[part] or "" for part in self._templates[number]
                )
                if start < end and len(said) <= _MAX_EXPANDED_CHARS and said.strip():
                    yield start, end, said

    def _literals_in(self, sentence: Sentence) -> Iterator[tuple[int, int, Entry]]:
        plain, lowered, all_lengths, literals = sentence.plain, sentence.lowered, self._lengths, self._literals
        find, behind = lowered.find, 0
        for word in sentence.words:
            start = find(word, behind)
            behind = start + len(word)
            if word not in all_lengths:
                continue
            for length in all_lengths[word]:
                end = start + length
                same = literals.get(lowered[start:end])
                if same is None or end > len(plain) or (end < len(plain) and _joins(plain[end - 1], plain[end])):
                    continue
                written = plain[start:end]
                for each in same:
                    if each.any_case or each.written == written:
                        yield start, end, each
                        break
                else:
                    continue
                break

    def may_begin(self, sentence: Sentence) -> int:
        """Where in an unfinished sentence the first match begins, or may begin when more text follows."""
        if not self._is_plain:
            # A pattern may begin anywhere, and sounds are not given to an engine that speaks already.
            return 0
        first = min((start for start, _, _ in self.matches(sentence)), default=len(sentence.text))
        if self._in_order is None:
            self._in_order = sorted(self._literals)
        for start, _ in sentence.places():
            if start >= first:
                break
            is_near = len(sentence.text) - start <= MAX_WRITTEN_CHARS
            if is_near and _begins_one(sentence.lowered[start:], self._in_order):
                return start
        return first


def _begins_one(rest: str, written: list[str]) -> bool:
    """Whether one of `written`, which is sorted, begins with `rest`."""
    at = bisect_left(written, rest)
    return at < len(written) and written[at].startswith(rest)


class Sentence:
    """A text for lookups. `lowered` and `words` are in lower case. All offsets are those of `text`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.plain = _plain(text)
        self.lowered = _lowered(self.plain)
        self.words: list[str] = _WORD.findall(self.lowered)

    def places(self) -> Iterator[tuple[int, str]]:
        """The start of each of `words`, and the word."""
        find, at = self.lowered.find, 0
        for word in self.words:
            at = find(word, at)
            yield at, word
            at += len(word)


def find_readings(text: str, lexicons: Iterable[Lexicon]) -> list[Reading]:
    """The readings of `lexicons` in `text`, in order and apart. Later lexicons win over earlier ones."""
    sentence = Sentence(text)
    found = [
        (start, -end, -rank, said)
        for rank, lexicon in enumerate(lexicons)
        for start, end, said in lexicon.matches(sentence)
    ]
    if not found:
        return []
    found.sort(key=lambda match: match[:3])
    readings: list[Reading] = []
    at = 0
    for start, minus_end, _, said in found:
        if start >= at:
            at = -minus_end
            readings += _readings(text, start, at, said)
    return readings


def may_begin(text: str, lexicons: Iterable[Lexicon]) -> int:
    """The length of the beginning of an unfinished sentence that no lexicon changes, whatever text follows."""
    sentence = Sentence(text)
    return min((lexicon.may_begin(sentence) for lexicon in lexicons), default=len(text))


def _readings(text: str, start: int, end: int, said: Entry | str) -> Iterator[Reading]:
    if isinstance(said, Entry):
        if said.ipa is not None:
            yield Reading(start, end, text[start:end], ("ipa", said.ipa))
            return
        if said.syllables:
            for at, syllable in enumerate(said.syllables, start):
                if syllable:
                    yield Reading(at, at + 1, text[at], ("pinyin", syllable))
            return
        said = said.say
    # A sign is replaced by a word: "C++17". A pattern may match inside a word.
    left = " " if start and _joins(text[start - 1], said[0]) else ""
    right = " " if end < len(text) and _joins(said[-1], text[end]) else ""
    yield Reading(start, end, left + said + right)


def _joins(left: str, right: str) -> bool:
    """Whether two characters belong to one word."""
    return left.isalnum() and right.isalnum() and not is_cjk(left) and not is_cjk(right)


def _lengths(entries: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The first word of entries, to the lengths of these entries, the longest first."""
    by_word: dict[str, set[int]] = {}
    for written in entries:
        found = _WORD.match(written)
        assert found is not None
        by_word.setdefault(found.group(), set()).add(len(written))
    return {word: tuple(sorted(lengths, reverse=True)) for word, lengths in by_word.items()}


def template(say: str, n_groups: int) -> list[str | int]:
    """The parts of what a pattern says: text, and the numbers of groups. Raises BadEntry for a group that it lacks."""
    parts: list[str | int] = []
    at = 0
    for found in _GROUP.finditer(say):
        parts.append(say[at : found.start()])
        at = found.end()
        if found[1] == "$":
            parts.append("$")
        elif int(found[1]) > n_groups:
            raise BadEntry(f"{found[0]}: the pattern has {n_groups} groups")
        else:
            parts.append(int(found[1]))
    return [*parts, say[at:]]


def _plain(text: str) -> str:
    """The text with plain digits, spaces and apostrophes, one character for one."""
    return text if text.isascii() else fold(text).replace("’", "'")


def _lowered(text: str) -> str:
    """The text in lower case, one character for one."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)
