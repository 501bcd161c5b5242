"""All calls' utterances in one core: no stream changes another, in any order of steps and with any failure."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from speaking import (
    FEW_EULER,
    N_SLOTS,
    NEIGHBOUR,
    REQUESTS,
    SENTENCE,
    TOGETHER,
    UNBOUNDED,
    VOICES,
    Rig,
    Stepped,
    Watched,
    check_all,
    n_empty,
    pcm,
    say_all,
    spoken,
)

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import (
    AudioTaken,
    CancelOrder,
    Event,
    SubmitUtterance,
    UtteranceBegan,
    UtteranceEnded,
)
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane, Stage, lanes
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.settings import AheadLimits
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.clock import NS_PER_MS
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

WAIT_S = 60.0


# ---------------------------------------------------------------------------- neighbours


@pytest.mark.parametrize("seed", range(3))
def test_samples_depend_neither_on_the_lanes_nor_on_other_streams(
    rig: Rig, alone: list[Pcm], seed: int
) -> None:
    """Lanes in random order, utterances that begin and are cancelled at random times, slow listeners."""
    order = random.Random(seed)
    stepped = Stepped(rig, ahead=AheadLimits(audio_ms=400, n_tokens=order.choice([5, 25, 60])))
    keys: list[int] = []
    others: list[int] = []
    for _ in range(10**6):
        stepped.now_ns += order.randrange(10**7)
        if len(keys) < len(REQUESTS) and order.random() < 0.05:
            i = len(keys)
            keys.append(stepped.say(REQUESTS[i], VOICES[i], stepped.now_ns + order.randrange(10**9)))
        if order.random() < 0.03:
            others.append(stepped.say(Request(SENTENCE, order.randrange(99)), order.choice(VOICES)))
        if others and order.random() < 0.05:
            stepped.cancel(order.choice(others))
        has_stepped = stepped.core.step(order.choice(list(Lane)))
        if order.random() < 0.3 or not has_stepped:
            for key in [*keys, *others]:
                stepped.take(key)
        if len(keys) == len(REQUESTS) and set(keys) <= set(stepped.ended):
            break
    for key in others:
        stepped.cancel(key)
    stepped.run()
    check_all(stepped, keys, alone)
    assert set(others) <= set(stepped.ended) and all(stepped.ended[key].error is None for key in others)


def test_in_batches_of_all_streams_each_is_as_alone(rig: Rig, alone: list[Pcm]) -> None:
    runner = Watched(rig, TOGETHER)
    stepped = Stepped(rig, runner=runner)
    keys = say_all(stepped)
    stepped.run()
    check_all(stepped, keys, alone)
    for stage in ("decode", "flow"):
        assert max(len(slots) for name, slots in runner.calls if name == stage) == N_SLOTS


class ThreadedCore:
    """A core that threads step, and the events of its utterances."""

    def __init__(self, rig: Rig, ahead: AheadLimits = UNBOUNDED) -> None:
        self.changed = threading.Condition()
        self.heard: dict[int, list[Chunk]] = {}
        self.ended: dict[int, UtteranceEnded] = {}
        self.takes = True
        self.core = Core(rig.runner, rig.features, DEFAULT, self._tell, ahead=ahead)

    @contextmanager
    def served(self, n_lanes: int) -> Iterator[None]:
        threads = [threading.Thread(target=self.core.serve, args=(lane,)) for lane in lanes(n_lanes)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.core.close()
            for thread in threads:
                thread.join(WAIT_S)
            assert not any(thread.is_alive() for thread in threads)

    def say(self, key: int, request: Request, voice: str = "preset") -> None:
        self.heard[key] = []
        self.core.receive(SubmitUtterance(key, voice, request))

    def wait(self, keys: Sequence[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(keys) <= set(self.ended), WAIT_S)

    def _tell(self, key: int, event: Event) -> None:
        with self.changed:
            assert key not in self.ended, "something came after the end"
            match event:
                case UtteranceEnded():
                    self.ended[key] = event
                case Chunk():
                    self.heard[key].append(event)
                case UtteranceBegan():
                    pass
            self.changed.notify_all()


@pytest.mark.parametrize("n_lanes", [1, 2, 3])
def test_threads_that_step_at_once_change_no_sample(rig: Rig, alone: list[Pcm], n_lanes: int) -> None:
    threaded = ThreadedCore(rig)
    with threaded.served(n_lanes):
        for n in range(2):
            # More than there are slots, and then in a core that has spoken.
            some = [REQUESTS, REQUESTS[1:3]][n]
            voices, expected_ones = [VOICES, VOICES[1:3]][n], [alone, alone[1:3]][n]
            keys = list(range(4 * n, 4 * n + len(some)))
            for key, request, voice in zip(keys, some, voices, strict=True):
                threaded.say(key, request, voice)
            threaded.say(100 + n, Request(SENTENCE))
            threaded.core.receive(CancelOrder(100 + n))
            threaded.wait([*keys, 100 + n])
            for key, expected in zip(keys, expected_ones, strict=True):
                assert threaded.ended[key].error is None
                np.testing.assert_array_equal(pcm(threaded.heard[key]), expected)
            assert n_empty(rig.model.cache) == threaded.core.slots.n_free == N_SLOTS
            assert threaded.core.oldest_step_ns() is None or threaded.core._jobs == {}


def test_turns_that_begin_together_share_their_first_batch(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that is idle would feed the first prompt by itself, and the others would wait for it."""
    submit = Core._submit

    def slowly(core: Core, order: SubmitUtterance) -> None:
        submit(core, order)
        time.sleep(0.05)

    monkeypatch.setattr(Core, "_submit", slowly)
    threaded = ThreadedCore(rig)
    threaded.core.runner = runner = Watched(rig, TOGETHER)
    threaded.core._batches._runner, threaded.core._idle = runner, runner.idle_lanes
    keys = [*range(N_SLOTS)]
    for name in dict.fromkeys(VOICES):
        threaded.core.voices.get(name)
    for build in threaded.core.voices.builds:
        threaded.core.voices.finish(build, rig.kept_prompt(build.name))
    with threaded.served(1):
        threaded.heard.update((key, []) for key in keys)
        threaded.core.receive_all([SubmitUtterance(key, "preset", Request("Yes.", 1)) for key in keys])
        threaded.wait(keys)
    assert next(slots for name, slots in runner.calls if name == "prefill") == tuple(range(N_SLOTS))


