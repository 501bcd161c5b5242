"""The convolutions of the vocoder's residual blocks in bfloat16, by the kernels.

PyTorch's convolution takes 1.2 times as long on a Zen 4, beside what the snakes and sums around it take, and idle lanes
cannot help with it.
"""

from __future__ import annotations

import ctypes

from torch import Tensor

from telephony_tts.engines.kernels import library as kernels
from telephony_tts.engines.kernels.library import PLAIN_TILES, SnakeConv, functions


def fits(n_channels: int) -> bool:
    """Whether the kernels can do this on this machine with so many channels."""
    if not kernels.available() or not ({"avx512_bf16"} <= kernels.cpu_flags() or kernels.level() == PLAIN_TILES):
        return False
    n_outputs: int = functions().bfloat16_outputs()
    return n_outputs > 0 and n_channels % n_outputs == 0


class Bfloat16SnakeConv:
    """conv(snake(x)) in one call. Products are in bfloat16, all else in float32."""

    def __init__(self, snake: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor, dilation: int) -> None:
        """`snake`: alpha and what the square of the sine is multiplied by, float32 [C]; weight bfloat16 [C, C, k].

        C must fit (`fits`)."""
        library = functions()
        d, _, kernel = weight.shape
        n = library.bfloat16_outputs()
        panels = weight.view(d // n, n, d // 2, 2, kernel).permute(0, 4, 2, 1, 3).contiguous()
        self._kept = panels, bias.float().contiguous(), *(each.float().contiguous() for each in snake)
        self._of = SnakeConv(*(each.data_ptr() for each in self._kept), d, kernel, dilation)
        self._n_lost = (kernel - 1) * dilation
        self._run = library.snake_conv

    def __call__(self, x: Tensor, left: int, right: int, add: Tensor | None = None) -> Tensor:
        """x float32 [B, T, C] with `left` zeros before it and `right` zeros after it -> [B, T', C] float32, plus `add`
        of that shape. Of a negative number so many columns are dropped instead."""
        if left < 0 or right < 0:
            x = x[:, max(0, -left) : x.shape[1] - max(0, -right)]
            left, right = max(0, left), max(0, right)
        n_batch, n, d = x.shape
        n_out = n + left + right - self._n_lost
        y = x.new_empty(n_batch, n_out, d)
        address = ctypes.addressof(self._of)
        for i in range(n_batch):
            row, added = x[i].contiguous(), None if add is None else add[i].contiguous()
            added_at = None if added is None else added.data_ptr()
            self._run(address, row.data_ptr(), n, left, right, added_at, y[i].data_ptr())
        return y
