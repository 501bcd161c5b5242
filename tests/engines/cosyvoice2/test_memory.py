"""The memory of an utterance: in proportion to its length, nothing twice, and nothing after its end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from few_steps import FEW_EULER
from plain_flow import extend, finish, own_bytes, storages
from reference_vocoder import n_bytes, push
from speaking import Rig, Stepped, live_storages
from torch import Tensor

from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.core.stream import Piece, Stream
from telephony_tts.engines.cosyvoice2.device.requests import TokenBlock
from telephony_tts.engines.cosyvoice2.device.runner import Track
from telephony_tts.engines.cosyvoice2.device.speech_model import PromptBuild, SpeakerPrompt
from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_SPEECH_TOKENS,
    SAMPLES_PER_FRAME,
    LmConfig,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock, FlowStream
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, UpstreamJoint
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.text.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import Request

pytestmark = pytest.mark.slow

SENTENCE = "the account number please."
N_SLOTS = 2
FLOAT32 = 4
PROFILES = {"default": DEFAULT, "fast": FAST, "upstream": UPSTREAM}


@pytest.fixture(scope="module")
def rig(model_dir: Path) -> Rig:
    rig = Rig(model_dir, N_SLOTS)
    rig.model.lm.head_bias[N_SPEECH_TOKENS:] = -1e4  # as long as the text allows
    return rig


@pytest.fixture(scope="module")
def prompt(rig: Rig) -> SpeakerPrompt:
    return rig.prompt("prompted")


KINDS = (FlowStream, ContinuousJoint, UpstreamJoint, Job, Stream, Piece, Track, FlowBlock, TokenBlock, PromptBuild,
         SentenceDecoding)  # fmt: skip
"""Types that only an utterance holds."""


class Census:
    """Live storages, counted repeatedly without walking the whole process.

    Nothing is collected meanwhile, so whatever is made since stays among the youngest, and only what was there before
    has to be kept in mind.
    """

    def __init__(self) -> None:
        gc.collect()
        gc.disable()
        self._n_collections = self._collections()
        there = gc.get_objects()
        self._left_over = [o for o in there if type(o) in KINDS]
        self._old = [weakref.ref(o) for o in there if issubclass(type(o), Tensor)]

    def storages(self) -> dict[int, int]:
        """The storages that `live_storages` would find, by the same rules."""
        old = [tensor for reference in self._old if (tensor := reference()) is not None]
        tensors = [*old, *(o for o in self._young() if issubclass(type(o), Tensor))]
        dense = [t for t in tensors if t.layout == torch.strided and t.device.type == "cpu"]
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}

    def objects(self) -> list[object]:
        """Live storages of the kinds above, also those of earlier tests."""
        return [*self._left_over, *(o for o in self._young() if type(o) in KINDS)]

    def _young(self) -> list[object]:
        assert self._collections() == self._n_collections, "what was collected meanwhile is not found here"
        return gc.get_objects(generation=0)

    @staticmethod
    def _collections() -> int:
        return sum(generation["collections"] for generation in gc.get_stats())


@pytest.fixture(autouse=True)
def census() -> Iterator[Census]:
    """Everything must be freed at once, without the garbage collector."""
    yield Census()
    gc.enable()


def test_the_census_misses_nothing(rig: Rig, prompt: SpeakerPrompt, census: Census) -> None:
    """During an utterance it finds the same as a walk through the whole process."""
    stepped = Stepped(rig)
    key = stepped.say(Request(SENTENCE))
    stepped.run(60)
    storages, objects = live_storages(), [o for o in gc.get_objects() if type(o) in KINDS]
    assert census.storages() == storages
    assert objects and {id(o) for o in census.objects()} == {id(o) for o in objects}
    stepped.cancel(key)
    stepped.run()
    assert stepped.is_empty()


def elements_per_token(config: ModelConfig) -> tuple[int, int]:
    """Of the encoder and of the estimator's caches (specification 8): keys and values of every attention layer; the
    estimator's for each Euler step and both guidance branches."""
    encoder, decoder = config.flow_encoder, config.flow_decoder
    of_encoder = 2 * encoder.d_model * (encoder.n_layers + FRAMES_PER_TOKEN * encoder.n_up_layers)
    n_layers = decoder.n_blocks * (decoder.n_mid_stages + 2)
    of_frame = 2 * decoder.n_heads * decoder.d_head * n_layers * decoder.n_steps * 2
    return of_encoder, FRAMES_PER_TOKEN * of_frame


