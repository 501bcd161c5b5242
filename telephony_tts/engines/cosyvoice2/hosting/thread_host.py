"""The engine in threads of this process, one per lane."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from telephony_tts.engines.cosyvoice2.choice import EngineChoice
from telephony_tts.engines.cosyvoice2.core.orders import Event, EventSink, Order, SubmitUtterance
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane, lanes
from telephony_tts.engines.cosyvoice2.hosting.pending_reads import PendingReads, in_order
from telephony_tts.engines.cosyvoice2.hosting.process_messages import VoicesRead
from telephony_tts.engines.cosyvoice2.settings import Settings
from telephony_tts.runtime.errors import EngineError

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.core.core import Core
    from telephony_tts.engines.cosyvoice2.hosting.known_voices import VoiceWatch
    from telephony_tts.engines.cosyvoice2.hosting.loading import LoadedEngine

log = logging.getLogger(__name__)


class ThreadHost:
    """Created, started and closed on an event loop, which also calls `tell` for each event."""

    def __init__(self, settings: Settings, tell: EventSink) -> None:
        self._settings = settings
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._threads: list[tuple[threading.Thread, asyncio.Event]] = []
        self.core: Core | None = None
        self._watch: VoiceWatch | None = None
        self._reads = PendingReads()
        self._ending: asyncio.Task[None] | None = None
        """Ends all after the failure of a lane."""
        self.voices: Mapping[str, str] = {}
        self.choice = EngineChoice()

    async def start(self) -> None:
        """Load. Raises what loading raises."""
        done: list[LoadedEngine | BaseException] = []
        self._begin("load", lambda: done.append(self._load()))
        await self._joined()
        (result,) = done
        if self._is_closed:
            raise EngineError("cosyvoice2 was closed while it was loading")
        if isinstance(result, BaseException):
            raise result
        from telephony_tts.engines.cosyvoice2.hosting.known_voices import described

        self.core, self.choice, self._watch = result.core, result.choice, result.voices
        self.voices = described(result.core.voices.features)
        self._begin("voices", partial(result.voices.serve, self._hand_on_voices))
        for i, lane in enumerate(lanes(result.choice.n_lanes)):
            self._begin(str(i), partial(self._serve, result.core, lane))

    def send(self, order: Order) -> None:
        """From any thread. Raises EngineError for a new utterance while the engine is not running."""
        core = self.core
        if core is not None:
            core.receive(order)
        elif isinstance(order, SubmitUtterance):
            raise EngineError("cosyvoice2 is not running")

    def counters(self) -> dict[str, float]:
        """See `Counters.snapshot`."""
        return self.core.counters.snapshot() if self.core is not None else {}

    def cost(self) -> float:
        """See `Counters.cost`."""
        return self.core.counters.cost if self.core is not None else 0.0

    @property
    def is_ready(self) -> bool:
        """Whether utterances can be taken."""
        return self.core is not None

    def retry_after_ms(self) -> int:
        """Always 0: threads are not restarted."""
        return 0

    async def wait_ready(self, *, follows: bool = False) -> None:
        """Raises EngineError if the engine is not running. It never waits: threads are not restarted."""
        if self.core is None:
            raise EngineError("cosyvoice2 is not running")

    async def read_voices(self) -> None:
        """Return when the core has the voices that are stored now. Raises EngineError if it is not running."""
        watch = self._watch
        if watch is None:
            raise EngineError("cosyvoice2 is not running")
        await self._reads.ask(watch.look_now)

    async def close(self) -> None:
        """End all utterances and all threads. Idempotent."""
        if self._ending is not None:
            await self._ending
        await self._end()

    async def _end(self) -> None:
        self._is_closed = True
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        self._reads.fail(EngineError("cosyvoice2 was closed"))
        core, self.core = self.core, None
        if core is not None:
            core.close()
        await self._joined()
        if core is not None:
            core.end_all()

    def _load(self) -> LoadedEngine | BaseException:
        try:
            # In this thread: importing torch takes seconds.
            from telephony_tts.engines.cosyvoice2.hosting.loading import load

            return load(self._settings, self._hand_on, lambda: not self._is_closed)
        except BaseException as error:
            return error

    def _serve(self, core: Core, lane: Lane) -> None:
        """A lane. If it fails, the engine ends with all utterances: the work of a lane has no other end."""
        try:
            core.serve(lane)
        except BaseException:
            log.exception("a lane of cosyvoice2 failed")
            self._loop.call_soon_threadsafe(self._lane_failed)

    def _lane_failed(self) -> None:
        if not self._is_closed:
            self._ending = self._loop.create_task(self._end(), name="end cosyvoice2")

    def _hand_on(self, key: int, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._tell, key, event)

    def _hand_on_voices(self, read: VoicesRead) -> None:
        self._loop.call_soon_threadsafe(self._voices_read, read)

    def _voices_read(self, read: VoicesRead) -> None:
        self.voices = in_order(self.voices, read.voices)
        self._reads.answer(read.number)

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        exited = asyncio.Event()

        def run() -> None:
            try:
                work()
            finally:
                self._loop.call_soon_threadsafe(exited.set)

        thread = threading.Thread(target=run, name=f"cosyvoice2-{name}", daemon=True)
        thread.start()
        # Only now: `close` waits for the end of each of them, and a thread that cannot be started has none.
        self._threads.append((thread, exited))

    async def _joined(self) -> None:
        """Return when all threads have ended."""
        while self._threads:
            thread, exited = begun = self._threads[-1]
            await exited.wait()
            thread.join()
            # `close` may wait for the same thread while `start` loads.
            if begun in self._threads:
                self._threads.remove(begun)
