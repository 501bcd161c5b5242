"""A connection that is made again: when it is tried, and how failures are reported."""

from __future__ import annotations

import asyncio

import virtual_loop

from sip_bridge.reconnect import NotConnected, keep_connected


def test_the_pause_doubles_up_to_5_s_and_begins_anew_after_a_connection() -> None:
    async def main() -> None:
        tried_s: list[float] = []
        failures: list[str] = []
        served: list[int] = []

        async def connect() -> int:
            tried_s.append(round(virtual_loop.clock() / 1e9 - begun_s, 2))
            if len(tried_s) in (8, 9):
                return len(tried_s)
            raise NotConnected(f"attempt {len(tried_s)}")

        async def serve(connection: int) -> None:
            served.append(connection)
            await asyncio.sleep(1)

        begun_s = virtual_loop.clock() / 1e9
        keeping = asyncio.create_task(keep_connected(connect, serve, failures.append))
        await asyncio.sleep(19)
        keeping.cancel()
        await asyncio.wait((keeping,))
        assert tried_s[:8] == [0, 0.2, 0.6, 1.4, 3.0, 6.2, 11.2, 16.2], "0.2, 0.4, 0.8, 1.6, 3.2, 5 and 5 s apart"
        assert tried_s[8:11] == [17.4, 18.6, 18.8] and served == [8, 9]
        assert failures[:2] == ["attempt 1", "attempt 2"] and len(failures) == len(tried_s) - 2

    virtual_loop.run(main())
