"""CosyVoice2 with several fronts: one engine process speaks for all of them, on a tiny model with random weights."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_process import ForkServer
from front_server import FrontServer, front_server
from rig import Bot, run, until
from test_front_faults import serve
from test_http_voices import good
from voice_form import voice_form
from websockets.asyncio.client import connect

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

TEXT = "Thank you for calling."
TINY = ("engines.default=cosyvoice2", "engines.cosyvoice2.workers=1", "engines.cosyvoice2.threads=1",
        "engines.cosyvoice2.dtype=float32", "engines.cosyvoice2.flow_steps=3", "speech.voice=prompted")  # fmt: skip


@pytest.fixture(scope="module")
def server(short_of_module: Path, forks: ForkServer) -> Iterator[FrontServer]:
    model = short_of_module / "model"
    write_random_checkpoint(model)
    with front_server(short_of_module, *TINY, f"engines.cosyvoice2.model={model}", forks=forks) as server:
        yield server


def engine_pid(server: FrontServer) -> int:
    return int(server.logged("engine_started")[-1]["pid"])


def request(server: FrontServer, path: str, body: bytes | None = None, method: str = "GET", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, named, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        told = refused.read()
        logged = [line for line in server.log if line["level"] == "error"] if refused.code >= 500 else ""
        why = f"{refused.reason}: {told.decode()} {logged}"
        raise urllib.error.HTTPError(refused.url, refused.code, why, refused.headers, io.BytesIO(told)) from None


def names(server: FrontServer) -> list[str]:
    return [voice["name"] for voice in json.loads(request(server, "/v1/voices"))["voices"]]


async def speaks(server: FrontServer, call: str, front: int, voice: str = "") -> Bot:
    """A call of this front that has spoken a turn."""
    with server.stopped(1 - front):
        options = {"call": call, "audio": "binary", **({"voice": voice} if voice else {})}
        bot = Bot(await connect(server.url(**options), proxy=None, max_queue=None))
        await bot.event("ready")
    assert server.owner(call) == front
    await bot.say(TEXT, "a")
    await bot.event("done", turn="a", within_s=30)
    assert sum(map(len, bot.frames)) > 2_000
    return bot


def test_one_engine_speaks_for_all_fronts(server: FrontServer) -> None:
    async def main() -> None:
        for front in (0, 1):
            bot = await speaks(server, f"E{front}", front)
            await bot.aclose()

    run(main, within_s=90)
    assert len(server.logged("engine_started")) == 1
    loaded = {
        pid: any("torch" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
        for pid in server.pids.values()
    }
    assert not any(loaded.values()), "no front has loaded PyTorch"
    queued = server.metric('telephony_tts_engine_queued{engine="cosyvoice2"}')
    assert queued == 0


def test_a_voice_that_comes_through_one_front_speaks_on_both(server: FrontServer) -> None:
    form, body = voice_form({"name": "anna", "text": "Thank you for calling."}, good())
    made = json.loads(request(server, "/v1/voices", body, "POST", Content_Type=form))
    assert made["name"] == "anna" and made["removable"]
    assert made["languages"] and made["sample_rate_hz"], "the engine knows it"
    for front in (0, 1):
        with server.stopped(front):
            assert "anna" in names(server)

    async def main() -> None:
        for front in (0, 1):
            bot = await speaks(server, f"V{front}", front, "anna")
            await bot.aclose()

    run(main, within_s=90)
    request(server, "/v1/voices/anna", method="DELETE")
    for front in (0, 1):
        with server.stopped(front):
            assert "anna" not in names(server)
    with pytest.raises(urllib.error.HTTPError) as unknown:
        request(server, "/v1/voices/anna", method="DELETE")
    assert unknown.value.code == 404
    unknown.value.close()


def test_calls_survive_the_end_of_the_engine(server: FrontServer) -> None:
    async def main() -> None:
        bots = [await speaks(server, f"K{front}", front) for front in (0, 1)]
        before = engine_pid(server)
        os.kill(before, signal.SIGKILL)
        await until(lambda: len(server.logged("engine_started")) == 2, "another engine", 20)
        ready_by = asyncio.get_running_loop().time() + 60
        for bot in bots:
            n = 0
            while True:
                n += 1
                await bot.say(TEXT, f"again{n}")
                await until(lambda bot=bot, n=n: bot.terminals(f"again{n}"), "the turn has ended", 40)
                if bot.terminals(f"again{n}") == ["done"]:
                    break
                assert asyncio.get_running_loop().time() < ready_by, bot.events[-3:]
                await asyncio.sleep(0.5)
            await bot.aclose()

    run(main, within_s=150)
    (ended,) = server.logged("engine_process_ended")
    assert ended["how"] == "SIGKILL" and not server.logged("front_ended")


def test_an_engine_that_cannot_start_ends_the_server_and_says_why(short: Path) -> None:
    failed = serve(*TINY, f"engines.cosyvoice2.model={short}/nowhere", folder=short, within_s=150)
    assert failed.returncode == 1
    assert f"{short}/nowhere" in failed.stderr.strip().splitlines()[-1]
