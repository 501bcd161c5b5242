"""`OtherEngine` over a server that a test controls: slots, orphans, deadlines, and what is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from clean_run import until
from others_rig import settings, speak

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.others.other_engine import OtherEngine
from telephony_tts.engines.others.speech_request import SpeechRequest
from telephony_tts.engines.others.speech_server import ServerVoice
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost, UnknownVoice, UnsupportedText

RATE_HZ = 24_000
PIECE = bytes(range(250)) * 8
Script = Sequence[bytes | Exception | float | None]
"""What a request gives: samples, an error, seconds to wait, or None to wait for `go`."""


@dataclass
class ScriptedServer:
    """Each request plays the next script; the last one repeats."""

    scripts: list[Script] = field(default_factory=lambda: [[PIECE, PIECE]])
    opens: list[Exception | None] = field(default_factory=list)
    names: Sequence[str] = ()
    texts: list[str] = field(default_factory=list)
    n_live: int = 0
    most_live: int = 0
    n_cancelled: int = 0
    n_closed: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self) -> None:
        if self.opens and (error := self.opens.pop(0)) is not None:
            raise error

    async def close(self) -> None:
        self.n_closed += 1

    async def voice_names(self) -> Sequence[str]:
        return self.names

    async def speak(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[bytes, None]:
        self.texts.append(text)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.n_live += 1
        self.most_live = max(self.most_live, self.n_live)
        try:
            for step in script:
                if step is None:
                    await self.go.wait()
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, bytes):
                    yield step
                else:
                    raise step
        except (asyncio.CancelledError, GeneratorExit):
            self.n_cancelled += 1
            raise
        finally:
            self.n_live -= 1


def lost() -> ReplicaLost:
    return ReplicaLost("the connection broke")


def run(
    work: Callable[[OtherEngine, ScriptedServer], Coroutine[Any, Any, None]], *scripts: Script, **given: Any
) -> ScriptedServer:
    """Run `work` with a started engine, and check that it leaves nothing behind."""
    server = ScriptedServer(list(scripts) or [[PIECE, PIECE]])

    async def main() -> None:
        defaults = {"kind": "openai", "url": "http://127.0.0.1:1", "voices": {"alloy": {}}}
        engine = OtherEngine("theirs", settings(**{**defaults, **given}), server)
        await engine.start()
        try:
            async with asyncio.timeout(20):
                await work(engine, server)
        finally:
            await engine.close()
        assert engine.stats() == EngineStats() and server.n_live == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    return server


def pcm_of(chunks: Sequence[Any]) -> bytes:
    return b"".join(chunk.pcm.tobytes() for chunk in chunks)


# ------------------------------------------------------------------------ audio


def test_samples_cut_anywhere_arrive_whole_and_in_short_chunks() -> None:
    sound = np.arange(30_000, dtype="<i2").tobytes()
    cuts = [0, 1, 2, 5, 10_000, 10_003, 59_999, 60_000]
    script = [sound[start:end] for start, end in pairwise(cuts)]

    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        chunks = await speak(engine)
        assert pcm_of(chunks) == sound
        assert max(len(chunk.pcm) for chunk in chunks) == RATE_HZ // 5
        assert all(chunk.pcm.dtype == np.int16 and chunk.sample_rate_hz == RATE_HZ for chunk in chunks)

    run(work, script)


@pytest.mark.parametrize("script", [[], [b""], [b"\x01"]])
def test_no_audio_is_an_error(script: Script) -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match="sent no audio"):
            await speak(engine)

    run(work, script)


def test_speech_without_an_end_is_cut() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        heard = 0
        with pytest.raises(EngineError, match=r"sent over 8\.5 s for 5 characters"):
            async for chunk in engine.synthesize(Utterance("u", "hello")):
                heard += len(chunk.pcm)
        assert 7 * RATE_HZ < heard < 9 * RATE_HZ

    run(work, [bytes(RATE_HZ)] * 1_000)


def test_a_long_text_becomes_several_requests() -> None:
    text = "This sentence has about forty characters. " * 6

    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        chunks = await speak(engine, text)
        assert len(pcm_of(chunks)) == len(server.texts) * 2 * len(PIECE)
        assert "".join(server.texts) == text and max(map(len, server.texts)) <= 100 and len(server.texts) > 2

    run(work, request_chars=100)


def test_chinese_is_cut_earlier_because_it_is_spoken_slower() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        await speak(engine, "你好，我们今天见面。" * 10)
        assert max(map(len, server.texts)) <= 30

    run(work, request_chars=90, languages=["zh"])


# ----------------------------------------------------------- slots and orphans


def test_no_more_requests_than_slots_and_the_earliest_deadline_is_next() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        deadlines = [5, 4, 9, 2, 7, 1]
        tasks = []
        for deadline in deadlines:
            tasks.append(asyncio.create_task(speak(engine, f"text {deadline}", deadline_ns=deadline)))
            await asyncio.sleep(0.005)
        stats = engine.stats()
        assert (stats.n_queued, stats.n_running, stats.load) == (4, 2, 3.5)
        server.go.set()
        await asyncio.gather(*tasks)
        assert server.texts == [f"text {n}" for n in (5, 4, 1, 2, 7, 9)]
        assert server.most_live == 2

    run(work, [None, PIECE], slots=2)


def test_a_slot_that_does_not_become_free_is_an_error_that_names_the_setting() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        first = asyncio.create_task(speak(engine))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match=r"no free slot in time; see engines\.others\.theirs\.slots") as caught:
            await speak(engine)
        assert caught.value.code == "busy"
        await asyncio.gather(first, return_exceptions=True)

    run(work, [PIECE, 0.05] * 100, slots=1, audio_timeout_s=1.0)


def test_a_server_that_stops_gets_the_cancel_before_the_generator_is_closed() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        stream = engine.synthesize(Utterance("u", "hello"))
        await anext(stream)
        await stream.aclose()
        assert (server.n_cancelled, server.n_live, engine.n_orphans) == (1, 0, 0)

    run(work, [PIECE, None])


def test_a_server_that_does_not_stop_keeps_an_orphan_in_its_slot_until_it_ends() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        streams = [engine.synthesize(Utterance(str(n), "hello")) for n in range(2)]
        for stream in streams:
            await anext(stream)
            await stream.aclose()
            assert (engine.stats().n_queued, engine.stats().n_running) == (0, 0), "our side is free at once"
        assert (engine.n_orphans, server.n_live, server.n_cancelled) == (2, 2, 0)
        waiting = asyncio.create_task(speak(engine))
        await asyncio.sleep(0.02)
        assert engine.stats() == EngineStats(1, 0, 4 / 2), "both slots are taken by orphans"
        assert len(server.texts) == 2
        server.go.set()
        assert pcm_of(await waiting) == PIECE * 2, "nothing of the orphans is heard"
        assert (engine.n_orphans, server.most_live) == (0, 2)
        assert engine.counters()["orphans"] == 2

    run(work, [PIECE, None, PIECE], slots=2, stops_on_cancel=False)


def test_a_server_with_an_orphan_in_each_slot_is_overloaded_and_the_fallback_speaks() -> None:
    """Pinned: the load was 0 without live requests, and a new sentence waited for an orphan to end."""

    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        failover = Failover([engine, FakeEngine()], ["fake"], timeout_ms=1_500, after=3, retry_s=10)
        for n, refusal in enumerate((None, "overloaded")):
            stream = engine.synthesize(Utterance(str(n), "hello"))
            await anext(stream)
            await stream.aclose()
            assert failover.refusal(engine, 0) == refusal, n
        replaced = failover.next(Utterance("new", "hello"), engine.voices[0], (), "overloaded", 0)
        assert replaced is not None and replaced[0].name == "fake"
        server.go.set()
        await until(lambda: engine.n_orphans == 0, "orphans left")
        assert engine.stats() == EngineStats() and failover.refusal(engine, 0) is None

    run(work, [PIECE, None, PIECE], slots=2, stops_on_cancel=False)


def test_a_slot_is_free_when_the_server_has_sent_all_although_the_caller_still_listens() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        slow = engine.synthesize(Utterance("u", "a text of some length, so that its audio may be long"))
        n_bytes = len((await anext(slow)).pcm) * 2
        assert pcm_of(await speak(engine, "hi")) == PIECE, "the only slot is free"
        n_bytes += len(pcm_of([chunk async for chunk in slow]))
        assert n_bytes == 20 * RATE_HZ, "and nothing is lost"

    run(work, [bytes(RATE_HZ)] * 20, [PIECE], slots=1)


def test_an_orphan_ends_at_the_deadline_of_its_request() -> None:
    """Upstream's model spins for ever when its language model fails."""

    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        stream = engine.synthesize(Utterance("u", "hello"))
        await anext(stream)
        await stream.aclose()
        assert engine.n_orphans == 1
        await until(lambda: engine.n_orphans == 0, "orphans left")
        assert server.n_cancelled == 1

    run(work, [PIECE, None], stops_on_cancel=False, audio_timeout_s=0.1)


