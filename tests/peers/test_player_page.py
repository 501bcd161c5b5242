"""examples/player.html in a real Chromium: what it plays, its button Stop, and pages that may not use the server."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from browser import chromium, page
from http_peer import ask
from rig import Rig, Tones, correlation, rendering, run, serving, until

pytestmark = [pytest.mark.peer, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPEAK, STOP = "button:not([type])", "button[name=stop]"
SENTENCES = ["Hello, this is your bank.", "Your balance is forty two dollars and fifty cents today."]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def site() -> Iterator[str]:
    """A server of the folder `examples`; its origin."""
    handler = functools.partial(_Quiet, directory=str(EXAMPLES))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def devtools() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture(scope="module")
def listed() -> Iterator[str]:
    with site() as origin:
        yield origin


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    with site() as origin:
        yield origin


def player(origin: str, rig: Rig) -> str:
    return f"{origin}/player.html?{urlencode({'server': f'http://127.0.0.1:{rig.port}'})}"


def without_silence(pcm: np.ndarray) -> np.ndarray:
    """Without the silence before and behind the sound."""
    at = np.flatnonzero(pcm)
    return pcm[at[0] : at[-1] + 1] if at.size else pcm[:0]


def test_the_page_plays_the_speech_without_a_gap(devtools: str, listed: str) -> None:
    async def main() -> None:
        async with serving(origins=(listed,)) as rig, page(devtools, player(listed, rig)) as shown:
            await shown.click(SPEAK)
            said = await shown.until("document.querySelector('output').value.includes('of speech') && "
                                     "document.querySelector('output').value")  # fmt: skip
            assert said.startswith("first sound after ") and said.endswith(" s of speech")
            assert rig.engine.spoken == SENTENCES  # type: ignore[attr-defined]
            query = urlencode({"text": " ".join(SENTENCES), "format": "pcm"})
            wanted = np.frombuffer((await ask(rig.port, "GET", f"/tts/stream?{query}")).body, "<i2")
            assert correlation(wanted, rendering(SENTENCES, 24_000)) > 0.99
            await shown.until(f"window.heard.length > {wanted.size + 24_000}", within_s=20)  # at the pace of speech
            heard = without_silence(np.array(await shown.heard()))
            assert np.array_equal(heard, without_silence(wanted))

    run(main)


def test_stop_ends_the_request_and_the_sound(devtools: str, listed: str) -> None:
    async def main() -> None:
        engine = Tones(speed=1.0)
        async with serving(engine, origins=(listed,)) as rig, page(devtools, player(listed, rig)) as shown:
            for n_times in (1, 2):
                await shown.click(SPEAK)
                await shown.until("window.heard.some((sample) => sample)")
                assert engine.n_live == 1
                await shown.click(STOP)
                await until(lambda: engine.n_live == 0 and not len(rig.server.registry), "the engine is free", 2)
                await shown.until("document.querySelector('output').value === 'stopped'")
                assert engine.spoken == SENTENCES[:1] * n_times
                n_heard = await shown.evaluate("window.heard.splice(0).length")
                assert n_heard < 24_000 * 3
                assert not await shown.evaluate("new Promise((then) => setTimeout(() => then(heard.length), 500))")
                await shown.click(STOP)  # once more does nothing

    run(main)


def test_the_page_of_another_origin_is_refused(devtools: str, listed: str, other: str) -> None:
    async def main() -> None:
        async with serving(origins=(listed,)) as rig, page(devtools, player(other, rig)) as shown:
            await shown.click(SPEAK)
            said = await shown.until("document.querySelector('output').value")
            assert said == "Failed to fetch"
            assert not any(await shown.heard()) and rig.engine.spoken == []  # type: ignore[attr-defined]

    run(main)
