"""Our server with an engine that fails in the way `--fault` says, and a spare engine that goes on. Both speak tones.

A failure opens no circuit, so each sentence meets the fault, unless `--after N` is given. Settings by `--set`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

import yaml

from telephony_tts.app import config, serving
from telephony_tts.app.processes import run
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import EngineError

FAULTS = ("none", "dead", "fails", "fails in the middle", "hangs in the middle", "fails in the middle, estimated")
_CHUNKS_BEFORE = 7
"""A fault in the middle comes after so many chunks of 100 ms."""


class FaultyEngine(FakeEngine):
    """The fake engine with one of FAULTS."""

    def __init__(self, fault: str) -> None:
        super().__init__(name="faulty", voice_names=("faulty-tone",))
        self._fault = fault

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        n_before = _CHUNKS_BEFORE if "middle" in self._fault else 0
        async with aclosing(cast("AsyncGenerator[Chunk, None]", super().synthesize(utterance))) as chunks:
            n = 0
            async for chunk in chunks:
                if n == n_before and self._fault in ("dead", "hangs in the middle"):
                    await asyncio.Event().wait()
                if n == n_before and self._fault != "none":
                    raise EngineError("the benchmark let this engine fail")
                if "estimated" in self._fault:
                    chunk = Chunk(chunk.pcm, chunk.sample_rate_hz, chunk.timings, estimates=True)
                yield chunk
                n += 1


def main(words: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    flags.add_argument("--fault", choices=FAULTS, default="dead")
    flags.add_argument("--after", type=int, default=1_000_000)
    flags.add_argument("--timeout-ms", type=int, default=300)
    flags.add_argument("--spare-ms", type=int, default=40)
    chosen = flags.parse_args(words)
    overrides: dict[str, object] = {"server.port": 0, "limits.max_frame_lateness_ms": 10_000, "server.drain_s": 1}
    for word in chosen.settings:
        key, _, value = word.partition("=")
        overrides[key] = yaml.safe_load(value)

    def catalog(*_args: Any, **_named: Any) -> Catalog:
        spare = FakeEngine(name="spare", voice_names=("spare-tone",), first_audio_ms=chosen.spare_ms)
        engines = (FaultyEngine(chosen.fault), spare)
        failover = Failover(engines, ["spare"], timeout_ms=chosen.timeout_ms, after=chosen.after, retry_s=60)
        return Catalog(engines, failover=failover)

    serving.build_catalog = catalog
    run(config.load(None, overrides), lambda served: print(f"port {served.port}", flush=True))


if __name__ == "__main__":
    main()