def test_a_request_that_still_waits_for_a_slot_leaves_no_orphan() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        first = asyncio.create_task(speak(engine))
        waiting = asyncio.create_task(speak(engine))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (engine.n_orphans, len(server.texts)) == (0, 1)
        server.go.set()
        await first

    run(work, [None, PIECE], slots=1, stops_on_cancel=False)


# ------------------------------------------------------------------- deadlines


def test_a_server_that_gives_no_audio_is_given_up() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        words = r"gave no audio within engines\.others\.theirs\.audio_timeout_s \(0\.1\)"
        with pytest.raises(EngineError, match=words):
            await speak(engine)
        assert server.n_cancelled == 1

    run(work, [None], audio_timeout_s=0.1)


def test_a_server_that_stops_in_the_middle_is_given_up() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        heard = []
        with pytest.raises(EngineError, match="gave no audio within"):
            async for chunk in engine.synthesize(Utterance("u", "hello")):
                heard.append(chunk)
        assert pcm_of(heard) == PIECE

    run(work, [PIECE, None], audio_timeout_s=0.1)


def test_a_request_as_a_whole_has_a_deadline_too() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match=r"did not finish a request within .*request_timeout_s \(1\)"):
            await speak(engine)

    run(work, [b"\0\0", 0.2] * 50, audio_timeout_s=0.9, request_timeout_s=1)


