"""What an utterance holds: as much as its length says, nothing twice, and nothing once it is over."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from speaking import After, live_storages
from torch import Tensor

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_SPEECH_TOKENS,
    SAMPLES_PER_FRAME,
    LmConfig,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow import GROWTH_FRAMES, FlowStream
from telephony_tts.engines.cosyvoice2.model.flow_cache import Cache, KeyValues
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import ContinuousJoint, CounterNoise, UpstreamJoint
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.stream import Request, speak
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.voice_store import read_spk2info
from telephony_tts.engines.cosyvoice2.weights import load_model_directory

SENTENCE = "a the account number today please."
N_SLOTS = 2
FLOAT32 = 4
PROFILES = {"default": DEFAULT, "fast": FAST, "upstream": UPSTREAM}


class Rig:
    def __init__(self, directory: Path) -> None:
        checkpoint = load_model_directory(directory)
        assert checkpoint.spk2info is not None
        self.config = checkpoint.config
        self.model = SpeechModel.load(checkpoint, device="cpu", dtype=torch.float32, n_slots=N_SLOTS)
        self.model.lm.head_bias[N_SPEECH_TOKENS:] = -1e4  # as long as the text allows
        self.features: PromptFeatures = read_spk2info(checkpoint.spk2info)[0]["prompted"]
        self.prompts = {name: self.model.prompt(self.features, profile) for name, profile in PROFILES.items()}

    @property
    def prompt(self) -> SpeakerPrompt:
        return self.prompts["default"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("model")
    write_random_checkpoint(directory)
    return Rig(directory)


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """What is freed here is freed at once, and not by a collector that comes when it comes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def objects() -> list[object]:
    """What only an utterance has."""
    kinds = (FlowStream, ContinuousJoint, UpstreamJoint)
    return [o for o in gc.get_objects() if type(o) in kinds]


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


def test_a_stream_of_the_flow_grows_by_the_same_for_every_second(rig: Rig) -> None:
    """Without spare room: to the byte. The prompt's whole blocks are not its own; the three tokens after them are."""
    flow = rig.model.flow
    per_token = FLOAT32 * sum(elements_per_token(rig.config))
    contexts = FLOAT32 * elements_of_contexts(rig.config)
    stream = flow.start(rig.prompt.flow, growth_frames=0)
    assert stream.nbytes() == contexts
    tokens, at = ids(200), 0
    n_tail = rig.prompt.flow.tail_tokens.shape[1]
    for hop in (22, 25, 25, 50, 25):
        flow.extend(stream, tokens[:, at : at + hop], tokens[:, at + hop : at + hop + LOOKAHEAD_TOKENS])
        at += hop
        assert stream.nbytes() == contexts + per_token * (n_tail + at)
    flow.finish(stream, tokens[:, at : at + 7])
    assert stream.nbytes() == contexts + per_token * (n_tail + at + 7)


def test_the_spare_room_is_no_more_than_it_is_said_to_be(rig: Rig) -> None:
    flow = rig.model.flow
    per_token = FLOAT32 * sum(elements_per_token(rig.config))
    contexts = FLOAT32 * elements_of_contexts(rig.config)
    stream = flow.start(rig.prompt.flow)
    tokens, at = ids(400), 0
    for hop in (22, *[BLOCK_TOKENS] * 12):
        flow.extend(stream, tokens[:, at : at + hop], tokens[:, at + hop : at + hop + LOOKAHEAD_TOKENS])
        at += hop
        spare = stream.nbytes() - contexts - per_token * (at + rig.prompt.flow.tail_tokens.shape[1])
        assert 0 <= spare < per_token * GROWTH_FRAMES // FRAMES_PER_TOKEN


@pytest.mark.parametrize("kind", ["exact", "early", "upstream"])
def test_the_vocoder_holds_the_same_whatever_the_length(rig: Rig, kind: str) -> None:
    noise = CounterNoise(1, rig.config.vocoder.n_harmonics + 1)
    hold = {"exact": None, "early": 8}.get(kind)
    joint = UpstreamJoint(rig.model.vocoder, noise) if kind == "upstream" else ContinuousJoint(
        rig.model.vocoder, noise, hold
    )  # fmt: skip
    mel = torch.randn(1, 80, 50, generator=torch.Generator().manual_seed(0)) - 5
    n_before, held = sum(live_storages().values()), []
    for _ in range(12):
        audio = joint.push(mel)
        del audio
        held.append(sum(live_storages().values()) - n_before)
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
    for chunk in speak(rig.model, rig.prompt, Request(SENTENCE), DEFAULT, lambda: False):
        assert isinstance(chunk, Chunk), "it waits for a slot that nobody gives back"
        assert cache.data.data_ptr() == at


