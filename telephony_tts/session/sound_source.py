"""A sound as a session sees it: something that is read elsewhere, when a rate is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from telephony_tts.audio.sound import Sound


class SoundSource(Protocol):
    """A sound that is not read yet, or of which only other rates are."""

    async def load(self, rate_hz: int) -> Sound:
        """The sound at `rate_hz`. Raises SoundError if it cannot be played."""


FindSound = Callable[[str], SoundSource]
"""Finds a sound by its name. It does no I/O: a name that nothing has is an error of `load`."""
