"""docs/carriers.md: the table of all ways in is what the records of the doors say. `ways_in_page.py` writes it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ways_in_page import HEAD, PAGE, paths, rows, table

from telephony_tts.app.config import doors
from telephony_tts.doors.plivo.door import DOOR as PLIVO
from telephony_tts.doors.plivo.door import PlivoLeg
from telephony_tts.transport.door import Door, Doors, Vendor


def test_the_table_on_the_page_is_that_of_the_records() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "run `PYTHONPATH=. python tests/wire/ways_in_page.py`"


def test_every_way_in_has_a_row_and_every_row_a_page() -> None:
    lines = table().splitlines()
    assert {line.count(" | ") for line in lines[2:]} == {HEAD[0].count(" | ")}
    for path in Doors(doors()).media:
        assert f"`{path}`" in table()
    for line in lines[2:]:
        (target,) = re.findall(r"\]\(([^)]+)\) \|$", line)
        assert (PAGE.parent / target).is_file(), line


class Other(PlivoLeg):
    reports_marks = False
    sends_dtmf = None


@pytest.mark.parametrize("vendor", Doors(doors()).vendors, ids=lambda vendor: vendor.name)
def test_the_paths_of_a_vendor_are_those_of_its_pattern(vendor: Vendor) -> None:
    for path in paths(vendor.path):
        assert vendor.path.fullmatch(re.sub(r"\{\w+\}", "a-voice", path)), path


def test_a_row_says_what_the_record_says() -> None:
    assert PLIVO.media is not None
    (usual,) = rows(PLIVO)
    signed = "signature with `plivo.auth_token`; without it token, also in `start`"
    assert f"| 8, 16 kHz | marks | message | {signed} |" in usual
    (other,) = rows(Door("other", media=replace(PLIVO.media, leg=Other, rates_hz=(24000,), page="telnyx")))
    assert "| other | `/media/other` | telephone | 24 kHz | clock | as its `start` says |" in other
    assert other.endswith("| [telnyx](protocol/telnyx.md) |")
