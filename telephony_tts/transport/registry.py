"""The live calls by id. A call can be found exactly as long as it can be joined."""

from __future__ import annotations

import asyncio

from telephony_tts.recording.live import Recordings
from telephony_tts.transport.call import Call


class Registry:
    """Starts calls as children of one TaskGroup, and removes them when they end.

    A call that is over may still be closing its engine or a socket. It then counts in `len` but is not found any more:
    its id is free for the next stream of the same telephone call.
    """

    def __init__(self) -> None:
        self.group: asyncio.TaskGroup | None = None
        self.recordings: Recordings | None = None
        """Where calls are recorded, if the settings say so. None without a folder."""
        self.draining = False
        """No new calls are taken. Legs may still join live calls."""
        self.n_arriving = 0
        """How many media legs have not said yet which call they belong to."""
        self._calls: dict[str, Call] = {}
        self._alive: set[Call] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def n_calls(self) -> int:
        """How many calls there are without the HTTP requests."""
        return len(self) - self.n_requests

    @property
    def n_requests(self) -> int:
        """How many of the calls are HTTP requests, which have a limit of their own."""
        return sum(call.kind == "http" for call in self._alive)

    def find(self, call_id: str) -> Call | None:
        call = self._calls.get(call_id)
        return None if call is None or call.over else call

    def calls(self) -> list[Call]:
        return list(self._alive)

    @property
    def awaits_media(self) -> bool:
        """True if a call waits for its media leg."""
        return any(call.media is None and call.kind != "stream" and not call.over for call in self._alive)

    async def start(self, call: Call) -> None:
        """Start the call. Legs can join at once, so another leg may have joined when this returns."""
        self.begin(call)
        await call.started.wait()

    def begin(self, call: Call) -> None:
        """The same without waiting: the call runs in the loop's next round, and does then what its legs asked for."""
        assert self.group is not None and self.find(call.id) is None
        self._calls[call.id] = call
        self._alive.add(call)
        self._empty.clear()
        if self.recordings is not None and self.recordings.settings.is_on and call.kind != "http":
            call.recordings = self.recordings
            if self.recordings.settings.calls == "all":
                call.record("start")
        self.group.create_task(self._run(call), name=f"call {call.id}")

    async def wait_empty(self) -> None:
        await self._empty.wait()

    async def _run(self, call: Call) -> None:
        try:
            await call.run()
        except Exception:
            # The failure of one call must not end the others.
            call.log.exception("call_crashed")
        finally:
            if self._calls.get(call.id) is call:
                del self._calls[call.id]
            self._alive.discard(call)
            if not self._alive:
                self._empty.set()
