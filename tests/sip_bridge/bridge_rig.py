"""A whole bridge in this process on free ports, and a check that it leaves no call behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from clean_run import count_sockets as count_sockets
from clean_run import run as run
from clean_run import until as until

from sip_bridge import metrics
from sip_bridge.app import SipBridge
from sip_bridge.config import load


@dataclass
class BridgeRig:
    bridge: SipBridge
    port: int
    http_port: int


@asynccontextmanager
async def bridging(server_url: str, **settings: Any) -> AsyncIterator[BridgeRig]:
    """Run a bridge to that server. `settings` are keys with "__" for the dot. After the body no call may be left."""
    given = {
        "server.url": server_url,
        "audiosocket.port": 0,
        "http.port": 0,
        "drain_s": 0.5,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    live = metrics.value("telephony_sip_bridge_calls_live")
    bridge = SipBridge(load(None, given, {}))
    async with bridge.running() as listening:
        yield BridgeRig(bridge, listening.audiosocket_port, listening.http_port)
    assert bridge.n_calls == 0
    assert metrics.value("telephony_sip_bridge_calls_live") == live


class EndReasons:
    """Counts how many calls have ended for each reason since it was created."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        return {why: metrics.value("telephony_sip_bridge_calls_total", reason=why) for why in metrics.ENDS}

    @property
    def counts(self) -> dict[str, int]:
        return {why: int(n - self._before[why]) for why, n in self._now().items() if n != self._before[why]}


def noise(n_frames: int, seed: int, n_samples: int = 160) -> list[bytes]:
    """Frames of noise: no two are the same, and none is silent."""
    samples = np.random.default_rng(seed).integers(-9000, 9000, (n_frames, n_samples)).astype("<i2")
    return [frame.tobytes() for frame in samples]


async def get(port: int, path: str) -> tuple[int, str]:
    """Send a plain HTTP request; returns status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()
