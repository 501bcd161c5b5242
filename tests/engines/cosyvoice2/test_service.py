"""The engine: its contract, its voices, and what it says when something is missing."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import check_engine, joined, speak
from speaking import SENTENCE

from telephony_tts.engines.api import EngineStats, TextFeed, Utterance
from telephony_tts.engines.cosyvoice2 import generation
from telephony_tts.engines.cosyvoice2.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, Limits, build_problem, misfit
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.voice_store import VoiceStore, read_spk2info
from telephony_tts.engines.cosyvoice2.weights import load_model_directory
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice, UnsupportedText


def started(engine: CosyVoice2Engine, use: Callable[[CosyVoice2Engine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def ready(engine: CosyVoice2Engine, name: str) -> SpeakerPrompt:
    """The voice, made ready here if it is not."""
    assert engine._loaded is not None
    making = engine._loaded.prompt(name, lambda: False)
    try:
        next(making)
    except StopIteration as done:
        prompt: SpeakerPrompt = done.value
        return prompt
    raise AssertionError("another makes it")


def n_free(engine: CosyVoice2Engine) -> int:
    assert engine._loaded is not None
    return engine._loaded.model.cache.n_free


def test_it_keeps_the_contract(model_dir: Path) -> None:
    check_engine(lambda: CosyVoice2Engine(model_dir))


def test_two_workers_and_many_deadlines_change_no_sample(model_dir: Path) -> None:
    """A later utterance with an earlier deadline takes the worker away, in the middle."""

    async def use(engine: CosyVoice2Engine) -> None:
        utterances = [
            Utterance(str(i), f"{SENTENCE} {i}", voice=("preset", "prompted")[i % 2], seed=i, deadline_ns=100 - i)
            for i in range(6)
        ]
        alone = [joined(await speak(engine, utterance)) for utterance in utterances]
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
        assert engine._loaded is not None

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(engine._loaded.model.flow, "extend", fail)
            with pytest.raises(EngineError, match="out of memory"):
                await speak(engine, Utterance("u", SENTENCE))
        assert n_free(engine) == 16
        assert await speak(engine, Utterance("u", SENTENCE))

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
    """Also where those that have a slot wait for their listener, or are closed in the middle."""

    async def use(engine: CosyVoice2Engine) -> None:
        utterances = [Utterance(str(i), f"{SENTENCE} {i}", seed=i, deadline_ns=100 - i) for i in range(6)]
        alone = [joined(await speak(engine, utterance)) for utterance in utterances]
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
        started(CosyVoice2Engine(model_dir, n_workers=n_workers, limits=Limits(n_slots=1)), use)


async def is_under_way(engine: CosyVoice2Engine) -> None:
    """Return when some utterance has a slot."""
    for _ in range(1_000_000):
        if n_free(engine) < 16:
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing began")


def test_text_that_comes_while_it_is_spoken(model_dir: Path) -> None:
    """A worker that waits for one bot's words speaks for the other calls; closing lets go of everything."""

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE, seed=1)))
        slow = TextFeed()
        waiting = asyncio.create_task(speak(engine, Utterance("slow", "Thank", seed=3, more=slow)))
        await is_under_way(engine)
        assert (joined(await speak(engine, Utterance("u", SENTENCE, seed=1))) == alone).all()
        assert not waiting.done() and n_free(engine) == 15
        for word in SENTENCE.split()[1:]:
            slow.push(f" {word}")
            await asyncio.sleep(0)
        slow.end()
        heard = joined(await waiting)
        at_once = TextFeed()
        at_once.push(SENTENCE[5:])
        at_once.end()
        assert (heard == joined(await speak(engine, Utterance("once", "Thank", seed=3, more=at_once)))).all()
        assert len(heard) > 12_000
        given_up = asyncio.create_task(speak(engine, Utterance("given up", "Thank you", more=TextFeed())))
        await is_under_way(engine)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert n_free(engine) == 16 and engine.stats() == EngineStats()
        never_ends = asyncio.create_task(speak(engine, Utterance("closed", "Thank you", more=TextFeed())))
        await is_under_way(engine)
        await engine.close()
        with pytest.raises(EngineError, match="was closed"):
            await never_ends

    started(CosyVoice2Engine(model_dir), use)


LONG = "This is a sentence that does not come to its end and goes on and on without a stop " * 25


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
@pytest.mark.parametrize("profile", ["fast", "upstream"])
def test_odd_text(model_dir: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_heard: bool, profile: str) -> None:
    """Whatever a bot sends is spoken or passed over, and the next one does not notice."""
    for limit in ("MIN_TOKENS_PER_TEXT", "MAX_TOKENS_PER_TEXT"):
        monkeypatch.setattr(generation, limit, 1)

    async def use(engine: CosyVoice2Engine) -> None:
        chunks = await speak(engine, Utterance("odd", text, voice="prompted"))
        assert bool(chunks) == is_heard
        assert all(0 <= timing.start_char < timing.end_char <= len(text) for c in chunks for timing in c.timings)
        assert await speak(engine, Utterance("next", "yes"))
        assert n_free(engine) == 16

    started(CosyVoice2Engine(model_dir, profile=profile), use)


# ------------------------------------------------------------------------------ voices


