"""What a benchmark writes for programs and shows to people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from telephony_tts.bench.report import format_cell, format_table, write_result


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (1.23456, "1.23"), (0.00123456, "0.00123"), (99.96, "100"), (100.4, "100"), (1234.5, "1234"),
        (12345, "12345"), ("native", "native"), (True, "True"),
    ],
)  # fmt: skip
def test_a_cell_has_three_significant_digits(value: object, shown: str) -> None:
    assert format_cell(value) == shown


def test_the_first_column_is_to_the_left_and_the_others_to_the_right() -> None:
    assert format_table(("side", "ms", "n"), [("ours", 12.345, 7), ("bare, again", None, 1000)]) == (
        "side           ms     n\n"
        "ours         12.3     7\n"
        "bare, again     -  1000"
    )  # fmt: skip


def test_a_table_without_rows_is_its_header() -> None:
    assert format_table(("a", "b"), []) == "a  b"


def test_a_result_is_a_json_file_with_its_letters_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    write_result(out, machine={"cpu": "µ"}, commit=None, settings={"n": [1, 2]}, results=[{"ms": 1.5}])
    text = out.read_text(encoding="utf-8")
    assert text.endswith("}\n") and "µ" in text
    assert list(json.loads(text).items()) == [
        ("machine", {"cpu": "µ"}), ("commit", None), ("settings", {"n": [1, 2]}), ("results", [{"ms": 1.5}]),
    ]  # fmt: skip
