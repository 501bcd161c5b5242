"""The language model's work for several slots: prefill and decode, on a CPU and on an accelerator.

The two differ in more than speed, so there are two classes with one interface. CosyVoice-300M has the first on every
device:

    CpuLmSteps      each slot by itself. In a batch a float32 row gets other bits, and a CPU gains little from batches.
    DeviceLmSteps   all slots in one batch, of few shapes that are recorded as graphs (`decode_steps`). An accelerator
                    takes about as long for many rows as for one.

Neither class undoes what it did before an error: `Runner` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.decode_steps import DecodeSteps
from telephony_tts.engines.cosyvoice2.device.prompt_steps import PromptSteps
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.model.border import Returning, sent
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.prefill import extend_batch
from telephony_tts.engines.cosyvoice2.model.lm.slot_cache import SlotCache
from telephony_tts.engines.cosyvoice2.model.segments import TokenSegment
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns

MOST_AHEAD_NS = 50 * NS_PER_MS
"""On a CPU a batch draws one id for each row, and no further one after this time. Until a batch ends, a cancelled
stream keeps its slot, and a more urgent one waits."""


@dataclass(frozen=True, slots=True)
class DrawnIds:
    """Ids of one slot on their way from the device: column `row` of `ids` [n, rows]."""

    ids: Returning
    row: int

    @property
    def n(self) -> int:
        """How many ids."""
        return self.ids.n_rows

    def read(self) -> list[int]:
        """The ids in the order of their draws; -1 where the logits were not finite. Waits for the device."""
        ids: list[int] = self.ids.columns()[self.row]
        return ids


class LmSteps(Protocol):
    """See the module. No slot may be named twice in one call."""

    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """Record what can be recorded. `check_wanted` is called before each; what it raises ends the recording."""

    def prefill(
        self, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]], ended: Sequence[LmFeed | None]
    ) -> list[DrawnIds | None]:
        """Append `parts[i]` to `slots[i]`. Draw an id for each slot whose feed ends with its part: `ended[i]` is that
        feed, or None while more of it is to come."""

    def decode(self, slots: Sequence[int], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        """Draw ids for each slot: one for each entry of `DecodeRow.banned`, or fewer."""


class SlotwiseLm(Protocol):
    """A language model that takes one slot after the other. `cache` is of its own kind."""

    @property
    def device(self) -> torch.device: ...
    @property
    def rows_are_exact(self) -> bool:
        """Whether a row has the same bits with any number of rows."""

    def feed(self, segments: Sequence[TokenSegment], slot: int, cache: Any) -> Tensor:
        """Append the segments to a slot -> [n, D]."""

    def embed_speech(self, ids: Tensor) -> Tensor:
        """[B] -> [B, D]"""

    def decode(self, x: Tensor, slots: Sequence[int], cache: Any) -> Tensor:
        """Append x[i] of x [B, D] to `slots[i]` -> [B, D]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, D] -> [B, V]"""


class CpuLmSteps:
    """See the module. `end_of_speech`: this id and those after it are no speech."""

    def __init__(self, lm: SlotwiseLm, cache: SlotCache, sampler: Sampler, end_of_speech: int) -> None:
        self._lm, self._cache, self._sampler = lm, cache, sampler
        self._end = end_of_speech

    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """Nothing is recorded on a CPU."""

    def prefill(
        self, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]], ended: Sequence[LmFeed | None]
    ) -> list[DrawnIds | None]:
        """See `LmSteps`."""
        drawn: list[DrawnIds | None] = []
        for slot, part, feed in zip(slots, parts, ended, strict=True):
            hidden = self._lm.feed(part, slot, self._cache)
            if feed is None:
                drawn.append(None)
            else:
                ids = self._sampled(hidden[-1:], [slot], [feed.banned], [feed.forced])
                drawn.append(DrawnIds(Returning(ids[None]), 0))
        return drawn

    def decode(self, slots: Sequence[int], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        """See `LmSteps`. Rows are one batch only if the weights give a row the same bits in any batch."""
        until_ns = monotonic_ns() + MOST_AHEAD_NS
        if self._lm.rows_are_exact:
            ids = Returning(self._drawn(slots, rows, until_ns))
            return [DrawnIds(ids, i) for i in range(len(rows))]
        return [
            DrawnIds(Returning(self._drawn([slot], [row], until_ns)), 0)
            for slot, row in zip(slots, rows, strict=True)
        ]

    def _drawn(self, slots: Sequence[int], rows: Sequence[DecodeRow], until_ns: int) -> Tensor:
        """[n, rows], one for each entry of `DecodeRow.banned`. Fewer if no row goes on, or after `until_ns`."""
        ids = sent([row.speech_id for row in rows], self._lm.device)
        drawn: list[Tensor] = []
        n_most = len(rows[0].banned)
        while True:
            i = len(drawn)
            hidden = self._lm.decode(self._lm.embed_speech(ids), slots, self._cache)
            forced = [row.forced if i == 0 else None for row in rows]
            drawn.append(self._sampled(hidden, slots, [row.banned[i] for row in rows], forced))
            # Looking at ids waits for a device, so the last ones are not looked at here.
            if len(drawn) == n_most or monotonic_ns() >= until_ns:
                break
            ids = drawn[-1]
            if not ((ids >= 0) & (ids < self._end)).any():
                break
            # Rows that have ended or failed go on with any id, and what they draw is dropped later. The table of
            # CosyVoice-300M has no row for the end of speech.
            ids = ids.clamp(0, self._end - 1)
        return torch.stack(drawn)

    def _sampled(
        self,
        hidden: Tensor,
        slots: Sequence[int],
        banned: Sequence[Sequence[int]],
        forced: Sequence[int | None],
    ) -> Tensor:
        return self._sampler.sample(self._lm.logits(hidden), slots, banned, forced)


class DeviceLmSteps:
    """See the module. `n_most`: ids drawn at most in one call of `decode`; `n_prompts`: slots in one of `prefill`."""

    def __init__(
        self, lm: LanguageModel, cache: KvCache, sampler: Sampler, n_most: int, n_prompts: int, graphs: Graphs
    ) -> None:
        self._lm, self._cache, self._sampler = lm, cache, sampler
        self._decode_steps = DecodeSteps(lm, cache, sampler, n_most, graphs)
        self._prompt_steps = None if lm.fused is None else PromptSteps(lm, cache, sampler, n_prompts, graphs)

    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """See `LmSteps`."""
        self._decode_steps.prepare(check_wanted)
        if self._prompt_steps is not None:
            self._prompt_steps.prepare(check_wanted)

    def prefill(
        self, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]], ended: Sequence[LmFeed | None]
    ) -> list[DrawnIds | None]:
        """See `LmSteps`."""
        if self._prompt_steps is not None and len(slots) <= self._prompt_steps.n_most:
            ids = Returning(self._prompt_steps.draw(slots, parts, ended)[None])
            return [None if feed is None else DrawnIds(ids, i) for i, feed in enumerate(ended)]
        # Rows that draw an id come first, so that they are one slice.
        order = sorted(range(len(slots)), key=lambda i: ended[i] is None)
        feeds = [feed for feed in ended if feed is not None]
        hidden = extend_batch(self._lm, self._cache, [slots[i] for i in order], [parts[i] for i in order])
        drawn: list[DrawnIds | None] = [None] * len(slots)
        if feeds:
            drawing = order[: len(feeds)]
            first_ids = self._sampler.sample(
                self._lm.logits(hidden[: len(feeds)]),
                [slots[i] for i in drawing],
                [feed.banned for feed in feeds],
                [feed.forced for feed in feeds],
            )
            returning = Returning(first_ids[None])
            for row, i in enumerate(drawing):
                drawn[i] = DrawnIds(returning, row)
        return drawn

    def decode(self, slots: Sequence[int], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        """See `LmSteps`."""
        drawn = self._decode_steps.draw(
            [row.speech_id for row in rows], slots, [row.banned for row in rows], [row.forced for row in rows]
        )
        ids = Returning(drawn)
        return [DrawnIds(ids, i) for i in range(len(rows))]
