"""Prompts and beginnings of blocks of many utterances in batches, on a device as strict as an accelerator.

What each comes to is held against what it is alone on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from flow_paged import backend_of
from places import N_SLOTS, Place, assert_close
from pretend_device import Pretence
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.requests import TokenBlock
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Track
from telephony_tts.engines.cosyvoice2.model.config import EOS, FILL
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import DevicePage
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
from telephony_tts.engines.cosyvoice2.model.lm import prefill as lm_prefill
from telephony_tts.engines.cosyvoice2.model.lm.prefill import PREFILL_CHUNK
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

READ = {"border.py:read"}
"""The only place where the host may wait."""
TEST = {"a test"}


# ------------------------------------------------------------------------------ prefill


def feed(n_text: int, n_speech: int, seed: int, banned: tuple[int, ...] = (EOS,), forced: int | None = None) -> LmFeed:
    """A feed of start, text, task and speech with random ids."""
    random = torch.Generator().manual_seed(seed)
    text, speech = (tuple(torch.randint(200, (n,), generator=random).tolist()) for n in (n_text, n_speech))
    control = [TokenSegment(EmbeddingTable.CONTROL, (i,)) for i in range(2)]
    words, prompt = TokenSegment(EmbeddingTable.TEXT, text), TokenSegment(EmbeddingTable.SPEECH, speech)
    segments = (control[0], words, control[1], prompt)
    return LmFeed(tuple(each for each in segments if each.ids), banned, forced)


LONG = 2 * PREFILL_CHUNK
FEEDS = [feed(9, 20, 0), feed(40, LONG, 1), feed(3, 0, 2, ()), feed(30, 90, 3, forced=FILL), feed(7, 250, 4)]
MORE = [feed(1, 0, 5), feed(5, 5, 6, forced=7), feed(2, PREFILL_CHUNK, 7), feed(33, 0, 8, ()), feed(1, 1, 9)]
"""Later feeds, as for text that arrives while it is spoken."""


def fed_alone(runner: Runner, tracks: Sequence[Track], feeds: Sequence[LmFeed]) -> list[int]:
    """The id drawn after each whole feed."""
    ids = []
    for track, whole in zip(tracks, feeds, strict=True):
        while (drawn := runner.prefill([track], [whole])[0]) is None:
            pass
        ids.append(drawn.read()[0])
    return ids


def fed_together(runner: Runner, tracks: Sequence[Track], feeds: Sequence[LmFeed]) -> list[int]:
    """The same in batches; long feeds take several calls."""
    ids: dict[int, int] = {}
    while len(ids) < len(tracks):
        left = [i for i in range(len(tracks)) if i not in ids]
        results = runner.prefill([tracks[i] for i in left], [feeds[i] for i in left])
        ids.update((i, drawn.read()[0]) for i, drawn in zip(left, results, strict=True) if drawn is not None)
    return [ids[i] for i in range(len(tracks))]


def test_prefill_of_several_prompts_equals_each_alone(
    here: Place, there: Place, pretence: Pretence
) -> None:
    ours, theirs = (place.open([DEFAULT] * 5) for place in (there, here))
    pretence.clear()
    for feeds in (FEEDS, MORE):
        assert fed_together(there.runner, ours, feeds) == fed_alone(here.runner, theirs, feeds)
        assert there.model.cache.lengths == here.model.cache.lengths
        for slot in range(N_SLOTS + 1):
            assert_close(there.model.cache.data[:, :, slot], here.model.cache.data[:, :, slot])
        for name in ("n_drawn", "recent"):
            assert torch.equal(getattr(there.model.sampler, name).cpu()[:5], getattr(here.model.sampler, name)[:5])
    assert set(pretence.waits) - TEST == READ


def test_many_prompts_need_as_many_launches_and_transfers_as_two(there: Place, pretence: Pretence) -> None:
    tracks = there.open([DEFAULT] * 8)
    counted = []
    for some in (tracks[:2], tracks[2:]):
        feeds = [feed(20, 50, i) for i in range(len(some))]
        pretence.clear()
        there.runner.prefill(some, feeds)
        counted.append((pretence.launches.copy(), len(pretence.sent)))
    assert counted[0] == counted[1] and counted[0][0].total() > 50


def test_values_that_are_not_finite_stay_in_their_slot(here: Place, there: Place) -> None:
    ours, theirs = (place.open([DEFAULT] * 3) for place in (there, here))
    fed_together(there.runner, ours, FEEDS[:3])
    fed_alone(here.runner, theirs, FEEDS[:3])
    there.model.cache.data[:, :, 1, :, 2] = math.nan
    drawn, expected = fed_together(there.runner, ours, MORE[:3]), fed_alone(here.runner, theirs, MORE[:3])
    assert drawn == [expected[0], -1, expected[2]]
    for slot in (0, 2, *range(3, N_SLOTS + 1)):
        assert_close(there.model.cache.data[:, :, slot], here.model.cache.data[:, :, slot])


def test_a_prompt_without_room_or_with_an_unknown_id_changes_nothing(there: Place) -> None:
    tracks = there.open([DEFAULT] * 3)
    fed_together(there.runner, tracks, FEEDS[:3])
    before = there.model.cache.data.cpu().clone()
    too_long = feed(5, there.model.cache.max_len, 1)
    # Beyond the part that the first call feeds.
    unknown = LmFeed((*feed(5, PREFILL_CHUNK, 1).segments, TokenSegment(EmbeddingTable.SPEECH, (10**6,))))
    for bad, words in ((too_long, "shorter pieces"), (unknown, "speech token outside")):
        with pytest.raises(EngineError, match=words):
            there.runner.prefill(tracks, [MORE[0], bad, MORE[2]])
        assert torch.equal(there.model.cache.data.cpu(), before) and [track.n_fed for track in tracks] == [0, 0, 0]
    with pytest.raises(EngineError, match="shorter pieces"):
        lm_prefill.extend_batch(there.model.lm, there.model.cache, [0, 1], [MORE[0].segments, too_long.segments])
    assert torch.equal(there.model.cache.data.cpu(), before)
    with pytest.raises(ValueError, match="twice at once"):
        lm_prefill.extend_batch(there.model.lm, there.model.cache, [1, 1], [MORE[0].segments] * 2)


@pytest.mark.parametrize("at", ["layers", "sampler"])
def test_a_failed_prefill_batch_is_rolled_back(
    here: Place, there: Place, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (place.open([DEFAULT] * 3) for place in (there, here))
    fed_together(there.runner, ours, FEEDS[:3])
    fed_alone(here.runner, theirs, FEEDS[:3])
    model = there.model
    state = (model.cache.data, model.sampler.n_drawn, model.sampler.recent)
    before = [each.cpu().clone() for each in state]
    owner, name = (model.sampler, "sample_at") if at == "sampler" else (lm_prefill, "attend_padded")
    work: Callable[..., Tensor] = getattr(owner, name)

    def fails(*args: Any, **kwargs: Any) -> Tensor:
        work(*args, **kwargs)
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(RuntimeError, match="no memory"):
            there.runner.prefill(ours, MORE[:3])
    assert all(torch.equal(each.cpu(), was) for each, was in zip(state, before, strict=True))
    assert fed_together(there.runner, ours, MORE[:3]) == fed_alone(here.runner, theirs, MORE[:3])


# ------------------------------------------------------------------------------ encoder

PROFILES = [DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, FAST, UPSTREAM, DEFAULT]
TURNS: list[dict[int, int | None]] = [
    {0: None, 1: None, 2: None, 5: None, 6: None},
    {0: None, 1: None, 3: None, 6: None},
    {1: None, 0: 7, 2: None, 4: None, 5: 9},
    {1: None, 2: 3, 3: 28, 4: None, 7: 0},
    {1: 12, 4: 12},
]
"""Which tracks begin a block, and how many ids are left where it is the last one."""


def block_of(track: Track, seed: int, n_last: int | None = None) -> TokenBlock:
    """The next one, of random ids."""
    assert track.flow is not None
    ids = tuple(torch.randint(6561, (60,), generator=torch.Generator().manual_seed(seed)).tolist())
    if n_last is not None:
        return TokenBlock(ids[:n_last], None)
    n = track.profile.block_tokens(min(1, len(track.flow.steps_done)), track.prompt.n_flow_tokens)
    return TokenBlock(ids[:n], ids[n : n + 3])


def begun(there: Place, here: Place, ours: list[Track], theirs: list[Track], turn: Mapping[int, int | None], seed: int
) -> tuple[list[FlowBlock], list[FlowBlock]]:
    """The next blocks of some tracks: together on the device, one by one on the CPU."""
    blocks = [block_of(ours[i], 100 * seed + i, n_last) for i, n_last in turn.items()]
    solves = there.runner.begin([ours[i] for i in turn], blocks)
    return solves, [here.runner.begin([theirs[i]], [block])[0] for i, block in zip(turn, blocks, strict=True)]


def assert_same_beginning(solve: FlowBlock, other: FlowBlock) -> None:
    for name in ("n_hidden", "n_tokens", "index", "k", "done"):
        assert getattr(solve, name) == getattr(other, name)
    assert torch.equal(solve.x.cpu(), other.x) and torch.equal(solve.cond.cpu(), other.cond)
    assert_close(solve.mu, other.mu)


def solved(runner: Runner, solves: Sequence[FlowBlock]) -> None:
    while left := [solve for solve in solves if not solve.done]:
        runner.step_blocks(left)


def test_blocks_that_begin_together_are_what_each_is_alone(here: Place, there: Place, pretence: Pretence) -> None:
    """Of different pasts, voices, lengths and profiles; some are their streams' last ones, one says nothing."""
    ours, theirs = (place.open(PROFILES) for place in (there, here))
    pretence.clear()
    for seed, turn in enumerate(TURNS):
        solves, others = begun(there, here, ours, theirs, turn, seed)
        for solve, other in zip(solves, others, strict=True):
            assert_same_beginning(solve, other)
        solved(there.runner, solves)
        solved(here.runner, others)
        for solve, other in zip(solves, others, strict=True):
            assert_close(solve.mel(), other.mel())
    assert set(pretence.waits) <= TEST


