"""Log records on their way from the engine's process to its parent."""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from telephony_tts.engines.cosyvoice2.core.orders import UtteranceBegan
from telephony_tts.engines.cosyvoice2.hosting.engine_process import _Channel, _ParentLogHandler
from telephony_tts.engines.cosyvoice2.hosting.process_messages import (
    HEADER,
    Heartbeat,
    LogMessage,
    Message,
    UtteranceEvent,
)

WAIT_S = 10.0
BEAT = Heartbeat(0.0, {}, 0.0)


@pytest.fixture
def ends() -> Iterator[tuple[_Channel, socket.socket]]:
    """The process's channel, and the parent's end of it."""
    ours, parents = socket.socketpair()
    parents.settimeout(WAIT_S)
    with parents, ours:
        channel = _Channel(ours)
        with closing(channel._file):
            yield channel, parents
            channel.flush()


def received(parents: socket.socket, n: int) -> list[Message]:
    """At least `n` messages. One read may bring several."""
    messages: list[Message] = []
    while len(messages) < n:
        (n_bytes,) = HEADER.unpack(_read(parents, HEADER.size))
        messages += pickle.loads(_read(parents, n_bytes))
    return messages


def _read(parents: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = parents.recv(n - len(data))
        assert more, "the process has closed its end"
        data += more
    return data


def test_a_record_that_cannot_be_pickled_loses_only_what_cannot(ends: tuple[_Channel, socket.socket]) -> None:
    """A library may log any object. The heartbeats go on: without them the process would be taken for hung."""
    channel, parents = ends
    logger = logging.getLogger("a.library")
    handler = _ParentLogHandler(channel)
    logger.addHandler(handler)
    try:
        lock = threading.Lock()
        logger.warning("slow %s", "disk", extra={"lock": lock, "ms": 7, "fields": {"turn": "t1", "held": lock}})
    finally:
        logger.removeHandler(handler)
    channel.send(BEAT)
    told, beat = received(parents, 2)
    assert isinstance(told, LogMessage)
    record = pickle.loads(told.pickled_record)
    assert (record.name, record.levelno, record.getMessage()) == ("a.library", logging.WARNING, "slow disk")
    found = vars(record)
    assert (found["ms"], found["lock"]) == (7, "<lock>") and found["fields"] == {"turn": "t1", "held": "<lock>"}
    assert beat == BEAT


def test_messages_that_wait_are_sent_at_one_time_and_in_their_order(ends: tuple[_Channel, socket.socket]) -> None:
    """A step of many calls sends hundreds of chunks. Sent one by one, they delayed first audio by 10 ms."""
    channel, parents = ends
    events = [UtteranceEvent(key, UtteranceBegan(1)) for key in range(20_000)]
    for event in events:
        channel.send(event)  # more than the socket holds, so the rest waits
    n_sent, messages = 0, []
    while len(messages) < len(events):
        messages += received(parents, 1)
        n_sent += 1
    assert messages == events
    assert n_sent < len(events) / 10
