"""The console's page "Say it" in a real Chromium: what is heard, what stops it, and what the page says was heard."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from browser import Page, chromium
from console_page import console, recorder_served
from rig import Tones, Witness, delayed_correlation, run, serving, until

from telephony_tts.app import offline
from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.audio.wav import write_wav
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.hibari.model import HibariModel
from telephony_tts.session.settings import SessionSettings

pytestmark = [pytest.mark.peer, pytest.mark.timed]

TEXT = "Hello, this is your bank. It is open today."
SHORT = "Hello there."
LONG = "Your parcel left the depot on Tuesday and it should arrive before noon, if nothing comes between. " * 3
FINE_HZ = 48_000
"""Both sides are compared at this rate: at 8 kHz half a sample of delay would change much."""
LOUD = 300
"""A sample louder than this, of 32768, is sound."""
_ENDED = "(async () => (await import('./say.js')).turns[0].endedAt !== null)()"
_OVER = "document.querySelector('.turn:first-child .unheard, .turn:first-child .heard:only-child') !== null"


async def type_and_enter(shown: Page, text: str) -> None:
    await shown.write("#text", text)
    await shown.press("Enter")


async def turn(shown: Page) -> dict[str, str]:
    """The newest turn, as its user reads it."""
    told: dict[str, str] = await shown.evaluate(
        "(() => { const newest = document.querySelector('.turn'); return {"
        " text: newest.querySelector('p').textContent,"
        " heard: newest.querySelector('.heard')?.textContent ?? '',"
        " pale: newest.querySelector('.unheard')?.textContent ?? '',"
        " foot: newest.querySelector('footer').textContent}; })()"
    )
    return told


async def sound_in(shown: Page) -> np.ndarray[Any, Any]:
    """All that the page has sent to the loudspeaker, at FINE_HZ."""
    return fine(np.array(await shown.heard()), await shown.evaluate("window.heardIn.sampleRate"))


def fine(pcm: np.ndarray[Any, Any], rate_hz: int) -> np.ndarray[Any, Any]:
    """The same at FINE_HZ."""
    return np.rint(soxr.resample(pcm.astype(np.float32), rate_hz, FINE_HZ, "HQ")).clip(-32768, 32767).astype(np.int16)


async def said(text: str, rate_hz: int = 8000, codec: str = "ulaw") -> np.ndarray[Any, Any]:
    """What `telephony-tts say` writes for the text, at FINE_HZ."""
    frames: list[bytes] = []
    catalog = Catalog([FakeEngine()])
    await catalog.start()
    try:
        settings = SessionSettings(codec=codec, rate_hz=rate_hz, first_clause_chars=0)
        await offline.speak(text, catalog, settings, on_frame=frames.append)
    finally:
        await catalog.close()
    whole = b"".join(frames)
    return fine(decode_ulaw(whole) if codec == "ulaw" else np.frombuffer(whole, "<i2"), rate_hz)


def from_first_sound(pcm: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return pcm[max(0, int(np.argmax(np.abs(pcm) > LOUD)) - 40) :]


@pytest.mark.parametrize(("quality", "codec", "rate_hz"), [("telephone", "ulaw", 8000), ("engine", "pcm", 24_000)])
def test_what_the_page_plays_is_what_say_writes(devtools: str, quality: str, codec: str, rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await shown.choose("#quality", quality)
            await type_and_enter(shown, TEXT)
            await shown.until(_OVER, within_s=20)
            wanted = from_first_sound(await said(TEXT, rate_hz, codec))
            await shown.until(f"window.heard.length > window.heardIn.sampleRate * {len(wanted) / FINE_HZ + 1.5}", 20)
            # The loud sample that was found first may be another one, and `delayed_correlation` tries later ones only.
            heard = np.pad(from_first_sound(await sound_in(shown)), (40, 0))
            assert delayed_correlation(heard, wanted) >= 0.99
            told = await turn(shown)
            assert (told["heard"], told["pale"]) == (TEXT, "") and "first sound after" in told["foot"]
            assert shown.complaints == []

    run(main)


def test_the_space_bar_brings_silence_within_100_ms_and_the_unheard_words_are_pale(devtools: str) -> None:
    async def main() -> None:
        async with serving(Tones(speed=4.0)) as rig, console(devtools, rig) as shown:
            await shown.evaluate(
                "addEventListener('keydown', (e) => { if (e.code === 'Space') window.pressedAt = heardIn.currentTime },"
                " true)"
            )
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 3", within_s=15)
            await shown.press("Space")
            await shown.until("document.querySelector('.turn .unheard') !== null")
            await asyncio.sleep(0.6)
            told = await turn(shown)
            assert told["heard"] + told["pale"] == LONG and told["heard"] and told["pale"]
            # All on the clock of the AudioContext, which does not go on when the machine is too busy to play.
            loud = np.flatnonzero(np.abs(np.array(await shown.heard())) > LOUD)
            from_s, rate_hz, pressed_s = await shown.evaluate("[heardFrom, heardIn.sampleRate, pressedAt]")
            first_s, last_s = from_s + loud[0] / rate_hz, from_s + loud[-1] / rate_hz
            assert -0.5 < last_s - pressed_s < 0.1
            events = await shown.evaluate("[...document.querySelectorAll('#events li')].map((e) => e.textContent)")
            (over,) = [json.loads(e.split("cleared  ", 1)[1]) for e in events if "cleared  " in e]
            assert over["basis"] == "client" and over["reason"] == "clear"
            assert abs(over["heard_ms"] - (last_s - first_s) * 1000) < 100
            assert rig.engine.n_live == 0  # type: ignore[attr-defined]

    run(main)


def test_the_next_text_after_an_interruption_is_heard_whole(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            await shown.press("Space")
            await shown.until("document.querySelector('.turn .unheard') !== null")
            await shown.press("/")
            assert await shown.evaluate("document.activeElement.id") == "text"
            await asyncio.sleep(0.3)
            await shown.evaluate("window.heard.splice(0)")
            await type_and_enter(shown, TEXT)
            await shown.until("document.querySelector('.turn .heard:only-child') !== null", within_s=20)
            assert (await turn(shown))["heard"] == TEXT
            wanted = from_first_sound(await said(TEXT))
            await shown.until(f"window.heard.length > window.heardIn.sampleRate * {len(wanted) / FINE_HZ + 1}", 20)
            assert delayed_correlation(np.pad(from_first_sound(await sound_in(shown)), (40, 0)), wanted) >= 0.99

    run(main)


def test_text_as_a_bot_writes_it_is_heard_to_its_end(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await shown.choose("#how", "bot")
            await shown.choose("#tokens", "60")
            await type_and_enter(shown, TEXT)
            await shown.until(_OVER, within_s=20)
            assert (await turn(shown))["heard"] == TEXT
            events = await shown.evaluate("document.querySelector('#events').textContent")
            assert events.count("sentence  ") == 2

    run(main)


def test_pause_stops_the_sound_and_resume_says_the_rest(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, TEXT)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            await shown.press("p")
            await shown.until("document.querySelector('.turn footer').textContent.includes('paused')")
            await asyncio.sleep(0.4)
            await shown.evaluate("window.heard.splice(0)")
            await asyncio.sleep(0.5)
            assert np.abs(np.array(await shown.heard() or [0])).max() <= LOUD
            await shown.press("p")
            await shown.until(_OVER, within_s=20)
            assert (await turn(shown))["heard"] == TEXT

    run(main)


def test_a_mark_is_reported_when_its_text_was_heard(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, TEXT)
            await shown.until("document.querySelectorAll('.turn .heard').length > 1", within_s=15)
            await shown.click("#mark")
            await shown.until(_OVER, within_s=20)
            events = await shown.evaluate("document.querySelector('#events').textContent")
            assert '"state":"played"' in events

    run(main)


@pytest.fixture(scope="module")
def speech_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the microphone hears: four seconds of silence, then a sentence."""
    speech = HibariModel().speak("Hold on please, I would like to ask you something else before that.")
    wave = soxr.resample(speech.pcm.astype(np.float32) * 1.8, speech.sample_rate_hz, 48_000, "HQ")
    whole = np.concatenate([np.zeros(4 * 48_000), wave, np.zeros(48_000)])
    file = tmp_path_factory.mktemp("microphone") / "caller.wav"
    write_wav(file, np.rint(whole).clip(-32768, 32767).astype("<i2").tobytes(), "pcm", 48_000)
    return file


