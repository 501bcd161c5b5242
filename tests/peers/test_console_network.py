"""The console's page "Say it" over a bad network: what its user hears, what the page says, and how it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from browser import Page
from console_page import console
from late_network import HOST, LateNetwork, late_network
from rig import Rig, delayed_correlation, greeted, run, serving, until
from test_console_say import FINE_HZ, LOUD, from_first_sound, said, sound_in, turn, type_and_enter

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

TEXT = "Hello, this is your bank. Your balance is forty two dollars and fifty cents today."
SHORT = "Hello there."
MEDIUM = "Hello, this is your bank. It is open today."
LONG_SENTENCE = "Your parcel left the depot on Tuesday and it should arrive before noon, if nothing comes between."
LONG = f"{LONG_SENTENCE} " * 3
_ENDED = "(async () => (await import('./say.js')).turns[0].endedAt !== null)()"
_NEWEST = "(await import('./say.js')).turns[0]"


@asynccontextmanager
async def behind(devtools: str, rig: Rig, **how: float) -> AsyncIterator[tuple[LateNetwork, Page]]:
    """The page behind a network."""
    async with late_network(rig.port, **how) as network:
        async with console(devtools, rig, address=f"{HOST}:{network.port}") as shown:
            yield network, shown
        network.come_back()
        await until(lambda: not len(rig.server.registry), "the end of the page's call")


async def of_turn(shown: Page, expression: str) -> Any:
    """A value of the newest turn, which is `turn` in the expression."""
    return await shown.evaluate(f"(async () => {{ const turn = {_NEWEST}; return {expression}; }})()")


async def until_turn(shown: Page, expression: str, within_s: float = 20) -> None:
    await shown.until(f"(async () => {{ const turn = {_NEWEST}; return {expression}; }})()", within_s)


async def figures(shown: Page) -> dict[str, float]:
    """What the table shows of the newest turn, as numbers."""
    rows: dict[str, str] = await shown.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#figures tbody tr')].map((row) =>"
        " [row.cells[0].textContent, row.cells[1].textContent]))"
    )
    return {name: float(value) for name, value in rows.items() if value != "–"}


def seconds_of_sound(pcm: np.ndarray[Any, Any]) -> float:
    """How much of it is sound. The few quiet samples of a tone are missing on both sides of a comparison."""
    return float((np.abs(pcm) > LOUD).sum() / FINE_HZ)


def test_on_a_slow_network_the_speech_is_whole_and_the_waterfall_shows_the_network(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, behind(devtools, rig, latency_ms=400, bytes_per_s=50_000) as (_, shown):
            await type_and_enter(shown, SHORT)
            await shown.until(_ENDED, within_s=30)
            told = await turn(shown)
            assert (told["heard"], told["pale"]) == (SHORT, "")
            await type_and_enter(shown, SHORT)  # the first one also opened the call
            await shown.until(_ENDED, within_s=30)
            row = await figures(shown)
            assert row["network and browser"] >= 380 and row["gaps"] == 0
            assert 400 <= row["first audio in the page"] < row["first sound heard"]
            await shown.evaluate("window.heard.splice(0)")
            await type_and_enter(shown, MEDIUM)
            await shown.until(_ENDED, within_s=30)
            wanted = from_first_sound(await said(MEDIUM))
            await shown.until(f"window.heard.length > window.heardIn.sampleRate * {len(wanted) / FINE_HZ + 1}", 20)
            assert delayed_correlation(np.pad(from_first_sound(await sound_in(shown)), (40, 0)), wanted) >= 0.99
            assert shown.complaints == []

    run(main, within_s=90)


def test_a_network_that_is_too_slow_makes_gaps_and_loses_nothing(devtools: str) -> None:
    """The engine's own rate needs 48 kB/s. The server waits two seconds for the page's last mark, and the
    sound is later: the page goes on to its end."""

    async def main() -> None:
        async with serving() as rig, behind(devtools, rig, bytes_per_s=24_000) as (_, shown):
            await shown.choose("#quality", "engine")
            await type_and_enter(shown, TEXT)
            await shown.until("document.querySelector('#say-state').value.includes('waiting for more sound')", 30)
            await shown.until(_ENDED, within_s=30)
            told = await turn(shown)
            assert (told["heard"], told["pale"]) == (TEXT, "")
            row = await figures(shown)
            gaps = await of_turn(shown, "turn.gaps")
            assert row["gaps"] == len(gaps) >= 1 and row["gaps of the engine"] == 0
            # What the table calls silence is silence in the loudspeaker, and all else was heard.
            wanted = await said(TEXT, 24_000, "pcm")
            await asyncio.sleep(0.8)  # the last sound leaves the loudspeaker
            heard = await sound_in(shown)
            assert abs(seconds_of_sound(heard) - seconds_of_sound(wanted)) < 0.15
            loud = np.flatnonzero(np.abs(heard) > LOUD)
            spent_s = (loud[-1] - loud[0]) / FINE_HZ
            wanted_s = len(from_first_sound(wanted)) / FINE_HZ
            assert abs(spent_s - wanted_s - row["silence in the gaps"] / 1000) < 0.3
            # Each gap waits for more than the one before, so there are few.
            assert len(gaps) <= 12
            red = await shown.evaluate(
                "(() => { const c = document.querySelector('#bars');"
                " const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;"
                " for (let i = 0; i < p.length; i += 4) n += p[i] === 179 && p[i + 1] === 38 && p[i + 2] === 30;"
                " return n; })()"
            )
            assert red > 50 * len(gaps), "each gap is a red line in the picture"
            assert shown.complaints == []

    run(main, within_s=90)


def test_a_network_that_is_gone_for_a_moment_makes_one_gap_and_the_speech_goes_on(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, behind(devtools, rig) as (network, shown):
            await type_and_enter(shown, LONG_SENTENCE)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            network.go()
            await shown.until("document.querySelector('#say-state').value.includes('waiting for more sound')")
            await asyncio.sleep(1)
            network.come_back()
            await shown.until("document.querySelector('#say-state').value.includes('goes on after a gap')")
            await shown.until("document.querySelector('.turn .heard:only-child') !== null", within_s=30)
            assert (await turn(shown))["heard"] == LONG_SENTENCE
            (gap,) = await of_turn(shown, "turn.gaps")
            assert 1000 < gap["gap_ms"] < 3000
            assert await shown.evaluate("document.querySelector('#problem').hidden") and shown.complaints == []

    run(main, within_s=60)


def test_a_network_that_stays_away_is_told_and_the_page_comes_back_by_itself(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, behind(devtools, rig) as (network, shown):
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 2", within_s=15)
            network.go()
            await shown.network(is_there=False)
            await shown.until("document.querySelector('#health').innerText === 'no network'")
            assert await shown.evaluate("document.querySelector('#say-state').value") == "no network: waiting …"
            await shown.until("!document.querySelector('#problem').hidden", within_s=20)
            told = await shown.evaluate("document.querySelector('#problem').innerText")
            assert "connection to the server was lost (it does not answer). Connecting again" in told
            over = await turn(shown)
            assert over["heard"] and over["pale"] and over["heard"] + over["pale"] == LONG and "lost" in over["foot"]
            assert await shown.evaluate("document.querySelector('#interrupt').disabled")
            network.come_back()
            await shown.network(is_there=True)
            await shown.until("document.querySelector('#problem').innerText.includes('It is back')", within_s=15)
            await shown.evaluate("window.heard.splice(0)")
            await type_and_enter(shown, SHORT)
            await shown.until("document.querySelector('.turn .heard:only-child') !== null", within_s=20)
            assert (await turn(shown))["heard"] == SHORT
            assert await shown.evaluate("document.querySelector('#problem').hidden") and shown.complaints == []

    run(main, within_s=90)


def test_an_interruption_that_the_network_swallows_is_silence_at_once(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, behind(devtools, rig) as (network, shown):
            await type_and_enter(shown, LONG)
            await shown.until("document.querySelectorAll('.turn .heard').length > 3", within_s=15)
            network.go()
            await shown.press("Space")
            await asyncio.sleep(0.4)
            await shown.evaluate("window.heard.splice(0)")
            await asyncio.sleep(0.5)
            assert np.abs(np.array(await shown.heard() or [0])).max() <= LOUD
            await shown.until("document.querySelector('.turn .unheard') !== null", within_s=20)
            told = await turn(shown)
            assert told["heard"] + told["pale"] == LONG and 3 < len(told["heard"].split()) < len(LONG_SENTENCE.split())
            assert "interrupted after" in told["foot"]
            row = await figures(shown)
            assert row["key → silence"] < 100 and row["text → interrupted or failed"] < 8000

    run(main, within_s=60)


def test_a_server_that_does_not_answer_is_told_and_the_text_stays(devtools: str) -> None:
    async def main() -> None:
        async with serving() as rig, behind(devtools, rig) as (network, shown):
            network.go()
            await type_and_enter(shown, TEXT)
            await shown.until("document.querySelector('#say-state').value.includes('connecting')")
            await shown.until("document.querySelector('#problem').innerText.includes('did not answer for 10 s')", 20)
            assert await shown.evaluate("document.querySelector('#text').value") == TEXT
            assert await shown.evaluate("document.querySelectorAll('.turn').length") == 0
            network.come_back()
            await type_and_enter(shown, SHORT)
            await shown.until("document.querySelector('.turn .heard:only-child') !== null", within_s=20)
            assert (await turn(shown))["heard"] == SHORT

    run(main, within_s=60)


def test_the_calls_page_says_when_it_is_out_of_date_and_goes_on_by_itself(devtools: str) -> None:
    async def main() -> None:
        async with (
            serving() as rig,
            greeted(rig.url(call="line-1", audio="binary")) as bot,
            late_network(rig.port) as network,
            console(devtools, rig, "calls", address=f"{HOST}:{network.port}") as shown,
        ):
            row = "document.querySelector('#live tbody tr')?.innerText.includes"
            await shown.until(f"{row}('silent')")
            network.go()
            await shown.until("document.querySelector('#problem').innerText.includes('said nothing for 5 s')", 15)
            assert await shown.evaluate("document.querySelector('#live').className") == "stale"
            await bot.say(LONG)
            await bot.frames_to(5)
            network.come_back()
            await shown.until(f"{row}('speaking')", within_s=15)
            assert await shown.evaluate("document.querySelector('#live').className") == ""
            assert await shown.evaluate("document.querySelector('#problem').hidden") and shown.complaints == []
            await bot.send({"type": "clear"})

    run(main, within_s=60)