def elements_of_contexts(config: ModelConfig) -> int:
    """The left contexts of the convolutions have the same size at any length."""
    d, c, d_mel = config.flow_encoder.d_model, config.flow_decoder.n_channels, config.flow_decoder.d_mel
    of_convolutions = [4 * d_mel, c, *[c] * (2 * config.flow_decoder.n_mid_stages), 2 * c, c, c, c, c]
    return (2 + 4) * d + config.flow_decoder.n_steps * 2 * 2 * sum(of_convolutions)


def test_the_official_sizes_give_the_specification_s_numbers() -> None:
    of_encoder, of_estimator = elements_per_token(ModelConfig())
    assert of_encoder == 14_336
    assert of_estimator == FRAMES_PER_TOKEN * 1_146_880
    assert 25 * of_estimator * FLOAT32 == 229_376_000
    assert elements_of_contexts(ModelConfig()) - 6 * 512 == 10 * 2 * 2 * (320 + 256 + 256 + 12 * 512 + 512 + 3 * 256)


def ids(n: int) -> Tensor:
    return torch.randint(N_SPEECH_TOKENS, (1, n), generator=torch.Generator().manual_seed(0))


def test_a_stream_of_the_flow_grows_by_the_same_for_every_second(rig: Rig, prompt: SpeakerPrompt) -> None:
    """Without spare room, to the byte. The prompt's whole blocks are shared; the three tokens after them are not."""
    flow = rig.model.flow
    per_token = FLOAT32 * sum(elements_per_token(rig.config))
    contexts = FLOAT32 * elements_of_contexts(rig.config)
    stream = flow.start(prompt.flow)
    assert own_bytes(stream.table) == 0
    tokens, at = ids(200), 0
    n_tail = prompt.flow.tail_tokens.shape[1]
    for hop in (22, 25, 25, 50, 25):
        extend(flow, stream, tokens[:, at : at + hop], tokens[:, at + hop : at + hop + LOOKAHEAD_TOKENS])
        at += hop
        assert own_bytes(stream.table) == contexts + per_token * (n_tail + at)
    finish(flow, stream, tokens[:, at : at + 7])
    assert own_bytes(stream.table) == contexts + per_token * (n_tail + at + 7)


@pytest.mark.parametrize("kind", ["exact", "early", "upstream"])
def test_the_vocoder_holds_the_same_whatever_the_length(rig: Rig, kind: str, census: Census) -> None:
    noise = CounterNoise(1, rig.config.vocoder.n_harmonics + 1)
    hold = {"exact": None, "early": 8}.get(kind)
    joint = UpstreamJoint(rig.model.vocoder, noise) if kind == "upstream" else ContinuousJoint(
        rig.model.vocoder, noise, hold
    )  # fmt: skip
    mel = torch.randn(1, 80, 50, generator=torch.Generator().manual_seed(0)) - 5
    n_before, held = sum(census.storages().values()), []
    for _ in range(12):
        audio = push(joint, mel)
        del audio
        held.append(sum(census.storages().values()) - n_before)
        if isinstance(joint, ContinuousJoint):
            # Beside what is counted, the phases and voicing of the last frames.
            assert 0 <= held[-1] - n_bytes(joint) <= mel.shape[2] * (8 * (rig.config.vocoder.n_harmonics + 1) + 1)
    assert held[2:] == [held[2]] * 10
    reach = rig.model.vocoder.reach
    n_frames = reach.lookahead + reach.decode + reach.f0
    # Float64 mel and source; the reference's joint keeps a little more than 8 frames, less than this.
    assert held[-1] <= 8 * n_frames * (80 + SAMPLES_PER_FRAME) + 4 * SAMPLES_PER_FRAME


def test_the_cache_is_allocated_once(rig: Rig) -> None:
    cache, lm = rig.model.cache, rig.config.lm
    per_position = 2 * lm.n_layers * lm.n_kv_heads * lm.d_head * FLOAT32
    assert cache.data.untyped_storage().nbytes() == (N_SLOTS + 1) * per_position * cache.max_len
    official = LmConfig()
    assert 2 * official.n_layers * official.n_kv_heads * official.d_head * 2 == 12 * 1024  # in float16
    at = cache.data.data_ptr()
    stepped = Stepped(rig)
    key = stepped.say(Request(SENTENCE))
    while stepped.core.step():
        assert cache.data.data_ptr() == at
    assert len(stepped.pcm(key))


