"""The fake engine's alphabet, for judging by ear which turn a frame belongs to."""

from __future__ import annotations

from telephony_tts.engines.fake import tone_hz


def letter_hz(letter: str) -> float:
    """The tone of a letter."""
    return tone_hz(letter)
