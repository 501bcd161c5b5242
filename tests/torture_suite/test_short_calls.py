"""What the soak says of a short call that goes wrong, on a server that does only that."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from websockets.asyncio.server import ServerConnection, serve

from torture import short_calls
from torture import violations as v
from torture.violations import Tally

pytestmark = pytest.mark.timed

DOORS = ("_native", "_twilio")


def tally_of(does: str) -> Tally:
    """Three short calls to a server that tells each bot it is ready, and then does this."""

    async def handle(connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path.startswith("/v1/stream"):
            await connection.send(json.dumps({"type": "ready"}))
            if does == "closes":
                await connection.close(4404, "no media leg came")
        await connection.wait_closed()

    async def main() -> Tally:
        async with serve(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await short_calls.run_short_calls("one", port, 0, 3)

    return asyncio.run(main())


def test_a_call_that_is_closed_without_speech_says_with_which_code_and_at_once() -> None:
    begin_s = time.monotonic()
    tally = tally_of("closes")
    assert time.monotonic() - begin_s < 5
    assert [each.check for each in tally.violations] == [v.CLOSE] * 3
    native, twilio = (next(each.what for each in tally.violations if door in each.what) for door in DOORS)
    for what in (native, twilio):
        assert "closed with 4404 (no media leg came) before its speech began" in what
    assert "media leg begun at" in twilio and "ready at" in native


def test_a_call_that_is_not_over_in_time_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_calls, "_WITHIN_S", 0.5)
    tally = tally_of("says nothing")
    found = [each.what for each in tally.violations if "TimeoutError" in each.what]
    assert len(found) == 2 and all("ready at 0." in what and "started" not in what for what in found)
