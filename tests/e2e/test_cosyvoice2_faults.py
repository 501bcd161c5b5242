"""Faults of CosyVoice2 as callers and operators see them: a real `serve`, a tiny model, broken on purpose."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_child import engine_pid, is_alive
from forked_process import ForkServer
from rig import Bot, gather, get
from served import process
from websockets.asyncio.client import connect

from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer

pytestmark = [pytest.mark.timed, pytest.mark.thorough]

WAIT_S = 30.0
BAD, GOOD = "Zebras.", "Your parcel left the depot on Tuesday morning."


MAKE_NON_FINITE = """
import math, sys, torch

file, row = sys.argv[1:]
state = torch.load(file, weights_only=True)
state["llm.model.model.embed_tokens.weight"][int(row)] = math.nan
torch.save(state, file)
"""


@pytest.fixture
def model_dir(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def make_non_finite_for(text: str, model_dir: Path, forks: ForkServer) -> None:
    """Fill with NaN an embedding row that `text` needs and the other texts here do not."""
    tokenizer = TextTokenizer(model_dir / "CosyVoice-BlankEN")
    others = {n for other in (GOOD, "Hello.", "Bye.") for n in tokenizer.encode(other)}
    (bad, *_) = [n for n in tokenizer.encode(text) if n not in others]
    command = [sys.executable, "-P", "-c", MAKE_NON_FINITE, str(model_dir / "llm.pt"), str(bad)]
    assert forks.Popen(command).wait(WAIT_S) == 0


async def ready_is(port: int, status: int) -> None:
    end_s = time.monotonic() + WAIT_S
    while (answer := await get(port, "/readyz"))[0] != status:
        assert time.monotonic() < end_s, answer
        await asyncio.sleep(0.02)


async def logged(log: Path, what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while what not in await asyncio.to_thread(log.read_text):
        assert time.monotonic() < end_s, f"nothing logged {what}"
        await asyncio.sleep(0.02)


async def called(port: int, voice: str) -> Bot:
    url = f"ws://127.0.0.1:{port}/v1/stream?audio=binary&voice={voice}"
    return Bot(await connect(url, proxy=None, max_queue=None))


@pytest.mark.usefixtures("forked_server")
def test_a_non_finite_word_and_then_a_damaged_checkpoint(
    model_dir: Path, tmp_path: Path, server_forks: ForkServer
) -> None:
    """The non-finite word ends only its own turn. Then a file is truncated and the engine dies: calls of the other
    engine go on, /readyz reports it, and the log names the file. With the file restored the engine works again."""
    make_non_finite_for(BAD, model_dir, server_forks)
    log = tmp_path / "log"
    whole = (model_dir / "flow.pt").read_bytes()

    async def word(one: Bot, two: Bot) -> None:
        for n in range(2):
            await gather(one.say(BAD, f"bad{n}"), two.say(GOOD, f"good{n}"))
            error = await one.event("error", turn=f"bad{n}", within_s=WAIT_S)
            assert error["code"] == "engine_failed" and not error["fatal"] and "not finite" in error["message"]
            assert error["heard_text"] + error["unheard_text"] == BAD
            assert (await two.event("done", turn=f"good{n}", within_s=WAIT_S))["audio_ms"] > 500
        await one.say("Bye.", "after")
        await one.event("done", turn="after", within_s=WAIT_S)
        assert one.closed is None and two.closed is None

    async def damage(port: int, pid: int, one: Bot, other: Bot) -> None:
        (model_dir / "flow.pt").write_bytes(whole[: len(whole) // 2])
        os.kill(pid, signal.SIGKILL)
        await ready_is(port, 503)
        await one.say(GOOD, "early")
        error = await one.event("error", turn="early", within_s=WAIT_S)
        assert error["retryable"] and not error["fatal"] and "started again" in error["message"]
        await other.say("The other voice speaks on.", "other")
        assert (await other.event("done", turn="other", within_s=WAIT_S))["underruns"] == 0
        await logged(log, "starting it again in 1 s")
        assert (await get(port, "/readyz"))[0] == 503 and (await get(port, "/healthz"))[0] == 200
        (model_dir / "flow.pt").write_bytes(whole)
        await ready_is(port, 200)
        await one.say("Bye.", "again")
        await one.event("done", turn="again", within_s=WAIT_S)

    async def main(port: int, pid: int) -> None:
        async with asyncio.timeout(100):
            bots = [await called(port, voice) for voice in ("cosyvoice2/preset", "cosyvoice2/prompted", "hibari/heart")]
            await word(*bots[:2])
            await damage(port, pid, bots[0], bots[2])
            for bot in bots:
                await bot.aclose()

    arguments = ["--set", "engines.default=cosyvoice2", "--set", f"engines.cosyvoice2.model={model_dir}",
                 "--set", "engines.cosyvoice2.flow_steps=3", "--set", "engines.hibari.workers=1"]  # fmt: skip
    with process(*arguments, log=log) as (served, port):
        asyncio.run(main(port, engine_pid(served)))
        served.send_signal(signal.SIGTERM)
        status, errors = served.wait(20), log.read_text()
        assert status == 0, errors
        assert "flow.pt cannot be read" in errors
        assert "Traceback" not in errors


@pytest.mark.usefixtures("forked_server")
def test_the_report_of_a_turn_has_its_wait_for_a_slot(tiny_model: Path) -> None:
    """One slot and two calls that begin together: `queue_ms` of one of them is its wait for the other."""

    async def main(port: int) -> None:
        async with asyncio.timeout(60):
            bots = [await called(port, "cosyvoice2/preset") for _ in range(2)]
            for turn in "ab":  # the first time the voice is made ready, too
                await gather(*(bot.say(GOOD, turn) for bot in bots))
                done = [await bot.event("done", turn=turn, within_s=WAIT_S) for bot in bots]
            for bot in bots:
                await bot.aclose()
        first, second = sorted((event["latency"] for event in done), key=lambda latency: latency["queue_ms"])
        assert 0 <= first["queue_ms"] < second["queue_ms"] < second["first_audio_ms"]
        assert second["queue_ms"] > first["queue_ms"] + first["first_pcm_ms"], "it began after the other had audio"
        for latency in (first, second):
            assert latency["queue_ms"] + latency["first_pcm_ms"] <= latency["first_audio_ms"] + 1

    arguments = ["--set", "engines.default=cosyvoice2", "--set", f"engines.cosyvoice2.model={tiny_model}",
                 "--set", "engines.cosyvoice2.slots=1", "--set", "engines.cosyvoice2.flow_steps=3"]  # fmt: skip
    with process(*arguments) as (_, port):
        asyncio.run(main(port))


def test_a_server_that_is_killed_leaves_no_engine(model_dir: Path) -> None:
    arguments = ["--set", "engines.default=cosyvoice2", "--set", f"engines.cosyvoice2.model={model_dir}"]
    with process(*arguments) as (served, _):
        pid = engine_pid(served)
        served.kill()
        served.wait(WAIT_S)
        end_s = time.monotonic() + WAIT_S
        while is_alive(pid):
            assert time.monotonic() < end_s, "the engine's process outlives the server"
            time.sleep(0.02)


@contextmanager
def starting(model_dir: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that has just logged that it is starting, and its port."""
    command = [sys.executable, "-m", "telephony_tts", "serve", "--port", "0", *arguments,
               "--set", f"engines.cosyvoice2.model={model_dir}"]  # fmt: skip
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert served.stderr is not None
    try:
        line = served.stderr.readline()
        assert '"starting"' in line, line
        found = re.search(r'"port": (\d+)', line)
        assert found is not None
        yield served, int(found[1])
    finally:
        if served.poll() is None:
            served.kill()
        served.communicate()


