"""What fails in a core fails the utterances it was computed for, and no others; voices that cannot be made likewise."""

from __future__ import annotations

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
)

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane
from telephony_tts.engines.cosyvoice2.device.runner import Drawn, Row, Runner, Sound, Track
from telephony_tts.engines.cosyvoice2.model.flow.stream import Solve
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.errors import EngineError, UnknownVoice

pytestmark = pytest.mark.slow


def test_a_row_without_numbers_ends_that_one_of_the_batch(rig: Rig, alone: list[Pcm]) -> None:
    """Its keys and values are no numbers any more; the others share its steps and hear nothing of it."""
    runner = Watched(rig, TOGETHER)
    stepped = Stepped(rig, runner=runner)
    keys = say_all(stepped, 3)
    while not any(name == "decode" and len(slots) == 3 for name, slots in runner.calls):
        assert stepped.core.step()
    assert [stepped.core._jobs[key].stream.slot for key in keys] == [0, 1, 2]
    cache = rig.model.cache
    cache.data[:, :, 1, :, : cache.lengths[1]] = torch.nan
    stepped.run()
    with pytest.raises(EngineError, match="out of range"):
        stepped.pcm(keys[1])
    for i in (0, 2):
        np.testing.assert_array_equal(stepped.pcm(keys[i]), alone[i])
    assert stepped.is_empty() and cache.data[:, :, :N_SLOTS].count_nonzero() == 0


class Faulty(Runner):
    """Fails where it is told to: for a batch of several, or for one slot."""

    def __init__(self, rig: Rig, stage: str, nth: int, slot: int | None, error: BaseException) -> None:
        super().__init__(rig.model, widths=TOGETHER)
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

    def prefill(self, track: Track, feed: Any) -> Drawn | None:
        self._maybe("prefill", [track])
        return super().prefill(track, feed)

    def decode(self, tracks: Sequence[Track], rows: Sequence[Row]) -> Drawn:
        self._maybe("decode", tracks)
        return super().decode(tracks, rows)

    def begin(self, track: Track, block: Any) -> Solve:
        self._maybe("begin", [track])
        solve = super().begin(track, block)
        self._tracks[id(solve)] = track
        return solve

    def flow(self, solves: Sequence[Solve]) -> None:
        self._maybe("flow", [self._tracks.get(id(solve)) for solve in solves])
        super().flow(solves)

    def vocode(self, tracks: Sequence[Track]) -> list[Sound]:
        self._maybe("vocode", tracks)
        return super().vocode(tracks)

    def close(self, track: Track) -> None:
        super().close(track)
        self._maybe("close", [track])


@pytest.mark.parametrize("stage", ["decode", "flow"])
def test_a_batch_that_fails_once_is_made_one_by_one(rig: Rig, alone: list[Pcm], stage: str) -> None:
    for nth in (0, 3):
        runner = Faulty(rig, stage, nth, None, RuntimeError("out of memory"))
        stepped = Stepped(rig, runner=runner)
        keys = say_all(stepped)
        runner.is_on = True
        stepped.run()
        assert runner.n_raised == 1
        check_all(stepped, keys, alone)


@pytest.mark.parametrize("stage", ["prefill", "decode", "begin", "flow", "vocode", "close"])
@pytest.mark.parametrize(("kind", "reason"), [(RuntimeError, "out of memory"), (EngineError, "no room")])
def test_who_cannot_be_computed_fails_alone(
    rig: Rig, alone: list[Pcm], stage: str, kind: type[Exception], reason: str
) -> None:
    """In every batch that it is part of, and for whichever reason; its slot can be had again."""
    for nth in (0, 1):
        error = kind(reason)
        runner = Faulty(rig, stage, nth, 1, error)
        stepped = Stepped(rig, runner=runner)
        keys = say_all(stepped, 3)
        runner.is_on = True
        stepped.run()
        for i in (0, 2):
            np.testing.assert_array_equal(stepped.pcm(keys[i]), alone[i])
        if runner.n_raised and stage != "close":
            with pytest.raises(EngineError, match=r"out of memory|no room"):
                stepped.pcm(keys[1])
        else:
            np.testing.assert_array_equal(stepped.pcm(keys[1]), alone[1])
        assert runner.n_raised or nth
        assert stepped.is_empty()
        runner.is_on = False
        again = stepped.say(REQUESTS[1], VOICES[1])
        stepped.run()
        np.testing.assert_array_equal(stepped.pcm(again), alone[1])


