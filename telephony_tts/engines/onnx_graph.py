"""Changes to a serialised ONNX model (onnx.proto) that need no package: an output more, or a part of the graph.

A protobuf message is a series of fields: a key, which has the field's number and wire type, and its content. Fields
that are kept are copied as they stand. `session` runs such a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5

_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP = 1, 2, 3, 4
_TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_FLOAT, _TENSOR_INT32, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 4, 5, 8, 9
_VALUE_NAME, _VALUE_TYPE = 1, 2
_FLOAT, _UINT8 = 1, 2

Model = bytes | bytearray
Tensor = npt.NDArray[Any]
Shape = Sequence[int | str]
"""The sizes of a tensor; a text is a name for a size that differs from run to run."""


def session(model: bytes) -> Any:
    """An onnxruntime session with one thread. Several threads may run it at once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    opened = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    opened._model_bytes = None  # kept only to start again with other providers: 92 MB of Kokoro
    return opened


def output(name: str) -> bytes:
    """Bytes that add a graph output when they follow a serialised model: protobuf merges what occurs twice."""
    return _field(_MODEL_GRAPH, _field(_OUTPUT, _field(_VALUE_NAME, name.encode())))


def nodes(model: Model) -> list[Node]:
    graph = next(value for number, value, _ in _fields(memoryview(model)) if number == _MODEL_GRAPH)
    return [Node(value) for number, value, _ in _fields(graph) if number == _NODE]


def tensors(model: Model) -> dict[str, Tensor]:
    """The constants of the graph that are float32 or uint8, as views of the model's bytes."""
    graph = next(value for number, value, _ in _fields(memoryview(model)) if number == _MODEL_GRAPH)
    read = (_tensor(value) for number, value, _ in _fields(graph) if number == _INITIALIZER)
    return {name: tensor for name, tensor in read if tensor is not None}


def _tensor(message: memoryview) -> tuple[str, Tensor | None]:
    shape: list[int] = []
    data, type_number, small = memoryview(b""), 0, []
    for number, value, whole in _fields(message):
        if number == _TENSOR_SHAPE:
            shape += _numbers(value or whole[1:])
        elif number == _TENSOR_TYPE:
            (type_number,) = _numbers(whole[1:])
        elif number == _TENSOR_INT32:
            small += _numbers(value or whole[1:])
        elif number in (_TENSOR_FLOAT, _TENSOR_RAW):
            data = value
    dtype = {_FLOAT: np.float32, _UINT8: np.uint8}.get(type_number)
    name = _name(message, _TENSOR_NAME)
    if dtype is None:
        return name, None
    flat = np.frombuffer(data, dtype) if len(data) else np.asarray(small, dtype)
    return name, flat.reshape(shape)


def _numbers(packed: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(packed):
        number, at = _read_varint(packed, at)
        numbers.append(number)
    return numbers


def matrix_product(name: str, left: str, right: str, result: str) -> bytes:
    """A node that multiplies two tensors."""
    fields = (
        (_NODE_INPUT, left),
        (_NODE_INPUT, right),
        (_NODE_OUTPUT, result),
        (_NODE_NAME, name),
        (_NODE_OP, "MatMul"),
    )
    return b"".join(_field(number, text.encode()) for number, text in fields)


class Node:
    """One operation: its type, its name, and the names of its tensors."""

    def __init__(self, content: memoryview) -> None:
        self.content: bytes | memoryview = content
        texts: dict[int, list[str]] = {number: [] for number in (_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP)}
        for number, value, _ in _fields(content):
            if number in texts:
                texts[number].append(str(value, "utf-8"))
        self.inputs, self.outputs = texts[_NODE_INPUT], texts[_NODE_OUTPUT]
        self.name, self.op = "".join(texts[_NODE_NAME]), "".join(texts[_NODE_OP])


def part(
    model: Model,
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    replace: Callable[[Node], Node | None] = lambda node: None,
) -> bytes:
    """The model that computes `outputs` from `inputs`, which may be any tensors of `model`. float32 inputs are given
    their shape here; an input of the model itself may be given (), and keeps its declaration.

    `replace` may give another node in place of one. Raises ValueError if a tensor is missing.
    """
    head, graph = bytearray(), memoryview(b"")
    for number, value, whole in _fields(memoryview(model)):
        if number == _MODEL_GRAPH:
            graph = value
        else:
            head += whole
    nodes: list[Node] = []
    tensors: dict[str, memoryview] = {}
    declared: dict[str, memoryview] = {}
    for number, value, whole in _fields(graph):
        if number == _NODE:
            node = Node(value)
            nodes.append(replace(node) or node)
        elif number == _INITIALIZER:
            tensors[_name(value, _TENSOR_NAME)] = whole
        elif number == _INPUT:
            declared[_name(value, _VALUE_NAME)] = whole
    kept, names = _needed(nodes, set(outputs), inputs)
    if missing := names - set(inputs) - set(tensors) - {name for node in kept for name in node.outputs} - {""}:
        raise ValueError(f"the graph has no tensor {sorted(missing)[0]}")
    fields: list[bytes | memoryview] = [_field(_NODE, node.content) for node in kept]
    fields += [whole for name, whole in tensors.items() if name in names]
    fields += [_value(_INPUT, name, shape) if shape else declared[name] for name, shape in inputs.items()]
    fields += [_value(_OUTPUT, name, None) for name in outputs]
    fields.append(_field(2, b"part"))  # GraphProto.name
    size = sum(map(len, fields))
    return b"".join([head, _key(_MODEL_GRAPH, _BYTES), _varint(size), *fields])


def _needed(nodes: Sequence[Node], wanted: set[str], given: Mapping[str, Shape]) -> tuple[list[Node], set[str]]:
    """(the nodes on the way from `given` to `wanted` in their order, the names of all their inputs)."""
    maker = {name: node for node in nodes for name in node.outputs}
    names: set[str] = set()
    kept: set[int] = set()
    while wanted:
        name = wanted.pop()
        if name in names:
            continue
        names.add(name)
        node = maker.get(name)
        if name in given or node is None or id(node) in kept:
            continue
        kept.add(id(node))
        wanted.update(node.inputs)
    return [node for node in nodes if id(node) in kept], names


def _name(message: memoryview, number: int) -> str:
    return next(str(value, "utf-8") for found, value, _ in _fields(message) if found == number)


def _value(number: int, name: str, shape: Shape | None) -> bytes:
    """A ValueInfoProto; without a shape it has a name only."""
    content = _field(_VALUE_NAME, name.encode())
    if shape is not None:
        sizes = b"".join(
            _field(1, _key(1, _VARINT) + _varint(size) if isinstance(size, int) else _field(2, size.encode()))
            for size in shape
        )
        content += _field(_VALUE_TYPE, _field(1, _key(1, _VARINT) + _varint(_FLOAT) + _field(2, sizes)))
    return _field(number, content)


def _field(number: int, content: bytes | memoryview) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + bytes(content)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """(its number, its content, the whole field with its key) of each field. The content of a number is empty."""
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        content = at
        match key & 7:
            case 0:
                _, at = _read_varint(message, at)
                content = at
            case 1:
                content = at = at + 8
            case 5:
                content = at = at + 4
            case 2:
                size, content = _read_varint(message, at)
                at = content + size
            case wire_type:
                raise ValueError(f"this is no ONNX model: wire type {wire_type}")
        yield key >> 3, message[content:at], message[start:at]


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
