"""A whole core on a device as strict as an accelerator: its audio, with other streams and with failures."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from places import VOICES, WITHIN, Place
from pretend_device import Pretence
from service_rig import BRIEF
from speaking import Stepped
from torch import Tensor

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.core import batches
from telephony_tts.engines.cosyvoice2.core.batches import Batches
from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.core.stream import OpenBlock
from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
from telephony_tts.engines.cosyvoice2.device.requests import TokenBlock
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Track
from telephony_tts.engines.cosyvoice2.model import failures
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

SENTENCE, NEIGHBOUR = BRIEF.sentence, BRIEF.neighbour
REQUESTS = [
    Request(SENTENCE, 1),
    Request(SENTENCE, 0, speed=1.3),
    Request("Yes.", 3),
    Request("Thank you. It left.", 4),
    Request(SENTENCE, 3, speed=0.8),
    Request(NEIGHBOUR, 1),
    Request(SENTENCE, 7, instruct="Speak like an old friend."),
]
"""With seeds for which speech is short. The third is of one block, the others of two."""


def build_voices(stepped: Stepped) -> None:
    """Both, in the steps of the core. What was to be said in them is cancelled."""
    keys = [stepped.say(Request("no"), voice) for voice in VOICES]
    while len(stepped.began) < len(keys):
        assert stepped.core.step()
    for key in keys:
        stepped.cancel(key)
    stepped.run()


def said(stepped: Stepped, requests: Sequence[Request]) -> list[int]:
    """Submit all in both voices; each gets the slot of its index. Returns their keys."""
    return [stepped.say(request, VOICES[i % 2]) for i, request in enumerate(requests)]


def alone(cpu: Place, profile: Profile, request: Request, voice: str) -> Pcm:
    stepped = Stepped(cpu, profile).have_voices(*VOICES)  # type: ignore[arg-type]
    key = stepped.say(request, voice)
    stepped.run()
    return stepped.pcm(key)


@pytest.fixture(scope="module")
def expected(cpu: Place) -> list[Pcm]:
    """The audio of `REQUESTS`, each alone on the CPU."""
    return [alone(cpu, DEFAULT, request, VOICES[i % 2]) for i, request in enumerate(REQUESTS)]


def assert_alike(pcm: Pcm, expected: Pcm) -> None:
    rms = np.sqrt(np.mean(np.square(expected.astype(np.float64))))
    assert len(pcm) == len(expected) > 0 and rms > 10
    assert np.abs(pcm.astype(np.int64) - expected).max() <= 1 + WITHIN * rms


def test_streams_in_batches_sound_as_each_alone_on_a_cpu(
    device: Place, expected: list[Pcm], pretence: Pretence
) -> None:
    stepped = Stepped(device)  # type: ignore[arg-type]
    build_voices(stepped)
    keys = said(stepped, REQUESTS)
    pretence.waits.clear()
    stepped.run()
    for key, pcm in zip(keys, expected, strict=True):
        assert_alike(stepped.pcm(key), pcm)
    assert stepped.is_empty() and set(pretence.waits) == {"border.py:read"}


@pytest.mark.parametrize("profile", [FAST, UPSTREAM], ids=["fast", "upstream"])
def test_streams_in_other_profiles_too(cpu: Place, device: Place, profile: Profile, pretence: Pretence) -> None:
    requests = [REQUESTS[i] for i in (0, 1, 2, 4)]
    stepped = Stepped(device, profile)  # type: ignore[arg-type]
    build_voices(stepped)
    keys = said(stepped, requests)
    stepped.run()
    for i, (key, request) in enumerate(zip(keys, requests, strict=True)):
        assert_alike(stepped.pcm(key), alone(cpu, profile, request, VOICES[i % 2]))
    assert stepped.is_empty()


class Failing(Runner):
    """A runner that fails in one stage: for more than one track at once, or for one slot."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.model)
        self.stage = ""
        self.slot: int | None = None
        self.n_tried: list[int] = []
        """Tracks in each call of the stage."""
        self.taken: Callable[[], Tensor | None] = lambda: None
        """The memory of the last call while it is held."""

    def _try(self, stage: str, tracks: Sequence[Track]) -> None:
        if stage == self.stage:
            assert self.taken() is None, "what a batch had taken is held while each is tried alone"
            much = torch.zeros(1)
            self.taken = weakref.ref(much)
            self.n_tried.append(len(tracks))
            if self.slot in [track.slot for track in tracks] or (self.slot is None and len(tracks) > 1):
                raise RuntimeError(f"no memory for {stage}")

    def check_room(self, track: Track, feed: LmFeed) -> None:
        if self.stage == "room" and track.slot == self.slot:
            raise EngineError("no memory for room")
        super().check_room(track, feed)

    def prefill(self, tracks: Sequence[Track], feeds: Sequence[LmFeed]) -> list[DrawnIds | None]:
        self._try("prefill", tracks)
        if self.stage == "room":
            self.n_tried.append(len(tracks))
        return super().prefill(tracks, feeds)

    def begin(self, tracks: Sequence[Track], blocks: Sequence[TokenBlock]) -> list[FlowBlock]:
        self._try("begin", tracks)
        return super().begin(tracks, blocks)

    def _next_frames(self, track: Track) -> tuple[Tensor, bool]:
        self._try("vocode", [track])
        return super()._next_frames(track)


