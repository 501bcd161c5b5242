"""The language of a call's text: what the bot says, else what the text shows."""

from __future__ import annotations

from collections.abc import Callable

from telephony_tts.engines.api import LangSource
from telephony_tts.text.normalizer import detect_lang

TellLanguage = Callable[[str], str | None]
"""Gives the language of a sentence in Latin letters, None where that is not certain. Takes less than 1 ms."""


class CallLanguage:
    """For one call. A sentence that does not show its language, such as "OK.", takes that of the last one that did."""

    def __init__(self, tell: TellLanguage | None = None) -> None:
        """Without `tell` all Latin text counts as English."""
        self._tell = tell
        self._last: str | None = None

    def of(self, sentence: str, said: str | None) -> tuple[str, LangSource]:
        """The language of the call's next sentence, and its source. `said` is what the bot says, and decides."""
        if said is not None:
            return said, "bot"
        seen = detect_lang(sentence)
        if self._tell is None or seen != "en":
            return seen, "letters"
        self._last = self._tell(sentence) or self._last
        return (seen, "letters") if self._last is None else (self._last, "words")
