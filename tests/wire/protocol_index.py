"""The list of sections in docs/protocol/README.md. Run it to write the list again."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "protocol"
INDEX = FOLDER / "README.md"
PAGES = (ROOT / "PROTOCOL.md", *(page for page in sorted(FOLDER.glob("*.md")) if page != INDEX))

_HEADING = "## Contents\n\n"
_NUMBERED = re.compile(r"^#+ ((\d+(?:\.\d+)?)\.? .+)$", re.MULTILINE)


def sections(text: str) -> list[tuple[str, str]]:
    """The numbered headings of a page: the number, and the heading with it."""
    return [(number, heading) for heading, number in _NUMBERED.findall(text)]


def contents() -> list[str]:
    """A line with a link for each section of all pages, in the order of their numbers."""
    lines: list[tuple[list[int], str]] = []
    for page in PAGES:
        for number, heading in sections(page.read_text(encoding="utf-8")):
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            indent = "  " if "." in number else ""
            link = f"{indent}- [{heading}]({os.path.relpath(page, FOLDER)}#{anchor})"
            lines.append(([int(part) for part in number.split(".")], link))
    return [line for _, line in sorted(lines)]


def with_contents(index: str) -> str:
    """The page with its list of sections written anew. The list is the end of the page."""
    return "\n".join([index.partition(_HEADING)[0] + _HEADING.rstrip(), "", *contents(), ""])


if __name__ == "__main__":
    INDEX.write_text(with_contents(INDEX.read_text(encoding="utf-8")), encoding="utf-8")
