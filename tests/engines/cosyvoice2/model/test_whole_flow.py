"""The flow of CosyVoice-300M against the formulas of its specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from reference_300m_flow import SlowUnetFlow, frames_of
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import whole_flow_outline
from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import SIZES_300M
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import random_state
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8WholeSequence
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import WholeSequence
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowPrompt
from telephony_tts.engines.cosyvoice2.model.flow.whole_flow import WholeFlow, n_frames_of, sentence_noise

N_STEPS = 3
TINY = SIZES_300M["tiny"]
CONFIG = replace(TINY, flow_decoder=replace(TINY.flow_decoder, n_steps=N_STEPS))
NO_TOKENS = torch.zeros(1, 0, dtype=torch.int64)
Flows = tuple[WholeFlow, SlowUnetFlow]


@pytest.fixture(scope="module")
def flows() -> Flows:
    shapes = whole_flow_outline(CONFIG.flow_encoder, CONFIG.flow_decoder, {}).shapes
    state = random_state("flow.pt", shapes, 1)
    ours = WholeFlow.from_state(CONFIG, {name: tensor.double() for name, tensor in state.items()})
    return ours, SlowUnetFlow(state, CONFIG.flow_decoder.d_head, N_STEPS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids_of(n: int, seed: int = 0) -> list[int]:
    return torch.randint(4096, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


EMBEDDING = random(1, 192, seed=7)


def preset(flow: WholeFlow) -> FlowPrompt:
    return flow.begin_prompt(NO_TOKENS, torch.zeros(1, 0, 80), EMBEDDING).prompt()


def begun(flow: WholeFlow, prompt: FlowPrompt, ids: Sequence[int], seed: int = 5) -> FlowBlock:
    (block,) = flow.begin([BlockRequest(flow.start(prompt, seed), ids, None)])
    return block


def solved(flow: WholeFlow, block: FlowBlock) -> Tensor:
    while not block.done:
        flow.step([block])
    return block.mel()


@pytest.mark.parametrize("n", [1, 2, 40, 41, 67])
def test_a_sentence_equals_the_reference(flows: Flows, n: int) -> None:
    """Odd and even numbers of frames, and both ways to stretch."""
    ours, slow = flows
    mel = solved(ours, begun(ours, preset(ours), ids_of(n)))
    noise = sentence_noise(5, frames_of(n), 80)[0]
    want = slow.mel(ids_of(n), noise, EMBEDDING)
    assert mel.shape == (1, 80, frames_of(n))
    torch.testing.assert_close(mel[0].T.double(), want, rtol=1e-4, atol=1e-4)


def test_a_sentence_behind_a_prompt_equals_the_reference(flows: Flows) -> None:
    """The prompt's frames are not those of its tokens: neither is cut to fit the other."""
    ours, slow = flows
    prompt_ids, prompt_mel = ids_of(13, seed=3), random(25, 80, seed=4)
    prompt = ours.begin_prompt(torch.tensor([prompt_ids]), prompt_mel[None], EMBEDDING).prompt()
    mel = solved(ours, begun(ours, prompt, ids_of(45)))
    noise = sentence_noise(5, 25 + frames_of(45), 80)[0]
    want = slow.mel(ids_of(45), noise, EMBEDDING, prompt_ids, prompt_mel)
    torch.testing.assert_close(mel[0].T.double(), want, rtol=1e-4, atol=1e-4)


# int8

WIDE = replace(
    CONFIG,
    flow_encoder=replace(CONFIG.flow_encoder, d_model=64),
    flow_decoder=replace(CONFIG.flow_decoder, n_channels=64, n_blocks=2, d_head=20, n_steps=10),
)


@pytest.fixture(scope="module")
def both() -> tuple[WholeFlow, WholeFlow]:
    """In float32 and in int8, with ten steps."""
    state = random_state("flow.pt", whole_flow_outline(WIDE.flow_encoder, WIDE.flow_decoder, {}).shapes, 2)
    return WholeFlow.from_state(WIDE, dict(state)), WholeFlow.from_state(WIDE, dict(state), "int8")


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seed"), [(7, 1), (29, 2), (40, 3), (53, 4), (150, 5)])
def test_the_mel_in_int8_stays_near(both: tuple[WholeFlow, WholeFlow], n: int, seed: int) -> None:
    """-35 dB of the mel about its mean."""
    exact, near = (solved(flow, begun(flow, preset(flow), ids_of(n, seed), seed)) for flow in both)
    assert near.dtype == torch.float32 and near.shape == exact.shape
    error = (near - exact).square().mean() / (exact - exact.mean()).square().mean()
    assert 1e-8 < error <= 10**-3.5


