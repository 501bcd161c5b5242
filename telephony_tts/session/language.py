"""The language of a call's text: what the bot says, else what the text shows."""

from __future__ import annotations

from collections.abc import Callable

from telephony_tts.engines.api import LangSource
from telephony_tts.text.normalizer import detect_lang

TellLanguage = Callable[[str], str | None]
"""Gives the language of a sentence in Latin letters, None where that is not certain. Takes some 0.1 ms."""
HasVoice = Callable[[str | None, str], bool]
"""Gives whether a text is spoken by a voice that has a language: (the voice that the bot named, the language)."""


class CallLanguage:
    """For one call. A sentence that does not show its language, such as "OK.", takes that of the last one that did."""

    def __init__(self, tell: TellLanguage | None = None, has_voice: HasVoice | None = None) -> None:
        """Without `tell` all Latin text counts as English. Without `has_voice` each language counts as spoken."""
        self._tell = tell
        self._has_voice = has_voice
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

    def reading(self, language: tuple[str, LangSource], voice: str | None) -> str:
        """The language by whose rules numbers and signs are read, for the bot's `voice`.

        A voice that does not have the language gets them in English, as without a detector. It would have to read bare
        digits otherwise.
        """
        lang, source = language
        if source != "words" or self._has_voice is None or self._has_voice(voice, lang):
            return lang
        return "en"