def test_many_blocks_begin_with_as_many_launches_and_transfers_as_two(there: Place, pretence: Pretence) -> None:
    tracks = there.open([DEFAULT] * 8, voices=["prompted"])
    counted = []
    for turn in range(2):  # without a past of their own, and with one
        for some in (tracks[:2], tracks[2:]):
            blocks = [block_of(track, turn) for track in some]
            pretence.clear()
            solves = there.runner.begin(some, blocks)
            counted.append((pretence.launches.copy(), len(pretence.sent)))
            solved(there.runner, solves)
    assert counted[0] == counted[1] and counted[2] == counted[3] and counted[0][0].total() > 50


def test_what_is_no_number_in_one_stream_reaches_no_other_nor_who_comes_after(here: Place, there: Place) -> None:
    ours, theirs = (place.open([DEFAULT] * 4) for place in (there, here))
    solves, others = begun(there, here, ours, theirs, {0: None, 1: None, 2: None}, 0)
    solved(there.runner, solves)
    solved(here.runner, others)
    pool = backend_of(there.model.flow).pages
    assert ours[1].flow is not None
    page = ours[1].flow.table.pages[-1]
    assert isinstance(page, DevicePage)
    index, row = page.index, page.encoder_row
    for whole in (*(kv[:, :, row] for kv in pool.encoder.kv), pool.encoder.contexts[row]):
        whole.fill_(math.nan)
    del page
    solves, others = begun(there, here, ours, theirs, {0: None, 1: None, 2: None}, 1)
    assert solves[1].mu.isnan().any().cpu()
    for i in (0, 2):
        assert_same_beginning(solves[i], others[i])
    n_free = len(pool.free)
    ours[1].flow = None
    del solves
    assert len(pool.free) == n_free + 2
    pool.free[:] = [*(i for i in pool.free if i != index), index]  # the next to be taken
    solves, others = begun(there, here, ours, theirs, {3: None}, 2)
    assert index not in pool.free
    assert_same_beginning(solves[0], others[0])


