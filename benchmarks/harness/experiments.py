"""Experiments that patch the running server in memory; docs/experiments.md has the result of each."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from telephony_tts.engines.fake import engine as fake
from telephony_tts.session.playout import Playout


def pairs() -> None:
    """Send two frames every 40 ms: the second of a pair goes with the first, up to 20 ms early."""

    def send_ns(self: Playout) -> int:
        assert self.t0_ns is not None
        return self.t0_ns + (self.n_sent & ~1) * self.ptime_ns - self.lead_ns

    Playout.send_ns = send_ns  # type: ignore[method-assign]


def grid() -> None:
    """Send the frames of all calls on one grid of 20 ms: fewer wake-ups, but all at the same time."""
    plain = Playout.start

    def start(self: Playout, t0_ns: int) -> None:
        plain(self, -(-t0_ns // self.ptime_ns) * self.ptime_ns)

    Playout.start = start  # type: ignore[method-assign]


def long_chunks() -> None:
    """Let the fake engine yield 400 ms at a time instead of 100, to see what a chunk costs apart from its audio."""
    plain: Callable[..., None] = fake.FakeEngine.__init__

    def init(self: Any, **settings: Any) -> None:
        plain(self, chunk_ms=400.0, **settings)

    fake.FakeEngine.__init__ = init  # type: ignore[method-assign]


def uncounted_bytes() -> None:
    """Leave out the byte counters on the frame path."""
    from telephony_tts.runtime import metrics

    class NoCounter:
        def inc(self, _amount: float = 1) -> None: ...

    for counter in (metrics.SENT_BYTES, metrics.RECEIVED_BYTES):
        counter.labels = lambda **_labels: NoCounter()
    from telephony_tts.transport import call

    call._SENT = dict.fromkeys(metrics.LEGS, NoCounter())  # type: ignore[misc, assignment]


def no_gc() -> None:
    """Switch garbage collection off: the limit of what tuning it could gain."""
    gc.disable()


def _head(n: int, is_text: bool) -> bytes:
    opcode = 0x81 if is_text else 0x82
    return bytes((opcode, n)) if n < 126 else bytes((opcode, 126)) + n.to_bytes(2, "big")


def raw_write() -> None:
    """Write frames by hand to the transport, without the library's protocol object."""
    from websockets.protocol import State

    from telephony_tts.transport import connection

    cls: Any = next(c for c in vars(connection).values() if isinstance(c, type) and "send_now" in vars(c))

    def send_now(self: Any, payload: bytes, is_text: bool) -> None:
        if self.protocol.state is State.OPEN:
            self.transport.write(_head(len(payload), is_text) + payload)

    cls.send_now = send_now


def joined() -> None:
    """`raw_write`, and one write for all messages that a pump sends to a socket."""
    from websockets.protocol import State

    from telephony_tts.transport import connection
    from telephony_tts.transport.call import Call

    cls: Any = next(c for c in vars(connection).values() if isinstance(c, type) and "send_now" in vars(c))
    call: Any = Call
    plain = call._pump
    held: dict[Any, list[bytes]] = {}
    depth = 0

    def send_now(self: Any, payload: bytes, is_text: bool) -> None:
        if self.protocol.state is State.OPEN:
            if depth:
                held.setdefault(self, []).extend((_head(len(payload), is_text), payload))
            else:
                self.transport.write(_head(len(payload), is_text) + payload)

    def pump(self: Any, now_ns: int) -> None:
        nonlocal depth
        depth += 1
        try:
            plain(self, now_ns)
        finally:
            depth -= 1
            if held and not depth:
                for socket, pieces in held.items():
                    socket.transport.write(b"".join(pieces))
                held.clear()

    cls.send_now = send_now
    call._pump = pump


def pairs_joined() -> None:
    """`pairs` and `joined`."""
    pairs()
    joined()


_ALL = {
    f.__name__: f
    for f in (
        pairs,
        grid,
        long_chunks,
        uncounted_bytes,
        no_gc,
        raw_write,
        joined,
        pairs_joined,
    )
}


def apply(name: str) -> None:
    """Apply one experiment. Raises KeyError for an unknown name."""
    _ALL[name]()
