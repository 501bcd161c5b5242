"""The generator of Kokoro-82M by our own kernels, in bfloat16. It is nine tenths of the network's work.

onnxruntime multiplies these bytes slowly and makes ten passes over memory for each norm and snake. The kernels
(kernels/generator_layers.h) compute norm, snake and convolution in one call, with AMX if the processor has
it. The weights are those of the int8 file. A byte is exact in bfloat16, so only the inputs of a convolution are
rounded. The work can be stopped between two convolutions.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from telephony_tts.engines import onnx_graph
from telephony_tts.engines.kernels import library as kernels
from telephony_tts.engines.kernels.library import Activation, GeneratorConv

Wave = npt.NDArray[np.float32]
Check = Callable[[], None]

_PREFIX = "/decoder/decoder/generator/"
BLOCKS = {
    "noise_res.0": 7, "resblocks.0": 3, "resblocks.1": 7, "resblocks.2": 11,
    "noise_res.1": 11, "resblocks.3": 3, "resblocks.4": 7, "resblocks.5": 11,
}  # fmt: skip
"""The taps of the residual blocks' convolutions."""
_DILATIONS = (1, 3, 5)
_NORM_EPSILON = 1e-5
_N_SOURCE, _N_SOURCE_PADDED = 22, 32
"""Channels of the harmonic source's spectrum; the kernels take a multiple of 32."""
_N_SPECTRUM = 22

STYLES = [
    f"{_PREFIX}{block}/adain{half}.{turn}/fc/Gemm_output_0"
    for block, turn, half in product(BLOCKS, range(len(_DILATIONS)), (1, 2))
]
"""The tensors with the gains and shifts of the norms, [1, 2 × channels] each, which the front makes of the style."""


_BUILDING = threading.Lock()


def fits() -> bool:
    """Whether the kernels can do this on this machine. Builds them first if they are missing, in ten seconds."""
    with _BUILDING:
        is_built = kernels.available()
    return is_built and "avx512_bf16" in kernels.cpu_flags() and _n_outputs() > 0


def _n_outputs() -> int:
    n: int = kernels.functions().bfloat16_outputs()
    return n


def _with_amx() -> bool:
    return kernels.level() == kernels.AMX