# -------------------------------------------------------- errors and new tries


def test_a_connection_that_breaks_before_its_first_audio_is_tried_again_once() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        assert pcm_of(await speak(engine)) == PIECE
        assert engine.counters()["retries"] == 1 and engine.counters()["requests"] == 2

    run(work, [lost()], [PIECE])


def test_a_server_that_is_away_is_an_error_after_the_second_try() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match="the connection broke") as caught:
            await speak(engine)
        assert not isinstance(caught.value, ReplicaLost), "to go on with the same server would not help"
        assert len(server.texts) == 2

    run(work, [lost()])


def test_a_connection_that_breaks_later_lets_the_call_go_on() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        heard = []
        with pytest.raises(ReplicaLost):
            async for chunk in engine.synthesize(Utterance("u", "hello")):
                heard.append(chunk)
        assert pcm_of(heard) == PIECE and len(server.texts) == 1

    run(work, [PIECE, lost()], [PIECE])


def test_an_error_that_the_server_states_is_not_tried_again() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match="out of memory"):
            await speak(engine)
        assert len(server.texts) == 1

    run(work, [EngineError("out of memory")], [PIECE])


def test_a_crash_of_an_adapter_is_an_error_of_the_utterance() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match="failed; see the server's log"):
            await speak(engine)
        assert pcm_of(await speak(engine)) == PIECE

    run(work, [RuntimeError("oh")], [PIECE])


def test_a_cancel_that_is_not_ours_is_an_error_of_the_utterance() -> None:
    """gRPC raises CancelledError for a stream that was cancelled elsewhere."""

    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match="gave up"):
            await speak(engine)
        assert pcm_of(await speak(engine)) == PIECE

    run(work, [asyncio.CancelledError()], [PIECE])  # type: ignore[list-item]


