"""The flow's steps as one batch: blocks of all streams in pages, on a device that is as strict as an accelerator.

What each stream says is held against the path without pages, where it is alone, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import pretend_device
import pytest
import torch
from flow_calls import CALLS, Crowd, alone, call, chunk, end, stepped, voice
from flow_paged import N_STEPS, batches, begun, held_against, n_free, pages_of, placed, said, watched
from freeze_flow import small_flow
from pretend_device import Pretence
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.engines.cosyvoice2.model.flow import batch as flow_batch
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs, Work
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.errors import EngineError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def wanted() -> list[Tensor]:
    """What `Crowd` says."""
    flow = small_flow(n_steps=N_STEPS)
    return [alone(flow, n_prompt, n_blocks, seed) for seed, (n_prompt, n_blocks, _) in enumerate(CALLS)]


# What it says


@pytest.mark.parametrize("where", ["cpu", pretend_device.NAME])
def test_streams_of_all_kinds_at_all_steps_are_each_what_they_are_alone(
    where: str, request: pytest.FixtureRequest, wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if where != "cpu":
        request.getfixturevalue("pretence")
    flow = placed(where)
    crowd = Crowd(flow)
    seen = watched(flow, monkeypatch)
    for ours, theirs in zip(crowd.speak(), wanted, strict=True):
        held_against(ours, theirs)
    assert max(len(batch) for batch in seen) == len(CALLS)
    assert {(len(batch), max(n for n, _ in batch)) for batch in seen} >= {(4, 100), (1, 150), (4, 18)}
    mixed = [batch for batch in seen if len({n for n, _ in batch}) > 1 and len({k for _, k in batch}) > 1]
    assert any(n % BLOCK_FRAMES for batch in mixed for n, _ in batch)


def test_voices_are_made_among_those_who_speak(pretence: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = placed()
    speaking = call(flow, 30, 0)
    solves = begun(flow, [speaking])
    flow.step(solves)
    of = (30, 1), (55, 2), (80, 3)
    solves += [flow.begin_prompt(*voice(flow, *each)) for each in of]
    seen = watched(flow, monkeypatch)
    while not solves[1].done:
        flow.step([solve for solve in solves if not solve.done])
    assert seen[:2] == [[(50, 1), (50, 0), (100, 0)], [(150, 0)]], "up to 100 frames are one batch"
    for (n, seed), solve in zip(of, solves[1:], strict=True):
        stream = flow.start(solve.prompt())
        held_against(flow.extend(stream, *chunk(flow, stream, 1, seed)), said(n, seed, (1, seed))[0])


def test_two_blocks_of_a_stream_go_one_behind_the_other_in_one_batch() -> None:
    plain, flow = small_flow(n_steps=N_STEPS), placed("cpu")
    ours, theirs, other = call(flow, 53, 1), call(plain, 53, 1), call(flow, 30, 2)
    news = [chunk(plain, theirs, 1, 1), (end(plain, 2, 50), end(plain, 3, 3))]
    first = flow.begin(ours, *news[0])
    beside = flow.begin(other, *chunk(flow, other, 1, 2))
    flow.step([first])
    flow.step([first, beside])
    second = flow.begin(ours, *news[1])
    while not second.done:
        flow.step([each for each in (second, first, beside) if each.may_step])
    for solve, new in zip((first, second), news, strict=True):
        held_against(solve.mel(), plain.extend(theirs, *new))


@pytest.mark.parametrize(("dtype", "rms"), [(torch.float16, 0.003), (torch.bfloat16, 0.03), (torch.float64, 1e-5)])
def test_other_precisions_stay_near(dtype: torch.dtype, rms: float, pretence: Pretence) -> None:
    flow = placed(dtype=dtype)
    solves = begun(flow, [call(flow, n, n) for n in (30, 53)])
    flow.step(solves[:1])
    while not solves[1].done:
        flow.step([solve for solve in solves if not solve.done])
    for seed, (n, solve) in enumerate(zip((30, 53), solves, strict=True)):
        ours, theirs = solve.mel().cpu(), said(n, n, (1, seed))[0]
        assert ours.dtype == torch.promote_types(dtype, torch.float32)
        assert (ours - theirs).square().mean().sqrt() <= rms * theirs.square().mean().sqrt()


def test_what_is_too_long_for_others_goes_alone(wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does an end in which all frames see all."""
    flow, plain = placed("cpu"), small_flow(n_steps=N_STEPS)
    monkeypatch.setattr(flow_batch, "PAGES", (1, 2))
    monkeypatch.setattr(flow_batch, "MOST_FRAMES", 100)
    crowd = Crowd(flow)
    seen = watched(flow, monkeypatch)
    of = voice(flow, 27, 9)
    whole = flow.begin_full(of[0], end(flow, 9), of[1], of[2], streaming=False, finalize=True)
    (beside,) = begun(flow, [call(flow, 27, 3)])
    while not whole.done:
        flow.step([whole, beside])
    held_against(whole.mel(), plain.full(of[0], end(flow, 9), of[1], of[2], streaming=False, finalize=True))
    assert {len(batch) for batch in seen} == {1}
    for ours, theirs in zip(crowd.speak(), wanted, strict=True):
        held_against(ours, theirs)
    assert max(len(batch) for batch in seen) == 3
    assert max(n for batch in seen if len(batch) > 1 for n, _ in batch) == 100


