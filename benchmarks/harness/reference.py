"""The bare loop that the server is compared with: the least that a Twilio-shaped media stream needs.

It uses websockets, soxr, audioop, json and base64 on uvloop. Each call has a receive loop and a send loop, which paces
by an absolute schedule with the same lead as our server. There are no text, turns, marks, barge-in, metrics or limits.
The speech is a fixed piece of 24 kHz PCM in chunks of 100 ms, already in memory.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import warnings

import soxr
import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, render

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import audioop


LEAD_S = 0.2
FRAME_S = 0.02
FRAME_BYTES = 160


async def handle(connection: ServerConnection) -> None:
    async for message in connection:
        event = json.loads(message)
        if event["event"] == "start":
            break
    else:
        return
    speaking = asyncio.create_task(speak(connection, event["start"]["streamSid"]))
    try:
        async for message in connection:
            event = json.loads(message)
            if event["event"] == "media":
                heard = base64.b64decode(event["media"]["payload"])
                assert len(heard) == FRAME_BYTES
            elif event["event"] == "stop":
                break
    finally:
        speaking.cancel()


async def speak(connection: ServerConnection, stream_sid: str) -> None:
    loop = asyncio.get_running_loop()
    resampler = soxr.ResampleStream(SAMPLE_RATE_HZ, 8000, 1, dtype="int16", quality="HQ")
    ready = bytearray()
    t0 = loop.time()
    n_sent = 0
    try:
        for chunk in itertools.cycle(CHUNKS):
            ready += audioop.lin2ulaw(resampler.resample_chunk(chunk).tobytes(), 2)
            while len(ready) >= FRAME_BYTES:
                wait_s = t0 + n_sent * FRAME_S - LEAD_S - loop.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                payload = base64.b64encode(ready[:FRAME_BYTES]).decode()
                del ready[:FRAME_BYTES]
                await connection.send(
                    json.dumps({"event": "media", "streamSid": stream_sid, "media": {"payload": payload}})
                )
                n_sent += 1
    except ConnectionClosed:
        pass


def _chunks() -> list[object]:
    pcm = render("the quick brown fox jumps over the lazy dog while the five boxing wizards jump quickly.")
    n = SAMPLE_RATE_HZ // 10
    return [pcm[start : start + n] for start in range(0, len(pcm) - n, n)]


CHUNKS = _chunks()


async def main() -> None:
    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        print(f"port {next(iter(server.sockets)).getsockname()[1]}", flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main())