class _Conv:
    """A convolution over time, [T, C] to [T', C'], and what is done to its input."""

    def __init__(self, weight: Any, bias: Wave, dilation: int = 1, *, gain: float = 1.0, slope: float = 1.0) -> None:
        """`weight` [C', C, taps]. The input is multiplied by `gain`, and by `slope` where it is negative."""
        panel = _n_outputs()
        n_out, n_in, n_taps = weight.shape
        padded = np.zeros((-(-n_out // panel) * panel, -(-n_in // 32) * 32, n_taps), np.uint16)
        padded[:n_out, :n_in] = _bfloat16(weight)
        self.n_out, self.n_in = padded.shape[:2]
        panels = padded.reshape(self.n_out // panel, panel, self.n_in // 2, 2, n_taps).transpose(0, 4, 2, 1, 3)
        self._weights = np.ascontiguousarray(panels)
        self._bias = np.zeros(self.n_out, np.float32)
        self._bias[:n_out] = bias
        self._of = GeneratorConv(
            self._weights.ctypes.data, self._bias.ctypes.data, self.n_in, self.n_out, n_taps, dilation
        )
        self._n_lost = (n_taps - 1) * dilation
        self._gain, self._slope = gain, slope

    def __call__(
        self,
        x: Wave,
        left: int,
        right: int,
        snake: tuple[Wave, Wave, Wave, Wave] | None = None,
        out: Wave | None = None,
        adds: bool = False,
    ) -> Wave:
        """x [T, C] between so many zeros. The result [T', C'] is put into `out`, or added to it. `snake`: the gains and
        shifts of a norm, alpha, and what the square of the sine is multiplied by."""
        y = _empty(len(x) + left + right - self._n_lost, self.n_out) if out is None else out
        pointers = [each.ctypes.data for each in snake] if snake else [None] * 4
        before = Activation(*pointers, self._slope, self._gain)
        kernels.functions().generator_conv(
            ctypes.byref(self._of), ctypes.byref(before), x.ctypes.data, len(x), left, right,
            y.ctypes.data if adds else None, y.ctypes.data, _with_amx(),
        )  # fmt: skip
        return y


def _empty(n: int, n_channels: int) -> Wave:
    """[n, n_channels] in memory that the system gets back with the array. malloc would keep up to 100 MB a thread."""
    pages = mmap.mmap(-1, max(1, n * n_channels * 4), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.float32, n * n_channels).reshape(n, n_channels)


def _bfloat16(values: Wave) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = bits >> 16 & 1
    odd += bits
    odd += 0x7FFF
    odd >>= 16
    return odd.astype(np.uint16)


class _Block:
    """A residual block: three times norm, snake, convolution, norm, snake, convolution, and the sum with its input."""

    def __init__(self, name: str, file: _File) -> None:
        n_taps = BLOCKS[name]
        self._convs: list[tuple[_Conv, int, Wave, Wave]] = []
        for turn, half in product(range(len(_DILATIONS)), (1, 2)):
            weight, bias, scale = file.quantized(f"{name}.convs{half}.{turn}")
            dilation = _DILATIONS[turn] if half == 1 else 1
            alpha = file.tensor(f"decoder.decoder.generator.{name}.alpha{half}.{turn}").flatten()  # no view of the file
            conv = _Conv(weight, bias, dilation, gain=scale)
            self._convs.append((conv, (n_taps - 1) * dilation // 2, alpha, 1 / alpha))

    def __call__(self, x: Wave, between: Wave, styles: Sequence[Wave], weights: Wave, check: Check) -> None:
        """x [T, C] is overwritten with the result, and `between` with anything. `styles`: [2 C] for each norm."""
        for n, (conv, n_around, alpha, inverse) in enumerate(self._convs):
            check()
            is_second = n % 2 == 1
            read, written = (between, x) if is_second else (x, between)
            snake = (*_norm(read, styles[n], weights), alpha, inverse)
            conv(read, n_around, n_around, snake, written, is_second)


def _norm(x: Wave, style: Wave, weights: Wave) -> tuple[Wave, Wave]:
    """What each channel is multiplied by, and what is added to it. The mean and variance over time are weighted."""
    n, n_channels = x.shape
    sums = np.empty((2, n_channels))
    kernels.functions().channel_sums(x.ctypes.data, weights.ctypes.data, n, n_channels, sums.ctypes.data)
    mean = sums[0]
    deviation = np.sqrt(np.maximum(sums[1] - mean * mean, 0) + _NORM_EPSILON)
    gains = (1 + style[:n_channels]) / deviation
    return gains.astype(np.float32), (style[n_channels:] - mean * gains).astype(np.float32)


class _File:
    """The constants of the generator in the model file."""

    def __init__(self, model: onnx_graph.Model) -> None:
        self._nodes = {node.name: node for node in onnx_graph.nodes(model) if node.name.startswith(_PREFIX)}
        self._tensors = onnx_graph.tensors(model)

    def tensor(self, name: str) -> Any:
        return self._tensors[name]

    def quantized(self, name: str) -> tuple[Wave, Wave, float]:
        """(the weight of a convolution in whole numbers, its bias, what the weight is to be multiplied by)"""
        _, weight, _, zero = self._nodes[f"{_PREFIX}{name.replace('.convs', '/convs')}/Conv_quant"].inputs
        scale = float(self._tensors[weight.removesuffix("_quantized") + "_scale"])
        whole = self._tensors[weight] - np.float32(self._tensors[zero])
        return whole, self._tensors[f"decoder.decoder.generator.{name}.bias"], scale

    def plain(self, name: str) -> tuple[Wave, Wave]:
        """(the weight of a convolution, its bias)"""
        _, weight, bias = self._nodes[_PREFIX + name].inputs
        return self._tensors[weight], self._tensors[bias]


class Generator:
    """Loads its weights in the constructor. Several threads may call it at once."""

    def __init__(self, model: onnx_graph.Model) -> None:
        file = _File(model)
        self._blocks = {name: _Block(name, file) for name in BLOCKS}
        weight, bias, scale = file.quantized("noise_convs.0")  # [256, 22, 12], six steps of the source for one output
        padded = np.zeros((len(weight), _N_SOURCE_PADDED, 12), np.float32)
        padded[:, :_N_SOURCE] = weight
        pairs = padded.reshape(len(weight), _N_SOURCE_PADDED, 2, 6).transpose(0, 3, 1, 2)
        self._noise_0 = _Conv(pairs.reshape(len(weight), -1, 2), bias, gain=scale)
        weight, bias, scale = file.quantized("noise_convs.1")
        self._noise_1 = _Conv(weight, bias, gain=scale)
        self._up_0 = _upsampling(*file.plain("ups.0/ConvTranspose"), 10, 1.0)
        self._up_1 = _upsampling(*file.plain("ups.1/ConvTranspose"), 6, 1 / 3)
        self._post = _Conv(*file.plain("conv_post/Conv"), gain=1 / 3, slope=0.01)

    def __call__(self, hidden: Wave, source: Wave, styles: Sequence[Wave], weights: Wave, check: Check) -> Wave:
        """The spectrum of the sound, [1, 22, 120 n + 1], of n units.

        `hidden` [1, 512, 2 n] comes from the decoder and `source` [1, 22, 120 n + 1] from the front; `styles` are the
        values of STYLES; `weights` [n] are the shares of the units in each mean over time. `check` is called every few
        milliseconds and may raise an exception.
        """
        n = len(weights)
        at_20, at_120 = np.repeat(weights, 20), np.append(np.repeat(weights, 120), weights[-1])
        at_20, at_120 = ((each / each.sum()).astype(np.float32) for each in (at_20, at_120))
        steps = np.zeros((120 * n + 6, _N_SOURCE_PADDED), np.float32)
        steps[3:-2, :_N_SOURCE] = source[0].T
        x = self._up_0(np.ascontiguousarray(hidden[0].T), 1, 1).reshape(-1, 256)[5:-5]
        noise = self._noise_0(steps.reshape(20 * n + 1, -1), 0, 0)
        x = self._stage(list(BLOCKS)[:4], x, noise, styles[:24], at_20, check)
        check()
        x = self._up_1(x, 1, 1).reshape(-1, 128)[2:-3]
        x[0] = x[2]  # padded by reflection
        x = self._stage(list(BLOCKS)[4:], x, self._noise_1(steps[3:-2], 0, 0), styles[24:], at_120, check)
        return np.ascontiguousarray(self._post(x, 3, 3)[:, :_N_SPECTRUM].T)[None]

    def _stage(
        self, names: Sequence[str], x: Wave, noise: Wave, styles: Sequence[Wave], weights: Wave, check: Check
    ) -> Wave:
        """The first block is that of the noise. The sum of the others, each of them over x + noise, [T, C]. `x` and
        `noise` are overwritten."""
        between, total = _empty(*x.shape), _empty(*x.shape)
        n_norms = len(styles) // len(names)

        def block(number: int, x: Wave) -> None:
            self._blocks[names[number]](x, between, styles[number * n_norms :], weights, check)

        block(0, noise)
        x += noise
        noise[:] = x
        total[:] = x
        block(1, total)
        block(2, noise)
        total += noise
        block(3, x)
        total += x
        return total


def _upsampling(weight: Wave, bias: Wave, rate: int, gain: float) -> _Conv:
    """A transposed convolution, [C, C', 2 × rate], as one of two taps that makes all `rate` outputs of a step side by
    side. Its first and last rate / 2 outputs are to be cut off."""
    n_in, n_out, _ = weight.shape
    later, now = weight.reshape(n_in, n_out, 2, rate).transpose(2, 3, 1, 0).reshape(2, rate * n_out, n_in)[::-1]
    return _Conv(np.stack((later, now), axis=-1), np.tile(bias, rate), gain=gain, slope=0.1)
