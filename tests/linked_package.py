"""A copy of the package without one of its folders, made of links. Linked folders keep their compiled modules."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "telephony_tts"


def linked_package(folder: Path, room: str, without: str | None) -> Path:
    """Make the copy in `folder`. `without` is the folder of `room` that it lacks, None for a whole copy."""
    copy = folder / "telephony_tts"
    for original, left_out in ((PACKAGE, room), (PACKAGE / room, without)):
        into = copy / original.relative_to(PACKAGE)
        into.mkdir(parents=True)
        for each in original.iterdir():
            if each.name not in (left_out, "__pycache__"):
                (into / each.name).symlink_to(each)
    return copy
