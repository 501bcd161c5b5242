"""Finds the parts of a text that are not plain words and applies a language's rules to them.

A trigger pattern finds the places where such a part may begin. The rules of its kind are tried there in order, and the
first rule that answers wins. Every pattern is bounded, so the cost is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[re.Match[str]], str | None]
"""The spoken form of a match, "" if nothing is said; None if the rule does not apply and the next one is tried."""

Rule = tuple[re.Pattern[str], Say]

@dataclass(frozen=True, slots=True)
class Language:
    """The rules of a language. The named groups of the trigger are the keys of `rules`."""

    trigger: re.Pattern[str]
    rules: dict[str, tuple[Rule, ...]]


def readings(text: str, language: Language, said: str = "") -> list[tuple[int, int, str]]:
    """Every part of `text` that is spoken in another form than written, in order and without overlap.

    Each is (start in the text, end, spoken form). The rules see what was `said` before the text.
    """
    found: list[tuple[int, int, str]] = []
    at = first = len(said)
    text = said + text
    while trigger := language.trigger.search(text, at):
        start = trigger.start()
        at = start + 1
        for pattern, say in language.rules[trigger.lastgroup or ""]:
            match = pattern.match(text, start)
            if match is None or match.end() == start:
                continue
            spoken = say(match)
            if spoken is not None:
                found.append((start - first, match.end() - first, spoken))
                at = match.end()
                break
    return found


def before(match: re.Match[str], n_chars: int) -> str:
    """At most `n_chars` of the text before the match."""
    return match.string[max(0, match.start() - n_chars) : match.start()]


def after(match: re.Match[str], n_chars: int) -> str:
    """At most `n_chars` of the text after the match."""
    return match.string[match.end() : match.end() + n_chars]
