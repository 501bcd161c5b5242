"""The rooms on ARCHITECTURE.md and docs/cosyvoice2.md are those of the tree, and the page stays short."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_page import PAGES, ROOT, block_of, purpose, tree, written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_rooms_on_the_page_are_those_of_the_tree(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text, PAGES[page]) == text, "run `python tests/architecture_page.py`"


def test_a_page_that_differs_from_the_tree_is_seen() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = block_of(page, "sip_bridge")
    assert "  rtp/ " in block and tree(ROOT / "sip_bridge") == block
    line = next(line for line in block.splitlines(keepends=True) if "rtp/" in line)
    for other in (page.replace(line, ""), page.replace(line, line.upper()), page.replace(line, line * 2)):
        assert other != page and written(other, ("sip_bridge",)) == page
    with pytest.raises(ValueError, match="found 0"):
        block_of(page.replace("```\nsip_bridge/", "```\nbridge/"), "sip_bridge")


def test_a_room_says_what_it_does_in_one_line(tmp_path: Path) -> None:
    init = tmp_path / "__init__.py"
    init.write_text('"""Text to speech. `api` says more.\n\nAnd why."""\n')
    assert purpose(tmp_path) == "Text to speech"
    init.write_text('"""Reads `a.b` and numbers (3.5) at once."""\n')
    assert purpose(tmp_path) == "Reads `a.b` and numbers (3.5) at once"
    init.write_text("import os\n")
    with pytest.raises(ValueError, match="has no docstring"):
        purpose(tmp_path)


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 15_000
