"""Two small ONNX graphs with the inputs and outputs of the official ones, for random checkpoints.

A model file is one protobuf message, and these functions write it byte by byte. The package `onnx` would do it too. But
`models random` and the benchmarks are commands for users, which would then need its wheel (9 MB) and protobuf for these
two files. The tests run both graphs in onnxruntime. Field numbers are those of onnx.proto3, operator set 13.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FLOAT, INT32 = 1, 6
IR_VERSION, OPERATOR_SET = 8, 13

N_MELS, N_EMBEDDING = 80, 192
N_TOKEN_MELS, N_DIGITS = 128, 8
"""The codebook: 8 digits of three levels each make 6561 tokens (specification 1)."""
FRAMES_PER_TOKEN = 4

Dims = Sequence[int | str]


def speaker_graph(seed: int) -> bytes:
    """campplus.onnx: log-mel features [B, T, 80] -> embedding [B, 192], a projection of their mean squares."""
    random = np.random.default_rng([seed, 1])
    projection = (random.standard_normal((N_MELS, N_EMBEDDING)) / np.sqrt(N_MELS)).astype(np.float32)
    nodes = [
        _node("Mul", ["input", "input"], ["squares"]),  # the mean over time was removed from the features
        _node("ReduceMean", ["squares"], ["energy"], _ints("axes", [1]), _int("keepdims", 0)),
        _node("MatMul", ["energy", "projection"], ["output"]),
    ]
    inputs = [_value("input", FLOAT, ["B", "T", N_MELS])]
    return _model(nodes, [_tensor("projection", projection)], inputs, [_value("output", FLOAT, ["B", N_EMBEDDING])])


def token_graph(seed: int) -> bytes:
    """speech_tokenizer_v2.onnx: Whisper log-mel [1, 128, T] and its length [1] -> tokens [1, floor(T / 4)]."""
    random = np.random.default_rng([seed, 2])
    projection = random.standard_normal((N_TOKEN_MELS, N_DIGITS)).astype(np.float32)
    places = (3.0 ** np.arange(N_DIGITS)).astype(np.float32)[:, None]
    window = [FRAMES_PER_TOKEN]
    nodes = [
        _node("AveragePool", ["feats"], ["pooled"], _ints("kernel_shape", window), _ints("strides", window)),
        _node("Transpose", ["pooled"], ["rows"], _ints("perm", [0, 2, 1])),
        _node("MatMul", ["rows", "projection"], ["scores"]),
        _node("Tanh", ["scores"], ["levels"]),
        _node("Round", ["levels"], ["rounded"]),
        _node("Add", ["rounded", "one"], ["digits"]),
        _node("MatMul", ["digits", "places"], ["columns"]),
        _node("Cast", ["columns"], ["ids"], _int("to", INT32)),
        _node("Squeeze", ["ids", "last"], ["indices"]),
    ]
    constants = [
        _tensor("projection", projection),
        _tensor("places", places),
        _tensor("one", np.ones(1, np.float32)),
        _tensor("last", np.array([2], np.int64)),
    ]
    inputs = [_value("feats", FLOAT, [1, N_TOKEN_MELS, "T"]), _value("feats_length", INT32, [1])]
    return _model(nodes, constants, inputs, [_value("indices", INT32, [1, "P"])])


# --------------------------------------------------------------------------- messages


def _model(nodes: list[bytes], constants: list[bytes], inputs: list[bytes], outputs: list[bytes]) -> bytes:
    graph = b"".join(
        [
            *(_field(1, node) for node in nodes),
            _field(2, b"stand-in"),
            *(_field(5, constant) for constant in constants),
            *(_field(11, value) for value in inputs),
            *(_field(12, value) for value in outputs),
        ]
    )
    mark = _field(14, _field(1, b"random") + _field(2, b"true"))
    operators = _field(8, _field(1, b"") + _number(2, OPERATOR_SET))
    return _number(1, IR_VERSION) + _field(2, b"telephony-tts") + _field(7, graph) + operators + mark


def _node(operator: str, inputs: list[str], outputs: list[str], *attributes: bytes) -> bytes:
    return b"".join(
        [
            *(_field(1, name.encode()) for name in inputs),
            *(_field(2, name.encode()) for name in outputs),
            _field(4, operator.encode()),
            *(_field(5, attribute) for attribute in attributes),
        ]
    )


def _int(name: str, value: int) -> bytes:
    return _field(1, name.encode()) + _number(3, value) + _number(20, 2)


def _ints(name: str, values: Sequence[int]) -> bytes:
    return _field(1, name.encode()) + b"".join(_number(8, value) for value in values) + _number(20, 7)


def _tensor(name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> bytes:
    kind = FLOAT if array.dtype == np.float32 else 7
    dims = b"".join(_number(1, n) for n in array.shape)
    little_endian = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return dims + _number(2, kind) + _field(8, name.encode()) + _field(9, little_endian)


def _value(name: str, kind: int, dims: Dims) -> bytes:
    shape = b"".join(
        _field(1, _field(2, dim.encode()) if isinstance(dim, str) else _number(1, dim)) for dim in dims
    )
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, kind) + _field(2, shape)))


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field, which holds a string, bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = []
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return struct.pack(f"{len(out) + 1}B", *out, value)
