"""Web addresses and e-mail addresses, in the words of a language."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_TLD = (
    "com|net|org|edu|gov|mil|int|info|biz|io|ai|app|dev|me|tv|cc|co|shop|store|online|site|tech|cloud|xyz|top|vip|"
    "link|help|support|bank|health|uk|us|ca|au|nz|ie|de|fr|es|it|nl|be|ch|at|se|no|dk|fi|pl|pt|ru|in|cn|hk|tw|mo|jp|"
    "kr|sg|my|th|vn|id|ph|br|mx|ar|za|ae|eu|ly|gl"
)
URL = re.compile(
    rf"""(?:(?:https?|ftp|wss?)://[A-Za-z0-9._~%-]{{0,200}}[A-Za-z0-9](?::[0-9]{{1,5}})?
        | www\.[A-Za-z0-9-]{{1,63}}(?:\.[A-Za-z0-9-]{{1,63}}){{0,6}}
        | (?:[A-Za-z0-9][A-Za-z0-9-]{{0,62}}\.){{1,6}}(?:{_TLD})(?![A-Za-z0-9-]|\.[A-Za-z]))
        (?:/(?:[A-Za-z0-9._~%/-]{{0,300}}[A-Za-z0-9/])?)?(?:\?[A-Za-z0-9._~%/&=+-]{{0,300}}[A-Za-z0-9])?
        (?:\#[A-Za-z0-9._~%/-]{{0,100}}[A-Za-z0-9])?""",
    re.VERBOSE | re.IGNORECASE,
)
EMAIL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}")

_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class AddressWords:
    """The words of a language for the parts of an address. `digits` reads a run of digits, `space` separates words."""

    at: str
    signs: dict[str, str]
    digits: Callable[[str], str]
    space: str


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
"""What is found, and what is said for it."""


def address_rules(words: AddressWords) -> tuple[Rule, ...]:
    """The rules of a language for e-mail addresses and for web addresses, in the order to try them."""

    def say_email(match: re.Match[str]) -> str:
        local, _, host = match.group().partition("@")
        return words.space.join((_say(local, words), words.at, _say(host, words)))

    def say_url(match: re.Match[str]) -> str:
        """Without the scheme: a caller does not need "h t t p s"."""
        return _say(re.sub(r"^[A-Za-z]{2,5}://", "", match.group()).rstrip("/"), words)

    return (EMAIL, say_email), (URL, say_url)


def _say(text: str, words: AddressWords) -> str:
    said: list[str] = []
    for piece in _PIECE.findall(text):
        if piece.isdigit():
            said.append(words.digits(piece))
        elif piece.isalpha():
            said.append(_say_name(piece))
        elif word := words.signs.get(piece, ""):
            said.append(word)
    return words.space.join(said)


def _say_name(name: str) -> str:
    """A label as a word if it can be read as one, else letter by letter: "www" -> "w w w"."""
    if re.search("[aeiouAEIOU]|[yY]$", name) or (len(name) <= 5 and re.search("[yY]", name)):
        return name
    return " ".join(name)
