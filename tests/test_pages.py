"""The Markdown pages: tables that every reader of Markdown shows as they are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_SEPARATOR = re.compile(r"\|( *:?-+:? *\|)+")


def tables(page: str) -> Iterator[list[tuple[int, str]]]:
    """The tables of a page: the number and the text of each line. What stands in a block of code is no table."""
    rows: list[tuple[int, str]] = []
    is_code = False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        is_code ^= line.lstrip().startswith("```")
        if line.lstrip().startswith("|") and not is_code:
            rows.append((number, line.strip()))
        elif rows:
            yield rows
            rows = []


def n_cells(row: str) -> int:
    """As GitHub counts: a `|` parts two cells inside backquotes too, unless a backslash stands before it."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_all_rows_of_a_table_have_as_many_cells(page: Path) -> None:
    """A stray cell is not shown, and one too few moves the others to the left."""
    for table in tables(page.read_text(encoding="utf-8")):
        head, separator = table[0][1], table[1][1]
        assert _SEPARATOR.fullmatch(separator), f"line {table[1][0]}: the second row of a table parts its head"
        for number, row in table:
            assert row.endswith("|") and n_cells(row) == n_cells(head), f"line {number}: {row}"


def test_the_tables_of_the_pages_are_seen() -> None:
    assert {page.name for page in PAGES} >= {"PROTOCOL.md", "README.md", "asterisk.md"}
    of_protocol = list(tables((ROOT / "PROTOCOL.md").read_text(encoding="utf-8")))
    assert len(of_protocol) > 20 and any("`peer_error`" in row for table in of_protocol for _, row in table)
    odd = "| a | b |\n|---|---|\n| `x|y` | z |\n| `x\\|y` | z |\n```\n| no table |\n```\n"
    assert [n_cells(row) for table in tables(odd) for _, row in table] == [2, 2, 3, 2]
