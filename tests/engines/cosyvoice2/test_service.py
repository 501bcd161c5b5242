"""The engine: its contract, its voices, and what it says when something is missing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import check_engine, joined, speak

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.cosyvoice2.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.voice_store import VoiceStore, read_spk2info
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice

torch.set_num_threads(1)

SENTENCE = "Thank you for calling, how can I help you today?"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path)
    return path


def started(engine: CosyVoice2Engine, use: Callable[[CosyVoice2Engine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


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


@pytest.mark.parametrize(("profile", "dtype"), [("fast", "float32"), ("default", "bfloat16"), ("default", "float16")])
def test_other_profiles_and_dtypes_speak(model_dir: Path, profile: str, dtype: str) -> None:
    engine = CosyVoice2Engine(model_dir, profile=profile, dtype=dtype)
    chunks = started(engine, lambda engine: speak(engine, Utterance("u", SENTENCE, voice="prompted")))
    assert len(joined(chunks)) > 24_000 and abs(joined(chunks)).max() > 1000


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
        prompt = engine._loaded.prompt("prompted")
        await speak(engine, Utterance("u", "no", voice="prompted"))
        assert engine._loaded.prompt("prompted") is prompt

    started(CosyVoice2Engine(model_dir, n_workers=2), use)


# ----------------------------------------------------------------------------- missing


def test_a_directory_that_is_not_complete(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    for name in ("flow.pt", "campplus.onnx"):
        (tmp_path / name).unlink()
    engine = CosyVoice2Engine(tmp_path)
    with pytest.raises(EngineUnavailable, match=r"(?s)campplus\.onnx is missing.*flow\.pt is missing.*models pull"):
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
    with pytest.raises(ConfigError, match="default, fast"):
        CosyVoice2Engine(tmp_path, profile="slow")
    with pytest.raises(ConfigError, match="at least one slot"):
        CosyVoice2Engine(tmp_path, n_slots=0)


def test_not_started_and_not_there(model_dir: Path) -> None:
    with pytest.raises(EngineError, match="not started"):
        asyncio.run(speak(CosyVoice2Engine(model_dir), Utterance("u", SENTENCE)))
    with pytest.raises(EngineUnavailable):
        asyncio.run(CosyVoice2Engine(model_dir, device="nowhere").start())