@pytest.mark.parametrize("seed", range(4))
def test_two_lanes_compute_two_blocks_of_a_stream_at_once(rig: Rig, alone: list[Pcm], seed: int) -> None:
    """Steps are found before earlier ones are computed, as with threads. The samples are the same in any order."""
    order = random.Random(seed)
    stepped = Stepped(rig)
    keys = say_all(stepped)
    core, found, most = stepped.core, [], 0
    while True:
        step = core._find(order.choice(list(Lane))) if len(found) < 3 else None
        if step:
            found.append(step)
        elif not found:
            break
        most = max(most, *(sum(block.is_busy for block in job.blocks) for job in core._jobs.values()), 0)
        if not step or order.random() < 0.4:
            core._compute(found.pop(order.randrange(len(found))))
    assert most == 2
    check_all(stepped, keys, alone)


def test_ten_thousand_cancelled_utterances_leave_nothing(rig: Rig, alone: list[Pcm]) -> None:
    """They are cancelled before they begin or just after. Two lanes serve them; another utterance is unchanged."""
    threaded = ThreadedCore(rig)
    order = random.Random(1)
    with threaded.served(2):
        for key in range(10_000):
            threaded.say(key, Request("Yes.", 3), "prompted")
            threaded.core.receive(CancelOrder(key if order.random() < 0.7 else order.randrange(key + 1)))
        threaded.say(10_000, REQUESTS[2], VOICES[2])
        for key in range(10_000):
            threaded.core.receive(CancelOrder(key))
        threaded.wait(range(10_001))
    np.testing.assert_array_equal(pcm(threaded.heard[10_000]), alone[2])
    assert all(ended.error is None for ended in threaded.ended.values())
    assert threaded.core._jobs == {} and n_empty(rig.model.cache) == threaded.core.slots.n_free == N_SLOTS


