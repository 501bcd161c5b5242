"""Calls on CosyVoice2: a real server and a tiny model with random weights; the audio on the wire is checked."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from engine_child import engine_pid
from rig import FRAME_MS, Bot, correlation, decoded, gather, get, run, serving, speech_settings, until
from served import process
from twilio_peer import calling
from websockets.asyncio.client import connect

from telephony_tts.engines.api import Chunk, Pcm, Utterance
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.hosting.thread_host import ThreadHost
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits

pytestmark = pytest.mark.alone

CONFIG = Path(__file__).parents[2] / "configs" / "cosyvoice2-cpu.yaml"
ALIKE = 0.998
"""The least correlation of the model's audio with the received frames. Different texts may reach 0.9."""
TEXT = "Thank you for calling, how can I help you today? Your parcel left the depot on Tuesday morning."


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path)
    return path


class Recorded(CosyVoice2Engine):
    """The engine, which also keeps its audio."""

    def __init__(self, model_dir: Path, **how: Any) -> None:
        super().__init__(model_dir, **how)
        self.said: dict[str, list[Chunk]] = {}

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        said = self.said.setdefault(utterance.turn, [])
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                said.append(chunk)
                yield chunk

    @property
    def n_free(self) -> int:
        """The number of free slots."""
        assert isinstance(self._host, ThreadHost) and self._host.core is not None
        return self._host.core.slots.n_free

    def wanted(self, turn: str) -> Pcm:
        spoken = np.concatenate([chunk.pcm for chunk in self.said[turn]]).astype(np.float32) / 32768
        wanted: Pcm = (soxr.resample(spoken, 24_000, 8000, "HQ") * 32768).astype(np.int16)
        return wanted


@pytest.mark.parametrize("profile", ["default", "upstream"])
def test_the_caller_hears_the_engines_audio(model_dir: Path, profile: str) -> None:
    async def main() -> None:
        engine = Recorded(model_dir, profile=profile)
        async with serving(engine, speech=speech_settings(voice="prompted")) as rig, rig.bot(audio="binary") as bot:
            await bot.say("Thank you for calling.", "a")
            done = await bot.event("done", turn="a", within_s=20)
            assert correlation(decoded(bot.frames), engine.wanted("a")) >= ALIKE
            assert 0 <= len(decoded(bot.frames)) - len(engine.wanted("a")) <= 160 + 2
            assert done["audio_ms"] == 20 * len(bot.frames)
            await bot.send({"type": "config", "seed": 5, "instruct": "calmly", "speed": 1.25, "voice": "preset"})
            n_before = len(bot.frames)
            await bot.say("Thank you for calling.", "b")
            await bot.event("done", turn="b", within_s=20)
            heard = decoded(bot.frames[n_before:])
            assert correlation(heard, engine.wanted("b")) >= ALIKE
            assert correlation(heard, engine.wanted("a")) < 0.95, "another voice, seed, speed and instruction"
            assert engine.n_free == 16

    run(main)


def test_barge_in_frees_the_slot_and_reports_what_was_heard(model_dir: Path) -> None:
    """At every stage: before the first token, in the first block, during playback, near the end."""

    async def main() -> None:
        engine = Recorded(model_dir, limits=EngineLimits(n_slots=2))
        async with serving(engine, speech=speech_settings(voice="prompted")) as rig, rig.bot(audio="binary") as bot:
            for n in range(8):
                await bot.say(TEXT, f"t{n}")
                await asyncio.sleep(n * n * 0.02)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared", turn=f"t{n}", within_s=2)
                assert cleared["heard_text"] + cleared["unheard_text"] == TEXT
                n_frames = len(bot.frames)
                await until(lambda: engine.n_free == 2, "the slot is still taken")
                await asyncio.sleep(0.03)
                assert len(bot.frames) == n_frames, "audio after cleared"
                assert bot.terminals(f"t{n}") == ["cleared"]
            await bot.say("Still there?", "last")
            await bot.event("done", turn="last", within_s=20)

    run(main)


def test_more_calls_than_slots_and_one_repeatedly_cleared(model_dir: Path) -> None:
    async def main() -> None:
        engine = Recorded(model_dir, n_workers=2, limits=EngineLimits(n_slots=2))
        async with (
            serving(engine, speech=speech_settings(voice="prompted")) as rig,
            rig.bot(audio="binary") as one,
            rig.bot(audio="binary") as two,
            rig.bot(audio="binary") as three,
            rig.bot(audio="binary") as nervous,
        ):
            async def speak(bot: Bot, turn: str) -> None:
                await bot.say("Thank you for calling.", turn)
                await bot.event("done", turn=turn, within_s=30)

            async def change_its_mind() -> None:
                for n in range(20):
                    await nervous.say(TEXT, f"n{n}")
                    await asyncio.sleep(0.1)
                    await nervous.send({"type": "clear"})
                    await nervous.event("cleared", turn=f"n{n}", within_s=2)

            await gather(speak(one, "one"), speak(two, "two"), speak(three, "three"), change_its_mind())
            for bot, turn in ((one, "one"), (two, "two"), (three, "three")):
                assert correlation(decoded(bot.frames), engine.wanted(turn)) >= ALIKE
                assert (engine.wanted(turn) == engine.wanted("one")).all(), "the same text, voice and seed"
            await until(lambda: engine.n_free == 2, "a slot is still taken")

    run(main)


