"""Reads the log lines that a test has caused."""

from __future__ import annotations

from typing import Any

import pytest


def lines(caplog: pytest.LogCaptureFixture, event: str | None = None) -> list[dict[str, Any]]:
    """The fields of each line, or of each line with this `event`, as written: without fields that are None."""
    return [
        {name: value for name, value in getattr(record, "fields", {}).items() if value is not None}
        for record in caplog.records
        if event is None or record.getMessage() == event
    ]
