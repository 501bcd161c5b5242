"""What an utterance holds: as much as its length says, nothing twice, and nothing once it is over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from speaking import FEW_EULER, Rig, Stepped, live_storages
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.core.stream import Block, Piece, Stream
from telephony_tts.engines.cosyvoice2.device.runner import Track
from telephony_tts.engines.cosyvoice2.device.speech_model import PromptInTheMaking, SpeakerPrompt
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_SPEECH_TOKENS,
    SAMPLES_PER_FRAME,
    LmConfig,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.cache import Cache, KeyValues
from telephony_tts.engines.cosyvoice2.model.flow.flow import GROWTH_FRAMES
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowStream, Solve
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, CounterNoise, UpstreamJoint
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.text.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import Request

pytestmark = pytest.mark.slow

SENTENCE = "a the account number today please."
N_SLOTS = 2
FLOAT32 = 4
PROFILES = {"default": DEFAULT, "fast": FAST, "upstream": UPSTREAM}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    directory = tmp_path_factory.mktemp("model")
    write_random_checkpoint(directory)
    rig = Rig(directory, N_SLOTS)
    rig.model.lm.head_bias[N_SPEECH_TOKENS:] = -1e4  # as long as the text allows
    return rig


@pytest.fixture(scope="module")
def prompt(rig: Rig) -> SpeakerPrompt:
    return rig.prompt("prompted")


KINDS = (FlowStream, ContinuousJoint, UpstreamJoint, Job, Stream, Piece, Track, Solve, Block, PromptInTheMaking,
         SentenceDecoding)  # fmt: skip
"""What only an utterance has."""


class Census:
    """What lives, asked for again and again without a walk through the whole process.

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
        """What `live_storages` would find, by the same rules."""
        old = [tensor for reference in self._old if (tensor := reference()) is not None]
        tensors = [*old, *(o for o in self._young() if issubclass(type(o), Tensor))]
        dense = [t for t in tensors if t.layout == torch.strided and t.device.type == "cpu"]
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}

    def objects(self) -> list[object]:
        """Of the kinds above, those included that an earlier test has left."""
        return [*self._left_over, *(o for o in self._young() if type(o) in KINDS)]

    def _young(self) -> list[object]:
        assert self._collections() == self._n_collections, "what was collected meanwhile is not found here"
        return gc.get_objects(generation=0)

    @staticmethod
    def _collections() -> int:
        return sum(generation["collections"] for generation in gc.get_stats())


@pytest.fixture(autouse=True)
def census() -> Iterator[Census]:
    """What is freed here is freed at once, and not by a collector that comes when it comes."""
    yield Census()
    gc.enable()


def test_the_census_misses_nothing(rig: Rig, prompt: SpeakerPrompt, census: Census) -> None:
    """With an utterance under way it finds what a walk through everything finds."""
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
    """Left contexts of the convolutions, whatever the length."""
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
    """Without spare room: to the byte. The prompt's whole blocks are not its own; the three tokens after them are."""
    flow = rig.model.flow
    per_token = FLOAT32 * sum(elements_per_token(rig.config))
    contexts = FLOAT32 * elements_of_contexts(rig.config)
    stream = flow.start(prompt.flow, growth_frames=0)
    assert stream.nbytes() == contexts
    tokens, at = ids(200), 0
    n_tail = prompt.flow.tail_tokens.shape[1]
    for hop in (22, 25, 25, 50, 25):
        flow.extend(stream, tokens[:, at : at + hop], tokens[:, at + hop : at + hop + LOOKAHEAD_TOKENS])
        at += hop
        assert stream.nbytes() == contexts + per_token * (n_tail + at)
    flow.finish(stream, tokens[:, at : at + 7])
    assert stream.nbytes() == contexts + per_token * (n_tail + at + 7)


def test_the_spare_room_is_no_more_than_it_is_said_to_be(rig: Rig, prompt: SpeakerPrompt) -> None:
    flow = rig.model.flow
    per_token = FLOAT32 * sum(elements_per_token(rig.config))
    contexts = FLOAT32 * elements_of_contexts(rig.config)
    stream = flow.start(prompt.flow)
    tokens, at = ids(400), 0
    for hop in (22, *[BLOCK_TOKENS] * 12):
        flow.extend(stream, tokens[:, at : at + hop], tokens[:, at + hop : at + hop + LOOKAHEAD_TOKENS])
        at += hop
        spare = stream.nbytes() - contexts - per_token * (at + prompt.flow.tail_tokens.shape[1])
        assert 0 <= spare < per_token * GROWTH_FRAMES // FRAMES_PER_TOKEN


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
        audio = joint.push(mel)
        del audio
        held.append(sum(census.storages().values()) - n_before)
        if isinstance(joint, ContinuousJoint):
            # Beside what is counted, the phases and voicing of the last frames.
            assert 0 <= held[-1] - joint.n_bytes <= mel.shape[2] * (8 * (rig.config.vocoder.n_harmonics + 1) + 1)
    assert held[2:] == [held[2]] * 10
    reach = rig.model.vocoder.reach
    n_frames = reach.lookahead + reach.decode + reach.f0
    # Float64 mel and source; the reference's joint keeps a little more than 8 frames, less than this.
    assert held[-1] <= 8 * n_frames * (80 + SAMPLES_PER_FRAME) + 4 * SAMPLES_PER_FRAME


