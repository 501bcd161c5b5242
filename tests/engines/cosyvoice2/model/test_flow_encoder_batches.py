"""Recorded passes of the flow's encoder, on a pretended device that is as strict as an accelerator.

What a pass computes is held against the CPU's backend, where each stream is alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from flow_calls import CALLS, InterleavedCalls, alone, chunk, voice
from flow_paged import CountedGraphs, assert_near, backend_of, flow_without_pages, paged_flow, pages_of
from plain_flow import prompt_of
from pretend_device import Pretence
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow import device_backend
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import N_RESERVED
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowPrompt, FlowStream
from telephony_tts.engines.cosyvoice2.profile import CPU, DEFAULT, FAST, Profile

pytestmark = pytest.mark.slow

END_TOKENS = device_backend.END_TOKENS
PROMPTS = (28, 103, 178, 53)
"""Tokens of four voices: pasts of 1, 4, 7 and 2 pages. Three of them share a pass of four rows."""


@pytest.fixture(autouse=True)
def encoder_alone_is_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Euler steps would take most of the time."""
    monkeypatch.setattr(device_backend, "PREPARED_FRAMES", ())
    monkeypatch.setattr(device_backend, "PREPARED_PAGES", (4, 8))
    with torch.inference_mode():
        yield


def recorded_flow(pretence: Pretence, n_streams: int = 4) -> tuple[Flow, CountedGraphs]:
    flow, graphs = paged_flow(), CountedGraphs(pretence)
    backend_of(flow).prepare(graphs, n_streams, lambda: None)
    assert graphs.records, "nothing in a pass waits or sends"
    return flow, graphs


def voices(flow: Flow) -> list[FlowPrompt]:
    return [prompt_of(flow, *voice(flow, n, n)) for n in PROMPTS]


def begin(flow: Flow, streams: Sequence[FlowStream], seed: int) -> list[FlowBlock]:
    """The next block of each stream, of 25 tokens with those of the prompt."""
    requests = []
    for i, stream in enumerate(streams):
        new, ahead = chunk(flow, stream, 1, 10 * seed + i)
        requests.append(BlockRequest(stream, new[0].tolist(), ahead[0].tolist()))
    return flow.begin(requests)


def encoded(flow: Flow, n_blocks: int) -> list[list[Tensor]]:
    """mu of the first blocks of a stream of each voice. All streams begin together. No Euler step is taken."""
    streams = [flow.start(prompt) for prompt in voices(flow)]
    mus = []
    for seed in range(n_blocks):
        mus.append([block.mu for block in begin(flow, streams, seed)])
        for stream in streams:
            stream.steps_done.clear()  # as if the block were done
    return mus


