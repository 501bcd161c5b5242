"""The page pool of the flow on a device: which stream holds which pages, and what happens when it is full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_device
import pytest
import torch
from flow_calls import InterleavedCalls, call, chunk, end, voice
from flow_paged import (
    N_STEPS,
    assert_near,
    backend_of,
    begin_first_blocks,
    n_free,
    paged_flow,
    pages_of,
    spoken_alone,
)
from freeze_flow import small_flow
from plain_flow import begin, extend, finish, prompt_of, stepped
from pretend_device import Pretence
from speaking import FEW_EULER, NEIGHBOUR, REQUESTS, TOGETHER, VOICES, Rig, Stepped, say_all

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.flow import device_backend
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import ZERO_PAGE, DevicePage, page_nbytes
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


# Pages that are freed and taken again


def test_pages_of_a_dropped_stream_are_free_at_once(pretence: Pretence) -> None:
    flow = paged_flow()
    streams = [call(flow, 30, seed) for seed in range(3)]
    blocks = begin_first_blocks(flow, streams)
    for _ in range(4):
        flow.step(blocks)
    left_behind = pages_of(blocks[1]) | pages_of(streams[1])
    assert len(left_behind) == 1
    del blocks[1], streams[1]
    newest = call(flow, 30, 7)
    blocks.append(begin(flow, newest, *chunk(flow, newest, 1, 7)))
    voice_pages = [page for page in newest.prompt.table.pages if isinstance(page, DevicePage)]
    assert pages_of(blocks[-1]) | {page.index for page in voice_pages} > left_behind
    del voice_pages
    while not blocks[-1].done:
        flow.step([block for block in blocks if not block.done])
    for block, stream, seed in zip(blocks, [*streams, newest], (0, 2, 7), strict=True):
        mel, rest = spoken_alone(30, seed, (1, seed), end_seed=seed)
        assert_near(block.mel(), mel)
        assert_near(finish(flow, stream, end(flow, seed)), rest)


def test_a_voices_pages_are_held_until_its_last_stream_is_dropped() -> None:
    flow = paged_flow("cpu")
    before = n_free(flow)
    prompt = prompt_of(flow, *voice(flow, 80, 1))
    of_voice = before - n_free(flow)
    assert of_voice == len(prompt.table.pages) == 3
    streams = [flow.start(prompt) for _ in range(2)]
    assert before - n_free(flow) == of_voice
    del prompt
    extend(flow, streams[0], *chunk(flow, streams[0], 2, 1))
    assert before - n_free(flow) == of_voice + 2
    block = begin(flow, streams[0], *chunk(flow, streams[0], 1, 2))
    for _ in range(4):
        flow.step([block])
    assert before - n_free(flow) == of_voice + 3
    del streams[0], block
    assert before - n_free(flow) == of_voice
    call(flow, 60, 4)  # it writes to pages that were freed
    assert_near(extend(flow, streams[0], *chunk(flow, streams[0], 1, 5)), spoken_alone(80, 1, (1, 5))[0])
    del streams
    assert n_free(flow) == before


def test_any_thread_may_free_pages() -> None:
    flow = paged_flow("cpu")
    before = n_free(flow)
    held = list(backend_of(flow).pages.take(2))
    assert n_free(flow) == before - 2
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert n_free(flow) == before


def test_the_zero_page_stays_zero() -> None:
    flow = paged_flow("cpu")
    InterleavedCalls(flow).speak()
    pages = backend_of(flow).pages
    for memory in (pages.encoder, pages.estimator):
        n = memory.layout.n_rows
        assert not any(kv[:, :, ZERO_PAGE * n : (ZERO_PAGE + 1) * n].any() for kv in memory.kv)
        assert not memory.contexts[ZERO_PAGE].any()


# Too little memory


def test_a_full_pool_refuses_new_blocks_and_no_others(pretence: Pretence) -> None:
    page_nbytes = backend_of(paged_flow("cpu")).pages.page_nbytes
    flow = paged_flow(n_bytes=int(7.9 * page_nbytes))  # 7 pages, and the two that belong to no stream
    prompt = prompt_of(flow, *voice(flow, 53, 0))  # 2 pages; the first block of each stream is one more
    streams, newest = [flow.start(prompt) for _ in range(4)], flow.start(prompt)
    blocks = begin_first_blocks(flow, streams)
    flow.step(blocks)
    full = r"full: 7 s of both fit .* \(engines.cosyvoice2.flow_memory_mb\)"
    with pytest.raises(EngineError, match=full):
        flow.begin_prompt(*voice(flow, 80, 9))
    assert n_free(flow) == 1, "a second fits, and the voice has three"
    streams.append(flow.start(prompt))
    blocks.append(begin(flow, streams[-1], *chunk(flow, streams[-1], 1, 4)))
    with pytest.raises(EngineError, match=full):
        begin(flow, newest, *chunk(flow, newest, 1, 5))
    assert n_free(flow) == 0
    assert not any(stream.finished for stream in (newest, *streams)) and newest.steps_done == []
    while not blocks[4].done:
        flow.step([block for block in blocks if not block.done])
    for seed in (0, 4):
        mel, rest = spoken_alone(53, 0, (1, seed), end_seed=seed)
        assert_near(blocks[seed].mel(), mel)
        last = begin(flow, streams[seed], end(flow, seed), None)  # nothing of it is kept
        assert_near(stepped(flow, last), rest)
    del streams, blocks, last
    assert_near(extend(flow, newest, *chunk(flow, newest, 1, 5)), spoken_alone(53, 0, (1, 5))[0])


def test_an_utterance_too_many_ends_with_an_error_and_holds_nothing(model_dir: Path, alone: list[Pcm]) -> None:
    """A reference to the error holds nothing either."""
    rig = Rig(model_dir)
    flow = rig.model.flow
    encoder, estimator = flow.encoder.layout(), flow.decoder.estimator.layout()
    flow.use_device_pages(8 * page_nbytes(encoder, estimator, FEW_EULER, 4) + 2 * page_nbytes(encoder, estimator, 1, 4))
    core = Stepped(rig, runner=Runner(rig.model, batch_sizes=TOGETHER))
    keys = [*say_all(core, 3), core.say(Request(f"{NEIGHBOUR} No.", 4), "preset")]
    free = n_free(flow)
    core.run()
    error = core.ended[keys[3]].error
    assert error is not None and "flow_memory_mb" in error.message and error.retryable
    for key, expected in zip(keys[:3], alone, strict=False):
        np.testing.assert_allclose(core.pcm(key), expected, atol=2)
    assert core.is_empty() and n_free(flow) == free == 5, "all but the 3 pages of a voice"
    again = core.say(REQUESTS[1], VOICES[1])
    core.run()
    np.testing.assert_allclose(core.pcm(again), alone[1], atol=2)


def test_a_pool_of_less_than_a_second_is_refused_at_loading(model_dir: Path, pretence: Pretence) -> None:
    def load(flow_memory_mb: int | None) -> int:
        device, checkpoint = str(pretend_device.device()), load_model_directory(model_dir)
        model = SpeechModel.load(
            checkpoint, device=device, precision=Precision(), n_slots=2, flow_memory_mb=flow_memory_mb
        )
        pages = backend_of(model.flow).pages
        return pages.n_pages * pages.page_nbytes

    with pytest.raises(EngineUnavailable, match=r"1 MB are too few .* 1\.1 MB; .*flow_memory_mb"):
        load(1)
    assert 10 << 20 < load(11) < 11 << 20
    assert 127 << 20 < load(None) < 128 << 20


def test_a_pool_that_the_device_has_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 5 GiB")

    monkeypatch.setattr(device_backend, "PagePool", lacks)
    with pytest.raises(EngineUnavailable, match=r"cannot have 5120 MB of cpu; give it less .*flow_memory_mb"):
        small_flow(n_steps=N_STEPS).use_device_pages(5 << 30)
