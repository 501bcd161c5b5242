"""Reads SSML while it arrives: the text to speak, and what its tags say at which place of that text.

This is not an XML parser. A bot streams its markup, a tag may be cut anywhere, and a language model makes mistakes.
So nothing is refused: what is not a valid tag is text, an unknown tag is left out, and `problem` says so. No entities
can be defined. Every length, depth and number has a limit, and the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from telephony_tts.text.characters import CLAUSE, TERMINATORS
from telephony_tts.text.say_as import SAY_AS
from telephony_tts.text.source_map import SourceMap

MOST_TAG_CHARS = 1_000
"""A tag, comment or declaration that does not end within so many characters is text."""
MOST_VALUE_CHARS = 500
MOST_DEPTH = 32
MOST_READING_CHARS = 200
"""How much text one <say-as>, <sub> or <phoneme> can have."""
MOST_NAME_CHARS = 128
MOST_MARK_CHARS = 256
MOST_LANG_CHARS = 35
MOST_BREAK_MS = 10_000
MOST_BREAKS = 100
MOST_SILENCE_MS = 60_000
"""Limits of one break, and of all breaks of a turn."""
SLOWEST, FASTEST = 0.1, 10.0

BREAK_MS = {"none": 0, "x-weak": 100, "weak": 200, "medium": 400, "strong": 700, "x-strong": 1_200}
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.5}
_ALPHABETS = {
    "ipa": "ipa", "x-sampa": "x-sampa", "xsampa": "x-sampa", "pinyin": "pinyin", "py": "pinyin", "x-pinyin": "pinyin",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MarkupBreak:
    """Silence."""

    ms: int


@dataclass(frozen=True, slots=True)
class MarkupMark:
    """Report when all text so far was heard."""

    name: str


@dataclass(frozen=True, slots=True)
class MarkupCut:
    """A sentence ends here."""


@dataclass(frozen=True, slots=True)
class MarkupStyle:
    """How the text from here on is spoken. None is what the turn began with; `rate` multiplies its speed."""

    voice: str | None = None
    lang: str | None = None
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class MarkupEmphasis:
    """The text from here on is emphasised, or not any more."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class MarkupReading:
    """How the last `n_chars` of the text are read.

    `kind` "sub": as the text `value`; "phoneme": as the phonemes `value` in the alphabet `detail`; "say-as": as what
    `value` names, in the format `detail`. White space around the text is not part of it.
    """

    kind: Literal["sub", "phoneme", "say-as"]
    n_chars: int
    value: str
    detail: str = ""


MarkupEvent = str | MarkupBreak | MarkupMark | MarkupCut | MarkupStyle | MarkupEmphasis | MarkupReading
"""What a piece of markup says, in order. A string is text to speak."""

# Possessive: otherwise a tag that does not end is tried with each shorter name, in the square of its length.
_NAME = r"[A-Za-z_][\w.:-]*+"
_SPECIAL = re.compile("[<&]")
_NAME_START = re.compile("[A-Za-z_]")
_TAG = re.compile(rf"<(/?)({_NAME})((?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*)>")
_TAG_BEGUN = re.compile("</?[A-Za-z_]")
_ATTRIBUTE = re.compile(rf"\s*({_NAME})\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_TAG_HEAD = re.compile(rf"</?({_NAME})(?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'|[\"']?[^\s\"'<>]*))*\s*/?")
_ENTITY = re.compile(r"&(?:#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6})|([A-Za-z][A-Za-z0-9]{1,8}));")
_ENTITY_BEGUN = re.compile(r"&(?:#(?:[xX][0-9A-Fa-f]{0,6}|[0-9]{0,7})?|[A-Za-z][A-Za-z0-9]{0,8})?")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "nbsp": " "}
_SPEAK = re.compile(r"<speak(?=[\s/>])", re.I)
_TIME = re.compile(r"\+?([0-9]{0,9}(?:\.[0-9]{1,9})?)(ms|s)", re.I)
_RATE = re.compile(r"([+-]?)([0-9]{1,4}(?:\.[0-9]{1,6})?)(%?)")
_SYLLABLE = re.compile("[a-zü]{1,6}[1-5]")
_SPACES = str.maketrans("\n\r\t", "   ")
_ATTACHED = TERMINATORS | CLAUSE | frozenset(")]}）】」』》”’")
"""A style that ends right before these still holds for them, so that a sentence keeps its end."""

