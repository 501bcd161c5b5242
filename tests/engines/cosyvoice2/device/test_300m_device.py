"""CosyVoice-300M on a device as strict as an accelerator. It computes each stream by itself there too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_device
import pytest
import torch
from places import WITHIN, Place
from pretend_device import Pretence
from speaking import Stepped

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.profile import WHOLE
from telephony_tts.engines.cosyvoice2.text.prompting import Request

pytestmark = pytest.mark.slow

REQUESTS = [
    Request("Thank you for calling us today. Your parcel left the depot on Tuesday.", 2),
    Request("It left on Tuesday.", 0, speed=1.3),
    Request("Yes.", 1, instruct="Speak slowly."),
]
VOICES = ("first", "second", "first")


@pytest.fixture(scope="module")
def expected(small_dir: Path) -> list[Pcm]:
    return spoken(Place(small_dir, "cpu"))


@pytest.fixture
def small_device(small_dir: Path) -> Iterator[Place]:
    pretend_device.device()
    with torch.inference_mode(), Pretence():
        yield Place(small_dir, str(pretend_device.device()))


def spoken(place: Place) -> list[Pcm]:
    stepped = Stepped(place, WHOLE)  # type: ignore[arg-type]
    keys = [stepped.say(request, voice) for request, voice in zip(REQUESTS, VOICES, strict=True)]
    stepped.run()
    assert stepped.is_empty()
    return [stepped.pcm(key) for key in keys]


def test_the_device_speaks_as_the_cpu(small_device: Place, expected: list[Pcm]) -> None:
    assert small_device.runner.n_run_ahead == 1 and small_device.runner.batch_sizes.flow == 1
    for heard, want in zip(spoken(small_device), expected, strict=True):
        rms = np.sqrt(np.mean(np.square(want.astype(np.float64))))
        assert len(heard) == len(want) > 0 and rms > 10
        assert np.abs(heard.astype(np.int64) - want).max() <= 1 + WITHIN * rms
