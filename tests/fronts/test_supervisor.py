"""The supervisor where the system refuses what a new process needs."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from telephony_tts.fronts.supervisor import supervise
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow


def test_a_front_without_a_socket_for_its_orders_could_not_be_started(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: it ended the supervisor, and with it all fronts, also when one of them only had to be started again."""

    def no_pair(*_how: object) -> tuple[socket.socket, socket.socket]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        monkeypatch.setattr(socket, "socketpair", no_pair)
        with pytest.raises(EngineError, match="front 0 ended while it started: it could not be started: Too many open"):
            await supervise([object()], "127.0.0.1", 0, 1.0, str(short), lambda served: None)
        monkeypatch.undo()

    asyncio.run(main())
    assert list(short.iterdir()) == []