@pytest.mark.parametrize("n_run_ahead", [1, 4])
@pytest.mark.parametrize("nth", [30, 31, 32])
def test_half_a_decode_step_is_taken_back(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch, nth: int, n_run_ahead: int
) -> None:
    """The sampling of one of three rows fails, once. Others had drawn their ids already, and must not draw more."""
    sample, n_calls = rig.model.sampler.sample, 0

    def once(*args: Any, **named: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        ids = sample(*args, **named)
        if n_calls == nth:
            raise RuntimeError("not this time")
        return ids

    stepped = Stepped(rig, runner=Watched(rig, TOGETHER))
    monkeypatch.setattr(stepped.core.runner, "n_run_ahead", n_run_ahead)
    keys = say_all(stepped)
    monkeypatch.setattr(rig.model.sampler, "sample", once)
    stepped.run()
    assert n_calls > nth
    check_all(stepped, keys, alone)


def test_a_slot_that_cannot_be_opened_is_not_lost(
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
    keys = say_all(stepped)
    stepped.run()
    check_all(stepped, keys, alone)


def test_audio_that_cannot_be_read_fails_its_utterance_and_no_lane(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device computed shows its failures where the host waits for it."""
    read, n_reads = Sound.read, 0

    def second_fails(self: Sound) -> Pcm | None:
        nonlocal n_reads
        n_reads += 1
        if n_reads == 2:
            raise RuntimeError("device-side assert")
        return read(self)

    stepped = Stepped(rig)
    keys = say_all(stepped)
    monkeypatch.setattr(Sound, "read", second_fails)
    stepped.run()
    failed = [key for key in keys if stepped.ended[key].error is not None]
    assert len(failed) == 1 and "device-side assert" in str(stepped.ended[failed[0]].error)
    for key, expected in zip(keys, alone, strict=True):
        if key not in failed:
            np.testing.assert_array_equal(stepped.pcm(key), expected)
    assert stepped.is_empty()


# -------------------------------------------------------------------------------- voices


def test_a_voice_that_cannot_be_made_fails_those_who_wait_for_it_and_is_tried_again(
    rig: Rig, alone: list[Pcm], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = rig.model.flow.decoder.advance
    n_left = FEW_EULER - 2

    def last_but_one_fails(path: Any) -> None:
        nonlocal n_left
        if path.voice is not None:
            n_left -= 1
        if path.voice is not None and n_left < 0:
            raise RuntimeError("out of memory")
        advance(path)

    stepped = Stepped(rig)
    other = stepped.say(REQUESTS[1], "preset")
    with monkeypatch.context() as patch:
        patch.setattr(rig.model.flow.decoder, "advance", last_but_one_fails)
        waiting = [stepped.say(Request(SENTENCE, seed), "prompted") for seed in (1, 2)]
        stepped.run()
    np.testing.assert_array_equal(stepped.pcm(other), alone[1])
    for key in waiting:
        with pytest.raises(EngineError, match="out of memory"):
            stepped.pcm(key)
    assert stepped.is_empty() and stepped.core.voices.making == []
    next_one = stepped.say(REQUESTS[0], "prompted")
    stepped.run()
    np.testing.assert_array_equal(stepped.pcm(next_one), alone[0])


def test_who_else_speaks_does_not_wait_for_a_voice(rig: Rig, alone: list[Pcm]) -> None:
    """One that is ready is heard while another one is made, a step of it at a time, when it is the more urgent."""
    stepped = Stepped(rig)
    stepped.say(Request("no"), "preset")
    stepped.run()
    late = stepped.say(REQUESTS[0], "prompted", 10**15)
    urgent = stepped.say(REQUESTS[1], "preset", 1)
    stepped.run(FEW_EULER - 2, lambda: Lane.SOUND)
    assert [making.work is not None for making in stepped.core.voices.making] == [True], "it is on its way"
    stepped.until_heard(urgent, 1)
    assert late not in stepped.began
    stepped.run()
    np.testing.assert_array_equal(stepped.pcm(late), alone[0])
    np.testing.assert_array_equal(stepped.pcm(urgent), alone[1])


def test_a_voice_is_made_once_for_all_who_wait_and_given_up_with_the_last(rig: Rig) -> None:
    runner = Watched(rig)
    stepped = Stepped(rig, runner=runner)
    first, second = (stepped.say(Request(SENTENCE, seed), "prompted") for seed in (1, 2))
    stepped.run(1)
    (making,) = stepped.core.voices.making
    stepped.cancel(first)
    stepped.run(2)
    assert stepped.core.voices.making == [making] and making.work is not None
    k = making.work.solve.k
    stepped.cancel(second)
    stepped.run()
    assert stepped.core.voices.making == [] and making.work.solve.k == k
    assert {first, second} == set(stepped.ended)
    runner.calls.clear()
    keys = [stepped.say(Request("no", seed), "prompted") for seed in (1, 2)]
    stepped.run()
    assert all(len(stepped.pcm(key)) for key in keys)
    assert sum(name == "flow" and not slots for name, slots in runner.calls) == FEW_EULER, "once, in all its steps"


def test_more_voices_than_are_kept_are_all_spoken(rig: Rig, alone: list[Pcm]) -> None:
    """Each new one drives out the one not used for longest, also before who waits for it has it."""
    features = {name: rig.features["prompted"] for name in "abcde"}
    for widths in (None, TOGETHER):
        stepped = Stepped(rig, features=features, n_prompts=1, runner=Watched(rig, widths))
        keys = [stepped.say(REQUESTS[0], name) for name in "abcdeab"]
        stepped.run()
        for key in keys:
            np.testing.assert_array_equal(stepped.pcm(key), alone[0])
        assert len(stepped.core.voices._ready) == 1 and stepped.is_empty()


def test_a_voice_that_there_is_not(rig: Rig, alone: list[Pcm]) -> None:
    stepped = Stepped(rig)
    nobody, somebody = stepped.say(Request(SENTENCE), "nobody"), stepped.say(REQUESTS[0])
    stepped.run()
    with pytest.raises(UnknownVoice, match="'nobody'; it has preset, prompted"):
        stepped.pcm(nobody)
    np.testing.assert_array_equal(stepped.pcm(somebody), alone[0])
