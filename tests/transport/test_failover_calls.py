"""Calls whose engine fails, hangs or is overloaded: another one goes on, and the tones tell what was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stage import READY, RecordingLeg, run, until
from tone_text import tone_text

from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.engines.api import Chunk, EngineStats, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine, render
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import EngineError, ReplicaLost, UnsupportedText
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.call import Call
from telephony_tts.wire import messages as m

pytestmark = pytest.mark.slow

TEXT = "abc defg hij klmno pqr stuv wxyz"


class Actor(FakeEngine):
    """The fake engine with a fault: `dies_after` chunks, `hangs_after` chunks, or as `stats` say. `asked` is what it
    was asked to speak."""

    def __init__(self, name: str, *, dies_after: int | None = None, hangs_after: int | None = None,
                 crash: BaseException | None = None, streams_text: bool = False, stats: EngineStats | None = None,
                 clings: bool = False, languages: tuple[str, ...] = ("en",)) -> None:  # fmt: skip
        super().__init__(name=name, voice_names=(f"{name}-voice",), languages=languages)
        self.dies_after, self.hangs_after, self.crash = dies_after, hangs_after, crash
        self.streams_text = streams_text
        self.let_go = asyncio.Event()
        if not clings:
            self.let_go.set()
        self.asked: list[Utterance] = []
        self.n_held = 0
        self._stats = stats

    def stats(self) -> EngineStats:
        return self._stats or super().stats()

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.asked.append(utterance)
        self.n_held += 1
        n = 0
        try:
            async for chunk in self._speak(utterance):
                await self._fault(n)
                yield chunk
                n += 1
            await self._fault(n)
        finally:
            await self.let_go.wait()
            self.n_held -= 1

    async def _fault(self, n: int) -> None:
        if n == self.dies_after:
            raise self.crash or EngineError(f"{self.name} was told to fail")
        if n == self.hangs_after:
            await asyncio.Event().wait()

    async def _speak(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        if not self.streams_text or utterance.more is None:
            async for chunk in super().synthesize(utterance):
                yield chunk
            return
        yield Chunk(render(utterance.text), 24_000)
        is_last = False
        while not is_last:
            news = asyncio.Event()
            utterance.more.on_news(news.set)
            await news.wait()
            text, is_last = utterance.more.take()
            if any(char.isalnum() for char in text):
                yield Chunk(render(text), 24_000)


class Stage:
    """One call whose engines are the given ones; the first is the default."""

    def __init__(self, engines: Sequence[Actor], fallback: Sequence[str] | None = None, *, timeout_ms: int = 60,
                 after: int = 3, **settings: Any) -> None:  # fmt: skip
        self.engines = engines
        names = [engine.name for engine in engines[1:]] if fallback is None else fallback
        self.failover = Failover(engines, names, timeout_ms=timeout_ms, after=after, retry_s=30) if names else None
        speech = SessionSettings(first_clause_chars=0, pace="burst", **settings)
        self.call = Call(Session(speech, monotonic_ns()), Catalog(engines, failover=self.failover), "stream")
        self.leg = RecordingLeg()

    async def __aenter__(self) -> Stage:
        self.task = asyncio.create_task(self.call.run())
        await self.call.started.wait()
        self.call.frames_to_bot(self.leg, self.leg.encode)
        self.call.join_bot(self.leg, self.leg.encode, READY)
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self.engines:
            engine.let_go.set()
        self.call.finish(1000, "over")
        await self.task
        assert not self.call._runs
        assert [engine.n_held for engine in self.engines] == [0] * len(self.engines)

    async def over(self, n: int = 1) -> None:
        await until(lambda: len(self.leg.got(m.Done) + self.leg.got(m.ErrorEvent)) >= n, "the end of the turn")

    @property
    def heard(self) -> str:
        return tone_text(decode_ulaw(b"".join(frame.payload for frame in self.leg.got(m.Frame))))

    def engines_of(self, kind: type) -> list[Any]:
        return [event.engines for event in self.leg.got(kind)]


def n_failovers(engine: str, reason: str) -> float:
    return metrics.value("telephony_tts_failovers_total", engine=engine, reason=reason)


@pytest.mark.parametrize("crash", [None, ZeroDivisionError("a bug"), asyncio.CancelledError()])
@pytest.mark.parametrize("n_chunks", [0, 7])
def test_an_engine_that_dies_is_replaced_in_the_middle_of_its_sentence(
    n_chunks: int, crash: BaseException | None
) -> None:
    async def main() -> None:
        engines = Actor("one", dies_after=n_chunks, crash=crash), Actor("two")
        async with Stage(engines) as stage:
            before = n_failovers("one", "failed")
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            spoken = {0: TEXT, 7: "hij klmno pqr stuv wxyz"}[n_chunks]
            assert [utterance.text for utterance in engines[1].asked] == [spoken]
            assert engines[1].asked[0].voice == "two-voice"
            assert "".join(stage.heard.split()) in ("".join(TEXT.split()), "abcdefghihijklmnopqrstuvwxyz")
            names = ["two"] if n_chunks == 0 else ["one", "two"]
            assert stage.engines_of(m.SentenceSpoken) == stage.engines_of(m.Done) == [names]
            assert n_failovers("one", "failed") == before + 1

    run(main)


def test_an_engine_that_is_silent_is_replaced_in_time_though_it_does_not_let_go() -> None:
    async def main() -> None:
        engines = Actor("one", hangs_after=0, clings=True), Actor("two")
        async with Stage(engines, timeout_ms=60) as stage:
            begun_ns = monotonic_ns()
            stage.call.receive(m.Say(TEXT))
            await until(lambda: stage.leg.got(m.Frame), "speech of the second engine")
            assert 60 <= (monotonic_ns() - begun_ns) / 1e6 < 1000
            assert engines[0].n_held == 1, "it still clings to its slot"
            await stage.over()
            assert stage.heard == TEXT and stage.engines_of(m.Done) == [["two"]]
            assert n_failovers("one", "timeout") >= 1

    run(main)


def test_an_engine_that_hangs_in_the_middle_is_replaced() -> None:
    async def main() -> None:
        async with Stage((Actor("one", hangs_after=8), Actor("two"))) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert stage.engines_of(m.Done) == [["one", "two"]]
            assert "".join(stage.heard.split()).endswith("klmnopqrstuvwxyz")

    run(main)


@pytest.mark.parametrize(
    ("stats", "reason"), [(EngineStats(load=1.2), "overloaded"), (EngineStats(is_ready=False), "not_ready")]
)
def test_an_engine_that_cannot_take_it_is_not_asked(stats: EngineStats, reason: str) -> None:
    async def main() -> None:
        engines = Actor("one", stats=stats), Actor("two")
        async with Stage(engines) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert not engines[0].asked and stage.heard == TEXT
            assert n_failovers("one", reason) >= 1
        async with Stage((engines[0],), fallback=["one"]) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert stage.heard == TEXT, "without another engine it is asked in spite of that"

    run(main)


def test_after_some_failures_the_engine_is_not_asked_any_more() -> None:
    async def main() -> None:
        engines = Actor("one", dies_after=0), Actor("two")
        async with Stage(engines, after=3) as stage:
            for n in range(5):
                stage.call.receive(m.Say(f"abc def {'ghijk'[n]}."))
                await stage.over(n + 1)
            assert len(engines[0].asked) == 3 and len(engines[1].asked) == 5
            assert stage.failover is not None and stage.failover.open_circuits(monotonic_ns())["one"]
            engines[0].dies_after = None
            stage.failover._circuits["one"].retry_at_ns = 0
            for n in range(2):
                stage.call.receive(m.Say("abc def."))
                await stage.over(6 + n)
            assert len(engines[0].asked) == 5 and not any(stage.failover.open_circuits(monotonic_ns()).values())
            assert stage.engines_of(m.Done) == [["two"]] * 5 + [["one"]] * 2

    run(main)


def test_when_all_fail_the_turn_ends_with_the_last_error_and_the_call_goes_on() -> None:
    async def main() -> None:
        engines = Actor("one", dies_after=3), Actor("two", dies_after=0), Actor("three", dies_after=2)
        async with Stage(engines) as stage:
            stage.call.receive(m.Say(TEXT, "t"))
            await stage.over()
            (error,) = stage.leg.got(m.ErrorEvent)
            assert error.turn == "t" and error.code == "engine_failed" and "three" in error.message
            assert [len(engine.asked) for engine in engines] == [1, 1, 1]
            engines[1].dies_after = None
            stage.call.receive(m.Say("abc def."))
            await until(lambda: stage.leg.got(m.Done), "the next turn")

    run(main)


def test_a_mistake_of_the_bot_asks_no_other_engine() -> None:
    async def main() -> None:
        engines = Actor("one", dies_after=0, crash=UnsupportedText("not these letters")), Actor("two")
        async with Stage(engines) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert stage.leg.got(m.ErrorEvent)[0].code == "unsupported_text" and not engines[1].asked

    run(main)


def test_a_clear_during_the_change_ends_both_engines() -> None:
    async def main() -> None:
        engines = Actor("one", hangs_after=0, clings=True), Actor("two", hangs_after=2)
        async with Stage(engines, timeout_ms=20, fallback=["two"]) as stage:
            stage.call.receive(m.Say(TEXT))
            await until(lambda: stage.leg.got(m.Frame), "speech of the second engine")
            stage.call.receive(m.Clear())
            await until(lambda: engines[1].n_held == 0, "the second engine is free")
            n_frames = len(stage.leg.got(m.Frame))
            assert stage.leg.got(m.Cleared) and not stage.call._runs
            await asyncio.sleep(0.05)
            assert len(stage.leg.got(m.Frame)) == n_frames and not stage.leg.got(m.ErrorEvent)

    run(main)


@pytest.mark.parametrize("streams_text", [True, False])
@pytest.mark.parametrize("n_chunks", [0, 1])
def test_a_sentence_that_is_still_written_goes_to_the_next_engine(n_chunks: int, streams_text: bool) -> None:
    async def main() -> None:
        engines = Actor("one", dies_after=n_chunks, streams_text=True), Actor("two", streams_text=streams_text)
        async with Stage(engines, text_mode="interleaved") as stage:
            stage.call.receive(m.Text("abc defg hij klmno pqr", "t"))
            stage.call.receive(m.Text(" stuv", "t"))
            await until(lambda: stage.call._runs, "the sentence begins")
            await asyncio.sleep(0.02)
            stage.call.receive(m.Text(" wxyz", "t", last=True))
            await stage.over()
            assert [len(engine.asked) for engine in engines] == [1, 1]
            assert (engines[1].asked[0].more is not None) is (streams_text and n_chunks == 0)
            heard = "".join(stage.heard.split())
            assert heard.endswith("pqrstuvwxyz") and heard.startswith("abc")
            if n_chunks == 0:
                assert stage.heard == TEXT
            assert engines[0].asked[0].more is not None and engines[0].asked[0].more.take()[1]

    run(main)


def test_the_bots_slow_writing_is_not_the_engines_silence() -> None:
    async def main() -> None:
        engines = Actor("one", streams_text=True), Actor("two")
        async with Stage(engines, text_mode="interleaved", timeout_ms=20) as stage:
            stage.call.receive(m.Text("abc defg hij klmno pqr", "t"))
            stage.call.receive(m.Text(" stuv", "t"))
            await asyncio.sleep(0.1)
            stage.call.receive(m.Text(" wxyz", "t", last=True))
            await stage.over()
            assert not engines[1].asked and stage.heard == TEXT

    run(main)


def test_an_engine_that_ends_without_the_end_of_the_text_is_replaced() -> None:
    class Hasty(Actor):
        async def _speak(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
            yield Chunk(render(utterance.text), 24_000)

    async def main() -> None:
        engines = Hasty("one", streams_text=True), Actor("two")
        async with Stage(engines, text_mode="interleaved") as stage:
            stage.call.receive(m.Text("abc defg hij klmno pqr", "t"))
            stage.call.receive(m.Text(" stuv", "t"))
            await asyncio.sleep(0.02)
            stage.call.receive(m.Text(" wxyz", "t", last=True))
            await stage.over()
            assert stage.engines_of(m.Done) == [["one", "two"]]
            assert "".join(stage.heard.split()).endswith("wxyz")

    run(main)


def test_without_a_fallback_the_error_ends_the_turn_and_no_engine_is_named() -> None:
    async def main() -> None:
        engines = Actor("one"), Actor("two")
        async with Stage(engines, fallback=[]) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert stage.engines_of(m.Done) == stage.engines_of(m.SentenceSpoken) == [None]
            engines[0].dies_after = 0
            stage.call.receive(m.Say(TEXT))
            await stage.over(2)
            assert stage.leg.got(m.ErrorEvent)[0].code == "engine_failed" and not engines[1].asked

    run(main)


def test_the_level_of_the_second_voice_is_its_own() -> None:
    class Loud(Actor):
        def __init__(self) -> None:
            super().__init__("two")
            (voice,) = self.voices
            self.voices = (replace(voice, gain_db=6.0),)

    async def main() -> None:
        async with Stage((Actor("one", dies_after=7), Loud())) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            pcm = decode_ulaw(b"".join(frame.payload for frame in stage.leg.got(m.Frame))).astype(float)
            first, last = (np.sqrt(np.mean(np.square(part))) for part in (pcm[:1400], pcm[-1900:-480]))
            assert 1.7 < last / first < 2.3

    run(main)


class Replicated(Actor):
    """Replicas of one engine. The first `n_lost` of them are lost after so many chunks as `dies_after` says."""

    def __init__(self, n_lost: int, dies_after: int, **how: Any) -> None:
        super().__init__("one", dies_after=dies_after, crash=ReplicaLost("a replica is lost"), **how)
        self.n_lost = n_lost
        self.is_last = False

    async def _fault(self, n: int) -> None:
        if len(self.asked) <= self.n_lost:
            if n == self.dies_after and self.is_last:
                self._stats = EngineStats(is_ready=False)
            await super()._fault(n)


@pytest.mark.parametrize("fallback", [[], ["two"]])
def test_another_replica_goes_on_from_the_next_word_with_the_same_voice(fallback: list[str]) -> None:
    async def main() -> None:
        engines = Replicated(1, 7), Actor("two")
        metrics.REPLICAS_LOST.labels(engine="one")  # without a lost replica the metric has no sample
        before = metrics.value("telephony_tts_replicas_lost_total", engine="one")
        async with Stage(engines, fallback=fallback, timeout_ms=1_000) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert [utterance.text for utterance in engines[0].asked] == [TEXT, "hij klmno pqr stuv wxyz"]
            assert {utterance.voice for utterance in engines[0].asked} == {"one-voice"} and not engines[1].asked
            # The word that was broken off when a part of it was sent already is said again (PROTOCOL.md 6.14).
            assert "".join(stage.heard.split()) in ("".join(TEXT.split()), "abcdefghihijklmnopqrstuvwxyz")
            assert stage.engines_of(m.Done) == stage.engines_of(m.SentenceSpoken) == [["one", "one#2"]]
            assert not stage.leg.got(m.ErrorEvent)
            if stage.failover is not None:
                assert stage.failover._circuits["one"].n_failures == 0
        assert metrics.value("telephony_tts_replicas_lost_total", engine="one") == before + 1

    run(main)


def test_a_sentence_that_loses_many_replicas_fails() -> None:
    async def main() -> None:
        engine = Replicated(99, 2)
        async with Stage((engine,)) as stage:
            stage.call.receive(m.Say(TEXT, "t"))
            await stage.over()
            (error,) = stage.leg.got(m.ErrorEvent)
            assert error.code == "engine_failed" and error.retryable and len(engine.asked) == 4
            engine.n_lost = 0
            stage.call.receive(m.Say(TEXT))
            await until(lambda: stage.leg.got(m.Done), "the next turn")

    run(main)


def test_without_another_replica_the_next_engine_goes_on() -> None:
    async def main() -> None:
        engines = Replicated(1, 7), Actor("two")
        engines[0].is_last = True
        async with Stage(engines) as stage:
            stage.call.receive(m.Say(TEXT))
            await stage.over()
            assert len(engines[0].asked) == 1 and stage.engines_of(m.Done) == [["one", "two"]]

    run(main)
