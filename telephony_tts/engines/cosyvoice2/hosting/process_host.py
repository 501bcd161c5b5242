"""The engine in a process of its own: its own interpreter lock, and a death that no call dies of.

A process that ends, sends no heartbeat, or computes one step for too long, is replaced: its utterances end with an
error that may be tried again, and calls stay up. New utterances wait for the new process if it is expected in time;
else they are refused with that error. `Timeouts` in `settings.py` has the limits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress

from telephony_tts.clock import NS_PER_S
from telephony_tts.engines.cosyvoice2.core.orders import Ended, Order, Submit, Told
from telephony_tts.engines.cosyvoice2.hosting.process_messages import (
    HEADER,
    Alive,
    Failed,
    Heard,
    Logged,
    Message,
    Ready,
    packed,
)
from telephony_tts.engines.cosyvoice2.hosting.stall_judge import LOOK_NS, STALLED_NS, StallJudge, Verdict
from telephony_tts.engines.cosyvoice2.settings import USUAL, Settings, Timeouts
from telephony_tts.errors import EngineError

log = logging.getLogger(__name__)

LOADING_SILENCE_S = 60.0
"""A process that loads is killed after so long without a heartbeat. To load a library can hold the interpreter's lock
for many seconds, so `Timeouts.stall_s` does not apply. A process that loads and sends heartbeats has no limit."""
RETRY_LEAST_MS = 500
"""The smallest hint of when to try again."""
TERM_S = 5.0
"""A process whose socket was closed may take so long to end."""
POLL_S = 0.02
"""Between looks at whether a killed process has ended, where nothing tells it."""
BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before each new start in a row; the last one for all further ones."""
STEADY_S = 60.0
"""A process that was ready for so long begins a new row when it fails."""


_CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from telephony_tts.engines.cosyvoice2.hosting.engine_process import main; main(int(sys.argv[1]))"
)
"""Modules come from where they come from here: `-m` would look in the working directory first, whatever lies there."""


class _Process:
    """One run of it, from its start to its end."""

    def __init__(self, settings: Settings, n_threads: int) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads), "OPENBLAS_NUM_THREADS": "1"}
        try:
            with theirs:
                self.child = subprocess.Popen(
                    [sys.executable, "-P", "-c", _CHILD, str(theirs.fileno()), *sys.path],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        self._writer: asyncio.StreamWriter | None = None
        self._first = packed((settings, logging.getLogger().getEffectiveLevel()))

    async def connect(self) -> asyncio.StreamReader:
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._writer.write(self._first)
        return reader

    def send(self, order: Order) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packed(order))

    async def end(self) -> str:
        """Close the socket, which ends it, and kill it if that does not; how it ended."""
        if self._writer is not None:
            self._writer.transport.abort()  # a process that hangs reads no more, and its orders would be waited for
            with suppress(Exception):  # it raises whatever the connection was lost by
                await self._writer.wait_closed()
        else:
            self._socket.close()
        if self.child.poll() is None:
            await self._exit()
        return _how_it_ended(self.child.wait())

    async def _exit(self) -> None:
        try:
            fd = os.pidfd_open(self.child.pid)
        except OSError:  # no file is left, or a kernel without it
            await self._killed()
            return
        exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(fd, exited.set)
        except OSError:  # the system watches no more files for this user
            os.close(fd)
            await self._killed()
            return
        try:
            await asyncio.wait_for(exited.wait(), TERM_S)
        except TimeoutError:
            self.child.kill()
            await exited.wait()
        finally:
            if not exited.is_set():
                self.child.kill()
            loop.remove_reader(fd)
            os.close(fd)

    async def _killed(self) -> None:
        """Kill it, and look whether it has ended where nothing tells it."""
        self.child.kill()
        while self.child.poll() is None:  # noqa: ASYNC110 - there is nothing that would tell it
            await asyncio.sleep(POLL_S)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"


class _Hung(Exception):
    """The process must be killed. The message says why."""


