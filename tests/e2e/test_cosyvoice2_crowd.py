"""Calls on CosyVoice2 that do not hear each other: up to eight of them beside one that is cleared every 100 ms.

Through `telephony-tts serve` with the tiny checkpoint as `models random` makes it, its engine in a process of its own;
and with its lanes as threads beside the calls, where the model is smaller yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rig import FRAME_MS, Bot, gather, get, greeted, run, serving, speech_settings
from served import process

from telephony_tts.app import offline
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.cosyvoice2.checkpoint import random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.runtime import event_loop, metrics
from telephony_tts.wire.messages import Configure

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

SEEDS = (1, 2, 3, 8, 9, 11, 17, 20)
"""The seeds of the calls: with each of them `TEXT` takes three to four seconds."""
TEXT = "Thank you for calling."
SECOND_THOUGHTS = "Your parcel left the depot on Tuesday morning, and the driver calls before he comes."
SPEED = 0.5
LEAD_MS = 800
"""The setting for a server on a busy machine: frames are sent so far ahead that its stalls cause no gap."""
CLEAR_EVERY_S = 0.1
FEW_STEPS = 3
"""With the ten Euler steps of the model, a quarter of a slow core was enough for one call only."""
VOICES = ("preset", "prompted")


@dataclass(frozen=True, slots=True)
class Alone:
    """The audio that each call should get, for as many calls as this machine can serve in time."""

    frames: list[list[bytes]]
    n_calls: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A received turn: its frames, the arrival time of each, and its `done` event."""

    frames: list[bytes]
    times_s: list[float]
    underruns: int


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At half speed a second of this speech takes 0.06 s of one core here."""
    path = tmp_path_factory.mktemp("tiny")
    write_random_checkpoint(path, prompt_tokens=25)
    return path


@pytest.fixture(scope="module")
def one_layer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of each kind and half of that work, because threads share the interpreter's lock with the calls."""
    tiny = random_checkpoint.SIZES["tiny"]
    one_layer = replace(
        tiny,
        lm=replace(tiny.lm, n_layers=1),
        flow_encoder=replace(tiny.flow_encoder, n_layers=1, n_up_layers=1),
        flow_decoder=replace(tiny.flow_decoder, n_mid_stages=1),
        vocoder=replace(tiny.vocoder, d_base=16, res_kernels=(3,), res_dilations=(1,)),
    )
    path = tmp_path_factory.mktemp("one-layer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_checkpoint.SIZES, "tiny", one_layer)
        write_random_checkpoint(path, prompt_tokens=25)
    return path


def alone(model_dir: Path, cores: float, flow_steps: int | None = None) -> Alone:
    """The frames of each call, spoken alone and in simulated time, for as many calls as `cores` cores can serve."""

    async def main() -> Alone:
        engine = CosyVoice2Engine(model_dir, profile="auto", flow_steps=flow_steps)  # as the server has it
        catalog = Catalog([engine])
        await catalog.start()
        try:
            spoken: list[list[bytes]] = [[] for _ in SEEDS]
            begun_s = time.process_time()
            for seed, frames in zip(SEEDS, spoken, strict=True):
                how = Configure(voice=VOICES[seed % 2], seed=seed, speed=SPEED)
                await offline.speak(TEXT, catalog, speech_settings(), how, on_frame=frames.append)
            core_s = time.process_time() - begun_s
        finally:
            await catalog.close()
        cores_of_one = core_s / (sum(map(len, spoken)) * FRAME_MS / 1000)
        return Alone(spoken, min(len(SEEDS), int(cores / cores_of_one)))

    made = asyncio.run(main())
    assert made.n_calls >= 2, "this machine is too slow for calls beside each other"
    return made


@pytest.fixture(autouse=True)
def threads_take_turns() -> Iterator[None]:
    """The thread switch interval of `app.run`: lanes that are threads must not delay the event loop."""
    with event_loop.quick_turns():
        yield


@pytest.fixture(scope="module")
def tiny_alone(tiny_dir: Path) -> Alone:
    return alone(tiny_dir, cores=0.5)


@pytest.fixture(scope="module")
def one_layer_alone(one_layer_dir: Path) -> Alone:
    return alone(one_layer_dir, cores=0.25, flow_steps=FEW_STEPS)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_call_cleared_every_100_ms_does_not_disturb_the_others(
    tiny_dir: Path, tiny_alone: Alone, n_workers: int
) -> None:
    """Every frame is on time and equals that of the call alone; no text of the cleared turns is lost."""

    async def main(port: int) -> None:
        def call() -> AbstractAsyncContextManager[Bot]:
            return greeted(f"ws://127.0.0.1:{port}/v1/stream?audio=binary&lead_ms={LEAD_MS}")

        async with asyncio.timeout(40), AsyncExitStack() as calls:
            bots = [await calls.enter_async_context(call()) for _ in range(tiny_alone.n_calls)]
            nervous = await calls.enter_async_context(call())
            await _judge(bots, nervous, tiny_alone)
            _, _, counted = await get(port, "/metrics")
            assert "\ntelephony_tts_underruns_total 0.0\n" in counted

    arguments = [f"engines.cosyvoice2.model={tiny_dir}", f"engines.cosyvoice2.workers={n_workers}",
                 "engines.default=cosyvoice2", "engines.cosyvoice2.isolation=process", "speech.first_clause_chars=0",
                 "log.level=warning"]  # fmt: skip
    with process(*(word for setting in arguments for word in ("--set", setting))) as (_, port):
        asyncio.run(main(port))


def test_nor_with_the_engine_in_threads(one_layer_dir: Path, one_layer_alone: Alone) -> None:
    """Two lanes and the event loop, which share the interpreter's lock."""

    async def main() -> None:
        engine = CosyVoice2Engine(
            one_layer_dir, n_workers=2, isolation="thread", profile="auto", flow_steps=FEW_STEPS
        )
        async with serving(engine, speech=speech_settings(lead_ms=LEAD_MS)) as rig, AsyncExitStack() as calls:
            bots = [await calls.enter_async_context(rig.bot(audio="binary")) for _ in range(one_layer_alone.n_calls)]
            nervous = await calls.enter_async_context(rig.bot(audio="binary"))
            n_underruns = metrics.value("telephony_tts_underruns_total")
            await _judge(bots, nervous, one_layer_alone)
            assert metrics.value("telephony_tts_underruns_total") == n_underruns

    run(main)


async def _judge(bots: list[Bot], nervous: Bot, expected: Alone) -> None:
    """All bots speak at once while `nervous` starts and cancels turns."""
    quiet = asyncio.Event()
    changing = asyncio.create_task(_change_its_mind(nervous, quiet))
    try:
        heard = await gather(*(_speak(bot, seed) for bot, seed in zip(bots, SEEDS[: expected.n_calls], strict=True)))
    finally:
        quiet.set()
        n_cleared = await changing
    for turn, frames in zip(heard, expected.frames[: expected.n_calls], strict=True):
        assert turn.frames == frames, "it heard its neighbours"
        assert turn.underruns == 0
        late_ms = max(1000 * (at - turn.times_s[0]) - n * FRAME_MS for n, at in enumerate(turn.times_s))
        assert late_ms <= 0, f"a player would have had a gap of {late_ms:.0f} ms"
    assert n_cleared >= 20
    _judge_cleared(nervous, n_cleared)


async def _speak(bot: Bot, seed: int) -> Heard:
    await bot.send({"type": "config", "voice": VOICES[seed % 2], "seed": seed, "speed": SPEED})
    await bot.say(TEXT, "a")
    done = await bot.event("done", turn="a", within_s=30)
    frames = [(at, entry) for at, entry in bot.log if isinstance(entry, bytes)]
    return Heard([entry for _, entry in frames], [at for at, _ in frames], done["underruns"])


async def _change_its_mind(bot: Bot, quiet: asyncio.Event) -> int:
    """Start a turn every 100 ms and cancel it at once or up to 80 ms later; return the number of turns."""
    n = 0
    pauses_s = (0.0, 0.01, 0.02, 0.04, 0.08)
    begun_s = time.monotonic()
    while not quiet.is_set():
        await bot.say(SECOND_THOUGHTS, f"n{n}")
        await asyncio.sleep(pauses_s[n % len(pauses_s)])
        await bot.send({"type": "clear"})
        await bot.event("cleared", turn=f"n{n}")
        n += 1
        await asyncio.sleep(max(0.0, begun_s + n * CLEAR_EVERY_S - time.monotonic()))
    return n


def _judge_cleared(bot: Bot, n_turns: int) -> None:
    """Each turn ended once, with all of its text, and no frame of it came afterwards."""
    turn, n_frames = "", 0
    for _, entry in bot.log:
        if isinstance(entry, bytes):
            assert turn, "a frame of a turn that is over"
            n_frames += 1
        elif entry["type"] == "started":
            turn, n_frames = entry["turn"], 0
        elif entry["type"] == "cleared":
            assert entry["heard_text"] + entry["unheard_text"] == SECOND_THOUGHTS
            assert entry["heard_ms"] <= (n_frames * FRAME_MS if entry["turn"] == turn else 0)
            assert entry["heard_ms"] or not entry["heard_text"]
            turn = ""
    for n in range(n_turns):
        assert bot.terminals(f"n{n}") == ["cleared"]
