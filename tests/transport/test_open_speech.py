"""Sentences that are spoken while they are written, by an engine that streams text and by one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stage import READY, RecordingLeg, run, until

from telephony_tts.engines.api import Chunk, TextFeed, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine, render
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import EngineError
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.call import Call
from telephony_tts.wire import messages as m

BEGINNING = "I am looking at your account now, please"
REST = " stay with me."


class Streaming(FakeEngine):
    """Speaks its tones while the text comes; `given` is what each utterance was given, in pieces."""

    def __init__(self, *, fails_at: str = "", ends_at: str = "") -> None:
        super().__init__(ms_per_char=5)
        self.streams_text = True
        self.given: list[list[str]] = []
        self.feeds: list[TextFeed] = []
        self._fails_at = fails_at
        self._ends_at = ends_at

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.n_live += 1
        try:
            pieces = [utterance.text]
            self.given.append(pieces)
            yield Chunk(render(utterance.text, ms_per_char=5), 24_000)
            if utterance.more is None:
                return
            self.feeds.append(utterance.more)
            is_last = False
            while not is_last:
                news = asyncio.Event()
                utterance.more.on_news(news.set)
                await news.wait()
                text, is_last = utterance.more.take()
                pieces.append(text)
                if self._fails_at and self._fails_at in text:
                    raise EngineError("told to fail")
                if self._ends_at and self._ends_at in text:
                    return
                if any(char.isalnum() for char in text):
                    yield Chunk(render(text, ms_per_char=5), 24_000)
        finally:
            self.n_live -= 1


class Whole(FakeEngine):
    """Records what it was asked to say."""

    def __init__(self) -> None:
        super().__init__(ms_per_char=5)
        self.asked: list[Utterance] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.asked.append(utterance)
        async for chunk in super().synthesize(utterance):
            yield chunk


async def begin(engine: FakeEngine, *, text_timeout_ms: int = 60_000) -> tuple[Call, RecordingLeg, asyncio.Task[None]]:
    settings = SessionSettings(first_clause_chars=0, text_mode="interleaved", text_timeout_ms=text_timeout_ms)
    call = Call(Session(settings, monotonic_ns()), Catalog([engine]), "stream")
    task = asyncio.create_task(call.run())
    await call.started.wait()
    leg = RecordingLeg()
    call.frames_to_bot(leg, leg.encode)
    call.join_bot(leg, leg.encode, READY)
    return call, leg, task


async def end(call: Call, task: asyncio.Task[None]) -> None:
    call.finish(1000, "over")
    await task
    assert not call._runs


def test_speech_begins_before_its_sentence_ends() -> None:
    async def main() -> None:
        engine = Streaming()
        call, leg, task = await begin(engine)
        call.receive(m.Text(BEGINNING))
        await until(lambda: leg.got(m.Frame), "speech")
        assert leg.got(m.Started) and not leg.got(m.SentenceSpoken) and engine.n_live == 1
        call.receive(m.Text(REST, last=True))
        await until(lambda: leg.got(m.Done), "the end of the turn")
        assert "".join(engine.given[0]) == BEGINNING + REST and len(engine.given) == 1
        (spoken,) = leg.got(m.SentenceSpoken)
        assert spoken.text == BEGINNING + REST
        assert abs(spoken.end_ms - 5 * len(spoken.text)) <= 2
        assert engine.n_live == 0 and not call._runs
        await end(call, task)

    run(main)


def test_a_clear_while_the_engine_waits_for_text_frees_it_and_ends_its_text() -> None:
    async def main() -> None:
        engine = Streaming()
        call, leg, task = await begin(engine)
        call.receive(m.Text(BEGINNING, "a"))
        await until(lambda: engine.feeds, "the engine waits for text")
        given = engine.given[0][:]
        call.receive(m.Clear())
        await until(lambda: engine.n_live == 0, "the slot is free")
        assert leg.got(m.Cleared)[0].turn == "a"
        assert engine.feeds[0].take()[1], "the engine must not wait for ever"
        call.receive(m.Text(REST, "a", last=True))
        call.receive(m.Say("Next."))
        await until(lambda: leg.got(m.Done), "the next turn")
        assert engine.given == [given, ["Next."]] and engine.feeds[0].take() == ("", True)
        await end(call, task)

    run(main)


def test_text_of_a_silent_bot_is_spoken_after_the_timeout() -> None:
    async def main() -> None:
        engine = Streaming()
        call, leg, task = await begin(engine, text_timeout_ms=20)
        text = "I am looking at your account"
        call.receive(m.Text(text))
        await until(lambda: leg.got(m.SentenceSpoken), "the sentence ends without its end")
        assert leg.got(m.SentenceSpoken)[0].text == text == "".join(engine.given[0])
        assert engine.n_live == 0
        await end(call, task)

    run(main)


def test_an_engine_that_fails_in_the_middle_ends_the_turn_and_not_the_call() -> None:
    async def main() -> None:
        for engine, said in (
            (Streaming(fails_at="account"), "told to fail"),
            (Streaming(ends_at="your"), "before it had the end of its text"),
        ):
            call, leg, task = await begin(engine)
            for word in (BEGINNING + REST).split(" "):
                call.receive(m.Text(word + " ", "a"))
                await asyncio.sleep(0)
            await until(lambda leg=leg: leg.got(m.ErrorEvent), "the failure")
            (error,) = leg.got(m.ErrorEvent)
            assert error.turn == "a" and said in error.message and not error.fatal
            assert engine.n_live == 0 and engine.feeds[0].take()[1]
            call.receive(m.Text("late words for it", "a", last=True))
            call.receive(m.Say("Next."))
            await until(lambda leg=leg: leg.got(m.Done), "the next turn")
            assert engine.given[1] == ["Next."]
            await end(call, task)

    run(main)


def test_a_call_that_ends_leaves_no_engine_waiting_for_text() -> None:
    async def main() -> None:
        for engine in (Streaming(), Whole()):
            call, leg, task = await begin(engine)
            call.receive(m.Text(BEGINNING))
            await until(lambda call=call: call._runs, "an open sentence")
            await asyncio.sleep(0)
            call.media_left(leg, "hangup")
            await task
            assert engine.n_live == 0 and not call._runs

    run(main)


def test_an_engine_without_text_streaming_gets_whole_sentences() -> None:
    async def main() -> None:
        engine = Whole()
        call, leg, task = await begin(engine)
        call.receive(m.Text(BEGINNING, "a"))
        await until(lambda: call._runs, "an open sentence")
        await asyncio.sleep(0.01)
        assert engine.asked == [] and not leg.got(m.Frame)
        call.receive(m.Text(REST + " It costs $5.", "a", last=True))
        await until(lambda: leg.got(m.Done), "the end of the turn")
        assert [utterance.text for utterance in engine.asked] == [BEGINNING + REST, "It costs five dollars."]
        assert all(utterance.more is None for utterance in engine.asked)
        await end(call, task)

    run(main)


def test_an_open_sentence_that_is_cleared_is_never_asked_of_such_an_engine() -> None:
    async def main() -> None:
        engine = Whole()
        call, leg, task = await begin(engine)
        call.receive(m.Text(BEGINNING, "a"))
        await until(lambda: call._runs, "an open sentence")
        await asyncio.sleep(0)
        call.receive(m.Clear())
        call.receive(m.Text(REST, "a", last=True))
        call.receive(m.Say("Next."))
        await until(lambda: leg.got(m.Done), "the next turn")
        assert [utterance.text for utterance in engine.asked] == ["Next."]
        await end(call, task)

    run(main)


def test_the_bots_writing_is_not_counted_as_the_engines_work() -> None:
    def n_measured() -> float:
        return metrics.REGISTRY.get_sample_value("telephony_tts_synthesis_rtf_count", {"engine": "fake"}) or 0.0

    async def main() -> None:
        engine = Streaming()
        call, leg, task = await begin(engine)
        before = n_measured()
        call.receive(m.Text(BEGINNING))
        await until(lambda: leg.got(m.Frame), "speech")
        call.receive(m.Text(REST + " Thank you.", last=True))
        await until(lambda: leg.got(m.Done), "the end of the turn")
        assert len(engine.given) == 2 and n_measured() == before + 1
        await end(call, task)

    run(main)
