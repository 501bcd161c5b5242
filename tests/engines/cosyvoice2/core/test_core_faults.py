"""A failure in a core ends only the utterances that it was computed for; so does a voice that cannot be built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from speaking import (
    FEW_EULER,
    N_SLOTS,
    REQUESTS,
    SENTENCE,
    TOGETHER,
    VOICES,
    Rig,
    Stepped,
    Watched,
    check_all,
    say_all,
    spoken,
)
from torch import Tensor

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane
from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Sound, Track
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.errors import EngineError, UnknownVoice

pytestmark = pytest.mark.slow


def test_a_row_that_is_not_finite_ends_only_its_utterance(rig: Rig, alone: list[Pcm]) -> None:
    """Its keys and values are NaN. The streams in the same batches are unchanged."""
    runner = Watched(rig, TOGETHER)
    stepped = Stepped(rig, runner=runner)
    keys = say_all(stepped, 3)
    while not any(name == "decode" and len(slots) == 3 for name, slots in runner.calls):
        assert stepped.core.step()
    assert [stepped.core._jobs[key].stream.slot for key in keys] == [0, 1, 2]
    cache = rig.model.cache
    cache.data[:, :, 1, :, : cache.lengths[1]] = torch.nan
    stepped.run()
    with pytest.raises(EngineError, match="not finite"):
        stepped.pcm(keys[1])
    for i in (0, 2):
        np.testing.assert_array_equal(stepped.pcm(keys[i]), alone[i])
    assert stepped.is_empty() and cache.data[:, :, :N_SLOTS].count_nonzero() == 0


class Faulty(Runner):
    """Fails in one stage, for a batch of several or for one slot."""

    def __init__(self, rig: Rig, stage: str, nth: int, slot: int | None, error: BaseException) -> None:
        super().__init__(rig.model, batch_sizes=TOGETHER)
        self.stage, self.slot, self.error = stage, slot, error
        self.n_left = nth
        self.n_raised = 0
        self.is_on = False
        self._tracks: dict[int, Track] = {}

    def _maybe(self, stage: str, tracks: Sequence[Any]) -> None:
        if not self.is_on or stage != self.stage or (self.slot is None and len(tracks) < 2):
            return
        if self.slot is None or any(getattr(track, "slot", None) == self.slot for track in tracks):
            self.n_left -= 1
            if self.n_left < 0 and (self.slot is not None or self.n_left == -1):
                self.n_raised += 1
                raise self.error

    def prefill(self, tracks: Sequence[Track], feeds: Sequence[LmFeed]) -> list[DrawnIds | None]:
        self._maybe("prefill", tracks)
        return super().prefill(tracks, feeds)

    def decode(self, tracks: Sequence[Track], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        self._maybe("decode", tracks)
        return super().decode(tracks, rows)

    def begin(self, tracks: Sequence[Track], blocks: Any) -> list[FlowBlock]:
        self._maybe("begin", tracks)
        begun = super().begin(tracks, blocks)
        self._tracks.update((id(block), track) for block, track in zip(begun, tracks, strict=True))
        return begun

    def step_blocks(self, blocks: Sequence[FlowBlock], on_failure: OnFailure | None = None) -> None:
        tracks = [self._tracks.get(id(block)) for block in blocks]
        try:
            self._maybe("flow", tracks)
        except Exception as error:
            assert on_failure is not None
            at = next(i for i, track in enumerate(tracks) if track is not None and track.slot == self.slot)
            on_failure(at, error)
            others = [*blocks[:at], *blocks[at + 1 :]]
            super().step_blocks(others, lambda i, each: on_failure(i + (i >= at), each))
            return
        super().step_blocks(blocks, on_failure)

    def vocode(self, tracks: Sequence[Track], on_failure: OnFailure) -> list[Sound | None]:
        try:
            self._maybe("vocode", tracks)
        except Exception as error:
            at = next(i for i, track in enumerate(tracks) if track.slot == self.slot)
            on_failure(at, error)
            others = [*tracks[:at], *tracks[at + 1 :]]
            sounds = super().vocode(others, lambda i, each: on_failure(i + (i >= at), each))
            return [*sounds[:at], None, *sounds[at:]]
        return super().vocode(tracks, on_failure)

    def close(self, track: Track) -> None:
        super().close(track)
        self._maybe("close", [track])


def test_after_a_failed_batch_each_stream_is_tried_alone(rig: Rig, alone: list[Pcm]) -> None:
    for nth in (0, 3):
        runner = Faulty(rig, "decode", nth, None, RuntimeError("out of memory"))
        stepped = Stepped(rig, runner=runner)
        keys = say_all(stepped, 3)
        runner.is_on = True
        stepped.run()
        assert runner.n_raised == 1
        check_all(stepped, keys, alone[:3])


@pytest.mark.parametrize("stage", ["prefill", "decode", "begin", "flow", "vocode", "close"])
def test_a_stream_that_cannot_be_computed_fails_alone(rig: Rig, alone: list[Pcm], stage: str) -> None:
    """In any batch and for any reason. Its slot can be used again."""
    runner = Faulty(rig, stage, 0, 1, RuntimeError())
    stepped = Stepped(rig, runner=runner)
    for nth, error in enumerate([RuntimeError("out of memory"), EngineError("no room")]):
        runner.n_left, runner.n_raised, runner.error = nth, 0, error
        keys = say_all(stepped, 3)
        runner.is_on = True
        stepped.run()
        for i in (0, 2):
            np.testing.assert_array_equal(stepped.pcm(keys[i]), alone[i])
        if runner.n_raised and stage != "close":
            with pytest.raises(EngineError, match=str(error)):
                stepped.pcm(keys[1])
        else:
            np.testing.assert_array_equal(stepped.pcm(keys[1]), alone[1])
        assert runner.n_raised or nth
        assert stepped.is_empty()
        runner.is_on = False
    again = stepped.say(REQUESTS[1], VOICES[1])
    stepped.run()
    np.testing.assert_array_equal(stepped.pcm(again), alone[1])


@pytest.mark.parametrize(
    ("n_run_ahead", "faults"), [(1, [(0, 0), (1, 0), (2, 0)]), (4, [(0, 2), (1, 0), (2, 3)])], ids=["1", "4"]
)
def test_a_failed_decode_step_is_rolled_back(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch, n_run_ahead: int, faults: list[tuple[int, int]]
) -> None:
    """The sampling of one of three rows fails, each row's once. A fault is a row and the number of ids that it has
    drawn in that step. Rows before it had drawn their ids, and must not draw again."""
    sample, left = rig.model.sampler.sample, list(faults)
    n_drawn = Counter[tuple[int, int]]()

    def fails_at_faults(logits: Tensor, slots: Sequence[int], *how: Any) -> Tensor:
        ids = sample(logits, slots, *how)
        n_calls, (row,) = len(runner.calls), slots
        if runner.calls[-1] == ("decode", (0, 1, 2)) and left[:1] == [(row, n_drawn[n_calls, row])]:
            del left[0]
            raise RuntimeError("not this time")
        n_drawn[n_calls, row] += 1
        return ids

    runner = Watched(rig, TOGETHER)
    stepped = Stepped(rig, runner=runner)
    monkeypatch.setattr(runner, "n_run_ahead", n_run_ahead)
    keys = say_all(stepped, 3)
    monkeypatch.setattr(rig.model.sampler, "sample", fails_at_faults)
    stepped.run()
    assert left == []
    check_all(stepped, keys, alone[:3])


def test_a_slot_is_free_again_after_opening_it_failed(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    stepped = Stepped(rig)
    for where, name in ((rig.model.flow, "start"), (rig.model.sampler, "start")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fail)
            key = stepped.say(REQUESTS[0])
            stepped.run()
            with pytest.raises(EngineError, match="out of memory"):
                stepped.pcm(key)
        assert stepped.is_empty()
    keys = say_all(stepped, N_SLOTS)
    stepped.run()
    check_all(stepped, keys, alone[:N_SLOTS])


def test_audio_that_cannot_be_read_ends_its_utterance_and_no_lane(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device reports its failures when the host reads the results."""
    read, n_reads = Sound.read, 0

    def second_fails(self: Sound) -> Pcm | None:
        nonlocal n_reads
        n_reads += 1
        if n_reads == 2:
            raise RuntimeError("device-side assert")
        return read(self)

    stepped = Stepped(rig)
    keys = say_all(stepped, 3)
    monkeypatch.setattr(Sound, "read", second_fails)
    stepped.run()
    failed = [key for key in keys if stepped.ended[key].error is not None]
    assert len(failed) == 1 and "device-side assert" in str(stepped.ended[failed[0]].error)
    for key, expected in zip(keys, alone, strict=False):
        if key not in failed:
            np.testing.assert_array_equal(stepped.pcm(key), expected)
    assert stepped.is_empty()


