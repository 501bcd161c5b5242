"""The int8 kernels in numbers, at every level that this CPU has: products, norms, GELU, Mish, attention."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import LmConfig
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, LayerNorm, Linear, RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.lm import AttendSlots, DecoderLayer, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.weights import Int8Matrix
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable
from telephony_tts.engines.kernels import library
from telephony_tts.engines.kernels.library import CPU_FLAGS, LEVELS, Piece, functions

pytestmark = pytest.mark.slow  # it runs a compiler

HERE = [level for level in LEVELS if CPU_FLAGS[level] <= library.cpu_flags()]
WITHOUT_TILES = {"amx": "avx512vnni", "plain_tiles": "generic"}
"""The level that differs from each of these by its tile registers alone."""
BLOCK = 50
GELU_ERROR = 1 / 254 / 25
"""The map behind GELU rounds each row to steps of 1/127 of its peak, so by up to 1/254 if that is 1. An error 25 times
smaller adds less than 1/200 to the power of what is rounded away."""


@pytest.fixture(params=HERE, autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(library.LEVEL_VARIABLE, request.param)
    library._loaded.cache_clear()
    yield request.param
    library._loaded.cache_clear()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole_rows(n: int, k: int, largest: int, seed: int) -> Tensor:
    """Rows of whole numbers whose largest is `largest`: int8 rounds none of them."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randint(-largest, largest + 1, (n, k), generator=g).float()
    rows[:, 0] = largest
    return rows


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


# ----------------------------------------------------------------------- CosyVoice-300M


@pytest.mark.parametrize(("shape", "n_groups"), [((1, 1, 16), 8), ((2, 43, 256), 8), ((3, 7, 20), 4), ((2, 5, 6), 1)])
def test_group_norm_and_mish_are_the_formula(shape: tuple[int, int, int], n_groups: int) -> None:
    n_batch, n, d = shape
    x = 40 * randn(n_batch, n, d, seed=1) * torch.logspace(-1, 1, d) + 3 * randn(d, seed=4)
    weight, bias = 5 * randn(d, seed=2), 30 * randn(d, seed=3)
    wanted = F.mish(F.group_norm(x.double().mT, n_groups, weight.double(), bias.double(), 1e-5).mT)
    functions().group_norm_mish(x.data_ptr(), n_batch, n, d, n_groups, weight.data_ptr(), bias.data_ptr(), 1e-5)
    assert error(x.double(), wanted) < 2e-5


@pytest.mark.parametrize(("n_heads", "d"), [(1, 1), (3, 7), (16, 64), (2, 40)])
@pytest.mark.parametrize("n", [1, 2, 17, 90])
def test_a_row_with_relative_positions_is_the_formula(n_heads: int, d: int, n: int) -> None:
    """And the new key and value are written, and nothing else."""
    capacity = 90
    qkv, u, v = randn(3, n_heads, d), 3 * randn(n_heads, d, seed=1), 3 * randn(n_heads, d, seed=2)
    keys, values, positions = (randn(n_heads, capacity, d, seed=seed) for seed in (3, 4, 5))
    wanted_keys, wanted_values = keys.clone(), values.clone()
    wanted_keys[:, n - 1], wanted_values[:, n - 1] = qkv[1], qkv[2]
    scores = torch.einsum("hd,hnd->hn", qkv[0] + u, wanted_keys[:, :n])
    scores += torch.einsum("hd,hnd->hn", qkv[0] + v, positions[:, capacity - n :])
    wanted = torch.einsum("hn,hnd->hd", (scores / math.sqrt(d)).softmax(-1), wanted_values[:, :n])
    got = torch.empty(n_heads, d)
    addresses = (each.data_ptr() for each in (qkv, u, v, keys, values, positions))
    functions().attend_relative(*addresses, n_heads, d, capacity, n, got.data_ptr())
    assert error(got, wanted) < 1e-5
    assert torch.equal(keys, wanted_keys) and torch.equal(values, wanted_values)