class SteppedWithVoice(Stepped):
    """A core with a ready voice and no other trace of building it."""

    def __init__(self, rig: Rig, profile: Profile) -> None:
        super().__init__(rig, profile)
        self.say(Request("no"))
        self.run()
        self.voice("prompted")

    def say_at_length(self) -> int:
        """Its chunks are not kept, because they would be counted."""
        return self.say(Request(SENTENCE))

    def step_unheard(self, key: int) -> bool:
        stepped = self.core.step()
        self.n_heard += len(self.heard[key])
        self.heard[key].clear()
        return stepped

    n_heard = 0


@pytest.mark.parametrize("name", PROFILES)
def test_an_utterance_holds_its_stream_and_its_joint_and_nothing_else(rig: Rig, name: str, census: Census) -> None:
    """Checks all live storages after every second step. The rest are ids, the clock, a block in the flow, and mel or
    audio that is not given out yet."""
    ready = SteppedWithVoice(rig, PROFILES[name])
    before = sum(census.storages().values())
    key = ready.say_at_length()
    most, n_looks, n_steps = 0, 0, 0
    while ready.step_unheard(key):
        n_steps += 1
        if n_steps % 2:
            continue
        held = sum(census.storages().values()) - before
        objects = census.objects()
        streams = [item.table for item in objects if isinstance(item, FlowStream)]
        blocks = [item for item in objects if isinstance(item, FlowBlock) and item.new]
        counted = own_bytes(*streams, *blocks)
        counted += sum(n_bytes(item) for item in objects if isinstance(item, ContinuousJoint))
        if counted:
            n_looks += 1
            most = max(most, held - counted)
    assert ready.ended[key].error is None and ready.n_heard > 5
    assert n_looks > 20
    # A block's mel and audio, while their samples are given out.
    assert most < FLOAT32 * 2 * 100 * FRAMES_PER_TOKEN * (80 + SAMPLES_PER_FRAME)


@pytest.mark.parametrize("name", PROFILES)
def test_all_memory_is_free_at_the_end_and_after_any_cancel(rig: Rig, name: str, census: Census) -> None:
    """At the end, and after a cancel before the first token, between Euler steps and at the end. Nothing refers to
    itself, so memory is freed at once and without the garbage collector."""
    ready = SteppedWithVoice(rig, PROFILES[name])
    before = census.storages()
    assert census.objects() == [] and ready.is_empty()
    whole = ready.say_at_length()
    n_steps = ready.run()
    ready.heard[whole].clear()
    assert census.objects() == [] and census.storages() == before
    for n in (0, 1, 2, 30, n_steps // 2, n_steps // 2 + 5, n_steps - 3, n_steps - 1):
        key = ready.say_at_length()
        assert ready.run(n) == n
        assert census.objects() != []
        ready.cancel(key)
        assert ready.run() == 1
        ready.heard[key].clear()
        assert census.objects() == [], n
        assert ready.is_empty()
        assert census.storages() == before, n


def test_a_voice_that_is_given_up_is_free(rig: Rig, census: Census) -> None:
    """A cancel after any of the steps that build the voice."""
    stepped = Stepped(rig)
    before = census.storages()
    for n in range(FEW_EULER):
        key = stepped.say(Request(SENTENCE))
        assert (stepped.run(n) == n and stepped.core.voices.builds == []) or n
        stepped.cancel(key)
        stepped.run()
        assert stepped.core.voices.builds == [] and census.objects() == [], n
        assert census.storages() == before, n
    key = stepped.say(Request(SENTENCE))
    stepped.run()
    assert stepped.voice("prompted").n_flow_tokens > 0


def test_two_utterances_of_one_voice_hold_its_prompt_once(rig: Rig, prompt: SpeakerPrompt, census: Census) -> None:
    flow, tokens = rig.model.flow, ids(50)
    alone = sum(census.storages().values())
    streams = [flow.start(prompt.flow) for _ in range(2)]
    for stream in streams:
        mel = extend(flow, stream, tokens[:, :22], tokens[:, 22:25])
    del mel
    own = own_bytes(*(stream.table for stream in streams))
    assert sum(census.storages().values()) - alone == own
    contexts = FLOAT32 * elements_of_contexts(rig.config)
    n_kept = FLOAT32 * sum(elements_per_token(rig.config)) * prompt.flow.table.n_tokens
    assert own_bytes(prompt.flow.table) == contexts + n_kept > contexts
    for stream in streams:
        assert stream.table.pages[: stream.table.n_shared] == prompt.flow.table.pages
        assert len(stream.table.pages) == stream.table.n_shared + 1
        assert not storages(stream.table.pages[-1:]).keys() & storages(prompt.flow.table.pages).keys()