def test_streams_that_wait_for_a_slot_are_served_by_urgency(rig: Rig) -> None:
    """No stream waits for ever. The one with the earliest deadline is next."""
    stepped = Stepped(rig)
    deadlines = [1, 2, 3, 60, 40, 50]
    keys = [stepped.say(Request("It left.", 7), "preset", deadline_ns) for deadline_ns in deadlines]
    stepped.run()
    assert stepped.began == [key for _, key in sorted(zip(deadlines, keys, strict=True))]
    for key in keys:
        np.testing.assert_array_equal(stepped.pcm(key), stepped.pcm(keys[0]))
    assert stepped.is_empty()


@pytest.mark.parametrize("n_files", [1, 2 * N_SLOTS])
def test_a_call_does_not_wait_for_files(rig: Rig, n_files: int) -> None:
    """Requests of HTTP that take all audio at once. A call's first audio needs as many steps beside many as beside one,
    and after it all files are spoken."""
    stepped = Stepped(rig)
    stepped.say(Request("Yes.", 3), "preset")
    stepped.run()
    later_ns = stepped.now_ns + 10_000 * NS_PER_MS
    of_file = Request("Thank you for calling.", 3)
    files = [stepped.say(of_file, "preset", later_ns, can_wait=True) for _ in range(n_files)]
    stepped.run(12, taking=files)
    call = stepped.say(Request("Yes.", 3), "preset", stepped.now_ns)
    n_steps = 0
    while not stepped.heard[call]:
        n_steps += stepped.run(1, taking=files)
    assert n_steps < 50
    stepped.run(taking=files)
    for key in files:
        np.testing.assert_array_equal(stepped.pcm(key), stepped.pcm(files[0]))
    assert stepped.is_empty()


def test_an_active_stream_precedes_a_new_one_only_if_it_would_underrun(rig: Rig) -> None:
    """A stream whose previous sentence is or was heard is not new: it is due when that sentence ends, or now."""
    cases = ((900, None, False, 1), (100, None, False, 0), (100, 900, False, 0), (100, 50, False, 1))
    for left_ms, follows_ms, follows, expected in (*cases, (100, None, True, 1)):
        runner = Watched(rig)
        stepped = Stepped(rig, runner=runner, ahead=AheadLimits(audio_ms=1)).have_voices("prompted")
        heard = stepped.say(Request(f"{SENTENCE} {NEIGHBOUR}", 3))
        stepped.run()
        assert stepped.heard[heard] and heard not in stepped.ended
        stepped.take(heard)
        job = stepped.core._jobs[heard]
        assert job.dry_ns is not None
        stepped.now_ns = job.dry_ns - left_ms * NS_PER_MS
        deadline_ns = 0 if follows_ms is None else stepped.now_ns + follows_ms * NS_PER_MS
        asks = stepped.say(Request("Yes.", 3), "prompted", deadline_ns, follows=follows)
        runner.calls.clear()
        stepped.core.step()
        slots = [stepped.core._jobs[key].stream.slot for key in (heard, asks)]
        first = runner.calls[0][1]
        for key in (heard, asks):
            stepped.cancel(key)
        stepped.run()
        assert stepped.is_empty() and first == (slots[expected],), (left_ms, follows_ms, follows)


