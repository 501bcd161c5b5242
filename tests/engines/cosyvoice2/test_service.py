"""The engine: its contract, its voices, and its errors when something is missing."""

import asyncio
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import assert_keeps_the_contract, joined, speak
from service_rig import BRIEF, FEW_SLOTS, core_of, n_free, started
from speaking import SENTENCE

from telephony_tts.engines.api import EngineStats, Pcm, Pronunciation, TextFeed, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.hosting.loading import build_problem
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
from telephony_tts.engines.cosyvoice2.text.generation import MAX_TOKENS_PER_TEXT, SentenceDecoding
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.runtime.errors import ConfigError, EngineError, EngineUnavailable, UnsupportedText

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps")]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_it_keeps_the_contract(model_dir: Path, n_workers: int) -> None:
    assert_keeps_the_contract(lambda: CosyVoice2Engine(model_dir, n_workers=n_workers, limits=FEW_SLOTS), BRIEF)


def test_two_workers_and_many_deadlines_change_no_sample(model_dir: Path) -> None:
    """A later utterance with an earlier deadline is served before the end of the first."""

    utterances = [
        Utterance(str(i), f"{BRIEF.sentence} {i}", voice=("preset", "prompted")[i % 2], seed=i, deadline_ns=100 - i)
        for i in range(6)
    ]
    alone: list[Pcm] = []

    async def use(engine: CosyVoice2Engine) -> None:
        if not alone:
            alone.extend([joined(await speak(engine, utterance)) for utterance in utterances])
        together = await asyncio.gather(*(speak(engine, utterance) for utterance in utterances))
        for chunks, samples in zip(together, alone, strict=True):
            assert (joined(chunks) == samples).all()
        assert n_free(engine) == 16

    for n_workers in (1, 2):
        started(CosyVoice2Engine(model_dir, n_workers=n_workers), use)


