import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from conformance import joined, speak
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.api import Chunk, EngineStats, Utterance
from telephony_tts.engines.fake.engine import FakeEngine, recognise, render, tone_hz
from telephony_tts.runtime.errors import EngineError

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Timer:
    """A sleep that takes no time and records its arguments in seconds."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)


def hear(engine: FakeEngine, text: str, speed: float = 1.0) -> list[Chunk]:
    return asyncio.run(speak(engine, Utterance("u", text, speed=speed)))


@pytest.mark.slow
@given(st.text(alphabet=LETTERS + " .", min_size=1, max_size=30), st.sampled_from([8_000, 16_000, 22_050, 24_000]))
def test_the_audio_can_be_read_back(text: str, rate_hz: int) -> None:
    if any(map(str.isalnum, text)):
        pcm = render(text, sample_rate_hz=rate_hz)
        assert recognise(pcm, LETTERS, sample_rate_hz=rate_hz) == text.replace(".", " ")


def test_any_part_of_the_audio_can_be_read_back() -> None:
    pcm = render("the quick fox")
    n_char = 24_000 * 60 // 1000
    assert recognise(pcm[4 * n_char : 9 * n_char], LETTERS) == "quick"


def test_tones_differ_and_pass_a_telephone_line() -> None:
    tones = {tone_hz(letter) for letter in LETTERS}
    assert len(tones) == len(LETTERS) and min(tones) >= 300 and max(tones) <= 3_400


def test_the_level_is_the_house_level() -> None:
    pcm = render("loud").astype(float) / 32768
    assert 20 * np.log10(np.sqrt(np.square(pcm).mean())) == pytest.approx(-20, abs=0.5)


@pytest.mark.parametrize("chunk_ms", [20, 100, 10_000])
def test_an_engine_speaks_what_render_says(chunk_ms: float) -> None:
    chunks = hear(FakeEngine(chunk_ms=chunk_ms, sample_rate_hz=16_000, ms_per_char=35), "Hello you")
    assert np.array_equal(joined(chunks), render("Hello you", sample_rate_hz=16_000, ms_per_char=35))
    assert max(len(chunk.pcm) for chunk in chunks) <= chunk_ms * 16


def test_timings_are_exact() -> None:
    text, pcm = "hi, 你好 Bob!", render("hi, 你好 Bob!")
    timings = [t for chunk in hear(FakeEngine(), text) for t in chunk.timings]
    assert [text[t.start_char : t.end_char] for t in timings] == ["hi", "你", "好", "Bob"]
    for timing in timings:
        word = text[timing.start_char : timing.end_char]
        assert np.array_equal(pcm[timing.start_sample : timing.end_sample], render(word))


def test_speed_shortens_every_character() -> None:
    assert len(joined(hear(FakeEngine(), "abcd", speed=2.0))) == len(render("abcd")) // 2


def test_first_audio_is_delayed_and_then_paced_as_configured() -> None:
    timer = Timer()
    engine = FakeEngine(first_audio_ms=250, speed=4.0, chunk_ms=100, sleep=timer.sleep)
    chunks = hear(engine, "abcdefgh")
    assert timer.waits_s[0] == pytest.approx(0.25)
    assert sum(timer.waits_s[1:]) == pytest.approx(sum(len(c.pcm) for c in chunks[1:]) / 24_000 / 4)


def test_without_pace_and_delay_it_never_waits() -> None:
    timer = Timer()
    hear(FakeEngine(sleep=timer.sleep), "abcdefgh")
    assert timer.waits_s == []


@pytest.mark.parametrize("n", [0, 1, 3])
def test_it_fails_after_the_configured_number_of_chunks(n: int) -> None:
    heard: list[Chunk] = []

    async def body() -> None:
        engine = FakeEngine(fail_after_chunks=n)
        with pytest.raises(EngineError, match=f"after {n} chunks"):
            async for chunk in engine.synthesize(Utterance("u", "abcdefghijklmnop")):
                heard.append(chunk)
        assert engine.n_live == 0

    asyncio.run(body())
    assert len(heard) == n


def delayed(sleep: Callable[[float], Awaitable[object]]) -> FakeEngine:
    return FakeEngine(first_audio_ms=1.0, sleep=sleep)


@pytest.mark.parametrize("make", [lambda sleep: FakeEngine(hangs=True), delayed])
def test_a_hanging_utterance_is_counted_and_can_be_cancelled(
    make: Callable[[Callable[[float], Awaitable[object]]], FakeEngine],
) -> None:
    async def forever(seconds: float) -> None:
        await asyncio.Event().wait()

    async def body() -> None:
        engine = make(forever)
        consumers = [asyncio.create_task(speak(engine, Utterance("u", "abc"))) for _ in range(3)]
        await asyncio.sleep(0)
        assert engine.n_live == engine.stats().n_running == 3
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        assert engine.n_live == 0

    asyncio.run(body())


def test_slots_go_to_the_earliest_deadline_and_a_cancelled_wait_takes_none() -> None:
    async def check() -> None:
        engine = FakeEngine(slots=1)
        begun: list[str] = []

        async def speak_all(name: str, deadline_ns: int) -> None:
            async for _ in engine.synthesize(Utterance(name, "a", deadline_ns=deadline_ns)):
                begun.append(name)

        holder = engine.synthesize(Utterance("holder", "a long sentence"))
        await anext(holder)
        waiting = [asyncio.create_task(speak_all(name, due)) for name, due in (("3", 3), ("1", 1), ("0", 0), ("2", 2))]
        await asyncio.sleep(0)
        stats = engine.stats()
        assert (stats.n_running, stats.n_queued, stats.load) == (1, 4, 6.0)
        waiting[2].cancel()
        await asyncio.gather(waiting[2], return_exceptions=True)
        assert begun == [] and engine.stats().n_queued == 3
        await holder.aclose()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert begun == ["1", "2", "3"]
        assert engine.stats() == EngineStats() and engine.counters()["utterances"] == 4

    asyncio.run(check())


def test_an_utterance_that_is_cancelled_when_it_gets_its_slot_gives_it_back() -> None:
    async def check() -> None:
        engine = FakeEngine(slots=1)
        holder = engine.synthesize(Utterance("holder", "a long sentence"))
        await anext(holder)
        second = asyncio.create_task(speak(engine, Utterance("second", "a")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(holder.aclose())
        await asyncio.sleep(0)  # the slot is the second one's, which has not run since
        second.cancel()
        await asyncio.gather(second, closing, return_exceptions=True)
        assert engine.stats() == EngineStats() and await speak(engine, Utterance("third", "a"))

    asyncio.run(check())


def test_without_slots_the_load_is_unknown() -> None:
    async def check() -> None:
        engine = FakeEngine()
        live = [engine.synthesize(Utterance(str(n), "a long sentence")) for n in range(50)]
        for one in live:
            await anext(one)
        assert engine.stats() == EngineStats(n_running=50) and engine.counters() == {}
        for one in live:
            await one.aclose()

    asyncio.run(check())
