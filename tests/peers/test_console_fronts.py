"""The console's page "Calls" in a real Chromium, on a server with two processes that have a call each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import chromium, page
from front_server import FrontServer, front_server
from rig import greeted, run

pytestmark = [pytest.mark.peer, pytest.mark.slow]

TEXT = "This is a sentence that takes a while to be spoken, and then it goes on with some more words. " * 4


@pytest.fixture
def server() -> Iterator[FrontServer]:
    folder = Path(tempfile.mkdtemp(prefix="fronts-"))
    try:
        with front_server(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder)


def test_the_calls_of_both_processes_are_followed_heard_and_ended(server: FrontServer) -> None:
    async def main(devtools: str) -> None:
        async with greeted(server.url(call="first", audio="binary")) as first:
            owner = server.owner("first")
            assert owner is not None
            with server.stopped(owner):
                entering = greeted(server.url(call="second", audio="binary"))
                second = await entering.__aenter__()
            try:
                assert server.owner("second") == server.other(owner)
                async with page(devtools, f"http://127.0.0.1:{server.port}/console/#calls") as shown:
                    await first.say(TEXT)
                    await second.say(TEXT)
                    rows = "[...document.querySelectorAll('#live tbody tr')]"
                    speaks = f"{rows}.filter((row) => row.innerText.includes('speaking')).length === 2"
                    await shown.until(speaks)
                    assert await shown.evaluate(f"{rows}.map((row) => row.cells[0].innerText)") == ["first", "second"]
                    for call in ("first", "second"):  # one of them belongs to the other process
                        await shown.evaluate("window.heard.splice(0)")
                        await shown.click(f'[data-key="listen {call}"]')
                        await shown.until("window.heard.some((sample) => Math.abs(sample) > 300)")
                        await shown.click(f'[data-key="listen {call}"]')
                        await shown.until("!document.querySelector('[aria-pressed=true][data-key^=listen]')")
                    for call, bot in (("first", first), ("second", second)):
                        await shown.click(f'[data-key="hang {call}"]')
                        await shown.until(f"document.querySelector('[data-key=\"hang {call}\"]').innerText[0] === 'R'")
                        await shown.click(f'[data-key="hang {call}"]')
                        assert (await bot.gone())[0] == 1000
                        n_left = 1 if bot is first else 0
                        await shown.until(f"{rows}.length === {n_left}")
                    assert shown.complaints == []
            finally:
                await entering.__aexit__(None, None, None)

    with chromium() as devtools:
        run(lambda: main(devtools), within_s=60)
