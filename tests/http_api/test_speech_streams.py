"""How the requests of HTTP share the event loop: first pieces first, and one chunk at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import pytest

from telephony_tts.engines.api import Engine, Utterance
from telephony_tts.engines.fake import FakeEngine
from telephony_tts.http_api.speech import ResponseLeg, Throttled, ThrottledEngine
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.wire import messages as m

_ROUNDS = 20


class _Requests:
    """Requests of one server. Each speaks a text of ten chunks."""

    def __init__(self) -> None:
        self._room, self._turnstile = asyncio.Semaphore(4), asyncio.Lock()

    def open(self) -> tuple[ResponseLeg, AsyncGenerator[object, None]]:
        throttled = Throttled(cast(EngineCatalog, None), self._room, self._turnstile)
        throttled.leg = ResponseLeg(cast(Call, None))
        engine = ThrottledEngine(cast(Engine, FakeEngine(ms_per_char=100, chunk_ms=100)), throttled)
        return throttled.leg, engine.synthesize(Utterance("u", "abcdefghij"))


async def _rounds() -> None:
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


def test_no_more_is_synthesised_until_the_first_piece_is_on_its_way() -> None:
    async def run() -> None:
        leg, chunks = _Requests().open()
        await anext(chunks)
        leg.encode_media(m.Frame(b"first"))
        leg.send_gathered()
        second = asyncio.ensure_future(anext(chunks))
        audio = leg.audio()
        assert await anext(audio) == b"first"
        await _rounds()
        assert not second.done()  # the piece is taken, but the response may still be on its way to write it
        more = asyncio.ensure_future(anext(audio))
        await _rounds()
        assert second.done()
        more.cancel()
        await asyncio.gather(more, return_exceptions=True)
        await chunks.aclose()

    asyncio.run(run())


def test_a_first_chunk_that_gives_no_piece_holds_nothing_back() -> None:
    async def run() -> None:
        _, chunks = _Requests().open()
        assert len([chunk async for chunk in chunks]) == 10

    asyncio.run(asyncio.wait_for(run(), 5))


@pytest.mark.parametrize("n_requests", [1, 20])
def test_all_requests_together_encode_one_chunk_in_a_round_of_the_event_loop(n_requests: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        requests = _Requests()
        n_rounds = 0
        rounds: list[int] = []

        def count() -> None:
            nonlocal n_rounds, timer
            n_rounds += 1
            timer = loop.call_soon(count)

        async def speak() -> None:
            _, chunks = requests.open()
            await anext(chunks)  # the first one waits for nobody
            async for _ in chunks:
                rounds.append(n_rounds)

        timer = loop.call_soon(count)
        await asyncio.gather(*(speak() for _ in range(n_requests)))
        timer.cancel()
        assert len(rounds) == 9 * n_requests
        assert len(set(rounds)) == len(rounds)

    asyncio.run(run())
