"""The flow in steps: blocks of many streams taking turns, each on its own."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
import torch
from flow_calls import CALLS, Crowd, alone, call, chunk, ids, stepped, voice
from freeze_flow import N_MELS, SIZES, random_state, small_flow
from parity_flow import flow_config
from speaking import live_storages
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow import attention as flow_attention
from telephony_tts.engines.cosyvoice2.model.flow.attention import attend, block_mask
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.layers import Int8Linear, Linear, mish, quick_mish
from telephony_tts.engines.cosyvoice2.model.flow.stream import Solve

pytestmark = pytest.mark.slow

N_STEPS = 10


def small_int8() -> Flow:
    state = random_state(seed=5)
    return Flow.from_state(flow_config(SIZES, state), state, "int8")


MODELS: dict[str, Callable[[], Flow]] = {
    "float32": small_flow,
    "bfloat16": lambda: small_flow(torch.bfloat16),
    "int8": small_int8,
}


# In steps, and at once


def test_a_block_in_steps_is_the_block_at_once() -> None:
    flow = small_flow()
    at_once, in_steps = (call(flow, 53, 1) for _ in range(2))
    new = chunk(flow, at_once, 2, 1)
    solve = flow.begin(in_steps, *new)
    assert not solve.done and in_steps.n_emitted == 0
    assert torch.equal(stepped(flow, solve), flow.extend(at_once, *new))
    assert in_steps.n_emitted == at_once.n_emitted == new[0].shape[1]
    rest = flow.begin(in_steps, ids(12, 2), None)
    assert torch.equal(stepped(flow, rest), flow.finish(at_once, ids(12, 2)))
    assert in_steps.finished


def test_an_end_without_tokens_is_done_at_once() -> None:
    flow = small_flow()
    solve = flow.begin(call(flow, 30, 1), ids(0, 1), None)
    assert solve.done and solve.mel().shape == (1, N_MELS, 0)


@pytest.mark.parametrize(("n_prompt", "n_blocks"), [(80, None), (80, 1), (53, None), (27, None), (0, None)])
def test_a_prompt_in_steps_is_the_prompt_at_once(n_prompt: int, n_blocks: int | None) -> None:
    flow = small_flow()
    of = voice(flow, n_prompt, 3)
    solve = flow.begin_prompt(*of, n_blocks=n_blocks)
    assert solve.done == (n_prompt < BLOCK_TOKENS + LOOKAHEAD_TOKENS)
    stepped(flow, solve)
    ours, theirs = (flow.start(p) for p in (solve.prompt(), flow.prompt(*of, n_blocks=n_blocks)))
    assert ours.prompt.nbytes() == theirs.prompt.nbytes()
    assert torch.equal(flow.finish(ours, ids(20, 4)), flow.finish(theirs, ids(20, 4)))


# With others


@pytest.mark.parametrize("name", MODELS)
def test_apart_a_call_is_the_same_to_the_bit_whoever_else_is_there(name: str) -> None:
    flow = MODELS[name]()
    assert flow.batches is None
    for seed, ((n_prompt, n_blocks, _), mel) in enumerate(zip(CALLS, Crowd(flow).speak(), strict=True)):
        assert torch.equal(mel, alone(flow, n_prompt, n_blocks, seed))


def test_a_step_that_raises_ends_its_stream_and_no_other() -> None:
    flow = small_flow()
    wanted = [alone(flow, 27, 1, seed) for seed in range(3)]
    streams = [call(flow, 27, seed) for seed in range(3)]
    solves = [flow.begin(s, *chunk(flow, s, 1, seed)) for seed, s in enumerate(streams)]
    flow.step(solves)
    whole, solves[1].mu = solves[1].mu, solves[1].mu[:, :-1]
    with pytest.raises(RuntimeError):
        flow.step(solves)
    solves[1].mu = whole
    assert [s.finished for s in streams] == [False, True, False]
    with pytest.raises(ValueError, match="has failed"):
        flow.step(solves)
    with pytest.raises(ValueError, match="finished"):
        flow.begin(streams[1], ids(25, 1), ids(3, 1))
    for seed in (0, 2):
        mel = stepped(flow, solves[seed])
        more = flow.extend(streams[seed], *chunk(flow, streams[seed], 1, seed))
        rest = flow.finish(streams[seed], ids(9, seed))
        assert torch.equal(torch.cat([mel, more, rest], dim=2), wanted[seed])


# Refusals


def test_two_blocks_of_a_stream_go_one_behind_the_other() -> None:
    """In every order that the steps allow, the frames are those of one block after the other."""
    flow = small_flow()
    hops = (20, 25, 25, 9)
    tokens = ids(sum(hops), 1)

    def block(i: int) -> tuple[Tensor, Tensor | None]:
        begin, end = sum(hops[:i]), sum(hops[: i + 1])
        return tokens[:, begin:end], tokens[:, end : end + 3] if i + 1 < len(hops) else None

    stream = call(flow, 30, 1)
    wanted = []
    for i in range(len(hops)):
        new, ahead = block(i)
        wanted.append(flow.extend(stream, new, ahead) if ahead is not None else flow.finish(stream, new))
    for seed in range(8):
        order = random.Random(seed)
        stream = call(flow, 30, 1)
        begun: list[Solve] = []
        while len(begun) < len(hops) or not begun[-1].done:
            under_way = [solve for solve in begun if not solve.done]
            can = [solve for solve in under_way if solve.may_step]
            if len(begun) < len(hops) and len(under_way) < 2 and (not can or order.random() < 0.3):
                begun.append(flow.begin(stream, *block(len(begun))))
            else:
                flow.step(can if order.random() < 0.5 else [order.choice(can)])
        for solve, mel in zip(begun, wanted, strict=True):
            assert torch.equal(solve.mel(), mel)


def test_a_block_goes_no_further_than_the_one_before_it() -> None:
    flow = small_flow()
    stream = call(flow, 30, 1)
    first = flow.begin(stream, ids(20, 1), ids(3, 1))
    second = flow.begin(stream, ids(25, 1), ids(3, 1))
    with pytest.raises(ValueError, match="under way"):
        flow.begin(stream, ids(25, 1), ids(3, 1))
    for solves in ([second], [first, second]):
        with pytest.raises(ValueError, match="has not gone further"):
            flow.step(solves)
    assert first.k == second.k == 0
    flow.step([first])
    flow.step([second])
    assert not second.may_step and first.may_step
    first.fail()
    assert not second.may_step
    with pytest.raises(ValueError, match="has failed"):
        flow.step([second])


def test_a_stream_at_once_has_one_block_under_way() -> None:
    flow = small_flow()
    stream = call(flow, 30, 1)
    solve = flow.begin(stream, ids(20, 1), ids(3, 1))
    with pytest.raises(ValueError, match="under way"):
        flow.extend(stream, ids(25, 1), ids(3, 1))
    with pytest.raises(ValueError, match="under way"):
        flow.finish(stream, ids(9, 1))
    for n_done in range(N_STEPS):
        with pytest.raises(ValueError, match=f"{n_done} of 10 steps"):
            solve.mel()
        flow.step([solve])
    with pytest.raises(ValueError, match="no prompt"):
        solve.prompt()
    with pytest.raises(ValueError, match="is done"):
        flow.step([solve])
    assert not flow.begin(stream, ids(25, 1), ids(3, 1)).done


def test_the_same_block_twice_is_refused_before_anyone_steps() -> None:
    flow = small_flow()
    one, other = (flow.begin(call(flow, 30, 1), ids(20, 1), ids(3, 1)) for _ in range(2))
    with pytest.raises(ValueError, match="two steps at once"):
        flow.step([other, one, one])
    assert one.k == other.k == 0


def test_int8_is_for_a_cpu() -> None:
    state = {key: value.to("meta") for key, value in random_state(seed=5).items()}
    with pytest.raises(ValueError, match="for a CPU"):
        Flow.from_state(flow_config(SIZES, state), state, "int8")


# What it holds


def held() -> int:
    gc.collect()
    return sum(live_storages().values())


def test_a_block_left_under_way_frees_all() -> None:
    flow = small_flow()
    prompt = flow.prompt(*voice(flow, 60, 1))
    before = held()
    streams = [flow.start(prompt) for _ in range(2)]
    solves = [flow.begin(s, *chunk(flow, s, 1, 1)) for s in streams]
    for _ in range(4):
        flow.step(solves)
    assert held() > before
    del streams, solves
    assert held() == before


# What it is made of


def exact_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = (q.double() @ k.double().mT) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(dim=-1) @ v.double()).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("size", "shifts"), [(1.0, 0), (2.0, 0), (8.0, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_bfloat16_attention_is_right_for_small_and_for_huge_scores(
    size: float, shifts: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Huge ones cannot do without the maximum, small ones do; both are the same function."""
    g = torch.Generator().manual_seed(1)
    q, k, v = ((torch.randn(2, 3, n, 16, generator=g) * s).bfloat16() for n, s in ((70, size), (130, size), (130, 1)))
    calls, shifted = [], flow_attention.shifted
    monkeypatch.setattr(flow_attention, "shifted", lambda *args: (calls.append(1), shifted(*args))[1])
    mask = block_mask(60, 70, 50, q.device) if masked else None
    ours = attend(q, [(k[:, :, :40], v[:, :, :40]), (k[:, :, 40:], v[:, :, 40:])], mask)
    wanted = exact_attention(q, k, v, mask)
    difference = (ours.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    # A score is rounded by its own size / 256: by a quarter where it is 64.
    assert difference <= 0.01 * size**2
    assert torch.isfinite(ours).all() and len(calls) == shifts


def test_attention_on_what_is_not_a_number_is_none_either() -> None:
    q = torch.full((1, 1, 2, 4), torch.nan, dtype=torch.bfloat16)
    assert attend(q, [(q, q)], None).isnan().all()


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.float64, 1e-14), (torch.bfloat16, 0.02)])
def test_mish_is_mish(dtype: torch.dtype, most: float) -> None:
    x = torch.cat([torch.linspace(-40, 40, 4001, dtype=torch.float64), torch.tensor([1e4, -1e4])])
    x = x.to(dtype)
    wide = x.double()
    wanted = wide * torch.nn.functional.softplus(wide, threshold=700).tanh()
    for ours in (mish(x), quick_mish(x)):
        assert (ours.double() - wanted).abs().div(wanted.abs() + 0.1).max() <= most


