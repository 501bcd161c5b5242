"""The engine in a process of its own: it has its own interpreter lock, and calls survive its end.

A process is replaced when it ends, sends no heartbeat, or computes one step for too long. Its utterances end with an
error that may be tried again, and calls stay up. New utterances wait for the new process if it is expected in time.
Otherwise they are refused with that error. `Timeouts` in `settings.py` has the limits.
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
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from enum import Enum, auto

from telephony_tts.engines.cosyvoice2.choice import EngineChoice
from telephony_tts.engines.cosyvoice2.core.orders import EventSink, Order, SubmitUtterance, UtteranceEnded
from telephony_tts.engines.cosyvoice2.hosting.pending_reads import PendingReads, in_order
from telephony_tts.engines.cosyvoice2.hosting.process_messages import (
    HEADER,
    EngineReady,
    Heartbeat,
    LoadFailed,
    LogMessage,
    Message,
    ReadVoices,
    UtteranceEvent,
    VoicesRead,
    packed,
)
from telephony_tts.engines.cosyvoice2.hosting.stall_judge import (
    CHECK_INTERVAL_NS,
    STALLED_NS,
    StallJudge,
    StallVerdict,
)
from telephony_tts.engines.cosyvoice2.settings import DEFAULT_TIMEOUTS, Settings, Timeouts
from telephony_tts.runtime.clock import NS_PER_S
from telephony_tts.runtime.errors import EngineError

log = logging.getLogger(__name__)

QUIET_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Threads of OpenMP that have no work sleep at once, instead of spinning on cores that other lanes need."""
LOADING_SILENCE_S = 60.0
"""A loading process is killed after this long without a heartbeat. Loading a library can hold the interpreter's lock
for many seconds, so `Timeouts.stall_s` does not apply. A loading process that sends heartbeats has no limit."""
RETRY_LEAST_MS = 500
"""The smallest hint for a retry."""
TERM_S = 5.0
"""A process may take this long to end after its socket was closed."""
POLL_S = 0.02
"""Between checks whether a killed process has ended, if the system cannot report it."""
BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before each new start after failures in a row; the last one repeats."""
STEADY_S = 60.0
"""After this long ready, a failure counts as the first in a row."""


_CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from telephony_tts.engines.cosyvoice2.hosting.engine_process import main; main(int(sys.argv[1]))"
)
"""It takes the module path of this process. With `-m` Python would search the working directory first."""


class _EngineProcess:
    """One run of the engine's process, from start to end."""

    def __init__(self, settings: Settings) -> None:
        ours, theirs = socket.socketpair()
        # The number of threads may still be chosen (`choice`); then PyTorch is told later.
        own = {"OMP_NUM_THREADS": str(settings.n_threads or 1), "OPENBLAS_NUM_THREADS": "1"}
        environment = {**QUIET_THREADS, **os.environ, **own}
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orders: list[Order | ReadVoices] = []
        """Orders not written yet. `_send_all` writes them in the next iteration of the event loop."""
        self._first = packed((settings, logging.getLogger().getEffectiveLevel()))

    async def connect(self) -> asyncio.StreamReader:
        self._loop = asyncio.get_running_loop()
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._writer.write(self._first)
        return reader

    def send(self, order: Order | ReadVoices) -> None:
        """Send an order. Orders of one iteration of the event loop go as one message: if the first of many turns
        arrived alone, the engine would compute it alone."""
        if self._loop is None:
            return
        if not self._orders:
            self._loop.call_soon(self._send_all)
        self._orders.append(order)

    def _send_all(self) -> None:
        orders, self._orders = self._orders, []
        if self._writer is None or self._writer.is_closing():
            return
        try:
            self._writer.write(packed(orders))
        except Exception:
            # Their utterances would wait for ever. Without its socket the process ends, and they end with it.
            log.exception("orders for the speech engine could not be sent")
            self._writer.transport.abort()

    async def end(self) -> str:
        """Close the socket, which ends the process, or kill it. Returns how it ended."""
        if self._writer is not None:
            self._writer.transport.abort()  # a hung process reads no orders, and closing would wait for them
            with suppress(Exception):  # it raises what broke the connection
                await self._writer.wait_closed()
        else:
            self._socket.close()
        if self.child.poll() is None:
            await self._exit()
        return _how_it_ended(self.child.wait())

    async def _exit(self) -> None:
        try:
            fd = os.pidfd_open(self.child.pid)
        except OSError:  # out of file descriptors, or the kernel has no pidfd
            await self._killed()
            return
        exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(fd, exited.set)
        except OSError:  # the limit of watched files is reached
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
        """Kill it and poll for its end."""
        self.child.kill()
        while self.child.poll() is None:  # noqa: ASYNC110 - the system reports no event for it
            await asyncio.sleep(POLL_S)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"


