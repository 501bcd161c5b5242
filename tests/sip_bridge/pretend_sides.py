"""Both sides of a call without sockets, on a virtual clock: everything that the call writes is kept with its time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import virtual_loop

from sip_bridge import server_leg as s
from sip_bridge.audiosocket.call import AudioSocketCall
from sip_bridge.audiosocket.connection import CallerSocket, OnItems
from sip_bridge.audiosocket.frames import AudioFrame, AudioSocketFrame, AudioSocketReader, UuidFrame
from sip_bridge.config import load

CALL = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")
SILENCE_8K = b"\x10\x01\x40" + bytes(320)


def now_ms() -> float:
    return virtual_loop.clock() / 1e6


class PretendSocket:
    """Asterisk's side. `written` is (when in ms, the bytes of one write)."""

    def __init__(self) -> None:
        self.peer = "192.0.2.7"
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.unsent_bytes = 0
        self.written: list[tuple[float, bytes]] = []
        self.on_write: Callable[[], None] = lambda: None
        self.closed_ms: float | None = None

    def listen(self, on_items: OnItems) -> None:
        self._on_items = on_items

    def write(self, frame: bytes) -> None:
        self.written.append((now_ms(), frame))
        self.on_write()

    def abort(self) -> None:
        self.closed_ms = self.closed_ms or now_ms()

    async def close(self) -> None:
        self.abort()

    def says(self, *items: AudioSocketFrame) -> None:
        self._on_items(list(items), virtual_loop.clock())

    @property
    def audio(self) -> list[AudioFrame]:
        """The written frames, decoded."""
        reader = AudioSocketReader()
        reader.feed(b"\x01\x00\x10" + CALL.bytes)
        items = [item for _, frame in self.written for item in reader.feed(frame)]
        assert all(isinstance(item, AudioFrame) for item in items), items
        return cast(list[AudioFrame], items)


class PretendLeg:
    """The server's side. `told` is (when in ms, what): ("audio", bytes), ("mark", name), ("digit", d), ("stop", why).
    """

    def __init__(self) -> None:
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started: s.LegStart | None = None
        self.has_started = asyncio.Event()
        self.told: list[tuple[float, tuple[str, Any]]] = []
        self.takes_audio = True
        self.close_code, self.close_reason = 1006, ""
        self.closed = False

    def start(self, start: s.LegStart, on_message: Callable[[s.FromServer, int], None]) -> None:
        self.started = start
        self.has_started.set()
        self._on_message = on_message

    def says(self, *messages: s.FromServer) -> None:
        for message in messages:
            self._on_message(message, virtual_loop.clock())

    def leaves(self, code: int, reason: str = "") -> None:
        self.close_code, self.close_reason = code, reason
        self.left.set_result(None)

    def _tell(self, what: str, value: Any) -> None:
        self.told.append((now_ms(), (what, value)))

    def send_audio(self, pcm: bytes) -> bool:
        if self.takes_audio:
            self._tell("audio", pcm)
        return self.takes_audio

    def report_mark(self, name: str) -> None:
        self._tell("mark", name)

    def send_digit(self, digit: str) -> None:
        self._tell("digit", digit)

    def leave(self, reason: str) -> None:
        if not self.left.done():
            self._tell("stop", reason)
            self.left.set_result(None)

    async def close(self) -> None:
        self.closed = True

    def of(self, what: str) -> list[Any]:
        return [value for _, (kind, value) in self.told if kind == what]


@dataclass
class PretendCall:
    """A call between the two sides, on the clock of the running virtual loop."""

    settings: dict[str, object] = field(default_factory=dict)
    join_takes_ms: float = 0
    refusal: Exception | None = None

    def __post_init__(self) -> None:
        self.socket = PretendSocket()
        self.leg = PretendLeg()
        config = load(None, self.settings, {})
        self.call = AudioSocketCall(cast(CallerSocket, self.socket), config, cast(Any, self._join), virtual_loop.clock)
        self.run: asyncio.Task[None] = asyncio.create_task(self.call.run())

    async def _join(self, _server: object) -> PretendLeg:
        await asyncio.sleep(self.join_takes_ms / 1000)
        if self.refusal is not None:
            raise self.refusal
        return self.leg

    async def joined(self, rate_hz: int = 8000) -> None:
        """Send the UUID and one frame of audio, and wait until the server has the start; no time passes."""
        self.socket.says(UuidFrame(CALL), AudioFrame(rate_hz, bytes(rate_hz // 25)))
        await self.leg.has_started.wait()

    async def ended(self) -> None:
        """Wait for the end, for at most a minute, and check that nothing is left."""
        async with asyncio.timeout(60):
            await self.run
        assert self.socket.closed_ms is not None
        assert self.leg.closed or self.leg.started is None


async def at(ms: float) -> None:
    """Wait until this moment of the virtual clock."""
    await asyncio.sleep(max(0.0, (ms - now_ms()) / 1000))


def play(act: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a virtual clock; afterwards no task and no timer may be left."""

    async def whole() -> None:
        await act()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left
        timers = [t for t in asyncio.get_running_loop()._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
        assert not timers, timers

    virtual_loop.run(whole())
