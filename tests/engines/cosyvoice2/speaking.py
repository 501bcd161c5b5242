"""A tiny model that speaks, for the tests of this folder."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from few_steps import FEW_EULER, with_steps
from plain_flow import recomputed
from reference_vocoder import whole_audio
from torch import Tensor

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import (
    AudioTaken,
    CancelOrder,
    Event,
    PushText,
    SubmitUtterance,
    UtteranceBegan,
    UtteranceEnded,
)
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane
from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes, DecodeRow, TokenBlock
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Sound, Track
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile
from telephony_tts.engines.cosyvoice2.settings import AheadLimits, Precision
from telephony_tts.engines.cosyvoice2.text.generation import Decoding, LmFeed
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info

torch.set_num_threads(1)

SENTENCE = "Thank you for calling, how can I help you today?"
NEIGHBOUR = "Your parcel left the depot on Tuesday morning."
N_SLOTS = 3
UNBOUNDED = AheadLimits(audio_ms=10**9)
"""For tests in which no listener takes audio."""


def n_empty(cache: KvCache) -> int:
    """Slots that hold nothing."""
    return cache.lengths.count(0)


def ready_voice(model: SpeechModel, features: PromptFeatures, profile: Profile) -> SpeakerPrompt:
    """A voice built at once; the core builds it step by step."""
    build = model.begin_prompt(features, profile)
    while not build.flow_block.done:
        model.flow.step([build.flow_block])
    return build.finished()


def live_storages() -> dict[int, int]:
    """Bytes of every live storage on the CPU, by its address. Weights and prompts are among them.

    Found by type: `isinstance` would ask torch's deprecated proxies for their class, and they warn. Sparse tensors, of
    which another test may have left one, have no storage to ask for.
    """
    found = (item for item in gc.get_objects() if issubclass(type(item), Tensor))
    dense = (tensor for tensor in found if tensor.layout == torch.strided and tensor.device.type == "cpu")
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}


FLOAT32 = Precision()


class Rig:
    """The model of a directory, and its voices."""

    def __init__(
        self, directory: Path, n_slots: int = N_SLOTS, n_euler: int = FEW_EULER, precision: Precision = FLOAT32
    ) -> None:
        checkpoint = with_steps(load_model_directory(directory), n_euler)
        assert checkpoint.spk2info is not None
        self.config = checkpoint.config
        self.model = SpeechModel.load(checkpoint, device="cpu", precision=precision, n_slots=n_slots)
        self.runner = Runner(self.model)
        self.features = read_spk2info(checkpoint.spk2info)[0]
        self._kept: dict[tuple[str, Profile], SpeakerPrompt] = {}

    def prompt(self, name: str, profile: Profile = DEFAULT) -> SpeakerPrompt:
        return ready_voice(self.model, self.features[name], profile)

    def kept_prompt(self, name: str, profile: Profile = DEFAULT) -> SpeakerPrompt:
        """Built once, for all tests that do not judge how a voice is built."""
        if (name, profile) not in self._kept:
            self._kept[name, profile] = self.prompt(name, profile)
        return self._kept[name, profile]

    def speech_tokens(self, prompt: SpeakerPrompt, decoding: Decoding, seed: int) -> list[int]:
        """All ids of a decoding that has its whole text."""
        track = self.runner.open(0, seed, prompt, 1.0, DEFAULT)
        tokens: list[int] = []
        while (feed := decoding.next_feed()) is not None:
            if feed.speech_id is None:
                (drawn,) = self.runner.prefill([track], [feed])
            else:
                (drawn,) = self.runner.decode([track], [DecodeRow(feed.speech_id, (feed.banned,), feed.forced)])
            assert drawn is not None
            speech = decoding.consume(drawn.read()[0])
            tokens += [] if speech is None else [speech]
        self.runner.close(track)
        return tokens

    def audio(self, voice: str, prompt: SpeakerPrompt, tokens: list[int], seed: int) -> Tensor:
        """The audio [N] of all tokens at once: the flow from the first prompt token, and the vocoder."""
        features, model = self.features[voice], self.model
        n_cut = features.speech_tokens.numel() - prompt.n_flow_tokens
        mel = recomputed(
            model.flow,
            features.speech_tokens[None, n_cut:],
            torch.tensor([tokens]),
            features.mel[None, 2 * n_cut :],
            features.embedding[None],
            streaming=True,
            finalize=True,
        )
        return whole_audio(model.vocoder, mel, CounterNoise(seed, model.vocoder.config.n_harmonics + 1))[0]


class Watched(Runner):
    """A runner that records its calls: the stage and the slots. A voice has no slot."""

    def __init__(self, rig: Rig, sizes: BatchSizes | None = None) -> None:
        super().__init__(rig.model, batch_sizes=sizes)
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.feeds: list[LmFeed] = []
        """Of all calls of `prefill`."""
        self._slots: dict[int, int] = {}
        """By the id of a block in the flow: keeping the block would keep its tensors."""

    def prefill(self, tracks: Sequence[Track], feeds: Sequence[LmFeed]) -> list[DrawnIds | None]:
        self.calls.append(("prefill", tuple(track.slot for track in tracks)))
        self.feeds += feeds
        return super().prefill(tracks, feeds)

    def decode(self, tracks: Sequence[Track], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        self.calls.append(("decode", tuple(track.slot for track in tracks)))
        return super().decode(tracks, rows)

    def begin(self, tracks: Sequence[Track], blocks: Sequence[TokenBlock]) -> list[FlowBlock]:
        self.calls.append(("begin", tuple(track.slot for track in tracks)))
        begun = super().begin(tracks, blocks)
        self._slots.update((id(block), track.slot) for block, track in zip(begun, tracks, strict=True))
        return begun

    def step_blocks(self, blocks: Sequence[FlowBlock], on_failure: OnFailure | None = None) -> None:
        of_pieces = [block for block in blocks if block.voice is None]
        self.calls.append(("flow", tuple(self._slots[id(block)] for block in of_pieces)))
        super().step_blocks(blocks, on_failure)

    def vocode(self, tracks: Sequence[Track], on_failure: OnFailure) -> list[Sound | None]:
        self.calls.append(("vocode", tuple(track.slot for track in tracks)))
        return super().vocode(tracks, on_failure)


class Stepped:
    """A core that the test steps, with lanes in any order."""

    def __init__(
        self,
        rig: Rig,
        profile: Profile = DEFAULT,
        *,
        features: Mapping[str, PromptFeatures] | None = None,
        ahead: AheadLimits = UNBOUNDED,
        runner: Runner | None = None,
        n_ready_voices: int = 4,
    ) -> None:
        self.heard: dict[int, list[Chunk]] = {}
        self.ended: dict[int, UtteranceEnded] = {}
        self.began: list[int] = []
        self._n_taken: dict[int, int] = {}
        self._rig, self._profile = rig, profile
        self.now_ns = 1
        self.core = Core(
            runner or rig.runner,
            features or rig.features,
            profile,
            self._tell,
            n_ready_voices=n_ready_voices,
            ahead=ahead,
            now_ns=lambda: self.now_ns,
        )

    def have_voices(self, *names: str) -> Stepped:
        """Take voices that are ready. Without this, the core builds a voice for its first utterance."""
        voices = self.core.voices
        for name in names:
            voices.get(name)
        for build in voices.builds:
            voices.finish(build, self._rig.kept_prompt(build.name, self._profile))
        return self

    def say(
        self, request: Request, voice: str = "prompted", deadline_ns: int = 0, *, follows: bool = False,
        can_wait: bool = False,
    ) -> int:
        """A new utterance; its key."""
        key = len(self.heard)
        self.heard[key] = []
        self.core.receive(SubmitUtterance(key, voice, request, deadline_ns, follows, can_wait))
        return key

    def push(self, key: int, text: str, *, last: bool = False) -> None:
        """More of its text."""
        self.core.receive(PushText(key, text, last))

    def cancel(self, key: int) -> None:
        self.core.receive(CancelOrder(key))

    def take(self, key: int) -> None:
        """Its listener takes all audio so far."""
        n_made = sum(len(chunk.pcm) for chunk in self.heard[key])
        self.core.receive(AudioTaken(key, n_made - self._n_taken.get(key, 0)))
        self._n_taken[key] = n_made

    def run(
        self, n_most: int = 10**9, lanes: Callable[[], Lane] = lambda: Lane.ALL, taking: Collection[int] = ()
    ) -> int:
        """Step until nothing more can be done. Returns the number of steps. `taking`: keys whose audio is taken."""
        n = 0
        while n < n_most:
            for key in taking:
                self.take(key)
            if not self.core.step(lanes()):
                break
            n += 1
        return n

    def until_heard(self, key: int, n_chunks: int) -> None:
        while len(self.heard[key]) < n_chunks:
            assert self.core.step(), "the core is idle"

    def voice(self, name: str) -> SpeakerPrompt:
        """A ready voice of this core."""
        prompt = self.core.voices.get(name)
        assert prompt is not None
        return prompt

    def pcm(self, key: int) -> Pcm:
        """The audio of a stream. Raises its error if it ended with one."""
        error = self.ended[key].error if key in self.ended else None
        if error is not None:
            raise error
        return pcm(self.heard[key])

    def is_empty(self) -> bool:
        """Nothing is held for any stream."""
        return self.core.slots.n_free == self.core.slots.n == n_empty(self.core.runner.model.cache)

    def _tell(self, key: int, event: Event) -> None:
        assert key not in self.ended, "an event came after the end"
        match event:
            case UtteranceBegan():
                self.began.append(key)
            case UtteranceEnded():
                self.ended[key] = event
            case Chunk():
                self.heard[key].append(event)


TOGETHER = BatchSizes(prefill=4, decode=N_SLOTS, flow=N_SLOTS, vocode=N_SLOTS, all_stages=True)
"""Batches of all streams, as on a device."""
REQUESTS = [
    Request("It left.", 7),
    Request("Thank you for calling.", 1, speed=1.3),
    Request("Yes.", 1),
    Request("It left. No.", 4),
]
"""One of a single block, the others of two that end at different places: no longer than it takes for that. Where all
are one batch, the first three have blocks under way at the same time; the last has the core to itself in the end. A
seed decides whether "It left." is of 16 ids or of 93."""
VOICES = ["prompted", "preset", "prompted", "preset"]


def say_all(stepped: Stepped, n: int = len(REQUESTS)) -> list[int]:
    """The first `n` of the utterances above, in voices that are ready, so that each has the slot of its place here."""
    stepped.have_voices(*VOICES[:2])
    return [stepped.say(request, voice) for request, voice in zip(REQUESTS[:n], VOICES[:n], strict=True)]


def check_all(stepped: Stepped, keys: Sequence[int], alone: Sequence[Pcm]) -> None:
    """Assert that each sounds as alone, all have ended, and nothing is held."""
    for key, expected in zip(keys, alone, strict=True):
        np.testing.assert_array_equal(stepped.pcm(key), expected)
    assert set(keys) <= set(stepped.ended)
    assert stepped.is_empty()


def spoken(rig: Rig, request: Request, voice: str = "prompted", profile: Profile = DEFAULT) -> Pcm:
    """The audio of an utterance that is alone."""
    alone = Stepped(rig, profile).have_voices(voice)
    key = alone.say(request, voice)
    alone.run()
    assert key in alone.ended and alone.is_empty()
    return alone.pcm(key)


def pcm(chunks: Iterable[Chunk]) -> Pcm:
    return np.concatenate([np.zeros(0, np.int16), *(chunk.pcm for chunk in chunks)])