_VOID = frozenset({"break", "mark"})
_PLAIN = frozenset({"speak", "p", "s", "voice", "lang", "prosody", "emphasis"})
_READINGS = frozenset({"sub", "phoneme", "say-as"})
_KNOWN = _VOID | _PLAIN | _READINGS


def begins_with_speak(text: str) -> bool | None:
    """Whether `text` begins with a whole tag <speak>, perhaps behind an XML declaration. None: more text decides."""
    rest = text.lstrip()
    if rest.startswith("<?xml"):
        end = rest.find("?>", 0, MOST_TAG_CHARS)
        if end < 0:
            return None if len(rest) < MOST_TAG_CHARS else False
        rest = rest[end + 2 :].lstrip()
    elif "<?xml".startswith(rest):
        return None
    if "<speak".startswith(rest.lower()):
        return None
    if not _SPEAK.match(rest):
        return False
    if _TAG.match(rest, 0, MOST_TAG_CHARS):
        return True
    return None if len(rest) < MOST_TAG_CHARS and "<" not in rest[1:] else False


@dataclass(slots=True)
class _Element:
    """An element that is open. `before` is the style outside it."""

    name: str
    before: MarkupStyle
    is_emphasis: bool = False
    is_reading: bool = False


@dataclass(slots=True)
class _OpenReading:
    """The text inside a <say-as>, <sub> or <phoneme> that is open. It is given when the element ends."""

    kind: Literal["sub", "phoneme", "say-as"]
    value: str
    detail: str
    n_chars: int = 0


