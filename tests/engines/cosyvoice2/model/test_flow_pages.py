"""The memory that the flow's streams share on a device: whose pages are whose, and what happens when it is full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_device
import pytest
import torch
from flow_calls import Crowd, call, chunk, end, stepped, voice
from flow_paged import N_STEPS, batches, begun, held_against, n_free, pages_of, placed, said
from freeze_flow import small_flow
from pretend_device import Pretence
from speaking import FEW_EULER, NEIGHBOUR, REQUESTS, TOGETHER, VOICES, Rig, Stepped, say_all

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.engines.cosyvoice2.model.flow import batch as flow_batch
from telephony_tts.engines.cosyvoice2.model.flow.pages import NOTHING, Page
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
    assert len(left_behind) == N_STEPS
    del solves[1], streams[1]
    newcomer = call(flow, 30, 7)
    solves.append(flow.begin(newcomer, *chunk(flow, newcomer, 1, 7)))
    taken = pages_of(solves[-1]) | {page.index for past in newcomer.prompt.steps for page in past.pages}  # type: ignore[union-attr]
    assert taken > left_behind
    while not solves[-1].done:
        flow.step([solve for solve in solves if not solve.done])
    for solve, stream, seed in zip(solves, [*streams, newcomer], (0, 2, 7), strict=True):
        mel, rest = said(30, seed, (1, seed), end_seed=seed)
        held_against(solve.mel(), mel)
        held_against(flow.finish(stream, end(flow, seed)), rest)


def test_a_voice_is_its_streams_until_the_last_has_left() -> None:
    flow = placed("cpu")
    before = n_free(flow)
    prompt = flow.prompt(*voice(flow, 80, 1))
    of_voice = before - n_free(flow)
    assert of_voice == 3 * N_STEPS and prompt.nbytes() > of_voice * batches(flow).pages.page_nbytes
    streams = [flow.start(prompt) for _ in range(2)]
    assert before - n_free(flow) == of_voice and streams[0].nbytes() < batches(flow).pages.page_nbytes
    del prompt
    flow.extend(streams[0], *chunk(flow, streams[0], 2, 1))
    assert before - n_free(flow) == of_voice + 2 * N_STEPS
    solve = flow.begin(streams[0], *chunk(flow, streams[0], 1, 2))
    for _ in range(4):
        flow.step([solve])
    assert before - n_free(flow) == of_voice + 3 * N_STEPS
    del streams[0], solve
    assert before - n_free(flow) == of_voice
    call(flow, 60, 4)  # which writes to what was given back
    held_against(flow.extend(streams[0], *chunk(flow, streams[0], 1, 5)), said(80, 1, (1, 5))[0])
    del streams
    assert n_free(flow) == before


def test_pages_may_be_given_back_by_any_thread() -> None:
    flow = placed("cpu")
    before = n_free(flow)
    held: list[tuple[Page, ...]] = batches(flow).room(BLOCK_FRAMES)
    assert n_free(flow) == before - N_STEPS
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert n_free(flow) == before


def test_the_page_that_is_nobodys_stays_empty() -> None:
    flow = placed("cpu")
    Crowd(flow).speak()
    pages = batches(flow).pages
    n = pages.shape.n_branches
    assert not pages.kv[:, :, :, NOTHING * n : (NOTHING + 1) * n].any() and not pages.lefts[NOTHING].any()


# Too little memory


def test_a_full_memory_refuses_a_newcomer_and_nobody_else(pretence: Pretence) -> None:
    n_bytes = (7 * N_STEPS + 5) * batches(placed("cpu")).pages.page_nbytes  # with the two that are nobody's
    flow = placed(n_bytes=n_bytes)
    prompt = flow.prompt(*voice(flow, 53, 0))  # 2 blocks; the first of each stream is another
    streams, newcomer = [flow.start(prompt) for _ in range(4)], flow.start(prompt)
    solves = begun(flow, streams)
    flow.step(solves)
    full = r"full: 7 s of both fit .* \(engines.cosyvoice2.flow_memory_mb\)"
    with pytest.raises(EngineError, match=full):
        flow.begin_prompt(*voice(flow, 80, 9))
    assert n_free(flow) == N_STEPS + 3, "a second fits, and it has three"
    streams.append(flow.start(prompt))
    solves.append(flow.begin(streams[-1], *chunk(flow, streams[-1], 1, 4)))
    with pytest.raises(EngineError, match=full):
        flow.begin(newcomer, *chunk(flow, newcomer, 1, 5))
    assert n_free(flow) == 3
    assert newcomer.finished and not any(stream.finished for stream in streams)
    while not solves[4].done:
        flow.step([solve for solve in solves if not solve.done])
    for seed in (0, 4):
        mel, rest = said(53, 0, (1, seed), end_seed=seed)
        held_against(solves[seed].mel(), mel)
        last = flow.begin(streams[seed], end(flow, seed), None)  # of which nothing is kept
        held_against(stepped(flow, last), rest)
    del streams, solves, last
    again = flow.start(prompt)
    held_against(flow.extend(again, *chunk(flow, again, 1, 5)), said(53, 0, (1, 5))[0])


def test_one_utterance_too_many_ends_with_an_error_and_holds_nothing(model_dir: Path, alone: list[Pcm]) -> None:
    """Nor does who keeps the error."""
    rig = Rig(model_dir)
    flow = rig.model.flow
    flow.use_pages((8 * FEW_EULER + 2) * flow.decoder.estimator.page_nbytes())
    core = Stepped(rig, runner=Runner(rig.model, batch_sizes=TOGETHER))
    keys = [*say_all(core, 3), core.say(Request(f"{NEIGHBOUR} No.", 4), "preset")]
    free = n_free(flow)
    core.run()
    error = core.ended[keys[3]].error
    assert error is not None and "flow_memory_mb" in error.message and error.retryable
    for key, expected in zip(keys[:3], alone, strict=False):
        np.testing.assert_allclose(core.pcm(key), expected, atol=2)
    assert core.is_empty() and n_free(flow) == free == 5 * FEW_EULER, "but for a voice of 3 blocks"
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
    assert 8 << 20 < load(9) < 9 << 20
    assert 127 << 20 < load(None) < 128 << 20


def test_memory_that_the_device_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 5 GiB")

    monkeypatch.setattr(flow_batch, "Pages", lacks)
    with pytest.raises(EngineUnavailable, match=r"cannot have 5120 MB of cpu; give it less .*flow_memory_mb"):
        small_flow(n_steps=N_STEPS).use_pages(5 << 30)
