"""Voices that are stored, replaced and removed while the engine runs, in threads and in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import pytest
from conformance import joined, speak
from service_rig import BRIEF, core_of, host_of, started, until

from telephony_tts.engines.api import Chunk, Pcm, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.cosyvoice2 import service
from telephony_tts.engines.cosyvoice2.hosting import known_voices, process_host
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import PROMPT_MARK, PROMPTS_FOLDER
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.runtime.errors import EngineError, UnknownVoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps", "forks")]

BOTH = pytest.mark.parametrize("isolation", ["thread", "process"])


@pytest.fixture(scope="module")
def own(model_dir: Path) -> dict[str, PromptFeatures]:
    """The voices of the checkpoint."""
    return read_spk2info(model_dir / "spk2info.pt")[0]


async def said(engine: CosyVoice2Engine, voice: str, text: str = BRIEF.sentence) -> Pcm:
    return joined(await speak(engine, Utterance("u", text, voice=voice)))


async def rest(speaking: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    return [chunk async for chunk in speaking]


def names(engine: CosyVoice2Engine) -> list[str]:
    return [voice.name for voice in engine.voices]


@BOTH
def test_a_stored_voice_speaks_is_replaced_and_removed(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures], isolation: str
) -> None:
    """As the command line does it: the engine is told nothing."""
    store = VoiceStore(tmp_path)

    async def use(engine: CosyVoice2Engine) -> None:
        catalog = Catalog([engine])
        preset, prompted = await said(engine, "preset"), await said(engine, "prompted")
        assert len(preset) != len(prompted) or not (preset == prompted).all()
        with pytest.raises(UnknownVoice, match="'anna'"):
            engine.check(Utterance("u", BRIEF.sentence, voice="anna"))

        store.save("anna", own["prompted"])
        # Without a wait, so the engine has not looked: the catalog does.
        assert catalog.resolve("anna", None, "")[1].name == "anna"
        assert np.array_equal(await said(engine, "anna"), prompted)
        assert names(engine) == ["preset", "prompted", "anna"]
        assert "zero-shot" in engine.voices[2].description

        store.save("anna", own["preset"], replace=True)
        await engine.read_voices()
        assert np.array_equal(await said(engine, "anna"), preset), "the new features are used"

        speaking = engine.synthesize(Utterance("u", BRIEF.sentence, voice="anna"))
        heard = [await anext(speaking)]
        store.remove("anna")
        await until(lambda: names(engine) == ["preset", "prompted"], "it is gone")
        with pytest.raises(UnknownVoice, match="'anna'; it has preset, prompted"):
            await said(engine, "anna")
        with pytest.raises(UnknownVoice):
            catalog.resolve("anna", None, "")
        assert np.array_equal(joined([*heard, *await rest(speaking)]), preset), "what it speaks, it ends"

    started(CosyVoice2Engine(model_dir, tmp_path, isolation=isolation), use)


@BOTH
def test_an_added_voice_does_not_become_the_default_and_a_removed_default_is_followed_by_the_next(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures], isolation: str
) -> None:
    (tmp_path / "model").mkdir()
    for file in model_dir.iterdir():
        if file.name != "spk2info.pt":
            (tmp_path / "model" / file.name).symlink_to(file)
    store = VoiceStore(tmp_path / "voices")
    store.save("mia", own["prompted"])

    async def use(engine: CosyVoice2Engine) -> None:
        before = joined(await speak(engine, Utterance("u", BRIEF.sentence)))
        store.save("anna", own["preset"])
        await engine.read_voices()
        assert names(engine) == ["mia", "anna"]
        assert np.array_equal(joined(await speak(engine, Utterance("u", BRIEF.sentence))), before)
        store.remove("mia")
        await engine.read_voices()
        assert not np.array_equal(joined(await speak(engine, Utterance("u", BRIEF.sentence))), before)
        store.remove("anna")
        await engine.read_voices()
        with pytest.raises(UnknownVoice):
            await speak(engine, Utterance("u", BRIEF.sentence))
        with pytest.raises(UnknownVoice):
            Catalog([engine]).resolve(None, None, "")

    started(CosyVoice2Engine(tmp_path / "model", tmp_path / "voices", isolation=isolation), use)


@BOTH
def test_a_voice_for_one_request_speaks_and_is_not_listed(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures], isolation: str
) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        VoiceStore(tmp_path / PROMPTS_FOLDER).save("abc", own["prompted"])
        await engine.read_voices()
        name = PROMPT_MARK + "abc"
        assert Catalog([engine]).resolve(name, None, "")[1].name == name
        assert np.array_equal(await said(engine, name), await said(engine, "prompted"))
        assert names(engine) == ["preset", "prompted"]
        with pytest.raises(UnknownVoice) as refused:
            engine.check(Utterance("u", BRIEF.sentence, voice="stranger"))
        assert "abc" not in str(refused.value)

    started(CosyVoice2Engine(model_dir, tmp_path, isolation=isolation), use)


def test_after_a_restart_the_process_has_the_voices_and_sees_later_ones(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures]
) -> None:
    store = VoiceStore(tmp_path)
    store.save("mia", own["prompted"])

    async def use(engine: CosyVoice2Engine) -> None:
        store.save("anna", own["preset"])
        await engine.read_voices()
        assert names(engine) == ["preset", "prompted", "mia", "anna"]
        pid = host_of(engine).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        store.save("bert", own["prompted"])
        await until(lambda: not engine.stats().is_ready, "it is gone")
        await until(lambda: engine.stats().is_ready, "the next one")
        assert host_of(engine).pid != pid
        assert names(engine) == ["preset", "prompted", "mia", "anna", "bert"], "in the order of before"
        store.save("carl", own["prompted"])
        await engine.read_voices()
        assert np.array_equal(await said(engine, "carl"), await said(engine, "prompted"))

    started(CosyVoice2Engine(model_dir, tmp_path, isolation="process"), use)


def test_waiting_for_voices_ends_when_the_engine_is_closed(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_host, "TERM_S", 0.05)  # a stopped process does not end by itself

    async def use(engine: CosyVoice2Engine) -> None:
        os.kill(host_of(engine).pid or 0, signal.SIGSTOP)
        reading = asyncio.create_task(engine.read_voices())
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await reading

    started(CosyVoice2Engine(model_dir, tmp_path, isolation="process"), use)


def test_names_from_outside_cause_one_look_a_second(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**12
    monkeypatch.setattr(service, "monotonic_ns", lambda: now_ns)
    # The engine itself does not look, so that only the catalog's looks count.
    monkeypatch.setattr(known_voices, "LOOK_EVERY_S", 3600.0)

    async def use(engine: CosyVoice2Engine) -> None:
        nonlocal now_ns
        catalog, looked = Catalog([engine]), []
        has = engine._folder.has if engine._folder else None
        assert has is not None
        monkeypatch.setattr(type(engine._folder), "has", lambda self, name: looked.append(name) or has(name))
        VoiceStore(tmp_path).save("anna", own["prompted"])
        for name in ("x", "y", "anna", "../../etc/passwd"):
            with pytest.raises(UnknownVoice):
                catalog.resolve(name, None, "")
        assert looked == ["x"]
        now_ns += service.LOOK_EVERY_NS
        assert catalog.resolve("anna", None, "")[1].name == "anna"
        assert looked == ["x", "anna"]
        assert len(await said(engine, "anna"))

    started(CosyVoice2Engine(model_dir, tmp_path), use)


def test_a_damaged_file_is_told_once_and_its_voice_is_unknown(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def use(engine: CosyVoice2Engine) -> None:
        (tmp_path / "anna.safetensors").write_bytes(b"no")
        for _ in range(3):
            with pytest.raises(UnknownVoice):
                await said(engine, "anna")
            await engine.read_voices()
        assert caplog.text.count("skips a voice") == 1
        VoiceStore(tmp_path).save("anna", own["prompted"], replace=True)
        await engine.read_voices()
        assert len(await said(engine, "anna"))
        (tmp_path / "anna.safetensors").write_bytes(b"no")
        await engine.read_voices()
        with pytest.raises(UnknownVoice):
            await said(engine, "anna")

    started(CosyVoice2Engine(model_dir, tmp_path), use)


def test_a_voice_that_is_replaced_while_it_is_made_ready_speaks_with_the_new_features(
    model_dir: Path, tmp_path: Path, own: dict[str, PromptFeatures]
) -> None:
    store = VoiceStore(tmp_path)
    store.save("anna", own["prompted"])

    async def use(engine: CosyVoice2Engine) -> None:
        preset = await said(engine, "preset")
        core = core_of(engine)
        speaking = asyncio.create_task(said(engine, "anna"))
        await until(lambda: bool(core.voices.builds), "its build")
        old = core.voices.features["anna"]
        with core._lock:  # a step may compute meanwhile
            core.replace_voices({**core.voices.features, "anna": own["preset"]})
        assert core.voices.features["anna"] is not old
        assert np.array_equal(await speaking, preset)
        core.replace_voices({name: voice for name, voice in core.voices.features.items() if name != "anna"})
        with pytest.raises(UnknownVoice):
            await said(engine, "anna")

    started(CosyVoice2Engine(model_dir, tmp_path), use)
