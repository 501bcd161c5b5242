"""Chunks of the vocoder that are recorded as graphs: the audio of many utterances is that of each alone on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from places import Place
from pretend_device import Pretence
from test_device_audio import assert_sounds_alike, audio_of
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device import runner as device_runner
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Sound, Track
from telephony_tts.engines.cosyvoice2.model import failures
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.vocoder import recorded, steps
from telephony_tts.engines.cosyvoice2.model.vocoder.recorded import END_FRAMES, RecordedChunks
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import ChunkStep
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, UPSTREAM
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

N_PLANS = 3
"""The first chunk of 44 frames, that of 50 frames, and every later one."""


class Recorder:
    """Records as `Pretence` does, and counts recordings and replays."""

    def __init__(self, pretence: Pretence) -> None:
        self._pretence = pretence
        self.n_recorded = self.n_replayed = 0

    def __call__(self, work: Callable[[], object]) -> Callable[[], object]:
        replay = self._pretence.record(work)
        self.n_recorded += 1

        def counted() -> None:
            self.n_replayed += 1
            replay()

        return counted


class Recorded:
    """The model on the pretended device, with a runner of which only the vocoder is recorded."""

    def __init__(self, place: Place, pretence: Pretence, n_streams: int) -> None:
        self.recorder = Recorder(pretence)
        self.runner = Runner(place.model, graphs=Graphs(place.model.device, self.recorder))
        self.chunks = self.runner._recorded_chunks
        self.chunks.prepare(n_streams, device_runner.USUAL_FIRST_FRAMES, lambda: None)


@pytest.fixture(scope="module")
def recorded_once(device: Place) -> Recorded:
    """Recorded for up to 4 rows. Every test finds in its memory what the test before left there, as an engine does."""
    with torch.inference_mode(), Pretence() as pretence, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "END_FRAMES", range(0))
        return Recorded(device, pretence, 4)


@pytest.fixture
def four(recorded_once: Recorded) -> Recorded:
    assert recorded_once.recorder.n_recorded == 3 * N_PLANS and recorded_once.runner.graphs.records
    recorded_once.recorder.n_replayed = 0
    return recorded_once


def queue(tracks: Sequence[Track], sizes: Sequence[int], turn: int, *, last: bool = False) -> None:
    for i, (track, n) in enumerate(zip(tracks, sizes, strict=True)):
        mel = torch.randn(1, 80, n, generator=torch.Generator().manual_seed(100 * turn + i))
        track.mels.append((mel.to(track.joint.vocoder.device), last))


def vocoded(runner: Runner, tracks: Sequence[Track]) -> list[Sound | None]:
    def failed(i: int, error: Exception) -> None:
        raise AssertionError(i) from error

    return runner.vocode(tracks, failed)


def both(
    runner: Runner, here: Place, ours: Sequence[Track], theirs: Sequence[Track], sizes: Sequence[int], turn: int,
    *, last: bool = False,
) -> list[Sound | None]:
    """The next chunk of each: together with graphs, and one by one on the CPU, which must sound the same."""
    for tracks in (ours, theirs):
        queue(tracks, sizes, turn, last=last)
    sounds = vocoded(runner, ours)
    for sound, track in zip(sounds, theirs, strict=True):
        assert_sounds_alike([sound], vocoded(here.runner, [track]))
    return sounds


def test_whole_utterances_of_recorded_chunks_equal_each_alone(
    here: Place, there: Place, four: Recorded, pretence: Pretence
) -> None:
    ours, theirs = (place.open([DEFAULT] * 4) for place in (there, here))
    heard = []
    for turn in range(4):
        sizes = (44, 50, 50, 44) if turn == 0 else (50,) * 4
        heard.append(both(four.runner, here, ours, theirs, sizes, turn))
    assert four.recorder.n_replayed == 2 + 1 + 1 + 1
    # The same mel for other seeds, rows and positions: each has noise of its own.
    for tracks in (ours, theirs):
        for track in tracks:
            track.mels.append((torch.ones(1, 80, 50).to(track.joint.vocoder.device), False))
    order = [2, 0, 3]
    sounds = vocoded(four.runner, [ours[i] for i in order])
    assert_sounds_alike(sounds, [vocoded(here.runner, [theirs[i]])[0] for i in order])
    assert four.recorder.n_replayed == 6
    assert not torch.equal(audio_of(sounds[0]), audio_of(sounds[1]))
    four.recorder.n_replayed = 0
    both(four.runner, here, [ours[i] for i in order], [theirs[i] for i in order], (13, 50, 0), 9, last=True)
    assert four.recorder.n_replayed == 0, "the end of an utterance is not recorded"
    assert set(pretence.waits) - {"a test"} <= {"border.py:read"}


def test_streams_come_and_go_between_replays(here: Place, there: Place, four: Recorded) -> None:
    """The number of rows changes, and a stream is far ahead of another one in the same batch."""
    ours, theirs = (place.open([DEFAULT] * 3) for place in (there, here))
    both(four.runner, here, ours[:1], theirs[:1], (44,), 0)
    for turn in range(1, 4):
        both(four.runner, here, ours[:1], theirs[:1], (50,), turn)
    both(four.runner, here, ours[1:], theirs[1:], (44, 50), 4)
    both(four.runner, here, ours[::-1], theirs[::-1], (50, 50, 50), 5)
    both(four.runner, here, ours[1:2], theirs[1:2], (50,), 6)
    assert four.recorder.n_replayed == 1 + 3 + 2 + 1 + 1


def test_chunks_that_are_not_recorded_run_beside_those_that_are(here: Place, there: Place, four: Recorded) -> None:
    """Chunks of other lengths, other speeds, and another joint."""
    profiles = [DEFAULT, DEFAULT, UPSTREAM, DEFAULT]
    ours, theirs = (place.open(profiles, (1.0, 1.3, 1.0, 1.0)) for place in (there, here))
    both(four.runner, here, ours, theirs, (44, 44, 44, 31), 0)
    both(four.runner, here, ours, theirs, (50, 50, 50, 50), 1)
    both(four.runner, here, ours, theirs, (50, 50, 50, 7), 2)
    assert four.recorder.n_replayed == 3
    both(four.runner, here, ours, theirs, (50, 12, 20, 7), 3, last=True)


def test_more_streams_than_rows_are_cut_into_several_batches(
    here: Place, there: Place, pretence: Pretence, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (steps, recorded):
        monkeypatch.setattr(module, "MOST_ROWS", 2)
    two = Recorded(there, pretence, 8)
    assert two.recorder.n_recorded == 2 * N_PLANS
    ours, theirs = (place.open([DEFAULT] * 5) for place in (there, here))
    n_rows: list[int] = []
    stacked = ChunkStep.stacked

    def counted(batch: Sequence[ChunkStep]) -> list[Tensor]:
        n_rows.append(len(batch))
        return stacked(batch)

    monkeypatch.setattr(ChunkStep, "stacked", counted)
    for turn in range(2):
        both(two.runner, here, ours, theirs, (50,) * 5, turn)
    assert two.recorder.n_replayed == 2 * 3 and n_rows == [2, 2, 1] * 2
    both(two.runner, here, ours, theirs, (9,) * 5, 2, last=True)


def test_a_row_that_fails_is_reported_alone(
    here: Place, there: Place, four: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures.log, "warning", lambda *_, **__: None)
    ours, theirs = (place.open([DEFAULT] * 3) for place in (there, here))
    both(four.runner, here, ours, theirs, (50, 50, 50), 0)
    broken = ours[1].joint
    for tracks in (ours, theirs):
        queue(tracks, (50, 50, 50), 1)
    stacked = ChunkStep.stacked

    def fails_for_one(batch: Sequence[ChunkStep]) -> list[Tensor]:
        if any(step.noise is broken._noise for step in batch):
            raise RuntimeError("no memory for this one")
        return stacked(batch)

    monkeypatch.setattr(ChunkStep, "stacked", fails_for_one)
    failed: dict[int, str] = {}
    sounds = four.runner.vocode(ours, lambda i, error: failed.update({i: str(error)}))
    assert failed == {1: "no memory for this one"} and sounds[1] is None
    good = [0, 2]
    for i in good:
        assert_sounds_alike([sounds[i]], vocoded(here.runner, [theirs[i]]))
    both(four.runner, here, [ours[i] for i in good], [theirs[i] for i in good], (50, 50), 2)


def test_values_that_are_not_finite_stay_in_their_row(here: Place, there: Place, four: Recorded) -> None:
    """Also in the next replay of the same memory."""
    ours, theirs = (place.open([DEFAULT] * 5) for place in (there, here))
    for tracks in (ours, theirs):
        queue(tracks, (50,) * 5, 0)
    ours[1].mels[0][0][0, 3, 12] = torch.nan
    sounds = vocoded(four.runner, ours[:3])
    assert sounds[1] is not None and sounds[1].read() is None
    for i in (0, 2):
        assert_sounds_alike([sounds[i]], vocoded(here.runner, [theirs[i]]))
    for i, sound in zip((3, 4), vocoded(four.runner, ours[3:]), strict=True):
        assert_sounds_alike([sound], vocoded(here.runner, [theirs[i]]))


def test_recording_ends_when_loading_is_cancelled_and_can_go_on(
    here: Place, there: Place, pretence: Pretence
) -> None:
    recorder, looks = Recorder(pretence), []
    chunks = RecordedChunks(there.model.vocoder, Graphs(there.model.device, recorder))

    def look() -> None:
        looks.append(1)
        if len(looks) in (2, 2 + 6):
            raise EngineError("closed")

    # While the examples are computed, three of them, and while they are recorded.
    for n_recorded in (0, 2):
        with pytest.raises(EngineError, match="closed"):
            chunks.prepare(2, (50,), look)
        assert recorder.n_recorded == n_recorded
    chunks.prepare(2, (50,), look)
    assert recorder.n_recorded == 4 and len(looks) == 2 + 6 + 3 + 2


def test_if_recording_fails_chunks_are_computed_without_graphs(
    here: Place, there: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def record(work: Callable[[], object]) -> Callable[[], object]:
        raise RuntimeError("no memory")

    runner = Runner(there.model, graphs=Graphs(there.model.device, record))
    runner._recorded_chunks.prepare(4, (50,), lambda: None)
    assert len(caplog.records) == 1 and not runner.graphs.records
    ours, theirs = (place.open([DEFAULT] * 2) for place in (there, here))
    for turn in range(2):
        both(runner, here, ours, theirs, (50, 50), turn)


def test_a_cpu_prepares_nothing(here: Place) -> None:
    here.runner.prepare(lambda: pytest.fail("nothing is recorded"))
    assert not here.runner._recorded_chunks._recorded


def test_ends_of_an_utterance_are_recorded_for_few_rows(
    here: Place, there: Place, pretence: Pretence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(END_FRAMES) == [2 * n for n in range(3, 28)], "3 to 27 tokens"
    monkeypatch.setattr(recorded, "END_FRAMES", range(8, 10, 2))
    made = Recorded(there, pretence, 4)
    assert made.recorder.n_recorded == 3 * N_PLANS + 2, "for 1 and 2 rows"
    for n_blocks, n_rows, is_recorded in ((2, 1, True), (3, 2, True), (4, 1, True), (3, 3, False)):
        ours, theirs = (place.open([DEFAULT] * n_rows) for place in (there, here))
        for turn in range(n_blocks):
            both(made.runner, here, ours, theirs, (50 if turn else 44,) * n_rows, turn)
        made.recorder.n_replayed = 0
        both(made.runner, here, ours, theirs, (8,) * n_rows, 9, last=True)
        assert made.recorder.n_replayed == is_recorded, (n_blocks, n_rows)
        there.clear()
        here.clear()
