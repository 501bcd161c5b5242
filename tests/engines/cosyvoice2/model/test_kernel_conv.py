"""Convolutions by the kernels: the formula, the same bits in any range, PyTorch where they do not fit."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.idle_lanes import HelpingLanes
from telephony_tts.engines.cosyvoice2.model import kernel_conv
from telephony_tts.engines.cosyvoice2.model.flow.encoder import Distances, DistanceTable
from telephony_tts.engines.cosyvoice2.model.kernel_conv import KernelConv
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, Linear
from telephony_tts.engines.cosyvoice2.model.vocoder.bfloat16_layers import fits
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import WEIGHT_G, WEIGHT_V, VocoderReader
from telephony_tts.engines.kernels import library

pytestmark = [
    pytest.mark.slow,  # it runs a compiler
    pytest.mark.skipif(not library.available(), reason="no C++ compiler"),
]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(
    d_in: int, d_out: int, kernel: int, stride: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, KernelConv]:
    weight = randn(d_out, d_in, kernel, seed=1, dtype=dtype) / (d_in * kernel) ** 0.5
    bias = randn(d_out, seed=2, dtype=dtype)
    return weight, bias, KernelConv(weight, bias, stride)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize(
    ("d_in", "d_out", "kernel", "stride"), [(18, 256, 30, 15), (5, 64, 1, 1), (64, 192, 3, 1), (7, 1024, 2, 3)]
)
@pytest.mark.parametrize(("n", "n_batch"), [(30, 1), (37, 2), (100, 1)])
def test_it_is_the_convolution(
    d_in: int, d_out: int, kernel: int, stride: int, n: int, n_batch: int, dtype: torch.dtype, most: float
) -> None:
    weight, bias, conv = made(d_in, d_out, kernel, stride, dtype)
    x = randn(n_batch, n, d_in, seed=3, dtype=dtype)
    for left, right in ((0, 0), (kernel - 1, 0), (2, 5), (0, -1), (-2, 3)):
        padded = F.pad(x.double().transpose(1, 2), (left, right))
        if padded.shape[2] < kernel:
            continue
        expected = F.conv1d(padded, weight.double(), bias.double(), stride).transpose(1, 2)
        got = conv(x, left, right)
        assert got.dtype is dtype and got.shape == expected.shape
        assert float((got.double() - expected).norm() / expected.norm()) < most


def test_a_column_has_the_same_bits_in_any_range() -> None:
    _, _, conv = made(32, 128, 5)
    x = randn(1, 90, 32, seed=3)
    whole = conv(x, 2, 2)
    for first, until in ((2, 30), (10, 81), (44, 45)):
        assert torch.equal(conv(x[:, first - 2 : until + 2]), whole[:, first:until])


@pytest.mark.parametrize("d_out", [64, 1024])
def test_idle_lanes_help_without_another_bit(d_out: int) -> None:
    _, _, conv = made(64, d_out, 3)
    x, lanes = randn(1, 200, 64, seed=3), HelpingLanes()
    expected = conv(x, 1, 1)
    helper = threading.Thread(target=lanes.wait, args=(lanes.n_calls(),), daemon=True)
    helper.start()
    try:
        assert all(torch.equal(conv(x, 1, 1), expected) for _ in range(100))
    finally:
        lanes.call()
        helper.join()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_shows_where_it_is_seen(bad: float) -> None:
    _, _, conv = made(8, 64, 3)
    x = randn(1, 20, 8, seed=3)
    clean = conv(x, 1, 1)
    x[0, 10, 5] = bad
    got = conv(x, 1, 1)
    seen = torch.tensor([9, 10, 11])
    others = torch.tensor([i for i in range(20) if i not in (9, 10, 11)])
    assert not got[0, seen].isfinite().any() and torch.equal(got[0, others], clean[0, others])


def test_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KernelConv.fits(torch.empty(64, 3, 1)) and KernelConv.fits(torch.empty(64, 3, 1, dtype=torch.float64))
    assert not KernelConv.fits(torch.empty(18, 3, 1))
    assert not KernelConv.fits(torch.empty(64, 3, 1, dtype=torch.bfloat16))
    monkeypatch.setattr(kernel_conv, "available", lambda: False)
    assert not KernelConv.fits(torch.empty(64, 3, 1))


# ------------------------------------------------------------------------------------- in the networks


@pytest.mark.skipif(not fits(64), reason="this CPU does not multiply in bfloat16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_vocoder_uses_it_beside_blocks_in_bfloat16(dtype: torch.dtype) -> None:
    names = {f"a{WEIGHT_V}": randn(64, 8, 3), f"a{WEIGHT_G}": torch.ones(64, 1, 1), "a.bias": randn(64, seed=1)}
    reader = VocoderReader(names, dtype, torch.float32, torch.float64)
    conv, pitch = reader.normed_conv("a", (64, 8, 3)), reader.pitch_layer("a", (64, 8, 3))
    is_mixed = dtype is torch.bfloat16
    assert (conv.kernels is not None, pitch.kernels is not None) == (is_mixed, is_mixed)
    plain = VocoderReader(names, torch.float32, torch.float32, torch.float64).normed_conv("a", (64, 8, 3))
    x = randn(1, 20, 8, seed=3)
    assert torch.allclose(conv(x, 2, 1), plain(x, 2, 1), atol=1e-5)


def test_kept_distances_have_the_bits_of_each_sentence() -> None:
    position = Int8Linear(Linear(randn(64, 32), None), in_15_bits=True)
    table, like = DistanceTable(position), torch.empty(0, 32)
    for n_past, n in ((0, 25), (75, 25), (100, 25), (400, 50), (0, 300), (1000, 3), (0, 1)):
        distances = Distances(n_past, n, like)
        rows = table(distances)
        assert rows.shape[0] == n_past + 2 * n - 1
        assert torch.equal(rows, position(distances.sinusoids))
