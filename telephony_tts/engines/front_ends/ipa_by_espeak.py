"""Text as IPA by espeak-ng, for the languages that Kokoro speaks and no front end of ours reads.

espeak-ng is GPL-3: an extra that the user installs, loaded at run time. The engine `espeak` uses copies of the library,
so this one has the original to itself.
"""

from __future__ import annotations

import ctypes
import re
from threading import Lock

from telephony_tts.runtime.errors import EngineError

VOICES = {"es": "es", "fr": "fr", "hi": "hi", "it": "it", "pt": "pt-br"}
"""The voice of each language."""
_RETRIEVAL, _DONT_EXIT, _UTF8 = 1, 0x8000, 1
_IPA_WITH_TIES = 0x82 | ord("^") << 8
_ENGLISH_WITHIN = re.compile(r"\([a-z^-]+\)")
"""Marks around words that espeak-ng takes for another language: "(en)mˈeɪl(es)"."""


class EspeakText:
    """Loads the library in its constructor. Several threads may call `read` at once."""

    def __init__(self) -> None:
        import espeakng_loader

        self._lock = Lock()
        self._lib = ctypes.CDLL(espeakng_loader.get_library_path())
        if self._lib.espeak_Initialize(_RETRIEVAL, 0, espeakng_loader.get_data_path().encode(), _DONT_EXIT) < 0:
            raise EngineError("espeak-ng could not be started")
        self._lib.espeak_TextToPhonemes.restype = ctypes.c_char_p

    def read(self, text: str, language: str) -> str:
        """The IPA of a clause, words apart, with "^" between the letters of one sound. Raises EngineError."""
        encoded = ctypes.create_string_buffer(text.encode("utf-8", "replace"))
        rest = ctypes.c_void_p(ctypes.addressof(encoded))
        clauses = []
        with self._lock:
            if self._lib.espeak_SetVoiceByName(VOICES[language].encode()) != 0:
                raise EngineError(f"espeak-ng has no voice {VOICES[language]}")
            while rest.value:
                clause = self._lib.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, _IPA_WITH_TIES)
                clauses.append((clause or b"").decode("utf-8", "replace"))
        return _ENGLISH_WITHIN.sub("", " ".join(clauses)).strip()
