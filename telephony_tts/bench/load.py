"""Callers who ask an engine to speak, through its public interface, and write down when what came.

Closed loop: each caller begins its next turn when it has heard the former. Open loop: turns come when they come, at
Poisson times, however long the engine takes; what it cannot do in time queues up, as in a call centre.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from telephony_tts.bench.measures import NS_PER_S, Listener, TurnRecord
from telephony_tts.clock import monotonic_ns
from telephony_tts.engines.api import Engine, Utterance
from telephony_tts.errors import TelephonyTTSError

AHEAD_NS = NS_PER_S
"""A paced listener takes the next chunk only when it has no more than this left to hear."""


@dataclass(frozen=True, slots=True)
class Load:
    """`n_turns` for each of `concurrency` callers; in the open loop as many in all, a new one every
    `seconds / concurrency` on average. `cancel_every_s`: so often one of the turns under way is broken off."""

    concurrency: int
    n_turns: int
    seconds: float
    is_open: bool = False
    paced: bool = True
    cancel_every_s: float | None = None
    seed: int = 0

    def warm_up(self) -> Load:
        """One turn, as fast as it comes and to its end."""
        return Load(1, 1, self.seconds, paced=False)


class Callers:
    """One run. `turns` grows while it goes on, so that a run broken off has its turns too.

    `say(index, now_ns)` makes the utterance of a turn; the sleep and the clock are those of a test, or of the system.
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
        self.n_queued_most = 0
        self._engine, self._say, self._load = engine, say, load
        self._clock, self._sleep = clock, sleep
        self._random = random.Random(load.seed)
        self._live: dict[asyncio.Task[None], TurnRecord] = {}

    async def run(self) -> None:
        """Until every turn has ended and been heard. What an engine raises ends the turn, not the run."""
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
            gap_s = self._random.expovariate(self._load.concurrency / self._load.seconds)
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
                raise  # the whole run is being broken off
            if turn.cancel_ns is None:  # nobody cancelled it: something inside the engine was
                turn.error, turn.ended_ns = "the engine gave up", self._clock()
        finally:
            del self._live[listening]
        if self._load.paced and turn.is_whole and listener.until_ns is not None:
            await self._sleep_until(listener.until_ns)

    async def _listen(self, utterance: Utterance, turn: TurnRecord, listener: Listener) -> None:
        """Take an utterance's chunks as a call does. A cancelled one ends when the engine has let go of it."""
        stats = self._engine.stats()
        self.n_queued_most = max(self.n_queued_most, stats.n_queued)
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
                        listener.arrive(now_ns, sound_ns)
            if not turn.arrivals:
                turn.error = "the engine said nothing"
        except asyncio.CancelledError:
            if turn.cancel_ns is not None:
                turn.ended_ns = self._clock()
            raise
        except TelephonyTTSError as error:
            turn.error = error.message
        except Exception as error:  # what a run is to tell of, whatever it is
            turn.error = f"{type(error).__name__}: {error}"
        turn.ended_ns = self._clock()

    async def _interrupt(self, every_s: float) -> None:
        """Barge-ins: of the turns under way one, by chance, is cancelled as a call cancels it."""
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
