"""The segmenter for a scoring tool: sentences as plain strings, without early clauses."""

from __future__ import annotations

from telephony_tts.text.segmenter import Segmenter


class Adapter:
    def __init__(self) -> None:
        self._segmenter = Segmenter()

    def reset(self, lang: str | None) -> None:
        self._segmenter.reset(lang)

    def feed(self, text: str) -> list[str]:
        return [sentence.text for sentence in self._segmenter.feed(text)]

    def flush(self) -> list[str]:
        return [sentence.text for sentence in self._segmenter.flush()]

    def timeout(self) -> list[str]:
        return [sentence.text for sentence in self._segmenter.timeout()]
