"""Decides whether a sentence ends at a run of terminators.

The rules serve a voice, not a grammar. A missed end costs only a pause, but a wrong end is heard, so doubtful text is
not cut. Each rule asks for as little of the following text as it needs.
"""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.characters import CLAUSE, CONTENT, DASHES, PAIRS, is_cjk, is_hangul
from telephony_tts.text.languages.english import abbreviations
from telephony_tts.text.languages.english.abbreviations import Kind
from telephony_tts.text.lookahead import Run, View
from telephony_tts.text.nesting import Role

_TOKEN_MAX = 40
_TOKEN_STOP = frozenset('()[]{}<>"“”‘*`~,;!?=|（）《》「」，、。；：！？…—–')
_URL = re.compile(r"://|www\.|@|/|=|&")
_KOREAN_LETTERS = "가나다라마바사아자차카타파하"
"""They mark the items of a list, as letters do."""
_LABEL = rf"[\s\-*+•⁃·●○◦#>(（\[_]*(\d{{1,3}}|[A-Za-zＡ-Ｚａ-ｚ{_KOREAN_LETTERS}]|[ivx]{{1,4}})"
_LIST_MARKER = re.compile(rf"{_LABEL}[)）]?")
_LIST_MARKER_ALONE = re.compile(rf"{_LABEL}[.．)）、][)）]?[\s*_]*")
_JOINED_STOPS = re.compile(r"\.[-/–]")
_AMOUNT = re.compile(r"[$€£¥￥]?\d[\d,]*(?:\.\d+)?")
_DATE = re.compile(
    r"(?<![\d.])(?:(?:19|20)?\d\d(?:\.\s?\d{1,2}){0,2}|[RHS]\d(?:\.\d{1,2}){2}|\d{1,2}\.\s?\d{1,2})(?!.)", re.DOTALL
)
_CJK_LETTER = re.compile(r"[\u2e80-\u2fff\u3041-\u9fff\uac00-\ud7a3]")
_WORDS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ZH_SPEECH = re.compile(r"(?<!请)(?:说|问|答|道|喊|表示|回复|解释|补充|提醒|告诉)")
_ZH_SPEECH_REACH = 7
_FRONTED_MAX = 6
_LONG_WORD = 5
_ZH_LINKS = frozenset("的和与或及后时等")
_ZH_CONTINUES = _ZH_LINKS | frozenset("并这字就即则而地得之")
_JAPANESE_NOUN = re.compile("[ァ-ヺ]|画面|項目|表示|文字|番号|印|欄|様|宛|旨|等")
"""Behind a quotation these go on with the sentence: 「本人です。」ボタン."""
_AFTER_DATE = re.compile("[ぁ-ん付発迄生]")
_KANA_PARTICLES = frozenset("とっはがをにのもでやかなだ")
_OPENERS = frozenset(PAIRS).difference("([{") | frozenset("‘\"'")
_SPOKEN_OPENERS = frozenset("“‘「『《〈【\"'*_#")


def ends_sentence(view: View, run: Run) -> bool:
    """Judge the run read by `read_run`. Raises Starved if the answer depends on text that was not fed yet."""
    text = view.text
    if not CONTENT.search(text, view.start, run.start):
        return False
    if run.newline:
        return True
    following = view.at(run.next)
    if not following:
        return True
    if following in CLAUSE:
        return False
    before = view.before(run.start)
    if run.ellipsis and before and before in "[(":
        return False
    if run.closed_after and not _closers_allow(view, run, following):
        return False
    if run.calls and not run.gap and _is_in_name(_token(view, run.start), following):
        return False
    if run.strong or (run.exclaim and is_cjk(before)):
        return run.strong or not _is_query(view, run, following)
    if run.ellipsis and not run.exclaim:
        return _after_ellipsis(view, run, following)
    if run.exclaim:
        return _after_exclamation(view, run, following)
    if run.wide_dot:
        return not (before.isdigit() and following.isdigit() and not run.gap)
    return _after_full_stop(view, run, following)


def is_list_marker(text: str) -> bool:
    """Whether `text` is only the marker of a list item, which is spoken with its item."""
    return bool(_LIST_MARKER_ALONE.fullmatch(text))


