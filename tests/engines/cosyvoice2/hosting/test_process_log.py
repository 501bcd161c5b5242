"""Log records on their way from the engine's process to its parent."""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from telephony_tts.engines.cosyvoice2.hosting.engine_process import _Channel, _ParentLogHandler
from telephony_tts.engines.cosyvoice2.hosting.process_messages import HEADER, Heartbeat, LogMessage, Message

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


def received(parents: socket.socket) -> Message:
    (n,) = HEADER.unpack(parents.recv(HEADER.size, socket.MSG_WAITALL))
    message: Message = pickle.loads(parents.recv(n, socket.MSG_WAITALL))
    return message


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
    told = received(parents)
    assert isinstance(told, LogMessage)
    record = told.record
    assert (record.name, record.levelno, record.getMessage()) == ("a.library", logging.WARNING, "slow disk")
    found = vars(record)
    assert (found["ms"], found["lock"]) == (7, "<lock>") and found["fields"] == {"turn": "t1", "held": "<lock>"}
    assert received(parents) == BEAT
