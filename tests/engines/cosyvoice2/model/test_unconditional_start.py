"""The first Euler step without text, in int8: it is computed once, and all utterances get what they would compute."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from flow_calls import alone, call, chunk, ids
from freeze_flow import small_flow, small_int8
from plain_flow import extend, finish
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.host_backend import HostBackend
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import EstimatorContext
from telephony_tts.engines.cosyvoice2.model.flow.unconditional_start import UnconditionalStart
from telephony_tts.engines.kernels import library

pytestmark = [
    pytest.mark.slow,  # it runs a compiler
    pytest.mark.skipif(not library.available(), reason="no C++ compiler"),
]

N_STEPS = 10
UTTERANCES = [(0, 1, 9), (30, 2, 25), (53, 1, 40), (80, 3, 3)]
"""Of each one: tokens of its prompt, blocks in its first request, and tokens of its last block."""


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def backend_of(flow: Flow) -> HostBackend:
    assert isinstance(flow.backend, HostBackend)
    return flow.backend


def with_both_branches() -> Flow:
    """The flow that computes both branches in every step."""
    flow = small_int8()
    backend_of(flow)._start = None
    return flow


def velocities_of(flow: Flow) -> list[Tensor]:
    """What the estimator computes from now on, pass after pass."""
    seen: list[Tensor] = []
    velocity = flow.decoder.estimator.velocity

    def record(features: Tensor, times: Tensor, past: EstimatorContext) -> Tensor:
        seen.append(velocity(features, times, past))
        return seen[-1]

    flow.decoder.estimator.velocity = record  # type: ignore[method-assign]
    return seen


def speak(flow: Flow, n_prompt: int, n_blocks: int, n_end: int) -> Tensor:
    stream = call(flow, n_prompt, 1)
    mel = extend(flow, stream, *chunk(flow, stream, n_blocks, 1))
    return torch.cat([mel, finish(flow, stream, ids(n_end, 2))], dim=2)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Relative to the rms of `theirs`."""
    return float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())


@pytest.mark.parametrize(("n_prompt", "n_blocks", "n_end"), UTTERANCES)
def test_what_is_kept_is_what_the_branch_without_text_gives(n_prompt: int, n_blocks: int, n_end: int) -> None:
    flow = small_flow()
    passes = velocities_of(flow)
    speak(flow, n_prompt, n_blocks, n_end)
    start, n_before = UnconditionalStart(small_int8().decoder), 0
    for v in passes[::N_STEPS]:
        n_tokens = v.shape[1] // FRAMES_PER_TOKEN
        ours = start.velocity(n_before, n_tokens)
        assert ours.shape == v[1:].shape
        # 0.015 is the error of int8, however it is computed.
        assert distance(ours, v[1:]) < 0.018 < 0.3 < distance(ours, v[:1])
        n_before += n_tokens
    assert n_before % BLOCK_TOKENS == n_end % BLOCK_TOKENS and n_before > n_prompt


def test_it_has_the_bits_of_the_branch_without_text_in_passes_over_one_block() -> None:
    flow = with_both_branches()
    passes, stream = velocities_of(flow), call(flow, 0, 1)
    extend(flow, stream, *chunk(flow, stream, 1, 1))
    finish(flow, stream, ids(9, 2))
    start = UnconditionalStart(small_int8().decoder)
    assert torch.equal(start.velocity(0, BLOCK_TOKENS), passes[0][1:])
    assert torch.equal(start.velocity(BLOCK_TOKENS, 9), passes[N_STEPS][1:])


@pytest.mark.parametrize(("n_prompt", "n_blocks", "n_end"), UTTERANCES)
def test_the_mel_is_as_near_to_float32_as_with_both_branches(n_prompt: int, n_blocks: int, n_end: int) -> None:
    reference, both, ours = (
        speak(flow, n_prompt, n_blocks, n_end) for flow in (small_flow(), with_both_branches(), small_int8())
    )
    assert distance(ours, reference) <= 1.1 * distance(both, reference) < 0.012


def test_it_is_computed_once() -> None:
    """Passes as rows and frames. The utterances have different voices and texts, and the second one is shorter."""
    flow = small_int8()
    passes = velocities_of(flow)
    speak(flow, 53, 2, 9)
    n_first = len(passes)
    speak(flow, 30, 1, 12)
    whole, end = BLOCK_TOKENS * FRAMES_PER_TOKEN, 12 * FRAMES_PER_TOKEN
    rest = [(2, whole)] * (N_STEPS - 1)
    assert [tuple(v.shape[:2]) for v in passes[n_first:]] == [
        (1, whole), *rest,  # the prompt's whole block
        (1, whole), *rest,  # the rest of the prompt, and the first block
        (1, end), (1, end), *[(2, end)] * (N_STEPS - 1),  # the end depends on its length
    ]  # fmt: skip
    n_of_first = sum(v.shape[0] * v.shape[1] for v in passes[:n_first])
    n_frames = FRAMES_PER_TOKEN * (4 * BLOCK_TOKENS + 9)
    assert n_of_first == n_frames * 2 * N_STEPS, "the first utterance computes as much as if nothing was kept"


def test_bits_do_not_depend_on_earlier_utterances() -> None:
    wanted = speak(small_int8(), 27, 1, 9)
    flow = small_int8()
    for other in [*UTTERANCES, (3, 1, 60)]:
        speak(flow, *other)
        assert torch.equal(speak(flow, 27, 1, 9), wanted)


def test_bits_do_not_depend_on_other_threads() -> None:
    wanted = [alone(small_int8(), n_prompt, 1, seed) for seed, n_prompt in enumerate((0, 27, 80))]
    for _ in range(3):
        flow = small_int8()
        found: dict[int, Tensor] = {}

        def run(seed: int, n_prompt: int, flow: Flow = flow, found: dict[int, Tensor] = found) -> None:
            with torch.inference_mode():
                found[seed] = alone(flow, n_prompt, 1, seed)

        threads = [threading.Thread(target=run, args=each) for each in enumerate((0, 27, 80))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(found[seed], mel) for seed, mel in enumerate(wanted))


def test_a_pass_that_fails_ends_one_utterance_and_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = speak(small_int8(), 27, 1, 9)
    flow = small_int8()
    compute, n_calls = flow.decoder.unconditional_velocity, 0

    def second_fails(first_frame: int, n_frames: int, past: EstimatorContext) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        v = compute(first_frame, n_frames, past)
        if n_calls == 2:
            raise RuntimeError("out of memory")
        return v

    monkeypatch.setattr(flow.decoder, "unconditional_velocity", second_fails)
    stream = call(flow, 27, 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        extend(flow, stream, *chunk(flow, stream, 1, 1))
    assert stream.failed
    assert torch.equal(speak(flow, 27, 1, 9), wanted)


def test_other_precisions_compute_both_branches_in_every_step() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        flow = small_flow(dtype)
        passes = velocities_of(flow)
        speak(flow, 30, 1, LOOKAHEAD_TOKENS)
        assert {v.shape[0] for v in passes} == {2} and len(passes) == 3 * N_STEPS
