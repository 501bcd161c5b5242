"""Daemon threads: work is done although the machine refuses threads for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from telephony_tts.runtime.daemon_pool import DaemonPool, in_own_thread
from telephony_tts.runtime.errors import Busy


class Machine:
    """Refuses new threads beyond `n_allowed`, as a machine at its limit of threads does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_allowed = 0
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._start_thread(thread))

    def _start_thread(self, thread: threading.Thread) -> None:
        if self.n_allowed == 0:
            raise RuntimeError("can't start new thread")
        self.n_allowed -= 1
        self._start(thread)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool(3, "test")
    yield pool
    pool.shutdown()


def test_a_pool_that_got_no_thread_starts_its_threads_with_the_next_work(machine: Machine, pool: DaemonPool) -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(int)
    machine.n_allowed = 3
    assert pool.submit(lambda: 7).result(5) == 7


def test_one_thread_is_enough_and_the_others_start_later(machine: Machine, pool: DaemonPool) -> None:
    machine.n_allowed = 1
    assert pool.submit(lambda: 7).result(5) == 7
    machine.n_allowed = 2
    together = threading.Barrier(3)
    waiting = [pool.submit(together.wait, 5) for _ in range(3)]
    assert sorted(future.result(5) for future in waiting) == [0, 1, 2], "three threads work at once"


def test_a_change_that_was_refused_a_thread_is_never_done(machine: Machine) -> None:
    done: list[str] = []

    async def main() -> None:
        with pytest.raises(Busy, match="cannot start a thread") as refused:
            await in_own_thread(done.append, "refused")
        assert refused.value.retryable and refused.value.retry_after_ms
        machine.n_allowed = 2
        await in_own_thread(done.append, "done")
        with pytest.raises(ZeroDivisionError):
            await in_own_thread(divmod, 1, 0)

    asyncio.run(main())
    assert done == ["done"]
    for thread in threading.enumerate():
        if thread.name.startswith("change"):
            thread.join(5)
            assert not thread.is_alive(), "it ends with its work"
