"""Where the kernels of a GPU cannot run, PyTorch's operations do, and the log says why."""

from __future__ import annotations

import logging

import pytest
import torch

from telephony_tts.engines.cosyvoice2.model import gpu_kernels

CUDA = torch.device("cuda")


def test_a_cpu_has_no_kernels() -> None:
    assert gpu_kernels.kernels_of(torch.device("cpu")) is None


@pytest.mark.parametrize(("capability", "says"), [((9, 0), "Triton cannot be used"), ((7, 0), "")])
def test_without_triton_and_on_an_old_gpu_there_are_none(
    capability: tuple[int, int], says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton is not in the environment of the tests."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with caplog.at_level(logging.WARNING):
        assert gpu_kernels.kernels_of.__wrapped__(CUDA) is None
    assert (says in caplog.text) if says else not caplog.records


@pytest.mark.parametrize(("d_head", "fit"), [(64, True), (16, True), (8, False), (48, False), (96, False)])
def test_heads_that_the_kernels_cannot_take_go_without(d_head: int, fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "kernels_of", lambda _: gpu_kernels)
    assert (gpu_kernels.kernels_for_heads(CUDA, d_head) is not None) == fit
