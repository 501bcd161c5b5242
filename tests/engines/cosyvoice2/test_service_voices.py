"""The engine's voices: where they come from, when they are made ready, and how many are kept."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import joined, speak
from service_rig import BRIEF, core_of, started

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
from telephony_tts.engines.cosyvoice2.voices.enrolment import ModelSizes
from telephony_tts.engines.cosyvoice2.voices.voice import misfits
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.runtime.errors import UnknownVoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps")]


def n_made(engine: CosyVoice2Engine) -> int:
    """Voices that were made ready, or begun."""
    return core_of(engine).voices._n_begun


def test_stored_voices_stand_beside_the_directorys(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = VoiceStore(tmp_path)
    store.save("anna", read_spk2info(model_dir / "spk2info.pt")[0]["prompted"])
    (tmp_path / "broken.safetensors").write_bytes(b"no")

    async def use(engine: CosyVoice2Engine) -> tuple[Any, Any]:
        assert [voice.name for voice in engine.voices] == ["preset", "prompted", "anna"]
        with pytest.raises(UnknownVoice, match="'broken'; it has preset, prompted, anna"):
            engine.check(Utterance("u", BRIEF.sentence, voice="broken"))
        anna, prompted = [
            joined(await speak(engine, Utterance("u", BRIEF.sentence, voice=name))) for name in ("anna", "prompted")
        ]
        return anna, prompted

    anna, prompted = started(CosyVoice2Engine(model_dir, tmp_path), use)
    assert (anna == prompted).all()
    assert "broken" in caplog.text and "random weights" in caplog.text


def test_a_voice_is_prepared_once(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        n_before = n_made(engine)
        await asyncio.gather(*(speak(engine, Utterance(str(i), "yes", voice="prompted")) for i in range(4)))
        prompt = core_of(engine).voices.get("prompted")
        assert prompt is not None and n_made(engine) == n_before + 1
        await speak(engine, Utterance("u", "no", voice="prompted"))
        assert core_of(engine).voices.get("prompted") is prompt and n_made(engine) == n_before + 1

    started(CosyVoice2Engine(model_dir, n_workers=2), use)


def test_voices_are_kept_ready_up_to_a_number(model_dir: Path, tmp_path: Path) -> None:
    """The one not used for longest goes, and is made again; an utterance that has it speaks on."""
    features = read_spk2info(model_dir / "spk2info.pt")[0]["prompted"]
    for name in ("anna", "bert", "carl"):
        VoiceStore(tmp_path).save(name, features)

    async def use(engine: CosyVoice2Engine) -> None:
        async def ready(name: str) -> SpeakerPrompt:
            await speak(engine, Utterance("u", "no", voice=name))
            prompt = core_of(engine).voices.get(name)
            assert prompt is not None
            return prompt

        anna, bert = await ready("anna"), await ready("bert")
        alone = joined(await speak(engine, Utterance("u", BRIEF.sentence, voice="bert")))
        assert await ready("anna") is anna
        speaking = engine.synthesize(Utterance("u", BRIEF.sentence, voice="bert"))
        heard = [await anext(speaking)]
        await ready("anna")
        await ready("carl")
        assert await ready("anna") is anna and await ready("bert") is not bert
        assert (joined([*heard, *[chunk async for chunk in speaking]]) == alone).all()

    started(CosyVoice2Engine(model_dir, tmp_path, limits=EngineLimits(n_ready_voices=2)), use)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_voice_being_made_ready_holds_up_no_other_and_can_be_given_up(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_workers: int
) -> None:
    """Two utterances want a new voice: it is made a step at a time, between those of the rest of the calls."""
    VoiceStore(tmp_path).save("anna", read_spk2info(model_dir / "spk2info.pt")[0]["prompted"])
    begin_prompt = SpeechModel.begin_prompt
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        """A block with more steps than it has, until it may end."""

        def __init__(self, making: Any) -> None:
            self._making = making

        def __getattr__(self, name: str) -> Any:
            return getattr(self._making, name)

        @property
        def flow_block(self) -> Any:
            begun.set()
            if not may_end.is_set() and self._making.flow_block.k == 2:
                self._making = begin_prompt(*arguments)
            return self._making.flow_block

    arguments: list[Any] = []

    def slowly(*args: Any) -> Any:
        arguments[:] = args
        return Slow(begin_prompt(*args))

    async def use(engine: CosyVoice2Engine) -> None:
        loop = asyncio.get_running_loop()
        alone = joined(await speak(engine, Utterance("u", BRIEF.sentence)))
        assert len(alone)
        monkeypatch.setattr(SpeechModel, "begin_prompt", slowly)
        late = [Utterance(i, BRIEF.sentence, voice="anna", deadline_ns=10**18) for i in "12"]
        first, second = (asyncio.create_task(speak(engine, utterance)) for utterance in late)
        assert await loop.run_in_executor(None, begun.wait, 30)
        assert (joined(await speak(engine, Utterance("u", BRIEF.sentence))) == alone).all()
        assert not first.done() and not second.done() and engine.stats().n_queued == 2
        n_before = n_made(engine)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        begun.clear()
        assert await loop.run_in_executor(None, begun.wait, 30)
        assert not second.done() and n_made(engine) == n_before, "it goes on for the second"
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert (joined(await speak(engine, Utterance("u", BRIEF.sentence))) == alone).all()
        assert core_of(engine).voices.builds == [], "no stream waits for it any more"
        may_end.set()
        assert len(joined(await speak(engine, Utterance("3", BRIEF.sentence, voice="anna"))))

    started(CosyVoice2Engine(model_dir, tmp_path, n_workers=n_workers), use)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"transcript_ids": (512,)}, "not all below 512"),
        ({"transcript_ids": (-1,)}, "not all below 512"),
        ({"transcript": "a" * 1001}, "has 1001 characters and may have 1000"),
        ({"transcript_ids": (5,) * 1001}, "has 1001 text tokens and may have 1000"),
        ({"embedding": torch.ones(7)}, "7 numbers and the model takes 192"),
    ],
)
def test_a_voice_that_does_not_fit_the_model(model_dir: Path, wrong: dict[str, Any], problem: str) -> None:
    sizes = ModelSizes(model_dir)
    features = read_spk2info(model_dir / "spk2info.pt")[0]["prompted"]
    assert features.problems() + misfits(features, sizes) == []
    features = replace(features, **wrong)
    assert any(problem in found for found in features.problems() + misfits(features, sizes))
