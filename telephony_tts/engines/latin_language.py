"""Which language a sentence in Latin letters is in. py3langid tells it, an extra that the user installs.

A wrong answer is worse than none: it would give an English sentence to a voice of another language. So three things
are done before the network's answer counts. Words with a capital are left out, as names and addresses are in any
language. Few words tell nothing. A sentence with one of the most frequent English words stays English.
docs/adr/0014-language-of-latin-text.md has the figures.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from telephony_tts.errors import EngineUnavailable

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MIN_WORDS, MIN_LETTERS = 3, 10
"""What must be left of a sentence without its names."""
MIN_PROBABILITY = 0.7
"""The network must be at least so sure of a language other than English. English needs no such margin."""
MAX_CHARS = 400
"""No more of a sentence is read: the time it takes is bounded."""

_ENGLISH = frozenset({"the", "and", "with", "your", "you"})
"""Words that hardly occur in other languages."""
_NORWEGIAN = {"no": "nb", "nn": "nb"}
"""py3langid's two codes; voices are tagged `nb`."""
_NO_LANGUAGE = "zxx"
"""py3langid's code for what is no text of any language."""

_ADDRESS = re.compile(r"\S*[\d@_/\\]\S*|\S+\.\S+")
"""Codes, e-mail addresses, addresses of web pages."""
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


class LatinLanguage:
    """py3langid, once it is loaded. Its state is read only, so that one serves all calls."""

    def __init__(self) -> None:
        self._identifier: LanguageIdentifier | None = None

    def load(self) -> None:
        """Read the network, which takes about half a second: not for the event loop. Idempotent.

        Raises EngineUnavailable where the package cannot be used.
        """
        if self._identifier is not None:
            return
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier

            identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
            identifier.classify("The first sentence sets up what the later ones use.")
        except Exception as error:
            raise EngineUnavailable(
                f"py3langid cannot be used: {error}; install it again with pip install 'telephony-tts[lang]', or set "
                "speech.detect_language to false"
            ) from error
        self._identifier = identifier

    def tell(self, sentence: str) -> str | None:
        """The language of `sentence` ("en", "de", ...); None where that is not certain, or before `load`.

        It is for text in Latin letters. Takes about 0.1 ms.
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


def _without_names(sentence: str) -> list[str]:
    """The first word and those without a capital, in lower case. A first word in capitals alone is left out too."""
    words = _WORD.findall(_ADDRESS.sub(" ", sentence))
    first = [word.lower() for word in words[:1] if not word.isupper()]
    return first + [word for word in words[1:] if word[0].islower()]