def test_an_int8_row_depends_on_no_other() -> None:
    g = torch.Generator().manual_seed(1)
    linear = Linear(torch.randn(40, 64, generator=g) / 8, torch.randn(40, generator=g))
    int8, x = Int8Linear(linear), torch.randn(3, 20, 64, generator=g)
    x[0, 0] *= 1000
    x[1, 1] = 0
    y = int8(x)
    assert torch.equal(y[1, 1], linear.bias) and y.dtype == torch.float32
    for row in range(20):
        assert torch.equal(int8(x[2:, row : row + 1]), y[2:, row : row + 1])
    wanted = linear(x)
    each = (y - wanted).square().mean(dim=-1).sqrt() / (wanted - linear.bias).square().mean(dim=-1).sqrt().clamp(1e-9)
    # Rounding to 1/254 of the largest of 64 values, a third of which is their size; twice, the weights and the row.
    assert 0.005 <= float(each.mean()) <= 0.015 and float(each.max()) <= 0.025


def test_int8_stays_near() -> None:
    reference, ours = (alone(flow, 53, 2, 1) for flow in (small_flow(), small_int8()))
    assert ours.dtype == torch.float32
    difference = float((ours - reference).square().mean().sqrt() / reference.square().mean().sqrt())
    assert 1e-4 < difference <= 0.03
