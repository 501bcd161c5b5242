"""The other pages of the console in a real Chromium, and what holds for all: tokens, languages, widths, everyone's use.

With the variable CONSOLE_PICTURES the tests of widths keep a picture of each page in that folder.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browser import Page
from console_page import console, picture, settled, violations
from media_peer import START, leg
from rig import Rig, Tones, greeted, run, serving, until

from telephony_tts.engines.api import Utterance
from telephony_tts.http_api.asgi import http_server
from telephony_tts.http_api.console_routes import ConsoleTools
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.recording.live import Recordings
from telephony_tts.recording.settings import RecordingSettings
from telephony_tts.runtime.errors import EngineUnavailable, UnsupportedText

pytestmark = [pytest.mark.peer, pytest.mark.slow]

PAGES = ("say", "calls", "voices", "compare", "well")
WIDTHS = {"wide": (1280, 800), "narrow": (390, 844)}
FINDINGS = [
    {"state": "ok", "what": "python", "detail": "3.11.7"},
    {"state": "optional", "what": "py3langid", "detail": "German or English? .venv/bin/pip install -e '.[lang]'"},
    {"state": "broken", "what": "sounds.folder", "detail": "<b>no</b> such folder"},
]
TEXT = "This is a sentence that takes a while to be spoken, and then it goes on with some more words. " * 3
BOSS: dict[str, Any] = {"tokens": ("bot", "boss"), "supervisor_tokens": ("boss",)}


async def doctor() -> list[dict[str, Any]]:
    return FINDINGS


@asynccontextmanager
async def with_tools(tools: ConsoleTools | None = None, **settings: Any) -> AsyncIterator[Rig]:
    async with serving(**settings) as rig:
        rig.server.http = http_server(rig.server, None, tools or ConsoleTools(doctor))
        yield rig


async def text_of(shown: Page, selector: str) -> str:
    told: str = await shown.evaluate(f"document.querySelector('{selector}').innerText")
    return told


# -------------------------------------------------------------- Is it well?


def test_is_it_well_shows_what_doctor_says_the_worst_first(devtools: str) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig, "well") as shown:
            await shown.until("document.querySelectorAll('#findings tbody tr').length === 3")
            rows = await shown.evaluate(
                "[...document.querySelectorAll('#findings tbody tr')]"
                ".map((row) => [...row.cells].map((cell) => cell.innerText))"
            )
            assert [row[1] for row in rows] == ["sounds.folder", "python", "py3langid"]
            assert rows[0] == ["broken", "sounds.folder", "<b>no</b> such folder"]
            assert "fake" in await text_of(shown, "#engines") and "ready" in await text_of(shown, "#engines")
            assert shown.complaints == []

    run(main)


def test_engines_are_seen_to_load(devtools: str) -> None:
    class Slow(Tones):
        def __init__(self) -> None:
            super().__init__()
            self.go_on = asyncio.Event()
            self.go_on.set()

        async def start(self) -> None:
            logging.getLogger("telephony_tts.engines.slow").warning("reads <b>2</b> of 3 files")
            await self.go_on.wait()
            await super().start()

    async def main() -> None:
        engine = Slow()
        async with with_tools(engine=engine) as rig:
            rig.server.ready = False
            engine.go_on.clear()
            starting = asyncio.create_task(rig.server.catalog.start())  # type: ignore[attr-defined]
            async with console(devtools, rig, "well", is_ready=False) as shown:
                await shown.until("document.querySelector('#engines')?.innerText.includes('loading')")
                assert await text_of(shown, "#health") == "starting"
                assert "reads <b>2</b> of 3 files" in await text_of(shown, "#engines")
                engine.go_on.set()
                await starting
                rig.server.ready = True
                await shown.until("document.querySelector('#health').dataset.state === 'good'")
                told = await text_of(shown, "#engines")
                assert "ready" in told and "files" not in told

    run(main)


# -------------------------------------------------------------------- tokens


def test_the_page_asks_for_the_token_and_no_address_has_it(devtools: str) -> None:
    async def main() -> None:
        token = "a/b+c=(d)"
        async with with_tools(tokens=(token,)) as rig, console(devtools, rig, is_ready=False) as shown:
            await shown.until("document.querySelector('#token-dialog').open")
            await shown.write("#token", "wrong")
            await shown.press("Enter")
            await shown.until("document.querySelector('#health').innerText === 'needs a token'")
            await shown.until("document.querySelector('#token-dialog').open")
            await shown.write("#token", token)
            await shown.press("Enter")
            await shown.until("document.querySelector('#health').dataset.state === 'good'")
            await shown.until("document.querySelectorAll('#voice option').length > 1")
            await shown.evaluate(
                "(() => { window.sockets = []; const Own = WebSocket; window.WebSocket = class extends Own {"
                " constructor(url, ...more) { super(url, ...more); sockets.push(this.url); } }; })()"
            )
            await shown.write("#text", "Hello there.")
            await shown.press("Enter")
            await shown.until("document.querySelector('.turn .heard:only-child') !== null", within_s=15)
            addresses = await shown.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
            sockets = await shown.evaluate("sockets")
            assert len(sockets) == 2, "the two legs of the page's call"
            shown_in = [*addresses, *sockets, await shown.evaluate("location.href")]
            coded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
            hidden = (token, quote(token), quote(token, safe=""), coded)
            assert not [each for each in shown_in if any(form in each for form in hidden)]

    run(main)


# --------------------------------------------------------------------- calls


def test_a_live_call_is_followed_heard_and_ended(devtools: str) -> None:
    async def main() -> None:
        name = "line:7_b.c-d"
        async with (
            with_tools() as rig,
            greeted(rig.url(call=name, audio="binary")) as bot,
            console(devtools, rig, "calls") as shown,
        ):
            await bot.say("Hello <img src=x onerror=window.harmed=1> and so on for a while. " + TEXT)
            await shown.until("document.querySelector('#live')?.innerText.includes('speaking')")
            row = await text_of(shown, "#live tbody tr")
            assert name in row and "stream" in row and "Hello <img src=x" in row and "more words" not in row
            await shown.click("#live button")
            await shown.until("window.heard?.some((sample) => Math.abs(sample) > 300)", within_s=15)
            await shown.until("document.querySelector('#live button').ariaPressed === 'true'")
            await shown.click("#live button:last-of-type")
            assert bot.closed is None, "it asks first"
            await shown.until("document.querySelector('#live button:last-of-type').innerText.includes('Really')")
            await shown.click("#live button:last-of-type")
            assert (await bot.gone())[0] == 1000
            await shown.until("document.querySelector('#live').hidden")
            assert not await shown.evaluate("window.harmed") and shown.complaints == []

    run(main)


def test_a_click_counts_while_what_is_shown_changes(devtools: str) -> None:
    """The rows were made anew every second, and a click was lost when that was between its press and its release."""

    async def main() -> None:
        async with (
            with_tools() as rig,
            greeted(rig.url(call="L1", audio="binary")),
            console(devtools, rig, "calls") as shown,
        ):
            age = "document.querySelector('#live tbody tr').cells[5].innerText"
            await shown.until("document.querySelector('#live button') !== null")
            before = await shown.evaluate(age)
            await shown.click("#live button", held_until=f"{age} > {before!r}")
            await shown.until("document.querySelector('#live button').ariaPressed === 'true'")
            assert await shown.evaluate("document.activeElement.dataset.key") == "listen L1"
            assert shown.complaints == []

    run(main)


def test_the_buttons_of_a_call_stay_where_they_are(devtools: str) -> None:
    """While its text changes, and while another call comes or ends. So does the head of the table."""

    async def main() -> None:
        async with (
            with_tools() as rig,
            greeted(rig.url(call="L1", audio="binary")) as first,
            console(devtools, rig, "calls") as shown,
        ):
            rows = "document.querySelectorAll('#live tbody tr')"
            async with greeted(rig.url(call="L2", audio="binary")) as second:
                await shown.until(f"{rows}.length === 2")
                await shown.evaluate(f"window.row = {rows}[1]; row.querySelector('button').focus()")
                await shown.evaluate("window.titles = document.querySelector('#live thead tr')")
                place = "JSON.stringify(row.querySelector('button').getBoundingClientRect())"
                before = await shown.evaluate(place)
                await first.say(TEXT)
                await second.say(TEXT)
                await shown.until(f"[...{rows}].filter((row) => row.innerText.includes('speaking')).length === 2")
                assert await shown.evaluate(place) == before
                await first.send({"type": "close", "now": True})
                await shown.until(f"{rows}.length === 1")
                assert await shown.evaluate(f"{rows}[0] === window.row && row.cells[0].innerText") == "L2"
                assert await shown.evaluate("document.activeElement.dataset.key") == "listen L2"
                assert await shown.evaluate("document.querySelector('#live thead tr') === titles")
                assert shown.complaints == []

    run(main)


def test_without_a_supervisors_token_nothing_is_heard(devtools: str) -> None:
    async def main() -> None:
        async with (
            with_tools(**BOSS) as rig,
            greeted(rig.url(call="c1", audio="binary", token="bot")) as bot,
            console(devtools, rig, "calls", is_ready=False) as shown,
        ):
            await bot.say(TEXT)
            await shown.until("document.querySelector('#token-dialog').open")
            await shown.write("#token", "bot")
            await shown.press("Enter")
            await shown.until("document.querySelector('#live')?.innerText.includes('speaking')")
            told = await text_of(shown, "#calls")
            assert "c1" in told and "sentence" not in told and "supervisor" in told
            assert await shown.evaluate("document.querySelectorAll('#live button').length") == 0

    run(main)


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[Rig]:
    """A server with a recording of a call, in which the caller said something too."""
    recordings = Recordings(RecordingSettings(folder=str(folder)))
    recordings.open()
    try:
        async with with_tools() as rig:
            rig.server.registry.recordings = recordings
            async with leg(rig, "/media/native") as peer:
                await peer.tell({**START, "call": "line-7"})
                async with greeted(rig.url(call="line-7", audio="none", record="on")) as bot:
                    await bot.say("Hello, this is your bank. How can I help?")
                    for _ in range(60):
                        await peer.tell(bytes((40, 168) * 80))
                        await asyncio.sleep(0.02)
                    await bot.event("done")
            await until(lambda: not len(rig.server.registry), "the end of the call")
            await asyncio.to_thread(recordings._writer.stop, 5)  # type: ignore[union-attr]
            yield rig
    finally:
        await recordings.close()


def test_a_recorded_call_plays_with_both_sides_and_the_words(devtools: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with recorded(tmp_path) as rig, console(devtools, rig, "calls") as shown:
            await shown.until("document.querySelectorAll('#recordings button').length === 1")
            assert "line-7" in await text_of(shown, "#recordings")
            await shown.click("#recordings button")
            await shown.until("document.querySelector('#recorded audio')?.duration > 1")
            story = await text_of(shown, "#recorded .story")
            assert "How can I help?" in story
            await shown.click("#recorded .story button")
            await shown.until("document.querySelector('#recorded audio').currentTime > 0.2")
            painted = await shown.evaluate(
                "(() => { const c = document.querySelector('#recorded canvas');"
                " const pixels = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
                " return pixels.filter((value, n) => n % 4 === 3 && value).length / (pixels.length / 4) })()"
            )
            assert painted > 0.05 and shown.complaints == []

    run(main, within_s=60)


# -------------------------------------------------------------------- voices


def wav(file: Path, pcm: np.ndarray[Any, Any], hz: int = 24_000) -> Path:
    with wave.open(str(file), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(hz)
        written.writeframes(np.rint(pcm * 32767).clip(-32768, 32767).astype("<i2").tobytes())
    return file


def speechlike(seconds: float, level: float) -> np.ndarray[Any, Any]:
    """Syllables of a tone with pauses, over a little noise."""
    t = np.arange(int(seconds * 24_000)) / 24_000
    voice = np.sin(2 * np.pi * 180 * t) * (np.sin(2 * np.pi * 2 * t) > -0.3)
    return level * voice + np.random.default_rng(1).normal(0, 0.0005, len(t))


@pytest.mark.parametrize(
    ("seconds", "level", "found"),
    [(6, 0.3, set()), (6, 3.0, {"clipped", "very loud"}), (1.5, 0.3, {"too short"}), (6, 0.01, {"too quiet"})],
)
def test_a_recording_is_looked_at_before_it_is_sent(
    seconds: float, level: float, found: set[str], devtools: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig, "voices") as shown:
            await shown.upload("#voice-file", wav(tmp_path / "r.wav", speechlike(seconds, level)))
            await shown.until("document.querySelectorAll('#voice-check tbody tr').length === 5")
            told = await text_of(shown, "#voice-check")
            for word in ("clipped", "very loud", "too short", "too quiet", "noisy"):
                assert (word in told) == (word in found), told
            assert await shown.evaluate("document.querySelector('#make-voice').disabled"), "this server makes none"
            assert shown.complaints == []

    run(main)


@pytest.mark.parametrize("content", [b"", b"not a recording", b"RIFF\xff\xff\xff\xffWAVEfmt "])
def test_a_broken_recording_is_told(content: bytes, devtools: str, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "<b>broken.wav"
        file.write_bytes(content)
        async with with_tools() as rig, console(devtools, rig, "voices") as shown:
            await shown.until("document.querySelector('#voice-file') !== null")
            await shown.upload("#voice-file", file)
            told = await shown.until("document.querySelector('#problem').innerText")
            assert "not a recording that can be read" in told
            assert await shown.evaluate("document.querySelector('#voice-check').hidden")

    run(main)


def test_a_lexicon_is_tested_and_saved(devtools: str, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "brands.yaml"
        file.write_text("SQL: sequel\n")
        tools = ConsoleTools(doctor, LexiconFiles({"brands": str(file)}))
        async with with_tools(tools) as rig, console(devtools, rig, "voices") as shown:
            await shown.until("document.querySelector('#lexicons summary') !== null")
            await shown.evaluate("document.querySelector('#lexicons summary').scrollIntoView()")
            await shown.click("#lexicons summary")
            await shown.until("document.querySelector('#lexicons textarea').value === 'SQL: sequel\\n'")
            await shown.write("#lexicons textarea", "nginx: engine x\nnginx: y\n")
            await shown.evaluate("document.querySelectorAll('#lexicons button')[2].click()")
            await shown.until("document.querySelector('#lexicons pre').innerText.includes('given before')")
            assert file.read_text() == "SQL: sequel\n"
            await shown.write("#lexicons textarea", "nginx: engine x\n")
            await shown.write("#lexicons input", "Ask nginx.")
            await shown.evaluate("document.querySelectorAll('#lexicons button')[0].click()")
            await shown.until("document.querySelector('#lexicons pre').innerText.includes('Ask engine x.')")
            await shown.evaluate("document.querySelectorAll('#lexicons button')[2].click()")
            await shown.until("document.querySelector('#lexicons pre').innerText.includes('saved: 1 entries')")
            assert file.read_text() == "nginx: engine x\n"

    run(main)


# ------------------------------------------------------------------- compare


def test_a_blind_comparison_hides_which_is_which_and_counts(devtools: str) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig, "compare") as shown:
            await shown.until("document.querySelectorAll('#voice-A option').length > 0")
            await shown.write("#compare-text", "Hello there.")
            await shown.choose("#speed-B", "1.5")
            await shown.click("#blind")
            await shown.click("#prepare")
            await shown.until("document.querySelectorAll('#pair button').length === 2")
            told = await text_of(shown, "#pair")
            assert "Play X" in told and "1.5" not in told
            await shown.click("#play-0")
            await shown.until("window.heard?.some((sample) => Math.abs(sample) > 300)")
            await shown.click("#vote-1")
            told = await text_of(shown, "#pair")
            assert "× 1.5" in told
            row = "[...document.querySelectorAll('#tally tbody td')].map((cell) => cell.innerText)"
            cells = await shown.evaluate(row)
            assert sorted([cells[1], cells[3]]) == ["0", "1"] and cells[4] == "0"
            chosen = await shown.evaluate("document.querySelector('#compare-state').value")
            assert ("1.5" in chosen) == (cells[3] == "1")
            assert await shown.evaluate("document.querySelector('#vote-0').disabled"), "one vote for each pair"
            await shown.evaluate(
                "(() => { const make = URL.createObjectURL;"
                " URL.createObjectURL = (blob) => { window.saved = blob; return make.call(URL, blob); }; })()"
            )
            await shown.click("#save-tally")
            saved = json.loads(await shown.evaluate("saved.text()"))
            (count,), (round_,) = saved["tally"], saved["rounds"]
            assert (count["n_a"], count["n_b"], count["n_same"]) == (int(cells[1]), int(cells[3]), 0)
            assert (round_["blind"], round_["chosen"]) == (True, "b" if cells[3] == "1" else "a")
            # The second one was chosen.
            assert round_["heard_first"] != round_["chosen"] and round_["b"]["speed"] == 1.5
            assert shown.complaints == []

    run(main)


# ------------------------------------------------------- what holds for all pages


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("dark", [False, True])
def test_everyone_can_use_the_page(name: str, dark: bool, devtools: str) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig, name) as shown:
            await shown.resize(*WIDTHS["wide"], dark=dark)
            await filled(shown, name, options=True)
            assert await violations(shown) == []
            assert shown.complaints == []

    run(main)


async def filled(shown: Page, name: str, *, options: bool = False) -> None:
    """Bring the page into the state that has the most to see."""
    if name == "say":
        await shown.evaluate(f"document.querySelector('#options').open = {str(options).lower()}")
        await shown.write("#text", "Hello, this is your bank. Your balance is $42.50 today, and there is more to come.")
        await shown.press("Enter")
        await shown.until("document.querySelectorAll('.turn .heard').length > 4", within_s=15)
        await shown.press("Space")
        await shown.until("document.querySelector('.turn .unheard') !== null")
    elif name == "well":
        await shown.until("document.querySelectorAll('#findings tbody tr').length === 3")
    elif name == "compare":
        await shown.until("document.querySelectorAll('#voice-A option').length > 0")
        await shown.write("#compare-text", "Hello there.")
        await shown.click("#prepare")
        await shown.until("document.querySelectorAll('#pair button').length === 2")
        await shown.evaluate("document.querySelector('#vote-0').click()")
    elif name == "voices":
        await shown.until("document.querySelectorAll('#voice-list .card').length > 0")
    await settled(shown)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_fits_its_width(name: str, width: str, devtools: str) -> None:
    pictures = os.environ.get("CONSOLE_PICTURES")

    async def main() -> None:
        async with (
            with_tools() as rig,
            greeted(rig.url(call="line-1", audio="binary")) as bot,
            console(devtools, rig, name) as shown,
        ):
            await shown.resize(*WIDTHS[width], dark=False)
            if name == "calls":
                await bot.say(TEXT)
                await shown.until("document.querySelector('#live')?.innerText.includes('speaking')")
            await filled(shown, name)
            # Not innerWidth: a telephone's browser makes it larger if something does not fit.
            assert await shown.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0]
            await picture(shown, Path(pictures) if pictures else None, f"{name}-{width}")

    run(main)


def test_the_page_speaks_chinese(devtools: str) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig) as shown:
            await shown.choose("#language", "zh")
            assert "说话" in await text_of(shown, "nav") and "播放" in await text_of(shown, "#say-form")
            assert await shown.evaluate("document.documentElement.lang") == "zh-CN"
            await shown.until("document.querySelector('#health').innerText === '就绪'", within_s=3)
            for name in PAGES:
                await shown.evaluate(f"location.hash = '#{name}'")
                await shown.until(f"!document.querySelector('#{name}').hidden")
                await settled(shown)
                english = await shown.evaluate(
                    f"[...document.querySelectorAll('#{name} :is(button, h1, h2, summary, th)')]"
                    ".flatMap((element) => element.innerText.split('\\n')).filter((text) => /[a-z]{4}/.test(text))"
                )
                assert [text for text in english if text not in ("fake", "python", "py3langid", "sounds.folder")] == []

    run(main)


class EnglishOnly(Tones):
    """Tones for Latin letters alone. `is_missing`: its package is not installed."""

    is_missing = False

    def check(self, utterance: Utterance) -> None:
        if self.is_missing:
            raise EngineUnavailable("tones need the package tones: pip install tones")
        if not utterance.text.isascii():
            raise UnsupportedText("tones are English only, not CJK letters")
        super().check(utterance)


def test_what_the_server_refuses_is_told_in_the_language_of_the_page(devtools: str, tmp_path: Path) -> None:
    """Pinned: the server's English stood alone on the Chinese page. Its details stay."""
    file = tmp_path / "brands.yaml"
    file.write_text("SQL: sequel\n")
    engine = EnglishOnly()

    async def main() -> None:
        tools = ConsoleTools(None, LexiconFiles({"brands": str(file)}))
        async with with_tools(tools, engine=engine) as rig, console(devtools, rig) as shown:

            async def told(part: str, where: str = "#problem") -> str:
                """What the page tells, once it has this part."""
                text = f"document.querySelector('{where}').innerText"
                found: str = await shown.until(f"{text}.includes('{part}') && {text}")
                return found

            async def said(text: str) -> None:
                await shown.write("#text", text)
                await shown.press("Enter")

            for language, refused, unknown in (
                ("zh", "此音色不能朗读这种语言或文字：tones are", "没有此音色："),
                ("en", "tones are", "no voice"),
            ):
                await shown.choose("#language", language)
                await said("您好")
                assert (await told("English only, not CJK letters")).startswith(refused)
                await shown.evaluate("document.querySelector('#voice').append(new Option('gone', 'fake/gone'))")
                await shown.evaluate("document.querySelector('#voice').value = 'fake/gone'")
                await said("Hello.")
                assert (await told("gone")).startswith(unknown)
                await shown.evaluate("document.querySelector('#voice').value = ''")
            await shown.choose("#language", "zh")
            engine.is_missing = True
            await said("Hello.")
            assert (await told("pip install tones")).startswith("引擎未安装或不可用：tones need")
            await shown.evaluate("location.hash = '#well'")
            assert (await told("run .venv/bin/telephony-tts doctor")).startswith("引擎未安装或不可用：")
            await shown.evaluate("location.hash = '#voices'")
            await shown.until("document.querySelector('#lexicons summary') !== null")
            await shown.evaluate("document.querySelector('#lexicons summary').click()")
            await shown.until("document.querySelector('#lexicons textarea').value === 'SQL: sequel\\n'")
            await shown.write("#lexicons textarea", "nginx: engine x\nnginx: y\n")
            for button in (0, 2):  # test, and save
                await shown.evaluate(f"document.querySelectorAll('#lexicons button')[{button}].click()")
                assert (await told("given before", "#lexicons pre")).startswith("内容有误：")
                await shown.evaluate("document.querySelector('#lexicons pre').innerText = ''")

    run(main)


def test_light_and_dark_can_be_chosen(devtools: str) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig) as shown:
            ground = "getComputedStyle(document.body).backgroundColor"
            light = await shown.evaluate(ground)
            await shown.click("#theme")
            dark = await shown.evaluate(ground)
            assert light != dark
            await shown.click("#theme")
            assert await shown.evaluate(ground) == light

    run(main)


def test_the_page_is_light_enough_to_load(devtools: str) -> None:
    async def main() -> None:
        async with with_tools() as rig, console(devtools, rig) as shown:
            for name in PAGES:
                await shown.evaluate(f"location.hash = '#{name}'")
                await shown.until(f"!document.querySelector('#{name}').hidden")
                await settled(shown)
            n_bytes = await shown.evaluate(
                "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
                ".filter((entry) => !entry.name.includes('/api/'))"
                ".reduce((sum, entry) => sum + entry.decodedBodySize, 0)"
            )
            assert 50_000 < n_bytes < 150_000

    run(main)