def said_with(runner: Failing, place: Place, stage: str, slot: int | None) -> tuple[Stepped, list[int]]:
    """Three utterances with a failing runner."""
    stepped = Stepped(place, runner=runner).have_voices(*VOICES)  # type: ignore[arg-type]
    runner.stage, runner.slot = stage, slot
    keys = said(stepped, REQUESTS[:3])
    stepped.run()
    assert stepped.is_empty()
    return stepped, keys


@pytest.mark.parametrize("stage", ["prefill", "begin"])
def test_after_a_failed_batch_each_stream_is_tried_alone(
    device: Place, expected: list[Pcm], stage: str, pretence: Pretence, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Captured log records would hold the error.
    monkeypatch.setattr(failures.log, "warning", lambda *_, **__: None)
    runner = Failing(device)
    stepped, keys = said_with(runner, device, stage, None)
    assert max(runner.n_tried) > 1
    for key, pcm in zip(keys, expected, strict=False):
        assert_alike(stepped.pcm(key), pcm)


@pytest.mark.parametrize("stage", ["room", "prefill", "begin", "vocode"])
def test_a_stream_that_cannot_be_computed_fails_alone(
    device: Place, expected: list[Pcm], stage: str, pretence: Pretence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures.log, "warning", lambda *_, **__: None)
    monkeypatch.setattr(batches.log, "exception", lambda *_, **__: None)
    runner = Failing(device)
    stepped, keys = said_with(runner, device, stage, 1)
    error = stepped.ended[keys[1]].error
    assert error is not None and f"no memory for {stage}" in str(error)
    for i in (0, 2):
        assert_alike(stepped.pcm(keys[i]), expected[i])
    # A stream without room does not split the batch of the others.
    assert stage != "room" or runner.n_tried == [2]


@pytest.mark.parametrize("fails_alone", [True, False], ids=["block", "batch"])
def test_a_failing_euler_step_ends_only_its_stream_and_the_others_take_one_step(
    device: Place, expected: list[Pcm], fails_alone: bool, pretence: Pretence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three blocks cannot be computed, or only their batch cannot. A failed stream ends with the real error."""
    backend, flow = device.model.flow.backend, Batches.flow
    step = backend.step
    n_tried: list[int] = []
    n_taken: list[tuple[int | None, int]] = []
    bad: list[FlowBlock] = []

    def fails(blocks: Sequence[FlowBlock]) -> None:
        of_pieces = [block for block in blocks if block.voice is None]
        n_tried.append(len(of_pieces))
        if any(block in bad for block in blocks) if fails_alone else len(of_pieces) > 1:
            raise RuntimeError("no memory for a step")
        step(blocks)

    def counted(self: Batches, blocks: Mapping[Job, OpenBlock]) -> None:
        before = {job: block.flow_block.k if block.flow_block is not None else 0 for job, block in blocks.items()}
        bad[:] = [block.flow_block for job, block in blocks.items() if job.stream.slot == 1 and before[job] == 2]  # type: ignore[misc]
        flow(self, blocks)
        for job, block in blocks.items():
            assert block.flow_block is not None
            n_taken.append((job.stream.slot, block.flow_block.k - before[job]))

    stepped = Stepped(device).have_voices(*VOICES)  # type: ignore[arg-type]
    at = (0, 4, 6)  # all in one voice, so that their blocks are in one batch
    keys = [stepped.say(REQUESTS[i], VOICES[0]) for i in at]
    monkeypatch.setattr(backend, "step", fails)
    monkeypatch.setattr(Batches, "flow", counted)
    stepped.run()
    assert stepped.is_empty() and max(n_tried) == 3
    failed = [keys[1]] if fails_alone else []
    assert [key for key in keys if stepped.ended[key].error is not None] == failed
    assert all("no memory for a step" in str(stepped.ended[key].error) for key in failed)
    assert [n for _, n in n_taken if n != 1] == [0] * len(failed)
    for key, i in zip(keys, at, strict=True):
        if key not in failed:
            assert_alike(stepped.pcm(key), expected[i])
