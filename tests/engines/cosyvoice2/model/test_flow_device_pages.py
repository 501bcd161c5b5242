"""The memory that the flow's streams share on a device: whose pages are whose, and what happens when it is full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_device
import pytest
import torch
from flow_calls import Crowd, call, chunk, end, voice
from flow_paged import N_STEPS, batches, begun, held_against, n_free, pages_of, placed, said
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
from telephony_tts.errors import EngineError, EngineUnavailable


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


# Who leaves, and who comes after


def test_pages_of_one_who_leaves_are_anothers_at_once(pretence: Pretence) -> None:
    flow = placed()
    streams = [call(flow, 30, seed) for seed in range(3)]
    solves = begun(flow, streams)
    for _ in range(4):
        flow.step(solves)
    left_behind = pages_of(solves[1]) | pages_of(streams[1])
    assert len(left_behind) == 1
    del solves[1], streams[1]
    newcomer = call(flow, 30, 7)
    solves.append(begin(flow, newcomer, *chunk(flow, newcomer, 1, 7)))
    voice_pages = [page for page in newcomer.prompt.table.pages if isinstance(page, DevicePage)]
    assert pages_of(solves[-1]) | {page.index for page in voice_pages} > left_behind
    del voice_pages
    while not solves[-1].done:
        flow.step([solve for solve in solves if not solve.done])
    for solve, stream, seed in zip(solves, [*streams, newcomer], (0, 2, 7), strict=True):
        mel, rest = said(30, seed, (1, seed), end_seed=seed)
        held_against(solve.mel(), mel)
        held_against(finish(flow, stream, end(flow, seed)), rest)


def test_a_voice_is_its_streams_until_the_last_has_left() -> None:
    flow = placed("cpu")
    before = n_free(flow)
    prompt = prompt_of(flow, *voice(flow, 80, 1))
    of_voice = before - n_free(flow)
    assert of_voice == len(prompt.table.pages) == 3
    streams = [flow.start(prompt) for _ in range(2)]
    assert before - n_free(flow) == of_voice
    del prompt
    extend(flow, streams[0], *chunk(flow, streams[0], 2, 1))
    assert before - n_free(flow) == of_voice + 2
    solve = begin(flow, streams[0], *chunk(flow, streams[0], 1, 2))
    for _ in range(4):
        flow.step([solve])
    assert before - n_free(flow) == of_voice + 3
    del streams[0], solve
    assert before - n_free(flow) == of_voice
    call(flow, 60, 4)  # which writes to what was given back
    held_against(extend(flow, streams[0], *chunk(flow, streams[0], 1, 5)), said(80, 1, (1, 5))[0])
    del streams
    assert n_free(flow) == before


def test_pages_may_be_given_back_by_any_thread() -> None:
    flow = placed("cpu")
    before = n_free(flow)
    held = list(batches(flow).pages.take(2))
    assert n_free(flow) == before - 2
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert n_free(flow) == before


def test_the_page_that_is_nobodys_stays_empty() -> None:
    flow = placed("cpu")
    Crowd(flow).speak()
    pages = batches(flow).pages
    for memory in (pages.encoder, pages.estimator):
        n = memory.layout.n_rows
        assert not any(kv[:, :, ZERO_PAGE * n : (ZERO_PAGE + 1) * n].any() for kv in memory.kv)
        assert not memory.contexts[ZERO_PAGE].any()


# Too little memory


def test_a_full_memory_refuses_a_newcomer_and_nobody_else(pretence: Pretence) -> None:
    n_bytes = int(7.9 * batches(placed("cpu")).pages.page_nbytes)  # with the two that belong to no stream
    flow = placed(n_bytes=n_bytes)
    prompt = prompt_of(flow, *voice(flow, 53, 0))  # 2 blocks; the first of each stream is another
    streams, newcomer = [flow.start(prompt) for _ in range(4)], flow.start(prompt)
    solves = begun(flow, streams)
    flow.step(solves)
    full = r"full: 7 s of both fit .* \(engines.cosyvoice2.flow_memory_mb\)"
    with pytest.raises(EngineError, match=full):
        flow.begin_prompt(*voice(flow, 80, 9))
    assert n_free(flow) == 1, "a second fits, and the voice has three"
    streams.append(flow.start(prompt))
    solves.append(begin(flow, streams[-1], *chunk(flow, streams[-1], 1, 4)))
    with pytest.raises(EngineError, match=full):
        begin(flow, newcomer, *chunk(flow, newcomer, 1, 5))
    assert n_free(flow) == 0
    assert not any(stream.finished for stream in (newcomer, *streams)) and newcomer.steps_done == []
    while not solves[4].done:
        flow.step([solve for solve in solves if not solve.done])
    for seed in (0, 4):
        mel, rest = said(53, 0, (1, seed), end_seed=seed)
        held_against(solves[seed].mel(), mel)
        last = begin(flow, streams[seed], end(flow, seed), None)  # of which nothing is kept
        held_against(stepped(flow, last), rest)
    del streams, solves, last
    held_against(extend(flow, newcomer, *chunk(flow, newcomer, 1, 5)), said(53, 0, (1, 5))[0])


def test_one_utterance_too_many_ends_with_an_error_and_holds_nothing(model_dir: Path, alone: list[Pcm]) -> None:
    """Nor does who keeps the error."""
    rig = Rig(model_dir)
    flow = rig.model.flow
    encoder, estimator = flow.encoder.layout(), flow.decoder.estimator.layout()
    flow.use_device_pages(8 * page_nbytes(encoder, estimator, FEW_EULER, 4) + 2 * page_nbytes(encoder, estimator, 1, 4))
    core = Stepped(rig, runner=Runner(rig.model, widths=TOGETHER))
    keys = [*say_all(core, 3), core.say(Request(f"{NEIGHBOUR} No.", 4), "preset")]
    free = n_free(flow)
    core.run()
    error = core.ended[keys[3]].error
    assert error is not None and "flow_memory_mb" in error.message and error.retryable
    for key, expected in zip(keys[:3], alone, strict=False):
        np.testing.assert_allclose(core.pcm(key), expected, atol=2)
    assert core.is_empty() and n_free(flow) == free == 5, "but for a voice of 3 blocks"
    again = core.say(REQUESTS[1], VOICES[1])
    core.run()
    np.testing.assert_allclose(core.pcm(again), alone[1], atol=2)


def test_memory_for_less_than_a_second_is_refused_when_it_is_loaded(model_dir: Path, pretence: Pretence) -> None:
    def load(flow_memory_mb: int | None) -> int:
        device, checkpoint = str(pretend_device.device()), load_model_directory(model_dir)
        model = SpeechModel.load(
            checkpoint, device=device, precision=Precision(), n_slots=2, flow_memory_mb=flow_memory_mb
        )
        pages = batches(model.flow).pages
        return pages.n_pages * pages.page_nbytes

    with pytest.raises(EngineUnavailable, match=r"1 MB are too few .* 1\.1 MB; .*flow_memory_mb"):
        load(1)
    assert 10 << 20 < load(11) < 11 << 20
    assert 127 << 20 < load(None) < 128 << 20


def test_memory_that_the_device_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 5 GiB")

    monkeypatch.setattr(device_backend, "PagePool", lacks)
    with pytest.raises(EngineUnavailable, match=r"cannot have 5120 MB of cpu; give it less .*flow_memory_mb"):
        small_flow(n_steps=N_STEPS).use_device_pages(5 << 30)