def test_a_batch_of_beginnings_that_fails_is_as_if_it_had_not_been(
    here: Place, there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (place.open([DEFAULT] * 4, voices=["prompted"]) for place in (there, here))
    solves, others = begun(there, here, ours, theirs, {0: None}, 0)
    solved(there.runner, solves)
    solved(here.runner, others)
    assert ours[3].flow is not None
    before = len(backend_of(there.model.flow).pages.free)
    ours[3].flow.finished = True
    with pytest.raises(ValueError, match="is finished"):
        there.runner.begin(ours, [block_of(track, 1) for track in ours])
    encoder = there.model.flow.encoder
    mu = encoder.mu
    calls: list[Tensor] = []

    def fails_at_the_second(h: Tensor) -> Tensor:
        calls.append(h)
        if len(calls) == 2:
            raise RuntimeError("no memory")
        return mu(h)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "mu", fails_at_the_second)
        blocks = [block_of(track, 1, n_last) for track, n_last in zip(ours[:3], (None, None, 9), strict=True)]
        with pytest.raises(RuntimeError, match="no memory"):
            there.runner.begin(ours[:3], blocks)
    assert len(backend_of(there.model.flow).pages.free) == before
    for track, other in zip(ours[:3], theirs[:3], strict=True):
        assert track.flow is not None and other.flow is not None and not track.flow.finished
        assert track.flow.table.n_tokens == other.flow.table.n_tokens and track.flow.steps_done == other.flow.steps_done
    solves, others = begun(there, here, ours, theirs, {0: None, 1: None, 2: 9}, 1)
    for solve, other in zip(solves, others, strict=True):
        assert_same_beginning(solve, other)