# ---------------------------------------------------------------------------- products


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 7), (64, 64), (65, 130), (200, 1024)])
@pytest.mark.parametrize("in_15_bits", [False, True])
def test_products_of_whole_numbers_are_exact(n: int, k: int, in_15_bits: bool) -> None:
    """For few and for many rows, and for sizes that are no multiples of a vector."""
    weight = whole_rows(n, k, 127, seed=1)
    x = whole_rows(13, k, 127, seed=2)
    got = Int8Linear(Linear(weight, None), in_15_bits=in_15_bits)(x)
    wanted = x.double() @ weight.double().t()
    assert torch.allclose(got.double(), wanted, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("level", [each for each in HERE if each in WITHOUT_TILES], indirect=True)
@pytest.mark.parametrize("n_rows", [7, 12, 16, 33, 100])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (65, 62), (64, 64), (130, 200), (256, 1024)])
@pytest.mark.parametrize(("in_15_bits", "weights_in_15_bits"), [(False, False), (True, False), (True, True)])
def test_tile_registers_give_the_bits_of_the_level_without(
    level: str, monkeypatch: pytest.MonkeyPatch, n_rows: int, n: int, k: int, in_15_bits: bool, weights_in_15_bits: bool
) -> None:
    """In tiles of few rows and in whole ones, with a rest of the inner dimension and without one."""
    x, linear = randn(n_rows, k, seed=2), Linear(randn(n, k, seed=1), randn(n, seed=3))
    found = []
    for each in (level, WITHOUT_TILES[level]):
        monkeypatch.setenv(library.LEVEL_VARIABLE, each)
        library._loaded.cache_clear()
        assert library.level() == each
        found.append(Int8Linear(linear, in_15_bits=in_15_bits, weights_in_15_bits=weights_in_15_bits)(x))
    assert torch.equal(*found)


def test_the_largest_sums_do_not_saturate() -> None:
    """Two neighbouring products of 127 x 255 do not fit into 16 bits."""
    for sign in (1.0, -1.0):
        weight, x = torch.full((8, 4096), 127.0), torch.full((5, 4096), 127.0 * sign)
        got = Int8Linear(Linear(weight, None))(x)
        assert torch.allclose(got, torch.full((5, 8), sign * 127.0 * 127.0 * 4096), rtol=1e-6)


def test_rows_of_8_and_of_15_bits_have_the_error_of_their_rounding() -> None:
    weight, x = whole_rows(100, 300, 127, seed=1), randn(20, 300, seed=2)
    wanted = x @ weight.t()
    assert 1e-3 < error(Int8Linear(Linear(weight, None))(x), wanted) < 0.01
    assert error(Int8Linear(Linear(weight, None), in_15_bits=True)(x), wanted) < 4e-5


def test_weights_of_8_and_of_15_bits_have_the_error_of_their_rounding() -> None:
    weight, x = randn(100, 300, seed=2), whole_rows(20, 300, 127, seed=1)
    wanted = x @ weight.t()
    assert 1e-3 < error(Int8Linear(Linear(weight, None))(x), wanted) < 0.01
    assert error(Int8Linear(Linear(weight, None), weights_in_15_bits=True)(x), wanted) < 4e-5
    both = Int8Linear(Linear(weight, None), in_15_bits=True, weights_in_15_bits=True)
    assert error(both(randn(20, 300)), randn(20, 300) @ weight.t()) < 8e-5


def test_weights_have_a_scale_per_output() -> None:
    weight = randn(40, 64, seed=1) * torch.logspace(-6, 6, 40)[:, None]
    x = randn(9, 64, seed=2)
    got, wanted = Int8Linear(Linear(weight, None), in_15_bits=True)(x), x @ weight.t()
    assert all(error(got[:, i], wanted[:, i]) < 0.02 for i in range(40))


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    linear = Linear(randn(83, 75, seed=1), randn(83, seed=4))
    norm = LayerNorm(randn(75, seed=5), randn(75, seed=6), 1e-5)
    for int8 in (Int8Linear(linear), Int8Linear(linear, norm, gelu=True), Int8Linear(linear, in_15_bits=True)):
        x = randn(40, 75, seed=2) * torch.logspace(-2, 2, 40)[:, None]
        together = int8(x)
        for n in (1, 2, 3, 5, 17):
            assert torch.equal(torch.cat([int8(part) for part in torch.split(x, n)]), together)