def test_speaking_into_the_microphone_interrupts(speech_file: Path) -> None:
    async def main(devtools: str) -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await shown.click("#microphone")
            await shown.until("document.querySelector('#say-state').value.includes('microphone')")
            await type_and_enter(shown, LONG * 2)
            await shown.until("document.querySelector('.turn .unheard') !== null", within_s=15)
            told = await turn(shown)
            assert told["heard"] and told["heard"] + told["pale"] == LONG * 2
            assert "by your voice" in told["foot"]
            await shown.click("#microphone")
            assert shown.complaints == []

    flags = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
             f"--use-file-for-fake-audio-capture={speech_file}%noloop")  # fmt: skip
    with chromium(*flags) as devtools, recorder_served():
        run(lambda: main(devtools))


def test_a_microphone_that_is_refused_is_told(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await shown.click("#microphone")
            told = await shown.until("document.querySelector('#problem').textContent")
            assert told.startswith("The microphone cannot be used: ")
            assert await shown.evaluate("document.querySelector('#microphone').ariaPressed") == "false"

    run(main)


def test_two_tabs_do_not_disturb_each_other(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as one, console(devtools, rig) as other:
            await type_and_enter(one, LONG)
            await type_and_enter(other, TEXT)
            await one.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            assert rig.server.registry.n_calls == 2
            await one.press("Space")
            await one.until("document.querySelector('.turn .unheard') !== null")
            await other.until("document.querySelector('.turn .heard:only-child') !== null", within_s=20)
            assert (await turn(other))["heard"] == TEXT

    run(main)


def test_a_lost_connection_is_told_and_the_next_text_connects_again(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            (call,) = rig.server.registry.calls()
            call.finish(1012, "restarted")
            told = await shown.until("document.querySelector('#problem').textContent")
            assert told.startswith("The connection to the server was lost") and "restarted" in told
            over = await turn(shown)
            assert over["heard"] and over["heard"] + over["pale"] == LONG and "lost" in over["foot"]
            await asyncio.sleep(0.3)
            await shown.evaluate("window.heard.splice(0)")
            await asyncio.sleep(0.4)
            assert np.abs(np.array(await shown.heard() or [0])).max() <= LOUD
            await type_and_enter(shown, SHORT)
            await shown.until("document.querySelector('.turn .heard:only-child') !== null", within_s=20)
            assert await shown.evaluate("document.querySelector('#problem').hidden")

    run(main)


def test_a_slow_engine_shows_its_gaps(devtools: str) -> None:
    async def main() -> None:
        async with serving(Tones(speed=0.6)) as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, "One two three four five six seven.")
            await shown.until(_OVER, within_s=20)
            rows = await shown.evaluate(
                "Object.fromEntries([...document.querySelectorAll('#figures tr')].map((row) =>"
                " [row.cells[0].textContent, row.cells[1].textContent]))"
            )
            assert int(rows["gaps"]) >= 1 and int(rows["gaps of the engine"]) >= 1

    run(main)


def test_scripts_in_the_text_are_text(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            text = "<img src=x onerror=window.harmed=1> hello <script>window.harmed=1</script>."
            await type_and_enter(shown, text)
            await shown.until(_OVER, within_s=20)
            assert (await turn(shown))["text"] == text
            assert not await shown.evaluate("window.harmed || document.querySelector('.turn img, .turn script')")
            assert shown.complaints == []

    run(main)


def test_the_page_leaves_nothing_behind(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            async with console(devtools, rig) as shown:
                await type_and_enter(shown, LONG)
                await shown.until("document.querySelectorAll('.turn .heard').length > 1", within_s=15)
                assert rig.server.registry.n_calls == 1
            await until(lambda: not len(rig.server.registry), "the call of the closed page", 5)

    run(main)


def test_every_choice_reaches_the_engine(devtools: str) -> None:
    async def main() -> None:
        one, two = Witness(name="one", voice_names=("ann", "bob")), Witness(name="two", voice_names=("cid", "dee"))
        async with serving(catalog=Catalog([one, two])) as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, "Good morning.")
            await shown.until(_ENDED)
            await shown.choose("#engine", "two")
            voices = await shown.evaluate("[...document.querySelectorAll('#voice option')].map((each) => each.value)")
            assert voices == ["", "two/cid", "two/dee"]
            await shown.choose("#voice", "two/dee")
            await shown.choose("#lang", "zh")
            await shown.choose("#speed", "1.5")
            await shown.choose("#seed", "7")
            await shown.choose("#instruct", "in a friendly tone")
            await type_and_enter(shown, "Good evening.")
            await shown.until(_ENDED)
            (plain,), (chosen,) = one.asked, two.asked
            assert (plain.voice, plain.lang, plain.speed, plain.seed, plain.instruct) == ("ann", "en", 1.0, None, None)
            told = (chosen.voice, chosen.lang, chosen.lang_source, chosen.speed, chosen.seed, chosen.instruct)
            assert told == ("dee", "zh", "bot", 1.5, 7, "in a friendly tone")
            assert shown.complaints == []

    run(main)


def test_another_choice_while_the_page_speaks_ends_the_first_turn_and_speaks_the_next(devtools: str) -> None:
    """The quality is a choice for which the page begins another call."""

    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            await shown.choose("#quality", "wide")
            await type_and_enter(shown, TEXT)
            first = "document.querySelector('.turn:last-child footer').textContent"
            assert "interrupted after" in await shown.until(f"{first}.includes('interrupted') && {first}")
            await shown.until(_ENDED, within_s=20)
            told = await turn(shown)
            assert (told["heard"], told["pale"]) == (TEXT, "") and "heard to the end" in told["foot"]
            assert await shown.evaluate("document.querySelector('#interrupt').disabled")
            await until(lambda: rig.server.registry.n_calls == 1, "the end of the first call")
            assert shown.complaints == []

    run(main)


def test_a_page_that_is_not_used_leaves_its_call_and_begins_another_one(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            # Its minutes pass in a moment.
            await shown.evaluate(
                "(() => { const own = window.setTimeout;"
                " window.setTimeout = (act, ms, ...more) => own(act, ms > 60_000 ? 300 : ms, ...more); })()"
            )
            for _ in range(2):
                await type_and_enter(shown, SHORT)
                await shown.until(_ENDED, within_s=20)
                assert (await turn(shown))["heard"] == SHORT
                await until(lambda: not len(rig.server.registry), "the page to leave its call", 5)
            assert await shown.evaluate("document.querySelector('#problem').hidden") and shown.complaints == []

    run(main)


def test_a_bot_that_stalls_at_a_comma_is_as_slow_as_it_was_set(devtools: str) -> None:
    async def main() -> None:
        engine = Witness()
        async with serving(engine) as rig, console(devtools, rig) as shown:
            await shown.choose("#how", "bot")
            await shown.choose("#tokens", "40")
            await shown.choose("#stall", "1200")
            await type_and_enter(shown, "Yes. Well, no.")
            await shown.until(_ENDED, within_s=20)
            events = await shown.evaluate("(async () => (await import('./say.js')).turns[0].events)()")
            sentences = [each for each in events if each["type"] == "sentence"]
            # The server does not wait so long for the rest of a sentence.
            assert [each["text"].strip() for each in sentences] == ["Yes.", "Well,", "no."]
            assert 1150 < sentences[2]["at_ms"] - sentences[0]["at_ms"] < 2500

    run(main)


async def table(shown: Page) -> dict[str, list[str]]:
    """The figures of the newest turn, with p50 and p95 of all."""
    rows: dict[str, list[str]] = await shown.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#figures tbody tr')].map((row) =>"
        " [row.cells[0].textContent, [...row.cells].slice(1).map((cell) => cell.textContent)]))"
    )
    return rows


SERVER_STAGES = ("text complete → sentence", "queue", "engine → first audio", "first frame sent")


def test_the_waterfall_of_an_interrupted_turn_has_all_stages_and_the_interruption(devtools: str) -> None:
    async def main() -> None:
        async with serving(Tones(first_audio_ms=150, speed=4.0)) as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            await shown.press("Space")
            await shown.until("document.querySelector('.turn .unheard') !== null")
            # The audio thread tells of the silence by itself, maybe after the server's answer.
            await shown.until("document.querySelector('#figures').textContent.includes('key → silence')")
            rows = await table(shown)
            stages = {name: float(rows[name][0]) for name in SERVER_STAGES}
            assert 140 < stages["engine → first audio"] < 400 and "the server, to its first frame" not in rows
            first, heard = float(rows["first audio in the page"][0]), float(rows["heard"][0])
            assert sum(stages.values()) <= first
            ended, silent = float(rows["text → interrupted or failed"][0]), float(rows["key → silence"][0])
            assert first + heard - 60 < ended and silent < 100
            label = await shown.evaluate("document.querySelector('#bars').getAttribute('aria-label')")
            assert "engine → first audio 1" in label and "unfinished" not in label

    run(main)


def test_the_waterfall_of_a_turn_that_never_sounded_goes_up_to_the_interruption(devtools: str) -> None:
    async def main() -> None:
        async with serving(Tones(first_audio_ms=8000)) as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, TEXT)
            await shown.until("document.querySelector('#say-state').value.includes('waiting')")
            await asyncio.sleep(0.5)
            await shown.press("Space")
            await shown.until("document.querySelector('.turn .unheard') !== null")
            rows = await table(shown)
            told = await turn(shown)
            assert (told["heard"], told["pale"]) == ("", TEXT)
            spent = float(rows["unfinished when it ended"][0])
            ended = float(rows["text → interrupted or failed"][0])
            assert 400 < spent <= ended and ended - spent < 200 and rows["first audio in the page"][0] == "–"
            assert await shown.evaluate("document.querySelector('#say-state').value") == ""

    run(main)


def test_a_turn_that_failed_shows_its_stages_and_what_was_heard(devtools: str) -> None:
    async def main() -> None:
        text = f"{TEXT} Your balance is forty two dollars and fifty cents, as it was before."
        engine = Tones(first_audio_ms=120, speed=2.0, fail_after_chunks=25)
        async with serving(engine) as rig, console(devtools, rig) as shown:
            await type_and_enter(shown, text)
            await shown.until("document.querySelector('.turn footer').textContent.includes('failed')", within_s=15)
            told, rows = await turn(shown), await table(shown)
            assert told["heard"] + told["pale"] == text and told["heard"] and told["pale"]
            assert 110 < float(rows["engine → first audio"][0]) < 400
            assert float(rows["text → interrupted or failed"][0]) > float(rows["first sound heard"][0])
            assert "fake" in await shown.evaluate("document.querySelector('#problem').innerText")

    run(main)


def test_an_earlier_turns_times_are_shown_again(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            heard = []
            for text in ("One.", "Two is a longer one."):
                await type_and_enter(shown, text)
                await shown.until(_ENDED)
                heard.append((await table(shown))["heard"][0])
            assert float(heard[0]) < float(heard[1])
            await shown.click(".turn:last-child footer button")
            assert (await table(shown))["heard"][0] == heard[0]
            assert await shown.evaluate("document.querySelector('#of-turn').textContent") == "One."

    run(main)


KEEP_SAVED = """(() => {
  window.saved = [];
  const make = URL.createObjectURL;
  URL.createObjectURL = (blob) => { saved.push(blob); return make.call(URL, blob); };
})()"""


def test_the_last_fifty_turns_are_kept_and_saved_as_json_and_the_picture_as_png(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, console(devtools, rig) as shown:
            await shown.evaluate(KEEP_SAVED)
            await type_and_enter(shown, "One.")
            await shown.until(_ENDED)
            await shown.evaluate(
                "(async () => { const { turns } = await import('./say.js');"
                " for (let n = 1; n < 50; n++) turns.push({ ...turns[0], id: `old-${n}`,"
                " firstFrameAt: turns[0].sentAt + 10 * n }); })()"
            )
            await type_and_enter(shown, "The newest one.")
            await shown.until(_ENDED)
            rows = await table(shown)
            assert await shown.evaluate("document.querySelector('#figures caption').textContent") == "turns: 50"
            first = "first audio in the page"
            assert 230 <= float(rows[first][1]) <= 260 and 460 <= float(rows[first][2]) <= 480
            await shown.click("#save-json")
            saved = json.loads(await shown.evaluate("saved[0].text()"))["turns"]
            assert len(saved) == 50 and saved[0]["text"] == "The newest one." and saved[-1]["turn"] == "old-48"
            newest = saved[0]
            assert newest["outcome"] == "done" and newest["heard_text"] == "The newest one."
            assert [each["stage"] for each in newest["stages_ms"]][:3] == ["stageText", "stageQueue", "stageEngine"]
            assert len(newest["frames_ms"]) == newest["audio_ms"] / 20 and newest["words"][0]["text"] == "The"
            await shown.click("#save-png")
            size = "createImageBitmap(saved[1]).then((made) => [saved[1].type, made.width, made.height])"
            kind, width, height = await shown.until(f"saved.length === 2 && {size}")
            assert kind == "image/png" and width > 300 and height > 200

    run(main)
