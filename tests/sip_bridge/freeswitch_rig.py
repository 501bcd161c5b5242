"""A bridge and a stand-in FreeSWITCH together, and what is asked of the two."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bridge_rig import Rig, bridging, noise, until
from standin_freeswitch import PASSWORD, Channel, StandinFreeSwitch

UUID = "7dd5e34e-5db4-4edb-a166-757e5d29b941"
NO_SERVER = "ws://127.0.0.1:9/media/native"


@asynccontextmanager
async def bridged(switch: StandinFreeSwitch, **settings: Any) -> AsyncIterator[Rig]:
    given = {"freeswitch__enabled": True, "freeswitch__port": switch.port, "freeswitch__password": PASSWORD}
    async with bridging(NO_SERVER, **(given | settings)) as rig:
        yield rig


@asynccontextmanager
async def together(folder: Path, **settings: Any) -> AsyncIterator[tuple[StandinFreeSwitch, Rig]]:
    async with StandinFreeSwitch(folder).running() as switch, bridged(switch, **settings) as rig:
        await until(lambda: "event plain" in " ".join(switch.commands), "the bridge's subscription")
        await asyncio.sleep(0.01)
        yield switch, rig
        for channel in list(switch.channels.values()):
            await switch.hang_up(channel)
        await until(lambda: rig.bridge.n_calls == 0, "the calls' ends")
        assert os.listdir(folder) == [], "files left behind"


def speech(n_frames: int, seed: int) -> bytes:
    return b"".join(noise(n_frames, seed))


def said(channel: Channel) -> list[tuple[Any, ...]]:
    return [tuple(report.values()) for report in channel.reports]


async def assert_told(channel: Channel, *reports: tuple[Any, ...]) -> None:
    await until(lambda: said(channel) == list(reports), f"{reports}, not {said(channel)}")
