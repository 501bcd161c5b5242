"""First audio is held back until it lasts for as long as the next audio needs: no gap follows the first sounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from few_steps import FEW_EULER
from speaking import N_SLOTS, SENTENCE, TOGETHER, Rig, Stepped, Watched

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.core import core
from telephony_tts.engines.cosyvoice2.core.orders import Event
from telephony_tts.engines.cosyvoice2.core.scheduler import BatchCost, Lane, OwedWork, PendingWork, Stage
from telephony_tts.engines.cosyvoice2.core.stream import OpenBlock
from telephony_tts.engines.cosyvoice2.device import runner
from telephony_tts.engines.cosyvoice2.device.runner import Sound
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.clock import NS_PER_MS

pytestmark = pytest.mark.slow


STEP_MS = 200
LONG = f"{SENTENCE} {SENTENCE} {SENTENCE}"
"""Of more blocks than the first ones."""


class FixedPrices(dict[Stage, BatchCost]):
    """Prices that no measurement changes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


@pytest.fixture
def stepped(rig: Rig) -> Iterator[Callable[..., Stepped]]:
    """Makes cores on which a batch of a stage takes so many milliseconds. Their utterances end with the test."""
    cores: list[Stepped] = []

    def make(**ms: float) -> Stepped:
        it = Stepped(rig).have_voices("prompted")
        prices = {Stage[name.upper()]: BatchCost(cost * NS_PER_MS, cost * NS_PER_MS) for name, cost in ms.items()}
        it.core.counters.costs = FixedPrices(prices)
        cores.append(it)
        return it

    yield make
    for it in cores:
        for key in it.heard:
            it.cancel(key)
        it.run()


def n_left(block: OpenBlock) -> int:
    """Euler steps that the block still needs."""
    return FEW_EULER if block.flow_block is None else block.flow_block.n_steps - block.flow_block.k


def made_ms(it: Stepped, key: int) -> float:
    """Audio that is made, whether or not it was given out."""
    job = it.core._jobs.get(key)
    return job.n_made / 24.0 if job is not None else sum(len(chunk.pcm) for chunk in it.heard[key]) / 24.0


def test_audio_that_lasts_is_given_out_at_once(stepped: Callable[..., Stepped]) -> None:
    it = stepped(flow=1)
    key = it.say(Request(SENTENCE))
    while not made_ms(it, key):
        assert it.core.step()
    assert it.heard[key]


def test_audio_waits_until_the_rest_of_the_next_is_shorter(stepped: Callable[..., Stepped]) -> None:
    it = stepped(flow=STEP_MS)
    key = it.say(Request(SENTENCE))
    while not it.heard[key]:
        assert it.core.step()
    job = it.core._jobs[key]
    heard_ms = sum(len(chunk.pcm) for chunk in it.heard[key]) / 24.0
    flow_block = job.blocks[0].flow_block
    assert flow_block is not None
    left_ms = (flow_block.n_steps - flow_block.k) * 1.15 * STEP_MS
    assert 0 < left_ms <= heard_ms < left_ms + 1.15 * STEP_MS


def test_audio_waits_for_the_next_if_that_takes_long_and_no_longer(stepped: Callable[..., Stepped]) -> None:
    it = stepped(vocode=60_000)
    key = it.say(Request(SENTENCE))
    first_ms = 0.0
    while not it.heard[key]:
        first_ms = first_ms or made_ms(it, key)
        assert it.core.step()
    assert sum(len(chunk.pcm) for chunk in it.heard[key]) / 24.0 > first_ms > 0


def test_nothing_is_lost_or_changed_by_waiting(stepped: Callable[..., Stepped]) -> None:
    audio = []
    for it in (stepped(vocode=60_000), stepped()):
        key = it.say(Request(SENTENCE, seed=5))
        it.run()
        assert it.ended[key].error is None
        audio.append(it.pcm(key))
    assert np.array_equal(*audio)


def test_audio_of_a_turn_that_is_heard_already_does_not_wait(stepped: Callable[..., Stepped]) -> None:
    it = stepped(vocode=60_000)
    key = it.say(Request(SENTENCE), follows=True)
    while not made_ms(it, key):
        assert it.core.step()
    assert it.heard[key]


