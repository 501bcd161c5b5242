"""The live calls by id. A call can be found exactly as long as it can be joined."""

from __future__ import annotations

import asyncio

from telephony_tts.transport.call import Call


class Registry:
    """Starts calls as children of one TaskGroup and forgets them when they end.

    A call that is over but still winding down (an engine is letting go, a socket says goodbye) counts in `len` and
    is not found any more: its id is free for the next stream of the same telephone call.
    """

    def __init__(self) -> None:
        self.group: asyncio.TaskGroup | None = None
        self.draining = False
        """No new calls; live ones may still be joined."""
        self.n_arriving = 0
        """Media legs that have not said yet which call they belong to."""
        self._calls: dict[str, Call] = {}
        self._alive: set[Call] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._alive)

    def find(self, call_id: str) -> Call | None:
        call = self._calls.get(call_id)
        return None if call is None or call.over else call

    def calls(self) -> list[Call]:
        return list(self._alive)

    @property
    def awaits_media(self) -> bool:
        """True if some bot waits for its media leg."""
        return any(call.media is None and call.kind != "stream" and not call.over for call in self._alive)

    async def start(self, call: Call) -> None:
        """Bring the call to life. It can be joined at once, so another leg may have come when this returns."""
        assert self.group is not None and self.find(call.id) is None
        self._calls[call.id] = call
        self._alive.add(call)
        self._empty.clear()
        self.group.create_task(self._run(call), name=f"call {call.id}")
        await call.started.wait()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    async def _run(self, call: Call) -> None:
        try:
            await call.run()
        except Exception:
            # One call's failure is that call's end and nobody else's.
            call.log.exception("call_crashed")
        finally:
            if self._calls.get(call.id) is call:
                del self._calls[call.id]
            self._alive.discard(call)
            if not self._alive:
                self._empty.set()
