"""Int8 matrices: their error, the independence of their rows, and products with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model import linear
from telephony_tts.engines.cosyvoice2.model.linear import (
    LARGEST_ACTIVATION,
    LARGEST_WEIGHT,
    FbgemmProduct,
    Float64Product,
    IntegerProduct,
    OneDnnProduct,
    fastest_product,
    is_exact,
    quantized,
)
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix, Int8Matrix, RmsNorm, rms_norm, split_rows

KINDS = [FbgemmProduct, OneDnnProduct, Float64Product]
ROUNDING = 0.011
"""Root mean square error of a product by that of its values: weights rounded to 1/127 of some 3.3 deviations."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def chosen_anew() -> Iterator[None]:
    fastest_product.cache_clear()
    yield
    fastest_product.cache_clear()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())


# --------------------------------------------------------------------------- products


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_out", "n_in"), [(37, 75), (900, 1500)])
def test_every_product_gives_the_same_bits(
    kind: Callable[[Tensor, Tensor], IntegerProduct], n_out: int, n_in: int
) -> None:
    """For few and for many rows, and over several tiles."""
    if not is_exact(kind):
        pytest.skip("this processor cuts off sums of two products at 16 bits")
    generator = torch.Generator().manual_seed(1)
    integers = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (n_out, n_in), dtype=torch.int8, generator=generator)
    scale = torch.rand(n_out, generator=generator)
    rows = torch.randint(-LARGEST_ACTIVATION, LARGEST_ACTIVATION + 1, (40, n_in), generator=generator).float()
    exact = (rows.long() @ integers.long().t()).float() * scale
    product = kind(integers, scale)
    for n in (1, 2, 5, 16, 17, 40):
        assert torch.equal(product(rows[-n:]), exact[-n:])


class SixteenBits(Float64Product):
    """Sums of two neighbouring products cut off at 16 bits, the rows taken as bytes around 128."""

    def __call__(self, rows: Tensor) -> Tensor:
        terms = (rows[:, None] + 128) * self._integers
        pairs = terms.unflatten(-1, (-1, 2)).sum(dim=-1).clamp(-32768, 32767)
        return (pairs.sum(dim=-1) - 128 * self._integers.float().sum(dim=1)) * self._scale


class ExactForFew(Float64Product):
    def __call__(self, rows: Tensor) -> Tensor:
        return super().__call__(rows) + (len(rows) > 16)


class Missing(Float64Product):
    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        raise AttributeError("no such operator")


def test_a_saturating_or_missing_product_is_not_used(
    monkeypatch: pytest.MonkeyPatch, chosen_anew: None
) -> None:
    for kind in (SixteenBits, ExactForFew, Missing):
        assert not is_exact(kind)
    monkeypatch.setattr(linear, "FbgemmProduct", Missing)
    monkeypatch.setattr(linear, "OneDnnProduct", SixteenBits)
    assert fastest_product() is Float64Product


def test_rows_as_bytes_never_reach_16_bits() -> None:
    """Why rows stay within 63: it is what makes the packed product exact on processors without VNNI."""
    assert 2 * (LARGEST_ACTIVATION + linear._BYTE_ZERO) * LARGEST_WEIGHT <= 32767


# ---------------------------------------------------------------------------- numbers


def test_weights_come_back_to_half_a_step() -> None:
    weight = randn(20, 50) * torch.logspace(-3, 3, 20)[:, None]
    integers, scale = quantized(weight)
    assert integers.abs().amax(dim=1).tolist() == [LARGEST_WEIGHT] * 20
    assert ((integers * scale[:, None] - weight).abs() <= 0.501 * scale[:, None]).all()


def test_rows_come_back_to_14_bits() -> None:
    x = randn(9, 300) * torch.logspace(-12, 12, 9)[:, None]
    halves, largest = split_rows(x)
    high, low = halves.view(2, 9, 300)
    assert high.abs().max() == LARGEST_ACTIVATION
    assert low.abs().max() == LARGEST_ACTIVATION
    assert torch.equal(halves, halves.round())
    assert torch.equal(largest, x.abs().amax(dim=1, keepdim=True))
    error = (high + low / (2 * LARGEST_ACTIVATION)) / LARGEST_ACTIVATION - x / largest
    assert error.abs().max() < 0.51 / (LARGEST_ACTIVATION * 2 * LARGEST_ACTIVATION)


