"""The language of a call's text: the one that the bot names, else the one that the text shows."""

from __future__ import annotations

from collections.abc import Callable

from telephony_tts.engines.api import LangSource
from telephony_tts.text.normalizer import WITH_DIGITS, detect_lang, has_cjk_marks, may_be_japanese

DetectLanguage = Callable[[str], str | None]
"""Returns the language of a sentence in Latin letters, or None if it is not certain. Takes about 0.1 ms."""
HasVoice = Callable[[str | None, str], bool]
"""(the voice that the bot named, a language) → whether the voice that speaks the text has the language."""
ReadsDigits = Callable[[str | None, str], bool]
"""(the voice that the bot named, a language) → whether the voice that speaks the text reads most numbers itself."""


class CallLanguage:
    """The language of one call. A sentence that does not show it has the language of the one before: "482913。", in a
    Japanese call "合計12,500円。", and with a detector also "OK."."""

    def __init__(
        self,
        detect: DetectLanguage | None = None,
        has_voice: HasVoice | None = None,
        reads_digits: ReadsDigits | None = None,
    ) -> None:
        """Without `detect` all Latin text counts as English. Without `has_voice` each language counts as spoken.
        Without `reads_digits` all numbers are read here."""
        self._detect = detect
        self._reads_digits = reads_digits
        self._has_voice = has_voice
        self._last: str | None = None
        """The last language that `detect` was certain of."""
        self.codes: set[str] = set()
        """Digits that were said as codes in the call. They stay codes."""
        self._before: tuple[str, LangSource] | None = None
        """The language of the last sentence with letters, and its source. None if there was none yet."""

    def of(self, sentence: str, said: str | None) -> tuple[str, LangSource]:
        """The language of the call's next sentence, and its source. `said` is what the bot names, and it decides."""
        if said is not None:
            return said, "bot"
        seen = detect_lang(sentence)
        if seen == "en" and not any(char.isalpha() for char in sentence):
            return self._before or ("en", "letters")
        before = self._before
        if seen == "en" and before is not None and before[0][:2] in ("ja", "zh") and has_cjk_marks(sentence):
            return before
        if seen == "zh" and self._before is not None and not self._shows_chinese(sentence, self._before[0]):
            return self._before
        now: tuple[str, LangSource] = seen, "letters"
        if self._detect is not None and seen == "en":
            self._last = self._detect(sentence) or self._last
            if self._last is not None:
                now = self._last, "words"
        self._before = now
        return now

    @staticmethod
    def _shows_chinese(sentence: str, before: str) -> bool:
        """Whether more than marks, and behind Japanese more than characters that it has too, call it Chinese."""
        if before.startswith("ja"):
            return not may_be_japanese(sentence)
        return any(char.isalpha() for char in sentence)

    def reading(self, language: tuple[str, LangSource], voice: str | None) -> str:
        """The language whose rules are used to read numbers and signs, for the bot's `voice`.

        A voice that does not have the language gets them in English, as it does without a detector. It would get bare
        digits otherwise. The tag ends in WITH_DIGITS for a voice that reads most numbers itself.
        """
        lang, source = language
        if source == "words" and self._has_voice is not None and not self._has_voice(voice, lang):
            return "en"
        return lang + WITH_DIGITS if self._reads_digits is not None and self._reads_digits(voice, lang) else lang