@pytest.mark.parametrize("name", PROFILES)
def test_an_utterance_holds_its_stream_and_its_joint_and_nothing_else(rig: Rig, name: str) -> None:
    """Looked at after every chunk: all live storages, of which the ids, the clock and one chunk are the rest."""
    before = sum(live_storages().values())
    chunks = speak(rig.model, rig.prompts[name], Request(SENTENCE), PROFILES[name], lambda: False)
    most, n_looks = 0, 0
    for _ in chunks:
        held = sum(live_storages().values()) - before
        counted = 0
        for item in objects():
            if isinstance(item, FlowStream):
                counted += item.nbytes()
            elif isinstance(item, ContinuousJoint):
                counted += item.n_bytes
        if counted:
            n_looks += 1
            most = max(most, held - counted)
    # A block's mel and audio, while their samples are given out.
    assert n_looks > 5
    assert most < FLOAT32 * 2 * 100 * FRAMES_PER_TOKEN * (80 + SAMPLES_PER_FRAME)


def heard(rig: Rig, profile: Profile, prompt: SpeakerPrompt, cancelled: After, n_most: int = 10**9) -> int:
    """Chunks taken before the utterance ended, or was closed after n_most."""
    n = 0
    chunks = speak(rig.model, prompt, Request(SENTENCE), profile, cancelled)
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        n += 1
        if n == n_most:
            break
    chunks.close()
    return n


@pytest.mark.parametrize("name", PROFILES)
def test_all_of_it_is_free_at_the_end_and_wherever_it_is_left(rig: Rig, name: str) -> None:
    """At the end, after some chunks, and at questions all along: before the first token, between steps, at the end."""
    profile, prompt = PROFILES[name], rig.prompts[name]
    whole = After(10**9)
    n_chunks = heard(rig, profile, prompt, whole)
    n_questions = 10**9 - whole.n_left
    before = live_storages()
    assert objects() == [] and rig.model.slots.n_free == N_SLOTS
    heard(rig, profile, prompt, After(10**9))
    lefts = [(10**9, n) for n in (1, 2, n_chunks // 2, n_chunks)]
    lefts += [(n, 10**9) for n in (0, 1, 30, n_questions // 2, n_questions // 2 + 5, n_questions - 3)]
    for n_asked, n_most in lefts:
        assert heard(rig, profile, prompt, After(n_asked), n_most) <= n_chunks
        assert objects() == [], (n_asked, n_most)
        assert rig.model.slots.n_free == N_SLOTS
        assert live_storages() == before, (n_asked, n_most)


def storages(cache: Cache) -> Iterator[tuple[int, int]]:
    for tensor in [*cache.tensors(), *(kv.shared for kv in cache.kv if kv.shared is not None)]:
        yield tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()


def test_two_utterances_of_one_voice_hold_its_prompt_once(rig: Rig) -> None:
    flow, prompt, tokens = rig.model.flow, rig.prompt.flow, ids(50)
    alone = sum(live_storages().values())
    streams = [flow.start(prompt) for _ in range(2)]
    for stream in streams:
        mel = flow.extend(stream, tokens[:, :22], tokens[:, 22:25])
    del mel
    own = sum(stream.nbytes() for stream in streams)
    assert sum(live_storages().values()) - alone == own
    reached = dict(pair for s in streams for cache in [s.encoder, *s.steps] for pair in storages(cache))
    of_prompt = dict(pair for cache in [prompt.encoder, *prompt.steps] for pair in storages(cache))
    shared = {at: n for at, n in of_prompt.items() if at in reached}
    assert sum(reached.values()) == own + sum(shared.values())
    n_kept = FLOAT32 * sum(elements_per_token(rig.config)) * prompt.encoder.n
    assert n_kept == sum(shared.values()) > 0
    layers = [kv for s in streams for cache in [s.encoder, *s.steps] for kv in cache.kv]
    assert all(isinstance(kv, KeyValues) and kv.shared is not None for kv in layers)
