"""vLLM as the language model: it has the layers and the keys and values, this engine everything else.

    ids ─ embed (here) ─ a request per slot ─ vLLM: layers, head, draw (`vllm_plugin`) ─ ids in their order

vLLM runs in this process and computes only when a step of the core asks for ids that it has not drawn yet. Each of its
steps draws an id for every request, so the slots that were not asked are a little ahead. What they drew waits here.

A request is a whole sentence: its prompt is known before the first id is drawn, and how long a stop id is banned, too.
So the engine takes no text that is still being written (`CosyVoice2Engine.streams_text`).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.model.border import Returning
from telephony_tts.engines.cosyvoice2.model.config import (
    EOS,
    N_SPEECH_ROWS,
    UNUSED_STOP,
    LmConfig,
    SamplingConfig,
)
from telephony_tts.engines.cosyvoice2.model.lm.lm import PromptTables
from telephony_tts.engines.cosyvoice2.model.segments import TokenSegment
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

log = logging.getLogger(__name__)

NON_FINITE = UNUSED_STOP
"""vLLM can return only an id. This one, which is never drawn, stands for logits that are not finite."""
PAGE = 128
"""Positions in a page of vLLM's cache, at most."""
GROWING = "with lm_backend vllm a sentence is spoken when its text is complete"


@dataclass(slots=True)
class _Request:
    """What a slot asked of vLLM. Until it has a name its prompt is not complete."""

    prompt: list[Tensor] = field(default_factory=list)
    name: str | None = None
    ids: deque[int] = field(default_factory=deque)
    """Drawn and not read."""
    is_over: bool = False

    @property
    def n_prompt(self) -> int:
        return sum(map(len, self.prompt))


class VllmSlots:
    """The requests of all slots, in the place of a cache (`SlotCache`). From any thread.

    `engine`: a vLLM engine that only we step. `params` makes the parameters of a request from its seed, its number
    of bans and its most tokens.
    """

    def __init__(self, engine: Any, params: Callable[[int, int, int], Any], n_slots: int, max_len: int) -> None:
        self._engine, self._params = engine, params
        self.n_slots, self.max_len = n_slots, max_len
        self.lengths = [0] * n_slots
        self._requests = [_Request() for _ in range(n_slots)]
        self._by_name: dict[str, _Request] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()

    def room(self, slot: int, n: int) -> int:
        """See `SlotCache.room`."""
        if self.lengths[slot] + n > self.max_len:
            raise EngineError(f"prompt, text and speech exceed {self.max_len} tokens; speak it in shorter pieces")
        return self.lengths[slot]

    def clear(self, slot: int) -> None:
        """Empty a slot. Its request is aborted."""
        with self._lock:
            request, self._requests[slot], self.lengths[slot] = self._requests[slot], _Request(), 0
            self._abort(request)

    def cut(self, slot: int, n: int) -> None:
        """See `SlotCache.cut`. Ids drawn for a complete prompt stay: they are read when they are asked for again."""
        with self._lock:
            self.lengths[slot] = n
            request = self._requests[slot]
            if n < request.n_prompt:
                self._abort(request)
                self._requests[slot] = _Request([torch.cat(request.prompt)[:n]])

    def append(self, slot: int, rows: Tensor) -> None:
        """The next positions of a prompt."""
        with self._lock:
            request = self._requests[slot]
            if request.name is not None:
                raise EngineError(GROWING)
            request.prompt.append(rows)
            self.lengths[slot] += len(rows)

    def submit(self, slot: int, seed: int, n_banned: int) -> None:
        """The prompt of a slot is complete: its ids can be drawn."""
        with self._lock:
            request = self._requests[slot]
            name = str(next(self._numbers))
            prompt = torch.cat(request.prompt)
            params = self._params(seed, n_banned, self.max_len - len(prompt))
            self._engine.add_request(name, {"prompt_embeds": prompt}, params)
            request.name = name
            self._by_name[name] = request

    def take(self, slots: Sequence[int]) -> list[int]:
        """The next id of each slot. Ends this process if vLLM fails: its state is unknown then."""
        with self._lock:
            requests = [self._requests[slot] for slot in slots]
            while any(not each.ids and not each.is_over for each in requests):
                self._step()
            if not all(each.ids for each in requests):
                raise EngineError("vLLM ended a sentence without a stop id; say it again")
            return [each.ids.popleft() for each in requests]

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            log.exception("vLLM failed; this process ends, and another one takes its place")
            raise SystemExit(1) from error
        for output in outputs:
            request = self._by_name.get(output.request_id)
            if request is not None:
                request.ids.extend(output.outputs[0].token_ids)
                request.is_over = output.finished

    def _abort(self, request: _Request) -> None:
        """What the request still draws has no receiver."""
        if request.name is not None:
            del self._by_name[request.name]
            if not request.is_over:
                self._engine.abort_request([request.name])


