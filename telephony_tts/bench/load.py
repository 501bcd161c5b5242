"""Simulated callers that let an engine speak through its public interface and record when audio came.

Closed loop: each caller begins its next turn when it has heard the one before. Open loop: turns begin at Poisson times
of a fixed rate, however long the engine takes. Turns that the engine cannot serve in time queue up, as in a call
centre.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from telephony_tts.bench.audible import audible_sample
from telephony_tts.bench.measures import NS_PER_S, Listener, TurnRecord
from telephony_tts.engines.api import Engine, Utterance
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import TelephonyTTSError

AHEAD_NS = NS_PER_S
"""A paced caller takes the next chunk when at most this much audio is left to hear."""


@dataclass(frozen=True, slots=True)
class Load:
    """`n_turns` for each of `concurrency` callers.

    The open loop has as many turns in all, `arrivals_per_s` of them a second on average. `seconds` is the length of a
    turn's speech. Every `cancel_every_s` one active turn is cancelled.
    """

    concurrency: int
    n_turns: int
    seconds: float
    is_open: bool = False
    paced: bool = True
    cancel_every_s: float | None = None
    seed: int = 0
    rate_per_s: float | None = None
    """Of the open loop. None: the rate at which `concurrency` turns are active on average."""

    @property
    def arrivals_per_s(self) -> float:
        return self.concurrency / self.seconds if self.rate_per_s is None else self.rate_per_s

    @classmethod
    def at_rate(cls, rate_per_s: float, n_turns: int, seconds: float, **rest: Any) -> Load:
        """An open loop of a rate. `concurrency` is the average number of turns that are heard at the same time."""
        return cls(_at_once(rate_per_s, seconds), n_turns, seconds, is_open=True, rate_per_s=rate_per_s, **rest)

    def with_seconds(self, seconds: float) -> Load:
        """The same load of turns of another length."""
        n = self.concurrency if self.rate_per_s is None else _at_once(self.rate_per_s, seconds)
        return replace(self, seconds=seconds, concurrency=n)

    @property
    def most_at_once(self) -> int:
        """Turns that are active at once. At a given rate more may be, but hardly ever: their number has a Poisson
        distribution, and this is four standard deviations above its mean."""
        return self.concurrency + (0 if self.rate_per_s is None else math.ceil(4 * math.sqrt(self.concurrency)))

    def warm_up(self) -> Load:
        """A load of one unpaced turn."""
        return Load(1, 1, self.seconds, paced=False)


def _at_once(rate_per_s: float, seconds: float) -> int:
    """Turns that are heard at the same time on average (Little's law)."""
    return max(1, round(rate_per_s * seconds))


class Callers:
    """One run of a load. `turns` grows during the run, so an interrupted run has its turns as well.

    `say(index, now_ns)` makes the utterance of a turn. Tests replace the clock and the sleep.
    """

    def __init__(
        self,
        engine: Engine,
        say: Callable[[int, int], Utterance],
        load: Load,
        *,
        clock: Callable[[], int] = monotonic_ns,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.turns: list[TurnRecord] = []
        self.n_queued_max = 0
        self._engine, self._say, self._load = engine, say, load
        self._clock, self._sleep = clock, sleep
        self._random = random.Random(load.seed)
        self._live: dict[asyncio.Task[None], TurnRecord] = {}

    async def run(self) -> None:
        """Run until every turn has ended and was heard. An error of the engine ends its turn, not the run."""
        every_s = self._load.cancel_every_s
        interrupting = None if every_s is None else asyncio.create_task(self._interrupt(every_s))
        try:
            async with asyncio.TaskGroup() as group:
                if self._load.is_open:
                    await self._arrivals(group)
                else:
                    for caller in range(self._load.concurrency):
                        group.create_task(self._caller(caller))
        finally:
            if interrupting is not None:
                interrupting.cancel()

    async def _caller(self, caller: int) -> None:
        for n in range(self._load.n_turns):
            await self._turn(caller + n * self._load.concurrency)

    async def _arrivals(self, group: asyncio.TaskGroup) -> None:
        next_ns = self._clock()
        for index in range(self._load.n_turns * self._load.concurrency):
            gap_s = self._random.expovariate(self._load.arrivals_per_s)
            next_ns += round(gap_s * NS_PER_S)
            await self._sleep_until(next_ns)
            group.create_task(self._turn(index))

    async def _turn(self, index: int) -> None:
        turn, listener = TurnRecord(self._clock()), Listener()
        self.turns.append(turn)
        listening = asyncio.create_task(self._listen(self._say(index, turn.asked_ns), turn, listener))
        self._live[listening] = turn
        try:
            await listening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the whole run is being cancelled
            if turn.cancel_ns is None:  # the run did not cancel it: a task inside the engine was cancelled
                turn.error, turn.ended_ns = "the engine cancelled the utterance", self._clock()
        finally:
            del self._live[listening]
        if self._load.paced and turn.is_whole and listener.until_ns is not None:
            await self._sleep_until(listener.until_ns)

    async def _listen(self, utterance: Utterance, turn: TurnRecord, listener: Listener) -> None:
        """Take an utterance's chunks as a call does. A cancelled turn ends when the engine has released it."""
        stats = self._engine.stats()
        self.n_queued_max = max(self.n_queued_max, stats.n_queued)
        try:
            async with aclosing(self._engine.synthesize(utterance)) as chunks:
                while True:
                    if self._load.paced and listener.until_ns is not None:
                        await self._sleep_until(listener.until_ns - AHEAD_NS)
                    chunk = await anext(chunks, None)
                    now_ns = self._clock()
                    if chunk is None:
                        break
                    if len(chunk.pcm):
                        sound_ns = len(chunk.pcm) * NS_PER_S // chunk.sample_rate_hz
                        turn.arrivals.append((now_ns, sound_ns))
                        heard_ns = listener.arrive(now_ns, sound_ns)
                        at = audible_sample(chunk.pcm, chunk.sample_rate_hz) if turn.audible_ns is None else None
                        if at is not None:
                            turn.audible_ns = heard_ns + at * NS_PER_S // chunk.sample_rate_hz
            if not turn.arrivals:
                turn.error = "the engine made no audio"
        except asyncio.CancelledError:
            if turn.cancel_ns is not None:
                turn.ended_ns = self._clock()
            raise
        except TelephonyTTSError as error:
            turn.error = error.message
        except Exception as error:  # any failure is part of the result
            turn.error = f"{type(error).__name__}: {error}"
        turn.ended_ns = self._clock()

    async def _interrupt(self, every_s: float) -> None:
        """Barge-ins: cancel a random active turn every `every_s`, as a call does."""
        while True:
            await self._sleep(every_s)
            candidates = [task for task, turn in self._live.items() if not task.done() and turn.cancel_ns is None]
            if candidates:
                chosen = self._random.choice(candidates)
                self._live[chosen].cancel_ns = self._clock()
                chosen.cancel()

    async def _sleep_until(self, at_ns: int) -> None:
        wait_ns = at_ns - self._clock()
        if wait_ns > 0:
            await self._sleep(wait_ns / NS_PER_S)
