"""A fault that happens once, and a look at what a listener does afterwards."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def failing_once(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, but the first time it raises MemoryError."""
    failures = iter([MemoryError()])

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for failure in failures:
            raise failure
        return work(*args, **kwargs)

    return wrapped


class FullOnce:
    """An epoll that has no memory for one more socket, once."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll, self._failures = epoll, iter([OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))])

    def register(self, fd: int, events: int) -> None:
        for failure in self._failures:
            raise failure
        self._epoll.register(fd, events)

    def close(self) -> None:
        self._epoll.close()


async def answer(port: int) -> bytes:
    """What comes for GET /healthz until the connection is closed."""
    loop, got = asyncio.get_running_loop(), b""
    with socket.socket() as peer, suppress(ConnectionError):
        peer.setblocking(False)
        async with asyncio.timeout(5):
            await loop.sock_connect(peer, ("127.0.0.1", port))
            await loop.sock_sendall(peer, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            while piece := await loop.sock_recv(peer, 4096):
                got += piece
    return got
