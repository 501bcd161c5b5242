"""The first Euler step of the guidance branch without text and voice. It is the same in all utterances.

In that step the branch is given nothing but the noise, which depends on a frame's number only. Blocks end at the same
frames in all utterances, except the last block. So the velocities of whole blocks are computed once, and kept. The
later steps begin at an x that depends on the text.

What is kept grows to the length of the longest utterance with its prompt: 4 MB for a second at full size.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, BLOCK_TOKENS, FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.decoder import FlowDecoder
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import PassRecord, PassStorage
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Pass


class UnconditionalBlock(NamedTuple):
    record: PassRecord
    velocity: Tensor
    """[1, T, 80]"""


class UnconditionalStart:
    """Of an estimator in int8 on a CPU. Several threads may use it at once."""

    def __init__(self, decoder: FlowDecoder) -> None:
        estimator = decoder.estimator
        self._decoder = decoder
        # A piece for each block: attention to a part of a piece may round differently when the rest is written.
        self._storage = PassStorage(estimator.layout(n_rows=1), estimator.time_1.weight, estimator.dtype, BLOCK_FRAMES)
        self._blocks: list[UnconditionalBlock] = []
        """Whole blocks from the first frame on."""
        self._lock = threading.Lock()

    def velocity(self, n_before: int, n_tokens: int) -> Tensor:
        """[1, T, 80] of the frames of `n_tokens`, behind `n_before` tokens in whole blocks."""
        n_blocks, n_rest = divmod(n_before + n_tokens, BLOCK_TOKENS)
        if len(self._blocks) < n_blocks:
            with self._lock:
                # Each by itself, however many are requested: the bits must not depend on what was asked for before.
                while len(self._blocks) < n_blocks:
                    self._blocks.append(self._compute(self._blocks, BLOCK_TOKENS))
        blocks = self._blocks[:n_blocks]
        parts = [block.velocity for block in blocks[n_before // BLOCK_TOKENS :]]
        if n_rest:  # the end of an utterance
            parts.append(self._compute(blocks, n_rest).velocity)
        return torch.cat(parts, dim=1)

    def _compute(self, past: list[UnconditionalBlock], n_tokens: int) -> UnconditionalBlock:
        """The `n_tokens` behind the blocks of `past`."""
        n_before, new = len(past) * BLOCK_TOKENS, PassRecord()
        context = Int8Pass(self._storage, [block.record for block in past], new, (n_before, 0, n_tokens))
        frames = n_before * FRAMES_PER_TOKEN, n_tokens * FRAMES_PER_TOKEN
        return UnconditionalBlock(new, self._decoder.unconditional_velocity(*frames, context))