def test_it_speaks_before_the_bot_has_finished_its_sentence(model_dir: Path) -> None:
    text = "Thank you for calling our friendly support line where we help you today."
    words = [f"{word} " for word in text.split()]

    async def main() -> None:
        engine = Recorded(model_dir)
        speech = speech_settings(voice="preset", text_mode="interleaved")
        async with serving(engine, speech=speech) as rig, rig.bot(audio="binary") as bot:
            for word in words[:-2]:
                await bot.send({"type": "text", "turn": "a", "text": word})
            await until(lambda: bot.frames, "audio before the sentence ends")
            assert engine.n_free == 15
            for word in words[-2:]:
                await bot.send({"type": "text", "turn": "a", "text": word})
            await bot.send({"type": "end", "turn": "a"})
            sentence = await bot.event("sentence", turn="a", within_s=20)
            assert sentence["text"] == "".join(words).strip()
            await bot.event("done", turn="a", within_s=20)
            assert correlation(decoded(bot.frames), engine.wanted("a")) >= ALIKE
            for word in words[:8]:
                await bot.send({"type": "text", "turn": "b", "text": word})
            await until(lambda: engine.n_free == 15, "it begins")
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="b", within_s=2)
            assert cleared["heard_text"] + cleared["unheard_text"] == "".join(words[:8])
            await until(lambda: engine.n_free == 16, "the slot is still taken")

    run(main)


def test_serve_takes_calls_on_the_shipped_configuration(model_dir: Path) -> None:
    """`serve --config configs/cosyvoice2-cpu.yaml`, with another model: a bot, a Twilio leg, a barge-in."""

    async def talk(port: int) -> None:
        async with connect(f"ws://127.0.0.1:{port}/v1/stream?audio=binary&voice=prompted", proxy=None) as socket:
            bot = Bot(socket)
            await bot.event("ready")
            await bot.say(TEXT, "a")
            await bot.event("started", turn="a", within_s=20)
            await until(lambda: len(bot.frames) > 20, "frames", 20)
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="a", within_s=2)
            assert cleared["heard_ms"] > 0 and cleared["heard_text"] + cleared["unheard_text"] == TEXT
            await bot.say("Bye.", "b")
            await bot.event("done", turn="b", within_s=20)
            await bot.aclose()

    async def telephone(port: int) -> None:
        async with calling(f"ws://127.0.0.1:{port}/media/twilio", "CA1") as peer:
            await peer.start()
            async with connect(f"ws://127.0.0.1:{port}/v1/stream?call=CA1", proxy=None) as socket:
                bot = Bot(socket)
                await bot.say("Thank you for calling.", "a")
                await bot.event("done", turn="a", within_s=20)
                await bot.aclose()

    async def main(port: int) -> None:
        async with asyncio.timeout(60):
            await gather(talk(port), telephone(port))

    arguments = ["--config", str(CONFIG), "--set", "engines.default=cosyvoice2",
                 "--set", f"engines.cosyvoice2.model={model_dir}"]  # fmt: skip
    with process(*arguments) as (served, port):
        asyncio.run(main(port))
        served.send_signal(signal.SIGTERM)
        output, errors = served.communicate(timeout=20)
        assert served.returncode == 0, errors
        assert "voice cosyvoice2/preset" in output
        assert "Traceback" not in errors and "Warning" not in errors


