"""Finds what is not plain words in a text and asks a language's rules how to say it.

A trigger pattern names the places where something may begin; at each, the rules of its kind are tried in
order and the first that answers wins. Every pattern is bounded, so the cost is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[re.Match[str]], str | None]
"""The spoken form of a match ("" where nothing is said), or None: not mine, ask the next rule."""

Rule = tuple[re.Pattern[str], Say]
Reading = tuple[int, int, str]
"""Start and end in the text, and what is said for it."""


@dataclass(frozen=True, slots=True)
class Language:
    """How one language reads. The trigger's named groups are the keys of `rules`."""

    trigger: re.Pattern[str]
    rules: dict[str, tuple[Rule, ...]]


def readings(text: str, language: Language) -> list[Reading]:
    """Every stretch of `text` that is said otherwise than written, in order, without overlap."""
    found: list[Reading] = []
    at = 0
    while trigger := language.trigger.search(text, at):
        start = trigger.start()
        at = start + 1
        for pattern, say in language.rules[trigger.lastgroup or ""]:
            match = pattern.match(text, start)
            if match is None or match.end() == start:
                continue
            spoken = say(match)
            if spoken is not None:
                found.append((start, match.end(), spoken))
                at = match.end()
                break
    return found


def before(match: re.Match[str], n_chars: int) -> str:
    """At most `n_chars` of the text left of the match."""
    return match.string[max(0, match.start() - n_chars) : match.start()]


def after(match: re.Match[str], n_chars: int) -> str:
    """At most `n_chars` of the text right of the match."""
    return match.string[match.end() : match.end() + n_chars]
