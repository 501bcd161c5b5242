"""Where the words of Mandarin text begin. No threads, no event loop."""

from __future__ import annotations

from bisect import bisect_left
from importlib import resources

_MAX_WORD = 5
_UNKNOWN = 18
"""What a character costs that is no word; a little more than the rarest word."""


class MandarinWords:
    """The words of `mandarin_words.txt`: 135,000 in 1 MB of memory. Takes 0.2 s to load."""

    def __init__(self) -> None:
        costs: list[dict[str, int]] = [{} for _ in range(_MAX_WORD + 1)]
        data = resources.files(__package__).joinpath("mandarin_words.txt").read_text(encoding="utf-8")
        for line in data.splitlines():
            if not line.startswith("#"):
                cost, *words = line.split()
                for word in words:
                    costs[len(word)][word] = int(cost)
        # All words of a length in one string, in their order. As strings of their own they would take 15 MB.
        self._words = ["".join(sorted(found)) for found in costs]
        self._costs = [bytes(found[word] for word in sorted(found)) for found in costs]

    def begins(self, han: str) -> set[int]:
        """The places in a run of Han characters where a word begins, 0 included: the division that costs least.

        Characters in a row that are in no word stay together, as those of traditional text.
        """
        best = [(0, 0)]  # up to each place: the least cost, and where its last word begins
        for end in range(1, len(han) + 1):
            ways = []
            for begin in range(max(0, end - _MAX_WORD), end):
                cost = self.cost(han[begin:end])
                if cost is None and begin == end - 1:
                    cost = _UNKNOWN
                if cost is not None:
                    ways.append((best[begin][0] + cost, begin))
            best.append(min(ways))
        found, end = set(), len(han)
        while end:
            begin = best[end][1]
            is_unknown = begin == end - 1 and self.cost(han[begin:end]) is None
            if not (is_unknown and begin and self.cost(han[begin - 1]) is None and best[begin][1] == begin - 1):
                found.add(begin)
            end = begin
        return found

    def cost(self, word: str) -> int | None:
        """The negative logarithm of the frequency of a word, of one to five characters. None if it is unknown."""
        size, joined = len(word), self._words[len(word)]
        n_words = len(joined) // size
        at = bisect_left(range(n_words), word, key=lambda number: joined[number * size : (number + 1) * size])
        is_there = joined[at * size : (at + 1) * size] == word
        return self._costs[size][at] if is_there else None
