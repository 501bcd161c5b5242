"""Where the kernels of a GPU cannot run, PyTorch's operations do, and the log says why."""

from __future__ import annotations

import logging

import pytest
import torch

from telephony_tts.engines.cosyvoice2.device import sampling
from telephony_tts.engines.cosyvoice2.model import gpu_kernels
from telephony_tts.engines.cosyvoice2.model.flow import device_backend
from telephony_tts.engines.cosyvoice2.model.lm import lm
from telephony_tts.engines.cosyvoice2.model.vocoder import layers

CUDA = torch.device("cuda")
LOADS = lm._load_kernels, device_backend._load_kernels, layers._load_kernels, sampling._load_kernels


def test_a_cpu_has_no_kernels() -> None:
    assert gpu_kernels.kernels_of(torch.device("cpu"), LOADS[0]) is None


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(("capability", "says"), [((9, 0), "No module named 'triton'"), ((7, 0), "")])
def test_without_triton_and_on_an_old_gpu_there_are_none(
    load: gpu_kernels.Load,
    capability: tuple[int, int],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Triton is not in the environment of the tests."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with caplog.at_level(logging.WARNING):
        assert gpu_kernels.kernels_of.__wrapped__(CUDA, load) is None
    assert (says in caplog.text) if says else not caplog.records


@pytest.mark.parametrize(("d_head", "fit"), [(64, True), (16, True), (8, False), (48, False), (96, False)])
def test_heads_that_the_kernels_cannot_take_go_without(d_head: int, fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "kernels_of", lambda *_: gpu_kernels)
    assert (gpu_kernels.kernels_for_heads(CUDA, d_head, LOADS[0]) is not None) == fit
