"""The section `recordings` of the configuration: which calls are recorded, where, and how much is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from telephony_tts.runtime.schema import Between, OneOf


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """The section `recordings`. Without a `folder` nothing can be recorded.

    `calls`: "none", "asked" (a bot asks for its call) or "all". One recording ends after `max_s`, or when its two files
    together have `max_mb`. Recordings older than `keep_days` are removed, whatever `calls` says. While all of them
    together have more than `keep_mb`, so are the oldest. 0 keeps them. `queue_mb` is how much may wait for a slow disk
    before a recording gets a hole. A megabyte is 1,000,000 bytes.
    """

    folder: str | None = None
    calls: Annotated[str, OneOf(("none", "asked", "all"))] = "asked"
    max_s: Annotated[int, Between(1, 86_400)] = 3_600
    max_mb: Annotated[int, Between(1, 4_000)] = 200
    keep_days: Annotated[int, Between(0, 36_500)] = 30
    keep_mb: Annotated[int, Between(0, 1e9)] = 10_000
    queue_mb: Annotated[int, Between(1, 10_000)] = 32

    @property
    def is_on(self) -> bool:
        return self.folder is not None and self.calls != "none"

    def conflicts(self) -> Iterator[str]:
        if self.calls == "all" and self.folder is None:
            yield "folder: missing; with calls: all a folder for the recordings is needed"
        if 0 < self.keep_mb < self.max_mb:
            yield f"keep_mb: {self.keep_mb} is less than max_mb ({self.max_mb}), so a whole recording would not be kept"
