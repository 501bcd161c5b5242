"""All targets by their names."""

from __future__ import annotations

from pathlib import Path

from torture.fuzz.corpus_files import kept_inputs
from torture.fuzz.file_targets import FILE_TARGETS
from torture.fuzz.http_targets import HTTP_TARGETS
from torture.fuzz.judge import FuzzTarget
from torture.fuzz.telephone_targets import TELEPHONE_TARGETS
from torture.fuzz.text_targets import TEXT_TARGETS
from torture.fuzz.wire_targets import WIRE_TARGETS

TARGETS = {
    target.name: target for target in (*WIRE_TARGETS, *TELEPHONE_TARGETS, *HTTP_TARGETS, *TEXT_TARGETS, *FILE_TARGETS)
}


def known_inputs(target: FuzzTarget, corpus: Path | None = None) -> list[bytes]:
    """The seeds of a target, and what its corpus has."""
    return [*target.seeds, *target.more_seeds(), *kept_inputs(target.name, corpus)]
