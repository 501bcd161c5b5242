"""Int4 matrices: the meaning of the integers, few rows and many, and the independence of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.lm import int4 as lm_int4
from telephony_tts.engines.cosyvoice2.model.lm.int4 import GROUP, MAX_INT4_ROWS, Int4Matrix, grouped, restored
from telephony_tts.engines.cosyvoice2.model.lm.weights import RmsNorm, rms_norm

HERE = pytest.mark.skipif(not lm_int4.available(), reason="no bfloat16 products on this processor")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def test_numbers_of_sixteen_evenly_spaced_values_are_kept() -> None:
    """Each group's own: its step and middle are powers of two, which bfloat16 has."""
    integers = torch.randint(0, 16, (32, 3 * GROUP), generator=torch.Generator().manual_seed(0))
    integers[:, ::GROUP], integers[:, 1::GROUP] = 0, 15
    step = torch.tensor([0.5, 2.0, 0.25]).repeat_interleave(GROUP)
    weight = (integers - 8) * step + torch.tensor([1.0, 0.0, -4.0]).repeat_interleave(GROUP)
    assert torch.equal(restored(*grouped(weight)), weight)
    assert torch.equal(grouped(weight)[0], integers.int())


def test_rounding_costs_no_more_than_the_whole_range_would() -> None:
    """An outlier makes its own group coarse and no other; the range is narrowed only where that is nearer."""
    weight = randn(64, 8 * GROUP)
    clean = (restored(*grouped(weight)) - weight).square().unflatten(1, (-1, GROUP)).mean(dim=2)
    assert relative_error(restored(*grouped(weight)), weight) < 0.085  # steps of a fifteenth of some 4.1 deviations
    weight[5, 7] = 60.0
    error = (restored(*grouped(weight)) - weight).square().unflatten(1, (-1, GROUP)).mean(dim=2)
    assert error[5, 0] > 10 * clean[5, 0]
    error[5, 0] = clean[5, 0]
    assert torch.equal(error, clean)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-6])
def test_a_group_of_equal_weights_is_kept(value: float) -> None:
    weight = torch.full((16, GROUP), value)
    assert torch.allclose(restored(*grouped(weight)), weight, rtol=2**-8, atol=0)


@HERE
def test_few_rows_go_by_the_integers_and_many_by_the_weights() -> None:
    weight, bias = randn(48, 4 * GROUP), randn(48, seed=1)
    matrix, integers = Int4Matrix(weight), restored(*grouped(weight))
    x = randn(MAX_INT4_ROWS + 1, 4 * GROUP, seed=2)
    few, many = matrix(x[:MAX_INT4_ROWS], bias), matrix(x, bias)
    assert few.dtype == many.dtype == torch.float32
    assert matrix(x).dtype == matrix(x.bfloat16()).dtype == torch.bfloat16
    assert relative_error(few, x[:MAX_INT4_ROWS] @ integers.t() + bias) < 0.005
    assert relative_error(many, x @ weight.t() + bias) < 0.005
    assert relative_error(few, many[:MAX_INT4_ROWS]) > 0.03
    assert torch.equal(matrix(x[None, :3]), matrix(x[:3])[None])
    for n in (3, MAX_INT4_ROWS + 1):
        assert torch.equal(matrix(x.t().contiguous().t()[:n]), matrix(x[:n]))
    assert matrix(x[:0]).shape == (0, 48)


@HERE
@pytest.mark.parametrize("n", range(1, MAX_INT4_ROWS + 1))
def test_a_row_depends_on_no_other(n: int) -> None:
    matrix = Int4Matrix(randn(160, 6 * GROUP), RmsNorm(randn(6 * GROUP, seed=1), 1e-6))
    x = randn(MAX_INT4_ROWS, 6 * GROUP, seed=2)
    rows = torch.cat([matrix(row) for row in x.split(1)])
    assert torch.equal(matrix(x[:n]), rows[:n])
    assert torch.equal(matrix(x[:n].flip(0)), rows[:n].flip(0))
    x[0] = torch.nan
    assert matrix(x[:n])[0].isnan().all()
    assert torch.equal(matrix(x[:n])[1:], rows[1:n])


@HERE
def test_rows_are_normed_before_they_are_rounded() -> None:
    weight, gain = randn(32, 2 * GROUP), randn(2 * GROUP, seed=1)
    x = 1000 * randn(4, 2 * GROUP, seed=2)
    x[:, 3] *= 500  # beyond what the others' last bits are in bfloat16
    assert torch.equal(Int4Matrix(weight, RmsNorm(gain, 1e-6))(x), Int4Matrix(weight)(rms_norm(x, gain, 1e-6)))


@HERE
@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (torch.zeros(16, GROUP, dtype=torch.bfloat16), "made of float32 on the CPU, not of torch.bfloat16"),
        (torch.zeros(16, GROUP, device="meta"), "on meta"),
        (torch.zeros(16, GROUP + 8), r"\[16, 40\] is not a multiple of 16 rows and 32 columns: .*lm_dtype: int8"),
        (torch.zeros(24, GROUP), r"\[24, 32\] is not a multiple"),
        (torch.full((16, GROUP), torch.nan), "weights that are not finite"),
    ],
)
def test_other_weights_are_refused(weight: Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Int4Matrix(weight)


def test_where_it_cannot_be_had_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lm_int4.available.cache_clear()
    monkeypatch.setattr(lm_int4, "packing_is_exact", lambda: False)
    try:
        with pytest.raises(ValueError, match="int4 needs a processor"):
            Int4Matrix(torch.zeros(16, GROUP))
    finally:
        lm_int4.available.cache_clear()
