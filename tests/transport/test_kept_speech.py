"""Speech that an engine has kept: its first frame leaves before the event loop goes on, and nothing else changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stage import READY, RecordingLeg, run, until
from tone_text import tone_text

from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.phrase_store import PhraseStore
from telephony_tts.engines.phrases import PhraseKeeper
from telephony_tts.runtime import metrics
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.call import Call
from telephony_tts.wire import messages as m

pytestmark = pytest.mark.slow

TEXT = "abc defg hij klmno pqr"


class Stage:
    """A call whose engine keeps its phrases."""

    def __init__(self, *, fallback: bool = False, **settings: Any) -> None:
        self.engine = FakeEngine()
        self.keeper = PhraseKeeper(self.engine, PhraseStore(50_000_000))
        engines = [self.keeper, FakeEngine(name="spare", voice_names=("spare-tone",))]
        failover = Failover(engines, ["spare"], timeout_ms=200, after=1, retry_s=60) if fallback else None
        self.catalog = Catalog(engines, failover=failover)
        speech = SessionSettings(first_clause_chars=0, **settings)
        self.call = Call(Session(speech, monotonic_ns()), self.catalog, "stream")
        self.leg = RecordingLeg()

    async def __aenter__(self) -> Stage:
        await self.catalog.start()
        self.task = asyncio.create_task(self.call.run())
        await self.call.started.wait()
        self.call.frames_to_bot(self.leg, self.leg.encode)
        self.call.join_bot(self.leg, self.leg.encode, READY)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.finish(1000, "over")
        await self.task
        assert not self.call._runs
        await self.catalog.close()

    async def say(self, text: str = TEXT) -> str:
        """Speak a turn to its end. Returns the letters of its frames."""
        n_done, n_frames = len(self.leg.got(m.Done)), len(self.leg.got(m.Frame))
        self.call.receive(m.Say(text))
        await until(lambda: len(self.leg.got(m.Done)) > n_done, "the end of the turn", 10)
        return tone_text(decode_ulaw(b"".join(frame.payload for frame in self.leg.got(m.Frame)[n_frames:])))


def test_the_first_frame_of_a_kept_phrase_is_sent_before_the_loop_goes_on() -> None:
    async def main() -> None:
        async with Stage(pace="burst") as stage:
            first = await stage.say()
            assert first.split() == TEXT.split()
            n_frames, n_live = len(stage.leg.got(m.Frame)), stage.engine.n_live
            stage.call.receive(m.Say(TEXT))
            assert len(stage.leg.got(m.Frame)) > n_frames, "nothing was awaited since the text came"
            assert len(stage.leg.got(m.Started)) == 2 and n_live == 0
            await until(lambda: len(stage.leg.got(m.Done)) == 2, "the end of the turn")
            frames = [frame.payload for frame in stage.leg.got(m.Frame)]
            assert frames[:n_frames] == frames[n_frames:], "a kept phrase has the same bytes"
            one, two = stage.leg.got(m.SentenceSpoken)
            assert (one.text, one.start_ms, one.end_ms) == (two.text, two.start_ms, two.end_ms)

    run(main)


def test_a_clear_ends_kept_speech_and_the_rest_is_not_given() -> None:
    async def main() -> None:
        async with Stage(lead_ms=100, ahead_ms=200) as stage:
            await stage.say("abc")
            await stage.say(TEXT)
            n_frames = len(stage.leg.got(m.Frame))
            stage.call.receive(m.Say(TEXT))
            stage.call.receive(m.Clear())
            n_sent = len(stage.leg.got(m.Frame))
            assert n_sent > n_frames and len(stage.leg.got(m.Cleared)) == 1
            await asyncio.sleep(0.05)
            assert len(stage.leg.got(m.Frame)) == n_sent and not stage.call._runs
            assert (await stage.say("abc")).split() == ["abc"]

    run(main)


def test_kept_speech_is_counted_once_and_told_by_its_engine() -> None:
    async def main() -> None:
        async with Stage(fallback=True, pace="burst") as stage:
            await stage.say()
            before = metrics.value("telephony_tts_phrases_total", found="memory")
            await stage.say()
            assert metrics.value("telephony_tts_phrases_total", found="memory") == before + 1
            assert [done.engines for done in stage.leg.got(m.Done)] == [["fake"], ["fake"]]

    run(main)


def test_what_is_kept_is_spoken_though_its_engine_fails_and_does_not_close_its_circuit() -> None:
    async def main() -> None:
        async with Stage(fallback=True, pace="burst") as stage:
            await stage.say()
            stage.engine.fail_after_chunks = 0
            assert (await stage.say("stuv")).split() == ["stuv"]
            failover = stage.catalog.failover
            assert failover is not None and failover.open_circuits(monotonic_ns())["fake"]
            assert (await stage.say()).split() == TEXT.split()
            assert failover.open_circuits(monotonic_ns())["fake"]
            assert [done.engines for done in stage.leg.got(m.Done)] == [["fake"], ["spare"], ["fake"]]

    run(main)


def test_private_text_and_an_unknown_voice_go_the_usual_way() -> None:
    async def main() -> None:
        async with Stage(pace="burst") as stage:
            await stage.say()
            n_frames = len(stage.leg.got(m.Frame))
            stage.call.receive(m.Say(TEXT, private=True))
            assert len(stage.leg.got(m.Frame)) == n_frames
            await until(lambda: len(stage.leg.got(m.Done)) == 2, "the end of the turn")

    run(main)
