"""Mandarin text as pinyin with tone digits, and pinyin as the symbols of Kokoro. No threads, no event loop.

Own readings come first: the words of `mandarin.txt`, then the rules below it, then surnames before a title. pypinyin
reads the rest of the plain text at once. Word by word it would be worse: most of its phrases would not be found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib import resources

from telephony_tts.engines.api import Pronunciation

_HAN = "\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
HAN_RUN = re.compile(f"[{_HAN}]+")

_DIGITS = str.maketrans("0123456789", "零一二三四五六七八九")
_TITLES = (
    "先生|女士|小姐|太太|经理|老师|师傅|主任|总监|总裁|总|医生|律师|同学|阿姨|大哥|大姐|队长|警官|主管|教授|老板|院长|行长|部长|科长|处长|局长"
)


class Mandarin:
    """Loads its words and pypinyin (0.3 s) in its constructor. Several threads may call `read` at once."""

    def __init__(self) -> None:
        from pypinyin import Style, lazy_pinyin

        read: Callable[..., list[str]] = lazy_pinyin
        self._pypinyin = partial(read, style=Style.TONE3, neutral_tone_with_five=True)
        self._lexicon = _Lexicon(resources.files(__package__).joinpath("mandarin.txt").read_text(encoding="utf-8"))
        self._pypinyin("您好")

    def simplified(self, text: str) -> str:
        """The text with the traditional characters that our words have as simplified ones; all places stay."""
        return self._lexicon.simplified(text)

    def read(self, text: str, pronunciations: Iterable[Pronunciation] = ()) -> dict[int, str]:
        """The syllable of each Han character by its place. `pronunciations` decide where they have pinyin; what is no
        syllable of Mandarin is left out. Digits beside Han characters are to be Han characters."""
        plain = self._lexicon.simplified(text)
        given = {
            each.start + n: _umlaut(syllable)
            for each in pronunciations
            if each.alphabet == "pinyin" and len(each.value.split()) == each.end - each.start
            for n, syllable in enumerate(each.value.split())
            if is_syllable(syllable)
        }
        own = {**self._lexicon.readings(plain), **given}
        found: dict[int, str] = {}
        for run in HAN_RUN.finditer(plain):
            syllables = self._pypinyin(run[0])
            if len(syllables) != len(run[0]):  # never seen; a character would be lost
                syllables = [syllable for char in run[0] for syllable in self._pypinyin(char)[:1]]
            for at, syllable in enumerate(syllables, run.start()):
                found[at] = own.get(at, _umlaut(syllable))
        _change_yi_and_bu(plain, found, own)
        return {at: syllable for at, syllable in found.items() if is_syllable(syllable)}


def digits_as_han(text: str) -> str:
    """The text with its digits as Han characters if it has any such character; all places stay."""
    return text.translate(_DIGITS) if HAN_RUN.search(text) else text


def _umlaut(syllable: str) -> str:
    return syllable.replace("u:", "v").replace("ü", "v")


# ------------------------------------------------------------------------------- own readings


class _Lexicon:
    """The data file: `word pinyin`, `~ pattern pinyin`, `surname char pinyin`, `traditional pairs`.

    In a word, "." stands for the usual reading of a character. A pattern is a regular expression, whose groups are
    characters with a reading each.
    """

    def __init__(self, data: str) -> None:
        self._words: dict[str, list[str]] = {}
        self._patterns: list[tuple[re.Pattern[str], list[str]]] = []
        self._surnames: dict[str, list[str]] = {}
        pairs = ""
        for line in data.splitlines():
            first, *rest = line.split("#")[0].split() or [""]
            if first == "~":
                self._patterns.append((re.compile(rest[0]), rest[1:]))
            elif first == "surname":
                self._surnames[rest[0]] = rest[1:]
            elif first == "traditional":
                pairs += "".join(rest)
            elif first:
                self._words[first] = rest
        self._simple = str.maketrans(dict(zip(pairs[::2], pairs[1::2], strict=True)))
        # The longest word at a place wins.
        self._word = re.compile("|".join(map(re.escape, sorted(self._words, key=len, reverse=True))))
        names = "|".join(sorted(self._surnames, key=len, reverse=True))
        self._surname = re.compile(
            rf"(?:(?:(?<![{_HAN}])|(?<=[是请叫找姓位])|(?<=您好)|(?<=你好)|(?<=我是))(?:{names})"
            rf"(?=[{_HAN}]{{0,2}}?(?:{_TITLES}))"
            # Behind 的 without a given name: 的单位主任 is no surname.
            rf"|(?<=的)(?:{names})(?=(?:{_TITLES}))|(?<=姓)(?:{names})(?=[吗吧的]|[^{_HAN}]|$))"
        )

    def simplified(self, text: str) -> str:
        """Traditional characters that our words have, as simplified ones."""
        return text.translate(self._simple)

    def readings(self, text: str) -> dict[int, str]:
        """Syllables by their place. Words count before patterns, surnames before both."""
        found: dict[int, str] = {}
        for pattern, syllables in self._patterns:
            for match in pattern.finditer(text):
                for group, syllable in enumerate(syllables, 1):
                    if match[group] is not None:
                        found[match.start(group)] = syllable
        for match in self._word.finditer(text):
            for at, syllable in enumerate(self._words[match[0]], match.start()):
                if syllable != ".":
                    found[at] = syllable
        for match in self._surname.finditer(text):
            for at, syllable in enumerate(self._surnames[match[0]], match.start()):
                found[at] = syllable
        return found


def _change_yi_and_bu(text: str, syllables: dict[int, str], own: dict[int, str]) -> None:
    """一 and 不 in their usual tones. Which tones they have in speech depends on the next syllable: see `sandhi`.

    pypinyin's phrases have some of them in one tone and some in the other, so both are set here.
    """
    for at, syllable in syllables.items():
        if text[at] == "一" and at not in own and syllable in ("yi2", "yi4", "yi5"):
            syllables[at] = "yi1"
        elif text[at] == "不" and at not in own and syllable in ("bu2", "bu5"):
            syllables[at] = "bu4"


def sandhi(text: str, syllables: dict[int, str]) -> dict[int, str]:
    """The tones of 一 and 不 as they are spoken before other tones. Those of third tones stay: Kokoro was trained on
    them as they are written, and speaks them right by itself."""
    spoken = dict(syllables)
    for at, syllable in syllables.items():
        following = syllables.get(at + 1, "")[-1:]
        if text[at] == "不" and syllable == "bu4" and following == "4":
            spoken[at] = "bu2"
        elif text[at] == "一" and syllable == "yi1" and not _counts(text, at):
            if text[at - 1 : at] == text[at + 1 : at + 2] and at:
                continue  # 看一看: light in speech, and Kokoro was trained on the first tone
            if following in ("4", "5"):
                spoken[at] = "yi2"
            elif following:
                spoken[at] = "yi4"
    return spoken


_DIGIT_WORDS = frozenset("零〇一二三四五六七八九幺")


def _counts(text: str, at: int) -> bool:
    """Whether 一 at this place keeps its first tone: in an ordinal, a date, a row of digits, or as a name."""
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if (before in _DIGIT_WORDS and before) or (after in _DIGIT_WORDS and after):
        return True
    if before and before in "第十点统唯周期百千万亿零":
        return not (after and after in "百千万亿" and before in "十百千万亿")
    if after == "点" and before and before in "大小高低多少快慢好长短轻重远近宜有":
        return False  # 调大一点, not one o'clock
    return bool(re.match("[月日号点楼层栋线座单等]", after)) or not after


# ------------------------------------------------------------------------------- pinyin to symbols

_INITIALS = {
    "b": "p", "p": "pʰ", "m": "m", "f": "f", "d": "t", "t": "tʰ", "n": "n", "l": "l", "g": "k", "k": "kʰ", "h": "x",
    "j": "ʨ", "q": "ʨʰ", "x": "ɕ", "zh": "ꭧ", "ch": "ꭧʰ", "sh": "ʂ", "r": "ɻ", "z": "ʦ", "c": "ʦʰ", "s": "s", "": "",
}  # fmt: skip
_FINALS = {
    "a": "aT", "ai": "aiT", "an": "aTn", "ang": "aTŋ", "ao": "auT", "e": "ɤT", "ei": "eiT", "en": "əTn", "eng": "əTŋ",
    "i": "iT", "ia": "jaT", "ian": "jɛTn", "iang": "jaTŋ", "iao": "jauT", "ie": "jeT", "in": "iTn", "iu": "jouT",
    "ing": "iTŋ", "iong": "jʊTŋ", "ong": "ʊTŋ", "ou": "ouT", "u": "uT", "ui": "weiT", "ua": "waT", "uai": "waiT",
    "uan": "waTn", "un": "wəTn", "uang": "waTŋ", "ueng": "wəTŋ", "uo": "woT", "o": "woT", "v": "yT", "ve": "ɥeT",
    "van": "ɥɛTn", "vn": "yTn", "er": "ɚT",
}  # fmt: skip
_WHOLE = {
    "yi": "iT", "ya": "jaT", "yan": "jɛTn", "yang": "jaTŋ", "yao": "jauT", "ye": "jeT", "yin": "iTn", "you": "jouT",
    "ying": "iTŋ", "yong": "jʊTŋ", "yo": "woT", "yai": "jaiT", "wu": "uT", "wa": "waT", "wai": "waiT", "wan": "waTn",
    "wang": "waTŋ", "wei": "weiT", "wen": "wəTn", "weng": "wəTŋ", "wo": "woT", "yu": "yT", "yue": "ɥeT",
    "yuan": "ɥɛTn", "yun": "yTn", "o": "ɔT", "ê": "ɛT", "n": "əTn", "ng": "əTŋ", "m": "m", "hm": "xəTm", "hng": "xəTŋ",
}  # fmt: skip
_TONES = {"1": "→", "2": "↗", "3": "↓", "4": "↘", "5": ""}
_SYLLABLE = re.compile("(zh|ch|sh|[bpmfdtnlgkhjqxrzcs]?)([aeiouvê]+r?(?:ng|n)?)")


def is_syllable(pinyin: str) -> bool:
    """Whether this is a syllable of Mandarin with its tone digit."""
    return symbols(pinyin) is not None


@cache
def symbols(pinyin: str) -> str | None:
    """Kokoro's symbols of a syllable such as "zhong4" (ü is v). None if there is no such syllable."""
    tone = _TONES.get(pinyin[-1:])
    if tone is None:
        return None
    sound = _whole(_umlaut(pinyin[:-1]))
    return None if sound is None else sound.replace("T", tone)


