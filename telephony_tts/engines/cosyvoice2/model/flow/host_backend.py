"""How the flow runs on a CPU: each stream by itself, so that its bits do not depend on other streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import cast

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.decoder import FlowDecoder
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import (
    ENCODER_PIECE,
    STEP_PIECE,
    HostPage,
    HostPass,
    PassStorage,
    next_page,
)
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Pass
from telephony_tts.engines.cosyvoice2.model.flow.page_table import KeptPage, PageTable
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockInput, FlowBlock
from telephony_tts.engines.cosyvoice2.model.flow.unconditional_start import UnconditionalStart
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs


class HostBackend:
    """Several threads may use it at once, for different streams or for different blocks of one stream."""

    def __init__(self, encoder: FlowEncoder, decoder: FlowDecoder) -> None:
        estimator = decoder.estimator
        weights = estimator.time_1.weight
        self._encoder, self._decoder = encoder, decoder
        self._n_steps = decoder.n_steps
        self._encoder_storage = PassStorage(encoder.layout(), encoder.tokens, encoder.tokens.dtype, ENCODER_PIECE)
        self._step_storage = PassStorage(estimator.layout(), weights, estimator.dtype, STEP_PIECE)
        self._step_pass = Int8Pass if estimator.is_int8 else HostPass
        self._start: UnconditionalStart | None = None
        if estimator.is_int8:
            self._start = UnconditionalStart(decoder)
            self._start_storage = PassStorage(estimator.layout(n_rows=1), weights, estimator.dtype, STEP_PIECE)

    def take(self, table: PageTable, n_tokens: int, *, is_last: bool) -> tuple[KeptPage, ...]:
        return (next_page(table, n_tokens, self._n_steps),) if n_tokens else ()

    def encoder_batch_key(self, block: BlockInput) -> Hashable:
        return id(block)

    def encode(self, blocks: Sequence[BlockInput], new: Sequence[tuple[KeptPage, ...]], ids: Tensor) -> Tensor:
        ((block,), ((page,),)) = blocks, new
        past, page = cast("tuple[HostPage, ...]", block.table.pages), cast(HostPage, page)
        sizes = block.table.n_tokens, page.n_copied, block.n_tokens
        context = HostPass(self._encoder_storage, [each.encoder for each in past], page.encoder, sizes)
        ahead = None if block.is_last else ids[:, block.n_tokens :]
        return self._encoder.mu(self._encoder.encode(ids[:, : block.n_tokens], ahead, context))

    def step_batches(self, blocks: Sequence[FlowBlock]) -> list[list[FlowBlock]]:
        return []

    def step(self, blocks: Sequence[FlowBlock]) -> None:
        for block in blocks:
            k = block.k
            past, (page,) = cast("tuple[HostPage, ...]", block.past), cast("tuple[HostPage]", block.new)
            sizes = sum(each.n_tokens for each in past), page.n_copied, page.n_tokens - page.n_copied
            storage, unconditional = self._step_storage, None
            if k == 0 and self._start is not None:
                storage, unconditional = self._start_storage, self._start.velocity(sizes[0], sizes[2])
            context = self._step_pass(storage, [each.steps[k] for each in past], page.steps[k], sizes)
            block.x = self._decoder.step(k, block.x, block.mu, block.spk, block.cond, context, unconditional)
            block.k += 1

    def prepare(self, graphs: Graphs, n_streams: int, check_wanted: Callable[[], object]) -> None:
        """A CPU needs no warm-up."""
