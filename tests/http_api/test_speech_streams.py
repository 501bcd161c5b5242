"""How the requests of HTTP share the event loop: first pieces first, and one chunk at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from server_settings import transport_settings
from starlette.types import ASGIApp, Message, Scope

from telephony_tts.engines.api import Engine, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api.application import application
from telephony_tts.http_api.speech import ResponseLeg, Throttled, ThrottledEngine
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.transport.server import Server
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
            await anext(chunks)  # the first one does not wait
            async for _ in chunks:
                rounds.append(n_rounds)

        timer = loop.call_soon(count)
        await asyncio.gather(*(speak() for _ in range(n_requests)))
        timer.cancel()
        assert len(rounds) == 9 * n_requests
        assert len(set(rounds)) == len(rounds)

    asyncio.run(run())


async def _rounds_to_first_audio(app: ASGIApp, path: str, body: bytes) -> int:
    """Send a request, and return in how many rounds of the event loop its first audio is sent."""
    loop = asyncio.get_running_loop()
    headers = [(b"host", b"x"), (b"content-type", b"application/json")]
    scope: Scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "server": ("127.0.0.1", 8080), "headers": headers,
        "state": {"is_broken": lambda: False, "client_has_left": lambda: False},
    }  # fmt: skip
    asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    over = asyncio.Event()
    n_rounds, n_of_first = 0, None

    def count() -> None:
        nonlocal n_rounds, timer
        n_rounds += 1
        timer = loop.call_soon(count)

    async def receive() -> Message:
        if not asked:
            await over.wait()
            return {"type": "http.disconnect"}
        return asked.pop()

    async def send(message: Message) -> None:
        nonlocal n_of_first
        if message["type"] == "http.response.body" and n_of_first is None:
            assert any(message["body"])
            n_of_first = n_rounds

    timer = loop.call_soon(count)
    await app(scope, receive, send)
    over.set()
    timer.cancel()
    assert n_of_first is not None
    return n_of_first


@pytest.mark.parametrize("path", ["/tts/stream", "/v1/audio/speech"])
def test_the_first_audio_needs_few_rounds_of_the_event_loop(path: str) -> None:
    """In each round the chunks of other requests and the frames of calls come first. Three are needed: for the call's
    task, for its engine's, and for the response's."""
    body = b'{"text": "Hello there.", "input": "Hello there.", "format": "pcm", "response_format": "pcm"}'

    async def run() -> None:
        server = Server(transport_settings(), Catalog([FakeEngine()]))
        app, _ = application(server)
        async with asyncio.TaskGroup() as group:
            server.registry.group, server.ready = group, True
            for _ in range(3):
                assert await _rounds_to_first_audio(app, path, body) == 3
            await server.registry.wait_empty()

    asyncio.run(asyncio.wait_for(run(), 10))