class VllmLmSteps:
    """`LmSteps` with vLLM. `seeds`: a sampler that was started with the seed of each slot's piece; it draws nothing."""

    def __init__(self, lm: PromptTables, slots: VllmSlots, seeds: Sampler) -> None:
        self._lm, self._slots, self._seeds = lm, slots, seeds

    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """vLLM records its graphs when it starts."""

    def prefill(
        self, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]], ended: Sequence[LmFeed | None]
    ) -> list[DrawnIds | None]:
        """See `LmSteps`."""
        for slot, part, feed in zip(slots, parts, ended, strict=True):
            self._slots.append(slot, self._lm.embed(part))
            if feed is not None:
                self._slots.submit(slot, int(self._seeds.seeds[slot]), feed.n_banned if feed.banned else 0)
        complete = [i for i, feed in enumerate(ended) if feed is not None]
        drawn: list[DrawnIds | None] = [None] * len(slots)
        for i, item in zip(complete, self._slots.take([slots[i] for i in complete]), strict=True):
            drawn[i] = _drawn(item)
        return drawn

    def decode(self, slots: Sequence[int], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        """See `LmSteps`. vLLM knows the bans since the prompt, and feeds its ids to itself."""
        for slot in slots:
            self._slots.room(slot, 1)
            self._slots.lengths[slot] += 1
        return [_drawn(item) for item in self._slots.take(slots)]


def _drawn(item: int) -> DrawnIds:
    return DrawnIds(Returning(torch.tensor([[-1 if item == NON_FINITE else item]])), 0)


def start_vllm(
    folder: Path, lm: LmConfig, sampling: SamplingConfig, device: str, dtype: str, n_slots: int, max_len: int
) -> VllmSlots:
    """Loads a converted model (`checkpoint.conversion`) into a vLLM in this process. Its keys and values take as much
    memory as those of our own language model. Raises EngineUnavailable without vLLM, or if it cannot start."""
    # Read when vLLM is imported. A child process of its own would draw ids without a request, and outlive a kill.
    # The second model runner has another interface for sampling, and needs a compiler on a CPU.
    # Its log lines go the way of ours, and it sends no statistics.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    set_num_threads = torch.set_num_threads
    try:
        from vllm import EngineArgs, LLMEngine, SamplingParams
        from vllm.model_executor.models import ModelRegistry
        from vllm.sampling_params import RequestOutputKind

        from telephony_tts.engines.cosyvoice2.device import vllm_plugin
    except ImportError as error:
        raise EngineUnavailable(
            f"engines.cosyvoice2.lm_backend is vllm, and vLLM cannot be imported ({error}): install it beside "
            "telephony-tts, or set lm_backend to own"
        ) from error
    ModelRegistry.register_model("CosyVoice2ForCausalLM", vllm_plugin.CosyVoice2ForCausalLM)
    arguments = EngineArgs(
        model=str(folder),
        dtype=dtype,
        skip_tokenizer_init=True,
        enable_prompt_embeds=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=device == "cpu",
        max_model_len=max_len,
        max_num_seqs=n_slots,
        kv_cache_memory_bytes=n_slots * _slot_bytes(lm, dtype, max_len),
        logits_processors=[vllm_plugin.RepetitionAwareSampling],
        additional_config={"sampling": asdict(sampling)},
        disable_log_stats=True,
    )
    try:
        engine = LLMEngine.from_engine_args(arguments)
    except Exception as error:
        raise EngineUnavailable(f"vLLM could not start with {folder}: {error}") from error
    finally:
        torch.set_num_threads = set_num_threads  # on a CPU vLLM takes it away, for its own binding of threads

    def params(seed: int, n_banned: int, max_tokens: int) -> Any:
        return SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=list(range(EOS, N_SPEECH_ROWS)),
            extra_args={vllm_plugin.SEED: seed, vllm_plugin.N_BANNED: n_banned},
            output_kind=RequestOutputKind.DELTA,
            detokenize=False,
        )

    return VllmSlots(engine, params, n_slots, max_len)


def _slot_bytes(lm: LmConfig, dtype: str, max_len: int) -> int:
    """Keys and values of one slot, in whole pages."""
    n_positions = -(-max_len // PAGE) * PAGE + PAGE
    n_bytes: int = getattr(torch, dtype).itemsize
    return 2 * lm.n_layers * lm.n_kv_heads * lm.d_head * n_positions * n_bytes
