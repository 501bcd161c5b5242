"""The table of docs/reading.md: its examples, and how they are read now. Run it to write the readings again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from telephony_tts.text.normalizer import is_speakable
from telephony_tts.text.rewriting import spoken_spans

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
LANGUAGES = ("en", "zh", "ja", "ko")
_CELL = re.compile("`([^`]*)` → (.*)")


def rows() -> Iterator[tuple[str, list[str]]]:
    """(kind, the four cells) of each row of the table."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| kind"):
            kind, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            yield kind, cells


def example(cell: str) -> tuple[str, str]:
    """(what is written, what is read) in a cell. Raises ValueError for an empty cell."""
    found = _CELL.fullmatch(cell)
    if found is None or not is_speakable(found[1]):
        raise ValueError(f"no example: {cell!r}")
    return found[1], found[2]


def read(text: str, lang: str) -> str:
    return " ".join("".join(span.spoken for span in spoken_spans(text, lang)).split())


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for _, cells in rows():
        for lang, cell in zip(LANGUAGES, cells, strict=True):
            written, _ = example(cell)
            page = page.replace(cell, f"`{written}` → {read(written, lang)}", 1)
    PAGE.write_text(page, encoding="utf-8")
