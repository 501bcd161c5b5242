"""Ids for many rows on a device, in recorded shapes: the same as on a CPU row by row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity_lm import prefill
from pretend_device import Pretence, device
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device.decode_steps import DecodeSteps, doubling
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_TOKENS
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs, Work
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

N_SLOTS = 6
N_MOST = 5
STOP = N_SPEECH_TOKENS
NOTHING = ((),) * N_MOST
LENGTHS = [3, 300, 17, 255, 90]
"""Positions in the slots; two of them exceed the smallest span."""


def loaded(directory: Path, where: str) -> SpeechModel:
    model = SpeechModel.load(load_model_directory(directory), device=where, precision=Precision(), n_slots=N_SLOTS)
    past = torch.randn(max(LENGTHS), model.lm.config.d_model, generator=torch.Generator().manual_seed(1))
    for slot, n in enumerate(LENGTHS):
        model.sampler.start(slot, 40 + slot)
        prefill(model.lm, past[:n].to(where), slot, model.cache)
    return model


@pytest.fixture
def there(model_dir: Path, pretence: Pretence) -> SpeechModel:
    return loaded(model_dir, str(device()))


def steps_of(model: SpeechModel, graphs: Graphs | None = None) -> DecodeSteps:
    return DecodeSteps(model.lm, model.cache, model.sampler, N_MOST, graphs or Graphs(model.device))


def row_by_row(
    model: SpeechModel, slot: int, first: int, banned: tuple[tuple[int, ...], ...], forced: int | None
) -> list[int]:
    """The ids that a CPU draws."""
    ids, drawn = torch.tensor([first]), []
    for i, bans in enumerate(banned):
        hidden = model.lm.decode(model.lm.embed_speech(ids), [slot], model.cache)
        ids = model.sampler.sample(model.lm.logits(hidden), [slot], [bans], [forced if i == 0 else None])
        drawn.append(int(ids))
    return drawn


def keys_and_values(model: SpeechModel) -> Tensor:
    """Of all slots but the scratch slot, on the CPU."""
    return model.cache.data[:, :, :-1].cpu()


@pytest.mark.parametrize("recorded", [False, True])
def test_rows_of_any_length_draw_the_same_ids_as_alone(
    model_dir: Path, there: SpeechModel, pretence: Pretence, recorded: bool
) -> None:
    here = loaded(model_dir, "cpu")
    graphs = Graphs(there.device, pretence.record if recorded else None)
    steps = steps_of(there, graphs)
    steps.prepare(lambda: None)
    pretence.sent.clear()
    calls = [[1, 0, 4], [3], [2, 1], [4, 3, 2, 1, 0], [0, 2]]
    for n_call, slots in enumerate(calls):
        firsts = [100 * n_call + slot for slot in slots]
        n_steps = [5, 3, 1, 4, 5][n_call]
        banned = [tuple(((STOP,), (STOP + 1, STOP + 2), ())[(slot + i) % 3] for i in range(n_steps)) for slot in slots]
        forced = [7 if slot == 1 else None for slot in slots]
        drawn = steps.draw(firsts, slots, banned, forced).cpu().T.tolist()
        rows = zip(slots, firsts, banned, forced, strict=True)
        expected = [row_by_row(here, *row) for row in rows]
        assert drawn == expected
    assert len(pretence.sent) == len(calls)  # one block of numbers for each
    assert there.cache.lengths == here.cache.lengths
    assert torch.allclose(keys_and_values(there), keys_and_values(here), atol=1e-5)
    for mine, theirs in ((there.sampler.n_drawn, here.sampler.n_drawn), (there.sampler.recent, here.sampler.recent)):
        assert torch.equal(mine[:-1].cpu(), theirs[:-1])


def test_recording_touches_no_slot_and_happens_once(there: SpeechModel, pretence: Pretence) -> None:
    before = keys_and_values(there), there.sampler.n_drawn[:-1].cpu(), list(there.cache.lengths)
    n_works = 0

    def record(work: Work) -> Work:
        nonlocal n_works
        n_works += 1
        return pretence.record(work)

    steps = steps_of(there, Graphs(there.device, record))
    n_looks = 0

    def look() -> None:
        nonlocal n_looks
        n_looks += 1

    steps.prepare(look)
    assert n_looks == n_works == len(steps.n_rows) * len(steps.spans)
    steps.prepare(look)
    assert n_works == len(steps.n_rows) * len(steps.spans)
    after = keys_and_values(there), there.sampler.n_drawn[:-1].cpu(), list(there.cache.lengths)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1]) and before[2] == after[2]


def test_recording_stops_when_loading_is_cancelled(there: SpeechModel, pretence: Pretence) -> None:
    def look() -> None:
        raise EngineError("closed")

    with pytest.raises(EngineError, match="closed"):
        steps_of(there, Graphs(there.device, pretence.record)).prepare(look)


def test_without_graphs_each_operation_is_launched_alone(
    model_dir: Path, there: SpeechModel, caplog: pytest.LogCaptureFixture
) -> None:
    def record(work: Work) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing")

    steps = steps_of(there, Graphs(there.device, record))
    steps.prepare(lambda: None)
    assert [each.getMessage() for each in caplog.records] == [
        "a step of the speech model runs without a graph, which is slower: "
        "operation not permitted when stream is capturing"
    ]
    drawn = steps.draw([5, 6], [0, 2], [NOTHING, NOTHING], [None, None]).cpu().T.tolist()
    here = loaded(model_dir, "cpu")
    assert drawn == [row_by_row(here, 0, 5, NOTHING, None), row_by_row(here, 2, 6, NOTHING, None)]


def test_a_row_without_room_is_an_error_before_anything_is_written(there: SpeechModel) -> None:
    steps = steps_of(there)
    there.cache.lengths[1] = there.cache.max_len - 2
    before = keys_and_values(there), list(there.cache.lengths)
    with pytest.raises(EngineError, match="shorter pieces"):
        steps.draw([1, 2], [0, 1], [NOTHING, NOTHING], [None, None])
    assert torch.equal(before[0], keys_and_values(there)) and before[1] == there.cache.lengths
    drawn = steps.draw([1, 2], [0, 1], [NOTHING[:2], NOTHING[:2]], [None, None])  # to the very end there is
    assert drawn.shape == (2, 2) and there.cache.lengths[1] == there.cache.max_len


def test_a_row_that_is_not_finite_gives_minus_one_and_changes_no_other(model_dir: Path, there: SpeechModel) -> None:
    there.cache.data[:, :, 2, :, :17] = torch.nan
    drawn = steps_of(there).draw([5, 6], [0, 2], [NOTHING, NOTHING], [None, None]).cpu().T.tolist()
    assert drawn == [row_by_row(loaded(model_dir, "cpu"), 0, 5, NOTHING, None), [-1] * N_MOST]


def test_sizes_double_up_to_the_largest() -> None:
    assert doubling(1, 6) == [1, 2, 4, 6]
    assert doubling(256, 4096) == [256, 512, 1024, 2048, 4096]
    assert doubling(1, 1) == [1]
