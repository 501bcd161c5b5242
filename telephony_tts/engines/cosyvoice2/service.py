"""The CosyVoice2 engine as the server sees it: a model directory and its voices behind `engines.api.Engine`.

The utterances of all calls go to one core (`core.core`), which runs beside the event loop: in threads or in its own
process (`hosting`). This module hands them over and passes each event to the generator that waits for it.

Voices come from the model directory's `spk2info.pt` and from the voice store, which may change at any time: the engine
sees that soon by itself (`hosting.known_voices`), and at once when a voice is asked for that it does not know. What the
utterances of a voice share is built when the voice is first used, and kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from telephony_tts.engines.api import Chunk, EngineStats, TextFeed, Utterance, Voice
from telephony_tts.engines.cosyvoice2.choice import EngineChoice
from telephony_tts.engines.cosyvoice2.core.orders import (
    AudioTaken,
    CancelOrder,
    Event,
    EventSink,
    Order,
    PushText,
    SubmitUtterance,
    UtteranceBegan,
    UtteranceEnded,
)
from telephony_tts.engines.cosyvoice2.core.ready_voices import unknown_voice
from telephony_tts.engines.cosyvoice2.languages import LANGUAGES, check_letters
from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2, COSYVOICE_300M
from telephony_tts.engines.cosyvoice2.model.file_names import is_first_generation
from telephony_tts.engines.cosyvoice2.profile import PROFILES, profile_of
from telephony_tts.engines.cosyvoice2.settings import (
    AUTO,
    DEFAULT_TIMEOUTS,
    DTYPES,
    FLOW_DTYPES,
    LM_BACKENDS,
    LM_DTYPES,
    PROMPT_MARK,
    VOCODER_DTYPES,
    AheadLimits,
    Precision,
    Settings,
    Timeouts,
)
from telephony_tts.engines.cosyvoice2.text.prompting import END_OF_INSTRUCTION, Request
from telephony_tts.engines.cosyvoice2.text.tokenizer import CONTROL_TOKENS
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import LANGUAGE_TAGS
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.engines.same_sound import with_same_sounds
from telephony_tts.engines.words import is_speakable
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns, unix_s
from telephony_tts.runtime.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice

LOOK_EVERY_NS = NS_PER_S
NEW_VOICE_S = 2.0
"""For so long after a voice was replaced, the engine may still speak with the old one."""
_SAMPLED_BYTES = 65_536
"""So much of the beginning and of the end of each model file tells one model from another."""
MIN_SPEED, MAX_SPEED = 0.5, 2.0
FINISHES = {"profile": None, "causal": True, "full": False}
"""How the last block is computed: as the profile says, causally, or once more over the whole utterance."""
ISOLATIONS = ("process", "thread")
"""Whether the engine computes in a process of its own, which is replaced when it fails, or in threads of this one."""


class EngineHost(Protocol):
    """Where the core runs."""

    async def start(self) -> None:
        """Load the model. Raises what loading raises."""

    @property
    def voices(self) -> Mapping[str, str]:
        """The voices that the core has, by name, each with its description; empty before it is loaded."""

    async def read_voices(self) -> None:
        """Return when the core has the voices that are stored now. Raises EngineError if it is not running."""

    @property
    def choice(self) -> EngineChoice:
        """What the settings became when the model was last loaded."""

    def send(self, order: Order) -> None:
        """From any thread. Raises EngineError if a new utterance cannot be taken."""

    def counters(self) -> dict[str, float]:
        """See `counters.Counters`."""

    def cost(self) -> float:
        """See `Counters.cost`."""

    @property
    def is_ready(self) -> bool:
        """Whether utterances can be taken."""

    def retry_after_ms(self) -> int:
        """When utterances can be taken again; 0 if they can be now, or if that is unknown."""

    async def wait_ready(self, *, follows: bool = False) -> None:
        """Return when utterances can be taken. Raises EngineError if that is not expected in time.

        `follows`: the turn of the utterance has begun to speak."""

    async def close(self) -> None:
        """End all utterances and stop the core. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much may be held at once."""

    n_slots: int = 16
    """Utterances computed at once; further ones wait. An utterance keeps its slot while its listener takes no audio."""
    n_ready_voices: int = 4
    """Voices that are kept ready. Others are built again when they are used. A ready voice takes 230 MB for each second
    of its recording, at full size in float32."""
    flow_memory_mb: int | None = None
    """GPU memory for ready voices and speech in the flow; None is a share of what is free. An utterance that does not
    fit ends with an error."""


class _UtteranceState(Enum):
    WAITING = auto()
    """The host is not ready. Nothing is submitted."""
    QUEUED = auto()
    """Submitted, without a slot."""
    RUNNING = auto()
    """It has or had a slot."""


@dataclass(slots=True, eq=False)
class _OpenUtterance:
    """An utterance whose generator is open: its events on their way from the core."""

    asked_ns: int
    state: _UtteranceState = _UtteranceState.WAITING
    chunks: deque[Chunk] = field(default_factory=deque)
    queued_ns: int = 0
    """How long it waited for a slot."""
    is_heard: bool = False
    ended: UtteranceEnded | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, event: Event) -> None:
        match event:
            case UtteranceBegan():
                self.state = _UtteranceState.RUNNING
                self.queued_ns = max(0, event.at_ns - self.asked_ns)
            case UtteranceEnded():
                self.ended = event
            case Chunk():
                self.chunks.append(event if self.is_heard else replace(event, queued_ns=self.queued_ns))
                self.is_heard = True
        self.changed.set()


class CosyVoice2Engine:
    """`profile`: see `profile_of`; `finish`: see `FINISHES`. `control_tokens`: the tokens that act as controls in the
    text of an utterance; others are read out. `n_workers`: threads that compute (`scheduler.lanes`). The dtypes of
    single networks default to `dtype`. `flow_steps`: Euler steps of the flow, None for 10.
    "auto" for a dtype, and None for `n_workers` and `n_threads`: see `choice`.

    A model directory of CosyVoice-300M is recognised by its files (`is_first_generation`). It has one profile, and gets
    only complete sentences. `end_of_instruction`: what ends an instruction to it that has no end of its own.

    `lm_backend`: with "vllm" vLLM runs the language model. It needs a process of its own, and gets only complete
    sentences too."""

    def __init__(
        self,
        model_dir: Path,
        voice_dir: Path | None = None,
        n_workers: int | None = 1,
        device: str = "cpu",
        dtype: str = "float32",
        profile: str = "default",
        *,
        finish: str = "profile",
        control_tokens: Collection[str] = (),
        limits: EngineLimits = EngineLimits(),
        n_threads: int | None = 1,
        isolation: str = "thread",
        lm_dtype: str | None = None,
        flow_dtype: str | None = None,
        vocoder_dtype: str | None = None,
        ahead_ms: int = AheadLimits().audio_ms,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        flow_steps: int | None = None,
        end_of_instruction: str = END_OF_INSTRUCTION[0],
        lm_backend: str = LM_BACKENDS[0],
    ) -> None:
        """Raises ConfigError for an unknown dtype, profile, finish, isolation, control token or end of an instruction,
        for no slots, and for a profile that the model family does not have."""
        for what, value, known in (
            ("dtype", dtype, (AUTO, *DTYPES)),
            ("profile", profile, (AUTO, *PROFILES)),
            ("finish", finish, FINISHES),
            ("isolation", isolation, ISOLATIONS),
            ("lm_dtype", lm_dtype, (AUTO, *LM_DTYPES)),
            ("flow_dtype", flow_dtype, (AUTO, *FLOW_DTYPES)),
            ("vocoder_dtype", vocoder_dtype, (AUTO, *VOCODER_DTYPES)),
            ("end_of_instruction", end_of_instruction, END_OF_INSTRUCTION),
            ("lm_backend", lm_backend, LM_BACKENDS),
        ):
            if value is not None and value not in known:
                raise ConfigError(f"cosyvoice2 has no {what} {value!r}; it has {', '.join(known)}")
        self._family = COSYVOICE_300M if is_first_generation(Path(model_dir)) else COSYVOICE2
        if not self._family.flow_streams and (profile not in (AUTO, "default") or finish != "profile"):
            raise ConfigError(
                f"{model_dir} is CosyVoice-300M, which speaks piece by piece: leave profile at auto and finish at "
                "profile"
            )
        uses_vllm = lm_backend == "vllm"
        if uses_vllm and self._family is not COSYVOICE2:
            raise ConfigError(f"{model_dir} is CosyVoice-300M, which vLLM cannot run: set lm_backend to own")
        if uses_vllm and isolation != "process":
            raise ConfigError("vLLM changes the process that it runs in: with lm_backend vllm set isolation to process")
        tokens = CONTROL_TOKENS if self._family is COSYVOICE2 else LANGUAGE_TAGS
        for token in control_tokens:
            if token not in tokens:
                raise ConfigError(f"cosyvoice2 has no control token {token!r}; it has {' '.join(tokens)}")
        if limits.n_slots < 1 or limits.n_ready_voices < 1:
            raise ConfigError("cosyvoice2 needs at least one slot and room for one voice")
        self.name = "cosyvoice2"
        self.streams_text = self._family.flow_streams and not uses_vllm
        chosen, causal_finish = profile_of(profile, device), FINISHES[finish]
        if causal_finish is not None:
            chosen = replace(chosen, causal_finish=causal_finish)
        self._settings = Settings(
            Path(model_dir),
            voice_dir,
            device,
            Precision.of(dtype, lm_dtype, flow_dtype, vocoder_dtype),
            chosen,
            limits.n_slots,
            limits.n_ready_voices,
            n_workers,
            n_threads,
            AheadLimits(ahead_ms),
            limits.flow_memory_mb,
            flow_steps,
            uses_vllm,
        )
        self._isolation = isolation
        self._timeouts = timeouts
        self._control = frozenset(control_tokens)
        self._end_of_instruction = end_of_instruction
        self._host: EngineHost | None = None
        self._utterances: dict[int, _OpenUtterance] = {}
        self._keys = itertools.count()
        self._folder = VoiceFolder(voice_dir) if voice_dir is not None else None
        self._look_again_ns = 0
        """Before this time no file is looked for."""
        self._seen: set[str] = set()
        """Voices whose file was seen before the core has them."""
        self._model_version = ""
        self._listed: tuple[Mapping[str, str], tuple[Voice, ...]] = {}, ()
        """The core's voices, and what is listed of them."""

    @property
    def _voices(self) -> Mapping[str, str]:
        return self._host.voices if self._host is not None else {}

    @property
    def voices(self) -> tuple[Voice, ...]:
        """The voices of the model directory and of the store. A voice that is stored later comes last. Empty before the
        engine is loaded. Voices that were made for one request are not listed."""
        known = self._voices
        if self._listed[0] is not known:
            self._listed = known, tuple(map(self._voice, (name for name in known if not name.startswith(PROMPT_MARK))))
        return self._listed[1]

    def _voice(self, name: str) -> Voice:
        rate_hz = self._family.sample_rate_hz
        return Voice(name, self.name, LANGUAGES, rate_hz, description=self._voices.get(name, ""))

    def find_voice(self, name: str) -> Voice | None:
        """A voice that `voices` does not list: made for one request, or stored a moment ago. It looks at a file at most
        every `LOOK_EVERY_NS`, whatever is asked, so that names from outside cost nothing."""
        if name in self._voices or name in self._seen:
            return self._voice(name)
        now_ns = monotonic_ns()
        if self._host is None or self._folder is None or now_ns < self._look_again_ns:
            return None
        self._look_again_ns = now_ns + LOOK_EVERY_NS
        if not self._folder.has(name):
            return None
        self._seen.add(name)
        return self._voice(name)

    async def read_voices(self) -> None:
        """Return when the engine has the voices that are stored now. Raises EngineError if it does not run."""
        if self._host is None:
            raise EngineError("cosyvoice2 is not started")
        await self._host.read_voices()

    @property
    def settings(self) -> Settings:
        """As they were given. Some may be "auto"."""
        return self._settings

    @property
    def choice(self) -> EngineChoice:
        """What the settings became when the model was last loaded."""
        return self._host.choice if self._host is not None else EngineChoice()

    async def start(self) -> None:
        if self._host is not None:
            return
        self._host = _host(self._isolation, self._settings, self._receive, self._timeouts)
        try:
            await self._host.start()
            self._model_version = _fingerprint(self._settings)
        except BaseException as failure:
            await self.close()
            if isinstance(failure, Exception) and not isinstance(failure, EngineUnavailable):
                raise EngineUnavailable(f"cosyvoice2 could not load {self._settings.model_dir}: {failure}") from failure
            raise

    async def close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.close()

    def stats(self) -> EngineStats:
        states = [utterance.state for utterance in self._utterances.values()]
        n_running = states.count(_UtteranceState.RUNNING)
        n_queued, host = len(states) - n_running, self._host
        if host is None:
            return EngineStats(n_queued, n_running)
        # Each listener needs a second of speech per second; the sum is that of one listener more. With none active the
        # load is 0, so a single one is always admitted, however slow the engine is.
        n_submitted = len(states) - states.count(_UtteranceState.WAITING)
        load = (n_submitted + 1) * host.cost() / host.choice.n_lanes if n_submitted else 0.0
        return EngineStats(n_queued, n_running, load, host.is_ready, host.retry_after_ms())

    @property
    def model_version(self) -> str:
        """Tells the model directory from another one, wherever it lies. Empty before the engine has started."""
        return self._model_version

    def version(self, voice: str) -> str | None:
        """The model, all settings that change the audio, and the voice's file. None while a voice may be changing."""
        if self._host is None or voice.startswith(PROMPT_MARK):
            return None
        stamp = self._folder.stamp(voice) if self._folder is not None else None
        if stamp is not None and abs(unix_s() - stamp.changed_ns / NS_PER_S) < NEW_VOICE_S:
            return None
        settings, choice = self._settings, self.choice
        file = "" if stamp is None else f"{stamp.n_bytes} {stamp.changed_ns}"
        how = (settings.device, choice.precision, settings.profile, settings.flow_steps, sorted(self._control))
        backend = " vllm" if settings.uses_vllm else ""
        return f"{self._model_version} {file} {how} {self._end_of_instruction}{backend}"

    def counters(self) -> dict[str, float]:
        """What the engine has done since it started: see `counters.Counters`."""
        return self._host.counters() if self._host is not None else {}

    def check(self, utterance: Utterance) -> None:
        """Raises UnknownVoice, and UnsupportedText if all letters are of scripts that the model does not know."""
        name = utterance.voice
        if self._voices and name is not None and name not in self._voices and name not in self._seen:
            raise UnknownVoice(unknown_voice(name, self._voices))
        check_letters(utterance.text)

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if utterance.more is None and not is_speakable(utterance.text):
            return
        host = self._host
        if host is None:
            raise EngineError("cosyvoice2 is not started")
        request = Request(
            with_same_sounds(utterance.text, utterance.pronunciations),
            utterance.seed or 0,
            min(MAX_SPEED, max(MIN_SPEED, utterance.speed)),
            utterance.instruct,
            utterance.more is not None,
            self._control,
            self._end_of_instruction,
        )
        key, stream = next(self._keys), _OpenUtterance(monotonic_ns())
        self._utterances[key] = stream
        try:
            await host.wait_ready(follows=utterance.follows)
            if utterance.voice in self._seen:
                await host.read_voices()
                self._seen.discard(utterance.voice)
            self.check(utterance)  # its voice may be gone
            voice = utterance.voice or next((voice.name for voice in self.voices), None)
            if voice is None:
                raise UnknownVoice("cosyvoice2 has no voice: all were removed")
            due_ns, follows, can_wait = utterance.deadline_ns, utterance.follows, utterance.can_wait
            host.send(SubmitUtterance(key, voice, request, due_ns, follows, can_wait))
        except BaseException:
            del self._utterances[key]  # nothing was submitted, so no event comes
            raise
        stream.state = _UtteranceState.QUEUED
        try:
            if utterance.more is not None:
                self._forward_text(key, host, utterance.more)
            while True:
                if stream.chunks:
                    chunk = stream.chunks.popleft()
                    yield chunk
                    # The caller asks for the next chunk: it has taken this one.
                    self._send(host, AudioTaken(key, len(chunk.pcm)))
                elif stream.ended is not None:
                    if stream.ended.error is not None:
                        raise stream.ended.error
                    return
                else:
                    stream.changed.clear()
                    await stream.changed.wait()
        finally:
            await self._cancel(key, host, stream)

    def _receive(self, key: int, event: Event) -> None:
        stream = self._utterances.get(key)
        if stream is not None:
            stream.receive(event)

    def _send(self, host: EngineHost, order: PushText | AudioTaken | CancelOrder) -> None:
        """Send an order, unless the engine was closed meanwhile."""
        if self._host is host:
            host.send(order)

    def _forward_text(self, key: int, host: EngineHost, more: TextFeed) -> None:
        """Push text to the engine, whenever and in whatever thread some comes."""

        def push() -> None:
            if key not in self._utterances:
                return
            text, last = more.take()
            self._send(host, PushText(key, text, last))
            if not last:
                more.on_news(push)

        push()

    async def _cancel(self, key: int, host: EngineHost, stream: _OpenUtterance) -> None:
        """Cancel, and return when the engine holds nothing for it, even if this task is cancelled meanwhile."""
        interrupted: asyncio.CancelledError | None = None
        if stream.ended is None:
            self._send(host, CancelOrder(key))
        while stream.ended is None:
            stream.changed.clear()
            try:
                await stream.changed.wait()
            except asyncio.CancelledError as cancelled:
                interrupted = cancelled
        del self._utterances[key]
        if interrupted is not None:
            raise interrupted


def _host(isolation: str, settings: Settings, tell: EventSink, timeouts: Timeouts) -> EngineHost:
    """Imported here, because the threads' host imports torch into this process."""
    if isolation == "process":
        from telephony_tts.engines.cosyvoice2.hosting.process_host import ProcessHost

        return ProcessHost(settings, tell, timeouts)
    from telephony_tts.engines.cosyvoice2.hosting.thread_host import ThreadHost

    return ThreadHost(settings, tell)


def _fingerprint(settings: Settings) -> str:
    """A digest of the model directory: the name, the size, and both ends of each file. Voices that are stored in the
    directory do not count."""
    digest = hashlib.sha256()
    root = settings.model_dir
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if hidden or not path.is_file() or (settings.voice_dir is not None and path.is_relative_to(settings.voice_dir)):
            continue
        n_bytes = path.stat().st_size
        digest.update(f"{path.relative_to(root)} {n_bytes}\n".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, n_bytes - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()
