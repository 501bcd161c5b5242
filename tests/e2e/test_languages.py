"""Text in another language than the voice's, over the wire: a warning, or with a route a voice of that language."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
import soxr
from rig import Bot, correlation, decoded, run, serving, speech_settings

from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog
from telephony_tts.engines.api import Pcm, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.hibari.engine import HibariEngine

pytestmark = pytest.mark.slow

GERMAN = "Ihr Termin ist am Dienstag um 14:30 Uhr."
ENGLISH = "Your appointment is on Tuesday."
ITALIAN = "Grazie per aver chiamato e buona giornata."


def catalog(**settings: Any) -> Catalog:
    """Both engines that need no model, as in the server."""
    given = {name.replace("__", "."): value for name, value in settings.items()}
    settings = {"engines.routes": {}, "engines.kokoro.workers": 0, **given}
    made = build_catalog(config.load(None, settings, {}))
    assert [engine.name for engine in made.engines] == ["hibari", "espeak"]
    return made


async def said(bot: Bot, *texts: str) -> list[Pcm]:
    """The audio of each text, spoken as one turn each."""
    heard = []
    for n, text in enumerate(texts):
        n_before = len(bot.frames)
        await bot.say(text, f"t{n}")
        await bot.event("done", turn=f"t{n}", within_s=20)
        heard.append(decoded(bot.frames[n_before:]))
    return heard


def warnings(bot: Bot) -> list[dict[str, Any]]:
    return [event for event in bot.events if event["type"] == "warning"]


def rendered(engine_type: type[EspeakEngine] | type[HibariEngine], text: str, voice: str) -> Pcm:
    """The engine's own audio of a text, at 8 kHz."""

    async def body() -> Pcm:
        engine = engine_type(n_workers=1)
        await engine.start()
        async with aclosing(engine.synthesize(Utterance("u", text, voice=voice))) as stream:
            chunks = [chunk async for chunk in stream]
        await engine.close()
        spoken = np.concatenate([chunk.pcm for chunk in chunks]).astype(np.float32) / 32768
        pcm: Pcm = (soxr.resample(spoken, chunks[0].sample_rate_hz, 8000, "HQ") * 32768).astype(np.int16)
        return pcm

    return asyncio.run(body())


def test_german_text_without_lang_gets_one_warning_a_call() -> None:
    english = rendered(HibariEngine, "Danke sehr.", "heart")

    async def main() -> None:
        async with serving(catalog=catalog(), speech=speech_settings(pace="burst")) as rig:
            async with rig.bot(audio="binary") as bot:
                heard = await said(bot, GERMAN, "Danke sehr.", ITALIAN)
                (warning,) = warnings(bot)
                assert (warning["code"], warning["turn"]) == ("language_mismatch", "t0")
                assert "in language de, but voice heart speaks en" in warning["message"]
                for remedy in ("`lang` de", "`voice` espeak/de", "engines.routes to {de: espeak}"):
                    assert remedy in warning["message"]
                assert correlation(heard[1], english) > 0.98, "without a route the voice stays"
            async with rig.bot(audio="binary") as bot:
                await said(bot, GERMAN)
                assert len(warnings(bot)) == 1, "the next call is told too"

    run(main)


def test_with_a_route_the_german_voice_speaks_the_text_and_reads_its_numbers() -> None:
    wanted = [rendered(EspeakEngine, text, "de") for text in (GERMAN, "OK.")]
    english = rendered(HibariEngine, ENGLISH, "heart")

    async def main() -> None:
        made = catalog(engines__routes={"de": "espeak"})
        async with serving(catalog=made, speech=speech_settings(pace="burst")) as rig, rig.bot(audio="binary") as bot:
            heard = await said(bot, GERMAN, "OK.", ENGLISH)
            assert warnings(bot) == []
            assert correlation(heard[0], wanted[0]) > 0.97
            assert correlation(heard[1], wanted[1]) > 0.97, "a short answer stays in the language of the call"
            assert correlation(heard[2], english) > 0.98

    run(main)


@pytest.mark.parametrize("lang", ["de", "de-AT"])
def test_lang_is_enough_without_a_route(lang: str) -> None:
    wanted = rendered(EspeakEngine, GERMAN, "de")

    async def main() -> None:
        async with (
            serving(catalog=catalog(), speech=speech_settings(pace="burst")) as rig,
            rig.bot(audio="binary", lang=lang) as bot,
        ):
            (heard,) = await said(bot, GERMAN)
            assert correlation(heard, wanted) > 0.97 and warnings(bot) == []

    run(main)


@pytest.mark.parametrize(
    ("texts", "settings", "options"),
    [
        ((ENGLISH, "OK.", "Ship it to Hauptstraße 12, 10115 Berlin, is that right?"), {}, {}),
        ((GERMAN,), {}, {"lang": "en"}),
        ((GERMAN,), {}, {"voice": "espeak/de"}),
        ((GERMAN,), {"speech__detect_language": False}, {}),
    ],
)
def test_matching_language_gets_no_warning(
    texts: tuple[str, ...], settings: dict[str, Any], options: dict[str, str]
) -> None:
    async def main() -> None:
        async with (
            serving(catalog=catalog(**settings), speech=speech_settings(pace="burst")) as rig,
            rig.bot(audio="binary", **options) as bot,
        ):
            await said(bot, *texts)
            assert warnings(bot) == []

    run(main)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Добрый день.", "voices that can: espeak/ru. Send one as `voice`, or set engines.routes to {ru: espeak}"),
        ("สวัสดี", "no engine of telephony-tts reads thai letters (language th)"),
    ],
)
def test_a_refusal_over_the_wire_names_the_voices_that_can(text: str, says: str) -> None:
    async def main() -> None:
        async with (
            serving(catalog=catalog(), speech=speech_settings(pace="burst")) as rig,
            rig.bot(audio="binary", voice="heart") as bot,
        ):
            await bot.say(text, "a")
            error = await bot.event("error", turn="a")
            assert error["code"] == "unsupported_text" and says in error["message"]
            await said(bot, ENGLISH)

    run(main)
