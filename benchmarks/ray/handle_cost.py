"""What audio costs through a handle of Ray Serve, and straight over gRPC from the replica: first audio, and CPU.

The fake engine, instant and cached, speaks in one replica on a local Ray. A process without any other work asks for a
sentence of 4 s for each of 50 calls every 5 s, in these ways:

  stream   a streaming response of the handle, in pieces of 400 ms; cancelled in `finally`
  unary    one call of the handle for each sentence, which gives nothing: the price of letting Serve choose the replica
  direct   the engine server of the replica (engines.remote)

Run it with the Python that has Ray:  .peers/ray/bin/python benchmarks/ray/handle_cost.py --seconds 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any

import ray
from ray import serve

from telephony_tts.bench.measures import percentile
from telephony_tts.engines.api import Utterance
from telephony_tts.engines.fake import engine as fake
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.engines.remote.pieces import PieceGatherer
from telephony_tts.engines.remote.server import EngineServer

TEXT = "Your parcel left the depot on Tuesday and arrives at noon, my dear."


@serve.deployment(max_ongoing_requests=1000)
class FakeReplica:
    """The fake engine, by a streaming handle and as an engine server."""

    def __init__(self) -> None:
        fake.render = lru_cache(maxsize=4096)(fake.render)
        self.engine = fake.FakeEngine()
        self.server = EngineServer(self.engine)
        self.address: str | None = None

    async def listen(self) -> str:
        if self.address is None:
            self.address = str(await self.server.listen(parse_address("127.0.0.1:0")))
            self.server.engine_is_loaded()
        return self.address

    async def speak(self, text: str) -> AsyncIterator[bytes]:
        gatherer = PieceGatherer()
        async for chunk in self.engine.synthesize(Utterance("u", text)):
            for piece in gatherer.add(chunk, time.monotonic_ns()):
                yield piece.pcm.tobytes()
        if (rest := gatherer.flush(time.monotonic_ns())) is not None:
            yield rest.pcm.tobytes()

    async def nothing(self) -> None:
        return None


async def measure(speak: Callable[[], Awaitable[float]], calls: int, seconds: float, period_s: float) -> dict[str, Any]:
    first_ms: list[float] = []

    async def call(n: int) -> None:
        await asyncio.sleep(n * period_s / calls)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            begun_s = time.monotonic()
            first_ms.append(1000 * await speak())
            await asyncio.sleep(max(0.0, period_s - (time.monotonic() - begun_s)))

    for _ in range(20):
        await speak()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun_s = time.monotonic()
    await asyncio.gather(*(call(n) for n in range(calls)))
    after, took_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - begun_s
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    figures = {name: round(float(percentile(first_ms, share) or 0), 2) for name, share in shares.items()}
    return {"n": len(first_ms), **figures, "cpu_ms_per_call_s": round(1000 * cpu_s / took_s / calls, 3)}


async def run(chosen: argparse.Namespace, handle: Any) -> dict[str, Any]:
    address = await handle.listen.remote()
    streaming = handle.options(stream=True).speak
    engine = RemoteEngine("direct", [address])
    await engine.start()

    async def stream() -> float:
        begun_s, first_s = time.monotonic(), 0.0
        response = streaming.remote(TEXT)
        try:
            async for _ in response:
                first_s = first_s or time.monotonic() - begun_s
        finally:
            response.cancel()
        return first_s

    async def unary() -> float:
        begun_s = time.monotonic()
        await handle.nothing.remote()
        return time.monotonic() - begun_s

    async def direct() -> float:
        begun_s, first_s = time.monotonic(), 0.0
        async for _ in engine.synthesize(Utterance("u", TEXT)):
            first_s = first_s or time.monotonic() - begun_s
        return first_s

    async def idle() -> float:
        return 0.0

    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "idle": idle, "stream": stream, "unary": unary, "direct": direct
    }  # fmt: skip
    found = {}
    for name in chosen.ways.split(","):
        found[name] = await measure(ways[name], chosen.calls, chosen.seconds, 5.0)
        print(name, json.dumps(found[name]), flush=True)
    await engine.close()
    return found


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--calls", type=int, default=50)
    flags.add_argument("--seconds", type=float, default=20.0)
    flags.add_argument("--ways", default="idle,stream,unary,direct")
    chosen = flags.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    handle = serve.run(FakeReplica.bind(), name="handle_cost", route_prefix=None)
    try:
        asyncio.run(run(chosen, handle))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
