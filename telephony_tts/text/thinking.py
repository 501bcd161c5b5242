"""The thinking of a reasoning model, `<think>…</think>`: blanks stand for it, so that every other character keeps its
offset."""

from __future__ import annotations

import re

_TAG = re.compile("<(/?)think(?:ing)?>", re.IGNORECASE)
_TAGS = ("<think>", "<thinking>", "</think>", "</thinking>")
_LONGEST_TAG = max(map(len, _TAGS))


def may_begin_with_thinking(text: str) -> bool:
    """Whether `text`, or `text` with more behind it, begins with such a tag."""
    head = text.lstrip()[: len("<think")].lower()
    return bool(head) and "<think".startswith(head)


class Thinking:
    """Takes the text of one turn in pieces, and gives it back with blanks. Thinking without an end lasts to the end of
    the turn. With `is_spoken` only the tags become blanks."""

    def __init__(self, *, is_spoken: bool) -> None:
        self.found = False
        """There was a tag."""
        self._is_spoken = is_spoken
        self._pieces: list[str] = []
        self.n_chars = 0
        """Characters that were fed."""
        self._held = ""
        """The beginning of a tag, perhaps. More text decides."""
        self._inside = False

    @property
    def source(self) -> str:
        """All that was fed."""
        self._pieces[:] = ["".join(self._pieces)]
        return self._pieces[0]

    def feed(self, text: str) -> str:
        """The text up to a place that could be the beginning of a tag, with blanks."""
        self._pieces.append(text)
        self.n_chars += len(text)
        if not self._held and "<" not in text:
            return self._shown(text)
        text, self._held = self._held + text, ""
        out: list[str] = []
        at = 0
        for tag in _TAG.finditer(text):
            out += self._shown(text[at : tag.start()]), " " * len(tag.group())
            at = tag.end()
            self._inside = not tag[1] and not self._is_spoken
            self.found = True
        place = text.rfind("<", max(at, len(text) - _LONGEST_TAG))
        if place >= 0 and any(tag.startswith(text[place:].lower()) for tag in _TAGS):
            text, self._held = text[:place], text[place:]
        return "".join(out) + self._shown(text[at:])

    def close(self) -> str:
        """The rest of the text: no more will come."""
        rest, self._held = self._held, ""
        return self._shown(rest)

    def _shown(self, text: str) -> str:
        return " " * len(text) if self._inside else text
