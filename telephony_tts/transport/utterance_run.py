"""One utterance that an engine is speaking: its task, its back-pressure and the rest of its text."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from telephony_tts.engines.api import Utterance


class UtteranceRun:
    """The record of one utterance, from the start of its engine to its end or its cancel.

    `task` pulls the engine's generator and waits in `until_pulled` after each chunk.
    """

    __slots__ = ("_is_pulled", "task", "utterance")

    def __init__(self, utterance: Utterance) -> None:
        self.utterance = utterance
        self.task: asyncio.Task[None] | None = None
        self._is_pulled = asyncio.Event()

    def pull(self) -> None:
        """Let the task take one more chunk."""
        self._is_pulled.set()

    async def until_pulled(self) -> None:
        await self._is_pulled.wait()
        self._is_pulled.clear()

    def feed(self, text: str, last: bool) -> None:
        """Give the engine more of the text; `last`: that was all of it."""
        more = self.utterance.more
        assert more is not None
        more.push(text)
        if last:
            more.end()

    async def whole(self) -> Utterance:
        """The utterance with all of its text, for an engine that cannot stream text. Waits for the bot's text."""
        utterance = self.utterance
        if utterance.more is None:
            return utterance
        return replace(utterance, text=utterance.text + await utterance.more.whole(), more=None)

    def end_text(self) -> None:
        """The utterance is over, so an engine that still waits for text gets no more. Idempotent."""
        if self.utterance.more is not None:
            self.utterance.more.end()

    def cancel(self) -> None:
        """Close the engine's generator. The task ends when the engine has let go."""
        if self.task is not None:
            self.task.cancel()
        self.end_text()
