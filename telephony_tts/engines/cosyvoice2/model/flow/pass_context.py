"""What one pass of a network knows of earlier positions.

The encoder and the estimator do not know where keys, values and left contexts are kept. They ask a context for them:

    EncoderContext, EstimatorContext   what the networks call
    WholeSequence                      no earlier positions: the input is the whole sentence, nothing is kept
    HostPass (`host_pages`)            one stream on a CPU
    EncoderBatch, EstimatorBatch       many streams on a device (`device_pages`)
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.attention import Piece, attend, split_heads


class ConvolutionContext(Protocol):
    """The left contexts of a network's causal convolutions."""

    def continued(self, x: Tensor, slot: int, n_left: int) -> Tensor:
        """x [B, T, C] -> [B, n_left + T, C]: x behind the left context of convolution number `slot`.

        The last `n_left` frames are remembered as the context of the next block.
        """


class EncoderContext(ConvolutionContext, Protocol):
    @property
    def n_past(self) -> int:
        """Tokens before the new ones; in a batch, of the longest past with its padding."""

    def mask(self, n: int, rate: int) -> Tensor | None:
        """Which of all positions each of the `n` new ones sees, at `rate` positions per token: True where visible.

        [n, n_past * rate + n], or with a leading dimension for streams and heads. None: every position is visible.
        """

    def append(self, layer: int, k: Tensor, v: Tensor) -> list[Piece]:
        """Keeps k, v [B, H, N, D] of the new positions of an attention layer. -> all keys and values, oldest first."""

    def commit(self) -> None:
        """Called last in a pass: what was remembered is kept for the next block."""


class EstimatorContext(ConvolutionContext, Protocol):
    def attend(self, layer: int, qkv: Tensor, n_heads: int) -> Tensor:
        """Attention over the past and the new frames. qkv [B, T, 3 * H * D] -> [B, T, H * D].

        The new keys and values are kept.
        """

    def commit(self) -> None:
        """Called last in a pass: what was remembered is kept for the next block."""


class WholeSequence:
    """The input is the whole sentence, and every position sees all others. Nothing is kept."""

    n_past = 0

    def mask(self, n: int, rate: int) -> Tensor | None:
        return None

    def append(self, layer: int, k: Tensor, v: Tensor) -> list[Piece]:
        return [(k, v)]

    def attend(self, layer: int, qkv: Tensor, n_heads: int) -> Tensor:
        q, k, v = split_heads(qkv, n_heads)
        return attend(q, [(k, v)], self.mask(q.shape[2], FRAMES_PER_TOKEN))

    def continued(self, x: Tensor, slot: int, n_left: int) -> Tensor:
        return F.pad(x, (0, 0, n_left, 0))

    def commit(self) -> None:
        """There is nothing to keep."""
