"""The real telephony-tts server in this process, with tones as its voice, and a bot that joins one of its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import soxr
from server_settings import transport_settings
from websockets.asyncio.client import ClientConnection, connect

from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, FakeEngine, render
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.server import Server

TOKEN = "a-token"


@asynccontextmanager
async def tts_server(**settings: Any) -> AsyncIterator[Server]:
    """Run the real server with tones as its voice."""
    catalog = Catalog([FakeEngine()])
    await catalog.start()
    given = transport_settings(
        speech=replace(SessionSettings(), first_clause_chars=0), tokens=(TOKEN,), drain_s=1.0,
        max_frame_lateness_ms=60_000, **settings,
    )  # fmt: skip
    try:
        async with Server(given, catalog).running() as server:
            yield server
    finally:
        await catalog.close()


@asynccontextmanager
async def bot_of(server: Server, call: str, inbound: str = "none") -> AsyncIterator[ClientConnection]:
    url = f"ws://127.0.0.1:{server.port}/v1/stream?call={call}&token={TOKEN}"
    async with connect(url, compression=None, proxy=None, max_queue=None) as bot:
        await event(bot, "ready")
        if inbound != "none":
            await bot.send(json.dumps({"type": "config", "inbound": inbound}))
        yield bot


async def event(bot: ClientConnection, kind: str, audio: bytearray | None = None) -> dict[str, Any]:
    """The next event of one kind; the caller's audio that comes before it is added to `audio`."""
    async with asyncio.timeout(8):
        while True:
            data = await bot.recv()
            if isinstance(data, bytes):
                if audio is not None:
                    audio += data
            elif (told := json.loads(data)).get("type") == kind:
                return dict(told)


def tones(sentences: list[str], rate_hz: int) -> np.ndarray:
    """The samples that the engine makes for these sentences."""
    whole = np.concatenate([render(text) for text in sentences]).astype(np.float32)
    resampled: np.ndarray = soxr.resample(whole, SAMPLE_RATE_HZ, rate_hz, "HQ")
    return resampled