def test_a_cancelled_utterance_gives_nothing_out(stepped: Callable[..., Stepped]) -> None:
    it = stepped(vocode=60_000)
    key = it.say(Request(SENTENCE))
    while not made_ms(it, key):
        assert it.core.step()
    it.cancel(key)
    it.run()
    assert it.ended[key].error is None and not it.heard[key]


def test_a_failed_utterance_gives_out_what_was_made(
    rig: Rig, stepped: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = stepped(vocode=60_000)
    key = it.say(Request(SENTENCE))
    while not made_ms(it, key):
        assert it.core.step()

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(rig.runner, "step_blocks", broken)
    monkeypatch.setattr(rig.runner, "decode", broken)
    it.run()
    assert "broken" in str(it.ended[key].error)
    assert it.heard[key]


@pytest.mark.parametrize("can_help", [True, False])
def test_a_lane_that_can_help_draws_no_ids_that_the_first_audio_does_not_need(
    rig: Rig, stepped: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch, can_help: bool
) -> None:
    """The first audio waits for the second block. Until that is made, ids are drawn for these two blocks only."""
    monkeypatch.setattr(rig.runner.idle_lanes, "can_help", can_help)
    it = stepped(vocode=60_000)
    key = it.say(Request(SENTENCE))
    most_spare = 0
    while not it.heard[key]:
        piece = it.core._jobs[key].stream.piece
        most_spare = max(most_spare, piece.n_spare if piece is not None else 0)
        assert it.core.step(Lane.TOKENS)
    assert (most_spare > 0) is not can_help
    it.run()
    assert it.ended[key].error is None


@pytest.mark.parametrize("n_callers", [1, 2])
def test_few_ids_are_drawn_while_all_lanes_compute_one_of_the_first_blocks(
    rig: Rig, stepped: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch, n_callers: int
) -> None:
    """None beside the first block, some beside the last step of the second and the last two steps of the third. With
    another caller no lane is without work, so ids are drawn as soon as they can be. Few lanes can help with the
    vocoder, so ids are drawn beside that."""
    monkeypatch.setattr(rig.runner.idle_lanes, "can_help", True)
    it = stepped()
    keys = [it.say(Request(LONG, seed=5)) for _ in range(n_callers)]
    beside_flow, beside_vocoder = set[tuple[int, int]](), set[int]()
    while (job := it.core._jobs.get(keys[0])) is not None:
        piece = job.stream.piece
        if piece is not None:
            n_voiced, has_mel, n_drawn = piece.n_voiced_blocks, piece.n_mel_parts > 0, piece.n_drawn
            steps = [n_left(block) for block in job.blocks]
        # A lane that draws ids if it can; the others' work only if it has no ids to draw.
        if not it.core.step(Lane.TOKENS):
            break
        if piece is not None and piece.n_drawn > n_drawn:
            beside_flow |= {(n_voiced, left) for left in steps}
            beside_vocoder |= {n_voiced} if has_mel and not steps else set()
    early = {(n, left) for n, left in beside_flow if n < 3 and left > n}
    assert bool(early) is (n_callers > 1)
    assert n_callers > 1 or ({1, 2, 3} == {n for n, _ in beside_flow if n < 4} and {0} <= beside_vocoder)
    it.run()
    assert all(it.ended[key].error is None for key in keys)


@pytest.mark.parametrize("can_help", [True, False])
def test_lanes_that_help_compute_one_block_after_the_other(
    rig: Rig, stepped: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch, can_help: bool
) -> None:
    """Other lanes compute two blocks at once."""
    monkeypatch.setattr(rig.runner.idle_lanes, "can_help", can_help)
    it = stepped()
    key = it.say(Request(LONG, seed=5))
    most_open = 0
    while (job := it.core._jobs.get(key)) is not None:
        # One lane computes a step of the flow, or what else there is, while another one makes five steps.
        with it.core._lock:
            step = it.core._find(Lane.AUDIO)
        for _ in range(5):
            it.core.step(Lane.TOKENS)
            most_open = max(most_open, len(job.blocks))
        it.core._compute(step)
    assert it.ended[key].error is None
    assert most_open == (1 if can_help else 2)


def test_audio_waits_for_what_another_stream_needs_before(stepped: Callable[..., Stepped]) -> None:
    """The same prices, alone and beside a stream that was heard before and underruns first."""
    heard_at = []
    for others in (0, 1):
        it = stepped(flow=30)
        key = it.say(Request(SENTENCE, seed=5))
        while not made_ms(it, key):
            assert it.core.step()
        job = it.core._jobs[key]
        work = PendingWork(0, (0, 0, 10, 1))
        costs = {Stage.FLOW: BatchCost(30 * NS_PER_MS, 30 * NS_PER_MS)}
        job.first_audio = job.first_audio or list(it.heard[key])
        owed = OwedWork([work] * (1 + others), costs)
        heard_at.append(job.may_be_heard(work, owed, 1, 0))
    assert heard_at == [True, False]


def test_ids_that_wait_change_no_sample(
    rig: Rig, stepped: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    audio = []
    for can_help in (True, False):
        monkeypatch.setattr(rig.runner.idle_lanes, "can_help", can_help)
        it = stepped()
        key = it.say(Request(SENTENCE, seed=5))
        it.run()
        assert it.ended[key].error is None
        audio.append(it.pcm(key))
    assert np.array_equal(*audio)


@pytest.mark.parametrize("speed", [4.0, 5.0])
def test_audio_too_short_to_be_heard_does_not_stop_the_ids(
    rig: Rig, stepped: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    """The first block is then no longer than the lookahead of the vocoder, and the second gives the first audio."""
    monkeypatch.setattr(rig.runner.idle_lanes, "can_help", True)
    it = stepped(prefill=60_000, decode=60_000, flow=60_000, vocode=60_000)
    key = it.say(Request(f"{SENTENCE} {SENTENCE}", seed=5, speed=speed))
    it.run()
    assert it.ended[key].error is None and it.heard[key]


def test_first_audio_of_many_calls_is_given_out_as_it_comes_from_the_device(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Audio comes in several transfers. Before, first audio of all callers waited for the last one: 10 ms for 64."""
    monkeypatch.setattr(runner, "MOST_ROWS", 1)  # one transfer for each call
    it = Stepped(rig, runner=Watched(rig, TOGETHER)).have_voices("prompted")
    it.core.counters.costs = FixedPrices()
    order: list[tuple[str, int]] = []
    read, tell = Sound.read, it.core.tell

    def reads(sound: Sound) -> Pcm | None:
        order.append(("read", len([what for what, _ in order if what == "read"])))
        return read(sound)

    def tells(key: int, event: Event) -> None:
        if isinstance(event, Chunk):
            order.append(("heard", key))
        tell(key, event)

    n_computed: list[int] = []

    def owed(works: Sequence[PendingWork], costs: Any) -> OwedWork:
        n_computed.append([work.n_batches for work in works].count((0, 0, 0, 1)))
        return OwedWork(works, costs)

    monkeypatch.setattr(Sound, "read", reads)
    monkeypatch.setattr(core, "OwedWork", owed)
    it.core.tell = tells
    for _ in range(N_SLOTS):
        it.say(Request(SENTENCE, seed=5))
    while len(dict.fromkeys(key for what, key in order if what == "heard")) < N_SLOTS:
        assert it.core.step()
    expected = [each for key in range(N_SLOTS) for each in (("read", key), ("heard", key))]
    assert list(dict.fromkeys(order)) == expected
    # The device still computes the audio of the later transfers.
    assert n_computed == [2, 1, 0]


def test_a_call_with_unread_audio_counts_as_pending_work(stepped: Callable[..., Stepped]) -> None:
    """Its next block competes with other calls, so their first audio may be held back."""
    it = stepped()
    key = it.say(Request(LONG))
    job = it.core._jobs[key]
    while job.stream.voicing is None or not job.stream.voicing.n_mel_parts:
        assert it.core.step()
    per = it.core.ahead, FEW_EULER
    assert job.is_new and job.pending_work(*per) is None
    unread = job.pending_work(*per, True)
    assert unread is not None and unread.n_batches[Stage.FLOW] == FEW_EULER
