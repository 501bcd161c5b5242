"""The engine in a process of its own: what runs there. Its parent is `process_host`.

It reads orders from a socket that it inherits and writes events to it, each a length and a pickle; both ends are this
program, started from the same files. It ends when the socket is closed, also while it loads, so it never outlives its
parent by more than the time between two heartbeats.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import pickle
import signal
import socket
import threading
from queue import SimpleQueue
from typing import Any

from telephony_tts.engines.cosyvoice2.core.counters import Counters
from telephony_tts.engines.cosyvoice2.core.scheduler import lanes
from telephony_tts.engines.cosyvoice2.hosting.process_messages import (
    HEADER,
    Alive,
    Failed,
    Heard,
    Logged,
    Message,
    Ready,
    packed,
)
from telephony_tts.errors import EngineError

HEARTBEAT_S = 0.25
"""Well below the 2 s of silence that the parent takes for a stall."""


class _Channel:
    """The child's end: any thread may send, one reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._out: SimpleQueue[Message | None] = SimpleQueue()
        # A parent that is slow to read must not hold up a lane, which tells with the core's lock held.
        self._writer = threading.Thread(target=self._write, name="cosyvoice2-send", daemon=True)
        self._writer.start()

    def send(self, message: Message) -> None:
        self._out.put(message)

    def receive(self) -> Any:
        """The next message; None at the end."""
        try:
            header = self._file.read(HEADER.size)
            n = HEADER.unpack(header)[0] if len(header) == HEADER.size else 0
            data = self._file.read(n)
        except ConnectionError:
            return None  # the parent has gone and left something unread
        return pickle.loads(data) if n and len(data) == n else None

    def flush(self) -> None:
        """Return when all that was sent is written."""
        self._out.put(None)
        self._writer.join()

    def _write(self) -> None:
        try:
            while (message := self._out.get()) is not None:
                self._connection.sendall(packed(message))
        except OSError:
            os._exit(0)  # the parent is gone, and who loads meanwhile does not read


class _ToParent(logging.handlers.QueueHandler):
    def __init__(self, channel: _Channel) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # records go to the channel, see enqueue
        self._channel = channel

    def enqueue(self, record: logging.LogRecord) -> None:
        self._channel.send(Logged(record))


def main(fd: int) -> None:
    """Load what the first message says, then serve until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us when it is time
    channel = _Channel(socket.socket(fileno=fd))
    logging.getLogger().addHandler(_ToParent(channel))
    first = channel.receive()
    if first is None:
        return
    settings, log_level = first
    logging.getLogger().setLevel(log_level)
    loaded: list[Any] = []
    threading.Thread(target=_beat, args=(channel, loaded), name="cosyvoice2-heart", daemon=True).start()
    from telephony_tts.engines.cosyvoice2.hosting.loading import (
        load,  # torch: seconds, in which the parent may have gone
    )

    try:
        core = load(settings, lambda key, event: channel.send(Heard(key, event)))
    except Exception as error:
        # Others may be of classes, or hold things, that cannot be sent.
        channel.send(Failed(error if isinstance(error, EngineError) else EngineError(str(error))))
        channel.flush()
        return
    loaded.append(core)
    threads = [threading.Thread(target=core.serve, args=(lane,), daemon=True) for lane in lanes(settings.n_lanes)]
    for thread in threads:
        thread.start()
    # What was counted while warming up is known before anybody asks, or it would be taken for the first caller's.
    channel.send(Alive(0.0, core.counters.snapshot(), core.counters.cost))
    channel.send(Ready(tuple(core.voices.features)))
    while (order := channel.receive()) is not None:
        core.receive(order)
    core.close()
    # Whoever closed the socket waits for us; what the lanes still compute is for nobody.
    os._exit(0)


def _beat(channel: _Channel, loaded: list[Any]) -> None:
    """Send heartbeats, each with the age of the oldest step.

    They come from a thread of their own, beside the lanes: a lane that computes one step for long delays none. The age
    is counted in heartbeats: time in which the machine stood still is no part of it.
    """
    pause = threading.Event()
    step_ns, n_beats = None, 0
    while not pause.wait(HEARTBEAT_S):
        before_ns, step_ns = step_ns, loaded[0].oldest_step_ns() if loaded else None
        n_beats = n_beats + 1 if step_ns is not None and step_ns == before_ns else 0
        counters = loaded[0].counters if loaded else Counters()
        channel.send(Alive(n_beats * HEARTBEAT_S, counters.snapshot(), counters.cost))
