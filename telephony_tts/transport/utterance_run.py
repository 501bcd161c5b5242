"""One utterance that an engine is speaking: its task, its back-pressure and the rest of its text."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from telephony_tts.engines.api import Engine, Utterance, Voice


class UtteranceRun:
    """The record of one utterance in one engine, from the start of the engine to its end or its cancel.

    `task` pulls the engine's generator and waits in `until_pulled` after each chunk. If the engine fails and
    another one goes on, that is another run.
    """

    __slots__ = (
        "_is_pulled", "_timer", "chosen", "given", "is_asking", "lacks_text", "n_lost", "speaker", "task", "tried",
        "utterance",
    )  # fmt: skip

    def __init__(
        self,
        utterance: Utterance,
        given: tuple[Engine, Voice] | None = None,
        tried: tuple[str, ...] = (),
        n_lost: int = 0,
    ) -> None:
        """`given`: who is to speak it in place of an engine that failed. `tried`: the engines that had it before.
        `n_lost`: how many replicas of the engine were lost with it."""
        self.utterance = utterance
        self.given = given
        self.tried = tried
        self.n_lost = n_lost
        self.chosen: tuple[Engine, Voice] | None = None
        """The engine and the voice, once they are chosen."""
        self.speaker: Voice | None = None
        """Who speaks it, once that is chosen."""
        self.lacks_text = utterance.more is not None
        """The bot still writes it."""
        self.is_asking = False
        """The engine was asked for audio and has given none."""
        self.task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
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
            self.lacks_text = False
            more.end()

    def watch(self, timer: asyncio.TimerHandle) -> None:
        """`timer` says that the engine is late with its audio, unless `answered` comes first."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def answered(self) -> None:
        """The engine gave audio, or it is over. Idempotent."""
        self.is_asking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def whole(self) -> Utterance:
        """The utterance with all of its text, for an engine that cannot stream text. Waits for the bot's text."""
        utterance = self.utterance
        if utterance.more is None:
            return utterance
        # Whether the rest has digits is not known, so the phrase is not kept.
        return replace(utterance, text=utterance.text + await utterance.more.whole(), more=None, is_private=True)

    def end_text(self) -> None:
        """The utterance is over, so an engine that still waits for text gets no more. Idempotent."""
        if self.utterance.more is not None:
            self.utterance.more.end()

    def cancel(self) -> None:
        """Close the engine's generator. The task ends when the engine has let go."""
        self.answered()
        if self.task is not None:
            self.task.cancel()
        self.end_text()