def test_a_stream_whose_listener_takes_nothing_delays_no_new_stream(rig: Rig) -> None:
    """By the clock its audio is over. It has no pending work, because its listener has not taken the audio."""
    runner = Watched(rig)
    stepped = Stepped(rig, runner=runner, ahead=AheadLimits(audio_ms=1))
    stalled = stepped.say(Request(f"{SENTENCE} {NEIGHBOUR}", 3))
    stepped.run()
    job = stepped.core._jobs[stalled]
    assert job.dry_ns is not None and stepped.heard[stalled]
    stepped.now_ns = job.dry_ns + 10**10
    per = stepped.core.ahead, runner.n_flow_steps
    assert job.pending_work(*per) is None
    stepped.take(stalled)
    owed = job.pending_work(*per)
    assert owed is not None and owed.due_ns == job.dry_ns and owed.n_batches[2:] == (FEW_EULER, 1)
    stepped.cancel(stalled)
    stepped.run()
    assert stepped.is_empty()


def test_a_feed_that_fails_while_streams_are_counted_ends_only_its_stream(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has enough ids ahead, so only `is_drawing` asks for its feed."""
    stepped = Stepped(rig, ahead=AheadLimits(audio_ms=1, n_tokens=0))
    broken, other = stepped.say(Request(f"{SENTENCE} {NEIGHBOUR}", 3)), stepped.say(Request("Yes.", 3))
    job = stepped.core._jobs[broken]
    while (piece := job.stream.piece) is None or piece.n_spare < 0 or piece._feed is not None:
        assert stepped.core.step()

    def failing() -> None:
        raise RuntimeError("no such word")

    monkeypatch.setattr(piece.decoding, "next_feed", failing)
    stepped.run(taking=[other])
    error = stepped.ended[broken].error
    assert error is not None and "no such word" in str(error)
    assert stepped.ended[other].error is None and stepped.is_empty()
    np.testing.assert_array_equal(stepped.pcm(other), spoken(rig, Request("Yes.", 3)))


def test_the_cost_of_a_block_does_not_count_voices(rig: Rig) -> None:
    stepped = Stepped(rig)
    ticks = itertools.count(1, 1000)
    stepped.core._now_ns = lambda: next(ticks)
    stepped.say(Request("Yes."))
    while Stage.PREFILL not in stepped.core.counters.costs:
        assert stepped.core.step()
    assert stepped.core.counters.snapshot()["flow_batches"] > 0, "of the voice"
    assert Stage.FLOW not in stepped.core.counters.costs
    stepped.run()
    assert stepped.core.counters.costs[Stage.FLOW].batch_ns > 0 and stepped.is_empty()


# -------------------------------------------------------------------------------- ahead


def test_no_stream_works_far_ahead_of_its_listener(rig: Rig) -> None:
    """At most a block of audio beyond the limit, and the ids that the next block needs."""
    ahead = AheadLimits(audio_ms=1500, n_tokens=10)
    stepped = Stepped(rig, ahead=ahead)
    request = Request("It left on Tuesday.")  # 3.5 s of speech
    key = stepped.say(request)
    n_taken = n_rests = 0
    whole = spoken(rig, request)
    while True:
        stepped.run()
        if key in stepped.ended:
            break
        n_rests += 1
        made_ms = 1000 * (len(pcm(stepped.heard[key])) - n_taken) / 24_000
        assert ahead.audio_ms <= made_ms < ahead.audio_ms + 4000 + 1000, "a block is four seconds at most"
        piece = stepped.core._jobs[key].stream.piece
        assert piece is not None and piece.n_spare <= ahead.n_tokens
        assert piece.n_spare == ahead.n_tokens or piece.decoding.done, "it stops too early"
        n_taken += 2400
        stepped.core.receive(AudioTaken(key, 2400))
    assert n_rests > 10
    np.testing.assert_array_equal(stepped.pcm(key), whole)
    assert stepped.is_empty()


def test_taken_audio_wakes_an_idle_lane(rig: Rig) -> None:
    """A listener that takes audio again is served by idle threads."""
    threaded = ThreadedCore(rig, ahead=AheadLimits(audio_ms=1))
    whole = spoken(rig, Request(SENTENCE), "preset")
    taken: list[Chunk] = []
    with threaded.served(2):
        threaded.say(0, Request(SENTENCE))

        def is_news() -> bool:
            return 0 in threaded.ended or len(threaded.heard[0]) > len(taken)

        while 0 not in threaded.ended:
            with threaded.changed:
                assert threaded.changed.wait_for(is_news, WAIT_S)
                new = threaded.heard[0][len(taken) :]
            threaded.core.receive(AudioTaken(0, len(pcm(new))))
            taken += new
    np.testing.assert_array_equal(pcm(threaded.heard[0]), whole)


def test_orders_for_ended_utterances_have_no_effect(rig: Rig) -> None:
    stepped = Stepped(rig)
    key = stepped.say(Request("no"))
    stepped.run()
    for order in (CancelOrder(key), AudioTaken(key, 5), CancelOrder(99), AudioTaken(99, 1)):
        stepped.core.receive(order)
    stepped.push(key, "more", last=True)
    assert stepped.run() == 0 and len(stepped.pcm(key)) and stepped.is_empty()


# ----------------------------------------------------------------------------------- end


def test_close_ends_all_utterances_with_an_error_and_frees_everything(rig: Rig) -> None:
    stepped = Stepped(rig)
    keys = [*say_all(stepped), stepped.say(Request("Well", grows=True), "preset")]
    while not any(stepped.heard[key] for key in keys):
        assert stepped.core.step()
    assert stepped.core.slots.n_free == 0 and not set(keys) & set(stepped.ended)
    assert any(stepped.heard[key] for key in keys)
    stepped.core.close()
    stepped.core.close()
    assert not stepped.core.step()
    stepped.core.end_all()
    for key in keys:
        with pytest.raises(EngineError, match="was closed"):
            stepped.pcm(key)
    assert stepped.is_empty() and rig.model.cache.data[:, :, :N_SLOTS].count_nonzero() == 0
    late = stepped.say(Request(SENTENCE))
    with pytest.raises(EngineError, match="closed"):
        stepped.pcm(late)
    stepped.core.end_all()


def test_closed_while_threads_step(rig: Rig) -> None:
    threaded = ThreadedCore(rig)
    with threaded.served(2):
        for key, request in enumerate(REQUESTS * 2):
            threaded.say(key, Request(request.text * 20, key))
        with threaded.changed:
            assert threaded.changed.wait_for(lambda: any(threaded.heard.values()), WAIT_S)
    threaded.core.end_all()
    assert all("was closed" in str(threaded.ended[key].error) for key in threaded.heard)
    assert n_empty(rig.model.cache) == threaded.core.slots.n_free == N_SLOTS


def test_an_ended_utterance_leaves_nothing(rig: Rig) -> None:
    """Neither in an idle core nor in one of its lanes, and without the garbage collector."""
    threaded = ThreadedCore(rig)
    gc.collect()
    gc.disable()
    try:
        with threaded.served(2):
            threaded.say(0, Request(SENTENCE))
            with threaded.changed:
                assert threaded.changed.wait_for(lambda: threaded.heard[0], WAIT_S)
                job = threaded.core._jobs[0]
                left = [weakref.ref(part) for part in (job.stream, job.stream.piece) if part is not None]
                del job
            assert len(left) == 2
            threaded.wait([0])
            threaded.say(1, Request("no"))
            threaded.wait([1])
            assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


def test_computed_batches_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.runner, "n_run_ahead", 1)
    stepped = Stepped(rig)
    stepped.say(Request(SENTENCE))
    n_steps = stepped.run()
    counters = stepped.core.counters.snapshot()
    assert counters["steps"] == n_steps
    assert counters["decode_rows"] == counters["decode_batches"] == int(rig.model.sampler.n_drawn[0]) - 1
    assert counters["prefill_batches"] == 1 and counters["vocode_batches"] >= 2
    assert counters["flow_rows"] % FEW_EULER == 0
    key = stepped.say(Request(SENTENCE))
    stepped.cancel(key)
    stepped.run()
    assert stepped.core.counters.snapshot()["cancelled"] == 1
