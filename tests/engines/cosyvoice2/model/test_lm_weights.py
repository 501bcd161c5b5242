"""Int8 matrices of the language model: their error, and the independence of their rows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.linear import RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix, Int8Matrix

ROUNDING = 0.011
"""Root mean square error of a product by that of its values: weights rounded to 1/127 of some 3.3 deviations."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())


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
    expected = F.linear(norm(x), weight)
    assert torch.equal(FloatMatrix(weight, norm)(x), expected)
    for got, row in zip(Int8Matrix(weight, norm)(x), expected, strict=True):
        assert relative_error(got, row) < 2 * ROUNDING


def test_zeros_stay_zeros() -> None:
    weight, bias = randn(20, 30, seed=1), randn(20, seed=2)
    weight[4], weight[:, 7] = 0.0, 0.0
    x = randn(3, 30, seed=3)
    x[1] = 0.0
    for norm in (None, RmsNorm(torch.ones(30), 1e-6)):
        y = Int8Matrix(weight, norm)(x)
        assert not y[1].any()
        assert not y[:, 4].any()
        assert y[0].isfinite().all()
        assert torch.equal(Int8Matrix(weight, norm)(x, bias)[1], bias)
    only_seventh = F.one_hot(torch.tensor([7]), 30).float()
    assert not Int8Matrix(weight)(only_seventh).any()


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


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("normed", [False, True])
def test_values_that_are_not_finite_stay_in_their_row(bad: float, normed: bool) -> None:
    norm = RmsNorm(torch.ones(30), 1e-6) if normed else None
    matrix, x = Int8Matrix(randn(20, 30, seed=1), norm), randn(5, 30, seed=2)
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