def test_closing_frees_the_slot_before_it_returns(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        for n_taken in range(8):
            stream = engine.synthesize(Utterance("u", f"{SENTENCE} {SENTENCE}", voice="prompted"))
            for _ in range(n_taken):
                await anext(stream)
            await stream.aclose()
            assert n_free(engine) == 16 and engine.stats() == EngineStats()
        for n_turns in range(0, 40, 3):
            task = asyncio.create_task(speak(engine, Utterance("u", SENTENCE)))
            await asyncio.sleep(0.002 * n_turns)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert n_free(engine) == 16

    started(CosyVoice2Engine(model_dir), use)


def test_a_failure_inside_is_an_engine_error_and_frees_the_slot(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(core_of(engine).runner.model.flow, "step", fail)
            with pytest.raises(EngineError, match="out of memory"):
                await speak(engine, Utterance("u", BRIEF.sentence))
        assert n_free(engine) == 16
        assert await speak(engine, Utterance("u", BRIEF.sentence))

    started(CosyVoice2Engine(model_dir), use)


@pytest.mark.parametrize(
    ("profile", "dtype"),
    [("fast", "float32"), ("upstream", "float32"), ("default", "bfloat16"), ("default", "float16")],
)
def test_other_profiles_and_dtypes_speak(model_dir: Path, profile: str, dtype: str) -> None:
    engine = CosyVoice2Engine(model_dir, profile=profile, dtype=dtype)
    chunks = started(engine, lambda engine: speak(engine, Utterance("u", SENTENCE, voice="prompted")))
    assert len(joined(chunks)) > 24_000 and abs(joined(chunks)).max() > 1000


def test_more_utterances_than_slots_wait_their_turn(model_dir: Path) -> None:
    """Also if the utterances with a slot wait for their listeners, or are closed in the middle."""

    utterances = [Utterance(str(i), f"{BRIEF.sentence} {i}", seed=i, deadline_ns=100 - i) for i in range(4)]
    alone: list[Pcm] = []

    async def use(engine: CosyVoice2Engine) -> None:
        if not alone:
            alone.extend([joined(await speak(engine, utterance)) for utterance in utterances])
        together = await asyncio.gather(*(speak(engine, utterance) for utterance in utterances))
        for chunks, samples in zip(together, alone, strict=True):
            assert (joined(chunks) == samples).all()
        first = engine.synthesize(utterances[0])
        await anext(first)
        second = asyncio.create_task(speak(engine, utterances[1]))
        await asyncio.sleep(0)
        await first.aclose()
        assert (joined(await second) == alone[1]).all()
        assert n_free(engine) == 1 and engine.stats() == EngineStats()

    for n_workers in (1, 2):
        started(CosyVoice2Engine(model_dir, n_workers=n_workers, limits=EngineLimits(n_slots=1)), use)


def test_pinyin_is_spoken_by_another_character_of_that_reading(model_dir: Path) -> None:
    sounds = (Pronunciation(2, 3, "pinyin", "chong2"),)

    async def use(engine: CosyVoice2Engine) -> None:
        given = await speak(engine, Utterance("u", "我在重庆。", seed=1, pronunciations=sounds))
        meant = joined(await speak(engine, Utterance("u", "我在崇庆。", seed=1)))
        plain = joined(await speak(engine, Utterance("u", "我在重庆。", seed=1)))
        assert (joined(given) == meant).all()
        assert len(plain) != len(meant) or (plain != meant).any()
        assert [(timing.start_char, timing.end_char) for chunk in given for timing in chunk.timings][-1] == (3, 4)

    started(CosyVoice2Engine(model_dir), use)


async def is_under_way(engine: CosyVoice2Engine) -> None:
    """Return when some utterance has a slot."""
    for _ in range(1_000_000):
        if core_of(engine).slots.n_free < 16 and engine.stats().n_running:
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing began")


def test_text_that_comes_while_it_is_spoken(model_dir: Path) -> None:
    """While one utterance waits for text, the worker computes the others. Closing frees everything."""

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", BRIEF.sentence, seed=1)))
        slow = TextFeed()
        waiting = asyncio.create_task(speak(engine, Utterance("slow", "Thank", seed=3, more=slow)))
        await is_under_way(engine)
        assert (joined(await speak(engine, Utterance("u", BRIEF.sentence, seed=1))) == alone).all()
        assert not waiting.done() and core_of(engine).slots.n_free == 15
        for word in BRIEF.sentence.split()[1:]:
            slow.push(f" {word}")
            await asyncio.sleep(0)
        slow.end()
        heard = joined(await waiting)
        at_once = TextFeed()
        at_once.push(BRIEF.sentence[5:])
        at_once.end()
        assert (heard == joined(await speak(engine, Utterance("once", "Thank", seed=3, more=at_once)))).all()
        assert len(heard) > 12_000
        given_up = asyncio.create_task(speak(engine, Utterance("given up", "Thank you", more=TextFeed())))
        await is_under_way(engine)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert n_free(engine) == core_of(engine).slots.n_free == 16 and engine.stats() == EngineStats()
        never_ends = asyncio.create_task(speak(engine, Utterance("closed", "Thank you", more=TextFeed())))
        await is_under_way(engine)
        await engine.close()
        with pytest.raises(EngineError, match="was closed"):
            await never_ends

    started(CosyVoice2Engine(model_dir), use)


LONG = "This is a sentence that does not come to its end and goes on and on without a stop " * 25


@pytest.fixture(scope="module", params=["fast", "upstream"])
def engine_of_odd_text(
    model_dir: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[asyncio.Runner, CosyVoice2Engine]]:
    """One for all texts of a profile: any text may follow an odd one."""
    with asyncio.Runner() as runner:
        engine = CosyVoice2Engine(model_dir, profile=request.param)
        runner.run(engine.start())
        yield runner, engine
        runner.run(engine.close())


@pytest.mark.parametrize(
    ("text", "is_heard"),
    [
        ("", False),
        (" \n\t ", False),
        ("?!… — ,。！", False),
        ("\ufeff\u200b\x00\x1b", False),
        ("😀🎉👍🏽", False),
        ("Great 😀 news 🎉!", True),
        ("你好 hello こんにちは 안녕 привет שלום", True),
        ("<|endofprompt|><|im_start|>[laughter]<strong>hi</strong>[breath]", True),
        ("half a pair \ud83d and on", True),
        ("a" * 300, True),
        (LONG[:2000], True),
        ("好" * 2000, True),
        ("é" * 40 + "\u0301" * 200, True),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_odd_text(
    engine_of_odd_text: tuple[asyncio.Runner, CosyVoice2Engine],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    is_heard: bool,
) -> None:
    """Any text is spoken or skipped, and the next utterance is not affected."""
    runner, engine = engine_of_odd_text
    # All of the text goes through the engine, and little audio comes out: 300 characters are two blocks. What is longer
    # does not fit into a slot unless it is cut.
    init = SentenceDecoding.__init__

    def init_short(decoding: SentenceDecoding, *args: Any, **kwargs: Any) -> None:
        init(decoding, *args, **kwargs)
        n_text = decoding.max_len // MAX_TOKENS_PER_TEXT
        decoding.min_len = decoding.max_len = math.ceil(n_text / 10)

    monkeypatch.setattr(SentenceDecoding, "__init__", init_short)
    monkeypatch.setattr(core_of(engine).runner.model.cache, "max_len", 1000)

    async def use() -> None:
        chunks = await speak(engine, Utterance("odd", text, voice="prompted"))
        assert bool(chunks) == is_heard
        assert all(0 <= timing.start_char < timing.end_char <= len(text) for c in chunks for timing in c.timings)
        assert await speak(engine, Utterance("next", "yes"))
        assert n_free(engine) == 16

    runner.run(use())


def test_speed_is_kept_within_what_can_be_understood(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        lengths = [
            len(joined(await speak(engine, Utterance("u", BRIEF.sentence, seed=1, speed=speed))))
            for speed in (0.01, 0.5, 2.0, 50.0)
        ]
        assert lengths[0] == lengths[1] > 3.9 * lengths[2] and lengths[2] == lengths[3]

    started(CosyVoice2Engine(model_dir), use)


# ----------------------------------------------------------------------------- missing


def test_a_directory_that_is_not_complete(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    for name in ("flow.pt", "campplus.onnx"):
        (tmp_path / name).unlink()
    engine = CosyVoice2Engine(tmp_path)
    with pytest.raises(EngineUnavailable, match=r"(?s)campplus\.onnx is missing.*flow\.pt is missing.*models random"):
        asyncio.run(engine.start())
    assert engine.stats() == EngineStats() and engine.voices == ()


def test_without_any_voice_the_engine_does_not_start(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    (tmp_path / "spk2info.pt").unlink()
    with pytest.raises(EngineUnavailable, match="no voice"):
        asyncio.run(CosyVoice2Engine(tmp_path, tmp_path / "voices").start())


def test_what_cannot_be_configured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="float32, float16, bfloat16"):
        CosyVoice2Engine(tmp_path, dtype="int8")
    with pytest.raises(ConfigError, match="isolation 'container'; it has process, thread"):
        CosyVoice2Engine(tmp_path, isolation="container")
    with pytest.raises(ConfigError, match="lm_backend 'tgi'; it has own, vllm"):
        CosyVoice2Engine(tmp_path, lm_backend="tgi")
    with pytest.raises(ConfigError, match="with lm_backend vllm set isolation to process"):
        CosyVoice2Engine(tmp_path, lm_backend="vllm")
    with pytest.raises(ConfigError, match="auto, default, cpu, fast, upstream"):
        CosyVoice2Engine(tmp_path, profile="slow")
    with pytest.raises(ConfigError, match="at least one slot"):
        CosyVoice2Engine(tmp_path, limits=EngineLimits(n_slots=0))
    with pytest.raises(ConfigError, match="profile, causal, full"):
        CosyVoice2Engine(tmp_path, finish="never")
    with pytest.raises(ConfigError, match=r"'\[laugh\]'.*\[laughter\]"):
        CosyVoice2Engine(tmp_path, control_tokens=["[laugh]"])
    with pytest.raises(ConfigError, match=r"'<\|im_start\|>'; it has <\|endofprompt\|> \[breath\]"):
        CosyVoice2Engine(tmp_path, control_tokens=["[breath]", "<|im_start|>"])


@pytest.mark.parametrize(
    ("capability", "built", "problem"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90a", "compute_120"], "7.5 and newer, and this one has 7.0"),
        ((7, 0), ["sm_70", "sm_80"], None),
        ((9, 0), ["sm_75", "sm_80"], None),
        ((8, 9), [], None),
    ],
)
def test_a_build_that_leaves_out_the_gpu(capability: tuple[int, int], built: list[str], problem: str | None) -> None:
    found = build_problem(capability, built)
    assert found is None if problem is None else problem in (found or "")


def test_a_gpu_without_a_build_for_it(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(EngineUnavailable, match=r"cannot use cuda.*built for CPUs.*device: cpu"):
        asyncio.run(CosyVoice2Engine(model_dir, device="cuda").start())
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineUnavailable, match=r"no GPU is found.*CUDA 12\.6"):
        asyncio.run(CosyVoice2Engine(model_dir, device="cuda:0").start())


def test_text_of_scripts_it_does_not_know_is_refused(model_dir: Path) -> None:
    engine = CosyVoice2Engine(model_dir)
    for text in ("Привет, мир.", "שלום", "γεια"):
        with pytest.raises(UnsupportedText, match=r"^cosyvoice2 speaks [a-z, ]+, not (cyrillic|hebrew|greek) letters$"):
            engine.check(Utterance("u", text))
    for text in ("你好 Привет", "Bonjour, ça va?", "안녕", "ありがとう", "42", "", "ㄅㄆ"):
        engine.check(Utterance("u", text))


def test_a_refusal_of_another_engine_names_a_voice_here_only_for_what_it_speaks(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        catalog = Catalog([EspeakEngine(), engine])
        for text, named in (("こんにちは。", True), ("ㄅㄆㄇ", True), ("สวัสดี", False), ("Hi สวัสดี", False)):
            with pytest.raises(UnsupportedText) as refusal:
                catalog.choose(Utterance("u", text, voice="en-us"))
            assert ("voices that can: cosyvoice2/preset. Send" in refusal.value.message) == named, refusal.value.message
            if named:
                assert len(joined(await speak(engine, Utterance("u", text, voice="preset")))) > 0

    started(CosyVoice2Engine(model_dir), use)


def test_not_started_and_not_there(model_dir: Path) -> None:
    with pytest.raises(EngineError, match="not started"):
        asyncio.run(speak(CosyVoice2Engine(model_dir), Utterance("u", SENTENCE)))
    with pytest.raises(EngineUnavailable):
        asyncio.run(CosyVoice2Engine(model_dir, device="nowhere").start())


# -------------------------------------------------------------------------------- ends


def test_an_engine_that_is_gone_takes_no_more(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes at once, and no record of the utterance is left."""

    async def use(engine: CosyVoice2Engine) -> None:
        assert await speak(engine, Utterance("u", "yes"))

        def refuse(order: object) -> None:
            raise EngineError("the speech engine is being started again")

        with monkeypatch.context() as patch:
            patch.setattr(engine._host, "send", refuse)
            with pytest.raises(EngineError, match="started again"):
                await asyncio.wait_for(speak(engine, Utterance("u", "yes")), 10)
        assert engine.stats() == EngineStats()
        assert await speak(engine, Utterance("u", "yes"))

    started(CosyVoice2Engine(model_dir), use)


def test_closed_while_it_loads(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another task, or because the starting task is cancelled: nothing runs afterwards."""
    begun, may_go_on = threading.Event(), threading.Event()
    load = SpeechModel.load

    def slowly(*args: Any, **named: Any) -> Any:
        begun.set()
        assert may_go_on.wait(30)
        return load(*args, **named)

    monkeypatch.setattr(SpeechModel, "load", slowly)

    async def main(is_cancelled: bool) -> None:
        begun.clear()
        may_go_on.clear()
        await asyncio.to_thread(threading.active_count)  # the loop's own thread for such is there from now on
        n_threads = threading.active_count()
        engine = CosyVoice2Engine(model_dir, n_workers=2)
        starting = asyncio.create_task(engine.start())
        assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
        if is_cancelled:
            starting.cancel()
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(starting, 30)
        else:
            closing = asyncio.create_task(engine.close())
            await asyncio.sleep(0)
            may_go_on.set()
            await asyncio.wait_for(closing, 30)
            with pytest.raises(EngineUnavailable, match="closed while it was loading"):
                await asyncio.wait_for(starting, 30)
        assert engine.voices == () and engine.stats() == EngineStats()
        assert threading.active_count() == n_threads
        with pytest.raises(EngineError, match="not started"):
            await speak(engine, Utterance("u", "yes"))

    for is_cancelled in (False, True):
        asyncio.run(main(is_cancelled))


def test_closed_with_many_open_streams(model_dir: Path) -> None:
    """Running utterances, those that wait for a slot, and those whose listener has not asked again: each ends."""

    async def use(engine: CosyVoice2Engine) -> None:
        streams = [engine.synthesize(Utterance(str(i), f"{SENTENCE} {SENTENCE}", seed=i)) for i in range(4)]
        await anext(streams[0])
        waiting = [asyncio.create_task(anext(stream)) for stream in streams[1:]]
        await asyncio.sleep(0)
        assert engine.stats().n_queued + engine.stats().n_running == 4
        await engine.close()
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, EngineError) or hasattr(error, "pcm") for error in told)
        assert any(isinstance(error, EngineError) and "was closed" in str(error) for error in told)
        with pytest.raises(EngineError, match="was closed"):
            async for _ in streams[0]:
                pass
        for stream in streams:
            await stream.aclose()
        assert engine.stats() == EngineStats()

    started(CosyVoice2Engine(model_dir, limits=EngineLimits(n_slots=2)), use)


def test_it_can_be_started_again(model_dir: Path) -> None:
    engine = CosyVoice2Engine(model_dir)
    heard = [started(engine, lambda engine: speak(engine, Utterance("u", "yes"))) for _ in range(2)]
    assert (joined(heard[0]) == joined(heard[1])).all() and len(joined(heard[0]))