def test_slots_are_had_once_and_for_all(rig: Rig) -> None:
    cache, lm = rig.model.cache, rig.config.lm
    per_position = 2 * lm.n_layers * lm.n_kv_heads * lm.d_head * FLOAT32
    assert cache.n_bytes_per_slot == per_position * cache.max_len
    assert cache.data.untyped_storage().nbytes() == (N_SLOTS + 1) * cache.n_bytes_per_slot
    official = LmConfig()
    assert 2 * official.n_layers * official.n_kv_heads * official.d_head * 2 == 12 * 1024  # in float16
    at = cache.data.data_ptr()
    stepped = Stepped(rig)
    key = stepped.say(Request(SENTENCE))
    while stepped.core.step():
        assert cache.data.data_ptr() == at
    assert len(stepped.pcm(key))


class Ready(Stepped):
    """A core that has a voice ready, and nothing else left of making it."""

    def __init__(self, rig: Rig, profile: Profile) -> None:
        super().__init__(rig, profile)
        self.say(Request("no"))
        self.run()
        self.voice("prompted")

    def say_at_length(self) -> int:
        """What is heard is not kept: it would be counted."""
        return self.say(Request(SENTENCE))

    def step_unheard(self, key: int) -> bool:
        stepped = self.core.step()
        self.n_heard += len(self.heard[key])
        self.heard[key].clear()
        return stepped

    n_heard = 0


@pytest.mark.parametrize("name", PROFILES)
def test_an_utterance_holds_its_stream_and_its_joint_and_nothing_else(rig: Rig, name: str, census: Census) -> None:
    """Looked at after every third step: all live storages, of which the ids, the clock, a block under way and mel or
    audio not yet given out are the rest."""
    ready = Ready(rig, PROFILES[name])
    before = sum(census.storages().values())
    key = ready.say_at_length()
    most, n_looks, n_steps = 0, 0, 0
    while ready.step_unheard(key):
        n_steps += 1
        if n_steps % 3:
            continue
        held = sum(census.storages().values()) - before
        counted = 0
        for item in census.objects():
            if isinstance(item, FlowStream):
                counted += item.nbytes()
            elif isinstance(item, ContinuousJoint):
                counted += item.n_bytes
        if counted:
            n_looks += 1
            most = max(most, held - counted)
    assert ready.ended[key].error is None and ready.n_heard > 5
    assert n_looks > 20
    # A block's mel and audio, while their samples are given out.
    assert most < FLOAT32 * 2 * 100 * FRAMES_PER_TOKEN * (80 + SAMPLES_PER_FRAME)


@pytest.mark.parametrize("name", PROFILES)
def test_all_of_it_is_free_at_the_end_and_wherever_it_is_left(rig: Rig, name: str, census: Census) -> None:
    """At the end, and cancelled after steps all along: before the first token, between Euler steps, at the end. It is
    freed where it is dropped: nothing of it refers to itself, and no collector has to come."""
    ready = Ready(rig, PROFILES[name])
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
    """Cancelled after any of the steps that make it ready."""
    stepped = Stepped(rig)
    before = census.storages()
    for n in range(FEW_EULER):
        key = stepped.say(Request(SENTENCE))
        assert (stepped.run(n) == n and stepped.core.voices.making == []) or n
        stepped.cancel(key)
        stepped.run()
        assert stepped.core.voices.making == [] and census.objects() == [], n
        assert census.storages() == before, n
    key = stepped.say(Request(SENTENCE))
    stepped.run()
    assert stepped.voice("prompted").n_flow_tokens > 0


def storages(cache: Cache) -> Iterator[tuple[int, int]]:
    for tensor in [*cache.tensors(), *(kv.shared for kv in cache.kv if kv.shared is not None)]:
        yield tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()


def test_two_utterances_of_one_voice_hold_its_prompt_once(rig: Rig, prompt: SpeakerPrompt, census: Census) -> None:
    flow, tokens = rig.model.flow, ids(50)
    alone = sum(census.storages().values())
    streams = [flow.start(prompt.flow) for _ in range(2)]
    for stream in streams:
        mel = flow.extend(stream, tokens[:, :22], tokens[:, 22:25])
    del mel
    own = sum(stream.nbytes() for stream in streams)
    assert sum(census.storages().values()) - alone == own
    reached = dict(pair for s in streams for cache in [s.encoder, *s.steps] for pair in storages(cache))
    of_prompt = dict(pair for cache in [prompt.flow.encoder, *prompt.flow.steps] for pair in storages(cache))
    shared = {at: n for at, n in of_prompt.items() if at in reached}
    assert sum(reached.values()) == own + sum(shared.values())
    n_kept = FLOAT32 * sum(elements_per_token(rig.config)) * prompt.flow.encoder.n
    assert n_kept == sum(shared.values()) > 0
    layers = [kv for s in streams for cache in [s.encoder, *s.steps] for kv in cache.kv]
    assert all(isinstance(kv, KeyValues) and kv.shared is not None for kv in layers)