def list_number(view: View, run: Run) -> int | None:
    """The rank of the list marker that this full stop completes (letters count from 1001); None without a marker."""
    if run.n_dots != 1 or run.strong or run.exclaim:
        return None
    head = view.text[view.start : run.start]
    marker = _LIST_MARKER.fullmatch(head) if view.whole and len(head) < _TOKEN_MAX else None
    if marker:
        label = marker.group(1)
        if label.isdecimal() and (len(label) < 3 or view.line_start):
            return int(label)
        if not label.isdecimal() and (label != "I" or view.line_start):
            return _letter_number(label)
        return None
    token = _token(view, run.start) or view.before(run.start)
    label = token.lstrip("-•⁃·●○◦")
    if not label.isalnum() or len(label) > (2 if label.isdecimal() else 1):
        return None
    left = view.text[view.start : run.start - len(label)]
    introduced = left.rstrip()[-1:] in CLAUSE or not left.strip()
    separated = left[-1:].isspace() or introduced or len(token) > len(label)
    if is_cjk(label) and label not in _KOREAN_LETTERS:
        return None
    number = int(label) if label.isdecimal() else _letter_number(label)
    is_next = view.list_number > 0 and number == view.list_number + 1 and separated
    firsts = (1, _letter_number("a"), _letter_number("가"))
    return number if is_next or (number in firsts and introduced) else None


def _letter_number(label: str) -> int:
    if label and label in _KOREAN_LETTERS:
        return 2001 + _KOREAN_LETTERS.index(label)
    plain = unicodedata.normalize("NFKC", label).lower()
    return 1001 + ord(plain) - ord("a") if len(plain) == 1 else 0


def _closers_allow(view: View, run: Run, following: str) -> bool:
    """After `。”` and similar: false if the sentence continues after the quotation."""
    opening = run.opening
    if is_hangul(following) and not run.gap:
        return False
    if following in _KANA_PARTICLES and not run.gap:
        return False
    if run.quote_closed and not run.gap and view.text[run.end - 1] in "」』" and _goes_on_in_japanese(view, run.next):
        return False
    if run.quote_closed and opening is not None and following in _ZH_LINKS:
        return False
    if is_cjk(following):
        if opening is None or opening.role is Role.INTRODUCED:
            return True
        if opening.role is Role.HEAD:
            return not (run.quote_closed and _zh_speaker_follows(view, run.next))
        return run.quote_closed and not run.calls and following not in _ZH_CONTINUES
    if following.islower() or following in DASHES:
        return False
    if run.quote_closed and following.isupper():
        return not _speaker_follows(view, run.next)
    return True


def _is_in_name(token: str, following: str) -> bool:
    """Yahoo!ショッピング, Yahoo!天気."""
    return token == "Yahoo" or (token != "" and token.isascii() and "ァ" <= following <= "ヺ")


def _goes_on_in_japanese(view: View, place: int) -> bool:
    view.at(place + 1)
    return _JAPANESE_NOUN.match(view.text, place) is not None


def _zh_speaker_follows(view: View, place: int) -> bool:
    """`“……。”客服小王说`: a verb of speech follows within a few ideographs."""
    end = place
    while end - place < _ZH_SPEECH_REACH and is_cjk(view.at(end)):
        end += 1
        if _ZH_SPEECH.search(view.text, place, end):
            return True
    return False


def _speaker_follows(view: View, place: int) -> bool:
    """`"Stop!" John said`: a name and a verb of speech follow."""
    name = view.word(place)
    if name in abbreviations.STARTERS or view.at(place + len(name)) != " ":
        return False
    return view.word(place + len(name) + 1) in abbreviations.SPEECH_VERBS


def _after_ellipsis(view: View, run: Run, following: str) -> bool:
    text = view.text
    if run.quote_closed and following in _SPOKEN_OPENERS:
        return True
    if is_cjk(view.before(run.start)) or is_cjk(following):
        if is_hangul(following) and not run.gap:
            return False
        long_enough = len(CONTENT.findall(text, view.start, run.start)) >= 6
        return long_enough and (is_cjk(following) or following.isdigit() or following.isupper())
    if not run.gap or following in DASHES:
        return False
    if following == "I" and not view.at(run.next + 1).isalpha():
        return False
    return not following.islower()


