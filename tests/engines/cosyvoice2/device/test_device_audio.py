"""Audio of many utterances in batches on a pretended accelerator equals the audio of each alone on a CPU."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from places import Place, assert_close
from pretend_device import Pretence
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device import runner
from telephony_tts.engines.cosyvoice2.device.runner import Sound, Track
from telephony_tts.engines.cosyvoice2.model import failures
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM

pytestmark = pytest.mark.slow

READ = {"border.py:read"}
"""Places where the host may wait for the device"""
TEST = {"a test"}
SPEEDS = (1.0, 1.3, 0.8)
JOINTS = [DEFAULT, DEFAULT, UPSTREAM, FAST, UPSTREAM, DEFAULT]
CHUNKS = ((50, 50, 50, 20, 50, 6), (50, 40, 50, 50, 24, 0), (50, 50, 28, 50, 50, 30), (14, 6, 3, 50, 11, 9))
"""Mel frames by turn and track. All tracks end with the last turn."""


def queue_mels(tracks: Sequence[Track], turn: int, device: torch.device) -> None:
    """Queues the next mel of each track."""
    for i, (track, n) in enumerate(zip(tracks, CHUNKS[turn], strict=False)):
        mel = torch.randn(1, 80, n, generator=torch.Generator().manual_seed(10 * turn + i))
        track.mels.append((mel.to(device), turn == len(CHUNKS) - 1))


def voiced(place: Place, tracks: Sequence[Track], turn: int) -> list[Sound | None]:
    """On a CPU each track alone; on a device in batches."""
    queue_mels(tracks, turn, place.model.device)
    return vocode(place, tracks)


def vocode(place: Place, tracks: Sequence[Track], failures: dict[int, str] | None = None) -> list[Sound | None]:
    def failed(i: int, error: Exception) -> None:
        assert failures is not None and i not in failures, error
        failures[i] = str(error)

    return place.runner.vocode(tracks, failed)


def audio_of(sound: Sound | None) -> Tensor:
    assert sound is not None
    return sound.audio.read()[sound.begin : sound.end]


def assert_sounds_alike(ours: Sequence[Sound | None], theirs: Sequence[Sound | None]) -> None:
    for sound, other in zip(ours, theirs, strict=True):
        assert sound is not None and other is not None
        assert (sound.n_frames, sound.is_last) == (other.n_frames, other.is_last)
        assert_close(audio_of(sound), audio_of(other))


def test_audio_of_many_equals_each_alone(here: Place, there: Place, pretence: Pretence) -> None:
    """With all kinds of joints and several speeds."""
    ours, theirs = (place.open(JOINTS, SPEEDS) for place in (there, here))
    pretence.clear()
    for turn in range(len(CHUNKS)):
        sounds = voiced(there, ours, turn)
        assert set(pretence.waits) - TEST <= READ
        assert_sounds_alike(sounds, voiced(here, theirs, turn))
    assert {sound.audio for sound in sounds if sound is not None} == {sounds[0].audio if sounds[0] else None}


def test_more_tracks_than_a_batch_come_back_in_several_transfers(
    here: Place, there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MOST_ROWS", 2)
    ours, theirs = (place.open(JOINTS, SPEEDS) for place in (there, here))
    for turn in range(len(CHUNKS)):
        sounds = voiced(there, ours, turn)
        assert_sounds_alike(sounds, voiced(here, theirs, turn))
        assert len({id(sound.audio) for sound in sounds if sound is not None}) > 1


def test_chunks_of_a_kind_are_one_batch() -> None:
    kinds = dict(enumerate("abababaac"))
    assert runner._in_batches(kinds, 2) == [[0, 2], [4, 6], [1, 3], [7, 5], [8]]
    assert runner._in_batches(kinds, 9) == [list(range(9))] and runner._in_batches({}, 2) == []


def test_a_device_convolves_multiples_of_8_channels_only(here: Place, there: Place, pretence: Pretence) -> None:
    """The pretended device as a GPU; a CPU keeps the channels of the checkpoint."""

    def channels(place: Place) -> set[int]:
        layers = place.model.vocoder._layers
        convs = [layers.pre, layers.post, *(stage.source_down for stage in layers.stages)]
        convs += [step.conv1 for stage in layers.stages for step in stage.source_block.steps]
        return {n for conv in convs for n in conv.weight.shape[:2]}

    assert all(n % 8 == 0 for n in channels(there)) and {4, 18} <= channels(here)


def test_steps_that_differ_in_one_thing_are_not_batched(here: Place, there: Place) -> None:
    """A first and a later chunk with the same frames in reach; a last and a middle chunk with the same new frames."""
    ours, theirs = (place.open([DEFAULT] * 4) for place in (there, here))
    for turn, chunks in enumerate(({1: 50, 2: 50, 3: 50}, {0: 50, 1: 15, 2: 45, 3: 50}, {0: 50, 3: 50})):
        for tracks, place in ((ours, there), (theirs, here)):
            for i, n in chunks.items():
                mel = torch.randn(1, 80, n, generator=torch.Generator().manual_seed(10 * turn + i))
                tracks[i].mels.append((mel.to(place.model.device), n == 45))
        sounds = vocode(there, [ours[i] for i in chunks])
        assert_sounds_alike(sounds, vocode(here, [theirs[i] for i in chunks]))


def test_the_network_needs_as_many_launches_for_many_joints_as_for_two(there: Place, pretence: Pretence) -> None:
    """Except for the copies of the state that each joint keeps between chunks."""
    tracks = there.open([DEFAULT] * 8)
    for turn in range(2):
        counted = []
        for some in (tracks[:2], tracks[2:]):
            for i, track in enumerate(some):
                mel = torch.randn(1, 80, 50, generator=torch.Generator().manual_seed(i))
                track.mels.append((mel.to(there.model.device), False))
            pretence.clear()
            vocode(there, some)
            counted.append((pretence.launches.copy(), len(pretence.sent)))
        (of_two, n_sent), (of_six, n_sent_of_six) = counted
        more = of_six - of_two
        assert n_sent == n_sent_of_six and of_two.total() > 300, turn
        assert set(more) == {"aten::cat", "aten::clone", "aten::_to_copy"} and more.total() == 4 * 4


def test_a_failure_is_reported_for_its_own_stream_only(
    here: Place, there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure in the network, one for too few frames before it, and one in stretching the mel."""
    profiles = [DEFAULT, DEFAULT, DEFAULT, UPSTREAM, DEFAULT]
    ours, theirs = (place.open(profiles, (1.0, 1.0, 1.0, 1.0, 1.3)) for place in (there, here))
    vocoder = there.model.vocoder
    decode = vocoder.decode

    taken: list[weakref.ref[Tensor]] = []

    def fails_for_one(mel: Tensor, *rest: Any) -> Tensor:
        assert all(ref() is None for ref in taken), "a batch that failed still holds its memory"
        much = torch.zeros(1)
        taken.append(weakref.ref(much))
        if float(mel.max().cpu()) > 100.0:
            raise RuntimeError("no memory for this one")
        return decode(mel, *rest)

    def no_stretch(*_: object, last: bool) -> Tensor:
        raise RuntimeError(f"no stretch, {last=}")

    # A captured log record would hold the error, and with it the memory.
    monkeypatch.setattr(failures.log, "warning", lambda *_, **__: None)
    monkeypatch.setattr(vocoder, "decode", fails_for_one)
    monkeypatch.setattr(ours[4].stretch, "push", no_stretch)
    for tracks, place in ((ours, there), (theirs, here)):
        queue_mels(tracks, 0, place.model.device)
        mel, _ = tracks[1].mels[0]
        mel[0, 3, 20] = 1000.0
    ours[3].mels[0] = (ours[3].mels[0][0][:, :, :7], False)
    failed: dict[int, str] = {}
    sounds = vocode(there, ours, failed)
    assert failed.keys() == {1, 3, 4} and [i for i, sound in enumerate(sounds) if sound is None] == [1, 3, 4]
    assert "for this one" in failed[1] and "8 mel frames" in failed[3] and "no stretch" in failed[4]
    good = [0, 2]
    assert_sounds_alike([sounds[i] for i in good], vocode(here, [theirs[i] for i in good]))
    for turn in (1, 2, 3):
        after = voiced(there, [ours[i] for i in good], turn)
        assert_sounds_alike(after, voiced(here, [theirs[i] for i in good], turn))


def test_non_finite_audio_is_reported_for_its_own_track_only(here: Place, there: Place) -> None:
    ours, theirs = (place.open([DEFAULT] * 3) for place in (there, here))
    for tracks, place in ((ours, there), (theirs, here)):
        queue_mels(tracks, 0, place.model.device)
    ours[1].mels[0][0][0, 3, 12] = math.nan
    sounds = vocode(there, ours)
    assert sounds[1] is not None and sounds[1].read() is None
    assert_sounds_alike(sounds[::2], vocode(here, theirs[::2]))