def test_a_busy_server_is_not_asked_before_it_said() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError) as caught:
            await speak(engine)
        assert (caught.value.code, caught.value.retry_after_ms) == ("busy", 600)
        assert not engine.stats().is_ready and 0 < engine.stats().retry_after_ms <= 600
        await asyncio.sleep(0.7)
        assert engine.stats() == EngineStats()

    run(work, [EngineError("the queue is full", code="busy", retry_after_ms=600)])


# --------------------------------------------------------------------- the rest


def test_closing_the_engine_ends_streams_with_an_error() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        stream = engine.synthesize(Utterance("u", "hello"))
        await anext(stream)
        await engine.close()
        with pytest.raises(EngineError, match="theirs was closed"):
            await anext(stream)
        with pytest.raises(EngineError, match="does not run"):
            await speak(engine)

    run(work, [PIECE, None], stops_on_cancel=False)


def test_voices_languages_and_scripts() -> None:
    async def work(engine: OtherEngine, server: ScriptedServer) -> None:
        assert [(voice.name, voice.languages, voice.gain_db) for voice in engine.voices] == [
            ("alloy", ("en", "de"), 0.0), ("xiao", ("zh",), -3.0),
        ]  # fmt: skip
        with pytest.raises(UnknownVoice, match="theirs has no voice 'echo'; it has alloy, xiao"):
            engine.check(Utterance("u", "hello", voice="echo"))
        with pytest.raises(UnsupportedText, match=r"no voice for cjk letters \(engines\.others\.theirs\.languages\)"):
            engine.check(Utterance("u", "你好", voice="alloy"))
        engine.check(Utterance("u", "你好", voice="xiao"))
        engine.check(Utterance("u", "你好"))

    run(work, voices={"alloy": {}, "xiao": {"languages": ["zh"], "gain_db": -3}}, languages=["en", "de"])


def started(server: ScriptedServer, **given: Any) -> OtherEngine:
    engine = OtherEngine("theirs", settings(**{"url": "http://127.0.0.1:1", **given}), server)
    asyncio.run(engine.start())
    return engine


def test_the_server_is_asked_for_its_voices_if_the_settings_name_none() -> None:
    engine = started(ScriptedServer(names=["af_heart", "bf_emma"]), kind="kokoro_fastapi")
    assert [voice.name for voice in engine.voices] == ["af_heart", "bf_emma"]
    with pytest.raises(EngineUnavailable, match=r"engines\.others\.theirs: the server lists no voice"):
        started(ScriptedServer(), kind="kokoro_fastapi")
    (only,) = started(ScriptedServer(), kind="voxserve").voices
    assert only.name == "default"


def test_start_waits_for_the_server() -> None:
    server = ScriptedServer(opens=[lost(), None])
    assert started(server, kind="voxserve").voices
    away = ScriptedServer(opens=[lost()] * 100)
    with pytest.raises(EngineUnavailable, match=r"engines\.others\.theirs: the connection broke"):
        started(away, kind="voxserve", start_timeout_s=0.1)
    assert away.n_closed == 1
    refused = ScriptedServer(opens=[EngineError("the key is wrong", retryable=False)])
    with pytest.raises(EngineUnavailable, match="the key is wrong"):
        started(refused, kind="voxserve")


def test_a_recording_that_cannot_be_read_is_named(tmp_path: Any) -> None:
    (tmp_path / "noise.wav").write_bytes(b"RIFFxxxxWAVEnothing")
    for wav, words in ((tmp_path / "away.wav", "cannot read"), (tmp_path / "noise.wav", "cannot be used")):
        words = rf"engines\.others\.theirs: voices\.anna\.wav: .*{words}"
        with pytest.raises(EngineUnavailable, match=words) as caught:
            started(ScriptedServer(), kind="voxserve", voices={"anna": {"wav": str(wav), "text": "x"}})
        assert str(wav) in caught.value.message


def test_what_comes_for_an_orphan_is_not_kept() -> None:
    async def main() -> None:
        request = SpeechRequest("hello", ServerVoice(), Utterance("u", "hello"))
        request.put(PIECE)
        request.drop()
        request.put(PIECE)
        request.end(None)
        assert await request.next() is None and request.n_bytes == 2 * len(PIECE)

    asyncio.run(main())
