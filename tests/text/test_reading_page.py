"""docs/reading.md: each kind has an example in each language, and every example is read as the page says."""

from __future__ import annotations

import pytest
from reading_page import LANGUAGES, example, read, rows


@pytest.mark.parametrize(("kind", "cells"), list(rows()))
def test_each_language_reads_its_example(kind: str, cells: list[str]) -> None:
    assert len(cells) == len(LANGUAGES), f"{kind} lacks a language"
    for lang, cell in zip(LANGUAGES, cells, strict=True):
        written, said = example(cell)
        assert read(written, lang) == said


def test_the_table_is_there() -> None:
    kinds = [kind for kind, _ in rows()]
    assert len(kinds) == len(set(kinds)) >= 30