class SsmlReader:
    """Reads the markup of one turn. See the module text. Never raises."""

    def __init__(self) -> None:
        self.map = SourceMap()
        """From the text to the markup that was fed."""
        self.problem: str | None = None
        """The first thing that could not be followed, in words. None if there was none."""
        self._held = ""
        """What was fed and is not read yet: the beginning of a tag or entity."""
        self._n_read = 0
        """Characters of the markup before `_held`."""
        self._is_last = False
        self._in_cdata = False
        self._out: list[MarkupEvent] = []
        self._elements: list[_Element] = []
        self._n_too_deep = 0
        self._style = self._told_style = MarkupStyle()
        self._is_emphasised = False
        self._reading: _OpenReading | None = None
        self._inside: list[tuple[str | MarkupMark | None, int, int]] = []
        """Inside a reading: text and marks with their place in the markup. None is a closing tag."""
        self._ends_word = False
        """The text so far ends with a character that punctuation can follow."""
        self._n_breaks = 0
        self._silence_ms = 0

    def feed(self, text: str) -> list[MarkupEvent]:
        """Read more of the markup."""
        held = self._held
        if not held and not self._in_cdata and "<" not in text and "&" not in text:
            if text:
                self._text(text, 0, len(text))
                self._n_read += len(text)
            return self._take()
        self._held += text
        if (
            "<" not in text and ">" not in text and len(self._held) < MOST_TAG_CHARS and not self._in_cdata
            and (_TAG_BEGUN.match(held) or (len(held) > len("<![CDATA[") and held[0] == "<"))
        ):  # fmt: skip
            return []  # a tag that comes in many pieces is not read again with each of them
        self._read()
        return self._take()

    def close(self) -> list[MarkupEvent]:
        """The markup is complete. What has begun and not ended is text."""
        self._is_last = True
        self._read()
        if self._in_cdata:
            self._note("a CDATA section does not end")
        if self._elements:
            self._note(f"<{self._elements[-1].name}> is not closed")
        self._give_up_reading()
        return self._take()

    def _take(self) -> list[MarkupEvent]:
        events, self._out = self._out, []
        return events

    def _note(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem

    # ------------------------------------------------------------- from characters to tags

    def _read(self) -> None:
        """Read `_held` as far as it can be understood."""
        at = 0
        held = self._held
        while at < len(held):
            end = self._read_cdata(held, at) if self._in_cdata else self._read_one(held, at)
            if end is None:
                break
            at = end
        self._held = held[at:]
        self._n_read += at

    def _read_one(self, held: str, at: int) -> int | None:
        """Read a run of text, an entity or a tag. Returns where it ends, None if more must come first."""
        special = _SPECIAL.search(held, at)
        if special is None or special.start() > at:
            end = len(held) if special is None else special.start()
            self._text(held[at:end], at, end)
            return end
        return self._read_entity(held, at) if held[at] == "&" else self._read_markup(held, at)

    def _read_cdata(self, held: str, at: int) -> int | None:
        end = held.find("]]>", at)
        # The last two characters may be the beginning of its end.
        stop = end if end >= 0 else len(held) if self._is_last else max(at, len(held) - 2)
        if stop > at:
            self._text(held[at:stop], at, stop)
        if end >= 0:
            self._in_cdata = False
            return end + 3
        return stop if stop > at else None

    def _read_entity(self, held: str, at: int) -> int | None:
        entity = _ENTITY.match(held, at)
        if entity is None:
            if not self._is_last and _ENTITY_BEGUN.fullmatch(held, at):
                return None
            self._note("& that begins no entity; write &amp;")
            self._text("&", at, at + 1)
            return at + 1
        char = _character(entity)
        if char:
            self._text(char, at, entity.end())
        elif entity[3]:
            self._note(f"the entity {entity.group()} is not known")
            self._text("&", at, at + 1)
            return at + 1
        else:
            self._note(f"{entity.group()} is no character that can be spoken")
        return entity.end()

    def _read_markup(self, held: str, at: int) -> int | None:
        """Read what begins with "<"."""
        if at + 1 == len(held):
            return self._broken(held, at, 1) if self._is_last else None
        char = held[at + 1]
        limit = at + MOST_TAG_CHARS
        if char == "!":
            return self._read_declaration(held, at, limit)
        if char == "?":
            end = held.find("?>", at + 2, limit)
            return end + 2 if end >= 0 else self._wait(held, at, 2)
        if not (_NAME_START.match(char) or (char == "/" and (at + 2 == len(held) or _NAME_START.match(held, at + 2)))):
            return self._broken(held, at, 1)
        tag = _TAG.match(held, at, limit)
        if tag is not None:
            self._tag(tag)
            return tag.end()
        if "<" in held[at + 1 : limit] or self._is_last or len(held) >= limit:
            return self._broken(held, at, 1)
        return None

    def _read_declaration(self, held: str, at: int, limit: int) -> int | None:
        """A comment, a CDATA section, or a declaration, whose entities are not defined."""
        if held.startswith("<!--", at):
            end = held.find("-->", at + 4, limit)
            return end + 3 if end >= 0 else self._wait(held, at, 4)
        if held.startswith("<![CDATA[", at):
            self._in_cdata = True
            return at + 9
        begun = held[at : at + 9]
        if not self._is_last and ("<!--".startswith(begun) or "<![CDATA[".startswith(begun)):
            return None
        bracket = held.find("[", at, limit)
        end = held.find(">", at, limit)
        if bracket >= 0 and (end < 0 or bracket < end):
            end = held.find("]>", bracket, limit)
            return end + 2 if end >= 0 else self._wait(held, at, 2)
        return end + 1 if end >= 0 else self._wait(held, at, 2)

    def _wait(self, held: str, at: int, n_chars: int) -> int | None:
        """Wait for the end of a comment or declaration. Beyond the limit its text is spoken without `n_chars`."""
        if not self._is_last and len(held) - at < MOST_TAG_CHARS:
            return None
        self._note(f"{held[at : at + n_chars]} does not end")
        return at + n_chars

    def _broken(self, held: str, at: int, n_chars: int) -> int:
        """What begins at `at` is no tag. A known tag loses its name and its attributes; all else is text."""
        head = _TAG_HEAD.match(held, at, at + MOST_TAG_CHARS)
        if head is not None and head[1].lower() in _KNOWN:
            self._note(f"the tag <{head[1]}> does not end")
            return head.end()
        self._note("< that begins no tag; write &lt;")
        self._text(held[at : at + n_chars], at, at + n_chars)
        return at + n_chars

    # ------------------------------------------------------------- from tags to events

    def _tag(self, tag: re.Match[str]) -> None:
        """A whole tag."""
        name, rest = tag[2].lower(), tag[3]
        start, end = self._n_read + tag.start(), self._n_read + tag.end()
        if tag[1]:
            if rest.strip():
                self._note(f"</{name}> has attributes")
            self._close(name)
            if self._reading is not None:
                self._inside.append((None, start, end))
            else:
                self.map.close_tag(start, end)
            return
        is_empty = rest.endswith("/")
        attributes, is_valid = _attributes(rest.removesuffix("/"))
        if not is_valid:
            self._note(f"<{name}> has attributes that cannot be read")
        if name == "break":
            self._break(attributes)
        elif name == "mark":
            self._mark(attributes.get("name", ""))
        elif not is_empty:
            self._open(name, attributes)

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._elements) >= MOST_DEPTH:
            self._note(f"more than {MOST_DEPTH} elements inside each other")
            self._n_too_deep += 1
            return
        element = _Element(name, self._style)
        self._elements.append(element)
        if name not in _KNOWN:
            self._note(f"<{name[:40]}> is not known; its text is spoken")
        elif self._reading is not None:
            self._note(f"<{name}> has no meaning inside <{self._reading.kind}>")
        elif name in _READINGS:
            element.is_reading = self._begin_reading(name, attributes)
        else:
            self._open_style(name, attributes, element)

    def _open_style(self, name: str, attributes: dict[str, str], element: _Element) -> None:
        if name in ("p", "s"):
            self._out.append(MarkupCut())
        style = self._style
        voice, lang, rate = style.voice, style.lang, style.rate
        if name != "prosody" and name != "emphasis" and (wanted := attributes.get("xml:lang")):
            if len(wanted) <= MOST_LANG_CHARS and wanted.isprintable():
                lang = wanted
            else:
                self._note("xml:lang is no language")
        if name == "voice" and (wanted := attributes.get("name", "").strip()):
            if len(wanted) <= MOST_NAME_CHARS and wanted.isprintable():
                voice = wanted
            else:
                self._note("the name of a <voice> is too long")
        if name == "prosody" and (wanted := attributes.get("rate")):
            factor = _rate(wanted)
            if factor is None:
                self._note(f"the rate {wanted[:20]!r} is not known")
            else:
                rate = min(FASTEST, max(SLOWEST, rate * factor))
        if name == "emphasis" and attributes.get("level", "moderate") in ("strong", "moderate"):
            element.is_emphasis = not self._is_emphasised
            if element.is_emphasis:
                self._tell_style()
                self._is_emphasised = True
                self._out.append(MarkupEmphasis(True))
        self._style = MarkupStyle(voice, lang, rate)

    def _close(self, name: str) -> None:
        if name in _VOID:
            return
        if self._n_too_deep:
            self._n_too_deep -= 1
            return
        at = next((n for n in range(len(self._elements) - 1, -1, -1) if self._elements[n].name == name), None)
        if at is None:
            self._note(f"</{name[:40]}> closes nothing")
            return
        if at < len(self._elements) - 1:
            self._note(f"<{self._elements[-1].name[:40]}> is not closed before </{name[:40]}>")
        for element in reversed(self._elements[at:]):
            if element.is_reading:
                self._end_reading()
            if element.is_emphasis:
                self._is_emphasised = False
                self._out.append(MarkupEmphasis(False))
        self._style = self._elements[at].before
        del self._elements[at:]
        if name in ("p", "s"):
            self._out.append(MarkupCut())

    def _break(self, attributes: dict[str, str]) -> None:
        ms = BREAK_MS["medium"]
        if (strength := attributes.get("strength")) is not None:
            if strength not in BREAK_MS:
                self._note(f"the strength {strength[:20]!r} of a <break> is not known")
            ms = BREAK_MS.get(strength, ms)
        if (time := attributes.get("time")) is not None:
            given = _milliseconds(time)
            if given is None:
                self._note(f"the time {time[:20]!r} of a <break> is not known; write 500ms or 1.5s")
            else:
                ms = given
        if self._reading is not None:
            self._note(f"<break> has no meaning inside <{self._reading.kind}>")
            return
        most = min(MOST_BREAK_MS, MOST_SILENCE_MS - self._silence_ms) if self._n_breaks < MOST_BREAKS else 0
        if ms > most:
            self._note(
                f"too much silence: a <break> is at most {MOST_BREAK_MS / 1000:g} s, and a turn has at most "
                f"{MOST_BREAKS} of them and {MOST_SILENCE_MS / 1000:g} s in all"
            )
            ms = most
        if ms > 0:
            self._n_breaks += 1
            self._silence_ms += ms
            self._tell_style()
            self._out.append(MarkupBreak(ms))
            self._ends_word = False

    def _mark(self, name: str) -> None:
        if not 1 <= len(name) <= MOST_MARK_CHARS:
            self._note(f"a <mark> needs a name of 1 to {MOST_MARK_CHARS} characters")
        elif self._reading is not None:
            self._inside.append((MarkupMark(name), 0, 0))
        else:
            self._out.append(MarkupMark(name))

    # ------------------------------------------------------------- readings

    def _begin_reading(self, name: str, attributes: dict[str, str]) -> bool:
        if name == "sub":
            value, detail = attributes.get("alias", "").strip(), ""
            problem = "" if value else "a <sub> needs an alias"
        elif name == "phoneme":
            value = attributes.get("ph", "").strip()
            alphabet = attributes.get("alphabet", "ipa").strip().lower()
            detail = _ALPHABETS.get(alphabet, "")
            problem = "" if value else "a <phoneme> needs a ph"
            if not detail:
                problem = f"the alphabet {alphabet[:20]!r} is not known; it can be ipa, x-sampa or pinyin"
        else:
            wanted = attributes.get("interpret-as", "").strip().lower()
            value, detail = SAY_AS.get(wanted, ""), attributes.get("format", "").strip().lower()
            problem = "" if value else f"interpret-as {wanted[:20]!r} is not known"
        if problem:
            self._note(problem)
            return False
        kind: Literal["sub", "phoneme", "say-as"] = (
            "sub" if name == "sub" else "phoneme" if name == "phoneme" else "say-as"
        )
        self._reading = _OpenReading(kind, value, detail)
        return True

    def _end_reading(self) -> None:
        """The element is complete: its text is given, and how it is read."""
        reading = self._reading
        if reading is None:
            return  # it was too long
        text = "".join(event for event, _, _ in self._inside if isinstance(event, str))
        if not text.strip():
            self._note(f"a <{reading.kind}> has no text")
        elif reading.detail == "pinyin" and not _is_pinyin_of(reading.value, text.strip()):
            self._note("pinyin is one syllable with its tone for each character, such as chong2 qing4")
        else:
            marks = [item for item in self._inside if isinstance(item[0], MarkupMark)]
            self._inside = [item for item in self._inside if not isinstance(item[0], MarkupMark)]
            self._give_inside()
            self._out.append(MarkupReading(reading.kind, len(text), reading.value, reading.detail))
            self._inside = marks
        self._give_inside()

    def _give_up_reading(self) -> None:
        """The text inside the element is spoken as it stands."""
        if self._reading is not None:
            self._give_inside()

    def _give_inside(self) -> None:
        """Give what is inside the reading, which ends here."""
        inside, self._inside, self._reading = self._inside, [], None
        for event, start, end in inside:
            if event is None:
                self.map.close_tag(start, end)
            elif isinstance(event, str):
                self._give(event, start, end)
            else:
                self._out.append(event)

    # ------------------------------------------------------------- text

    def _text(self, text: str, at: int, end: int) -> None:
        """`text` is written as `_held[at:end]`. A line's end is a blank: it ends no sentence in markup."""
        if "\n" in text or "\t" in text or "\r" in text:
            text = text.translate(_SPACES)
        start, end = self._n_read + at, self._n_read + end
        reading = self._reading
        if reading is None:
            self._give(text, start, end)
            return
        self._inside.append((text, start, end))
        reading.n_chars += len(text)
        if reading.n_chars > MOST_READING_CHARS:
            self._note(f"more than {MOST_READING_CHARS} characters in a <{reading.kind}>")
            self._give_up_reading()

    def _give(self, text: str, start: int, end: int) -> None:
        """Text to speak, which is written as `source[start:end]`."""
        if self._style is not self._told_style and self._style != self._told_style:
            n_attached = 0
            if self._ends_word:
                while n_attached < len(text) and text[n_attached] in _ATTACHED:
                    n_attached += 1
            if n_attached < len(text):
                if n_attached:
                    self._put(text[:n_attached], start, start + n_attached)
                    text, start = text[n_attached:], start + n_attached
                self._tell_style()
        self._put(text, start, end)

    def _put(self, text: str, start: int, end: int) -> None:
        self.map.add(len(text), start, end)
        self._out.append(text)
        self._ends_word = not text[-1].isspace()

    def _tell_style(self) -> None:
        if self._style != self._told_style:
            self._told_style = self._style
            self._out.append(self._style)


