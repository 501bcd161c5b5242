"""The table of all ways in (docs/carriers.md), made from the records of the doors. Run it to write the table again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from telephony_tts.app.config import doors
from telephony_tts.transport.door import MEDIA, Door, HttpRoutes, MediaSide, Vendor

PAGE = Path(__file__).parents[2] / "docs" / "carriers.md"
HEAD = (
    "| way in | path | who connects | speech | heard by | the bot's keys | authentication | page |",
    "|---|---|---|---|---|---|---|---|",
)
OWN = (
    "| our own | `/v1/stream` | bot | – | – | – | token | [PROTOCOL.md](../PROTOCOL.md) |",
    "| our own | `/tts/stream`, `/v1/voices` | HTTP | – | – | – | token | [http](protocol/http.md) |",
)
"""The ways in that are no doors."""
_GROUP = re.compile(r"\(\?P<(\w+)>([^()]*)\)")


def table() -> str:
    """All ways in: ours, then those of each door, first its media leg, then its WebSockets for bots, then HTTP."""
    return "\n".join([*HEAD, *OWN, *(row for door in doors() for row in rows(door))]) + "\n"


def rows(door: Door) -> Iterator[str]:
    if door.media is not None:
        yield _row(door, door.media, f"`{MEDIA}{door.name}`", "telephone", *_speech(door.media), _trust(door))
    for vendor in door.bots:
        key = _key(door) + (", or in the first message" if vendor.key_may_follow else "")
        yield _row(door, vendor, ", ".join(f"`{path}`" for path in paths(vendor.path)), "bot", "–", "–", "–", key)
    if door.http is not None:
        begins = ", ".join(f"`{begin}…`" for begin in door.http.begins)
        yield _row(door, door.http, begins, "HTTP", "–", "–", "–", _key(door))


def _row(door: Door, side: MediaSide | Vendor | HttpRoutes, *cells: str) -> str:
    name = side.name if isinstance(side, Vendor) else door.name
    page = side.page or door.name
    return "| " + " | ".join((name, *cells, f"[{page}](protocol/{page}.md)")) + " |"


def _speech(side: MediaSide) -> tuple[str, str, str]:
    """(rates, what tells what was heard, how a bot's keys reach the telephone)."""
    rates = ", ".join(f"{rate_hz / 1000:g}" for rate_hz in side.rates_hz) + " kHz"
    most = "" if side.leg.most_marks is None else f", {side.leg.most_marks} at most"
    heard = f"marks{most}" if side.leg.reports_marks else "clock"
    keys = {True: "message", False: "in the audio", None: "as its `start` says"}[side.leg.sends_dtmf]
    return rates, heard, keys


def _trust(door: Door) -> str:
    assert door.media is not None
    token = "token" + (", also in `start`" if door.media.token_in_start else "")
    return f"signature with `{door.name}.{door.secret}`; without it {token}" if door.media.is_signed else token


def _key(door: Door) -> str:
    names = [f"`{name}`" for name in door.key_headers] + [f"`?{name}=`" for name in door.key_options]
    return "token" + (f", also as {', '.join(names)}" if names else "")


def paths(pattern: re.Pattern[str]) -> list[str]:
    """The paths that a pattern matches, with {name} for what is free."""
    found = [pattern.pattern.removesuffix("/?")]
    while (group := _GROUP.search(found[0])) is not None:
        words = group[2].split("|") if re.fullmatch(r"[\w|-]+", group[2]) else [f"{{{group[1]}}}"]
        found = [each.replace(group[0], word) for each in found for word in words]
    return found


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(HEAD[0] + "\n")
    behind = rest[re.match(r"(?:\|.*\n)*", rest).end() :]  # type: ignore[union-attr]
    PAGE.write_text(before + table() + behind, encoding="utf-8")