@pytest.mark.parametrize("k", [64, 75])
def test_the_norm_comes_before(k: int) -> None:
    linear, x = Linear(randn(50, k, seed=1), randn(50, seed=2)), randn(3, 4, k, seed=3) * 7 + 2
    layer_norm = LayerNorm(randn(k, seed=4), randn(k, seed=5), 1e-5)
    rms_norm = RmsNorm(randn(k, seed=4), 1e-6)
    factors = randn(k, seed=6)
    for norm, wanted in ((layer_norm, layer_norm(x)), (rms_norm, rms_norm(x)), (factors, x * factors)):
        assert error(Int8Linear(linear, norm, in_15_bits=True)(x), linear(wanted)) < 0.01
    assert error(Int8Linear(linear)(layer_norm(x)), Int8Linear(linear, layer_norm)(x)) < 1e-3


def test_gelu_is_more_exact_than_the_rounding_behind_it() -> None:
    """In a row with a peak of 1, and in a row of small values."""
    weight = torch.cat([torch.linspace(-9, 9, 20_001), torch.linspace(-0.1, 0.1, 2_001), torch.tensor([1e6, -1e6])])
    linear, one = Linear(weight[:, None], None), torch.ones(1, 1)
    plain, got = (Int8Linear(linear, gelu=gelu)(one).double() for gelu in (False, True))
    far = (got - F.gelu(plain)).abs()
    assert far[plain < 1e5].max() < GELU_ERROR
    assert (far <= plain.abs() / 254).all()


def test_gelu_of_values_that_are_not_finite_is_not_finite() -> None:
    bias = torch.zeros(200)
    bias[[3, 70, 199]] = torch.tensor([math.nan, math.inf, -math.inf])
    y = Int8Linear(Linear(randn(200, 64, seed=1), bias), gelu=True)(randn(2, 64, seed=2))
    assert y.isfinite().equal(bias.isfinite().expand(2, -1))


