"""A bot that sends a sentence a second and never reads, with the package named first: websockets, aiohttp or picows.

Arguments: the package, the address, for how many seconds. Prints how many sentences it could send.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PACKAGE, URL, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
SENTENCE = json.dumps({"type": "say", "text": "One more."})


async def say(send: Callable[[str], Any]) -> None:
    """Send until the time is over, or the connection."""
    end_s, n_sent = time.monotonic() + SECONDS, 0
    with suppress(Exception):
        while time.monotonic() < end_s:
            sent = send(SENTENCE)
            if sent is not None:
                await sent
            n_sent += 1
            await asyncio.sleep(1)
    print(n_sent)


async def main() -> None:
    if PACKAGE == "websockets":
        from websockets.asyncio.client import connect

        async with connect(URL, proxy=None, ping_interval=None, close_timeout=1) as socket:
            await say(socket.send)
    elif PACKAGE == "aiohttp":
        import aiohttp

        async with aiohttp.ClientSession() as session, session.ws_connect(URL) as socket:
            await say(socket.send_str)
    else:
        from picows import WSListener, WSMsgType, ws_connect

        transport, _ = await ws_connect(WSListener, URL)

        def send(text: str) -> None:
            assert not transport.underlying_transport.is_closing()
            transport.send(WSMsgType.TEXT, text.encode())

        await say(send)


asyncio.run(main())
