"""hibari's dictionary and the weights of its tagger in a tenth of the memory of their dicts: 7 MB, not 70."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any


class _Strings(Sequence[str]):
    """Strings in one, which takes no memory for each of them but its letters and four bytes."""

    def __init__(self, strings: Iterable[str]) -> None:
        listed = list(strings)
        self._joined = "".join(listed)
        self._ends = array("I", accumulate(map(len, listed), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        return self._joined[self._ends[number] : self._ends[number + 1]]

    def find(self, string: str) -> int | None:
        """The number of `string`, if the strings are sorted and it is one of them."""
        number = bisect_left(self, string)
        return number if number < len(self) and self[number] == string else None


class Phonemes:
    """The phonemes of 90,000 words."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        words = sorted(word for word, phonemes in entries.items() if isinstance(phonemes, str))
        self._words = _Strings(words)
        self._phonemes = _Strings(entries[word] for word in words)
        self._by_part_of_speech = {word: each for word, each in entries.items() if not isinstance(each, str)}

    def get(self, word: str) -> Any:
        """The phonemes of a word, or a dict of them by its part of speech. None if it is unknown."""
        number = self._words.find(word)
        return self._by_part_of_speech.get(word) if number is None else self._phonemes[number]


class TagWeights:
    """How much each of 80,000 features of a word speaks for each tag. The weights have one decimal."""

    def __init__(self, weights: Mapping[str, Mapping[str, float]]) -> None:
        features = sorted(weights)
        self._features = _Strings(features)
        self._ends = array("I", accumulate((len(weights[feature]) for feature in features), initial=0))
        self._names = sorted({tag for each in weights.values() for tag in each})
        numbers = {tag: number for number, tag in enumerate(self._names)}
        self._tags = bytes(numbers[tag] for feature in features for tag in weights[feature])
        self._tenths = array("h", (round(10 * weight) for feature in features for weight in weights[feature].values()))
        self.get = lru_cache(4096)(self._get)
        """The weights of a feature by tag; None if it is unknown. Those of frequent features are kept."""

    def _get(self, feature: str) -> dict[str, float] | None:
        number = self._features.find(feature)
        if number is None:
            return None
        places = range(self._ends[number], self._ends[number + 1])
        return {self._names[self._tags[at]]: self._tenths[at] / 10 for at in places}
