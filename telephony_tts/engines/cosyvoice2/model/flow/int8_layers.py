"""The estimator's layers in int8 on a CPU (`model.linear.Int8Linear`). Activations are float32 between them.

Each map is one call, together with the norm before it, and with the GELU or the residual sum after it. All transformer
blocks of a stage are one call, where attention reads int8 pieces.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Pass
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowConv
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import ConvolutionContext
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, LayerNorm, Linear
from telephony_tts.engines.kernels.library import LeftContext, NormMish, Resnet, TransformerLayer, functions


def check_heads(d_head: int) -> None:
    """Raises ValueError for heads that the kernels cannot attend with."""
    most = functions().largest_head()
    if d_head % 4 or d_head > most:
        raise ValueError(f"heads of {d_head}: int8 needs a multiple of 4 up to {most}; use float32")


class Int8Conv:
    """`FlowConv` in int8. Weights have 15 bits: rounded to 8, the few convolutions would make most of the error."""

    def __init__(self, conv: FlowConv, *, in_15_bits: bool = False) -> None:
        self.kernel = conv.kernel
        self.windows = Int8Linear(conv.windows(), in_15_bits=in_15_bits, weights_in_15_bits=True)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C_in] -> [B, T - kernel + 1, C_out]"""
        return self.windows.of_windows(x.float().contiguous(), self.kernel)

    def causal(self, x: Tensor, context: ConvolutionContext, slot: int) -> Tensor:
        """x [B, T, C_in] -> [B, T, C_out], behind the left context number `slot` of the stream."""
        return self(context.continued(x, slot, self.kernel - 1))


class Int8ConvBlock:
    """`CausalConvBlock` in int8: convolution, then LayerNorm and Mish in one call."""

    def __init__(self, conv: FlowConv, norm: LayerNorm, slot: int, *, in_15_bits: bool = False) -> None:
        self.conv, self.slot = Int8Conv(conv, in_15_bits=in_15_bits), slot
        self._norm = LayerNorm(norm.weight.float().contiguous(), norm.bias.float().contiguous(), norm.eps)

    def __call__(self, x: Tensor, context: ConvolutionContext) -> Tensor:
        y = self.conv.causal(x, context, self.slot)
        weight, bias, eps = self._norm
        d = y.shape[-1]
        functions().norm_mish(y.data_ptr(), y.numel() // d, d, weight.data_ptr(), bias.data_ptr(), eps)
        return y

    def norm(self) -> NormMish:
        """It refers to tensors of this object."""
        weight, bias, eps = self._norm
        return NormMish(weight.data_ptr(), bias.data_ptr(), eps)


class Int8Resnet:
    """`ResnetBlock` in int8, as one call of the kernels. It has the bits of its layers one by one."""

    def __init__(self, block_1: Int8ConvBlock, block_2: Int8ConvBlock, skip: Int8Conv) -> None:
        self._blocks, self._skip = (block_1, block_2), skip
        self._of = Resnet(
            block_1.conv.windows.address,
            block_2.conv.windows.address,
            skip.windows.address,
            block_1.norm(),
            block_2.norm(),
        )
        self._run = functions().resnet

    def __call__(self, x: Tensor, time: Tensor, context: Int8Pass) -> Tensor:
        """x [B, T, C_in], time float32 [1, C] -> [B, T, C]"""
        x = x.float().contiguous()
        n_rows, n, _ = x.shape
        y = x.new_empty(n_rows, n, self._skip.windows.n)
        lefts = (LeftContext * 2)(*(context.left_context(block.slot) for block in self._blocks))
        self._run(
            ctypes.addressof(self._of), x.data_ptr(), n_rows, n, ctypes.addressof(lefts), time.data_ptr(), y.data_ptr()
        )
        return y


class Int8TransformerBlock:
    """`TransformerBlock` in int8: x += MHA(LN(x)); x += FF(LN(x)) on contiguous float32 [B, T, C]."""

    def __init__(self, norms: tuple[LayerNorm, LayerNorm], maps: tuple[Linear, Linear, Linear, Linear]) -> None:
        """`norms` before attention and before the feed-forward maps; `maps`: qkv, out, ff_1, ff_2."""
        qkv, out, ff_1, ff_2 = maps
        # Rounded to 8 bits, the weights behind attention would make a third of the whole error.
        self.qkv, self.out = Int8Linear(qkv, norms[0]), Int8Linear(out, weights_in_15_bits=True)
        self.ff_1, self.ff_2 = Int8Linear(ff_1, norms[1], gelu=True), Int8Linear(ff_2)

    def __call__(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Changes and returns x."""
        self.out(attend(self.qkv(x)), add_to=x)
        return self.ff_2(self.ff_1(x), add_to=x)


class Int8Transformers:
    """The transformer blocks of a stage, one after the other, as one call of the kernels."""

    def __init__(self, blocks: Sequence[Int8TransformerBlock]) -> None:
        self.blocks = tuple(blocks)
        maps = ((each.qkv, each.out, each.ff_1, each.ff_2) for each in blocks)
        layers = [TransformerLayer(*(one.address for one in of_block)) for of_block in maps]
        self._layers = (TransformerLayer * len(layers))(*layers)

    def __call__(self, x: Tensor, context: Int8Pass, first: int, n_heads: int) -> Tensor:
        """Changes and returns x, contiguous float32 [B, T, C]. Its first block has the attention layer `first`."""
        context.transform(ctypes.addressof(self._layers), len(self.blocks), first, x, n_heads)
        return x