class _ProcessHung(Exception):
    """The process must be killed. The message says why."""


class _HostState(Enum):
    LOADING = auto()
    """A process loads, or the next one is about to start."""
    READY = auto()
    """Utterances can be taken."""
    STALLED = auto()
    """The process is ready and silent. It may recover."""


class ProcessHost:
    """Created, started and closed on an event loop, which also calls `tell` for each event."""

    def __init__(self, settings: Settings, tell: EventSink, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self._settings = settings
        self._tell = tell
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open: set[int] = set()
        """Keys of the utterances that have not ended."""
        self._process: _EngineProcess | None = None
        self._state = _HostState.LOADING
        self._ready_s = 0.0
        """When it became ready. All times here are on the loop's clock."""
        self._load_s = 0.0
        """How long the last process took to be ready."""
        self._back_s = 0.0
        """When it is expected to be ready again."""
        self._n_failed = 0
        """Failures in a row."""
        self._n_restarts = 0
        """Processes that were started in place of one that had failed."""
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, when waiting utterances must check the state again."""
        self._next_check: asyncio.TimerHandle | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        """Done when the first process is ready or has failed."""
        self.voices: Mapping[str, str] = {}
        self._reads = PendingReads()
        self.choice = EngineChoice()
        self._counters: dict[str, float] = {}
        self._cost = 0.0

    async def start(self) -> None:
        """Load. Raises what loading raises."""
        first: asyncio.Future[None] = self._loop.create_future()
        self._supervisor = asyncio.create_task(self._supervise(first))
        self._first = first
        await first

    @property
    def is_ready(self) -> bool:
        """Whether utterances can be taken."""
        return self._state is _HostState.READY

    def retry_after_ms(self) -> int:
        """When it is expected to be ready again; 0 while it is ready and during the first load."""
        if self.is_ready or not self._load_s:
            return 0
        return max(RETRY_LEAST_MS, round((self._back_s - self._loop.time()) * 1000))

    async def wait_ready(self, *, follows: bool = False) -> None:
        """Return when utterances can be taken. Raises EngineError with a retry hint if that takes too long.

        While the process is stalled, a new turn is refused at once. A sentence that `follows` others of its turn waits
        for the end of the stall, so that a short stall loses nothing. While the process is replaced, both wait up to
        `restart_wait_s`, and only if the new process is expected in that time.
        """
        end_s = self._loop.time() + self._timeouts.restart_wait_s
        while not self.is_ready:
            is_stalled = self._state is _HostState.STALLED
            if is_stalled and follows:
                await self._changed.wait()
                continue
            if is_stalled or self._supervisor is None or self._back_s > end_s:
                raise self._refusal()
            try:
                async with asyncio.timeout_at(end_s):
                    await self._changed.wait()
            except TimeoutError:
                raise self._refusal() from None

    @property
    def pid(self) -> int | None:
        """Of the current process."""
        return self._process.child.pid if self._process is not None else None

    def send(self, order: Order) -> None:
        """From any thread. Raises EngineError for a new utterance while the engine is not running."""
        if isinstance(order, SubmitUtterance):
            if not self.is_ready:
                raise self._refusal()
            self._open.add(order.key)
        if threading.get_ident() == self._thread:
            self._forward(order)
        else:
            self._loop.call_soon_threadsafe(self._forward, order)

    async def read_voices(self) -> None:
        """Return when the core has the voices that are stored now. Raises EngineError if it is not running.

        If the process is replaced meanwhile, the new one has them."""
        await self.wait_ready()
        await self._reads.ask(self._ask_for_voices)

    def _ask_for_voices(self, number: int) -> None:
        if self._process is not None:
            self._process.send(ReadVoices(number))

    def counters(self) -> dict[str, float]:
        """See `Counters.snapshot`. As of the last heartbeat. `restarts`: how often the process was replaced."""
        return {**self._counters, "restarts": float(self._n_restarts)}

    def cost(self) -> float:
        """See `Counters.cost`. As of the last heartbeat."""
        return self._cost

    async def close(self) -> None:
        """End all utterances and the process. Idempotent."""
        life, self._supervisor = self._supervisor, None
        if life is not None:
            life.cancel()
            await asyncio.wait([life])
        self._notify_waiting()
        if self._first is not None and not self._first.done():
            self._first.set_exception(EngineError("cosyvoice2 was closed while it was loading"))
        self._end_all(EngineError("cosyvoice2 was closed"))
        self._reads.fail(EngineError("cosyvoice2 was closed"))

    def _forward(self, order: Order) -> None:
        if self._process is not None and order.key in self._open:
            self._process.send(order)

    async def _supervise(self, first: asyncio.Future[None]) -> None:
        """Run a process, and another one when it fails."""
        while True:
            process, how = None, "it could not be started"
            failure: Exception | None = None
            reason, is_hung, pause_s = "it ended", False, 0.0
            begun_s = self._loop.time()
            self._back_s = begun_s + self._load_s
            try:
                process = self._process = _EngineProcess(self._settings)
                reason = await self._listen(process, first, begun_s)
            except asyncio.CancelledError:
                if process is not None and self._state is _HostState.LOADING:
                    process.child.kill()  # a loading process does not read its socket, and it holds nothing yet
                raise
            except _ProcessHung as hung:
                assert process is not None
                process.child.kill()  # nothing else ends a stopped process
                is_hung, reason = True, str(hung)
                failure = EngineError(f"the speech engine's process was killed while it was loading: {reason}")
            except Exception as error:
                reason, failure = str(error), error
            finally:
                pause_s = self._plan_restart()
                if is_hung:
                    # Before its end: a process in a driver call may take long to die.
                    self._end_all(self._failure())
                if process is not None:
                    how = await _to_completion(_ended(process))
            if not first.done():
                gone = EngineError(f"the speech engine's process ended while it was loading ({how})")
                first.set_exception(failure or gone)
            if first.cancelled() or first.exception() is not None:
                return
            self._end_all(self._failure())
            log.error("the speech engine's process failed (%s, %s); starting it again in %g s", reason, how, pause_s)
            await asyncio.sleep(pause_s)
            self._n_restarts += 1

    async def _listen(self, process: _EngineProcess, first: asyncio.Future[None], begun_s: float) -> str:
        """Handle its messages until it ends. Returns why it ended. Raises _ProcessHung if it must be killed."""
        reader = await process.connect()
        judge = StallJudge(self._now_ns())
        try:
            # Not `wait_for`: before Python 3.12 it loses a cancellation that arrives together with a message.
            async with asyncio.timeout(None) as limit:
                self._check_later(judge, limit)
                while (messages := await _read(reader)) is not None:
                    judge.note_message(self._now_ns())
                    if self._state is _HostState.STALLED:
                        self._state = _HostState.READY
                        self._notify_waiting()
                        log.info("the speech engine's process responds again; nothing was lost")
                    for message in messages:
                        self._handle(message, first, begun_s)
        except TimeoutError:
            raise _ProcessHung(f"it sent nothing for {self._silence_s:g} s") from None
        finally:
            if self._next_check is not None:
                self._next_check.cancel()
        return "it ended"

    def _handle(self, message: Message, first: asyncio.Future[None], begun_s: float) -> None:
        match message:
            case EngineReady():
                self._state, self._ready_s = _HostState.READY, self._loop.time()
                self._load_s = self._ready_s - begun_s
                self.voices = in_order(self.voices, message.voices)  # some may have been stored or removed meanwhile
                self._reads.answer()
                self.choice = message.choice
                self._notify_waiting()
                if not first.done():
                    first.set_result(None)
                else:
                    log.info("the speech engine is ready again")
            case VoicesRead():
                self.voices = in_order(self.voices, message.voices)
                self._reads.answer(message.number)
            case LoadFailed():
                raise message.error
            case UtteranceEvent():
                if isinstance(message.event, UtteranceEnded):
                    self._open.discard(message.key)
                self._tell(message.key, message.event)
            case Heartbeat():
                self._counters, self._cost = message.counters, message.cost
                if message.step_s > self._timeouts.step_s:
                    raise _ProcessHung(f"a step has taken {message.step_s:.0f} s")
            case LogMessage():
                record: logging.LogRecord = pickle.loads(message.pickled_record)
                logging.getLogger(record.name).handle(record)

    def _check_later(self, judge: StallJudge, limit: asyncio.Timeout) -> None:
        self._next_check = self._loop.call_later(CHECK_INTERVAL_NS / NS_PER_S, self._check, judge, limit)

    def _check(self, judge: StallJudge, limit: asyncio.Timeout) -> None:
        """Judge the process by its silence."""
        now_s = self._loop.time()
        verdict = judge.check(self._now_ns(), round(self._silence_s * NS_PER_S))
        if verdict is StallVerdict.HUNG:
            limit.reschedule(now_s)
            return
        if verdict is StallVerdict.STALLED and self._state is _HostState.READY:
            self._state = _HostState.STALLED
            stalled_s = STALLED_NS / NS_PER_S
            self._back_s = now_s + self._timeouts.stall_s - stalled_s + self._load_s
            log.warning("the speech engine's process sent nothing for %g s; it takes no utterances", stalled_s)
        self._check_later(judge, limit)

    @property
    def _silence_s(self) -> float:
        """The process is killed after this long without a message."""
        return LOADING_SILENCE_S if self._state is _HostState.LOADING else self._timeouts.stall_s

    def _now_ns(self) -> int:
        return round(self._loop.time() * NS_PER_S)

    def _plan_restart(self) -> float:
        """Plan the next start of a process that failed. Returns how long to pause before it, in seconds."""
        now_s = self._loop.time()
        if self._state is not _HostState.LOADING and now_s - self._ready_s >= STEADY_S:
            self._n_failed = 0
        pause_s = BACKOFF_S[min(self._n_failed, len(BACKOFF_S) - 1)]
        self._n_failed += 1
        self._state = _HostState.LOADING
        self._back_s = now_s + pause_s + self._load_s
        self._notify_waiting()
        return pause_s

    def _notify_waiting(self) -> None:
        """Let waiting utterances check again: the state or `_back_s` has changed, or the host is closed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _failure(self) -> EngineError:
        """The error that ends the utterances of a failed process."""
        message = "the speech engine failed and is being started again; say it again in a moment"
        return EngineError(message, retry_after_ms=self.retry_after_ms())

    def _refusal(self) -> EngineError:
        """The error for a new utterance that cannot be taken."""
        if self._supervisor is None:
            return EngineError("cosyvoice2 was closed")
        what = "does not respond" if self._state is _HostState.STALLED else "is being started again"
        return EngineError(f"the speech engine {what}; say it again in a moment", retry_after_ms=self.retry_after_ms())

    def _end_all(self, error: EngineError) -> None:
        ended, self._open = self._open, set()
        for key in ended:
            self._tell(key, UtteranceEnded(error))


async def _ended(process: _EngineProcess) -> str:
    """End the process. Returns how it ended and never raises: the end of its utterances must follow."""
    try:
        return await process.end()
    except Exception as error:
        log.exception("the speech engine's process could not be cleared away")
        process.child.kill()
        return f"it could not be cleared away: {error}"


async def _to_completion(work: Coroutine[None, None, str]) -> str:
    """The result of `work`, however often the waiting task is cancelled. The cancellation is raised afterwards."""
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


async def _read(reader: asyncio.StreamReader) -> list[Message] | None:
    """The next messages; None when the process has closed the socket."""
    try:
        (n,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        messages: list[Message] = pickle.loads(await reader.readexactly(n))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return messages
