"""The Markdown pages: tables have whole rows, links lead somewhere, and named files exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FOLDERS = (
    "telephony_tts", "sip_bridge", "tests", "benchmarks", "docs", "configs", "docker", "deploy", "examples", "torture",
)  # fmt: skip
_PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|md|yaml|xml|conf|onnx|json)\b(?!\.\w)")
MAX_BYTES_OF_THE_CHANGELOG = 12_000
_SEPARATOR = re.compile(r"\|( *:?-+:? *\|)+")


def tables(page: str) -> Iterator[list[tuple[int, str]]]:
    """The tables of a page outside of code blocks: for each line its number and its text."""
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
    """The count of GitHub: a `|` separates cells inside backquotes too, unless a backslash stands before it."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_all_rows_of_a_table_have_as_many_cells(page: Path) -> None:
    """GitHub hides an extra cell, and a missing cell shifts the others to the left."""
    for table in tables(page.read_text(encoding="utf-8")):
        head, separator = table[0][1], table[1][1]
        assert _SEPARATOR.fullmatch(separator), f"line {table[1][0]}: expected a separator row"
        for number, row in table:
            assert row.endswith("|") and n_cells(row) == n_cells(head), f"line {number}: {row}"


def test_the_tables_of_the_pages_are_seen() -> None:
    assert {page.name for page in PAGES} >= {"PROTOCOL.md", "README.md", "asterisk.md"}
    of_protocol = list(tables((ROOT / "PROTOCOL.md").read_text(encoding="utf-8")))
    assert len(of_protocol) > 20 and any("`message_fragments`" in row for table in of_protocol for _, row in table)
    odd = "| a | b |\n|---|---|\n| `x|y` | z |\n| `x\\|y` | z |\n```\n| no table |\n```\n"
    assert [n_cells(row) for table in tables(odd) for _, row in table] == [2, 2, 3, 2]


def test_the_changelog_stays_a_release_note() -> None:
    """A merge with a branch that adds to an older one can bring its text back."""
    assert (ROOT / "CHANGELOG.md").stat().st_size <= MAX_BYTES_OF_THE_CHANGELOG


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of a Markdown page."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        is_broken = not target.exists()
        if anchor and not is_broken:
            is_broken = anchor not in anchors(target.read_text(encoding="utf-8"))
        if is_broken:
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, `with` code\n```\n# no heading\n```\n")
    good = "[a](there.md) [b](there.md#a-heading-with-code) [c](https://example.com/x) `[d](gone.md)` [e](#one)"
    bad = "[f](gone.md) [g](there.md#no-heading) [h](#two)"
    (tmp_path / "page.md").write_text(f"# One\n{good}\n{bad}\n")
    assert broken_links(tmp_path / "page.md") == ["gone.md", "there.md#no-heading", "#two"]


def missing_files(page: Path) -> list[str]:
    """The files that a page names from the root of the project and that do not exist; NAME stands for any name."""
    named = dict.fromkeys(_PATH.findall(page.read_text(encoding="utf-8")))
    return [path for path in named if "NAME" not in path and not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_file_named_on_a_page_exists(page: Path) -> None:
    assert missing_files(page) == []


def test_missing_files_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`tests/test_pages.py` ../tests/x.py `benchmarks/gone.py --flag`\n```\npython tests/gone/away.py\n```\n"
        "https://example.com/tests/y.py (docs/gone.md) `telephony_tts/wire/NAME.py` tests/test_pages.py."
    )
    assert missing_files(page) == ["benchmarks/gone.py", "tests/gone/away.py", "docs/gone.md"]