def test_int8_behind_a_prompt_stays_near(both: tuple[WholeFlow, WholeFlow]) -> None:
    ids, mel = torch.tensor([ids_of(13, seed=3)]), random(1, 25, 80, seed=4)
    exact, near = (
        solved(flow, begun(flow, flow.begin_prompt(ids, mel, EMBEDDING).prompt(), ids_of(45))) for flow in both
    )
    assert 1e-8 < (near - exact).square().mean() / (exact - exact.mean()).square().mean() <= 10**-3.5


@pytest.mark.parametrize("n", [1, 15, 16, 50, 131])
def test_each_position_in_int8_sees_all_others(n: int) -> None:
    """Also behind a longer layer, whose keys lie in the same memory."""
    whole = Int8WholeSequence(2, 140, 3, 20)
    whole.attend(random(2, 140, 180, seed=9) * 5)
    qkv = random(2, n, 180, seed=n)
    got, wanted = whole.attend(qkv), WholeSequence().attend(0, qkv, n_heads=3)
    assert got.shape == (2, n, 60)
    assert float((got - wanted).norm() / wanted.norm()) < 0.02


def test_int8_reads_weights_with_any_strides(both: tuple[WholeFlow, WholeFlow]) -> None:
    """A file may hold a tensor whose values do not lie side by side."""
    state = random_state("flow.pt", whole_flow_outline(WIDE.flow_encoder, WIDE.flow_decoder, {}).shapes, 2)
    for part in ("weight", "bias"):
        name = f"decoder.estimator.final_block.block.1.{part}"
        state[name] = torch.stack([state[name] * 7, state[name]], dim=-1)[..., 1]
    strided = WholeFlow.from_state(WIDE, state, "int8")
    mels = [solved(flow, begun(flow, preset(flow), ids_of(9))) for flow in (both[1], strided)]
    assert torch.equal(*mels)


def test_int8_refuses_what_it_cannot_compute() -> None:
    shapes = whole_flow_outline(CONFIG.flow_encoder, CONFIG.flow_decoder, {}).shapes
    state = random_state("flow.pt", shapes, 1)
    with pytest.raises(ValueError, match="int8 weights are made of float32 on the CPU"):
        WholeFlow.from_state(CONFIG, {name: tensor.bfloat16() for name, tensor in state.items()}, "int8")
    estimator = WholeFlow.from_state(CONFIG, state).decoder.estimator
    estimator.config = replace(estimator.config, d_head=260)
    with pytest.raises(ValueError, match="heads of 260: int8 needs a multiple of 4 up to 256"):
        estimator.quantize()


def test_frames_are_rounded_down() -> None:
    assert [n_frames_of(n) for n in (0, 1, 20, 41, 100, 120)] == [0, 1, 34, 70, 172, 206]


def test_the_noise_depends_on_the_seed_alone() -> None:
    first, same, other = (sentence_noise(seed, 30, 80) for seed in (3, 3, 4))
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert sentence_noise(-1, 2, 80).isfinite().all() and sentence_noise(1 << 70, 2, 80).isfinite().all()
    many = sentence_noise(9, 4000, 80)
    assert abs(float(many.mean())) < 0.01 and abs(float(many.std()) - 1) < 0.01


def test_no_tokens_are_no_frames(flows: Flows) -> None:
    ours, _ = flows
    block = begun(ours, preset(ours), [])
    assert block.done and block.mel().shape == (1, 80, 0)


def test_a_stream_takes_one_block(flows: Flows) -> None:
    ours, _ = flows
    stream = ours.start(preset(ours), 0)
    with pytest.raises(ValueError, match="one block"):
        ours.begin([BlockRequest(stream, ids_of(25), (1, 2, 3))])
    ours.begin([BlockRequest(stream, ids_of(5), None)])
    with pytest.raises(ValueError, match="one block"):
        ours.begin([BlockRequest(stream, ids_of(5), None)])


def test_a_failed_step_fails_its_own_block_only(flows: Flows) -> None:
    ours, _ = flows
    alone = solved(ours, begun(ours, preset(ours), ids_of(9)))
    bad, good = begun(ours, preset(ours), ids_of(7)), begun(ours, preset(ours), ids_of(9))
    bad.mu = bad.mu[:, :2]
    failures: list[int] = []
    ours.step([bad, good], lambda i, error: failures.append(i))
    assert failures == [0] and bad.failed and not good.failed
    assert torch.equal(solved(ours, good), alone)
    with pytest.raises(ValueError, match="has failed"):
        ours.step([bad])
    with pytest.raises(ValueError, match="is done"):
        ours.step([good])
