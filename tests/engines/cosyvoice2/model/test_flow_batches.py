"""The Euler steps of many streams as one batch, on a pretended device that is as strict as an accelerator.

What each stream says is held against the path without pages, where it is alone, on the CPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path

import pretend_device
import pytest
import torch
from flow_calls import CALLS, InterleavedCalls, alone, call, chunk, end, voice
from flow_paged import (
    N_STEPS,
    WITHIN,
    CountedGraphs,
    assert_near,
    backend_of,
    begin_first_blocks,
    flow_without_pages,
    n_free,
    paged_flow,
    pages_of,
    spoken_alone,
    watch_batches,
)
from freeze_flow import small_flow
from plain_flow import begin, extend, finish, prompt_of, recomputed, stepped
from pretend_device import Pretence
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, BLOCK_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow import device_backend
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs, Work
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def wanted() -> list[Tensor]:
    """The mels of `InterleavedCalls`, each call by itself."""
    flow = flow_without_pages()
    return [alone(flow, n_prompt, n_blocks, seed) for seed, (n_prompt, n_blocks, _) in enumerate(CALLS)]


# Results


@pytest.mark.parametrize("where", ["cpu", pretend_device.NAME])
def test_each_stream_of_a_mixed_batch_equals_the_stream_alone(
    where: str, request: pytest.FixtureRequest, wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if where != "cpu":
        request.getfixturevalue("pretence")
    flow = paged_flow(where)
    calls = InterleavedCalls(flow)
    seen = watch_batches(flow, monkeypatch)
    for ours, theirs in zip(calls.speak(), wanted, strict=True):
        assert_near(ours, theirs)
    assert max(len(batch) for batch in seen) == len(CALLS)
    assert {(len(batch), max(n for n, _ in batch)) for batch in seen} >= {(4, 100), (1, 150), (4, 18)}
    mixed = [batch for batch in seen if len({n for n, _ in batch}) > 1 and len({k for _, k in batch}) > 1]
    assert any(n % BLOCK_FRAMES for batch in mixed for n, _ in batch)


def test_voices_are_built_in_batches_with_streams(pretence: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = paged_flow()
    speaking = call(flow, 30, 0)
    blocks = begin_first_blocks(flow, [speaking])
    flow.step(blocks)
    of = (30, 1), (55, 2), (80, 3)
    blocks += [flow.begin_prompt(*voice(flow, *each)) for each in of]
    seen = watch_batches(flow, monkeypatch)
    while not blocks[1].done:
        flow.step([block for block in blocks if not block.done])
    assert seen[:2] == [[(50, 1), (50, 0), (100, 0)], [(150, 0)]], "up to 100 frames are one batch"
    for (n, seed), block in zip(of, blocks[1:], strict=True):
        stream = flow.start(block.prompt())
        assert_near(extend(flow, stream, *chunk(flow, stream, 1, seed)), spoken_alone(n, seed, (1, seed))[0])


def test_two_blocks_of_a_stream_share_a_batch_one_step_apart() -> None:
    """With more layers than in the other tests."""
    plain, flow = small_flow(n_steps=N_STEPS), paged_flow("cpu", few_layers=False)
    ours, theirs, other = call(flow, 53, 1), call(plain, 53, 1), call(flow, 30, 2)
    news = [chunk(plain, theirs, 1, 1), (end(plain, 2, 50), end(plain, 3, 3))]
    first = begin(flow, ours, *news[0])
    beside = begin(flow, other, *chunk(flow, other, 1, 2))
    flow.step([first])
    flow.step([first, beside])
    second = begin(flow, ours, *news[1])
    while not second.done:
        flow.step([each for each in (second, first, beside) if each.may_step])
    for block, new in zip((first, second), news, strict=True):
        assert_near(block.mel(), extend(plain, theirs, *new))


@pytest.mark.parametrize(("dtype", "rms"), [(torch.float16, 0.003), (torch.bfloat16, 0.03), (torch.float64, 1e-5)])
def test_other_precisions_stay_near(dtype: torch.dtype, rms: float, pretence: Pretence) -> None:
    flow = paged_flow(dtype=dtype)
    blocks = begin_first_blocks(flow, [call(flow, n, n) for n in (30, 53)])
    flow.step(blocks[:1])
    while not blocks[1].done:
        flow.step([block for block in blocks if not block.done])
    for seed, (n, block) in enumerate(zip((30, 53), blocks, strict=True)):
        ours, theirs = block.mel().cpu(), spoken_alone(n, n, (1, seed))[0]
        assert ours.dtype == torch.promote_types(dtype, torch.float32)
        assert (ours - theirs).square().mean().sqrt() <= rms * theirs.square().mean().sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_streams_with_pasts_of_different_lengths_share_an_encoder_pass(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU too, where bfloat16 has an attention of its own."""
    flow = paged_flow("cpu", dtype)
    prompts = [prompt_of(flow, *voice(flow, n, n)) for n in (53, 80)]
    requests = []
    for prompt in prompts:
        stream = flow.start(prompt)
        new, ahead = chunk(flow, stream, 1, 1)
        requests.append(BlockRequest(stream, new[0].tolist(), ahead[0].tolist()))
    shapes = []
    encode = flow.encoder.encode
    monkeypatch.setattr(flow.encoder, "encode", lambda ids, *rest: (shapes.append(ids.shape), encode(ids, *rest))[1])
    together = flow.begin(requests)
    assert shapes == [(2, BLOCK_TOKENS)]
    for block, prompt, request in zip(together, prompts, requests, strict=True):
        (alone_block,) = flow.begin([BlockRequest(flow.start(prompt), request.new, request.ahead)])
        assert_near(block.mu.float(), alone_block.mu.float(), WITHIN if dtype == torch.float32 else 0.05)