class ProcessHost:
    """Made, started and closed on an event loop, where `told` is called for each event."""

    def __init__(self, settings: Settings, told: Told, timeouts: Timeouts = USUAL) -> None:
        self._settings = settings
        self._told = told
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open: set[int] = set()
        """Utterances that have not ended."""
        self._process: _Process | None = None
        self._is_ready = False
        """It has loaded. All times here are on the loop's clock."""
        self._is_stalled = False
        self._ready_s = 0.0
        """Since when it is ready."""
        self._load_s = 0.0
        """How long the last process took to be ready."""
        self._back_s = 0.0
        """When it is expected to be ready again."""
        self._n_failed = 0
        """Failures in a row."""
        self._news = asyncio.Event()
        """Set, and replaced by a new one, when an utterance that waits is to look again."""
        self._looking: asyncio.TimerHandle | None = None
        self._life: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        """Done when it has been ready for the first time, or could not be."""
        self.voices: tuple[str, ...] = ()
        self._counters: dict[str, float] = {}
        self._cost = 0.0

    async def start(self) -> None:
        """Load. Raises what loading raises."""
        first: asyncio.Future[None] = self._loop.create_future()
        self._life = asyncio.create_task(self._live(first))
        self._first = first
        await first

    @property
    def is_ready(self) -> bool:
        """Whether utterances can be taken."""
        return self._is_ready and not self._is_stalled

    def retry_after_ms(self) -> int:
        """When it is expected to be ready again; 0 while it is ready, and while it loads for the first time."""
        if self.is_ready or not self._load_s:
            return 0
        return max(RETRY_LEAST_MS, round((self._back_s - self._loop.time()) * 1000))

    async def wait_ready(self, *, follows: bool = False) -> None:
        """Return when utterances can be taken. Raises EngineError, with when to try again, where that takes too long.

        While the process is stalled, a new turn is refused at once. A sentence that `follows` others of its turn waits
        until the stall is over, so that a short stall loses nothing. While the process is replaced, both wait up to
        `restart_wait_s`, and only if the new process is expected in that time.
        """
        end_s = self._loop.time() + self._timeouts.restart_wait_s
        while not self.is_ready:
            if self._is_stalled and follows:
                await self._news.wait()
                continue
            if self._is_stalled or self._life is None or self._back_s > end_s:
                raise self._refusal()
            try:
                async with asyncio.timeout_at(end_s):
                    await self._news.wait()
            except TimeoutError:
                raise self._refusal() from None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.child.pid if self._process is not None else None

    def send(self, order: Order) -> None:
        """From any thread. Raises EngineError for a new utterance while the engine is not running."""
        if isinstance(order, Submit):
            if not self.is_ready:
                raise self._refusal()
            self._open.add(order.key)
        if threading.get_ident() == self._thread:
            self._pass_on(order)
        else:
            self._loop.call_soon_threadsafe(self._pass_on, order)

    def counters(self) -> dict[str, float]:
        """See `Counters.snapshot`; as of the last heartbeat."""
        return dict(self._counters)

    def cost(self) -> float:
        """See `Counters.cost`; as of the last heartbeat."""
        return self._cost

    async def close(self) -> None:
        """End all utterances and the process. Idempotent."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.wait([life])
        self._wake()
        if self._first is not None and not self._first.done():
            self._first.set_exception(EngineError("cosyvoice2 was closed while it was loading"))
        self._end_all(EngineError("cosyvoice2 was closed"))

    def _pass_on(self, order: Order) -> None:
        if self._process is not None and order.key in self._open:
            self._process.send(order)

    async def _live(self, first: asyncio.Future[None]) -> None:
        """Run the process, and another one when it ends."""
        while True:
            process, how = None, "it could not be started"
            failure: Exception | None = None
            reason, is_hung, pause_s = "it ended", False, 0.0
            begun_s = self._loop.time()
            self._back_s = begun_s + self._load_s
            try:
                process = self._process = _Process(self._settings, self._settings.n_threads)
                reason = await self._listen(process, first, begun_s)
            except asyncio.CancelledError:
                if process is not None and not self._is_ready:
                    process.child.kill()  # while it loads it does not look at its socket, and it holds nothing yet
                raise
            except _Hung as hung:
                assert process is not None
                process.child.kill()  # nothing else ends a stopped process
                is_hung, reason = True, str(hung)
                failure = EngineError(f"the speech engine's process was killed while it was loading: {reason}")
            except Exception as error:
                reason, failure = str(error), error
            finally:
                pause_s = self._plan_restart()
                if is_hung:
                    # Before its end: a process that a driver holds may take long to die.
                    self._end_all(self._failure())
                if process is not None:
                    how = await _to_its_end(_ended(process))
            if not first.done():
                gone = EngineError(f"the speech engine's process ended while it was loading ({how})")
                first.set_exception(failure or gone)
            if first.cancelled() or first.exception() is not None:
                return
            self._end_all(self._failure())
            log.error("the speech engine's process failed (%s, %s); starting it again in %g s", reason, how, pause_s)
            await asyncio.sleep(pause_s)

    async def _listen(self, process: _Process, first: asyncio.Future[None], begun_s: float) -> str:
        """Handle its messages until it ends; return why it ended. Raises _Hung if it must be killed."""
        reader = await process.connect()
        judge = StallJudge(self._now_ns())
        try:
            # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with a message.
            async with asyncio.timeout(None) as limit:
                self._look_later(judge, limit)
                while (message := await _read(reader)) is not None:
                    judge.heard(self._now_ns())
                    if self._is_stalled:
                        self._is_stalled = False
                        self._wake()
                        log.info("the speech engine's process responds again; nothing was lost")
                    self._take_in(message, first, begun_s)
        except TimeoutError:
            raise _Hung(f"it said nothing for {self._silence_s:g} s") from None
        finally:
            if self._looking is not None:
                self._looking.cancel()
        return "it ended"

    def _take_in(self, message: Message, first: asyncio.Future[None], begun_s: float) -> None:
        match message:
            case Ready():
                # Others than before, where some were stored or removed meanwhile.
                self._is_ready, self._ready_s, self.voices = True, self._loop.time(), message.voices
                self._load_s = self._ready_s - begun_s
                self._wake()
                if not first.done():
                    first.set_result(None)
                else:
                    log.info("the speech engine is ready again")
            case Failed():
                raise message.error
            case Heard():
                if isinstance(message.event, Ended):
                    self._open.discard(message.key)
                self._told(message.key, message.event)
            case Alive():
                self._counters, self._cost = message.counters, message.cost
                if message.step_s > self._timeouts.step_s:
                    raise _Hung(f"a step has taken {message.step_s:.0f} s")
            case Logged():
                logging.getLogger(message.record.name).handle(message.record)

    def _look_later(self, judge: StallJudge, limit: asyncio.Timeout) -> None:
        self._looking = self._loop.call_later(LOOK_NS / NS_PER_S, self._look, judge, limit)

    def _look(self, judge: StallJudge, limit: asyncio.Timeout) -> None:
        """Judge the process by its silence."""
        now_s = self._loop.time()
        verdict = judge.look(self._now_ns(), round(self._silence_s * NS_PER_S))
        if verdict is Verdict.HUNG:
            limit.reschedule(now_s)
            return
        if verdict is Verdict.STALLED and self._is_ready and not self._is_stalled:
            self._is_stalled = True
            stalled_s = STALLED_NS / NS_PER_S
            self._back_s = now_s + self._timeouts.stall_s - stalled_s + self._load_s
            log.warning("the speech engine's process said nothing for %g s; it takes no utterances", stalled_s)
        self._look_later(judge, limit)

    @property
    def _silence_s(self) -> float:
        """After so long without a message the process is killed."""
        return self._timeouts.stall_s if self._is_ready else LOADING_SILENCE_S

    def _now_ns(self) -> int:
        return round(self._loop.time() * NS_PER_S)

    def _plan_restart(self) -> float:
        """Plan the next start of a process that failed. Returns how long to pause before it, in seconds."""
        now_s = self._loop.time()
        if self._is_ready and now_s - self._ready_s >= STEADY_S:
            self._n_failed = 0
        pause_s = BACKOFF_S[min(self._n_failed, len(BACKOFF_S) - 1)]
        self._n_failed += 1
        self._is_ready = self._is_stalled = False
        self._back_s = now_s + pause_s + self._load_s
        self._wake()
        return pause_s

    def _wake(self) -> None:
        """Let utterances that wait look again: `is_ready` or `_back_s` has changed, or it is closed."""
        self._news.set()
        self._news = asyncio.Event()

    def _failure(self) -> EngineError:
        """The end of utterances that the process had."""
        message = "the speech engine failed and is being started again; say it again in a moment"
        return EngineError(message, retry_after_ms=self.retry_after_ms())

    def _refusal(self) -> EngineError:
        """The answer to a new utterance while none can be taken."""
        if self._life is None:
            return EngineError("cosyvoice2 was closed")
        what = "does not respond" if self._is_stalled else "is being started again"
        return EngineError(f"the speech engine {what}; say it again in a moment", retry_after_ms=self.retry_after_ms())

    def _end_all(self, error: EngineError) -> None:
        ended, self._open = self._open, set()
        for key in ended:
            self._told(key, Ended(error))


async def _ended(process: _Process) -> str:
    """How it ended. Raises nothing of its own: what follows its end is the end of its utterances."""
    try:
        return await process.end()
    except Exception as error:
        log.exception("the speech engine's process could not be cleared away")
        process.child.kill()
        return f"it could not be cleared away: {error}"


async def _to_its_end(work: Coroutine[None, None, str]) -> str:
    """Its result, however often the waiting task is cancelled meanwhile; it is then cancelled afterwards."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as cancelled:
            interrupted = cancelled
    if interrupted is not None:
        raise interrupted
    return task.result()


async def _read(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end."""
    try:
        (n,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        message: Message = pickle.loads(await reader.readexactly(n))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message
