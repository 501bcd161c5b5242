"""The languages and scripts that the model can read. It needs no package of the extra, so any server can ask."""

from __future__ import annotations

from telephony_tts.engines.words import scripts
from telephony_tts.runtime.errors import UnsupportedText

LANGUAGES = ("zh", "en", "ja", "ko")
SCRIPTS = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})


def check_letters(text: str) -> None:
    """Raises UnsupportedText if all letters are of scripts that the model does not know. A text with some known ones
    passes."""
    found = scripts(text)
    if found and not found & SCRIPTS:
        raise UnsupportedText(
            f"cosyvoice2 speaks {', '.join(LANGUAGES)}, not {'/'.join(sorted(found)).lower()} letters"
        )
