"""Frames on their way to the peer. One writer sends all that wait as one gRPC message.

A message costs its sender and its receiver a few tenths of a millisecond, however small it is. So a frame that is not
urgent waits up to `SOON_S` for others.
"""

from __future__ import annotations

import asyncio
from collections import deque

SOON_S = 0.02
BATCH_BYTES = 1_000_000
"""A message ends behind the frame that reaches this size."""


class OutgoingFrames:
    """A queue of encoded frames. What fills it bounds it: audio by the listener's window, the rest by the utterances.

    `n_bytes` says how much waits, so that the owner can give up a peer that reads nothing.
    """

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._is_closed = False
        self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self.n_bytes = 0

    def push(self, frame: bytes, *, soon: bool = False) -> None:
        """Never waits. `soon`: the frame may wait for others. After `close` the frame is dropped."""
        if self._is_closed:
            return
        self._frames.append(frame)
        self.n_bytes += len(frame)
        if not soon:
            self.flush()
        elif self._timer is None and not self._is_urgent:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self.flush)

    def flush(self) -> None:
        """Send what waits now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_urgent = True
        self._news.set()

    def close(self) -> None:
        """No more frames come. `next_message` gives what waits, and then None."""
        self._is_closed = True
        self.flush()

    async def next_message(self) -> bytes | None:
        """The frames that wait, joined. Waits for the first one. None after `close`."""
        while not self._frames or not self._is_urgent:
            if self._is_closed and not self._frames:
                return None
            self._news.clear()
            await self._news.wait()
        frames: list[bytes] = []
        n_bytes = 0
        while self._frames and n_bytes < BATCH_BYTES:
            frame = self._frames.popleft()
            frames.append(frame)
            n_bytes += len(frame)
        self.n_bytes -= n_bytes
        self._is_urgent = bool(self._frames) or self._is_closed
        return frames[0] if len(frames) == 1 else b"".join(frames)
