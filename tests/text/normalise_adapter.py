"""The normaliser for a scoring tool: `Adapter().normalise(text, lang)`; `lang` may be "mixed"."""

from __future__ import annotations

from telephony_tts.text.normalizer import normalize


class Adapter:
    def normalise(self, text: str, lang: str) -> str:
        return normalize(text, None if lang == "mixed" else lang)
