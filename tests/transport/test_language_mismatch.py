"""A call whose text is in another language than the voice: one warning, or the engine that a route names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stage import READY, RecordingLeg, run, until

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.call import Call
from telephony_tts.wire import messages as m

GERMAN = "Guten Tag, wie geht es Ihnen heute?"


class German:
    """A detector that takes text with "Guten Tag" in it for German."""

    def load(self) -> None: ...

    def detect(self, sentence: str) -> str | None:
        return "de" if "Guten Tag" in sentence else None


class VoiceEngine(FakeEngine):
    """Records the texts and voices that it was asked for."""

    def __init__(self, name: str, voice: str, lang: str, *, streams_text: bool = False) -> None:
        super().__init__(name=name, voice_names=[voice], languages=[lang], ms_per_char=5)
        self.streams_text = streams_text
        self.asked: list[tuple[str, str | None]] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.asked.append((utterance.text, utterance.voice))
        async for chunk in super().synthesize(utterance):
            yield chunk


async def begin(catalog: Catalog, **speech: str) -> tuple[Call, RecordingLeg, asyncio.Task[None]]:
    settings = SessionSettings(first_clause_chars=0, pace="burst", **speech)  # type: ignore[arg-type]
    call = Call(Session(settings, monotonic_ns(), detect_language=catalog.detect_language), catalog, "stream")
    task = asyncio.create_task(call.run())
    await call.started.wait()
    leg = RecordingLeg()
    call.frames_to_bot(leg, leg.encode)
    call.join_bot(leg, leg.encode, READY)
    return call, leg, task


def engines() -> tuple[VoiceEngine, VoiceEngine]:
    return VoiceEngine("english", "anna", "en"), VoiceEngine("formant", "otto", "de")


def test_one_warning_a_call_whatever_the_number_of_sentences() -> None:
    async def main() -> None:
        english, german = engines()
        call, leg, task = await begin(Catalog([english, german], detector=German()))
        call.receive(m.Say(f"{GERMAN} OK. {GERMAN}", "a"))
        call.receive(m.Say(GERMAN, "b"))
        await until(lambda: len(leg.got(m.Done)) == 2, "the end of both turns")
        (warning,) = leg.got(m.WarningEvent)
        assert (warning.code, warning.turn) == ("language_mismatch", "a")
        assert len(english.asked) == 4 and german.asked == []
        call.finish(1000, "over")
        await task

    run(main)


def test_a_route_takes_the_text_from_a_named_voice_without_a_warning() -> None:
    async def main() -> None:
        english, german = engines()
        call, leg, task = await begin(Catalog([english, german], {"de": "formant"}, detector=German()), voice="anna")
        call.receive(m.Say(f"OK. {GERMAN} OK."))
        await until(lambda: leg.got(m.Done), "the end of the turn")
        assert english.asked == [("OK.", "anna")] and german.asked == [(GERMAN, "otto"), ("OK.", "otto")]
        assert leg.got(m.WarningEvent) == []
        call.finish(1000, "over")
        await task

    run(main)


def test_an_open_sentence_goes_to_the_routes_engine_which_gets_it_whole() -> None:
    async def main() -> None:
        english, german = VoiceEngine("english", "anna", "en", streams_text=True), VoiceEngine("formant", "otto", "de")
        catalog = Catalog([english, german], {"de": "formant"}, detector=German())
        call, leg, task = await begin(catalog, text_mode="interleaved")
        for piece in ("Guten Tag und willkommen", " heute hier bei uns", " im Haus."):
            call.receive(m.Text(piece))
            await asyncio.sleep(0)
        call.receive(m.End())
        await until(lambda: leg.got(m.Done), "the end of the turn")
        assert german.asked == [("Guten Tag und willkommen heute hier bei uns im Haus.", "otto")]
        assert english.asked == [] and leg.got(m.WarningEvent) == []
        call.finish(1000, "over")
        await task

    run(main)


def test_a_lang_with_a_route_replaces_a_named_voice_and_one_without_a_route_is_a_warning() -> None:
    async def main() -> None:
        english, german = engines()
        call, leg, task = await begin(Catalog([english, german], {"de": "formant"}), voice="anna")
        call.receive(m.Configure(lang="fr"))
        assert [warning.code for warning in leg.got(m.WarningEvent)] == ["other_language"]
        call.receive(m.Configure(lang="de"))
        call.receive(m.Say("OK."))
        await until(lambda: leg.got(m.Done), "the end of the turn")
        assert german.asked == [("OK.", "otto")] and len(leg.got(m.WarningEvent)) == 1
        call.finish(1000, "over")
        await task

    run(main)