def test_an_int8_matrix_is_near_the_float_one() -> None:
    weight, bias, x = randn(200, 300, seed=1), randn(200, seed=2), randn(7, 300, seed=3)
    near, exact = Int8Matrix(weight), FloatMatrix(weight)
    assert 0 < relative_error(near(x), exact(x)) < ROUNDING
    assert torch.allclose(near(x, bias) - near(x), bias.expand(7, -1), atol=1e-5)


def test_any_shape_of_rows() -> None:
    matrix, x = Int8Matrix(randn(20, 30, seed=1)), randn(2, 3, 30, seed=2)
    y = matrix(x)
    assert y.shape == (2, 3, 20)
    assert torch.equal(matrix(x[1, 2]), y[1, 2])


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_large_channels_cost_no_precision(factor: float) -> None:
    """Activations of four channels 100 times larger; their weights as large as any, or `factor` times smaller.

    With 8 bits a row the others would be lost, and with scales by rows alone the small weights would be.
    """
    weight, x = randn(200, 300, seed=1), randn(7, 300, seed=2)
    large = torch.tensor([3, 50, 51, 299])
    x[:, large] *= 100.0
    weight[:, large] /= factor
    assert relative_error(Int8Matrix(weight)(x), F.linear(x, weight)) < ROUNDING


def test_a_norm_before_is_the_norm_and_then_the_matrix() -> None:
    weight, x = randn(40, 60, seed=1), randn(6, 60, seed=2) * torch.tensor([1e-6, 1e-3, 1.0, 30.0, 1e4, 1e8])[:, None]
    norm = RmsNorm(randn(60, seed=3).abs() + 0.1, 1e-6)
    expected = F.linear(rms_norm(x, norm.weight, norm.eps), weight)
    assert torch.equal(FloatMatrix(weight, norm)(x), expected)
    for got, row in zip(Int8Matrix(weight, norm)(x), expected, strict=True):
        assert relative_error(got, row) < 2 * ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind: Callable[[Tensor, Tensor], IntegerProduct]) -> None:
    weight, bias = randn(20, 30, seed=1), randn(20, seed=2)
    weight[4], weight[:, 7] = 0.0, 0.0
    x = randn(3, 30, seed=3)
    x[1] = 0.0
    for norm in (None, RmsNorm(torch.ones(30), 1e-6)):
        y = Int8Matrix(weight, norm, kind)(x)
        assert not y[1].any()
        assert not y[:, 4].any()
        assert y[0].isfinite().all()
        assert torch.equal(Int8Matrix(weight, norm, kind)(x, bias)[1], bias)
    only_seventh = F.one_hot(torch.tensor([7]), 30).float()
    assert not Int8Matrix(weight, kind=kind)(only_seventh).any()


# ------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("normed", [False, True])
def test_a_row_has_the_same_bits_in_any_batch(normed: bool) -> None:
    """Also for widths that are no multiple of a vector register."""
    for n_in in (64, 75, 896):
        matrix = Int8Matrix(randn(83, n_in, seed=1), RmsNorm(randn(n_in, seed=3), 1e-6) if normed else None)
        x = randn(40, n_in, seed=2) * torch.logspace(-2, 2, 40)[:, None]
        together = matrix(x)
        for n in (1, 2, 3, 5, 17):
            assert torch.equal(torch.cat([matrix(part) for part in torch.split(x, n)]), together)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("normed", [False, True])
def test_values_that_are_not_finite_stay_in_their_row(
    kind: Callable[[Tensor, Tensor], IntegerProduct], bad: float, normed: bool
) -> None:
    norm = RmsNorm(torch.ones(30), 1e-6) if normed else None
    matrix, x = Int8Matrix(randn(20, 30, seed=1), norm, kind), randn(5, 30, seed=2)
    clean = matrix(x)
    x[2, 11] = bad
    y = matrix(x)
    assert not y[2].isfinite().any()
    others = [0, 1, 3, 4]
    assert torch.equal(y[others], clean[others])


def test_neither_rows_nor_weights_are_written_to() -> None:
    weight, norm, x = randn(20, 30, seed=1), RmsNorm(randn(30, seed=3), 1e-6), randn(4, 30, seed=2)
    kept = [tensor.clone() for tensor in (weight, norm.weight, x)]
    matrix = Int8Matrix(weight, norm)
    assert torch.equal(matrix(x), matrix(x))
    assert all(torch.equal(*pair) for pair in zip((weight, norm.weight, x), kept, strict=True))


def test_only_float32_is_rounded() -> None:
    with pytest.raises(ValueError, match=r"made of float32 on the CPU, not of torch\.bfloat16 on cpu"):
        Int8Matrix(randn(20, 30).bfloat16())
