"""Prompts that are asked for at the same time. What makes them here writes files without a model, when it may."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from telephony_tts.engines.api import Voice
from telephony_tts.engines.cosyvoice2 import shared_voices
from telephony_tts.engines.cosyvoice2.hosting.enrolment_messages import MakeVoice, VoiceMade
from telephony_tts.engines.cosyvoice2.model.file_names import SPEAKER_ONNX, TOKENS_ONNX
from telephony_tts.engines.cosyvoice2.settings import PROMPT_MARK, PROMPTS_FOLDER
from telephony_tts.engines.cosyvoice2.shared_voices import SharedVoices
from telephony_tts.engines.cosyvoice2.voice_service import VoiceReader, VoiceService
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.runtime.errors import AudioError, Busy, ConfigError

REFUSED = b"no speech"


class Maker:
    """Takes the place of `VoiceMaker`."""

    def __init__(self) -> None:
        self.made: list[bytes] = []
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.has_begun = asyncio.Event()

    async def make(self, job: MakeVoice, tell: object = None) -> VoiceMade:
        self.has_begun.set()
        await self.may_store.wait()
        if job.audio == REFUSED:
            raise AudioError("no speech was found")
        for path in job.makes_room:
            path.unlink(missing_ok=True)
        VoiceFolder(job.directory).put(job.name, job.audio)
        self.made.append(job.audio)
        return VoiceMade("zero-shot", 5.0, 6.0, ())

    async def close(self) -> None:
        pass


class Reader:
    """Takes the place of the engine: it has read each voice whose file is there."""

    def __init__(self, prompts: VoiceFolder) -> None:
        self._prompts = prompts
        self.voices: tuple[Voice, ...] = ()

    def find_voice(self, name: str) -> Voice | None:
        is_there = self._prompts.has(name.removeprefix(PROMPT_MARK))
        return Voice(name, "cosyvoice2", (), 0) if is_there else None

    async def read_voices(self) -> None:
        pass


class Rig:
    def __init__(
        self, folder: Path, n_prompts: int, engine: VoiceReader | None = None, maker: Maker | None = None, **how: Any
    ) -> None:
        model_dir = folder / "model"
        model_dir.mkdir(exist_ok=True)
        for graph in (SPEAKER_ONNX, TOKENS_ONNX):
            (model_dir / graph).touch()
        self.prompts = VoiceFolder(folder / PROMPTS_FOLDER)
        self.maker = maker or Maker()
        self.service = VoiceService(
            engine or Reader(self.prompts), model_dir, folder, str.strip, n_prompts=n_prompts,
            maker=cast(Any, self.maker), **how,
        )  # fmt: skip

    async def prompt(self, audio: bytes) -> str:
        return await self.service.prompt(audio, "Hello.")

    def is_there(self, prompt: str) -> bool:
        return self.prompts.has(prompt.removeprefix(PROMPT_MARK))


def test_one_recording_in_many_first_requests_is_made_once(tmp_path: Path) -> None:
    """None of them is told that the server is busy: all wait for one making."""

    async def run() -> None:
        rig = Rig(tmp_path, n_prompts=4)
        names = await asyncio.gather(*(rig.prompt(b"a") for _ in range(12)))
        assert len(set(names)) == 1 and rig.is_there(names[0]) and rig.maker.made == [b"a"]
        await rig.service.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("recording", "made"), [(b"c", [b"a", b"b", b"c", b"a"]), (REFUSED, [b"a", b"b"])], ids=["stored", "refused"]
)
def test_a_prompt_that_another_one_replaces_meanwhile_is_there_for_its_request(
    recording: bytes, made: list[bytes], tmp_path: Path
) -> None:
    """The store is full, so the oldest prompt goes when the new one is stored. A request for the oldest one that comes
    before that gets its voice all the same. It is made anew only if it is gone."""

    async def run() -> None:
        rig = Rig(tmp_path, n_prompts=2)
        oldest, _ = await rig.prompt(b"a"), await rig.prompt(b"b")
        rig.maker.may_store.clear()
        rig.maker.has_begun.clear()
        new = asyncio.create_task(rig.prompt(recording))
        await rig.maker.has_begun.wait()
        again = asyncio.create_task(rig.prompt(b"a"))
        await asyncio.wait((again,), timeout=0.2)
        rig.maker.may_store.set()
        await asyncio.wait((new, again))
        assert await again == oldest and rig.is_there(oldest)
        if recording == REFUSED:
            with pytest.raises(AudioError):
                await new
        else:
            assert rig.is_there(await new)
        assert rig.maker.made == made and len(rig.prompts.names()) == 2
        await rig.service.close()

    asyncio.run(run())


def test_a_prompt_that_another_front_uses_is_not_the_first_to_go(tmp_path: Path) -> None:
    """Pinned: each front knew its own uses only, and removed what the others were using."""

    async def run() -> None:
        here, there = Rig(tmp_path, n_prompts=3), Rig(tmp_path, n_prompts=3)
        busy, idle, other = [await here.prompt(recording) for recording in (b"a", b"b", b"c")]
        stamps = here.prompts.stamps()
        await here.prompt(b"a")
        assert here.prompts.stamps() == stamps, "the engine does not take it for another file"
        await there.prompt(b"d")
        assert [here.is_there(each) for each in (busy, idle, other)] == [True, False, True]
        for rig in (here, there):
            await rig.service.close()

    asyncio.run(run())


class Connection:
    """To an engine that knows a voice when it was asked `n_asks` times; None if it does not run."""

    voices: tuple[Voice, ...] = ()

    def __init__(self, n_asks: int | None) -> None:
        self.n_asks = n_asks

    def find_voice(self, name: str) -> Voice | None:
        if self.n_asks is None:
            return None
        self.n_asks -= 1
        return Voice(name, "cosyvoice2", ("zh", "en"), 24_000) if self.n_asks < 0 else None


@pytest.mark.parametrize("n_asks", [0, 1, 3, None])
def test_the_answer_to_a_new_voice_is_what_the_engine_of_all_fronts_says_of_it(
    n_asks: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_voices, "LOOK_S", 0)
    monkeypatch.setattr(shared_voices, "_ASK_S", 0)

    async def run() -> None:
        shared = SharedVoices(Connection(n_asks))
        service = Rig(tmp_path, 1, shared, until_known=shared.until_known).service
        added = await service.add("anna", b"a", "Hello.")
        if n_asks is None:
            (warning,) = added.warnings
            assert "it is stored, and will speak when the engine runs again" in warning
        else:
            assert added.voice.languages == ("zh", "en") and added.warnings == ()
        await service.close()

    asyncio.run(run())


def test_a_name_that_was_taken_while_the_voice_was_made_is_the_error_of_a_taken_name(tmp_path: Path) -> None:
    """Two requests with one name come together: neither finds the voice when it begins."""

    class Taken(Maker):
        async def make(self, job: MakeVoice, tell: object = None) -> VoiceMade:
            folder = VoiceFolder(job.directory)
            folder.put(job.name, b"of the first request")
            folder.check_free(job.name, job.replace)
            raise AssertionError("it was not refused")

    async def run() -> None:
        service = Rig(tmp_path, 1, maker=Taken()).service
        with pytest.raises(ConfigError, match="there is a voice anna: send replace=true") as refused:
            await service.add("anna", b"a", "Hello.")
        assert refused.value.code == "voice_exists"
        await service.close()

    asyncio.run(run())


def test_a_voice_is_not_changed_after_the_client_was_told_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine refuses one thread. Later work of other requests must not bring the change with it."""
    VoiceFolder(tmp_path).put("anna", b"first")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        service = Rig(tmp_path, n_prompts=1).service
        for change in (service.remove("anna"), service.store("anna", b"second")):
            with monkeypatch.context() as now, pytest.raises(Busy):
                now.setattr(threading.Thread, "start", refuse)
                await change
            assert await service.stored("anna") == b"first"
        await service.store("anna", b"second")
        assert await service.stored("anna") == b"second"
        await service.remove("anna")
        assert not VoiceFolder(tmp_path).has("anna")
        await service.close()

    asyncio.run(run())
