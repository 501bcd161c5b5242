"""The vocoder's convolutions by the kernels: the formula, the same bits in any range, PyTorch where they do not fit."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.idle_lanes import HelpingLanes
from telephony_tts.engines.cosyvoice2.model.vocoder import layers
from telephony_tts.engines.cosyvoice2.model.vocoder.bfloat16_layers import Bfloat16SnakeConv, fits
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import ResBlock, VocoderReader
from telephony_tts.engines.kernels import library
from telephony_tts.engines.kernels.library import AMX, CPU_FLAGS, PLAIN_TILES

pytestmark = [
    pytest.mark.slow,  # it runs a compiler
    pytest.mark.skipif(not library.available(), reason="there is no compiler"),
]
LEVELS = [
    *(each for each in (AMX, "avx512vnni") if CPU_FLAGS[each] | {"avx512_bf16"} <= library.cpu_flags()),
    PLAIN_TILES,
]
"""Those that multiply in bfloat16, with and without tile registers."""


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(library.LEVEL_VARIABLE, request.param)
    library._loaded.cache_clear()
    assert fits(64)
    yield request.param
    library._loaded.cache_clear()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Parts = tuple[tuple[Tensor, Tensor], Tensor, Tensor]


def parts(d: int, kernel: int) -> Parts:
    alpha = randn(d, seed=1).abs() * 3
    weight = (randn(d, d, kernel, seed=2) / (d * kernel) ** 0.5).bfloat16()
    return (alpha, 1 / (alpha + 1e-9)), weight, randn(d, seed=3).bfloat16()


def wanted(x: Tensor, of: Parts, dilation: int, zeros: tuple[int, int]) -> Tensor:
    """In float64, but for the rounding of what is multiplied."""
    (alpha, inverse), weight, bias = of
    wave = x.double() + (alpha.double() * x.double()).sin().square() * inverse.double()
    rows = F.pad(wave.bfloat16().double(), (0, 0, *zeros))
    return F.conv1d(rows.transpose(1, 2), weight.double(), bias.double(), dilation=dilation).transpose(1, 2)


def error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("d", "kernel", "dilation"), [(64, 3, 1), (64, 11, 5), (128, 7, 3), (256, 1, 1)])
@pytest.mark.parametrize("n", [1, 6, 61])
@pytest.mark.parametrize("n_batch", [1, 2])
def test_it_is_the_snake_and_then_the_convolution(d: int, kernel: int, dilation: int, n: int, n_batch: int) -> None:
    of, x = parts(d, kernel), 4 * randn(n_batch, n, d, seed=4)
    lost = (kernel - 1) * dilation
    conv = Bfloat16SnakeConv(*of, dilation)
    for zeros in ((lost, 0), (lost // 2, lost - lost // 2), (lost + 3, 2)):
        expected = wanted(x, of, dilation, zeros)
        # A value next to the middle of two neighbours may be rounded to the other one.
        assert error(conv(x, *zeros), expected) < 1e-3
        total = randn(*expected.shape, seed=5)
        assert torch.equal(conv(x, *zeros, total), total + conv(x, *zeros))


def test_a_column_has_the_same_bits_in_any_range() -> None:
    of, x = parts(64, 7), randn(1, 90, 64, seed=4)
    conv = Bfloat16SnakeConv(*of, 3)
    whole = conv(x, 9, 9)
    for first, until in ((9, 30), (10, 81), (44, 45)):
        assert torch.equal(conv(x[:, first - 9 : until + 9], 0, 0), whole[:, first:until])


def test_idle_lanes_help_without_another_bit() -> None:
    of, x = parts(128, 7), randn(1, 200, 128, seed=4)
    conv, lanes = Bfloat16SnakeConv(*of, 1), HelpingLanes()
    expected = conv(x, 3, 3)
    helper = threading.Thread(target=lanes.wait, args=(lanes.n_calls(),), daemon=True)
    helper.start()
    try:
        assert all(torch.equal(conv(x, 3, 3), expected) for _ in range(100))
    finally:
        lanes.call()
        helper.join()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_shows_where_it_is_seen(bad: float) -> None:
    of, x = parts(64, 3), randn(1, 20, 64, seed=4)
    conv = Bfloat16SnakeConv(*of, 2)
    clean = conv(x, 2, 2)
    x[0, 10, 5] = bad
    got = conv(x, 2, 2)
    seen = torch.tensor([8, 10, 12])
    others = torch.tensor([i for i in range(20) if i not in (8, 10, 12)])
    assert not got[0, seen].isfinite().any() and torch.equal(got[0, others], clean[0, others])



def block_of(d: int, dtype: torch.dtype, sums: torch.dtype) -> ResBlock:
    names: dict[str, Tensor] = {}
    for i, part in enumerate(f"{kind}.{j}" for kind in ("convs1", "convs2") for j in range(3)):
        names[f"b.{part}{layers.WEIGHT_V}"] = randn(d, d, 3, seed=i)
        names[f"b.{part}{layers.WEIGHT_G}"] = torch.full((d, 1, 1), 0.5)
        names[f"b.{part}.bias"] = randn(d, seed=10 + i)
    for i, part in enumerate(f"activations{kind}.{j}" for kind in (1, 2) for j in range(3)):
        names[f"b.{part}.alpha"] = randn(d, seed=20 + i).abs()
    return VocoderReader(names, dtype, sums).block("b", d, 3, (1, 3, 5))


@pytest.mark.parametrize("margins", [(0, 0), (12, 12), (5, 30)])
def test_a_block_is_that_of_pytorch(margins: tuple[int, int]) -> None:
    block = block_of(64, torch.bfloat16, torch.float32)
    plain = ResBlock(tuple(dataclasses.replace(step, kernels=None) for step in block.steps), block.reach)
    assert all(step.kernels is not None for step in block.steps)
    x = randn(1, 70, 64, seed=4)
    ours, theirs = block(x, *margins), plain(x, *margins)
    assert ours.shape == theirs.shape and ours.dtype == torch.float32
    exact = block_of(64, torch.float32, torch.float32)(x, *margins).double()
    assert error(ours, exact) < 1.1 * error(theirs, exact) < 0.01


@pytest.mark.parametrize(
    ("d", "dtype", "sums"),
    [(64, torch.float32, torch.float32), (64, torch.bfloat16, torch.bfloat16), (40, torch.bfloat16, torch.float32)],
)
def test_what_does_not_fit_stays_with_pytorch(d: int, dtype: torch.dtype, sums: torch.dtype) -> None:
    assert all(step.kernels is None for step in block_of(d, dtype, sums).steps)


@pytest.mark.parametrize("level", LEVELS[:-1], indirect=True)
def test_a_cpu_without_bfloat16_stays_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = library.cpu_flags() - {"avx512_bf16"}
    monkeypatch.setattr(library, "cpu_flags", lambda: flags)
    assert all(step.kernels is None for step in block_of(64, torch.bfloat16, torch.float32).steps)


def test_without_the_library_it_stays_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "available", lambda: False)
    assert all(step.kernels is None for step in block_of(64, torch.bfloat16, torch.float32).steps)
