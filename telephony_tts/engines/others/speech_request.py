"""One request to a speech server: what the task that reads the answer hands to the generator that gives it on."""

from __future__ import annotations

import asyncio
from collections import deque

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.others.speech_server import ServerVoice
from telephony_tts.errors import EngineError


class SpeechRequest:
    """`max_bytes`: so much audio may wait for its listener. Then the server's is not read."""

    def __init__(self, text: str, voice: ServerVoice, utterance: Utterance, max_bytes: int) -> None:
        self.text = text
        self.voice = voice
        self.utterance = utterance
        self.is_asked = False
        """It has a slot, so the server has it or gets it now."""
        self.is_dropped = False
        """Nobody listens any more."""
        self.n_bytes = 0
        """The samples that came so far."""
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()
        self._n_waiting_bytes = 0
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._is_ended = False
        self._error: EngineError | None = None

    async def put(self, samples: bytes) -> None:
        """Waits for room."""
        self.n_bytes += len(samples)
        while self._n_waiting_bytes >= self._max_bytes and not self.is_dropped:
            self._has_room.clear()
            await self._has_room.wait()
        if not self.is_dropped:
            self._waiting.append(samples)
            self._n_waiting_bytes += len(samples)
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
        samples = self._waiting.popleft()
        self._n_waiting_bytes -= len(samples)
        self._has_room.set()
        return samples

    def end(self, error: EngineError | None) -> None:
        """Idempotent: the first end counts."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
            self._changed.set()

    def drop(self) -> None:
        self.is_dropped = True
        self._waiting.clear()
        self._has_room.set()