def test_calls_live_on_when_the_engines_process_is_killed(model_dir: Path) -> None:
    """kill -9 while four calls speak: their turns fail and can be retried, a new turn waits, and calls with a voice of
    another engine are not affected."""
    story = "The embedded voice reads on. It has its own engine, and nothing of that engine was lost."
    lead_ms = 600

    async def until_ready(port: int, status: int) -> None:
        end_s = time.monotonic() + 20
        while (answer := await get(port, "/readyz"))[0] != status:
            assert time.monotonic() < end_s, answer
            await asyncio.sleep(0.01)

    async def embedded(bot: Bot, turn: str) -> list[bytes]:
        """A turn of the other engine: complete, and without an underrun."""
        n_before = len(bot.log)
        await bot.say(story, turn)
        done = await bot.event("done", turn=turn, within_s=30)
        heard = [(at, entry) for at, entry in bot.log[n_before:] if isinstance(entry, bytes)]
        late_ms = max(1000 * (at - heard[0][0]) - n * FRAME_MS for n, (at, _) in enumerate(heard))
        assert done["underruns"] == 0 and late_ms <= 0
        return [frame for _, frame in heard]

    async def talk(port: int, pid: int) -> None:
        def call(voice: str) -> Any:
            options = f"audio=binary&lead_ms={lead_ms}&voice={voice}"
            return connect(f"ws://127.0.0.1:{port}/v1/stream?{options}", proxy=None, max_queue=None)

        bots = [Bot(await call(f"cosyvoice2/{name}")) for name in ("preset", "prompted", "preset", "prompted")]
        other = Bot(await call("hibari/heart"))
        alone = await embedded(other, "alone")
        for bot in bots:
            await bot.say(TEXT, "a")
        for bot in bots:
            await bot.event("started", turn="a", within_s=20)
        reading = asyncio.create_task(embedded(other, "beside"))
        await other.event("started", turn="beside", within_s=20)
        os.kill(pid, signal.SIGKILL)
        await until_ready(port, 503)
        for bot in bots:
            error = await bot.event("error", turn="a", within_s=2)
            assert error["code"] == "engine_failed" and error["retryable"] and not error["fatal"]
            assert "started again" in error["message"] and error["retry_after_ms"] >= 500
            assert error["heard_text"] + error["unheard_text"] == TEXT
            assert bot.terminals("a") == ["error"] and bot.closed is None
        await bots[0].say(TEXT, "early")
        await until_ready(port, 200)
        await bots[0].event("done", turn="early", within_s=20)  # it has waited for the new process
        for bot in bots:
            await bot.say("Bye.", "b")
        for bot in bots:
            await bot.event("done", turn="b", within_s=20)
            assert bot.terminals("b") == ["done"]
        assert await reading == alone
        for bot in (*bots, other):
            await bot.aclose()

    async def main(port: int, pid: int) -> None:
        async with asyncio.timeout(60):
            await talk(port, pid)

    arguments = ["--set", "engines.default=cosyvoice2", "--set", f"engines.cosyvoice2.model={model_dir}",
                 "--set", "engines.hibari.workers=1"]  # fmt: skip
    with process(*arguments) as (served, port):
        asyncio.run(main(port, engine_pid(served)))
        served.send_signal(signal.SIGTERM)
        _, errors = served.communicate(timeout=20)
        assert served.returncode == 0, errors
        assert "process failed" in errors and "SIGKILL" in errors and "Traceback" not in errors


def test_the_server_listens_while_the_engine_loads(model_dir: Path, tmp_path: Path) -> None:
    """/readyz says `starting` and calls are refused until it has loaded. Python files in the directory are not run."""
    (tmp_path / "torch.py").write_text("raise SystemExit('not this one')", encoding="utf-8")
    with loading(model_dir, tmp_path) as (served, port, pid):
        assert answer(port, "/readyz") == (503, "starting\n") and answer(port, "/healthz")[0] == 200
        assert answer(port, "/v1/stream") == (503, "starting: no calls yet\n")
        os.kill(pid, signal.SIGCONT)
        end_s = time.monotonic() + 20
        while answer(port, "/readyz")[0] != 200:
            assert time.monotonic() < end_s and served.poll() is None
            time.sleep(0.05)
        served.send_signal(signal.SIGTERM)
        output, errors = served.communicate(timeout=20)
        assert served.returncode == 0, errors
        assert "voice cosyvoice2/preset" in output


def test_sigterm_while_the_engine_loads(model_dir: Path) -> None:
    with loading(model_dir) as (served, _, pid):
        begun_s = time.monotonic()
        served.send_signal(signal.SIGTERM)
        output, errors = served.communicate(timeout=20)
        assert served.returncode == 0, errors
        assert time.monotonic() - begun_s < 3, "it waited for what it does not need"
        assert "voice" not in output and "Traceback" not in errors
        assert not Path(f"/proc/{pid}").exists(), "the engine's process is left"


def test_a_broken_checkpoint_ends_serve_with_the_cause(model_dir: Path, tmp_path: Path) -> None:
    """The port is already open by then."""
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "flow.pt").write_bytes(b"PK no zip")
    with loading(broken) as (served, port, pid):
        assert answer(port, "/readyz")[0] == 503
        os.kill(pid, signal.SIGCONT)
        _, errors = served.communicate(timeout=20)
        assert served.returncode == 1, errors
        assert "flow.pt" in errors and str(broken) in errors and "Traceback" not in errors
        assert not Path(f"/proc/{pid}").exists(), "the engine's process is left"


@contextmanager
def loading(model_dir: Path, cwd: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A server that is loading, its port, and the id of its engine's process, which is stopped until a SIGCONT."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-P", "-m", "telephony_tts", "serve", "--port", str(port), "--set",
               "engines.default=cosyvoice2", "--set", f"engines.cosyvoice2.model={model_dir}"]  # fmt: skip
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    try:
        pid = engine_pid(served)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield served, port, pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    finally:
        if served.poll() is None:
            served.kill()
        served.communicate()


def answer(port: int, path: str) -> tuple[int, str]:
    """Status and body of a plain request."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