def test_stored_voices_stand_beside_the_directorys(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = VoiceStore(tmp_path)
    store.save("anna", read_spk2info(model_dir / "spk2info.pt")[0]["prompted"])
    (tmp_path / "broken.safetensors").write_bytes(b"no")

    async def use(engine: CosyVoice2Engine) -> tuple[Any, Any]:
        assert [voice.name for voice in engine.voices] == ["preset", "prompted", "anna"]
        with pytest.raises(UnknownVoice, match="'broken'; it has preset, prompted, anna"):
            engine.check(Utterance("u", SENTENCE, voice="broken"))
        anna, prompted = [
            joined(await speak(engine, Utterance("u", SENTENCE, voice=name))) for name in ("anna", "prompted")
        ]
        return anna, prompted

    anna, prompted = started(CosyVoice2Engine(model_dir, tmp_path), use)
    assert (anna == prompted).all()
    assert "broken" in caplog.text and "random weights" in caplog.text


def test_a_voice_is_prepared_once(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        assert engine._loaded is not None
        await asyncio.gather(*(speak(engine, Utterance(str(i), "yes", voice="prompted")) for i in range(4)))
        prompt = ready(engine, "prompted")
        await speak(engine, Utterance("u", "no", voice="prompted"))
        assert ready(engine, "prompted") is prompt

    started(CosyVoice2Engine(model_dir, n_workers=2), use)


def test_voices_are_kept_ready_up_to_a_number(model_dir: Path, tmp_path: Path) -> None:
    """The one not used for longest goes, and is made again; an utterance that has it speaks on."""
    features = read_spk2info(model_dir / "spk2info.pt")[0]["prompted"]
    for name in ("anna", "bert", "carl"):
        VoiceStore(tmp_path).save(name, features)

    async def use(engine: CosyVoice2Engine) -> None:
        anna, bert = ready(engine, "anna"), ready(engine, "bert")
        alone = joined(await speak(engine, Utterance("u", SENTENCE, voice="bert")))
        assert ready(engine, "anna") is anna
        speaking = engine.synthesize(Utterance("u", SENTENCE, voice="bert"))
        heard = [await anext(speaking)]
        ready(engine, "anna")
        ready(engine, "carl")
        assert ready(engine, "anna") is anna and ready(engine, "bert") is not bert
        assert (joined([*heard, *[chunk async for chunk in speaking]]) == alone).all()

    started(CosyVoice2Engine(model_dir, tmp_path, limits=Limits(n_prompts=2)), use)


def test_a_voice_being_made_ready_holds_up_nobody_and_can_be_given_up(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two utterances want a new voice: one worker makes it, the other one speaks for the rest of the calls."""
    VoiceStore(tmp_path).save("anna", read_spk2info(model_dir / "spk2info.pt")[0]["prompted"])
    prompt = SpeechModel.prompt
    begun, may_end = threading.Event(), threading.Event()

    def slowly(self: SpeechModel, features: Any, profile: Any, before_step: Callable[[], None]) -> SpeakerPrompt:
        begun.set()
        while not may_end.wait(0.001):
            before_step()
        return prompt(self, features, profile, before_step)

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE)))
        monkeypatch.setattr(SpeechModel, "prompt", slowly)
        first, second = (asyncio.create_task(speak(engine, Utterance(i, SENTENCE, voice="anna"))) for i in "12")
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
        assert (joined(await speak(engine, Utterance("u", SENTENCE))) == alone).all()
        begun.clear()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
        assert not second.done(), "it is the second's to make now"
        may_end.set()
        assert len(joined(await second))

    started(CosyVoice2Engine(model_dir, tmp_path, n_workers=2), use)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"transcript_ids": (512,)}, "not all below 512"),
        ({"transcript_ids": (-1,)}, "not all below 512"),
        ({"transcript": "a" * 1001}, "longer than 1000"),
        ({"embedding": torch.ones(7)}, "7 numbers, not"),
    ],
)
def test_a_voice_that_does_not_fit_the_model(model_dir: Path, wrong: dict[str, Any], problem: str) -> None:
    config = load_model_directory(model_dir).config
    features = read_spk2info(model_dir / "spk2info.pt")[0]["prompted"]
    assert misfit(features, config) == []
    assert any(problem in found for found in misfit(replace(features, **wrong), config))


def test_speed_is_kept_within_what_can_be_understood(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        lengths = [
            len(joined(await speak(engine, Utterance("u", SENTENCE, seed=1, speed=speed))))
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


def test_no_voice_at_all(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    (tmp_path / "spk2info.pt").unlink()
    with pytest.raises(EngineUnavailable, match="no voice"):
        asyncio.run(CosyVoice2Engine(tmp_path, tmp_path / "voices").start())


def test_what_cannot_be_configured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="float32, float16, bfloat16"):
        CosyVoice2Engine(tmp_path, dtype="int8")
    with pytest.raises(ConfigError, match="default, fast, upstream"):
        CosyVoice2Engine(tmp_path, profile="slow")
    with pytest.raises(ConfigError, match="at least one slot"):
        CosyVoice2Engine(tmp_path, limits=Limits(n_slots=0))
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
        with pytest.raises(UnsupportedText, match=r"not (cyrillic|hebrew|greek) letters.*engines\.routes"):
            engine.check(Utterance("u", text))
    for text in ("你好 Привет", "Bonjour, ça va?", "안녕", "ありがとう", "42", "", "ㄅㄆ"):
        engine.check(Utterance("u", text))


def test_not_started_and_not_there(model_dir: Path) -> None:
    with pytest.raises(EngineError, match="not started"):
        asyncio.run(speak(CosyVoice2Engine(model_dir), Utterance("u", SENTENCE)))
    with pytest.raises(EngineUnavailable):
        asyncio.run(CosyVoice2Engine(model_dir, device="nowhere").start())
