"""The flow on a CPU, step by step: blocks of many streams interleaved, each computed by itself."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from flow_calls import CALLS, InterleavedCalls, alone, call, chunk, ids, voice
from freeze_flow import N_MELS, SIZES, random_state, small_flow, small_int8, with_steps
from parity_flow import flow_config
from plain_flow import begin, extend, finish, prompt_of, stepped
from speaking import live_storages
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.attention import attend, block_mask
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.host_backend import HostBackend
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock

pytestmark = pytest.mark.slow

N_STEPS = 10
FEW_STEPS = 6
"""The fewest with which each of `CALLS` is at a different step. Without AVX-512, bfloat16 is slow."""


def few_int8() -> Flow:
    state = random_state(seed=5)
    return Flow.from_state(flow_config(with_steps(FEW_STEPS), state), state, "int8")


MODELS: dict[str, Callable[[], Flow]] = {
    "float32": lambda: small_flow(n_steps=FEW_STEPS),
    "bfloat16": lambda: small_flow(torch.bfloat16, FEW_STEPS, few_layers=True),
    "int8": few_int8,
}


# One block after the other


def test_tokens_are_counted_when_their_block_is_done() -> None:
    flow = small_flow()
    stream = call(flow, 53, 1)
    new, ahead = chunk(flow, stream, 2, 1)
    block = begin(flow, stream, new, ahead)
    assert not block.done and stream.n_emitted == 0
    stepped(flow, block)
    assert stream.n_emitted == new.shape[1] and not stream.finished
    stepped(flow, begin(flow, stream, ids(12, 2), None))
    assert stream.n_emitted == new.shape[1] + 12 and stream.finished


def test_an_end_without_tokens_is_done_at_once() -> None:
    flow = small_flow()
    block = begin(flow, call(flow, 30, 1), ids(0, 1), None)
    assert block.done and block.mel().shape == (1, N_MELS, 0)


@pytest.mark.parametrize("n_prompt", [80, 53, 28, 27, 0])
def test_a_voice_shares_its_whole_blocks_that_see_no_speech(n_prompt: int) -> None:
    flow = small_flow()
    block = flow.begin_prompt(*voice(flow, n_prompt, 3))
    assert block.done == (n_prompt < BLOCK_TOKENS + LOOKAHEAD_TOKENS)
    stepped(flow, block)
    prompt = block.prompt()
    n_shared = max(0, n_prompt - LOOKAHEAD_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
    assert prompt.table.n_tokens == n_shared and prompt.tail_tokens.shape == (1, n_prompt - n_shared)
    assert prompt.tail_mel.shape == (1, 2 * (n_prompt - n_shared), N_MELS)


# Several streams


@pytest.mark.parametrize("name", MODELS)
def test_a_calls_bits_do_not_depend_on_other_calls(name: str) -> None:
    flow = MODELS[name]()
    assert isinstance(flow.backend, HostBackend)
    for seed, ((n_prompt, n_blocks, _), mel) in enumerate(zip(CALLS, InterleavedCalls(flow).speak(), strict=True)):
        assert torch.equal(mel, alone(flow, n_prompt, n_blocks, seed))


def test_a_step_that_raises_ends_its_stream_and_no_other() -> None:
    flow = small_flow(n_steps=FEW_STEPS, few_layers=True)
    wanted = [alone(flow, 27, 1, seed) for seed in range(3)]
    streams = [call(flow, 27, seed) for seed in range(3)]
    blocks = [begin(flow, s, *chunk(flow, s, 1, seed)) for seed, s in enumerate(streams)]
    flow.step(blocks)
    whole, blocks[1].mu = blocks[1].mu, blocks[1].mu[:, :-1]
    with pytest.raises(RuntimeError):
        flow.step(blocks)
    blocks[1].mu = whole
    assert [s.finished for s in streams] == [False, True, False]
    with pytest.raises(ValueError, match="has failed"):
        flow.step(blocks)
    with pytest.raises(ValueError, match="finished"):
        begin(flow, streams[1], ids(25, 1), ids(3, 1))
    for seed in (0, 2):
        mel = stepped(flow, blocks[seed])
        more = extend(flow, streams[seed], *chunk(flow, streams[seed], 1, seed))
        rest = finish(flow, streams[seed], ids(9, seed))
        assert torch.equal(torch.cat([mel, more, rest], dim=2), wanted[seed])


# Refusals


def test_two_blocks_of_a_stream_are_stepped_in_their_order() -> None:
    """In every order that `may_step` allows, the bits are those of one block after the other."""
    flow = small_flow(n_steps=FEW_STEPS, few_layers=True)
    hops = (20, 25, 25, 9)
    tokens = ids(sum(hops), 1)

    def tokens_of(i: int) -> tuple[Tensor, Tensor | None]:
        begin, end = sum(hops[:i]), sum(hops[: i + 1])
        return tokens[:, begin:end], tokens[:, end : end + 3] if i + 1 < len(hops) else None

    stream = call(flow, 30, 1)
    wanted = []
    for i in range(len(hops)):
        new, ahead = tokens_of(i)
        wanted.append(extend(flow, stream, new, ahead) if ahead is not None else finish(flow, stream, new))
    for seed in range(8):
        order = random.Random(seed)
        stream = call(flow, 30, 1)
        begun: list[FlowBlock] = []
        while len(begun) < len(hops) or not begun[-1].done:
            under_way = [block for block in begun if not block.done]
            can = [block for block in under_way if block.may_step]
            if len(begun) < len(hops) and len(under_way) < 2 and (not can or order.random() < 0.3):
                begun.append(begin(flow, stream, *tokens_of(len(begun))))
            else:
                flow.step(can if order.random() < 0.5 else [order.choice(can)])
        for block, mel in zip(begun, wanted, strict=True):
            assert torch.equal(block.mel(), mel)


def test_a_block_goes_no_further_than_the_one_before_it() -> None:
    flow = small_flow()
    stream = call(flow, 30, 1)
    first = begin(flow, stream, ids(20, 1), ids(3, 1))
    second = begin(flow, stream, ids(25, 1), ids(3, 1))
    with pytest.raises(ValueError, match="under way"):
        begin(flow, stream, ids(25, 1), ids(3, 1))
    for blocks in ([second], [first, second]):
        with pytest.raises(ValueError, match="has not gone further"):
            flow.step(blocks)
    assert first.k == second.k == 0
    flow.step([first])
    flow.step([second])
    assert not second.may_step and first.may_step
    first.fail()
    assert not second.may_step
    with pytest.raises(ValueError, match="has failed"):
        flow.step([second])


def test_a_block_gives_its_mel_when_all_steps_are_done() -> None:
    flow = small_flow()
    stream = call(flow, 30, 1)
    block = begin(flow, stream, ids(20, 1), ids(3, 1))
    for n_done in range(N_STEPS):
        with pytest.raises(ValueError, match=f"{n_done} of 10 steps"):
            block.mel()
        flow.step([block])
    assert block.mel().shape == (1, N_MELS, 40)
    with pytest.raises(ValueError, match="no prompt"):
        block.prompt()
    with pytest.raises(ValueError, match="is done"):
        flow.step([block])
    assert not begin(flow, stream, ids(25, 1), ids(3, 1)).done


def test_two_blocks_of_a_stream_cannot_begin_in_one_call() -> None:
    flow = small_flow()
    stream = call(flow, 30, 1)
    requests = [BlockRequest(stream, [1] * 20, [1] * 3), BlockRequest(stream, [1] * 25, [1] * 3)]
    with pytest.raises(ValueError, match="one after the other"):
        flow.begin(requests)
    assert stream.steps_done == [] and not flow.begin(requests[:1])[0].done


def test_if_one_of_several_blocks_cannot_begin_none_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder fails at the third block. All three then begin with the bits that each has alone."""
    flow = small_flow(n_steps=FEW_STEPS, few_layers=True)
    wanted = [alone(flow, 27, 1, seed) for seed in range(3)]
    streams = [call(flow, 27, seed) for seed in range(3)]
    mels = [extend(flow, stream, *chunk(flow, stream, 1, seed)) for seed, stream in enumerate(streams)]
    new = [chunk(flow, stream, 1, seed) for seed, stream in enumerate(streams)]
    requests = [BlockRequest(s, n[0].tolist(), a[0].tolist()) for s, (n, a) in zip(streams, new, strict=True)]
    mu, n_calls = flow.encoder.mu, 0

    def third_fails(h: Tensor) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise RuntimeError("out of memory")
        return mu(h)

    before = [stream.table.pages for stream in streams]
    with monkeypatch.context() as patch:
        patch.setattr(flow.encoder, "mu", third_fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            flow.begin(requests)
    assert [stream.table.pages for stream in streams] == before
    assert not any(stream.finished for stream in streams) and all(len(s.steps_done) == 1 for s in streams)
    for seed, (stream, block, mel) in enumerate(zip(streams, flow.begin(requests), mels, strict=True)):
        rest = [stepped(flow, block), finish(flow, stream, ids(9, seed))]
        assert torch.equal(torch.cat([mel, *rest], dim=2), wanted[seed])


def test_the_same_block_twice_is_refused_before_any_step() -> None:
    flow = small_flow()
    one, other = (begin(flow, call(flow, 30, 1), ids(20, 1), ids(3, 1)) for _ in range(2))
    with pytest.raises(ValueError, match="two steps at once"):
        flow.step([other, one, one])
    assert one.k == other.k == 0


def test_int8_is_for_a_cpu() -> None:
    state = {key: value.to("meta") for key, value in random_state(seed=5).items()}
    with pytest.raises(ValueError, match="for a CPU"):
        Flow.from_state(flow_config(SIZES, state), state, "int8")


# Memory


def held() -> int:
    gc.collect()
    return sum(live_storages().values())


def test_dropped_blocks_and_streams_free_all_memory() -> None:
    flow = small_flow()
    prompt = prompt_of(flow, *voice(flow, 60, 1))
    before = held()
    streams = [flow.start(prompt) for _ in range(2)]
    blocks = [begin(flow, s, *chunk(flow, s, 1, 1)) for s in streams]
    for _ in range(4):
        flow.step(blocks)
    assert held() > before
    del streams, blocks
    assert held() == before


# Operations


def exact_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = (q.double() @ k.double().mT) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(dim=-1) @ v.double()).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("size", [1.0, 2.0, 8.0])
@pytest.mark.parametrize("masked", [False, True])
def test_bfloat16_attention_is_right_for_small_and_for_huge_scores(size: float, masked: bool) -> None:
    g = torch.Generator().manual_seed(1)
    q, k, v = ((torch.randn(2, 3, n, 16, generator=g) * s).bfloat16() for n, s in ((70, size), (130, size), (130, 1)))
    mask = block_mask(60, 70, 50, q.device) if masked else None
    ours = attend(q, [(k[:, :, :40], v[:, :, :40]), (k[:, :, 40:], v[:, :, 40:])], mask)
    wanted = exact_attention(q, k, v, mask)
    difference = (ours.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    # A score is rounded to 1/256 of its size: a score of 64 by a quarter.
    assert difference <= 0.01 * size**2
    assert torch.isfinite(ours).all()


def test_attention_on_non_finite_numbers_is_non_finite() -> None:
    q = torch.full((1, 1, 2, 4), torch.nan, dtype=torch.bfloat16)
    assert attend(q, [(q, q)], None).isnan().all()


def test_int8_stays_near() -> None:
    reference, ours = (alone(flow, 53, 2, 1) for flow in (small_flow(), small_int8()))
    assert ours.dtype == torch.float32
    difference = float((ours - reference).square().mean().sqrt() / reference.square().mean().sqrt())
    assert 1e-4 < difference <= 0.03


def test_a_stage_in_one_call_has_the_bits_of_its_blocks_one_by_one() -> None:
    flow, other = small_int8(), small_int8()
    for stage in other.decoder.estimator.stages:
        assert stage.int8 is not None and len(stage.int8.blocks) == len(stage.transformers)
        assert stage.resnet.int8 is not None
        stage.int8 = stage.resnet.int8 = None
    assert torch.equal(alone(flow, 53, 2, 1), alone(other, 53, 2, 1))


@pytest.mark.parametrize("d_head", [6, 260])
def test_int8_refuses_heads_that_the_kernels_cannot_attend_with(d_head: int) -> None:
    """They would write beside their memory."""
    estimator = small_flow().decoder.estimator
    estimator.config = replace(estimator.config, d_head=d_head)
    with pytest.raises(ValueError, match=f"heads of {d_head}: int8 needs a multiple of 4 up to 256"):
        estimator.quantize()
