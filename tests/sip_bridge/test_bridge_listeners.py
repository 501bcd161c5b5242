"""A listener of the bridge whose protocol cannot be made for one connection lets the next ones in."""

from __future__ import annotations

import asyncio

import pytest
from bridge_rig import bridging, run
from listener_faults import answer, failing_once
from log_lines import lines
from standin_asterisk import phone
from standin_server import standin_server

from sip_bridge import app

pytestmark = pytest.mark.slow


def test_a_call_that_cannot_be_taken_is_closed_and_the_next_one_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: uvloop let no more connections in."""

    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig:
            monkeypatch.setattr(app, "CallerSocket", failing_once(app.CallerSocket))
            assert await answer(rig.port) == b""
            async with phone(rig.port) as caller:
                await server.call(caller.name)

    run(main)
    assert len(lines(caplog, "connection_not_taken")) == 1


def test_a_request_that_cannot_be_taken_is_closed_and_the_next_one_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig:
            monkeypatch.setattr(asyncio.StreamReader, "__init__", failing_once(asyncio.StreamReader.__init__))
            assert await answer(rig.http_port) == b""
            assert (await answer(rig.http_port)).startswith(b"HTTP/1.1 200")

    run(main)
    assert len(lines(caplog, "connection_not_taken")) == 1
