"""Frames on their way to the peer. One writer sends all that wait as one gRPC message."""

from __future__ import annotations

import asyncio
from collections import deque

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
        self.n_bytes = 0

    def push(self, frame: bytes) -> None:
        """Never waits. After `close` the frame is dropped."""
        if not self._is_closed:
            self._frames.append(frame)
            self.n_bytes += len(frame)
            self._news.set()

    def close(self) -> None:
        """No more frames come. `next_message` gives what waits, and then None."""
        self._is_closed = True
        self._news.set()

    async def next_message(self) -> bytes | None:
        """The frames that wait, joined. Waits for the first one. None after `close`."""
        while not self._frames:
            if self._is_closed:
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
        return frames[0] if len(frames) == 1 else b"".join(frames)
