"""Maps offsets in the text that is spoken back to the text that the bot wrote, where markup was taken out of it."""

from __future__ import annotations

from bisect import bisect_right


class SourceMap:
    """Built from left to right. Memory grows with the tags and entities, not with the characters."""

    def __init__(self) -> None:
        self.n_chars = 0
        """Length of the spoken text so far."""
        self._starts: list[int] = []
        """Offset in the spoken text at which each unbroken run of the source begins."""
        self._sources: list[int] = []
        """Offset in the source at which each run begins."""
        self._splits: list[int] = []
        """Offset in the source before each run that parts the markup there: closing tags before it, the rest behind."""
        self._end = 0
        """End of the last run and of the closing tags right behind it."""
        self._is_run_open = False

    def add(self, n_chars: int, start: int, end: int) -> None:
        """`n_chars` of spoken text are written as `source[start:end]`: as they stand, or one character as an entity."""
        as_it_stands = n_chars == end - start
        if not (self._is_run_open and as_it_stands and start == self._end):
            self._starts.append(self.n_chars)
            self._sources.append(start)
            self._splits.append(self._end)
        self._is_run_open = as_it_stands
        self.n_chars += n_chars
        self._end = end

    def close_tag(self, start: int, end: int) -> None:
        """A closing tag is written as `source[start:end]`. It belongs to the text before it."""
        if start == self._end:
            self._end = end
            self._is_run_open = False

    def source(self, offset: int) -> int:
        """Where the spoken text before `offset` ends in the source.

        Of the markup at this place, closing tags belong to the text before it and all else to the text behind it.
        """
        if offset <= 0:
            return 0
        if offset >= self.n_chars:
            return self._end
        run = bisect_right(self._starts, offset) - 1
        if self._starts[run] == offset:
            return self._splits[run]
        return self._sources[run] + offset - self._starts[run]

    def begin(self, offset: int) -> int:
        """Where character `offset` of the spoken text is written in the source, behind all markup before it."""
        if offset >= self.n_chars or not self._starts:
            return self._end
        run = bisect_right(self._starts, max(0, offset)) - 1
        return self._sources[run] + max(0, offset) - self._starts[run]