def _whole(syllable: str) -> str | None:
    if syllable in _WHOLE:
        return _WHOLE[syllable]
    match = _SYLLABLE.fullmatch(syllable)
    if match is None:
        return None
    initial, final = match.groups()
    if initial in ("j", "q", "x") and final.startswith("u"):
        final = "v" + final[1:]
    if initial in ("l", "n") and final == "ue":
        final = "ve"
    if final not in _FINALS or not _goes_with(initial, final):
        return None
    if final == "i" and initial in ("zh", "ch", "sh", "r", "z", "c", "s"):
        return _INITIALS[initial] + "ɨT"
    return _INITIALS[initial] + _FINALS[final]


def _goes_with(initial: str, final: str) -> bool:
    """Whether Mandarin has the initial with the final."""
    front = final[0] in "iv"
    if initial in ("j", "q", "x"):
        return front
    if initial == "":
        return final in ("a", "ai", "an", "ang", "ao", "e", "ei", "en", "eng", "er", "ou")
    if final in ("er", "ueng"):
        return False
    if initial in ("zh", "ch", "sh", "r", "z", "c", "s", "g", "k", "h"):
        return not front or (final == "i" and initial not in ("g", "k", "h"))
    if final[0] == "v":
        return initial in ("l", "n")
    if initial in ("b", "p", "m", "f"):
        return final[0] != "u" or final == "u"
    return True


def spelt(text: str, syllables: dict[int, str]) -> Iterator[str]:
    """The text with its Han characters as pinyin, piece by piece, for people to read."""
    for at, char in enumerate(text):
        yield f"{syllables[at]} " if at in syllables else char
