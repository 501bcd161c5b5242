"""The program of the engine's own process. Its parent is `process_host`.

It reads orders from an inherited socket and writes events to it. Each write is a length and a pickle: first the
settings and the log level, then lists of messages. Both ends run from the same files. The process ends when the socket
is closed, also while it loads. So it outlives its parent by one heartbeat at most.
"""

from __future__ import annotations

import gc
import logging
import logging.handlers
import os
import pickle
import signal
import socket
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.cosyvoice2.core.counters import Counters
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane, lanes
from telephony_tts.engines.cosyvoice2.hosting.process_messages import (
    HEADER,
    EngineReady,
    Heartbeat,
    LoadFailed,
    LogMessage,
    Message,
    ReadVoices,
    UtteranceEvent,
    packed,
)
from telephony_tts.runtime.errors import EngineError

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.core.core import Core

log = logging.getLogger(__name__)

MOST_MESSAGES = 64
"""At one time. The parent's event loop, which also sends the frames of calls, takes them in without a pause."""
HEARTBEAT_S = 0.25
"""Well below `stall_judge.STALLED_NS`."""


class _Channel:
    """The child's end of the socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._out: SimpleQueue[Message | None] = SimpleQueue()
        # A lane sends with the core's lock held, so a slow parent must not block it.
        self._writer = threading.Thread(target=self._write, name="cosyvoice2-send", daemon=True)
        self._writer.start()

    def send(self, message: Message) -> None:
        self._out.put(message)

    def receive(self) -> Any:
        """First the settings and the log level, then lists of orders; None when the parent has closed the socket."""
        try:
            header = self._file.read(HEADER.size)
            n = HEADER.unpack(header)[0] if len(header) == HEADER.size else 0
            data = self._file.read(n)
        except ConnectionError:
            return None  # the parent is gone and left messages unread
        return pickle.loads(data) if n and len(data) == n else None

    def flush(self) -> None:
        """Return when all messages are written."""
        self._out.put(None)
        self._writer.join()

    def _write(self) -> None:
        waiting: list[Message | None] = []
        try:
            while None not in waiting:
                # What waits goes at once: a step of 64 calls makes hundreds of chunks.
                waiting = [self._out.get()]
                with suppress(Empty):
                    while waiting[-1] is not None and len(waiting) < MOST_MESSAGES:
                        waiting.append(self._out.get_nowait())
                self._connection.sendall(packed([message for message in waiting if message is not None]))
        except OSError:
            os._exit(0)  # the parent is gone, and a loading process does not read the socket


DEVICE_SWITCH_S = 0.0005
"""How long a thread may go on that another one waits for, in the process of an engine on a device."""


class _ParentLogHandler(logging.handlers.QueueHandler):
    def __init__(self, channel: _Channel) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # records go to the channel, see enqueue
        self._channel = channel

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            data = pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception:  # a library may log any object
            fields = vars(record)
            for name, value in fields.items():
                if isinstance(value, dict):
                    value = {key: _sendable(item) for key, item in value.items()}
                fields[name] = _sendable(value)
            data = pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
        self._channel.send(LogMessage(data))


def _sendable(value: object) -> object:
    """`value`, or the name of its type if it cannot be pickled."""
    try:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return f"<{type(value).__name__}>"
    return value


def main(fd: int) -> None:
    """Load with the settings of the first message, then serve until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    channel = _Channel(socket.socket(fileno=fd))
    logging.getLogger().addHandler(_ParentLogHandler(channel))
    first = channel.receive()
    if first is None:
        return
    settings, log_level = first
    logging.getLogger().setLevel(log_level)
    loaded: list[Any] = []
    threading.Thread(target=_beat, args=(channel, loaded), name="cosyvoice2-heart", daemon=True).start()
    # After the heartbeat began: importing torch takes seconds.
    from telephony_tts.engines.cosyvoice2.hosting.known_voices import described
    from telephony_tts.engines.cosyvoice2.hosting.loading import load

    try:
        engine = load(settings, lambda key, event: channel.send(UtteranceEvent(key, event)))
    except Exception as error:
        # Other exceptions may be impossible to pickle.
        channel.send(LoadFailed(error if isinstance(error, EngineError) else EngineError(str(error))))
        channel.flush()
        return
    # What is loaded stays until this process ends. Looking through it again and again takes the collector 2 % of a CPU.
    gc.collect()
    gc.freeze()
    core, choice = engine.core, engine.choice
    if core.runner.model.device.type != "cpu":
        # The one lane launches work for all calls. It must not wait 5 ms, Python's usual time, until orders are read.
        sys.setswitchinterval(DEVICE_SWITCH_S)
    loaded.append(core)
    served = [(core, lane, channel) for lane in lanes(choice.n_lanes)]
    threads = [threading.Thread(target=_serve, args=each, daemon=True) for each in served]
    for thread in threads:
        thread.start()
    # First the counters: the parent must not take the warm-up for the first caller's work.
    channel.send(Heartbeat(0.0, core.counters.snapshot(), core.counters.cost))
    channel.send(EngineReady(described(core.voices.features), choice))
    watch = engine.voices
    threading.Thread(target=watch.serve, args=(channel.send,), name="cosyvoice2-voices", daemon=True).start()
    while (orders := channel.receive()) is not None:
        for order in orders:
            if isinstance(order, ReadVoices):
                watch.look_now(order.number)
        core.receive_all([order for order in orders if not isinstance(order, ReadVoices)])
    core.close()
    # The parent waits for this process. What the lanes still compute is not needed.
    os._exit(0)


def _serve(core: Core, lane: Lane, channel: _Channel) -> None:
    """A lane. If it fails, the process ends, and the parent starts another one: the work of a lane has no other end."""
    try:
        core.serve(lane)
    except BaseException:
        log.exception("a lane of cosyvoice2 failed")
        channel.flush()
        os._exit(1)


def _beat(channel: _Channel, loaded: list[Any]) -> None:
    """Send heartbeats, each with the age of the oldest step.

    They have a thread of their own, so a long step delays none. The age is counted in heartbeats, so it does not
    include time in which the machine was suspended.
    """
    pause = threading.Event()
    step_ns, n_beats = None, 0
    while not pause.wait(HEARTBEAT_S):
        before_ns, step_ns = step_ns, loaded[0].oldest_step_ns() if loaded else None
        n_beats = n_beats + 1 if step_ns is not None and step_ns == before_ns else 0
        counters = loaded[0].counters if loaded else Counters()
        channel.send(Heartbeat(n_beats * HEARTBEAT_S, counters.snapshot(), counters.cost))
