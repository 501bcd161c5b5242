"""A bridge between a stand-in Asterisk with ARI and a stand-in server, over RTP; and a second call as a control."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from bridge_rig import BridgeRig, bridging, noise, until
from standin_ari import SETTINGS, StandinAri, standin_ari
from standin_server import StandinServer, standin_server

from telephony_tts.audio.g711 import decode_ulaw, encode_ulaw

HEADER = struct.Struct("!BBHII")


@asynccontextmanager
async def sides(**settings: object) -> AsyncIterator[tuple[StandinAri, StandinServer, BridgeRig]]:
    async with standin_ari() as asterisk, standin_server() as server:
        given = {"ari__url": asterisk.url, **SETTINGS, **settings}
        async with bridging(server.url, **given) as rig:
            yield asterisk, server, rig


def packet(
    number: int, codes: bytes, kind: int = 0, ssrc: int = 7, first: int = 0x80, at: int | None = None
) -> bytes:
    """`at` is the timestamp. It is that of a packet every 20 ms if it is not given."""
    at = number * 160 if at is None else at
    return HEADER.pack(first, kind, number & 0xFFFF, at & 0xFFFFFFFF, ssrc) + codes


def sound(frames: list[bytes]) -> bytes:
    """Frames of s16 after encoding to mu-law and back."""
    return decode_ulaw(ulaw(frames)).astype("<i2").tobytes()


def ulaw(frames: list[bytes]) -> bytes:
    return encode_ulaw(np.frombuffer(b"".join(frames), "<i2").astype(np.int16))


def media_of(asterisk: StandinAri, caller: str) -> str:
    """The media channel of this caller's call."""
    return next(each for ids in asterisk.bridges.values() if caller in ids for each in ids if each.endswith("-media"))


@asynccontextmanager
async def beside(asterisk: StandinAri, server: StandinServer, caller: str = "beside") -> AsyncIterator[None]:
    """A call that is up during the body. Each of its frames must arrive in both directions, exactly and in order."""
    await asterisk.call(caller)
    await until(lambda: any(len(ids) == 2 for ids in asterisk.bridges.values() if caller in ids), "it is bridged")
    call, media = await server.call(caller), media_of(asterisk, caller)
    port, target = asterisk.ports[media], asterisk.bridge_ports[media]
    spoken: list[bytes] = []
    said: list[bytes] = []
    stop = asyncio.Event()

    async def talk() -> None:
        while not stop.is_set() or len(said) < 15:
            frames, own = noise(5, 8000 + len(spoken)), noise(5, 9000 + len(said))
            spoken.extend(frames)
            speaking = asyncio.create_task(call.speak(frames))
            for frame in own:
                port.transport.sendto(packet(len(said), ulaw([frame])), target)
                said.append(frame)
                await asyncio.sleep(0.02)
            await speaking

    def speech() -> list[bytes]:
        return [each[12:] for each in port.packets if set(each[12:]) != {0xFF}]

    talking = asyncio.create_task(talk())
    try:
        yield
    finally:
        stop.set()
        await talking
    await until(lambda: len(speech()) >= len(spoken), "all of the speech")
    await call.until(lambda: len(call.audio) >= 320 * len(said), "all that the caller has said")
    assert b"".join(speech()) == ulaw(spoken), "what the phone heard"
    assert bytes(call.audio) == sound(said), "what the server heard"
    assert call.closed is None
    await asterisk.hang_up(caller)
    await call.gone()
