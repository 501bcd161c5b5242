"""The last metrics of each front in the runtime folder, so that a front that was killed is not missing in the sums.

A front writes its metrics before it answers a scrape. So no counter that was ever on a page can go down. The supervisor
adds the files of fronts that have ended to one, which names those that it contains: a reader never counts one twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from telephony_tts.fronts.metrics_of_all import Families, added, packed, unpacked

_ENDED = "ended"


def keep(folder: Path, front: str, metrics: bytes) -> None:
    """Keep the metrics of a front, in place of its earlier ones. Raises OSError."""
    part = folder / f"{front}.part"
    part.write_bytes(metrics)
    os.replace(part, folder / front)


def with_ended(folder: Path, running: Mapping[str, Families]) -> tuple[list[Families], list[Families]]:
    """(the metrics of fronts that run, those of all others). `running` has those that were asked just now.

    Files that cannot be read are left out.
    """
    files = {}
    for path in folder.iterdir():
        if path.name != _ENDED and path.name not in running and not path.name.endswith(".part"):
            with suppress(OSError, ValueError):
                files[path.name] = unpacked(path.read_bytes())
    # Last: what was added to the sum since then is not counted once more.
    contained, sums = _read_sum(folder)
    ended = [] if sums is None else [sums]
    ended += [families for name, families in files.items() if name not in contained]
    return [families for name, families in running.items() if name not in contained], ended


def add_ended(folder: Path, front: str) -> None:
    """Add the file of a front that has ended to the sum of all that have. Only the supervisor may. Raises OSError."""
    try:
        last = unpacked((folder / front).read_bytes())
    except (FileNotFoundError, ValueError):
        return
    contained, sums = _read_sum(folder)
    whole = added([], [last] if sums is None else [sums, last])
    head = json.dumps([*contained, front]).encode()
    part = folder / f"{_ENDED}.part"
    part.write_bytes(head + b"\n" + packed(whole))
    os.replace(part, folder / _ENDED)
    with suppress(OSError):
        (folder / front).unlink()


def _read_sum(folder: Path) -> tuple[list[str], Families | None]:
    try:
        head, _, body = (folder / _ENDED).read_bytes().partition(b"\n")
        return list(json.loads(head)), unpacked(body)
    except (OSError, ValueError):
        return [], None