def test_blocks_that_are_too_long_for_a_batch_go_alone(wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a whole sentence, in which all frames see all others."""
    flow, plain = paged_flow("cpu"), flow_without_pages()
    monkeypatch.setattr(device_backend, "PAGES", (1, 2))
    monkeypatch.setattr(device_backend, "MOST_FRAMES", 100)
    calls = InterleavedCalls(flow)
    seen = watch_batches(flow, monkeypatch)
    of = voice(flow, 27, 9)
    whole = flow.begin_whole(of[0], end(flow, 9), of[1], of[2])
    (beside,) = begin_first_blocks(flow, [call(flow, 27, 3)])
    while not whole.done:
        flow.step([whole, beside])
    assert_near(whole.mel(), recomputed(plain, of[0], end(flow, 9), of[1], of[2], streaming=False, finalize=True))
    assert {len(batch) for batch in seen} == {1}
    for ours, theirs in zip(calls.speak(), wanted, strict=True):
        assert_near(ours, theirs)
    assert max(len(batch) for batch in seen) == 3
    assert max(n for batch in seen if len(batch) > 1 for n, _ in batch) == 100


def test_the_next_step_of_the_same_blocks_is_filled_in_as_any_other(pretence: Pretence) -> None:
    """Also with a last block, which has no pages of its own, and when a block is replaced by another one."""
    flow = paged_flow()
    streams = [call(flow, n_prompt, seed) for seed, n_prompt in enumerate((30, 55, 27, 30))]
    blocks = begin_first_blocks(flow, streams[:3])
    with torch.inference_mode():
        kept, decoder = device_backend.StepInputs((4, 100, 4), flow.decoder), flow.decoder
        for k in range(N_STEPS):
            if k == 3:
                blocks[1:2] = begin_first_blocks(flow, streams[3:])
            fresh = device_backend.StepInputs((4, 100, 4), decoder)
            if k in (0, 3):
                assert not kept._fill_next(blocks)
                kept.fill(blocks)
            else:
                assert kept._fill_next(blocks)
            fresh.fill(blocks)
            assert torch.equal(kept._numbers.cpu(), fresh._numbers.cpu())
            n = 1 + sum(block.x.shape[1] for block in blocks)
            for name, flat in kept._flat.items():
                assert torch.equal(flat[:, :n].cpu(), fresh._flat[name][:, :n].cpu())
            assert torch.equal(kept.spk.cpu(), fresh.spk.cpu())
            flow.step(blocks)
            blocks = [block for block in blocks if not block.done] or blocks


# Failures


def test_non_finite_numbers_stay_with_their_stream(pretence: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach neither its neighbours nor the streams that get its pages and its row after it."""
    monkeypatch.setattr(device_backend, "PREPARED_PAGES", (8,))
    flow = paged_flow()
    backend_of(flow).prepare(Graphs(pretend_device.device(), pretence.record), 4, lambda: None)
    streams = [call(flow, n_prompt, seed) for seed, n_prompt in enumerate((30, 30, 27, 30))]
    blocks = begin_first_blocks(flow, streams)
    flow.step(blocks)
    broken = blocks[2]  # the longest: the others are padded
    broken.mu, broken.spk = broken.mu * torch.nan, broken.spk * torch.nan
    for _ in range(N_STEPS - 1):
        flow.step(blocks)
    assert torch.isnan(broken.mel().cpu()).all()
    for seed in (0, 1, 3):
        assert_near(blocks[seed].mel(), spoken_alone(30, seed, (1, seed))[0])
    broken_pages = pages_of(streams[2])
    assert len(broken_pages) == 2
    del broken, blocks, streams[2]
    blocks = begin_first_blocks(flow, streams)
    assert broken_pages & {index for block in blocks for index in pages_of(block)}
    for _ in range(N_STEPS):
        flow.step(blocks)
    for place, seed in enumerate((0, 1, 3)):
        _, second, rest = spoken_alone(30, seed, (1, seed), (1, place), end_seed=seed)
        assert_near(blocks[place].mel(), second)
        assert_near(finish(flow, streams[place], end(flow, seed)), rest)


def test_blocks_of_a_failed_batch_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch fails in its last layer, after all other layers have written their keys."""
    flow = paged_flow("cpu")
    streams = [call(flow, 27, seed) for seed in range(2)]
    blocks = begin_first_blocks(flow, streams)
    projection = flow.decoder.estimator.projection

    def fails_for_many(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise RuntimeError("out of memory")
        return projection(x)

    monkeypatch.setattr(flow.decoder.estimator, "projection", fails_for_many)
    while not blocks[0].done:
        flow.step(blocks)
    for seed, (block, stream) in enumerate(zip(blocks, streams, strict=True)):
        mel, rest = spoken_alone(27, seed, (1, seed), end_seed=seed)
        assert_near(block.mel(), mel)
        assert_near(finish(flow, stream, end(flow, seed)), rest)


def test_a_step_that_raises_ends_its_stream_and_no_other() -> None:
    flow = paged_flow("cpu")
    streams = [call(flow, 27, seed) for seed in range(3)]
    blocks = begin_first_blocks(flow, streams)
    flow.step(blocks)
    blocks[1].mu = blocks[1].mu[:, :-1]
    with pytest.raises(RuntimeError):
        flow.step(blocks)
    assert [s.finished for s in streams] == [False, True, False]
    for seed in (0, 2):
        assert_near(stepped(flow, blocks[seed]), spoken_alone(27, seed, (1, seed))[0])


# Launches and graphs


def test_a_step_has_the_same_launches_for_few_and_many_streams_and_never_waits(pretence: Pretence) -> None:
    launched, sent = [], []
    for n in (2, 7):
        flow = paged_flow()
        blocks = begin_first_blocks(flow, [call(flow, (27, 30, 53)[i % 3], i) for i in range(n)])
        flow.step(blocks[: n // 2])  # so that they are at different steps
        pretence.clear()
        flow.step(blocks)
        assert pretence.waits == []
        launched.append(pretence.launches.copy())
        sent.append(list(pretence.sent))
    assert launched[0] == launched[1] and launched[0].total() > 50 and sent[0] == sent[1] == ["border.py:sent"]
    n_index_tensors = sum(n for name, n in launched[0].items() if name.startswith("aten::arange"))
    assert n_index_tensors < 10, "all convolutions share them"


@pytest.mark.slow
def test_recorded_steps_equal_steps_that_are_not_recorded(
    pretence: Pretence, wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_backend, "PREPARED_PAGES", (8, 16))
    flow = paged_flow()
    graphs, looks = CountedGraphs(pretence), []
    before = n_free(flow)
    speaking = call(flow, 27, 5)
    extend(flow, speaking, *chunk(flow, speaking, 1, 5))
    backend_of(flow).prepare(graphs, 3, lambda: looks.append(1))
    assert len(looks) == 3 * (2 + 1) * 2, "1, 2 and 4 streams; 50 and 100 frames and the encoder; 8 and 16 pages"
    assert_near(finish(flow, speaking, end(flow, 5)), spoken_alone(27, 5, (1, 5), end_seed=5)[1])
    del speaking
    assert n_free(flow) == before, "recording takes no pages and writes to none that a stream holds"
    calls = InterleavedCalls(flow)
    graphs.replayed.clear()
    seen = watch_batches(flow, monkeypatch)
    for ours, theirs in zip(calls.speak(), wanted, strict=True):
        assert_near(ours, theirs)
    usual = [batch for batch in seen if len(batch) <= 4 and max(n for n, _ in batch) <= 100]
    assert graphs.replayed["flow"] == len(usual)
    assert {(len(batch), max(n for n, _ in batch)) for batch in usual} >= {(4, 100), (4, 50), (3, 100), (1, 18)}


def test_a_warm_up_that_was_broken_off_can_be_repeated(
    pretence: Pretence, wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_backend, "PREPARED_PAGES", (8, 16))
    flow, graphs, looks = paged_flow(), CountedGraphs(pretence), []

    def look() -> None:
        looks.append(1)
        if len(looks) in (4, 4 + 7):
            raise EngineError("closed")

    for _ in range(2):  # the second time after all steps and one pass of the encoder
        with pytest.raises(EngineError, match="closed"):
            backend_of(flow).prepare(graphs, 2, look)
    backend_of(flow).prepare(graphs, 2, look)
    assert len(looks) == 8 + 4 + 2
    assert_near(alone(flow, 27, 1, 0), wanted[0])
    assert graphs.replayed == {"flow": 3 * N_STEPS, "flow encoder": 1}, "the second block alone has 25 tokens"


def test_without_a_recorder_steps_run_unrecorded(pretence: Pretence, wanted: list[Tensor]) -> None:
    flow = paged_flow()
    backend_of(flow).prepare(Graphs(pretend_device.device()), 4, lambda: None)
    assert_near(alone(flow, 27, 1, 0), wanted[0])


def test_a_runner_prepares_for_all_of_its_slots(model_dir: Path, pretence: Pretence) -> None:
    device = pretend_device.device()
    model = SpeechModel.load(load_model_directory(model_dir), device=str(device), precision=Precision(), n_slots=3)
    prepared: list[object] = []

    class Named(Graphs):
        def prepare(self, name: Hashable, work: Work) -> None:
            prepared.append(name)

    Runner(model, graphs=Named(device, lambda work: work)).prepare(lambda: None)
    for stage in ("flow", "flow encoder"):
        assert {name[1] for name in prepared if isinstance(name, tuple) and name[0] == stage} == {1, 2, 4}