def test_gelu_and_the_residual_sum_come_after() -> None:
    linear, x = Linear(randn(130, 64, seed=1), randn(130, seed=2)), randn(7, 64, seed=3)
    plain = Int8Linear(linear)(x)
    assert (Int8Linear(linear, gelu=True)(x) - F.gelu(plain)).abs().max() < GELU_ERROR
    total = randn(7, 130, seed=4)
    wanted = total + plain
    assert Int8Linear(linear)(x, add_to=total) is total
    assert torch.allclose(total, wanted, atol=1e-6)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_windows_are_those_of_a_convolution(n_steps: int) -> None:
    weight, bias, x = randn(20, 24, n_steps, seed=1), randn(20, seed=2), randn(2, 11, 24, seed=3)
    windows = Int8Linear(Linear(weight.transpose(1, 2).flatten(1), bias), in_15_bits=True)
    wanted = F.conv1d(x.transpose(1, 2), weight, bias).transpose(1, 2)
    got = windows.of_windows(x, n_steps)
    assert got.shape == wanted.shape and error(got, wanted) < 0.01


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [3, 70])
def test_values_that_are_not_finite_stay_in_their_row(bad: float, place: int) -> None:
    norm = LayerNorm(torch.ones(75), torch.zeros(75), 1e-5)
    for int8 in (
        Int8Linear(Linear(randn(20, 75, seed=1), None)),
        Int8Linear(Linear(randn(20, 75, seed=1), None), norm),
        Int8Linear(Linear(randn(20, 75, seed=1), None), in_15_bits=True),
    ):
        x = randn(5, 75, seed=2)
        clean = int8(x)
        x[2, place] = bad
        y = int8(x)
        assert not y[2].isfinite().any()
        assert torch.equal(y[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_a_weight_that_is_not_finite_makes_its_output_not_finite() -> None:
    weight = randn(20, 64, seed=1)
    weight[7, 9] = math.nan
    y = Int8Linear(Linear(weight, None))(randn(3, 64))
    assert not y[:, 7].isfinite().any() and y[:, [6, 8]].isfinite().all()


def test_zeros_stay_zeros() -> None:
    weight, bias = randn(20, 64, seed=1), randn(20, seed=2)
    weight[4] = 0.0
    x = randn(3, 64, seed=3)
    x[1] = 0.0
    y = Int8Linear(Linear(weight, bias))(x)
    assert torch.equal(y[1], bias) and torch.equal(y[:, 4], bias[4].expand(3))


@pytest.mark.parametrize("d", [64, 37])
def test_norm_mish_is_the_norm_and_then_mish(d: int) -> None:
    x, weight, bias = randn(9, d, seed=1) * 20, randn(d, seed=2) * 15, randn(d, seed=3)
    wanted = F.mish(F.layer_norm(x, (d,), weight, bias, 1e-5))
    functions().norm_mish(x.data_ptr(), 9, d, weight.data_ptr(), bias.data_ptr(), 1e-5)
    assert torch.allclose(x, wanted, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------- attention


def attended(qkv: Tensor, cuts: list[int], capacities: list[int], n_heads: int, layer: int = 0) -> Tensor:
    """qkv [rows, T, 3 H d] block by block, ends `cuts`, into pieces of these capacities -> [rows, T, H d]"""
    lib = functions()
    n_rows, _, d = qkv.shape
    d_head = d // 3 // n_heads
    memories = [
        torch.full(((layer + 1) * n_rows * n_heads * c * lib.bytes_per_position(d_head),), 255, dtype=torch.uint8)
        for c in capacities
    ]
    pieces = [Piece(memory.data_ptr(), c, 0) for memory, c in zip(memories, capacities, strict=True)]
    outs, begin, n_used = [], 0, 1
    for end in cuts:
        part = qkv[:, begin:end].contiguous()
        if pieces[n_used - 1].n + end - begin > pieces[n_used - 1].capacity:
            n_used += 1
        array = (Piece * n_used)(*pieces[:n_used])
        out = torch.empty(n_rows, end - begin, d // 3)
        address = ctypes.addressof(array)
        lib.attend(
            part.data_ptr(), n_rows, end - begin, n_heads, d_head, layer, BLOCK, address, n_used, out.data_ptr()
        )
        pieces[n_used - 1].n += end - begin
        outs.append(out)
        begin = end
    return torch.cat(outs, dim=1)


def exact(qkv: Tensor, n_heads: int) -> Tensor:
    n_rows, n, _ = qkv.shape
    q, k, v = (part.view(n_rows, n, n_heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    i = torch.arange(n)
    mask = i[None] < (i[:, None] // BLOCK + 1) * BLOCK
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("d_head", [8, 64, 100])
@pytest.mark.parametrize(
    ("cuts", "capacities"),
    [
        ([50], [64]),
        ([150, 200, 250, 263], [160, 128]),
        ([50, 100, 150, 157], [64, 64, 64]),
        ([107], [112]),
    ],
)
def test_attention_sees_whole_blocks(d_head: int, cuts: list[int], capacities: list[int]) -> None:
    """Block by block and in several blocks at once, over one piece and several; memory is not zeroed before."""
    qkv = randn(2, cuts[-1], 3 * 2 * d_head, seed=1)
    got = attended(qkv, cuts, capacities, n_heads=2)
    assert error(got, exact(qkv, 2)) < 0.015


def test_attention_is_the_same_for_any_pieces() -> None:
    qkv = randn(2, 200, 3 * 128, seed=1)
    one = attended(qkv, [50, 100, 150, 200], [208], n_heads=2)
    assert torch.allclose(attended(qkv, [50, 100, 150, 200], [112, 112], n_heads=2), one, rtol=1e-3, atol=1e-4)
    assert torch.equal(attended(qkv, [200], [208], n_heads=2)[:, :150], attended(qkv, [150, 200], [208], 2)[:, :150])


def test_each_layer_has_memory_of_its_own() -> None:
    qkv = randn(1, 60, 3 * 64, seed=1)
    assert torch.equal(attended(qkv, [50, 60], [64], 1, layer=3), attended(qkv, [50, 60], [64], 1))


def test_attention_to_one_key_among_many_small_ones() -> None:
    """A weight of 1 beside 199 weights of 0.002 each, which together are a quarter of the sum."""
    qkv = torch.zeros(1, 200, 192)
    qkv[:, :, 0] = 8 * math.log(500)
    qkv[:, 17, 64] = 1.0
    qkv[:, :, 128:] = randn(1, 200, 64, seed=2) + 1
    assert error(attended(qkv, [200], [208], 1), exact(qkv, 1)) < 0.01


def test_equal_weights_of_many_keys_do_not_overflow() -> None:
    """1,500 weights of 14 bits, all the largest, times values that are all 127: 45 % more than 31 bits hold."""
    qkv = torch.zeros(1, 1500, 192)
    qkv[:, :, 128:] = 3.0
    out = attended(qkv, [1500], [1504], 1)
    assert torch.allclose(out[:, 1450:], torch.full((1, 50, 64), 3.0), rtol=1e-3)


def test_huge_scores_are_finite() -> None:
    qkv = randn(1, 50, 192, seed=3) * 100
    assert attended(qkv, [50], [64], 1).isfinite().all()


def test_a_row_that_is_not_finite_stays_not_finite() -> None:
    qkv = randn(1, 50, 192, seed=3)
    qkv[0, 7] = math.nan
    assert not attended(qkv, [50], [64], 1)[0, 7].isfinite().any()


def test_a_value_that_is_not_finite_shows_in_all_rows_that_see_it() -> None:
    """Also if its query and its key are finite."""
    qkv = randn(1, 70, 3 * 12)
    qkv[0, 55, 24] = math.nan
    assert not attended(qkv, [70], [80], 1)[0, 50:].isfinite().all(dim=-1).any()


def test_a_map_of_no_rows_gives_no_rows() -> None:
    assert Int8Linear(Linear(randn(70, 40), None))(torch.zeros(0, 40)).shape == (0, 70)


# --------------------------------------------------------------- a step of a language model


def small_lm(factor: float = 1.0) -> LanguageModel:
    """Its gates are `factor` times as large as usual."""
    config = LmConfig(d_model=36, n_layers=2, n_heads=6, n_kv_heads=2, d_ff=50)
    d, d_head, d_ff = config.d_model, config.d_head, config.d_ff

    def layer(seed: int) -> DecoderLayer:
        gate_up = randn(2 * d_ff, d, seed=seed + 2)
        gate_up[:d_ff] *= factor
        norm = RmsNorm(1 + 0.1 * randn(d, seed=seed + 5), 1e-6)
        n_qkv = d + 2 * config.n_kv_heads * d_head
        return DecoderLayer(
            qkv=Int8Matrix(randn(n_qkv, d, seed=seed), norm),
            qkv_bias=randn(n_qkv, seed=seed + 1),
            out=Int8Matrix(randn(d, d, seed=seed + 3)),
            gate_up=Int8Matrix(gate_up, norm),
            down=Int8Matrix(randn(d, d_ff, seed=seed + 4)),
        )

    tables = {EmbeddingTable.CONTROL: torch.zeros(2, d)}
    return LanguageModel(config, tables, [layer(10), layer(20)], torch.ones(d), Int8Matrix(randn(9, d)), torch.zeros(9))


def test_a_prompt_has_the_bits_of_its_rows_one_by_one() -> None:
    """Of few rows and of many, behind other positions; another slot stays as it is."""
    lm = small_lm()
    cache, other = lm.new_cache(3, 60), lm.new_cache(3, 60)
    for n in (2, 40):
        x = randn(n, lm.config.d_model, seed=n)
        together = lm.extend(x, 1, cache)
        one_by_one = torch.cat([lm.decode(row[None], [1], other) for row in x])
        assert torch.equal(together, one_by_one)
    assert torch.equal(cache.data, other.data) and cache.lengths[1] == other.lengths[1] == 42
    assert not cache.data[:, :, [0, 2]].any() and cache.data[:, :, 1, :, :42].all()


@pytest.mark.parametrize("factor", [1.0, 300.0, 3000.0])
def test_a_step_in_one_call_is_its_layers(factor: float) -> None:
    """Also if gates lie far below -88, where e^-x has no float32."""
    lm = small_lm(factor)
    d = lm.config.d_model
    cache, other = lm.new_cache(3, 20), lm.new_cache(3, 20)
    for step in range(4):
        x, slots, starts = randn(2, d, seed=step), [2, 0], [other.room(2, 1), other.room(0, 1)]
        wanted = lm.run_layers(x.clone(), other.rotary[:, starts], AttendSlots(other, slots, starts))
        other.lengths[2], other.lengths[0] = step + 1, step + 1
        assert error(lm.decode(x, slots, cache), wanted) < 2e-3
        assert error(cache.data, other.data) < 2e-3
