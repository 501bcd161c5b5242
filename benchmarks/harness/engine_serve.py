"""An engine server as a benchmark starts it: the fake engine, whose repeated sentences cost nothing.

It prints "port N" when it is ready. `--listen` is as in `telephony-tts engine serve`.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import lru_cache

from telephony_tts.engines.fake import engine as fake
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.server import EngineServer
from telephony_tts.runtime import event_loop


async def serve(listen: str) -> None:
    engine = fake.FakeEngine()
    server = EngineServer(engine)
    at_once = asyncio.Event()
    with event_loop.stop_signals(at_once.set) as stop:
        address = await server.listen(parse_address(listen))
        await engine.start()
        event_loop.settle()
        server.engine_is_loaded()
        print(f"port {address.port}", flush=True)
        await stop.wait()
        await server.close()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--listen", required=True)
    chosen = flags.parse_args()
    fake.render = lru_cache(maxsize=4096)(fake.render)
    with event_loop.quick_turns():
        event_loop.run(serve(chosen.listen))


if __name__ == "__main__":
    main()
