"""One request to a speech server: what the task that reads the answer hands to the generator that gives it on."""

from __future__ import annotations

import asyncio
from collections import deque

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.speech_server import ServerVoice
from telephony_tts.runtime.errors import EngineError


class SpeechRequest:
    """The audio waits here until the listener takes it: all of the request's, so that the server is not held up."""

    def __init__(self, text: str, voice: ServerVoice, utterance: Utterance) -> None:
        self.text = text
        self.voice = voice
        self.utterance = utterance
        self.is_asked = False
        """It has a slot, so the server has it or gets it now."""
        self.is_dropped = False
        """Nobody listens any more."""
        self.n_bytes = 0
        """The samples that came so far."""
        self._waiting: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_ended = False
        self._error: EngineError | None = None

    def put(self, samples: bytes) -> None:
        self.n_bytes += len(samples)
        if not self.is_dropped:
            self._waiting.append(samples)
            self._changed.set()

    async def next(self) -> bytes | None:
        """The next samples. None at the end. Raises EngineError."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def end(self, error: EngineError | None) -> None:
        """Idempotent: the first end counts."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
            self._changed.set()

    def drop(self) -> None:
        self.is_dropped = True
        self._waiting.clear()