# What fails


def test_what_is_no_number_stays_with_its_stream(pretence: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours do not hear of it, nor who has its pages and its place in the batch after it."""
    monkeypatch.setattr(flow_batch, "PREPARED_PAGES", (8,))
    flow = placed()
    batches(flow).prepare(Graphs(pretend_device.device(), pretence.record), 4, lambda: None)
    streams = [call(flow, n_prompt, seed) for seed, n_prompt in enumerate((30, 30, 27, 30))]
    solves = begun(flow, streams)
    flow.step(solves)
    sick = solves[2]  # the longest: the others are padded
    sick.mu, sick.spk = sick.mu * torch.nan, sick.spk * torch.nan
    for _ in range(N_STEPS - 1):
        flow.step(solves)
    assert torch.isnan(sick.mel().cpu()).all()
    for seed in (0, 1, 3):
        held_against(solves[seed].mel(), said(30, seed, (1, seed))[0])
    sick_pages = pages_of(streams[2])
    assert len(sick_pages) == 2 * N_STEPS
    del sick, solves, streams[2]
    solves = begun(flow, streams)
    assert sick_pages & {index for solve in solves for index in pages_of(solve)}
    for _ in range(N_STEPS):
        flow.step(solves)
    for place, seed in enumerate((0, 1, 3)):
        _, second, rest = said(30, seed, (1, seed), (1, place), end_seed=seed)
        held_against(solves[place].mel(), second)
        held_against(flow.finish(streams[place], end(flow, seed)), rest)


def test_where_a_batch_fails_each_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails in the last layer, when all others have written their keys."""
    flow = placed("cpu")
    streams = [call(flow, 27, seed) for seed in range(2)]
    solves = begun(flow, streams)
    projection = flow.decoder.estimator.projection

    def fails_for_many(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise RuntimeError("out of memory")
        return projection(x)

    monkeypatch.setattr(flow.decoder.estimator, "projection", fails_for_many)
    while not solves[0].done:
        flow.step(solves)
    for seed, (solve, stream) in enumerate(zip(solves, streams, strict=True)):
        mel, rest = said(27, seed, (1, seed), end_seed=seed)
        held_against(solve.mel(), mel)
        held_against(flow.finish(stream, end(flow, seed)), rest)


def test_a_step_that_raises_ends_its_stream_and_no_other() -> None:
    flow = placed("cpu")
    streams = [call(flow, 27, seed) for seed in range(3)]
    solves = begun(flow, streams)
    flow.step(solves)
    solves[1].mu = solves[1].mu[:, :-1]
    with pytest.raises(RuntimeError):
        flow.step(solves)
    assert [s.finished for s in streams] == [False, True, False]
    for seed in (0, 2):
        held_against(stepped(flow, solves[seed]), said(27, seed, (1, seed))[0])


# What a device is asked for


def test_a_step_asks_for_as_much_for_many_as_for_few_and_waits_for_nothing(pretence: Pretence) -> None:
    asked, sent = [], []
    for n in (2, 7):
        flow = placed()
        solves = begun(flow, [call(flow, (27, 30, 53)[i % 3], i) for i in range(n)])
        flow.step(solves[: n // 2])  # so that they are at different steps
        pretence.clear()
        flow.step(solves)
        assert pretence.waits == []
        asked.append(pretence.launches.copy())
        sent.append(list(pretence.sent))
    assert asked[0] == asked[1] and asked[0].total() > 50 and sent[0] == sent[1] == ["border.py:sent"]


class Recorder:
    """Records as `Pretence` does, and counts what is replayed."""

    def __init__(self, pretence: Pretence) -> None:
        self._pretence = pretence
        self.n_replayed = 0

    def __call__(self, work: Callable[[], object]) -> Callable[[], object]:
        replay = self._pretence.record(work)

        def counted() -> None:
            self.n_replayed += 1
            replay()

        return counted


def test_recorded_steps_are_those_that_are_not(
    pretence: Pretence, wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = placed()
    recorder, looks = Recorder(pretence), []
    before = n_free(flow)
    speaking = call(flow, 27, 5)
    flow.extend(speaking, *chunk(flow, speaking, 1, 5))
    batches(flow).prepare(Graphs(pretend_device.device(), recorder), 3, lambda: looks.append(1))
    assert len(looks) == 3 * 2 * 3, "1, 2 and 4 streams, of 50 and 100 frames, behind 8, 16 and 32 pages"
    held_against(flow.finish(speaking, end(flow, 5)), said(27, 5, (1, 5), end_seed=5)[1])
    del speaking
    assert n_free(flow) == before, "recording takes no pages and writes to nobody's"
    crowd = Crowd(flow)
    recorder.n_replayed = 0
    seen = watched(flow, monkeypatch)
    for ours, theirs in zip(crowd.speak(), wanted, strict=True):
        held_against(ours, theirs)
    usual = [batch for batch in seen if len(batch) <= 4 and max(n for n, _ in batch) <= 100]
    assert recorder.n_replayed == len(usual)
    assert {(len(batch), max(n for n, _ in batch)) for batch in usual} >= {(4, 100), (4, 50), (3, 100), (1, 18)}


def test_warm_up_that_is_broken_off_can_be_done_again(
    pretence: Pretence, wanted: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_batch, "PREPARED_PAGES", (8, 16))
    flow, recorder = placed(), Recorder(pretence)
    graphs, looks = Graphs(pretend_device.device(), recorder), []

    def look() -> None:
        looks.append(1)
        if len(looks) == 4:
            raise EngineError("closed")

    with pytest.raises(EngineError, match="closed"):
        batches(flow).prepare(graphs, 2, look)
    batches(flow).prepare(graphs, 2, look)
    assert len(looks) == 4 + 8 - 3
    held_against(alone(flow, 27, 1, 0), wanted[0])
    assert recorder.n_replayed == 3 * N_STEPS


def test_where_nothing_records_it_is_done_piece_by_piece(pretence: Pretence, wanted: list[Tensor]) -> None:
    flow = placed()
    batches(flow).prepare(Graphs(pretend_device.device()), 4, lambda: None)
    held_against(alone(flow, 27, 1, 0), wanted[0])


def test_a_runner_prepares_for_as_many_as_it_has_slots(model_dir: Path, pretence: Pretence) -> None:
    device = pretend_device.device()
    model = SpeechModel.load(load_model_directory(model_dir), device=str(device), precision=Precision(), n_slots=3)
    prepared: list[object] = []

    class Named(Graphs):
        def prepare(self, name: Hashable, work: Work) -> None:
            prepared.append(name)

    Runner(model, graphs=Named(device, lambda work: work)).prepare(lambda: None)
    streams = {name[1] for name in prepared if isinstance(name, tuple) and name[0] == "flow"}
    assert streams == {1, 2, 4}
