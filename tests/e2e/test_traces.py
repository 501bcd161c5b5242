"""Spans of turns, as a collector gets them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusOnWire
from otlp_collector import Collector, attributes, collector
from rig import Rig, Tones, run, serving, until
from served import process
from websockets.asyncio.client import connect

from telephony_tts.app.tracing import TurnTracing
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.runtime.errors import EngineError
from telephony_tts.runtime.metrics import render

pytestmark = pytest.mark.slow
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_NS_PER_MS = 1_000_000


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def taking() -> Iterator[Collector]:
    with collector() as found:
        yield found


@asynccontextmanager
async def traced(taking: Collector, engine: Tones | None = None, share: float = 1.0) -> AsyncIterator[Rig]:
    """A server whose turns are traced. Behind the context the collector has their spans."""
    tracing = TurnTracing(taking.endpoint, share, "1.2.3")
    try:
        async with serving(engine) as rig:
            rig.server.registry.tracing = tracing
            yield rig
    finally:
        await asyncio.to_thread(tracing.close)
        await until(lambda: not taking.n_open, "the collector closes its connections")


def test_a_turn_is_a_span_with_its_stages_as_children(taking: Collector) -> None:
    async def scenario() -> None:
        async with traced(taking, Tones(first_audio_ms=60)) as rig, rig.bot(call="c7", audio="base64") as bot:
            await bot.send({"type": "text", "turn": "t1", "text": "Good mor"})
            await asyncio.sleep(0.2)  # the server may read the first part later than the second
            await bot.send({"type": "text", "turn": "t1", "text": "ning.", "last": True})
            done = await bot.event("done")
            assert done["latency"]["first_audio_ms"] >= 60

    began_ns = time.time_ns()
    run(scenario)
    (turn,) = taking.turns()
    stages = taking.children(turn)
    assert [span.name for span in stages] == ["text", "queue", "first_audio", "play_out"]
    length_ms = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / _NS_PER_MS for span in stages}
    assert length_ms["text"] >= 100 and length_ms["first_audio"] >= 60 and length_ms["play_out"] >= 100
    assert began_ns <= turn.start_time_unix_nano <= turn.end_time_unix_nano <= time.time_ns()
    edges = [turn.start_time_unix_nano, *(span.end_time_unix_nano for span in stages)]
    assert [span.start_time_unix_nano for span in stages] == edges[:-1], "each begins where the one before it ends"
    assert edges[-1] == turn.end_time_unix_nano
    facts = attributes(turn)
    assert facts["telephony.call"] == "c7" and facts["telephony.turn"] == "t1" and facts["telephony.door"] == "native"
    assert facts["telephony.outcome"] == "done" and facts["telephony.text_chars"] == len("Good morning.")
    assert facts["telephony.audio_ms"] > 100 and facts["telephony.first_audio_ms"] >= 60
    assert "Good" not in str(taking.spans), "the text is private"
    assert taking.resources[0]["service.name"] == "telephony-tts" and taking.resources[0]["service.version"] == "1.2.3"
    assert not turn.parent_span_id


def test_the_bots_span_of_the_handshake_is_the_parent_and_that_of_a_turn_goes_before(taking: Collector) -> None:
    async def scenario() -> None:
        async with traced(taking) as rig, rig.bot(headers={"traceparent": PARENT}) as bot:
            await bot.say("One.", "t1")
            await bot.event("done", turn="t1")
            await bot.send({"type": "say", "text": "Two.", "turn": "t2", "traceparent": OTHER})
            await bot.event("done", turn="t2")
            await bot.send({"type": "text", "text": "Thr", "turn": "t3", "traceparent": OTHER})
            await bot.send({"type": "text", "text": "ee.", "turn": "t3", "traceparent": PARENT, "last": True})
            await bot.event("done", turn="t3")
            for wrong in ("nonsense", 7, PARENT + "0", PARENT.replace("00-0", "ff-0")):
                await bot.send({"type": "say", "text": "Four.", "traceparent": wrong})
                await bot.event("done")

    run(scenario)
    parents = [(span.trace_id.hex(), span.parent_span_id.hex()) for span in taking.turns()]
    other = OTHER.split("-")[1:3]
    assert parents[:3] == [(TRACE, SPAN), tuple(other), tuple(other)]
    assert parents[3:] == [(TRACE, SPAN)] * 4, "a wrong one counts as none, and the turn is spoken"
    assert all({span.trace_id for span in taking.children(turn)} == {turn.trace_id} for turn in taking.turns())


def test_the_bot_decides_by_its_flag_and_the_share_decides_for_the_others(taking: Collector) -> None:
    async def scenario() -> None:
        async with traced(taking, share=0.0) as rig:
            for headers in ({}, {"traceparent": PARENT}, {"traceparent": OTHER[:-2] + "00"}):
                async with rig.bot(headers=headers) as bot:
                    await bot.say("One.")
                    await bot.event("done")

    run(scenario)
    assert [span.trace_id.hex() for span in taking.turns()] == [TRACE]


def test_turns_that_were_interrupted_or_failed_end_in_their_stage(taking: Collector) -> None:
    class Failing(Tones):
        async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
            if "fail" in utterance.text:
                raise EngineError("no voice today")
            async for chunk in super().synthesize(utterance):
                yield chunk

    async def scenario() -> None:
        async with traced(taking, Failing(first_audio_ms=10)) as rig, rig.bot() as bot:
            await bot.say("A long sentence that the caller interrupts.", "t1")
            await bot.event("started")
            await bot.send({"type": "clear"})
            await bot.event("cleared")
            await bot.say("This will fail.", "t2")
            await bot.event("error")
            await bot.send({"type": "text", "text": "Never comp", "turn": "t3"})
            await bot.send({"type": "clear"})
            await bot.event("cleared", turn="t3")

    run(scenario)
    interrupted, failed, unspoken = taking.turns()
    assert [span.name for span in taking.children(interrupted)] == ["text", "queue", "first_audio", "play_out"]
    facts = attributes(interrupted)
    assert facts["telephony.outcome"] == "cleared" and facts["telephony.reason"] == "clear"
    assert "telephony.heard_ms" in facts
    assert failed.status.code == StatusOnWire.STATUS_CODE_ERROR and failed.status.message == "no voice today"
    assert attributes(failed)["telephony.error"] == "engine_failed"
    assert [span.name for span in taking.children(failed)] == ["text", "queue"]
    assert [span.name for span in taking.children(unspoken)] == ["text"]


def test_bots_of_other_vendors_and_http_requests_have_the_header_too(taking: Collector) -> None:
    async def scenario() -> None:
        async with traced(taking) as rig:
            headers = {"traceparent": PARENT}
            async with connect(
                rig.url("/v1/speak", encoding="linear16", sample_rate=8000), additional_headers=headers, proxy=None
            ) as socket:
                await socket.send('{"type":"Speak","text":"Hello."}')
                await socket.send('{"type":"Flush"}')
                async for message in socket:
                    if isinstance(message, str) and json.loads(message)["type"] == "Flushed":
                        break
                await socket.send('{"type":"Close"}')
            request = urllib.request.Request(
                f"http://127.0.0.1:{rig.port}/v1/audio/speech", b'{"input":"Hello.","voice":"alloy"}',
                {"Content-Type": "application/json", "traceparent": OTHER},
            )  # fmt: skip
            assert len(await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())) > 1000

    run(scenario)
    found = [(span.trace_id.hex(), attributes(span)["telephony.door"]) for span in taking.turns()]
    assert found == [(TRACE, "deepgram"), (OTHER.split("-")[1], "openai")]


def test_exemplars_of_a_traced_turn_name_its_trace(taking: Collector) -> None:
    async def scenario() -> None:
        async with traced(taking) as rig, rig.bot(call="exemplary", audio="binary") as bot:
            await bot.send({"type": "say", "text": "One.", "turn": "t9", "traceparent": PARENT})
            await bot.event("done")

    run(scenario)
    page = render("application/openmetrics-text; version=1.0.0")[0].decode()
    (found,) = re.findall(r'first_audio_ms_bucket.* # \{(.*call="exemplary".*)\}', page)
    assert set(found.split(",")) == {'call="exemplary"', 'turn="t9"', f'trace_id="{TRACE}"'}


def test_a_collector_that_is_away_or_refuses_disturbs_no_turn(taking: Collector) -> None:
    async def scenario(endpoint: str) -> None:
        tracing = TurnTracing(endpoint, 1.0, "1")
        async with serving() as rig:
            rig.server.registry.tracing = tracing
            async with rig.bot() as bot:
                for _ in range(3):
                    await bot.say("One.")
                    await bot.event("done")
        closing = asyncio.create_task(asyncio.to_thread(tracing.close))
        await asyncio.wait_for(closing, 20)
        await until(lambda: not taking.n_open, "the collector closes its connections")

    run(lambda: scenario("http://127.0.0.1:9/v1/traces"))
    taking.status = 400
    run(lambda: scenario(taking.endpoint))
    assert taking.n_requests and not taking.spans


def test_without_an_endpoint_there_is_no_tracing() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.bot(headers={"traceparent": PARENT}) as bot:
            await bot.send({"type": "say", "text": "One.", "traceparent": OTHER})
            await bot.event("done")
            (call,) = rig.server.registry.calls()
            assert call._journal.traces is None

    run(scenario)


def test_serve_sends_the_last_spans_before_it_ends(taking: Collector) -> None:
    with process("--set", f"tracing.endpoint={taking.endpoint}") as (served, port):

        async def scenario() -> None:
            async with connect(f"ws://127.0.0.1:{port}/v1/stream?audio=none", proxy=None) as socket:
                await socket.send('{"type":"say","text":"One."}')
                async for message in socket:
                    if json.loads(message)["type"] == "done":
                        return

        asyncio.run(scenario())
        served.send_signal(signal.SIGTERM)
        assert served.wait(20) == 0
    assert [attributes(span)["telephony.outcome"] for span in taking.turns()] == ["done"]