# -------------------------------------------------------------------------------- voices


def test_a_voice_that_cannot_be_built_ends_the_waiting_utterances_and_is_tried_again(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = rig.model.flow.backend.step
    n_left = FEW_EULER - 2

    def last_but_one_fails(blocks: Sequence[FlowBlock]) -> None:
        nonlocal n_left
        (block,) = blocks
        if block.voice is not None:
            n_left -= 1
        if block.voice is not None and n_left < 0:
            raise RuntimeError("out of memory")
        step(blocks)

    stepped = Stepped(rig)
    other = stepped.say(REQUESTS[1], "preset")
    with monkeypatch.context() as patch:
        patch.setattr(rig.model.flow.backend, "step", last_but_one_fails)
        waiting = [stepped.say(Request(SENTENCE, seed), "prompted") for seed in (1, 2)]
        stepped.run()
    np.testing.assert_array_equal(stepped.pcm(other), alone[1])
    for key in waiting:
        with pytest.raises(EngineError, match="out of memory"):
            stepped.pcm(key)
    assert stepped.is_empty() and stepped.core.voices.builds == []
    next_one = stepped.say(REQUESTS[0], "prompted")
    stepped.run()
    np.testing.assert_array_equal(stepped.pcm(next_one), alone[0])


def test_other_streams_do_not_wait_for_a_voice(rig: Rig, alone: list[Pcm]) -> None:
    """A more urgent stream with a ready voice is served between the steps of another voice."""
    stepped = Stepped(rig)
    stepped.say(Request("no"), "preset")
    stepped.run()
    late = stepped.say(REQUESTS[0], "prompted", 10**15)
    urgent = stepped.say(REQUESTS[1], "preset", 1)
    stepped.run(FEW_EULER - 2, lambda: Lane.AUDIO)
    assert [build.work is not None for build in stepped.core.voices.builds] == [True], "it is on its way"
    stepped.until_heard(urgent, 1)
    assert late not in stepped.began
    stepped.run()
    np.testing.assert_array_equal(stepped.pcm(late), alone[0])
    np.testing.assert_array_equal(stepped.pcm(urgent), alone[1])


def test_a_voice_is_built_once_and_abandoned_with_the_last_waiting_utterance(rig: Rig) -> None:
    runner = Watched(rig)
    stepped = Stepped(rig, runner=runner)
    first, second = (stepped.say(Request(SENTENCE, seed), "prompted") for seed in (1, 2))
    stepped.run(1)
    (build,) = stepped.core.voices.builds
    stepped.cancel(first)
    stepped.run(2)
    assert stepped.core.voices.builds == [build] and build.work is not None
    k = build.work.flow_block.k
    stepped.cancel(second)
    stepped.run()
    assert stepped.core.voices.builds == [] and build.work.flow_block.k == k
    assert {first, second} == set(stepped.ended)
    runner.calls.clear()
    keys = [stepped.say(Request("no", seed), "prompted") for seed in (1, 2)]
    stepped.run()
    assert all(len(stepped.pcm(key)) for key in keys)
    assert sum(name == "flow" and not slots for name, slots in runner.calls) == FEW_EULER, "once, in all its steps"


def test_more_voices_than_are_kept_ready_can_all_be_used(rig: Rig) -> None:
    """Each new one replaces the one not used for longest, even if an utterance still waits for that one."""
    request = Request("Yes.", 3)
    alone = spoken(rig, request)
    features = {name: rig.features["prompted"] for name in "abcd"}
    for widths in (None, TOGETHER):
        stepped = Stepped(rig, features=features, n_ready_voices=1, runner=Watched(rig, widths))
        keys = [stepped.say(request, name) for name in "abcda"]
        stepped.run()
        for key in keys:
            np.testing.assert_array_equal(stepped.pcm(key), alone)
        assert len(stepped.core.voices._ready) == 1 and stepped.is_empty()


def test_an_unknown_voice_is_refused(rig: Rig, alone: list[Pcm]) -> None:
    stepped = Stepped(rig)
    unknown, known = stepped.say(Request(SENTENCE), "stranger"), stepped.say(REQUESTS[0])
    stepped.run()
    with pytest.raises(UnknownVoice, match="'stranger'; it has preset, prompted"):
        stepped.pcm(unknown)
    np.testing.assert_array_equal(stepped.pcm(known), alone[0])


def test_a_mel_that_cannot_be_kept_ends_its_utterance_and_no_lane(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_mel, n_calls = rig.runner.queue_mel, 0

    def broken(*arguments: Any) -> list[int]:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise RuntimeError("broken")
        return queue_mel(*arguments)

    stepped = Stepped(rig)
    keys = say_all(stepped, 2)
    monkeypatch.setattr(rig.runner, "queue_mel", broken)
    stepped.run()
    errors = [stepped.ended[key].error for key in keys]
    assert sum(error is not None and "broken" in str(error) for error in errors) == 1
    sound = next(i for i, error in enumerate(errors) if error is None)
    np.testing.assert_array_equal(stepped.pcm(keys[sound]), alone[sound])
    assert stepped.is_empty()
