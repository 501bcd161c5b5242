"""The engine contract in executable form: every engine passes `assert_keeps_the_contract`, the fake one too.

Each check gets a started engine and must leave it idle. A failure names the check it came from.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from clean_run import PATIENCE

from telephony_tts.engines.api import Chunk, Engine, EngineStats, Pcm, Utterance
from telephony_tts.runtime.errors import EngineError, UnknownVoice

HANG_S = 60.0 * PATIENCE


@dataclass(frozen=True)
class Subject:
    """The texts for the engine under test: two different sentences that give several chunks each."""

    sentence: str = "Thank you for calling, how can I help you today?"
    neighbour: str = "Your parcel left the depot on Tuesday morning."
    unspeakable: tuple[str, ...] = ("", " \n", "…", "?!", "😀", "—😀 ")
    max_s_of_endless_word: float = 60.0
    min_correlation: float = 1.0
    """The least correlation of two renderings of a text. Below 1 only for an engine whose samples vary inaudibly."""
    n_most: int = 24
    """The number of utterances to cancel, more than the engine has slots or threads. Half as many speak at once."""
    changes_speed: bool = True
    """False for an engine whose server has one speed: then the length must stay the same."""
    times_words: bool = True
    """False for an engine whose server tells nothing of its words: then no timing may be made up."""

    def same(self, a: Pcm, b: Pcm) -> bool:
        """Whether two renderings are the same audio: bit for bit, unless the engine is known to vary."""
        if len(a) != len(b) or self.min_correlation == 1.0:
            return np.array_equal(a, b)
        return bool(np.corrcoef(a, b)[0, 1] >= self.min_correlation)


def assert_keeps_the_contract(make_engine: Callable[[], Engine], subject: Subject | None = None) -> None:
    """Run every check on one engine, which starts and closes once; then check that it has left nothing behind."""
    asyncio.run(_check(make_engine, subject or Subject()))


async def speak(engine: Engine, utterance: Utterance) -> list[Chunk]:
    return [chunk async for chunk in engine.synthesize(utterance)]


def joined(chunks: list[Chunk]) -> Pcm:
    return np.concatenate([chunk.pcm for chunk in chunks]) if chunks else np.zeros(0, np.int16)


def _is_idle(engine: Engine) -> bool:
    """Whether no work is left, at however many replicas. Orphans (`engines.others`) are no work here, but load."""
    stats = replace(engine.stats(), n_replicas=1)
    return (replace(stats, load=0.0) if getattr(engine, "n_orphans", 0) else stats) == EngineStats()


async def _check(make_engine: Callable[[], Engine], subject: Subject) -> None:
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    engine = make_engine()
    await asyncio.wait_for(engine.start(), HANG_S)
    for check in CHECKS:
        try:
            await asyncio.wait_for(check(engine, subject), HANG_S)
            assert _is_idle(engine), "work is left behind"
        except BaseException as failure:
            failure.add_note(f"conformance check: {check.__name__}")
            raise
    await close_ends_a_stream_that_is_open(engine, subject)
    await asyncio.wait_for(engine.close(), HANG_S)
    await asyncio.wait_for(engine.close(), HANG_S)
    assert _is_idle(engine)
    assert asyncio.all_tasks() == tasks, "a task outlives the engine"
    left = set(threading.enumerate()) - threads  # a thread of an earlier test may end meanwhile
    left = {thread for thread in left if "_poll_wrapper" not in thread.name}  # gRPC's own, one for the whole process
    assert not left, f"a thread outlives the engine: {left}"


async def chunks_are_mono_int16_at_the_declared_rate(engine: Engine, subject: Subject) -> None:
    default = engine.voices[0]
    chunks = await speak(engine, Utterance("u", subject.sentence))
    assert len(chunks) > 2
    for chunk in chunks:
        assert chunk.pcm.dtype == np.int16 and chunk.pcm.ndim == 1
        assert 0 < len(chunk.pcm) <= chunk.sample_rate_hz
        assert chunk.sample_rate_hz == default.sample_rate_hz
    assert default.engine == engine.name
    assert np.square(joined(chunks).astype(float)).mean() > 100**2, "this is silence"


async def every_voice_speaks(engine: Engine, subject: Subject) -> None:
    for voice in engine.voices:
        utterance = Utterance("u", subject.sentence, voice=voice.name)
        try:
            engine.check(utterance)
        except EngineError:
            continue  # a voice of another script
        assert len(joined(await speak(engine, utterance))) > voice.sample_rate_hz // 2, voice.name


async def same_text_and_seed_give_the_same_samples(engine: Engine, subject: Subject) -> None:
    for seed in (None, 7):
        utterance = Utterance("u", subject.sentence, seed=seed)
        first = joined(await speak(engine, utterance))
        await speak(engine, Utterance("between", subject.neighbour, speed=1.3))
        assert subject.same(first, joined(await speak(engine, replace(utterance, id="other", call="c"))))


async def speed_changes_the_length(engine: Engine, subject: Subject) -> None:
    slow, normal, fast = [
        len(joined(await speak(engine, Utterance("u", subject.sentence, speed=speed)))) for speed in (0.5, 1.0, 2.0)
    ]
    if subject.changes_speed:
        assert slow > 1.4 * normal > 1.4 * 1.4 * fast
    else:
        assert slow == normal == fast


async def timings_are_ordered_and_inside(engine: Engine, subject: Subject) -> None:
    for text in (subject.sentence, subject.neighbour, " ".join([subject.sentence, subject.neighbour] * 4)):
        chunks = await speak(engine, Utterance("u", text))
        timings = [timing for chunk in chunks for timing in chunk.timings]
        if not subject.times_words:
            assert timings == []
            continue
        assert _letters("".join(text[t.start_char : t.end_char] for t in timings)) == _letters(text)
        n_samples = len(joined(chunks))
        char = sample = 0
        for timing in timings:
            assert char <= timing.start_char < timing.end_char <= len(text)
            assert sample <= timing.start_sample < timing.end_sample <= n_samples
            char, sample = timing.end_char, timing.end_sample
        assert timings[0].start_sample < 0.05 * chunks[0].sample_rate_hz
        assert n_samples - timings[-1].end_sample < 0.25 * chunks[0].sample_rate_hz


async def a_words_timing_comes_no_later_than_its_sound(engine: Engine, subject: Subject) -> None:
    n_before = 0
    for chunk in await speak(engine, Utterance("u", f"{subject.sentence} {subject.neighbour}")):
        assert all(timing.start_sample >= n_before for timing in chunk.timings)
        n_before += len(chunk.pcm)


async def closing_at_any_chunk_frees_the_slot(engine: Engine, subject: Subject) -> None:
    utterance = Utterance("u", subject.sentence)
    n_chunks = len(await speak(engine, utterance))
    for n_taken in range(n_chunks + 2):
        stream = engine.synthesize(utterance)
        for _ in range(n_taken):
            await anext(stream, None)
        await stream.aclose()
        assert _is_idle(engine), f"after {n_taken} chunks"


async def cancelling_the_consumer_frees_the_slot(engine: Engine, subject: Subject) -> None:
    long_text = " ".join([subject.sentence] * 20)
    for n_turns in range(30):
        consumer = asyncio.create_task(speak(engine, Utterance("u", long_text)))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
        assert _is_idle(engine), f"cancelled after {n_turns} turns of the loop"


async def interleaved_utterances_equal_each_alone(engine: Engine, subject: Subject) -> None:
    a, b = Utterance("a", subject.sentence, seed=1), Utterance("b", subject.neighbour, seed=2)
    alone = joined(await speak(engine, a)), joined(await speak(engine, b))
    streams = engine.synthesize(a), engine.synthesize(b)
    heard: tuple[list[Chunk], list[Chunk]] = ([], [])
    open_ones = {0, 1}
    while open_ones:
        for i in sorted(open_ones):
            chunk = await anext(streams[i], None)
            if chunk is None:
                open_ones.remove(i)
            else:
                heard[i].append(chunk)
    for i in (0, 1):
        assert subject.same(joined(heard[i]), alone[i])


async def many_at_once_equal_each_alone(engine: Engine, subject: Subject) -> None:
    texts = [f"{subject.sentence} {subject.neighbour}", subject.neighbour, subject.sentence] * (subject.n_most // 6)
    alone = {text: joined(await speak(engine, Utterance("alone", text))) for text in set(texts)}
    together = await asyncio.gather(*(speak(engine, Utterance(str(i), text)) for i, text in enumerate(texts)))
    for text, chunks in zip(texts, together, strict=True):
        assert subject.same(joined(chunks), alone[text])


async def cancelling_one_leaves_its_neighbour_whole(engine: Engine, subject: Subject) -> None:
    neighbour = Utterance("b", subject.neighbour)
    alone = joined(await speak(engine, neighbour))
    for n_taken in (1, 2):
        cancelled, kept = engine.synthesize(Utterance("a", subject.sentence * 10)), engine.synthesize(neighbour)
        heard = [await anext(kept)]
        for _ in range(n_taken):
            await anext(cancelled)
        await cancelled.aclose()
        heard += [chunk async for chunk in kept]
        assert subject.same(joined(heard), alone)


async def unspeakable_text_yields_nothing(engine: Engine, subject: Subject) -> None:
    for text in subject.unspeakable:
        engine.check(Utterance("u", text))
        assert await speak(engine, Utterance("u", text)) == [], repr(text)


async def hostile_text_is_survived(engine: Engine, subject: Subject) -> None:
    for text in ("a\0b", "lone \ud800 surrogate", "[x](/y/) <speak>[[z]]", "e\u0301 \u200d \u202e x", "\x1b[2J b" * 3):
        try:
            chunks = await speak(engine, Utterance("u", text))
        except EngineError:
            continue
        assert all(t.end_char <= len(text) for chunk in chunks for t in chunk.timings), repr(text)


async def unknown_voice_raises(engine: Engine, subject: Subject) -> None:
    utterance = Utterance("u", subject.sentence, voice="no-such-voice")
    with pytest.raises(UnknownVoice, match="no-such-voice"):
        engine.check(utterance)
    with pytest.raises(UnknownVoice):
        await speak(engine, utterance)


async def ten_thousand_characters_are_bounded(engine: Engine, subject: Subject) -> None:
    stream = engine.synthesize(Utterance("u", (subject.sentence + " ") * (10_000 // len(subject.sentence))))
    for _ in range(5):
        assert len((await anext(stream)).pcm) > 0
    await stream.aclose()
    assert _is_idle(engine)
    chunks = await speak(engine, Utterance("u", "A" * 10_000))
    assert len(joined(chunks)) <= subject.max_s_of_endless_word * chunks[0].sample_rate_hz


async def many_cancels_leave_it_working(engine: Engine, subject: Subject) -> None:
    """Cancel more utterances than the engine has slots or threads: a slot lost each time would show."""
    utterance = Utterance("u", subject.sentence)
    alone = joined(await speak(engine, utterance))
    for _ in range(subject.n_most):
        stream = engine.synthesize(utterance)
        await anext(stream)
        await stream.aclose()
    assert subject.same(joined(await speak(engine, utterance)), alone)


async def close_ends_a_stream_that_is_open(engine: Engine, subject: Subject) -> None:
    """The last check: close the engine under a consumer, which must get the end or an EngineError."""
    stream = engine.synthesize(Utterance("u", " ".join([subject.sentence] * 100)))
    await anext(stream)
    await asyncio.wait_for(engine.close(), HANG_S)
    with pytest.raises(EngineError):
        async for _ in stream:
            pass
    assert _is_idle(engine)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


CHECKS: tuple[Callable[[Engine, Subject], Awaitable[None]], ...] = (
    chunks_are_mono_int16_at_the_declared_rate,
    every_voice_speaks,
    same_text_and_seed_give_the_same_samples,
    speed_changes_the_length,
    timings_are_ordered_and_inside,
    a_words_timing_comes_no_later_than_its_sound,
    closing_at_any_chunk_frees_the_slot,
    cancelling_the_consumer_frees_the_slot,
    interleaved_utterances_equal_each_alone,
    many_at_once_equal_each_alone,
    cancelling_one_leaves_its_neighbour_whole,
    unspeakable_text_yields_nothing,
    hostile_text_is_survived,
    unknown_voice_raises,
    ten_thousand_characters_are_bounded,
    many_cancels_leave_it_working,
)
