"""The engine in a process of its own: its own interpreter lock, and a death that no call dies of.

A process that ends, or computes one step for longer than any takes, is replaced: its utterances end with an error that
may be tried again, and calls stay up. Until the new one is ready, utterances are refused with that error.
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

from telephony_tts.engines.cosyvoice2.orders import Ended, Order, Submit, Told
from telephony_tts.engines.cosyvoice2.process_messages import (
    HEADER,
    Alive,
    Failed,
    Heard,
    Logged,
    Message,
    Ready,
    packed,
)
from telephony_tts.engines.cosyvoice2.settings import Settings
from telephony_tts.errors import EngineError

log = logging.getLogger(__name__)

HANG_S = 60.0
"""A step that takes longer, or a silence of a process that speaks every second: it hangs."""
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
    "from telephony_tts.engines.cosyvoice2.engine_process import main; main(int(sys.argv[1]))"
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


class ProcessHost:
    """Made, started and closed on an event loop, where `told` is called for each event."""

    def __init__(self, settings: Settings, told: Told, *, hang_s: float = HANG_S) -> None:
        self._settings = settings
        self._told = told
        self._hang_s = hang_s
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open: set[int] = set()
        """Utterances that have not ended."""
        self._process: _Process | None = None
        self._is_ready = False
        self._ready_s = 0.0
        """Since when, on the loop's clock."""
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
        return self._is_ready

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.child.pid if self._process is not None else None

    def send(self, order: Order) -> None:
        """From any thread. Raises EngineError for a new utterance while the engine is not running."""
        if isinstance(order, Submit):
            if not self._is_ready:
                raise EngineError("the speech engine is being started again; say it again in a moment")
            self._open.add(order.key)
        if threading.get_ident() == self._thread:
            self._pass_on(order)
        else:
            self._loop.call_soon_threadsafe(self._pass_on, order)

    def counters(self) -> dict[str, float]:
        """See `Counters.snapshot`; a second old at most."""
        return dict(self._counters)

    def cost(self) -> float:
        """See `Counters.cost`; a second old at most."""
        return self._cost

    async def close(self) -> None:
        """End all utterances and the process. Idempotent."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.wait([life])
        if self._first is not None and not self._first.done():
            self._first.set_exception(EngineError("cosyvoice2 was closed while it was loading"))
        self._end_all(EngineError("cosyvoice2 was closed"))

    def _pass_on(self, order: Order) -> None:
        if self._process is not None and order.key in self._open:
            self._process.send(order)

    async def _live(self, first: asyncio.Future[None]) -> None:
        """Run the process, and another one when it ends."""
        n_failed = 0
        while True:
            process, how = None, "it could not be started"
            reason, failure = "it ended", None
            try:
                process = self._process = _Process(self._settings, self._settings.n_threads)
                reason = await self._listen(process, first)
            except asyncio.CancelledError:
                if process is not None and not self._is_ready:
                    process.child.kill()  # while it loads it does not look at its socket, and it holds nothing yet
                raise
            except Exception as error:
                reason, failure = str(error), error
            finally:
                was_ready, self._is_ready = self._is_ready, False
                if process is not None:
                    how = await _to_its_end(_ended(process))
            if not first.done():
                gone = EngineError(f"the speech engine's process ended while it was loading ({how})")
                first.set_exception(failure or gone)
            if first.cancelled() or first.exception() is not None:
                return
            if was_ready and self._loop.time() - self._ready_s >= STEADY_S:
                n_failed = 0
            self._end_all(EngineError("the speech engine failed and is being started again; say it again in a moment"))
            pause_s = BACKOFF_S[min(n_failed, len(BACKOFF_S) - 1)]
            n_failed += 1
            log.error("the speech engine's process failed (%s, %s); starting it again in %g s", reason, how, pause_s)
            await asyncio.sleep(pause_s)

    async def _listen(self, process: _Process, first: asyncio.Future[None]) -> str:
        """Take in what it says until it ends or hangs; why."""
        reader = await process.connect()
        while True:
            try:
                # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with a message.
                async with asyncio.timeout(self._hang_s):
                    message = await _read(reader)
            except TimeoutError:
                process.child.kill()
                return f"it said nothing for {self._hang_s:g} s"
            match message:
                case None:
                    return "it ended"
                case Ready():
                    # Others than before, where some were stored or removed meanwhile.
                    self._is_ready, self._ready_s, self.voices = True, self._loop.time(), message.voices
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
                    if message.step_s > self._hang_s:
                        process.child.kill()
                        return f"a step has taken {message.step_s:.0f} s"
                case Logged():
                    logging.getLogger(message.record.name).handle(message.record)

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