def test_sigterm_while_the_engine_loads_in_threads(model_dir: Path) -> None:
    """It answers while loading, does not wait for the weights on SIGTERM, and logs that it was never ready."""
    in_threads = ["--set", "engines.default=cosyvoice2", "--set", "engines.cosyvoice2.isolation=thread"]
    with starting(model_dir, *in_threads) as (served, port):
        assert asyncio.run(get(port, "/readyz"))[::2] == (503, "starting\n")
        begun_s = time.monotonic()
        served.send_signal(signal.SIGTERM)
        output, errors = served.communicate(timeout=20)
        assert served.returncode == 0, errors
        assert time.monotonic() - begun_s < 8, "it waited for what it does not need"
        assert "stopped_before_ready" in errors and "warms up" not in errors
        assert "voice" not in output and "Traceback" not in errors


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_checkpoint_broken_from_the_start_ends_serve_with_any_default_engine(
    model_dir: Path, isolation: str
) -> None:
    """`serve` ends with the file's name and what to do, also if another engine is the default: a missing voice would go
    unnoticed."""
    whole = (model_dir / "llm.pt").read_bytes()
    (model_dir / "llm.pt").write_bytes(whole[: len(whole) // 2])
    other = ["--set", "engines.default=fake", "--set", "engines.hibari.workers=0"]
    with starting(model_dir, *other, "--set", f"engines.cosyvoice2.isolation={isolation}") as (served, _):
        _, errors = served.communicate(timeout=30)
        assert served.returncode == 1
        told = errors[errors.index("telephony-tts: ") :]
        assert "llm.pt cannot be read" in told and str(model_dir) in told and "models check" in told
        assert "Traceback" not in errors
