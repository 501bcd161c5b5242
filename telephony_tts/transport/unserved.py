"""The connections of a listener for which no request is served: the TLS handshake or the head of a request is not
complete, a client has not sent its next request yet, or it still sends the body of a refused one.

Any client that reaches the port can open them. Their time and their number are bounded. The listener drops an old one
rather than refuse a new connection, so a health check is answered beside any number of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections.abc import Callable
from contextlib import suppress

from telephony_tts.runtime import event_loop

LINGER_S = 60.0
"""The longest time from a refusal to the end of its connection."""
LINGER_IDLE_S = 2.0
"""The same from the last byte of its client, once that has the whole response."""
LINGER_BYTES = 64 << 20
"""The most that a refused client may send."""
_PIECE_S = 0.001
"""All refused clients together are read once in this time. A read takes at most 256 kB."""


class UnservedConnections:
    """At most `most` connections. One more drops the oldest of the network that has the most of them.

    So a crowd from one network keeps no client of another one waiting. A crowd from many networks, or from that of a
    client, drops the client's connection only if it opens `most` connections while the client sends its head.
    """

    def __init__(self, most: int | None = None) -> None:
        """Without `most`: as many as may wait to be accepted, and at most a quarter of the process's descriptors."""
        if most is None:
            n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            most = event_loop.ACCEPT_QUEUE if n_files < 0 else max(16, min(event_loop.ACCEPT_QUEUE, n_files // 4))
        self._most = most
        self._networks: dict[object, str] = {}
        self._drops: dict[str, dict[object, Callable[[], object]]] = {}
        """How to drop each connection, by its network. The oldest come first."""
        self._next_piece_s = 0.0

    def __len__(self) -> int:
        return len(self._networks)

    def add(self, connection: object, host: str, drop: Callable[[], object]) -> None:
        """`host` is the address of the peer. `drop` ends the connection, and is called at most once."""
        if len(self) >= self._most:
            self._drop_oldest(max(self._drops.values(), key=len))
        network = self._networks[connection] = _network(host)
        self._drops.setdefault(network, {})[connection] = drop

    def remove(self, connection: object) -> None:
        """A request of it is served, or it is closed. Idempotent."""
        network = self._networks.pop(connection, None)
        if network is not None:
            del self._drops[network][connection]
            if not self._drops[network]:
                del self._drops[network]

    def drop_all(self) -> None:
        for drops in list(self._drops.values()):
            while drops:
                self._drop_oldest(drops)

    def until_piece_s(self) -> float:
        """How long a refused client waits for its next read."""
        now_s = asyncio.get_running_loop().time()
        self._next_piece_s = max(now_s, self._next_piece_s) + _PIECE_S
        return self._next_piece_s - now_s

    def _drop_oldest(self, drops: dict[object, Callable[[], object]]) -> None:
        connection, drop = next(iter(drops.items()))
        self.remove(connection)
        drop()


class LingeringConnection(asyncio.Protocol):
    """Takes a connection after the response of a request that was refused before its end, and drops what the client
    still sends. A connection that is closed with unread bytes is reset, and its client would lose the response.

    `lost` is called when the connection is closed.
    """

    def __init__(
        self, transport: asyncio.Transport, unserved: UnservedConnections, lost: Callable[[], object] = lambda: None
    ) -> None:
        self._transport = transport
        self._unserved = unserved
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + LINGER_S
        self._n_left = LINGER_BYTES
        unserved.add(self, peer_host(transport), transport.abort)
        transport.set_protocol(self)
        if transport.can_write_eof():  # TLS cannot
            with suppress(OSError, RuntimeError):  # the client has reset the connection
                transport.write_eof()
        self._read_on()

    def _read_on(self) -> None:
        self._transport.resume_reading()
        self._timer = self._loop.call_later(min(LINGER_IDLE_S, self._end_s - self._loop.time()), self._end)

    def data_received(self, data: bytes) -> None:
        self._timer.cancel()
        self._n_left -= len(data)
        if self._n_left < 0:
            self._transport.abort()
            return
        self._transport.pause_reading()
        self._timer = self._loop.call_later(self._unserved.until_piece_s(), self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._unserved.remove(self)
        self._lost()

    def _end(self) -> None:
        if not self._transport.get_write_buffer_size():
            self._transport.close()
        elif self._loop.time() < self._end_s:
            self._timer = self._loop.call_later(LINGER_IDLE_S, self._end)
        else:
            self._transport.abort()


def peer_host(transport: asyncio.BaseTransport) -> str:
    """The peer's address without its port. Empty for a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def _network(host: str) -> str:
    """Who may have an address: it alone for IPv4, a whole /64 for IPv6."""
    return ipaddress.IPv6Address(host.partition("%")[0]).exploded[:19] if ":" in host else host