def _after_exclamation(view: View, run: Run, following: str) -> bool:
    token = _token(view, run.start)
    if not run.gap:
        if following.isascii() and following.isalnum():
            return following.isupper() and len(token) > 1 and token[-1:].isalpha() and not _URL.search(token)
        return is_cjk(following) or following.isupper() or following in _OPENERS
    if following in DASHES or following in "&/|":
        return False
    if following.islower() and not _is_camel(view, run.next):
        first = not CONTENT.search(view.text, view.start, run.start - len(token)) and view.whole
        return first or not token[:1].isupper()
    return True


def _after_full_stop(view: View, run: Run, following: str) -> bool:
    token = _token(view, run.start)
    if view.before(run.start).isdigit() and _is_in_date(view, run, following):
        return False
    kind = _kind(view, run, token)
    if not run.gap:
        return _joined(view, run, token, kind, following)
    if kind is not Kind.PLAIN:
        return _after_abbreviation(view, run, token, kind)
    if following in "([":
        if len(token) >= _LONG_WORD and token.isalpha():
            return True
        inner = view.at(run.next + 1)
        return not (inner.islower() or inner.isdigit())
    if following in "—–―" or (following == "-" and view.at(run.next + 1) == "-"):
        return False
    if following.islower():
        return is_cjk(view.before(run.start)) or _is_camel(view, run.next) or _is_lower_style(view, token)
    return True


def _joined(view: View, run: Run, token: str, kind: Kind, following: str) -> bool:
    """A full stop without a gap after it: "example.com" and "world.Today"."""
    if kind is not Kind.PLAIN and not (run.closed_after and following.isupper()):
        return False
    if is_cjk(following):
        return True
    if following.isupper():
        if run.closed_after:
            return True
        return _is_new_word(view, run.next, token)
    if is_cjk(view.before(run.start)) or token.isalpha():
        return following == "*" or following in _OPENERS
    return False


def _is_query(view: View, run: Run, following: str) -> bool:
    """Whether the "?" belongs to an address with ideographs in its path."""
    if run.gap or not (following.isascii() and following.isalnum()):
        return False
    words = view.text[view.start : run.start].split()
    return bool(words) and "://" in words[-1]


def _is_new_word(view: View, place: int, token: str) -> bool:
    """Whether a capital directly after a full stop starts a sentence (missing blank), not the next part of a name."""
    if is_cjk(view.before(place - 1)):
        return True
    word = view.word(place)
    end = place + len(word)
    follower = view.at(end)
    if follower in ("@", "/", "_", "-", ":") or (follower == "." and view.at(end + 1).isalnum()):
        return False
    if word in abbreviations.STARTERS or word in abbreviations.COURTESY:
        return token.isalpha() or bool(_AMOUNT.fullmatch(token))
    capitalised = len(word) > 1 and word[1:].islower()
    return capitalised and ((token.isalpha() and token.islower() and len(token) > 1) or bool(_AMOUNT.fullmatch(token)))


def _after_abbreviation(view: View, run: Run, token: str, kind: Kind) -> bool:
    place = run.next
    while place - run.next < 4 and view.at(place) in _SPOKEN_OPENERS and view.at(place):
        place += 1
    char = view.at(place)
    if kind is Kind.TITLE or char.islower() or char in DASHES:
        return False
    if is_cjk(char):
        return not _CJK_LETTER.search(view.text, view.start, run.start)
    if char.isdigit():
        return kind is Kind.TIME and not _is_fronted(view, run)
    if not char.isupper():
        return char != "" and kind in (Kind.TIME, Kind.ENDABLE) and char not in "([@&+="
    word = view.word(place)
    follower = view.at(place + len(word))
    if follower == "." and ((len(word) == 1 and word != "I") or (kind is Kind.REFERENCE and word in ("No", "Nos"))):
        return False
    if kind is Kind.ENDABLE and not (token.isalpha() and token.istitle()):
        return not _is_fronted(view, run)
    starts = word in abbreviations.STARTERS
    if kind is Kind.REFERENCE:
        return _after_reference(view, run, token, word)
    if kind is Kind.LETTER:
        return (starts and view.whole) or _is_label(view, run, token)
    if kind is Kind.INSIDE:
        return starts
    if _is_fronted(view, run):
        return False
    if kind is Kind.ENDABLE:
        return word not in abbreviations.TIME_TAILS
    if kind is Kind.TIME:
        zone = 1 < len(word) <= 4 and word.isupper()
        return starts or not (zone or word in abbreviations.TIME_TAILS)
    return starts or word in abbreviations.COURTESY


