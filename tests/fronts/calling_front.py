"""A front without sockets that begins and ends calls all the time, as a process: FOLDER NUMBER FRONTS LIMIT SECONDS.

It prints a line for each call: when the call had begun, and when it was about to end, in nanoseconds.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

from telephony_tts.fronts.front import Front
from telephony_tts.fronts.loads import Loads
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime.errors import Busy
from telephony_tts.transport.fronts import FrontLoad
from telephony_tts.transport.registry import Registry


class IdleCall:
    """A call that runs until it is finished."""

    media = object()
    recordings = None

    def __init__(self, call_id: str, kind: str = "stream") -> None:
        self.id = call_id
        self.kind = kind
        self.over = False
        self.on_over: Any = None
        self.started = asyncio.Event()
        self._finished = asyncio.Event()

    async def run(self) -> None:
        self.started.set()
        await self._finished.wait()

    def finish(self) -> None:
        self.over = True
        self._finished.set()
        if self.on_over is not None:
            self.on_over()


def idle(call_id: str, kind: str = "stream") -> Any:
    """An `IdleCall`, which the registry takes for a call."""
    return IdleCall(call_id, kind)


async def main(folder: str, number: int, n_fronts: int, limit: int, seconds: float) -> None:
    runtime = RuntimeFolder(Path(folder))
    loads = Loads(runtime.loads, n_fronts)
    front = Front(runtime, loads, number, 1)
    registry = Registry()
    registry.fronts, registry.max_calls = front, limit
    registry.changed = lambda: front.publish(FrontLoad(n_calls=registry.n_calls))
    print("ready", flush=True)
    sys.stdin.readline()
    live: list[tuple[Any, int]] = []
    lines: list[str] = []
    draw = random.Random(number)
    end_s = time.monotonic() + seconds
    n_begun = 0

    def end(call: Any, begun_ns: int) -> None:
        lines.append(f"{begun_ns} {time.monotonic_ns()}")
        call.finish()

    async with asyncio.TaskGroup() as registry.group:
        while time.monotonic() < end_s:
            try:
                call = idle(f"{number}.{n_begun}")
                registry.begin(call)
                live.append((call, time.monotonic_ns()))
                n_begun += 1
            except Busy:
                pass
            if live and draw.random() < 0.5:
                end(*live.pop(draw.randrange(len(live))))
            await asyncio.sleep(0)
        for each in live:
            end(*each)
        await registry.wait_empty()
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
