"""What a check has found, one JSON object a line, written as it comes. A second call reads it and goes on.

    {"part": P, "unit": U, "seconds": S, ...}      the result of a unit
    {"part": P, "unit": U, "seconds": S, "error": E}  a unit that raised; it is tried again
    {"part": P, "status": ..., "seconds": S}       how a part ended: done, failed, overran or skipped
    {"check": {...}}                               first: what is checked, so that no two checks are mixed
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class ResultFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: Line) -> None:
        """One write, so that a killed process leaves whole lines, but for the last."""
        ends_whole = not self._path.exists() or self._path.read_bytes()[-1:] in (b"", b"\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("" if ends_whole else "\n") + json.dumps(line, ensure_ascii=False) + "\n")

    def lines(self) -> list[Line]:
        """All whole lines in the order of their writing. Half a line, of a process that was killed, is left out."""
        if not self._path.exists():
            return []
        found = []
        for text in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                found.append(line)
        return found

    def begin(self, what: Line) -> None:
        """Raises ValueError if the file holds another check."""
        there = next((line["check"] for line in self.lines() if "check" in line), None)
        if there is None:
            self.append({"check": what})
        elif there != what:
            raise ValueError(f"{self._path} holds another check, of {there}: give --out another directory")

    def units(self, part: str) -> dict[str, Line]:
        """The results of a part's units by name; an error only as long as the unit has no result."""
        found: dict[str, Line] = {}
        for line in self.lines():
            if line.get("part") == part and "unit" in line and ("error" not in line or line["unit"] not in found):
                found[line["unit"]] = line
        return found

    def result(self, part: str, unit: str) -> Line | None:
        """The result of a unit; None if it has no result, or only an error."""
        line = self.units(part).get(unit)
        return None if line is None or "error" in line else line

    def statuses(self) -> dict[str, Line]:
        """How each part ended last."""
        return {line["part"]: line for line in self.lines() if "status" in line}


class PartRun:
    """One part within its process: does the units that have no result yet. A unit that raises does not end the part."""

    def __init__(self, results: ResultFile, part: str, tell: Callable[[str], None]) -> None:
        self.results, self.part = results, part
        self._tell = tell
        self.failed: list[str] = []

    def tell(self, text: str) -> None:
        """A line of progress."""
        self._tell(f"{self.part}: {text}")

    def wants(self, unit: str) -> bool:
        return self.results.result(self.part, unit) is None

    @contextmanager
    def unit(self, name: str) -> Iterator[Callable[[Line], None]]:
        """Write the unit's result with the yielded function. An error in the body becomes the unit's result."""
        found: Line = {}
        begun = time.perf_counter()
        line: Line = {"part": self.part, "unit": name}
        try:
            yield found.update
            line |= found
        except Exception as error:
            traceback.print_exc()
            self.failed.append(name)
            line |= {"error": f"{type(error).__name__}: {error}".splitlines()[0][:500]}
            self.tell(f"{name} failed: {line['error']}")
        line["seconds"] = round(time.perf_counter() - begun, 2)
        self.results.append(line)