def _attributes(text: str) -> tuple[dict[str, str], bool]:
    """(the attributes by their names in lower case, whether all of `text` could be read)."""
    attributes: dict[str, str] = {}
    at = 0
    is_valid = True
    while found := _ATTRIBUTE.match(text, at):
        value = found[2] if found[2] is not None else found[3]
        if len(value) <= MOST_VALUE_CHARS:
            attributes.setdefault(found[1].lower(), _ENTITY.sub(lambda e: _character(e) or e.group(), value))
        else:
            is_valid = False
        at = found.end()
    return attributes, is_valid and not text[at:].strip()


def _character(entity: re.Match[str]) -> str:
    """The character that an entity stands for; "" for none."""
    if entity[3]:
        return _ENTITIES.get(entity[3], "")
    code = int(entity[1]) if entity[1] else int(entity[2], 16)
    if code in (9, 10, 13):
        return " "
    if code < 32 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        return ""
    return chr(code)


def _is_pinyin_of(pinyin: str, text: str) -> bool:
    return len(pinyin.split()) == len(text) and all(map(_SYLLABLE.fullmatch, pinyin.split()))


def _milliseconds(time: str) -> int | None:
    found = _TIME.fullmatch(time.strip())
    if found is None or not found[1]:
        return None
    return round(float(found[1]) * (1 if found[2].lower() == "ms" else 1000))


def _rate(written: str) -> float | None:
    """The factor of a rate: a name, "120%", "+20%" or "1.2". None for another text."""
    written = written.strip().lower()
    if written in RATES:
        return RATES[written]
    found = _RATE.fullmatch(written)
    if found is None or (found[1] and not found[3]):
        return None
    value = float(found[2]) / (100 if found[3] else 1)
    factor = 1 + value if found[1] == "+" else 1 - value if found[1] == "-" else value
    return factor if factor > 0 else None