def _after_reference(view: View, run: Run, token: str, word: str) -> bool:
    """ "No. A13" continues the sentence, "No. I want to cancel" ends one."""
    if any(c.isdigit() for c in word) or (len(word) == 1 and word not in "IA") or (len(word) > 1 and word.isupper()):
        return False
    answer = token.lower() == "no"
    return word in abbreviations.STARTERS or answer


def _is_label(view: View, run: Run, token: str) -> bool:
    """ "so do I. Long trips", "choose plan B. Press": the single capital is a word, not an initial."""
    words = _WORDS.findall(view.text, view.start, run.start)
    previous = words[-2] if len(words) > 1 else ""
    return (token == "I" and previous.islower()) or previous.lower() in abbreviations.LABELLED


def _is_fronted(view: View, run: Run) -> bool:
    """ "At 5 a.m. Mr. Smith went": a sentence that is only an adverbial so far must continue."""
    words = _WORDS.findall(view.text, view.start, run.start)
    if not view.whole or not words or words[0] not in abbreviations.PREPOSITIONS:
        return False
    return len(words) <= _FRONTED_MAX and abbreviations.CLAUSE_CORES.isdisjoint(words)


def _is_camel(view: View, place: int) -> bool:
    """eSIM, iPhone, f(x): a word whose lower-case first letter does not mean that the sentence continues."""
    return view.at(place + 1).isupper() or view.at(place + 1) == "("


def _is_lower_style(view: View, token: str) -> bool:
    """The writer starts sentences in lower case, so a lower-case letter means nothing."""
    first = CONTENT.search(view.text, view.start)
    return view.whole and first is not None and first.group().islower() and token.isalpha() and len(token) > 1


def _is_in_date(view: View, run: Run, following: str) -> bool:
    """ "2026. 11. 20." in Korean style. The last stop does not end a sentence if a particle or a verb follows."""
    date = _DATE.search(view.text, view.start, run.start)
    if date is None or date.end() != run.start:
        return False
    n_parts = date.group().count(".") + 1
    if is_hangul(following) or (not run.gap and _AFTER_DATE.match(following)):
        return n_parts == 3 or (n_parts == 2 and not run.gap)
    if n_parts == 3 or not run.gap:
        return following in "~～(–-"
    if not following.isdigit():
        return False
    return len(date.group().partition(".")[0]) == 4 or _goes_on_as_date(view, run.next)


def _goes_on_as_date(view: View, place: int) -> bool:
    """Whether a number of at most two digits and a stop are at `place`: behind "26." the "11." of a date."""
    end = place
    while end - place < 3 and view.at(end).isdigit():
        end += 1
    return end - place < 3 and view.at(end) == "."


def _kind(view: View, run: Run, token: str) -> Kind:
    word = _JOINED_STOPS.split(token)[-1].lstrip("-'’#&/+").rstrip("'’")
    if not word:
        return Kind.PLAIN
    if run.ellipsis:
        return Kind.PLAIN
    left = view.text[view.start : run.start - len(token)].rstrip()
    return abbreviations.kind(word, after_number=left[-1:].isdigit())


def _token(view: View, end: int) -> str:
    """The run of Latin word characters that ends at `end`."""
    text, place = view.text, end
    floor = max(view.start, end - _TOKEN_MAX)
    while place > floor:
        char = text[place - 1]
        if char.isspace() or char in _TOKEN_STOP or is_cjk(char):
            break
        place -= 1
    return text[place:end]
