"""A connection to a PBX that is made again whenever it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

Connection = TypeVar("Connection")

_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 5.0


class NotConnected(Exception):
    """A PBX cannot be reached, or the connection to it is lost; the message says why and what to do."""


async def keep_connected(
    connect: Callable[[], Awaitable[Connection]],
    serve: Callable[[Connection], Awaitable[None]],
    failed: Callable[[str], None],
) -> NoReturn:
    """Connect, `serve` until the connection is lost, and connect again, until cancelled.

    `failed` gets the reason of each attempt that failed with NotConnected. The pause between attempts doubles, from
    0.2 to 5 s.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            connection = await connect()
        except NotConnected as error:
            failed(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            continue
        pause_s = _FIRST_PAUSE_S
        await serve(connection)
        await asyncio.sleep(pause_s)
