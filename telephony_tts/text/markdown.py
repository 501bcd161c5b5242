"""Removes what is never spoken: markdown marks, HTML and SSML tags, emoji, control characters.

`strip` keeps the source offset of every remaining character, so that spoken text can be reported in the characters of
the bot's text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass

from telephony_tts.text.unspoken import ARROW, CITATION, DIRECTION, FORMULA, UP_OR_DOWN, is_citation, plain_formula

_FOLD_ONE: dict[int, int | str] = {ord(c): chr(ord(c) - 0xFEE0) for c in "＃＄％＆＊＋－．／＝＠＿～"}
_FOLD_ONE |= {c: c - 0xFEE0 for first, last in ("０９", "ＡＺ", "ａｚ") for c in range(ord(first), ord(last) + 1)}
_FOLD_ONE |= {
    ord("￡"): "£",
    ord("￥"): "¥",
    ord("−"): "-",
    ord("‐"): "-",
    ord("‑"): "-",
    ord("‒"): "-",
    ord("﹣"): "-",
    ord("∶"): ":",
}
_FOLD_ONE |= {
    ord(c): " " for c in "\t\n\r\v\f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
}
_FOLD_ONE |= {ord(c): " " for c in "\u200a\u2028\u2029\u202f\u205f\u3000"}

_OTHER_DIGIT = re.compile(r"[^\D0-9]|(?<![①-⑨0-9])[①-⑨](?![①-⑨0-9])|[⑴-⑼⒈-⒐❶-❾➀-➈➊-➒]")
"""Not ①②③ in a row, nor ①10時, which would become one number."""
_WIDE_COLON = re.compile("(?<=[0-9])：(?=[0-9])")
"""Between two digits, as in 14：30. Elsewhere it is a mark of the sentence."""

_BLOCK_TAG = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|td|th|table|h[1-6]|hr|break|s|voice|speak)\b", re.I)

# Control, format, private and unassigned characters, arrows, boxes, dingbats and emoji. Lone surrogates are included:
# they cannot be encoded, so no engine could accept them.
_SILENT = (
    r"\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    r"\u20d0-\u20f0\u2190-\u21ff\u2300-\u23ff\u2400-\u245f\u2500-\u2775\u2794-\u27bf\u27f0-\u27ff\u2900-\u297f"
    r"\u2b00-\u2bff\u3030\u303d\u3297\u3299\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufff0-\uffff"
    r"\U0001f000-\U0001f0ff\U0001f10d-\U0001f1ff\U0001f200-\U0001faff\U000e0000-\U0010ffff©®™•◦‣"
)
_FIRST = r"$\\^`~\-*_=>\#+•·●▪◦‣!\[\]<m&|(（【\ \t"
"""What a mark begins with. Most characters of a text are not among these, and cost no more than that."""

_MARK = re.compile(
    rf"""(?=[{_FIRST}{_SILENT}])(?:
      (?P<formula>{FORMULA})
    | (?P<fence>^[ \t]*(?:```|~~~)[^\n`]{{0,40}}$)
    | (?P<rule>^[ \t]*(?:-[ \t]*){{3,}}$|^[ \t]*(?:\*[ \t]*){{3,}}$|^[ \t]*(?:_[ \t]*){{3,}}$|^[ \t]*={{3,}}[ \t]*$)
    | (?P<divider>^[ \t]*\|?[ \t]*:?-{{2,}}:?[ \t]*\|[-|: \t]*$)
    | (?P<quote>^[ \t]*>(?![=0-9$€£¥])[> \t]*)
    | (?P<heading>^[ \t]*\#{{1,6}}[ \t]+)
    | (?P<closing_heading>[ \t]+\#{{2,}}[ \t]*$)
    | (?P<bullet>^[ \t]*[-*+•·●▪◦‣][ \t]+(?:\[[ xX]\][ \t]+)?)
    | (?P<direction>{DIRECTION})
    | (?P<image>!?\[(?=[^\[\]\n]{{0,300}}\]\())
    | (?P<target>\]\([^()\s]{{0,500}}(?:[ \t]+"[^"\n]{{0,200}}")?\))
    | (?P<citation>{CITATION})
    | (?P<footnote>\[\^[\w-]{{1,20}}\])
    | (?P<autolink>[<>](?=(?:https?://|mailto:))|(?<=<)mailto:)
    | (?P<comment><!--(?:[^-<]|-(?!->)){{0,2000}}-->)
    | (?P<tag></?[A-Za-z][\w:.-]{{0,40}}(?:\s{{1,9}}[\w:.-]{{1,40}}\s?=\s?
      (?:"[^"<>]{{0,500}}"|'[^'<>]{{0,500}}'|[^\s"'<>]{{1,500}})){{0,20}}\s{{0,9}}/?>)
    | (?P<entity>&(?:[A-Za-z]{{2,8}}|\#[0-9]{{1,7}}|\#[xX][0-9A-Fa-f]{{1,6}});)
    | (?P<escape>\\(?=[\\`*_{{}}\[\]()\#+.!|~>-]))
    | (?P<mask>\*{{4,}}(?=[ -]?[0-9])|(?<=[0-9])\*{{2,}}(?=[0-9])
      |(?<=(?:ress|Dial|dial|nter)[ ])\*\*(?=[.,;]|[ ](?:and|or|then|to|for)\b)   # two keys
      |(?<=[ ])\*\*(?=[ ](?:to|for)\b))
    | (?P<struck>~~(?<![\w~]~~)(?=[^\s~])[^~\n]{{1,120}}(?<=[^\s~])~~(?![\w~]))   # a price that is no longer so
    | (?P<strong>\*{{2,}}|~~+|`+|(?<!\w)__+(?=\S)|(?<=\S)__+(?!\w))
    | (?P<underline>(?<![\w@./])_(?=\S)|(?<=\S)_(?![\w@./]))
    | (?P<star>\*)
    | (?P<arrow>{ARROW})
    | (?P<pipe>\|+)
    | (?P<silent>(?:(?!{UP_OR_DOWN}|[▲△][¥￥$]?[0-9０-９]|[○◎][をのはがにとやか」×印])[{_SILENT}])+) # ▲5: Japanese
    )""",
    re.VERBOSE | re.MULTILINE,
)
_OPENS = re.compile(r"\*(?=[^\s*][^*\n]{0,200}(?<!\s)\*)")
_KEY = re.compile(r"(?:按|press|dial|hit|the|key|拨|键入|输入)[ ]?$", re.I)
_KEYS = re.compile(
    r"\*\*[0-9]{1,20}[*#](?!\*)(?!(?:(?!\*\*)[^\n]){0,200}+(?<=[^\s，、；：,;:（(])\*\*(?![0-9]{1,20}[*#](?!\*)))"
)
"""Stars and digits that are pressed, **21*, if the next stars in the line close nothing."""
_FORWARDS = re.compile(r"\*[0-9]{1,20}\*[0-9]")
"""The keys *21*5551234#."""
_CHANGE = re.compile(r"[0-9]%[^\w%]{1,6}[0-9]$|[$€£¥₩₹][0-9.,]{1,16}[^\w.,]{1,6}[$€£¥₩₹]$")
"""A value and another one behind an arrow: "$60 → $65", "5% → 6%"."""
_KEY_AFTER = re.compile(r"[ ]?(?:号?键|key\b|[0-9#，、。；,;或和])", re.I)


@dataclass(frozen=True, slots=True)
class Stripped:
    """The remaining `text`. `origins[i]` is the input offset of its character i; one more entry is the end."""

    text: str
    origins: list[int]


def fold(text: str) -> str:
    """Replace full-width and foreign digits, full-width signs and odd spaces by plain ones, one for one."""
    text = text.translate(_FOLD_ONE)
    if text.isascii():
        return text
    text = _OTHER_DIGIT.sub(lambda m: str(unicodedata.digit(m.group())), text)
    return _WIDE_COLON.sub(":", text)


def strip(text: str) -> Stripped:
    """`text` without silent marks, folded. A mark between words is replaced by a space or a comma."""
    pieces: list[str] = []
    origins: list[int] = []
    at = 0
    emphasised = False
    for mark in _MARK.finditer(text):
        kind, start, end = mark.lastgroup, mark.start(), mark.end()
        kept = ""
        if kind == "mask" or (kind == "citation" and not is_citation(text, start, end)):
            continue
        if kind == "strong" and _KEYS.match(text, start):
            continue
        if kind in ("citation", "arrow") and start > at and text[start - 1] == " ":
            start -= 1
        if kind == "star":
            opens = _is_opening(text, start)
            if not opens and not (emphasised and start and not text[start - 1].isspace()):
                continue
            emphasised = opens and not emphasised
        elif kind == "tag":
            kept = " " if _BLOCK_TAG.match(mark.group()) else ""
        elif kind == "entity":
            kept = html.unescape(mark.group())
            if len(kept) != 1 or not kept.isprintable():
                kept = " "
        elif kind == "formula":
            kept = plain_formula(mark.group())
            if text[max(0, start - 1) : start].isdigit() and kept[:1].isdigit():
                kept = " " + kept  # two and a half
        elif kind == "arrow":
            kept = _pause(text, start, end) if _parts_cells(text, start, end) else " "
        elif kind == "pipe":
            kept = "," if _parts_cells(text, start, end) else " "
        elif kind == "silent":
            kept = " " if _parts_words(text, start, end) else ""
        pieces.append(text[at:start])
        origins.extend(range(at, start))
        if kept:
            kept = kept[: end - start]
            pieces.append(kept)
            origins.extend(range(start, start + len(kept)))
        at = end
    pieces.append(text[at:])
    origins.extend(range(at, len(text) + 1))
    return Stripped(fold("".join(pieces)), origins)


def _is_opening(text: str, at: int) -> bool:
    """Whether the single asterisk at `at` opens emphasis; else it is the star key, a product or a rating."""
    if (at and text[at - 1].isascii() and text[at - 1].isalnum()) or _FORWARDS.match(text, at):
        return False
    if _KEY.search(text, max(0, at - 8), at) and _KEY_AFTER.match(text, at + 1):
        return False
    return _OPENS.match(text, at) is not None


def _parts_cells(text: str, start: int, end: int) -> bool:
    """Whether a table bar has words on both sides in its line."""
    before = text[max(0, start - 200) : start].rpartition("\n")[2].strip(" \t|")
    after = text[end : end + 200].partition("\n")[0].strip(" \t|")
    return bool(before and after)


def _pause(text: str, start: int, end: int) -> str:
    """What an arrow between two parts becomes. Without blanks around it a comma could make one number of two."""
    if "\u3041" <= text[end] <= "\u9fff":
        return "、"
    if _CHANGE.search(text[max(0, start - 24) : end + 1]) is not None:
        return "–"
    return ", " if end - start > 1 else " "


def _parts_words(text: str, start: int, end: int) -> bool:
    """Whether a symbol (an arrow, an emoji) stands between two words. A format character joins them instead."""
    if not (start and end < len(text) and text[start - 1].isalnum() and text[end].isalnum()):
        return False
    return any(unicodedata.category(c) in ("So", "Sm") for c in text[start:end])
