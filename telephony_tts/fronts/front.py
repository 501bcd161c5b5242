"""One of the processes of a server, as its transport sees the others (`transport.fronts.Fronts`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from telephony_tts.fronts import metrics_folder
from telephony_tts.fronts.claims import Claims, UsedNonces
from telephony_tts.fronts.loads import SILENT_NS, Loads, name_of, parts_of
from telephony_tts.fronts.metrics_of_all import Families, added, metrics_of, packed, snapshot, unpacked
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.fronts.socket_mover import ACTIVITY, METRICS, SocketMover
from telephony_tts.fronts.spreading import better_front
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.transport.fronts import FrontGone, FrontLoad, FrontSilent, MovedSocket

_log = logs.get(__name__)
KEEP_EVERY_S = 1.0
"""How often a front writes its metrics down, if none scrapes them: a front that is killed loses no more than this."""
_MOST_NONCES = 65_536
"""Of all fronts together."""


class Front:
    """The front `number`, started for the `generation`-th time, of as many as `loads` has slots."""

    def __init__(
        self,
        folder: RuntimeFolder,
        loads: Loads,
        number: int,
        generation: int,
        shared_engines: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name_of(number, generation)
        self._folder = folder
        self._loads = loads
        self._number = number
        self.shared_engines = shared_engines
        self._own = FrontLoad()
        self._use: Mapping[str, Mapping[str, float]] = {}
        """What the file of this front has."""
        self._others_use: list[Mapping[str, Mapping[str, float]]] = []
        self._failing: set[str] = set()
        """The events of the log that say what fails now."""
        self._gone: dict[str, int] = {}
        """Fronts that have ended, though their slots are not cleared yet, with their last beat. One that beats again
        lives."""
        self._under_way: Counter[str] = Counter()
        self._claims = Claims(folder.calls, folder.claims_lock, self.name, self._is_alive)
        self._nonces = UsedNonces(folder.nonces, _MOST_NONCES // loads.n)
        self._mover = SocketMover(folder.socket_of, self.name)
        self._gauges: Callable[[], None] = lambda: None
        loads.begin(number, generation)
        metrics.FRONTS_WANTED.set(loads.n)
        if generation > 1:
            metrics.FRONT_RESTARTS.inc()

    # ---------------------------------------------------------------- calls

    def owner(self, call_id: str) -> str | None:
        return self._claims.owner(call_id)

    def claim(self, call_id: str) -> str | None:
        return self._claims.claim(call_id)

    def release(self, call_id: str) -> None:
        self._claims.release(call_id)

    def is_new(self, nonce: str) -> bool:
        return self._nonces.is_new(nonce)

    def _is_alive(self, name: str) -> bool:
        try:
            number, generation = parts_of(name)
        except ValueError:
            return False
        return number < self._loads.n and self._loads.generation(number) == generation and not self._has_ended(name)

    def _has_ended(self, name: str) -> bool:
        return name in self._gone and self._gone[name] == self._loads.beat_ns(parts_of(name)[0])

    # ----------------------------------------------------------------- load

    def publish(self, load: FrontLoad) -> None:
        self._own = load
        self._loads.write(self._number, load, monotonic_ns())

    def others(self) -> FrontLoad:
        loads = list(self._other_loads().values())
        return FrontLoad(
            sum(load.n_calls for load in loads),
            sum(load.n_requests for load in loads),
            sum(load.n_arriving for load in loads),
            sum(load.n_sockets for load in loads),
            any(load.awaits_media for load in loads),
            any(load.is_able for load in loads),
            all(load.is_draining for load in loads),
        )

    def better(self) -> str | None:
        return better_front(self._own, self._other_loads(), self._under_way)

    def _other_loads(self) -> dict[str, FrontLoad]:
        now_ns = monotonic_ns()
        return {
            name: self._loads.read(parts_of(name)[0], now_ns)
            for name in self._loads.names()
            if name != self.name and not self._has_ended(name)
        }

    # ----------------------------------------------------------------- keys

    def publish_use(self, use: Mapping[str, Mapping[str, float]]) -> None:
        if use == self._use:
            return
        part = self._folder.keys / f"{self.name}.part"
        with self._going_on("use_not_written"):
            part.write_text(json.dumps(use))
            os.replace(part, self._folder.keys / self.name)
            self._use = use

    def use_of_others(self) -> list[Mapping[str, Mapping[str, float]]]:
        with self._going_on("use_not_read"):
            self._others_use = self._read_use_of_others()
        return self._others_use

    def _read_use_of_others(self) -> list[Mapping[str, Mapping[str, float]]]:
        found = []
        for path in self._folder.keys.iterdir():
            if path.name == self.name or path.name.endswith(".part"):
                continue
            with suppress(OSError, ValueError):
                use = json.loads(path.read_bytes())
                # The calls of a front that has ended are over. What they had used of a day stays used.
                found.append(use if self._is_alive(path.name) else {**use, "calls": {}})
        return found

    @contextmanager
    def _going_on(self, event: str) -> Iterator[None]:
        """Calls do not end because a file cannot be used. It is logged once, until it can be used again."""
        try:
            yield
        except OSError as error:
            if event not in self._failing:
                self._failing.add(event)
                _log.error(event, why=error.strerror or str(error))
        else:
            self._failing.discard(event)

    # ------------------------------------------------------------ connections

    async def move(self, to: str, sock: socket.socket, moved: MovedSocket, *, may_stay: bool) -> None:
        self._under_way[to] += 1
        try:
            await self._mover.move(to, sock, moved, may_stay=may_stay)
        except FrontSilent:
            raise
        except FrontGone as gone:
            beat_ns = self._loads.beat_ns(parts_of(to)[0])
            # A front that beats may have closed one connection unanswered, for want of memory. It is tried again.
            has_socket = not isinstance(gone.__cause__, ConnectionRefusedError | FileNotFoundError)
            if not has_socket or monotonic_ns() - beat_ns > SILENT_NS:
                self._gone[to] = beat_ns
            raise
        finally:
            self._under_way[to] -= 1

    @asynccontextmanager
    async def listening(
        self,
        adopt: Callable[[socket.socket, MovedSocket], Awaitable[None]],
        gauges: Callable[[], None],
        activity: Callable[[], dict[str, Any]],
    ) -> AsyncIterator[None]:
        """Take the connections of other fronts while the context lasts, and answer their questions. Raises OSError."""
        self._gauges = gauges
        begun = asyncio.Event()
        answers = {METRICS: self._snapshot, ACTIVITY: lambda: json.dumps(activity()).encode()}
        serving = asyncio.create_task(self._mover.listen(adopt, answers, begun.set), name="moved connections")
        waiting = asyncio.create_task(begun.wait())
        keeping = asyncio.create_task(self._keep_metrics(), name="keep metrics")
        try:
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            yield
        finally:
            for task in (serving, waiting, keeping):
                task.cancel()
            await asyncio.wait((serving, waiting, keeping))
            self._folder.socket_of(self.name).unlink(missing_ok=True)
            with suppress(OSError):
                self._snapshot()
            self._loads.clear(self._number)

    # --------------------------------------------------------------- metrics

    def _snapshot(self) -> bytes:
        """The metrics of this front now. They are kept in the folder first, so that no total can go down."""
        self._gauges()
        whole = packed(snapshot(metrics.REGISTRY))
        try:
            metrics_folder.keep(self._folder.metrics, self.name, whole)
        except OSError as error:
            _log.error("metrics_not_kept", why=error.strerror or str(error))
        return whole

    async def _keep_metrics(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            try:
                self._snapshot()
            except Exception:
                _log.exception("metrics_not_kept")

    async def metrics(self, own: Callable[[], None]) -> metrics.MetricFamilies:
        self._gauges = own
        of_fronts = {self.name: self._snapshot()}
        names = list(self._other_loads())
        answers = await asyncio.gather(*(self._metrics_of(name) for name in names))
        of_fronts |= {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}
        # In a thread: to read and add them takes some milliseconds for each front, and frames are due meanwhile.
        return metrics_of(await asyncio.to_thread(self._sum, of_fronts))

    def _sum(self, of_fronts: dict[str, bytes]) -> Families:
        running = {}
        for name, answer in of_fronts.items():
            try:
                running[name] = unpacked(answer)
            except ValueError as error:
                _log.warning("metrics_missing", front=name, why=str(error))
        now, ended = metrics_folder.with_ended(self._folder.metrics, running)
        return added(now, ended, self.shared_engines)

    async def _metrics_of(self, name: str) -> bytes | None:
        try:
            return await self._mover.ask(name, METRICS)
        except FrontGone:
            return None
        except (OSError, EOFError, TimeoutError) as error:
            _log.warning("metrics_missing", front=name, why=str(error) or type(error).__name__)
            return None

    # -------------------------------------------------------------- activity

    async def activities(self) -> list[dict[str, Any] | None]:
        return await asyncio.gather(*(self._activity_of(name) for name in self._other_loads()))

    async def _activity_of(self, name: str) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads(await self._mover.ask(name, ACTIVITY))
        except (FrontGone, OSError, EOFError, TimeoutError, ValueError):
            return None  # the console says so; it asks again in a second
        return told