@pytest.mark.parametrize("profile", [DEFAULT, CPU, FAST])
def test_all_blocks_but_last_ones_have_a_recorded_shape(profile: Profile) -> None:
    for n_prompt in range(4 * BLOCK_TOKENS):
        n_left = n_prompt - profile.n_cut(n_prompt)
        n_tail = n_left - max(0, n_left - LOOKAHEAD_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
        assert n_tail + profile.block_tokens(0, n_left) == BLOCK_TOKENS
        assert {profile.block_tokens(n, n_left) for n in range(1, 9)} == {BLOCK_TOKENS}


def test_whole_calls_equal_each_call_on_a_cpu(pretence: Pretence) -> None:
    """Of recorded passes, and of last blocks and blocks of 50 tokens, which are not recorded."""
    with _disable_current_modes():  # type: ignore[no-untyped-call]
        plain = flow_without_pages()
        wanted = [alone(plain, n_prompt, n_blocks, seed) for seed, (n_prompt, n_blocks, _) in enumerate(CALLS)]
    flow, graphs = recorded_flow(pretence)
    for ours, theirs in zip(InterleavedCalls(flow).speak(), wanted, strict=True):
        assert_near(ours, theirs)
    assert graphs.replayed == {"flow encoder": 6}, "all blocks of 25 tokens but the last ones"


def test_ends_are_recorded_as_well(pretence: Pretence, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last block has as many tokens as remain when another block and its lookahead do not fit."""
    for n_tokens in range(60, 90):
        *_, (n_known, n_out, is_last) = DEFAULT.plan(PROMPTS[0], n_tokens)
        assert is_last and n_known - n_out in END_TOKENS
    monkeypatch.setattr(device_backend, "END_TOKENS", range(11, 14))
    with _disable_current_modes():  # type: ignore[no-untyped-call]
        plain = flow_without_pages()
        wanted = [encoded_end(plain, n_tokens) for n_tokens in (12, 20)]
    flow, graphs = recorded_flow(pretence, 2)
    assert_near(encoded_end(flow, 12), wanted[0])
    assert graphs.replayed == {"flow encoder": 3}, "a voice's, the first block's and that of the end"
    assert_near(encoded_end(flow, 20), wanted[1])
    assert graphs.replayed == {"flow encoder": 5}, "none for an end of 20 tokens here"


def encoded_end(flow: Flow, n_tokens: int) -> Tensor:
    """mu of the second block of a stream, which is its last and has so many tokens."""
    stream = flow.start(voices(flow)[0])
    begin(flow, [stream], 1)
    stream.steps_done.clear()  # as if the block were done
    n_tail = stream.tail_tokens.shape[1]
    (block,) = flow.begin([BlockRequest(stream, tuple(range(1, 1 + n_tokens - n_tail)), None)])
    return block.mu


def test_streams_with_different_pasts_share_recorded_passes(pretence: Pretence) -> None:
    """Their pasts grow from one shape to the next, and beyond all that were recorded. Other passes give the same."""
    with _disable_current_modes():  # type: ignore[no-untyped-call]
        wanted = encoded(flow_without_pages(), 3)
    flow, graphs = recorded_flow(pretence)
    for of_device in (encoded(flow, 3), encoded(paged_flow(), 3)):
        for mus, others in zip(of_device, wanted, strict=True):
            for mu, other in zip(mus, others, strict=True):
                assert_near(mu, other)
    # A voice of 25 tokens; then pages of past: 1, 4 and 2, 7 | 2 and 3, 5 and 8 | 3 and 4, 6, and without a graph 9.
    assert graphs.replayed == {"flow encoder": 1 + 2 + 2 + 2}


def test_a_recorded_pass_writes_to_the_pages_of_its_blocks_alone(pretence: Pretence) -> None:
    flow, graphs = recorded_flow(pretence)
    streams = [flow.start(prompt) for prompt in voices(flow)]
    memory = backend_of(flow).pages.encoder
    parts = [*(kv.movedim(2, 0) for kv in memory.kv), memory.contexts]  # by row
    before = [part.cpu().clone() for part in parts]
    graphs.replayed.clear()
    filled = {N_RESERVED + index for block in begin(flow, streams, 0) for index in pages_of(block)}
    assert graphs.replayed == {"flow encoder": 2} and len(filled) == 4
    for part, was in zip(parts, before, strict=True):
        is_same = torch.isclose(part.cpu(), was, 0, 0, equal_nan=True).flatten(1).all(1)
        changed = set((~is_same).nonzero().flatten().tolist())
        assert changed - {device_backend.SCRATCH_PAGE} == filled


def test_what_a_pass_has_computed_stays_when_the_next_is_computed(pretence: Pretence) -> None:
    flow, graphs = recorded_flow(pretence)
    prompts = voices(flow)
    graphs.replayed.clear()
    first = begin(flow, [flow.start(prompts[0])], 0)
    mu = first[0].mu.cpu().clone()
    second = begin(flow, [flow.start(prompts[1])], 7)
    assert graphs.replayed == {"flow encoder": 2}
    assert torch.equal(first[0].mu.cpu(), mu) and not torch.equal(second[0].mu.cpu(), mu)


def test_the_host_launches_little_for_a_recorded_pass_and_never_waits(pretence: Pretence) -> None:
    launched = []
    for flow in (recorded_flow(pretence)[0], paged_flow()):
        streams = [flow.start(prompt) for prompt in voices(flow)[:2]]
        pretence.clear()
        begin(flow, streams, 0)
        assert pretence.waits == [] and set(pretence.sent) == {"border.py:sent"}
        launched.append(pretence.launches.total())
    assert launched[0] <= 20 and launched[1] > 150, launched
