"""The language of a sentence in Latin letters, detected by py3langid, an extra that the user installs.

A wrong answer is worse than no answer: a voice of another language would read an English sentence. So the network is
not asked alone. Capitalised words are left out, because names and addresses occur in any language. Too few words give
no answer. A sentence with one of the most frequent English words is English.
docs/adr/0014-language-of-latin-text.md has the figures.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from telephony_tts.runtime.errors import EngineUnavailable, how_to_get

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MIN_WORDS, MIN_LETTERS = 3, 10
"""The least that must be left of a sentence without its names."""
MIN_PROBABILITY = 0.7
"""The least probability of a language other than English. English needs none."""
MAX_CHARS = 400
"""Only this much of a sentence is read, which bounds the time."""

_ENGLISH = frozenset({"the", "and", "with", "your", "you"})
"""Frequent words that rarely occur in other languages."""
_NORWEGIAN = {"no": "nb", "nn": "nb"}
"""py3langid's two codes; voices are tagged `nb`."""
_NO_LANGUAGE = "zxx"
"""py3langid's code for text that is not in any language."""

_ADDRESS = re.compile(r"\S*[\d@_/\\]\S*|\S+\.\S+")
"""Codes, e-mail addresses and web addresses."""
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


class LatinLanguage:
    """The py3langid network. After `load` it is read-only, so one instance serves all calls."""

    def __init__(self) -> None:
        self._identifier: LanguageIdentifier | None = None

    def load(self) -> None:
        """Load the network. It takes about half a second, so call it outside the event loop. Idempotent.

        Raises EngineUnavailable if the package cannot be used.
        """
        if self._identifier is not None:
            return
        try:
            from py3langid.langid import MODEL_FILE

            identifier = _network(MODEL_FILE)
        except Exception as error:
            raise EngineUnavailable(
                f"py3langid cannot be used: {error}; install it again with {how_to_get('lang')}, or set "
                "speech.detect_language to false"
            ) from error
        self._identifier = identifier

    def detect(self, sentence: str) -> str | None:
        """The language of `sentence` ("en", "de", ...) in Latin letters; None if it is uncertain, or before `load`.

        Takes about 0.1 ms.
        """
        if self._identifier is None:
            return None
        words = _without_names(sentence[:MAX_CHARS])
        if len(words) < MIN_WORDS or sum(len(word) for word in words) < MIN_LETTERS:
            return None
        if not _ENGLISH.isdisjoint(words):
            return "en"
        language: str
        language, probability = self._identifier.classify(" ".join(words))
        if language == _NO_LANGUAGE or (language != "en" and probability < MIN_PROBABILITY):
            return None
        return _NORWEGIAN.get(language, language)


@cache
def _network(file: str) -> LanguageIdentifier:
    """The network in a file of py3langid: one for the process, because it is read-only."""
    from py3langid.langid import LanguageIdentifier

    network = LanguageIdentifier.from_model_file(file, norm_probs=True)
    network.classify("The first sentence sets up what the later ones use.")
    return network


def _without_names(sentence: str) -> list[str]:
    """The first word and the words without a capital, in lower case; without a first word in capitals only."""
    words = _WORD.findall(_ADDRESS.sub(" ", sentence))
    first = [word.lower() for word in words[:1] if not word.isupper()]
    return first + [word for word in words[1:] if word[0].islower()]
