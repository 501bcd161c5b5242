"""The flow against reference vectors, and cached streams against whole sentences that are recomputed."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from freeze_flow import D_SPEAKER, N_MELS, N_VOCABULARY, SIZES, random_state, small_flow
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_flow import check_encoder, check_flow, error, flow_config, vectors
from plain_flow import extend, finish, own_bytes, prompt_of, recomputed, tokens_to_block_end
from speaking import live_storages
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS, FlowEncoderConfig
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowPrompt, FlowStream

VECTORS = Path(__file__).parents[1] / "vectors"
SAME = 5e-6
"""Tolerance for the order of float32 sums over ten Euler steps; mels are of size 1. Measured: 2e-6."""

Voice = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module")
def flow() -> Flow:
    return small_flow()


def voice(n_prompt: int, seed: int = 1) -> Voice:
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, N_VOCABULARY, (1, n_prompt), generator=g)
    return tokens, torch.randn(1, 2 * n_prompt, N_MELS, generator=g), torch.randn(1, D_SPEAKER, generator=g)


def speech(n_tokens: int, seed: int = 2) -> Tensor:
    return torch.randint(0, N_VOCABULARY, (1, n_tokens), generator=torch.Generator().manual_seed(seed))


def whole(flow: Flow, of: Voice, tokens: Tensor, *, streaming: bool = True) -> Tensor:
    return recomputed(flow, of[0], tokens, of[1], of[2], streaming=streaming, finalize=True)


def chunks(flow: Flow, stream: FlowStream, tokens: Tensor, hops: list[int]) -> Iterator[Tensor]:
    """Speaks `tokens` in chunks of `hops` blocks while there are enough tokens, and finishes with the rest."""
    n_sent = 0
    for hop in hops:
        n = tokens_to_block_end(stream) + (hop - 1) * BLOCK_TOKENS
        new = tokens[:, n_sent : n_sent + n]
        ahead = tokens[:, n_sent + n : n_sent + n + LOOKAHEAD_TOKENS]
        if ahead.shape[1] < LOOKAHEAD_TOKENS:
            break
        n_sent += n
        yield extend(flow, stream, new, ahead)
    yield finish(flow, stream, tokens[:, n_sent:])


def spoken(flow: Flow, prompt: FlowPrompt, tokens: Tensor, hops: list[int]) -> Tensor:
    return torch.cat(list(chunks(flow, flow.start(prompt), tokens, hops)), dim=2)


# Against vectors


@torch.inference_mode()
def test_encoder_equals_the_reference() -> None:
    both = vectors(VECTORS / "flow_encoder.npz")
    state = {key.removeprefix("weight:"): value for key, value in both.items() if key.startswith("weight:")}
    n_tokens, d_model = state["input_embedding.weight"].shape
    take = FlowReader(state)
    config = FlowEncoderConfig(n_tokens=n_tokens, d_model=d_model, n_heads=4, d_ff=128, n_layers=2, n_up_layers=4)
    encoder = FlowEncoder(config, take)
    take.finish("flow_encoder.npz")
    stages = list(check_encoder(encoder, both))
    assert len(stages) == 9
    assert [stage for stage in stages if not stage[1] <= stage[2]] == []


@pytest.mark.slow
@torch.inference_mode()
def test_every_stage_equals_its_frozen_vectors(flow: Flow) -> None:
    stages = list(check_flow(flow, VECTORS / "flow_small"))
    assert len(stages) == 43
    assert [stage for stage in stages if not stage[1] <= stage[2]] == []


# Cached against recomputed


@pytest.mark.slow
@settings(max_examples=12)
@given(
    n_prompt=st.integers(0, 80),
    n_tokens=st.integers(1, 160),
    hops=st.lists(st.integers(1, 4), max_size=4),
    n_blocks=st.sampled_from([None, 0, 1]),
)
def test_a_stream_equals_recomputing(n_prompt: int, n_tokens: int, hops: list[int], n_blocks: int | None) -> None:
    flow, of, tokens = small_flow(), voice(n_prompt), speech(n_tokens)
    ours = spoken(flow, prompt_of(flow, *of, n_blocks=n_blocks), tokens, hops)
    assert error(ours, whole(flow, of, tokens)) <= SAME


@pytest.mark.slow
@pytest.mark.parametrize("n_prompt", [0, 3, 27, 28, 50, 53])
def test_a_chunk_equals_the_recomputed_chunk_of_the_same_tokens(flow: Flow, n_prompt: int) -> None:
    """A chunk must not depend on more tokens than it was given, so it is compared before the utterance ends."""
    of, tokens = voice(n_prompt), speech(90)
    stream = flow.start(prompt_of(flow, *of))
    n = tokens_to_block_end(stream)
    ours = extend(flow, stream, tokens[:, :n], tokens[:, n : n + LOOKAHEAD_TOKENS])
    known = tokens[:, : n + LOOKAHEAD_TOKENS]
    reference = recomputed(flow, of[0], known, of[1], of[2], streaming=True, finalize=False)
    assert error(ours, reference) <= SAME


@pytest.mark.slow
def test_a_shared_prompt_equals_an_own_one(flow: Flow) -> None:
    of, tokens = voice(80), speech(70)
    shared = spoken(flow, prompt_of(flow, *of), tokens, [1, 1])
    own = spoken(flow, prompt_of(flow, *of, n_blocks=0), tokens, [1, 1])
    assert error(shared, own) <= SAME


def test_masks_make_a_difference(flow: Flow) -> None:
    """Otherwise the tests above would pass for a flow that sees only its own block."""
    of, tokens = voice(30), speech(70)
    assert error(whole(flow, of, tokens, streaming=False), whole(flow, of, tokens)) > 1e-2


# Streams, voices and memory


@pytest.mark.slow
def test_two_streams_in_turn_equal_each_alone(flow: Flow) -> None:
    prompt, hops = prompt_of(flow, *voice(60)), [1, 1]
    texts = speech(70, seed=3), speech(90, seed=4)
    alone = [spoken(flow, prompt, tokens, hops) for tokens in texts]
    a, b = (chunks(flow, flow.start(prompt), tokens, hops) for tokens in texts)
    pairs = list(zip(a, b, strict=True))
    assert torch.equal(torch.cat([pair[0] for pair in pairs], dim=2), alone[0])
    assert torch.equal(torch.cat([pair[1] for pair in pairs], dim=2), alone[1])


@pytest.mark.slow
def test_streams_write_neither_to_their_prompt_nor_to_the_model(flow: Flow) -> None:
    prompt = prompt_of(flow, *voice(60))
    before = pickle.dumps((flow, prompt))
    spoken(flow, prompt, speech(120), [1, 2])
    assert pickle.dumps((flow, prompt)) == before


def test_nothing_touches_the_global_generator() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        flow = small_flow()
        spoken(flow, prompt_of(flow, *voice(30)), speech(30), [1])
        assert torch.equal(torch.get_rng_state(), before)


def live_bytes() -> int:
    """Bytes of all tensors in the process."""
    gc.collect()
    return sum(live_storages().values())


@pytest.mark.slow
def test_a_stream_holds_its_pages_and_frees_them(flow: Flow) -> None:
    prompt, tokens = prompt_of(flow, *voice(60)), speech(80)
    before = live_bytes()
    stream = flow.start(prompt)
    assert live_bytes() == before, "a stream that has not spoken holds nothing of its own"
    speaking = chunks(flow, stream, tokens, [1, 1])
    for _ in range(2):
        next(speaking)
    assert live_bytes() - before == own_bytes(stream.table) > 0
    del stream, speaking
    assert live_bytes() == before


def test_bytes_are_those_of_the_arithmetic(flow: Flow) -> None:
    """Per token: K and V of the encoder's layers, once at 25 Hz, twice at 50; per frame: steps x branches x layers.

    And the left contexts of the convolutions, once for each stream and each voice.
    """
    encoder, decoder = flow.encoder.config, flow.decoder.config
    per_token = 2 * encoder.d_model * (encoder.n_layers + 2 * encoder.n_up_layers)
    n_layers = (decoder.n_mid_stages + 2) * decoder.n_blocks
    per_frame = decoder.n_steps * 2 * n_layers * 2 * decoder.n_heads * decoder.d_head
    c = decoder.n_channels
    of_convolutions = 4 * N_MELS + c + 2 * decoder.n_mid_stages * c + 2 * c + c + 3 * c
    contexts = 6 * encoder.d_model + decoder.n_steps * 2 * 2 * of_convolutions
    prompt = prompt_of(flow, *voice(53))
    stream = flow.start(prompt)
    n = tokens_to_block_end(stream)
    extend(flow, stream, speech(n), speech(LOOKAHEAD_TOKENS))
    n_tail = 53 % BLOCK_TOKENS
    assert own_bytes(stream.table) == 4 * (contexts + (n_tail + n) * (per_token + 2 * per_frame))
    assert own_bytes(prompt.table) == 4 * (contexts + 50 * (per_token + 2 * per_frame))


# Half precision


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rms"), [(torch.float16, 0.003), (torch.bfloat16, 0.03)])
def test_half_precision_stays_near(flow: Flow, dtype: torch.dtype, rms: float) -> None:
    half, of, tokens = small_flow(dtype), voice(30), speech(60)
    reference = whole(flow, of, tokens)
    ours = spoken(half, prompt_of(half, *of), tokens, [1])
    assert ours.dtype == torch.float32
    assert float((ours - reference).square().mean().sqrt()) <= rms * float(reference.square().mean().sqrt())


# Refusals


def test_weights_that_do_not_fit_are_all_named() -> None:
    state = random_state(seed=5)
    config = flow_config(SIZES, state)
    state.pop("encoder_proj.bias")
    state["decoder.estimator.final_proj.weight"] = torch.zeros(3, 3)
    state["epoch"] = torch.zeros(1)
    with pytest.raises(ValueError) as caught:
        Flow.from_state(config, state)
    misshaped = "final_proj.weight is [3, 3] and should be [80, 24, 1]"
    for words in ("missing encoder_proj.bias", misshaped, "unexpected epoch"):
        assert words in str(caught.value)


def test_a_chunk_must_end_on_a_block_and_see_three_tokens(flow: Flow) -> None:
    stream = flow.start(prompt_of(flow, *voice(30)))
    with pytest.raises(ValueError, match="do not end on a block"):
        extend(flow, stream, speech(19), speech(3))
    with pytest.raises(ValueError, match="do not end on a block"):
        extend(flow, stream, speech(0), speech(3))
    with pytest.raises(ValueError, match="2 lookahead tokens"):
        extend(flow, stream, speech(20), speech(2))
    assert extend(flow, stream, speech(20), speech(3)).shape == (1, N_MELS, 40)
    with pytest.raises(ValueError, match="were looked ahead at"):
        finish(flow, stream, speech(2))


def test_a_finished_stream_is_over(flow: Flow) -> None:
    stream = flow.start(prompt_of(flow, *voice(30)))
    assert finish(flow, stream, speech(0)).shape == (1, N_MELS, 0)
    with pytest.raises(ValueError, match="finished"):
        finish(flow, stream, speech(3))


def test_too_many_frames_are_refused_before_they_are_encoded(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(flow, *voice(30))
    stream = flow.start(prompt)
    monkeypatch.setattr(flow.backend, "encode", None)
    with pytest.raises(ValueError, match="15020 frames"):
        finish(flow, stream, speech(7480))
    assert stream.table.n_tokens == prompt.table.n_tokens


def test_a_prompt_needs_two_frames_per_token(flow: Flow) -> None:
    tokens, mel, embedding = voice(30)
    with pytest.raises(ValueError, match="58 frames"):
        prompt_of(flow, tokens, mel[:, 2:], embedding)
