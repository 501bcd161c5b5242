"""What the model can read. It imports no package of the extra, so that a server without this engine can ask too."""

from __future__ import annotations

from telephony_tts.engines.words import scripts
from telephony_tts.errors import UnsupportedText

LANGUAGES = ("zh", "en", "ja", "ko")
SCRIPTS = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})


def check_letters(text: str) -> None:
    """Raises UnsupportedText if all letters are of scripts that the model does not know; a few in between pass."""
    found = scripts(text)
    if found and not found & SCRIPTS:
        raise UnsupportedText(
            f"cosyvoice2 speaks {', '.join(LANGUAGES)}, not {'/'.join(sorted(found)).lower()} letters"
        )
