"""One Euler step of the flow as an ONNX graph, with keys and values of the past as inputs, run by ONNX Runtime.

Rows are frames, each with both guidance branches: T frames are 2 T rows.

    x [2 T, 320], times [n_stages, C], keys and values of each layer, left contexts [2, 2, C] (frame, branch)
      -> v [2 T, 80], new keys and values of each layer, the next left contexts

Needs the package `onnx`, which writes the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from harness.flow_weights import KERNEL, ROWS, Block, EstimatorWeights, Map, Norm, Stage

NORM_EPS = 1e-5
MISH_IS_LINEAR = 30.0
OPERATOR_SET, IR_VERSION = 20, 10
MICROSOFT = "com.microsoft"

Products = Literal["float32", "dynamic", "shared", "blocks"]
"""dynamic, shared: int8, one scale for all activations (DynamicQuantizeMatMul; or quantised once for queries, keys and
values: MatMulIntegerToFloat). blocks: int8, a scale for each block of a row (MatMulNBits, 8 bits, accuracy level 4)."""
Attention = Literal["none", "joined", "in_place", "pieces", "op_with_past", "flash"]
"""none: left out, for timing. joined: past and new keys are concatenated. in_place: the input already has room for the
new keys at its end, and the same memory is the output. pieces: only the scores are concatenated. op_with_past:
MultiHeadAttention with inputs for the past. flash: MultiHeadAttention on concatenated keys, each head as a row."""
_BY_HEAD = ("op_with_past", "flash")
"""Keys are [2, H, P, D] for these, and [P, 2, H, D] for the others."""


@dataclass(frozen=True)
class GraphOptions:
    products: Products = "float32"
    attention: Attention = "in_place"
    block_size: int = 256
    """Of "blocks": values of a row that share a scale."""
    skip_norm: bool = False
    """Residual and norm in one operation (SkipLayerNormalization)."""


@dataclass
class StepGraph:
    """Nodes and constants while they are written. Methods return the name of their result."""

    weights: EstimatorWeights
    options: GraphOptions
    n_frames: int
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    n_names: int = 0

    def write(self) -> bytes:
        """The model, complete."""
        weights, config = self.weights, self.weights.config
        n_stages = len(weights.stages)
        skip = self.stage("x", weights.stages[0], 0)
        x = self.conv(skip, weights.down, 2 * n_stages, exact=True)
        for i, stage in enumerate(weights.stages[1:-1], 1):
            x = self.stage(x, stage, i)
        x = self.stage(self.op("Concat", [x, skip], axis=1), weights.stages[-1], n_stages - 1)
        x = self.conv(x, weights.up, 2 * n_stages + 1, exact=True)
        x = self.block(x, weights.final, 2 * n_stages + 2, exact=True)
        self.op("Identity", [self.linear(x, weights.projection, exact=True)], into="v")
        n_rows = ROWS * self.n_frames
        inputs = [_value("x", n_rows, config.d_in), _value("times", n_stages, config.n_channels)]
        inputs += [_value(f"left{i}", KERNEL - 1, ROWS, d) for i, d in enumerate(weights.context_widths)]
        by_head = self.options.attention in _BY_HEAD
        past = (
            (ROWS, config.n_heads, "past", config.d_head) if by_head else ("past", ROWS, config.n_heads, config.d_head)
        )
        if self.options.attention != "none":
            inputs += [_value(f"{name}{i}", *past) for i in range(weights.n_layers) for name in ("key", "value")]
        outputs = [_value("v", n_rows, config.d_mel), *self.outputs]
        graph = helper.make_graph(self.nodes, "flow_step", inputs, outputs, self.constants)
        versions = [helper.make_opsetid("", OPERATOR_SET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION)
        serialized: bytes = model.SerializeToString()
        return serialized

    def stage(self, x: str, stage: Stage, index: int) -> str:
        first = index == 0  # its input holds mels beside noise, for which int8 is too coarse
        time = self.op("Gather", ["times", self.constant(np.array(index, np.int64))], axis=0)
        h = self.op("Add", [self.block(x, stage.block_1, 2 * index, exact=first), time])
        h = self.block(h, stage.block_2, 2 * index + 1)
        x = self.op("Add", [h, self.linear(x, stage.skip, exact=first)])
        normed = self.norm(x, stage.layers[0].norm_1)
        for i, layer in enumerate(stage.layers):
            h = self.attention(self.queries_keys_values(normed, layer.qkv, index * len(stage.layers) + i))
            normed, x = self.added_norm(x, self.linear(h, layer.out), layer.norm_3)
            h = self.op("Gelu", [self.linear(normed, layer.ff_1)], domain=MICROSOFT)
            h = self.linear(h, layer.ff_2)
            if i + 1 < len(stage.layers):
                normed, x = self.added_norm(x, h, stage.layers[i + 1].norm_1)
        return self.op("Add", [x, h])

    def conv(self, x: str, weights: Map, slot: int, *, exact: bool = False) -> str:
        """x [2 T, C_in] -> [2 T, C_out] behind left context number `slot`."""
        d, n, axis = weights.weight.shape[1] // KERNEL, self.n_frames, self.ints(0)
        seen = self.op("Concat", [f"left{slot}", self.shaped(x, n, ROWS, d)], axis=0)
        self.op("Slice", [seen, self.ints(n), self.ints(n + KERNEL - 1), axis], into=f"new_left{slot}")
        self.outputs.append(_value(f"new_left{slot}", KERNEL - 1, ROWS, d))
        parts = [self.op("Slice", [seen, self.ints(i), self.ints(i + n), axis]) for i in range(KERNEL)]
        return self.linear(self.shaped(self.op("Concat", parts, axis=2), ROWS * n, KERNEL * d), weights, exact=exact)

    def block(self, x: str, block: Block, slot: int, *, exact: bool = False) -> str:
        return self.mish(self.norm(self.conv(x, block.conv, slot, exact=exact), block.norm))

    def queries_keys_values(self, x: str, weights: Map, layer: int) -> tuple[str, str, str, int]:
        """x [2 T, C] -> queries, keys and values [2 T, H D], and the number of the layer."""
        keep = self.options.attention not in _BY_HEAD
        names = [self.name(), *(f"new_{name}{layer}" if keep else self.name() for name in ("key", "value"))]
        width = weights.weight.shape[0] // 3
        if self.options.products == "shared":
            whole = self.name(), self.name(), self.name()
            self.node("DynamicQuantizeLinear", [x], whole)
            for name, part in zip(names, weights.weight.split(width), strict=True):
                integers, scale = _quantized(part)
                inputs = [whole[0], self.tensor(integers.t()), whole[1], self.tensor(scale), whole[2]]
                self.op("MatMulIntegerToFloat", inputs, into=name, domain=MICROSOFT)
        else:
            self.node("Split", [self.linear(x, weights), self.ints(width, width, width)], names, axis=1)
        if keep:
            self.outputs += [_value(name, ROWS * self.n_frames, width) for name in names[1:]]
        return names[0], names[1], names[2], layer

    def attention(self, parts: tuple[str, str, str, int]) -> str:
        """-> [2 T, H D]"""
        *qkv, layer = parts
        config, n, kind = self.weights.config, self.n_frames, self.options.attention
        n_heads, d = config.n_heads, config.d_head
        if kind == "none":
            return self.op("Add", [qkv[0], qkv[2]])
        if kind == "op_with_past":
            return self.attention_op([self.turned(part, ROWS, n_heads * d) for part in qkv], layer)
        if kind == "flash":
            q, k, v = (self.turned(part, ROWS * n_heads, d) for part in qkv)
            new = [
                self.op("Identity", [self.shaped(part, ROWS, n_heads, n, d)], into=f"new_{name}{layer}")
                for name, part in (("key", k), ("value", v))
            ]
            self.outputs += [_value(name, ROWS, n_heads, n, d) for name in new]
            joined = [self.op("Concat", [f"{name[4:]}", name], axis=2) for name in new]
            rows = [q, *(self.shaped(part, ROWS * n_heads, -1, d) for part in joined)]
            seen = self.op("MultiHeadAttention", rows, domain=MICROSOFT, num_heads=1)
            seen = self.op("Transpose", [seen], perm=[1, 0, 2])
            return self.shaped(seen, ROWS * n, n_heads * d)
        q, k, v = (self.shaped(part, n, ROWS, n_heads, d) for part in qkv)
        keys, values = f"key{layer}", f"value{layer}"
        if kind == "joined":
            keys, values = self.op("Concat", [keys, k], axis=0), self.op("Concat", [values, v], axis=0)
        if kind == "pieces":
            scores = self.op("Concat", [self.scores(q, keys), self.scores(q, k)], axis=3)
            weights, axis, border = self.op("Softmax", [scores], axis=-1), self.ints(3), self.ints(-n)
            past = self.op("Slice", [weights, self.ints(0), border, axis])
            own = self.op("Slice", [weights, border, self.ints(2**62), axis])
            seen = self.op("Add", [self.values(past, values), self.values(own, v)])
        else:
            seen = self.values(self.op("Softmax", [self.scores(q, keys)], axis=-1), values)
        return self.shaped(self.op("Transpose", [seen], perm=[2, 0, 1, 3]), ROWS * n, n_heads * d)

    def attention_op(self, rows: list[str], layer: int) -> str:
        config, n = self.weights.config, self.n_frames
        new, out = [f"new_key{layer}", f"new_value{layer}"], self.name()
        inputs = [*rows, "", "", "", f"key{layer}", f"value{layer}"]
        self.node("MultiHeadAttention", inputs, [out, *new], domain=MICROSOFT, num_heads=config.n_heads)
        self.outputs += [_value(name, ROWS, config.n_heads, "all", config.d_head) for name in new]
        return self.shaped(self.op("Transpose", [out], perm=[1, 0, 2]), ROWS * n, config.n_heads * config.d_head)

    def turned(self, x: str, n_rows: int, d: int) -> str:
        """[2 T, H D] -> [n_rows, T, d]"""
        return self.op("Transpose", [self.shaped(x, self.n_frames, n_rows, d)], perm=[1, 0, 2])

    def scores(self, q: str, keys: str) -> str:
        """q [T, 2, H, D], keys [P, 2, H, D] -> [2, H, T, P]"""
        scale = float(self.weights.config.d_head) ** -0.5
        kinds = {"transBatchA": 1, "transB": 1, "transBatchB": 1, "alpha": scale}
        return self.op("FusedMatMul", [q, keys], domain=MICROSOFT, **kinds)

    def values(self, weights: str, values: str) -> str:
        return self.op("FusedMatMul", [weights, values], domain=MICROSOFT, transBatchB=1)

    def linear(self, x: str, weights: Map, *, exact: bool = False) -> str:
        """x [M, K] -> [M, N]. `exact`: in float32 whatever the options say."""
        weight, products = weights.weight, "float32" if exact else self.options.products
        bias = "" if weights.bias is None else self.tensor(weights.bias)
        if products == "float32":
            return self.op("Gemm", [x, self.tensor(weight.t()), *([bias] if bias else [])])
        if products in ("dynamic", "shared"):
            integers, scale = _quantized(weight)
            inputs = [x, self.tensor(integers.t()), self.tensor(scale), "", bias]
            return self.op("DynamicQuantizeMatMul", inputs, domain=MICROSOFT)
        size = self.options.block_size
        (n, k), (integers, scale) = weight.shape, _quantized(weight.reshape(-1, size))
        stored = (integers.to(torch.int16) + 128).to(torch.uint8).view(n, k // size, size)
        inputs = [x, self.tensor(stored), self.tensor(scale), "", "", bias]
        kinds = {"K": k, "N": n, "bits": 8, "block_size": size, "accuracy_level": 4}
        return self.op("MatMulNBits", inputs, domain=MICROSOFT, **kinds)

    def norm(self, x: str, norm: Norm) -> str:
        inputs = [x, self.tensor(norm.weight), self.tensor(norm.bias)]
        return self.op("LayerNormalization", inputs, axis=-1, epsilon=NORM_EPS)

    def added_norm(self, x: str, h: str, norm: Norm) -> tuple[str, str]:
        """-> LayerNorm(x + h), x + h"""
        if not self.options.skip_norm:
            total = self.op("Add", [x, h])
            return self.norm(total, norm), total
        normed, total = self.name(), self.name()
        inputs = [x, h, self.tensor(norm.weight), self.tensor(norm.bias)]
        self.node("SkipLayerNormalization", inputs, [normed, "", "", total], domain=MICROSOFT, epsilon=NORM_EPS)
        return normed, total

    def mish(self, x: str) -> str:
        """x n / (n + 2) with n = e^x (e^x + 2)"""
        two = self.constant(np.float32(2))
        power = self.op("Exp", [self.op("Min", [x, self.constant(np.float32(MISH_IS_LINEAR))])])
        n = self.op("Mul", [power, self.op("Add", [power, two])])
        return self.op("Mul", [x, self.op("Div", [n, self.op("Add", [n, two])])])

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))

    def op(self, kind: str, inputs: Sequence[str], into: str = "", **attributes: Any) -> str:
        into = into or self.name()
        self.node(kind, inputs, [into], **attributes)
        return into

    def shaped(self, x: str, *shape: int) -> str:
        return self.op("Reshape", [x, self.ints(*shape)])

    def name(self) -> str:
        self.n_names += 1
        return f"t{self.n_names}"

    def constant(self, value: Any) -> str:
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def tensor(self, value: Tensor) -> str:
        return self.constant(value.numpy())

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> int8, and the scale of each row [N]."""
    scale = weight.abs().amax(dim=1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def _value(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


class OnnxPath:
    """Steps in an ONNX Runtime session with one thread. It keeps what each Euler step has seen."""

    def __init__(
        self, weights: EstimatorWeights, options: GraphOptions, sizes: tuple[int, int, int], profile: str = ""
    ) -> None:
        """`sizes`: Euler steps, frames of a block, most frames of a stream. `profile`: the beginning of the path of a
        file in which the session writes the time of each operation (`end_profiling`)."""
        self.n_steps, self._n, n_most = sizes
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if profile:
            settings.enable_profiling, settings.profile_file_prefix = True, profile
        # Otherwise sums and norms are joined again.
        disabled = [] if options.skip_norm else ["SkipLayerNormFusion"]
        model = StepGraph(weights, options, self._n).write()
        providers = ["CPUExecutionProvider"]
        self.session = ort.InferenceSession(model, settings, providers=providers, disabled_optimizers=disabled)
        self._weights, self._kind = weights, options.attention
        config = weights.config
        self._by_head = self._kind in _BY_HEAD
        lengths = (
            (ROWS, config.n_heads, 0, config.d_head) if self._by_head else (n_most, ROWS, config.n_heads, config.d_head)
        )
        self._n_past = [0] * self.n_steps
        self._kv = [[torch.zeros(2, *lengths) for _ in range(weights.n_layers)] for _ in range(self.n_steps)]
        self._lefts = [[torch.zeros(2, ROWS, d) for d in weights.context_widths] for _ in range(self.n_steps)]

    def __call__(self, k: int, features: Tensor, times: Tensor, *, keep: bool) -> Tensor:
        """features [2, T, 320], times [n_stages, C] -> [2, T, 80]"""
        n, past, config = self._n, self._n_past[k], self._weights.config
        binding, kept = self.session.io_binding(), list[Tensor]()

        def bind(name: str, x: Tensor, *, out: bool = False) -> None:
            kept.append(x)  # the binding has the address alone
            what = name, "cpu", 0, np.float32, tuple(x.shape), x.data_ptr()
            binding.bind_output(*what) if out else binding.bind_input(*what)

        v = torch.empty(ROWS * n, config.d_mel)
        bind("x", features.transpose(0, 1).reshape(ROWS * n, -1))
        bind("times", times.contiguous())
        bind("v", v, out=True)
        lefts = [torch.empty_like(left) for left in self._lefts[k]]
        for i, left in enumerate(self._lefts[k]):
            bind(f"left{i}", left)
            bind(f"new_left{i}", lefts[i], out=True)
        new = []
        for i, both in enumerate(self._kv[k]):
            if self._by_head:
                n_out = n + past if self._kind == "op_with_past" else n
                new.append(both.new_empty(2, ROWS, config.n_heads, n_out, config.d_head))
            for part, name in enumerate(("key", "value")):
                if self._by_head:
                    seen, own = both[part], new[i][part]
                else:
                    seen = both[part, : past + n if self._kind == "in_place" else past]
                    own = both[part, past : past + n].view(ROWS * n, -1)
                if self._kind != "none":
                    bind(f"{name}{i}", seen)
                bind(f"new_{name}{i}", own, out=True)
        self.session.run_with_iobinding(binding)
        if keep:
            self._n_past[k], self._lefts[k] = past + n, lefts
            if self._by_head:
                whole = self._kind == "op_with_past"
                self._kv[k] = new if whole else [torch.cat(pair, 3) for pair in zip(self._kv[k], new, strict=True)]
        return v.view(n, ROWS, -1).transpose(0, 1)
