"""Adds, removes and remembers voices for a running server.

A voice is made in a process of its own (`hosting.voice_maker`) and written to the folder of voices. Then the engine
reads the folder, so the voice can be used as soon as a method returns. A prompt is a voice for single requests: its
name is the hash of its recording and its words, and only the last used ones are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from telephony_tts.engines.api import Voice
from telephony_tts.engines.cosyvoice2.hosting.enrolment_messages import MakeVoice
from telephony_tts.engines.cosyvoice2.hosting.voice_maker import VoiceMaker
from telephony_tts.engines.cosyvoice2.model.file_names import (
    SPEAKER_ONNX,
    SPEAKERS_FILE,
    TOKENS_ONNX,
    is_first_generation,
)
from telephony_tts.engines.cosyvoice2.settings import PROMPT_MARK, PROMPTS_FOLDER
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.runtime.clock import unix_ns
from telephony_tts.runtime.daemon_pool import in_own_thread
from telephony_tts.runtime.errors import Busy, ConfigError, EngineError, EngineUnavailable, UnknownVoice

MAX_WAITING = 8
"""Recordings that wait while another one becomes a voice. Each is held in memory."""
MAX_TEXT = 2000
"""Characters of a transcript before it is put in words. In words it may have 1000."""
QUEUED = "queued"
"""The first step of a voice that is added; the others are those of `enrolment.STEPS`."""

T = TypeVar("T")


class VoiceReader(Protocol):
    """The engine, as this module needs it."""

    @property
    def voices(self) -> tuple[Voice, ...]: ...
    def find_voice(self, name: str) -> Voice | None: ...
    async def read_voices(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AddedVoice:
    """A voice that was added. Of `source_s` seconds `kept_s` were kept; the rest is silence at the ends."""

    voice: Voice
    kept_s: float
    source_s: float
    warnings: tuple[str, ...] = ()


class VoiceService:
    """`spoken` makes the words of a transcript, or "" if it has none. `n_prompts`: how many prompts are kept on disk.

    It belongs to one event loop, on which it is closed.
    """

    def __init__(
        self,
        engine: VoiceReader,
        model_dir: Path,
        directory: Path,
        spoken: Callable[[str], str],
        *,
        n_prompts: int = 64,
        made_by: str = "",
        maker: VoiceMaker | None = None,
        until_known: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`until_known` waits until an engine that another process has knows a voice, and raises EngineError if it does
        not learn of it."""
        self._until_known = until_known
        self._engine = engine
        self._model_dir = model_dir
        self._folder = VoiceFolder(directory)
        self._prompts = VoiceFolder(directory / PROMPTS_FOLDER)
        self._spoken = spoken
        self._n_prompts = n_prompts
        self._made_by = made_by
        self._maker = maker or VoiceMaker()
        self._used_ns: dict[str, int] = {}
        """When each prompt was last used here. The access times of the files tell it of other fronts too, but later."""
        self._making: dict[str, asyncio.Task[None]] = {}
        """The prompts that are being made."""
        self._going: frozenset[str] = frozenset()
        """The prompts that are removed when the one that is being made is stored: a new request must not use them."""
        self._prompt_turn = asyncio.Lock()
        """Held while a prompt is made, because what must go for it depends on those that are there."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._n_waiting = 0

    @property
    def can_denoise(self) -> bool:
        """Whether the package that reduces noise is installed."""
        return importlib.util.find_spec("av") is not None

    async def check(self, audio: bytes, *, denoise: bool = False) -> Mapping[str, Any]:
        """What is found in the content of an audio file: see `enrolment.check_recording`. Raises what `add` raises."""
        self._check_room()
        return await self._to_end(self._maker.check(audio, denoise))

    async def denoised(self, audio: bytes) -> bytes:
        """A recording with less noise, as a WAV file. Raises what `add` raises."""
        self._check_room()
        return await self._to_end(self._maker.reduce_noise(audio))

    def is_removable(self, voice: Voice) -> bool:
        """Whether `remove` can remove it: it is in the folder, not in the model."""
        return voice.engine == "cosyvoice2" and self._folder.has(voice.name)

    async def add(
        self,
        name: str,
        audio: bytes,
        text: str,
        *,
        replace: bool = False,
        denoise: bool = False,
        tell: Callable[[str], None] = lambda step: None,
        record: Mapping[str, str] = MappingProxyType({}),
    ) -> AddedVoice:
        """Make a voice from the content of an audio file, whose words are `text`, or "" if they are unknown.

        `denoise` reduces the noise of the recording first. `record`: whose voice it is, and the consent to it
        (`voice_records.FIELDS`).
        `tell` is called with each step, first with `QUEUED` when nothing is wrong that is known at once. Raises
        ConfigError for a name that is invalid (`bad_request`) or taken (`voice_exists`), AudioError for a recording
        that cannot become a voice, Busy, EngineUnavailable for a model that cannot do it, and EngineError.
        """
        path = self._folder.path(name)
        is_own = any(voice.name == name for voice in self._engine.voices)
        if not replace and (is_own or await asyncio.to_thread(path.exists)):
            raise _taken(name)
        transcript = self._words(text)
        job = MakeVoice(
            name, audio, transcript, self._model_dir, self._folder.directory, replace, self._made_by,
            record=dict(record), denoise=denoise,
        )  # fmt: skip

        async def make() -> AddedVoice:
            try:
                made = await self._maker.make(job, tell)
            except ConfigError as error:
                if error.code == "voice_exists":  # another request has made it meanwhile
                    raise _taken(name) from error
                raise
            warnings = made.warnings
            try:
                await self._read_voice(name)
            except EngineError as error:
                warnings += (f"it is stored, and will speak when the engine runs again: {error.message}",)
            found = self._engine.find_voice(name) or Voice(name, "cosyvoice2", (), 0, description=made.description)
            return AddedVoice(found, made.kept_s, made.source_s, warnings)

        self._check_room()
        tell(QUEUED)
        return await self._to_end(make())

    async def stored(self, name: str) -> bytes:
        """The file of a stored voice, for `store` of another service. Raises UnknownVoice."""
        try:
            return await asyncio.to_thread(self._folder.path(name).read_bytes)
        except OSError as error:
            raise UnknownVoice(f"there is no voice {name!r}: {error.strerror or error}") from error

    async def store(self, name: str, file: bytes) -> None:
        """Store a voice that another service made, in place of one of the same name. The engine judges the file: one
        that it cannot read is no voice. Raises ConfigError, Busy, and EngineError if the engine is starting again."""
        await in_own_thread(self._folder.put, name, file)
        await self._engine.read_voices()

    async def remove(self, name: str) -> None:
        """Remove a stored voice; what speaks with it speaks on. Raises UnknownVoice, ConfigError (`voice_fixed`) for
        a voice of the model, and Busy."""
        if not self._folder.has(name):
            if any(voice.name == name for voice in self._engine.voices):
                raise ConfigError(
                    f"voice {name} is in the model's own {SPEAKERS_FILE} and cannot be removed", code="voice_fixed"
                )
            raise UnknownVoice(f"there is no voice {name!r}")
        await in_own_thread(self._folder.remove, name)
        try:
            await self._engine.read_voices()
        except EngineError:
            return  # it is starting again, and will not find the voice

    async def prompt(self, audio: bytes, text: str) -> str:
        """The name of a voice for single requests, made from the content of an audio file whose words are `text`.

        The same recording and words give the same voice. Raises what `add` raises. A prompt that was not used for
        longest is removed when there are too many.
        """
        if not self._n_prompts:
            raise EngineUnavailable("this server makes no voices for single requests (engines.cosyvoice2.prompts is 0)")
        transcript = self._words(text)
        name = await asyncio.to_thread(_hash, audio, transcript)
        making = self._making.get(name)
        if making is None:
            if await asyncio.to_thread(self._prompts.has, name) and name not in self._going:
                await self._use(name)
                if self._engine.find_voice(PROMPT_MARK + name) is None:
                    await self._read_voice(PROMPT_MARK + name)
                return PROMPT_MARK + name
            making = self._making.get(name)  # another request may have begun it meanwhile
        if making is None:
            self._check_room()
            making = self._begin(self._make_prompt(name, audio, transcript))
            self._making[name] = making
            making.add_done_callback(lambda _: self._making.pop(name, None))
        await asyncio.shield(making)
        await self._use(name)
        return PROMPT_MARK + name

    async def close(self) -> None:
        """End what runs. Idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._maker.close()

    async def _make_prompt(self, name: str, audio: bytes, transcript: str) -> None:
        async with self._prompt_turn:
            # It may be there: it was to go for another one, which was refused.
            if not await asyncio.to_thread(self._prompts.has, name):
                await self._store_prompt(name, audio, transcript)
            await self._use(name)
        await self._read_voice(PROMPT_MARK + name)

    async def _store_prompt(self, name: str, audio: bytes, transcript: str) -> None:
        used_ns = await asyncio.to_thread(self._prompts.last_used_ns)
        self._used_ns = {each: max(at_ns, self._used_ns.get(each, 0)) for each, at_ns in used_ns.items()}
        oldest = sorted(self._used_ns, key=self._used_ns.__getitem__)
        self._going = frozenset(oldest[: max(0, len(oldest) - self._n_prompts + 1)])
        room = tuple(map(self._prompts.path, self._going))
        made_by = self._made_by
        try:
            await self._maker.make(
                MakeVoice(name, audio, transcript, self._model_dir, self._prompts.directory, True, made_by, room)
            )
        finally:
            self._going = frozenset()

    async def _read_voice(self, name: str) -> None:
        """Return when the engine has read the voice. Raises EngineError."""
        await self._engine.read_voices()
        if self._until_known is not None:
            await self._until_known(name)

    async def _use(self, name: str) -> None:
        self._used_ns[name] = unix_ns()
        await asyncio.to_thread(self._prompts.mark_used, name)

    def _words(self, text: str) -> str:
        """The words of a transcript. Raises ConfigError if it has none, EngineUnavailable if no voice can be made."""
        if is_first_generation(self._model_dir):
            raise EngineUnavailable(
                f"the model is CosyVoice-300M, which speaks with the preset speakers of its {SPEAKERS_FILE} only: "
                "voices from recordings need CosyVoice2"
            )
        for graph in (SPEAKER_ONNX, TOKENS_ONNX):
            if not (self._model_dir / graph).is_file():
                raise EngineUnavailable(f"the model has no {graph}, which is needed to make a voice")
        if len(text) > MAX_TEXT:
            raise ConfigError(f"the text has {len(text)} characters: 30 s of speech have fewer", code="bad_request")
        words = self._spoken(text)
        if text.strip() and not words:
            raise ConfigError("the text has no words: send the words of the recording", code="bad_request")
        return words

    def _check_room(self) -> None:
        if self._n_waiting > MAX_WAITING:
            raise Busy(f"{MAX_WAITING} other voices wait to be made", retry_after_ms=10_000)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this service. It counts as waiting until it ends."""
        task = asyncio.ensure_future(work)
        self._n_waiting += 1
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._n_waiting -= 1
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the one who waited for it may be gone

    async def _to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. It runs to its end also if this is cancelled, as when a client is gone."""
        return await asyncio.shield(self._begin(work))


def _taken(name: str) -> ConfigError:
    return ConfigError(f"there is a voice {name}: send replace=true, or choose another name", code="voice_exists")


def _hash(audio: bytes, transcript: str) -> str:
    found = hashlib.sha256(hashlib.sha256(audio).digest())
    found.update(transcript.encode())
    return found.hexdigest()[:32]
