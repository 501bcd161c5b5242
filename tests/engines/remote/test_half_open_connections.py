"""A crowd of connections at the port of an engine server that never attach: a client beside them is served, and they
end."""

from __future__ import annotations

import asyncio
import time

import pytest
from clean_run import until
from engine_servers import attached
from half_open import HalfOpen, crowd_beside

from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.remote import server
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.server import EngineServer

pytestmark = pytest.mark.timed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
KINDS = {
    "silent": HalfOpen(),
    "half a preface": HalfOpen(PREFACE[:4]),
    "no request": HalfOpen(PREFACE + b"\0\0\0\4\0\0\0\0\0"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_is_served_beside_them_and_they_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned: they stayed two minutes, or for ever with a whole HTTP/2 preface. Here each time is a tenth."""
    shorter = ((name, value // 10 if name.endswith("_ms") else value) for name, value in server.OPTIONS)
    monkeypatch.setattr(server, "OPTIONS", tuple(shorter))

    async def work() -> None:
        engine = FakeEngine()
        await engine.start()
        serving = EngineServer(engine)
        address = await serving.listen(parse_address("127.0.0.1:0"))
        serving.engine_is_loaded()
        try:
            async with attached(str(address)):
                pass
            async with crowd_beside(address.port, 300, KINDS[kind]) as many:
                times_ms = []
                for _ in range(20):
                    begin_s = time.monotonic()
                    async with attached(str(address)) as client:
                        assert client.stats().is_ready
                        times_ms.append((time.monotonic() - begin_s) * 1000)
                assert sorted(times_ms)[-2] < 50, times_ms
                await until(lambda: not any(many.is_open()), "their end", 10)
        finally:
            await serving.close()
            await engine.close()

    asyncio.run(work())
