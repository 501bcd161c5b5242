"""What differs between a CPU and a device in how the flow runs, behind one interface.

    HostBackend      a CPU: each stream by itself, so that its bits do not depend on other streams
    DeviceBackend    a device: streams in batches that are padded to buckets, and steps that graphs record

A device is as fast with many rows as with few. A CPU gains nothing from a batch, and its audio must not change with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.page_table import KeptPage, PageTable
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockInput, FlowBlock
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs


class FlowBackend(Protocol):
    def take(self, table: PageTable, n_tokens: int, *, is_last: bool) -> tuple[KeptPage, ...]:
        """Pages for the next block, all that the encoder and every Euler step will need. Raises EngineError if full.

        They are not in the table yet: dropping them undoes it.
        """

    def encoder_batch_key(self, block: BlockInput) -> Hashable:
        """Blocks with equal keys can go through the encoder in one pass."""

    def encode(self, blocks: Sequence[BlockInput], new: Sequence[tuple[KeptPage, ...]], ids: Tensor) -> Tensor:
        """One pass of the encoder over blocks of n tokens each. It fills the new pages and changes no table.

        ids [S, n], and the 3 ids ahead unless the blocks are last ones: [S, n + 3] -> mu [S, 2n, 80].
        """

    def step_batches(self, blocks: Sequence[FlowBlock]) -> list[list[FlowBlock]]:
        """Blocks that `step` should be given together, two or more; the other blocks go alone."""

    def step(self, blocks: Sequence[FlowBlock]) -> None:
        """The next Euler step of each block. If a batch of several raises, all blocks are as they were."""

    def prepare(self, graphs: Graphs, n_streams: int, check_wanted: Callable[[], object]) -> None:
        """Warm up for up to `n_streams` streams. `check_wanted` is called between; what it raises ends the warm-up."""
