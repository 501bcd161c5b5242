"""A connection to an engine server that fails by a fault of ours, again and again."""

from __future__ import annotations

import asyncio

import pytest
from clean_run import until
from log_lines import lines

from telephony_tts.engines.remote import connection as connection_module
from telephony_tts.engines.remote.connection import EngineConnection


def test_the_same_fault_is_logged_once_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: each retry, some 20 in a second, wrote a traceback."""
    monkeypatch.setattr(connection_module, "BACKOFF_S", (0.001,))
    n_tried = 0

    async def fail(_connection: EngineConnection) -> None:
        nonlocal n_tried
        n_tried += 1
        raise RuntimeError("a bug of ours" if n_tried <= 10 else "another one")

    monkeypatch.setattr(EngineConnection, "_connect", fail)

    async def main() -> None:
        connection = EngineConnection("127.0.0.1:9", "remote", None, lambda: None, (), 0)
        running = asyncio.create_task(connection.run())
        await until(lambda: n_tried >= 20, "it is tried again")
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(main())
    for event in ("engine_server_lost", "engine_connection_crashed"):
        assert len(lines(caplog, event)) == 2, event
    assert [line["why"] for line in lines(caplog, "engine_server_lost")] == ["a bug of ours", "another one"]
