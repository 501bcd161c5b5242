"""The live calls by id. A call is in here exactly as long as something of it is alive."""

from __future__ import annotations

import asyncio

from telephony_tts.transport.call import Call


class Registry:
    """Starts calls as children of one TaskGroup and forgets them when they end."""

    def __init__(self) -> None:
        self.group: asyncio.TaskGroup | None = None
        self._calls: dict[str, Call] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def calls(self) -> list[Call]:
        return list(self._calls.values())

    async def start(self, call: Call) -> None:
        """Bring the call to life; it can be joined when this returns."""
        assert self.group is not None and call.id not in self._calls
        self._calls[call.id] = call
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
            call.finish(1011, "internal error")
        finally:
            del self._calls[call.id]
            if not self._calls:
                self._empty.set()
