"""The requests that stand for slots, against a stand-in of vLLM that draws an id for every request in each step.

`test_vllm_backend` has the real vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.device.vllm_steps import VllmLmSteps, VllmSlots
from telephony_tts.engines.cosyvoice2.model.config import EOS, N_SPEECH_ROWS, UNUSED_STOP, LmConfig, SamplingConfig
from telephony_tts.engines.cosyvoice2.model.lm.lm import PromptTables
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed, SentenceDecoding
from telephony_tts.runtime.errors import EngineError

D = 8
MAX_LEN = 50


@dataclass
class Output:
    token_ids: list[int]


@dataclass
class RequestOutput:
    request_id: str
    outputs: list[Output]
    finished: bool


@dataclass
class StandIn:
    """`said`: what the requests say, in the order of their arrival. A request is over after its last id."""

    said: list[list[int]]
    running: dict[str, list[int]] = field(default_factory=dict)
    prompts: list[Tensor] = field(default_factory=list)
    params: list[tuple[int, int, int]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    n_steps: int = 0
    failure: Exception | None = None

    def add_request(self, name: str, prompt: dict[str, Tensor], params: tuple[int, int, int]) -> None:
        self.running[name] = list(self.said[len(self.prompts)])
        self.prompts.append(prompt["prompt_embeds"])
        self.params.append(params)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.running[name]
            self.aborted.append(name)

    def step(self) -> list[RequestOutput]:
        if self.failure is not None:
            raise self.failure
        self.n_steps += 1
        outputs = []
        for name, left in list(self.running.items()):
            outputs.append(RequestOutput(name, [Output([left.pop(0)])], not left))
            if not left:
                del self.running[name]
        return outputs


@dataclass
class Rig:
    engine: StandIn
    slots: VllmSlots
    seeds: Sampler
    steps: VllmLmSteps
    lm: PromptTables

    def prefill(self, *slots: int, feed: LmFeed | None = None, n: int = 3) -> list[int | None]:
        """One part of the prompt of each slot, which ends it if `feed` is given."""
        drawn = self.steps.prefill(slots, [[speech(n)] for _ in slots], [feed for _ in slots])
        return [None if each is None else each.read()[0] for each in drawn]

    def decode(self, *slots: int) -> list[int]:
        return [each.read()[0] for each in self.steps.decode(slots, [DecodeRow(0, ((),), None) for _ in slots])]


def speech(n: int) -> TokenSegment:
    return TokenSegment(EmbeddingTable.SPEECH, tuple(range(n)))


END = LmFeed((speech(3),))


def rig(*said: list[int]) -> Rig:
    config = LmConfig(n_text_rows=10, d_model=D, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8)
    tables = {
        EmbeddingTable.CONTROL: torch.randn(2, D),
        EmbeddingTable.TEXT: torch.randn(10, D),
        EmbeddingTable.SPEECH: torch.randn(N_SPEECH_ROWS, D),
    }
    engine = StandIn(list(said))
    slots = VllmSlots(engine, lambda *of_request: of_request, 3, MAX_LEN)
    seeds, lm = Sampler(SamplingConfig(), 3), PromptTables(config, tables)
    return Rig(engine, slots, seeds, VllmLmSteps(lm, slots, seeds), lm)


def test_a_prompt_in_parts_is_one_request_with_the_seed_of_its_slot() -> None:
    r = rig([7, 8, EOS])
    r.seeds.start(1, -5)
    assert r.prefill(1) == [None] and r.prefill(1, n=2) == [None] and not r.engine.prompts
    feed = SentenceDecoding((), range(4), ()).next_feed()
    assert feed is not None and r.prefill(1, feed=feed) == [7]
    (prompt,) = r.engine.prompts
    assert torch.equal(prompt, r.lm.embed([speech(3), speech(2), speech(3)]))
    assert r.engine.params == [(-5, 8, MAX_LEN - 8)], "speech must not end before two ids for each token of text"
    assert r.decode(1) + r.decode(1) == [8, EOS]


def test_ids_that_a_slot_did_not_ask_for_wait_for_it() -> None:
    r = rig([1, 2, 3, 4, EOS], [11, 12, 13, EOS])
    assert r.prefill(0, feed=END) == [1]
    assert r.prefill(2, feed=END) == [11]  # a step, in which slot 0 draws 2
    assert r.decode(2) == [12] and r.engine.n_steps == 3
    assert r.decode(0, 2) == [2, 13], "slot 2 needs a step; slot 0 has waited with its second id"
    assert r.decode(0) == [3] and r.engine.n_steps == 4
    assert r.decode(2, 0) == [EOS, 4] and r.decode(0) == [EOS]
    assert r.engine.n_steps == 5


def test_a_cleared_slot_aborts_its_request_and_speaks_anew() -> None:
    r = rig([1, 2, 3, 4, 5], [21, 22, EOS], [31])
    r.prefill(0, feed=END)
    r.prefill(1, feed=END)
    r.slots.clear(0)
    assert r.engine.aborted == ["0"] and list(r.engine.running) == ["1"] and r.slots.lengths == [0, 3, 0]
    assert r.prefill(0, feed=END) == [31] and r.decode(1) == [22]
    r.slots.clear(0)
    assert r.engine.aborted == ["0"], "the second request of slot 0 was over"
    r.slots.clear(2)


def test_a_late_output_of_an_aborted_request_is_dropped() -> None:
    r = rig([1, 2, 3], [21, 22, 23])
    r.prefill(0, feed=END)
    r.engine.abort_request = lambda names: None  # type: ignore[method-assign]  # vLLM may still deliver a step
    r.slots.clear(0)
    assert r.prefill(0, feed=END) == [21] and r.decode(0) == [22]


def test_a_failed_batch_is_taken_back() -> None:
    """As `Runner` does it: `cut` to the length before, and then each slot alone."""
    r = rig([1, 2, EOS], [11, 12, EOS], [11, 12, EOS])
    r.prefill(0)
    r.prefill(0, feed=END)
    r.slots.cut(0, 3)  # the second part is taken back, and with it the request
    assert r.engine.aborted == ["0"] and r.slots.lengths[0] == 3
    assert r.prefill(0, feed=END) == [11] and torch.equal(r.engine.prompts[1], r.engine.prompts[0])
    assert r.decode(0) == [12]
    r.slots.cut(0, 6)
    assert r.engine.aborted == ["0"] and r.slots.lengths[0] == 6, "a decode step takes back no request"


def test_logits_that_are_not_finite_are_reported_as_such() -> None:
    r = rig([5, UNUSED_STOP])
    assert r.prefill(0, feed=END) == [5] and r.decode(0) == [-1]


def test_a_request_that_ends_without_a_stop_id_fails_alone() -> None:
    r = rig([5], [6, 7, EOS])
    assert r.prefill(0, feed=END) == [5] and r.prefill(1, feed=END) == [6]
    with pytest.raises(EngineError, match="without a stop id"):
        r.decode(0)
    assert r.decode(1) == [7]


def test_a_slot_that_is_full_fails_before_anything_is_asked() -> None:
    r = rig([1] * 100)
    r.prefill(0, feed=END, n=MAX_LEN)
    with pytest.raises(EngineError, match="speak it in shorter pieces"):
        r.decode(0)
    assert r.slots.room(1, MAX_LEN) == 0
    with pytest.raises(EngineError, match="exceed 50 tokens"):
        r.slots.room(1, MAX_LEN + 1)


def test_text_that_is_still_being_written_is_refused() -> None:
    r = rig([1, 2, EOS])
    r.prefill(0, feed=END)
    with pytest.raises(EngineError, match="when its text is complete"):
        r.prefill(0)


def test_a_vllm_that_fails_ends_the_process() -> None:
    """Not an Exception: that would fail one sentence after the other, and the process would never be replaced."""
    r = rig([1, 2])
    r.prefill(0, feed=END)
    r.engine.failure = RuntimeError("out of memory")
    error: Any
    with pytest.raises(SystemExit) as error:
        r.decode(0)
    assert str(error.value.__cause__) == "out of memory"
