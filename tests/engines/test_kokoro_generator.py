"""Kokoro's generator by our own kernels: the formulas, the same sound as by onnxruntime, and a stop within it."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from telephony_tts.engines.kernels import library as kernels
from telephony_tts.engines.kokoro import generator as kokoro_generator
from telephony_tts.engines.kokoro.generator import _Conv, _norm, _upsampling, fits
from telephony_tts.engines.kokoro.model import Clause, KokoroModel, Stop, Terminated
from telephony_tts.engines.kokoro.reading import KokoroReader
from telephony_tts.engines.kokoro.styles import read_styles

pytestmark = [
    pytest.mark.slow,  # it runs a compiler
    pytest.mark.skipif(not fits(), reason="this CPU does not multiply in bfloat16, or there is no compiler"),
]

Array = npt.NDArray[np.float32]


def randn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """To bfloat16."""
    bits = kokoro_generator._bfloat16(x.astype(np.float32)).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


def convolved(x: npt.NDArray[np.float64], weight: Array, bias: Array, dilation: int) -> npt.NDArray[np.float64]:
    n_taps = weight.shape[2]
    n = len(x) - (n_taps - 1) * dilation
    taps = (x[t * dilation : t * dilation + n] @ rounded(weight[:, :, t]).T for t in range(n_taps))
    result: npt.NDArray[np.float64] = np.sum(list(taps), axis=0) + bias
    return result


def error(got: Array, wanted: npt.NDArray[np.float64]) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.fixture(params=["amx", "vectors"])
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    with_amx = request.param == "amx"
    if with_amx and not kokoro_generator._with_amx():
        pytest.skip("this CPU has no AMX")
    with patch.object(kokoro_generator, "_with_amx", lambda: with_amx):
        yield


@pytest.mark.parametrize(("d_in", "d_out", "n_taps", "dilation"), [(128, 128, 11, 5), (32, 64, 1, 1), (256, 192, 3, 3)])
@pytest.mark.parametrize("n", [1, 31, 32, 700])
def test_it_is_the_norm_the_snake_and_then_the_convolution(
    instructions: None, d_in: int, d_out: int, n_taps: int, dilation: int, n: int
) -> None:
    lost = (n_taps - 1) * dilation
    x, weight, bias = randn(n, d_in), randn(d_out, d_in, n_taps, seed=1), randn(d_out, seed=2)
    gains, shifts, alpha = randn(d_in, seed=3), randn(d_in, seed=4), np.abs(randn(d_in, seed=5)) + 0.5
    inverse = (1 / alpha).astype(np.float32)
    value = x.astype(np.float64) * gains + shifts
    wave = rounded(0.25 * (value + np.sin(alpha * value) ** 2 * inverse))
    around = np.pad(wave, ((lost, 3), (0, 0)))
    wanted = convolved(around, weight, bias, dilation)
    conv = _Conv(weight, bias, dilation, gain=0.25)
    # A value next to the middle of two neighbours may be rounded to the other one.
    assert error(conv(x, lost, 3, (gains, shifts, alpha, inverse)), wanted) < 1e-3
    added = randn(n + 3, d_out, seed=6)
    wanted += added
    assert error(conv(x, lost, 3, (gains, shifts, alpha, inverse), added, True), wanted) < 1e-3
    leaky = rounded(np.where(x < 0, x * np.float32(0.1), x))
    assert error(_Conv(weight, bias, dilation, slope=0.1)(x, lost, 0), convolved(
        np.pad(leaky, ((lost, 0), (0, 0))), weight, bias, dilation)) < 1e-3  # fmt: skip


def test_an_upsampling_is_a_transposed_convolution(instructions: None) -> None:
    rate, x, weight, bias = 6, randn(40, 64), randn(64, 32, 12, seed=1), randn(32, seed=2)
    wanted = np.tile(bias.astype(np.float64), (41 * rate, 1))
    for n, row in enumerate(rounded(np.where(x < 0, x * np.float32(0.1), x))):
        wanted[n * rate : n * rate + 2 * rate] += np.einsum("i,iok->ko", row, rounded(weight))
    assert error(_upsampling(weight, bias, rate, 1.0)(x, 1, 1).reshape(-1, 32), wanted) < 1e-3


def test_a_norm_sees_its_weights() -> None:
    x, style = 3 + randn(500, 64), randn(128, seed=1)
    weights = np.abs(randn(500, seed=2))
    weights /= weights.sum()
    gains, shifts = _norm(x, style, weights)
    mean = weights @ x
    variance = weights @ np.square(x - mean)
    wanted = (x - mean) / np.sqrt(variance + 1e-5) * (1 + style[:64]) + style[64:]
    assert np.abs(x * gains + shifts - wanted).max() < 1e-3


@pytest.fixture(scope="module")
def spoken() -> tuple[KokoroModel, Clause]:
    model, reading = KokoroModel(), KokoroReader().read("您好，请问您今天能还款吗？")
    assert model._generator is not None
    return model, model.clause(reading.symbols, read_styles("zm_yunxi"), 1.0, Stop())


def test_the_sound_is_that_of_onnxruntime(spoken: tuple[KokoroModel, Clause]) -> None:
    """The limits: 2 dB of spectrum where it is loud, 0.3 dB of level. Measured: 0.8 and 0.1."""
    model, clause = spoken
    own, plain = model.decode(clause, Stop()), KokoroModel(with_kernels=False).decode(clause, Stop())
    assert len(own) == len(plain) == (clause.last - clause.first) * 600
    spectra = [spectrum(each) for each in (own, plain)]
    loud = spectra[1].mean(axis=1) > spectra[1].mean(axis=1).max() - 30
    assert np.abs(spectra[0] - spectra[1])[loud].mean() < 2.0
    assert abs(10 * np.log10(np.square(own).mean() / np.square(plain).mean())) < 0.3


def spectrum(wave: Array) -> npt.NDArray[np.float64]:
    """In dB, in 64 bands of 40 ms."""
    windows = np.lib.stride_tricks.sliding_window_view(wave, 1024)[::256] * np.hanning(1024)
    power = np.square(np.abs(np.fft.rfft(windows)[:, :512])).reshape(len(windows), 64, 8).mean(axis=2)
    found: npt.NDArray[np.float64] = 10 * np.log10(power + 1e-4)
    return found


def test_a_stop_ends_it_between_two_convolutions(spoken: tuple[KokoroModel, Clause]) -> None:
    model, clause = spoken
    stop, n_done = Stop(), 0
    convolve = kernels.functions().generator_conv

    class Counting:
        def __getattr__(self, name: str) -> object:
            return count if name == "generator_conv" else getattr(functions, name)

    def count(*given: object) -> None:
        nonlocal n_done
        n_done += 1
        if n_done == 10:
            stop.set()
        convolve(*given)

    functions = kernels.functions()
    with patch.object(kernels, "functions", Counting), pytest.raises(Terminated):
        model.decode(clause, stop)
    assert n_done == 10


def test_without_the_kernels_onnxruntime_computes_all(spoken: tuple[KokoroModel, Clause]) -> None:
    with patch.object(kokoro_generator, "fits", lambda: False):
        model = KokoroModel()
    assert model._generator is None
    assert len(model.decode(spoken[1], Stop())) == (spoken[1].last - spoken[1].first) * 600
