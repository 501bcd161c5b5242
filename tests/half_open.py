"""A crowd of connections that never come to the end of a request, and a client beside it. Both use threads and real
sockets, so the event loop of a server in the same process has nothing to do for them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class HalfOpen:
    """What a connection sends first, and then ten times in a second."""

    begin: bytes = b""
    drip: bytes = b""


HEADS = {
    "silent": HalfOpen(),
    "slow drip": HalfOpen(b"GET /healthz HTTP/1.1\r\nX: ", b"a"),
    "endless": HalfOpen(b"GET /healthz HTTP/1.1\r\n", b"X: y\r\n"),
}


class Crowd:
    def __init__(self, sockets: list[socket.socket], drip: bytes) -> None:
        self.sockets = sockets
        self._drip = drip
        self.over = threading.Event()

    def send(self) -> None:
        while self._drip and not self.over.wait(0.1):
            for sock in self.sockets:
                with suppress(OSError):
                    sock.send(self._drip)

    def is_open(self) -> list[bool]:
        """Which of them the server has not closed, in the order in which they connected."""
        return [_is_open(sock) for sock in self.sockets]


def _is_open(sock: socket.socket) -> bool:
    try:
        while sock.recv(65_536):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextmanager
def crowd(port: int, n: int, kind: HalfOpen, host: str = "127.0.0.1") -> Iterator[Crowd]:
    """`n` connections of this kind from one address."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(n):
            sock = socket.socket()
            sockets.append(sock)
            sock.bind((host, 0))
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
            with suppress(OSError):
                sock.send(kind.begin)
        made = Crowd(sockets, kind.drip)
        sending = threading.Thread(target=made.send, daemon=True)
        sending.start()
        try:
            yield made
        finally:
            made.over.set()
            sending.join()
    finally:
        for sock in sockets:
            sock.close()


@asynccontextmanager
async def crowd_beside(port: int, n: int, kind: HalfOpen, host: str = "127.0.0.1") -> AsyncIterator[Crowd]:
    """The same for a server in this event loop."""
    made = crowd(port, n, kind, host)
    many = await asyncio.to_thread(made.__enter__)
    try:
        yield many
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


def health_ms(port: int, *, tls: bool = False, within_s: float = 8.0) -> float:
    """How long one health check takes, from its connection to the response. Raises OSError or AssertionError if it is
    not answered with 200."""
    begin_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), within_s) as plain:
        sock = ssl._create_unverified_context().wrap_socket(plain) if tls else plain
        with sock:
            sock.sendall(HEALTH)
            got = b""
            while b"\r\n\r\n" not in got:
                piece = sock.recv(4096)
                assert piece, f"the connection ended: {got!r}"
                got += piece
    assert got.startswith(b"HTTP/1.1 200 "), got
    return (time.monotonic() - begin_s) * 1000
