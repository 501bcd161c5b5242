import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.api import EngineStats
from telephony_tts.engines.workers import Cancelled, Work, WorkerPool
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

LIMIT_S = 30.0


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), LIMIT_S))


def count_to(n: int) -> Work[int]:
    return lambda cancelled: iter(range(n))


class Gate:
    """Work that reports when a worker runs it, and blocks the worker until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def work(self, cancelled: Cancelled) -> Iterator[str]:
        self.entered.set()
        assert self.opened.wait(LIMIT_S)
        yield "through"


async def entered(gate: Gate) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, gate.entered.wait, LIMIT_S)


async def collect(stream: AsyncGenerator[Any, None]) -> list[Any]:
    return [item async for item in stream]


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 30), max_size=6), n_workers=st.integers(1, 3), max_ahead=st.integers(1, 5))
def test_every_stream_gives_its_own_items_in_order(sizes: list[int], n_workers: int, max_ahead: int) -> None:
    async def body() -> None:
        pool = WorkerPool(n_workers, "pool", max_ahead=max_ahead)
        streams = [collect(pool.stream(count_to(n), deadline_ns=i % 2)) for i, n in enumerate(sizes)]
        assert await asyncio.gather(*streams) == [list(range(n)) for n in sizes]
        assert pool.stats() == EngineStats()
        await pool.close()

    run(body)


def test_the_earliest_deadline_is_served_first() -> None:
    async def body() -> None:
        pool, gate, served = WorkerPool(1, "pool"), Gate(), []

        def note(name: int) -> Work[int]:
            def work(cancelled: Cancelled) -> Iterator[int]:
                served.append(name)
                yield name

            return work

        first = asyncio.create_task(collect(pool.stream(gate.work)))
        await entered(gate)
        rest = [asyncio.create_task(collect(pool.stream(note(d), deadline_ns=d))) for d in (40, 10, 30, 10, 20)]
        await asyncio.sleep(0)
        assert pool.stats() == EngineStats(n_queued=5, n_running=1)
        gate.opened.set()
        await asyncio.gather(first, *rest)
        assert served == [10, 10, 20, 30, 40]
        await pool.close()

    run(body)


def test_urgent_work_runs_between_the_items_of_less_urgent_work() -> None:
    async def body() -> None:
        pool, gate = WorkerPool(1, "pool"), Gate()
        made: list[int | str] = []

        def patient(cancelled: Cancelled) -> Iterator[int]:
            for item in range(5):
                if item == 2:
                    gate.entered.set()
                    assert gate.opened.wait(LIMIT_S)
                made.append(item)
                yield item

        def urgent(cancelled: Cancelled) -> Iterator[str]:
            made.append("urgent")
            yield "urgent"

        slow = asyncio.create_task(collect(pool.stream(patient, deadline_ns=100)))
        await entered(gate)
        fast = asyncio.create_task(collect(pool.stream(urgent, deadline_ns=1)))
        await asyncio.sleep(0)
        gate.opened.set()
        await asyncio.gather(slow, fast)
        assert made == [0, 1, 2, "urgent", 3, 4]
        await pool.close()

    run(body)


def test_work_cancelled_in_the_queue_never_runs() -> None:
    async def body() -> None:
        pool, gate, ran = WorkerPool(1, "pool"), Gate(), []

        def never(cancelled: Cancelled) -> Iterator[int]:
            ran.append(True)
            yield 1

        first = asyncio.create_task(collect(pool.stream(gate.work)))
        await entered(gate)
        waiting = asyncio.create_task(collect(pool.stream(never)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert pool.stats() == EngineStats(n_running=1)
        gate.opened.set()
        assert await first == ["through"]
        await pool.close()
        assert not ran

    run(body)


def test_cancelling_returns_only_when_the_worker_is_free() -> None:
    async def body() -> None:
        pool, gate = WorkerPool(1, "pool"), Gate()
        told: list[bool | str] = []

        def stubborn(cancelled: Cancelled) -> Iterator[int]:
            yield 0
            gate.entered.set()
            assert gate.opened.wait(LIMIT_S)
            told.append(cancelled())
            yield 1
            told.append("went on")

        consumer = asyncio.create_task(collect(pool.stream(stubborn)))
        await entered(gate)
        for _ in range(3):
            consumer.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert not consumer.done() and pool.stats().n_running == 1
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert told == [True]
        assert pool.stats() == EngineStats()
        await pool.close()

    run(body)


def test_a_stalled_consumer_blocks_no_worker_and_bounded_memory() -> None:
    async def body() -> None:
        pool, made = WorkerPool(1, "pool", max_ahead=4), []

        def endless(cancelled: Cancelled) -> Iterator[int]:
            for item in range(1_000_000):
                made.append(item)
                yield item

        stalled = pool.stream(endless)
        assert await anext(stalled) == 0
        assert await collect(pool.stream(count_to(3), deadline_ns=5)) == [0, 1, 2]
        assert len(made) <= 5
        assert [await anext(stalled) for _ in range(20)] == list(range(1, 21))
        assert len(made) <= 25
        await stalled.aclose()
        assert pool.stats() == EngineStats()
        await pool.close()

    run(body)


def test_an_abandoned_stream_leaves_nothing() -> None:
    async def body() -> None:
        pool, closed = WorkerPool(1, "pool", max_ahead=1), threading.Event()

        def work(cancelled: Cancelled) -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.set()

        async def vanish() -> None:
            await anext(pool.stream(work))

        await vanish()
        # The event loop closes a generator without references.
        assert await asyncio.get_running_loop().run_in_executor(None, closed.wait, LIMIT_S)
        assert await collect(pool.stream(count_to(2))) == [0, 1]
        await pool.close()

    run(body)


def test_an_error_of_the_work_comes_after_its_items() -> None:
    async def body() -> None:
        pool = WorkerPool(1, "pool")

        def failing(cancelled: Cancelled) -> Iterator[int]:
            yield 1
            raise LookupError("no such thing")

        items = []
        with pytest.raises(LookupError, match="no such thing"):
            async for item in pool.stream(failing):
                items.append(item)
        assert items == [1]
        assert await collect(pool.stream(count_to(2))) == [0, 1]
        await pool.close()

    run(body)


def test_close_ends_running_queued_and_parked_streams_and_joins_every_thread() -> None:
    async def body() -> None:
        await asyncio.get_running_loop().run_in_executor(None, bool)  # the executor's thread is not the pool's
        n_threads = threading.active_count()
        pool, ends, busy = WorkerPool(2, "pool", max_ahead=1), [], threading.Barrier(3)

        def until_cancelled(cancelled: Cancelled) -> Iterator[int]:
            busy.wait(LIMIT_S)
            while not cancelled():
                pass
            ends.append("saw the flag")
            yield 0

        def parked(cancelled: Cancelled) -> Iterator[int]:
            try:
                while True:
                    yield 0
            finally:
                ends.append("closed")

        waiting = pool.stream(parked, deadline_ns=-1)
        await anext(waiting)
        works = (until_cancelled, until_cancelled, count_to(1))
        consumers = [asyncio.create_task(collect(pool.stream(w, deadline_ns=i))) for i, w in enumerate(works)]
        await asyncio.get_running_loop().run_in_executor(None, busy.wait, LIMIT_S)
        assert pool.stats() == EngineStats(n_queued=1, n_running=2)
        await pool.close()
        await pool.close()
        for outcome in await asyncio.gather(*consumers, return_exceptions=True):
            assert isinstance(outcome, EngineError)
        with pytest.raises(EngineError):
            await anext(waiting)
        assert sorted(ends) == ["closed", "saw the flag", "saw the flag"]
        assert threading.active_count() == n_threads
        with pytest.raises(EngineError, match="closed"):
            await collect(pool.stream(count_to(1)))

    run(body)


def test_a_stream_that_is_never_iterated_is_never_submitted() -> None:
    async def body() -> None:
        pool = WorkerPool(1, "pool")
        await pool.stream(count_to(5)).aclose()
        assert pool.stats() == EngineStats()
        await pool.close()

    run(body)


@pytest.mark.parametrize(("n_workers", "max_ahead"), [(0, 1), (1, 0)])
def test_invalid_sizes_are_refused(n_workers: int, max_ahead: int) -> None:
    async def body() -> None:
        with pytest.raises(ValueError, match="at least 1"):
            WorkerPool(n_workers, "pool", max_ahead=max_ahead)

    run(body)


@pytest.mark.parametrize("ends", ["at its end", "closed in the middle"])
def test_work_that_fails_to_close_ends_neither_worker_nor_consumer(ends: str) -> None:
    async def body() -> None:
        def work(cancelled: Cancelled) -> Iterator[int]:
            try:
                yield 1
                if ends == "closed in the middle":
                    yield 2
            finally:
                raise RuntimeError("no end")

        pool = WorkerPool(1, "pool", max_ahead=1)
        stream = pool.stream(work)
        assert await anext(stream) == 1
        if ends == "at its end":
            with pytest.raises(RuntimeError, match="no end"):
                await anext(stream)
        else:
            await stream.aclose()
        assert await collect(pool.stream(count_to(3))) == [0, 1, 2]
        assert pool.stats() == EngineStats()
        await pool.close()

    run(body)


def test_an_error_keeps_no_state_of_the_work_alive() -> None:
    """Not even through its traceback."""

    class Held:
        pass

    async def body() -> None:
        alive: list[weakref.ref[Held]] = []

        def inner() -> None:
            own = Held()
            alive.append(weakref.ref(own))
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error

        def work(cancelled: Cancelled) -> Iterator[int]:
            own = Held()
            alive.append(weakref.ref(own))
            yield 1
            inner()

        pool = WorkerPool(1, "pool")
        gc.disable()
        try:
            with pytest.raises(ValueError, match="outer") as caught:
                await collect(pool.stream(work))
            assert len(alive) == 2 and [ref() for ref in alive] == [None, None]
            assert caught.value.__cause__ is not None
        finally:
            gc.enable()
        await pool.close()

    run(body)


def test_a_fault_at_the_end_of_work_ends_no_worker() -> None:
    """Pinned: the worker was gone, and `close` waited for it."""

    async def body() -> None:
        pool: Any = WorkerPool(1, "pool")
        end, failures = pool._end, iter([ZeroDivisionError("a bug of ours")])

        def end_and_fail(*about: Any) -> None:
            end(*about)
            for failure in failures:
                raise failure

        pool._end = end_and_fail
        assert await collect(pool.stream(count_to(3))) == [0, 1, 2]
        assert await asyncio.wait_for(collect(pool.stream(count_to(2))), 5) == [0, 1]
        await asyncio.wait_for(pool.close(), 5)

    run(body)


def test_a_pool_that_gets_only_some_of_its_threads_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: those that had begun were left behind."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "pool-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def body() -> None:
        before = set(threading.enumerate())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(EngineUnavailable, match="pool cannot start its 3 threads: can't start new thread"):
            WorkerPool(3, "pool")
        assert set(threading.enumerate()) == before

    run(body)
