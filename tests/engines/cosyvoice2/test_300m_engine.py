"""CosyVoice-300M on the same core, lanes and slots as CosyVoice2."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import assert_keeps_the_contract, joined, speak
from few_steps import FEW_EULER
from reference_vocoder import whole_audio
from service_rig import BRIEF, FEW_SLOTS, core_of, n_free, started
from speaking import N_SLOTS, UNBOUNDED, Rig, Stepped, Watched, n_empty, pcm
from torch import Tensor

from telephony_tts.engines.api import EngineStats, Pcm, TextFeed, Utterance
from telephony_tts.engines.cosyvoice2.core import stream
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane, Stage
from telephony_tts.engines.cosyvoice2.device.runner import vocoded_parts
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest
from telephony_tts.engines.cosyvoice2.model.flow.whole_flow import WholeFlow
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.profile import WHOLE
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import AheadLimits, Precision
from telephony_tts.engines.cosyvoice2.text.prompting import Request, cut, decoding_of
from telephony_tts.runtime.clock import NS_PER_S
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps")]

SHORT = replace(BRIEF, neighbour="It left today.")
"""Of several chunks too. In this model `BRIEF.neighbour` is three times as long."""
ONE_PIECE = "It left on Tuesday."
THREE_PIECES = "Thank you for calling. Your parcel left today. It is on its way."
REQUESTS = [Request(ONE_PIECE, 5), Request(THREE_PIECES, 2), Request(ONE_PIECE, 6, speed=1.3)]
"""With seeds for which speech is short."""
VOICES = ["first", "second", "second"]


@pytest.fixture(scope="module")
def small(small_dir: Path) -> Rig:
    return Rig(small_dir)


@pytest.fixture(scope="module")
def spoken_alone(small: Rig) -> list[Pcm]:
    return [alone(small, request, voice) for request, voice in zip(REQUESTS, VOICES, strict=True)]


def alone(small: Rig, request: Request, voice: str) -> Pcm:
    stepped = Stepped(small, WHOLE)
    key = stepped.say(request, voice)
    stepped.run()
    assert key in stepped.ended and stepped.is_empty()
    return stepped.pcm(key)


# -------------------------------------------------------------------------- the engine


def test_it_keeps_the_contract(small_dir: Path) -> None:
    """With two workers. CosyVoice2's contract runs with one too, and the tests of the audio below have one lane."""
    assert_keeps_the_contract(lambda: CosyVoice2Engine(small_dir, n_workers=2, limits=FEW_SLOTS), SHORT)


def test_it_speaks_from_a_process_of_its_own_at_its_own_rate(small_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> list[Pcm]:
        assert [(voice.name, voice.sample_rate_hz) for voice in engine.voices] == [("first", 22050), ("second", 22050)]
        chunks = await speak(engine, Utterance("u", ONE_PIECE, seed=3))
        assert {chunk.sample_rate_hz for chunk in chunks} == {22050}
        return [joined(chunks)]

    (in_process,) = started(CosyVoice2Engine(small_dir, isolation="process"), use)
    (in_thread,) = started(CosyVoice2Engine(small_dir), use)
    np.testing.assert_array_equal(in_process, in_thread)


def test_fewer_steps_are_an_option(small_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> tuple[Pcm, int]:
        return joined(await speak(engine, Utterance("u", "Yes."))), core_of(engine).runner.n_flow_steps

    (usual, n_usual), (five, n_five) = (
        started(CosyVoice2Engine(small_dir, flow_steps=n), use) for n in (None, 5)
    )
    assert (n_usual, n_five) == (FEW_EULER, 5), "the directory's own number, and the one that is set"
    assert len(usual) == len(five) and not np.array_equal(usual, five)


def test_text_that_is_still_written_is_spoken_when_it_is_complete(small_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        assert not engine.streams_text
        more = TextFeed()
        speech = engine.synthesize(Utterance("u", "It left ", seed=1, more=more))
        more.push("on Tuesday.")
        more.end()
        grown = joined([chunk async for chunk in speech])
        np.testing.assert_array_equal(grown, joined(await speak(engine, Utterance("v", ONE_PIECE, seed=1))))
        assert engine.stats() == EngineStats() and n_free(engine) == 16

    started(CosyVoice2Engine(small_dir), use)


def test_what_it_cannot_do_is_refused(small_dir: Path, tmp_path: Path) -> None:
    for options in ({"profile": "upstream"}, {"finish": "full"}):
        with pytest.raises(ConfigError, match="is CosyVoice-300M, which speaks piece by piece"):
            CosyVoice2Engine(small_dir, **options)
    with pytest.raises(ConfigError, match=r"no control token '\[laughter\]'; it has <\|en\|> <\|zh\|>"):
        CosyVoice2Engine(small_dir, control_tokens=["[laughter]"])
    with pytest.raises(ConfigError, match="no end_of_instruction 'x'"):
        CosyVoice2Engine(small_dir, end_of_instruction="x")
    without = tmp_path / "plain"
    without.mkdir()
    for file in small_dir.iterdir():
        if file.name != "spk2info.pt":
            (without / file.name).symlink_to(file)
    with pytest.raises(EngineUnavailable, match=r"no preset speakers .spk2info.pt.*300M-SFT"):
        started(CosyVoice2Engine(without), lambda engine: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("networks", [("lm_dtype",), ("flow_dtype",), ("lm_dtype", "flow_dtype")])
def test_int8_speaks(small_dir: Path, networks: tuple[str, ...]) -> None:
    async def use(engine: CosyVoice2Engine) -> Pcm:
        model = core_of(engine).runner.model
        assert model.lm.rows_are_exact == ("lm_dtype" in networks)
        assert isinstance(model.flow, WholeFlow)
        assert model.flow.decoder.estimator.is_int8 == ("flow_dtype" in networks)
        return joined(await speak(engine, Utterance("u", "Yes.")))

    audio = started(CosyVoice2Engine(small_dir, **dict.fromkeys(networks, "int8")), use)  # type: ignore[arg-type]
    assert np.square(audio.astype(float)).mean() > 100**2


def test_int8_streams_that_share_batches_have_the_samples_of_each_alone(small_dir: Path) -> None:
    rig = Rig(small_dir, precision=Precision("int8", "int8"))
    wanted = [alone(rig, request, voice) for request, voice in zip(REQUESTS, VOICES, strict=True)]
    rows: list[int] = []
    decode = rig.model.lm.decode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model.lm, "decode", lambda x, *more: rows.append(len(x)) or decode(x, *more))
        stepped = Stepped(rig, WHOLE)
        keys = []
        for i, (request, voice) in enumerate(zip(REQUESTS, VOICES, strict=True)):
            keys.append(stepped.say(request, voice, (9 - i) * NS_PER_S))  # more urgent than those that are drawn
            stepped.run(8)
        stepped.run()
    assert max(rows) == len(REQUESTS), "no batch had all streams"
    for key, want in zip(keys, wanted, strict=True):
        np.testing.assert_array_equal(stepped.pcm(key), want)


def test_a_stream_that_ends_in_a_batch_lets_the_others_draw_on(
    small_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: the table of speech ids has no row for the end of speech, so the batch failed and all of it was done
    again, one stream after the other."""
    rig = Rig(small_dir, precision=Precision("int8", "int8"))
    end = rig.model.family.end_of_speech
    ended: list[int] = []
    sample = rig.model.sampler.sample

    def one_ends(logits: Tensor, slots: Sequence[int], *how: Any) -> Tensor:
        ids = sample(logits, slots, *how)
        if len(slots) > 1 and not ended:
            ended.append(slots[0])
            ids[0] = end
        return ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model.sampler, "sample", one_ends)
        stepped = Stepped(rig, WHOLE)
        keys = []
        for i in range(2):
            keys.append(stepped.say(replace(REQUESTS[0], seed=i), VOICES[0], (9 - i) * NS_PER_S))
            stepped.run(8)
        stepped.run()
    assert ended, "no batch had both streams"
    assert all(stepped.ended[key].error is None for key in keys) and len(stepped.pcm(keys[1])) > 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_speaks(small_dir: Path, dtype: str) -> None:
    async def use(engine: CosyVoice2Engine) -> Pcm:
        return joined(await speak(engine, Utterance("u", "Yes.")))

    audio = started(CosyVoice2Engine(small_dir, dtype=dtype), use)
    assert np.square(audio.astype(float)).mean() > 100**2


# --------------------------------------------------------------------------- the audio


def test_the_audio_is_that_of_the_networks_one_after_the_other(small: Rig, spoken_alone: list[Pcm]) -> None:
    """Each piece: its ids, its mel and its samples, computed at once without the core."""
    model, flow = small.model, small.model.flow
    assert not isinstance(flow, Flow)
    request, prompt = REQUESTS[1], small.prompt(VOICES[1], WHOLE)
    pieces = [text for _, _, text in cut(request.text, WHOLE, model.tokenizer)]
    assert len(pieces) == 3
    parts, n_parts = [], 0
    for i, text in enumerate(pieces):
        decoding = decoding_of(model.tokenizer, prompt, request, text, model.family)
        tokens = small.speech_tokens(prompt, decoding, request.seed + i)
        (block,) = flow.begin([BlockRequest(flow.start(prompt.flow, request.seed + i), tokens, None)])
        while not block.done:
            flow.step([block])
        noise = CounterNoise(request.seed + i, model.vocoder.config.n_harmonics + 1)
        n_parts += len(vocoded_parts(block.mel().shape[2]))
        parts.append(whole_audio(model.vocoder, block.mel(), noise)[0])
    assert n_parts > len(pieces), "no piece is vocoded in more than one part"
    want = (torch.cat(parts).clamp(-1, 1) * 32767).round().short().numpy()
    heard = spoken_alone[1]
    assert heard.shape == want.shape
    # Parts of a mel round differently from the whole.
    assert int(np.abs(heard.astype(int) - want).max()) <= 1


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 6])  # 5 draws many more utterances and takes much longer
def test_samples_depend_neither_on_the_lanes_nor_on_other_streams(
    small: Rig, spoken_alone: list[Pcm], seed: int
) -> None:
    """Lanes in random order, steps that end in another order than they began, utterances that begin and are cancelled
    at random times, slow listeners."""
    order = random.Random(seed)
    stepped = Stepped(small, WHOLE, ahead=AheadLimits(audio_ms=400, n_tokens=order.choice([5, 60])))
    keys: list[int] = []
    others: list[int] = []
    core, found, n_both = stepped.core, [], 0
    for _ in range(10**6):
        stepped.now_ns += order.randrange(10**7)
        if len(keys) < len(REQUESTS) and order.random() < 0.05:
            i = len(keys)
            keys.append(stepped.say(REQUESTS[i], VOICES[i], stepped.now_ns + order.randrange(10**9)))
        if order.random() < 0.02:
            others.append(stepped.say(Request(THREE_PIECES, order.randrange(99)), order.choice(VOICES)))
        if others and order.random() < 0.05:
            stepped.cancel(order.choice(others))
        step = core._find(order.choice(list(Lane))) if len(found) < 3 else None
        if step:
            found.append(step)
        n_both += any(job.stream.earlier and job.stream.piece for job in core._jobs.values())
        if found and (not step or order.random() < 0.5):
            core._compute(found.pop(order.randrange(len(found))))
        if order.random() < 0.3 or not step:
            for key in [*keys, *others]:
                stepped.take(key)
        if len(keys) == len(REQUESTS) and set(keys) <= set(stepped.ended):
            break
    while found:
        core._compute(found.pop())
    for key in others:
        stepped.cancel(key)
    stepped.run()
    assert n_both, "no piece was drawn while the one before was voiced"
    for key, expected in zip(keys, spoken_alone, strict=True):
        np.testing.assert_array_equal(stepped.pcm(key), expected)
    assert set(others) <= set(stepped.ended) and all(stepped.ended[key].error is None for key in others)
    assert stepped.is_empty() and not core._jobs


def test_the_next_piece_is_drawn_while_a_piece_is_in_the_flow(small: Rig) -> None:
    runner = Watched(small)
    stepped = Stepped(small, WHOLE, runner=runner)
    stepped.say(REQUESTS[1], VOICES[1])
    lane = iter([Lane.TOKENS, Lane.AUDIO] * 10**5)
    stepped.run(lanes=lambda: next(lane))
    names = [name for name, _ in runner.calls]
    first, last = names.index("begin"), len(names) - 1 - names[::-1].index("begin")
    between = names[first:last]
    assert between.count("decode") > 5 and names.count("begin") == 3
    at = between.index("decode")
    assert between[at + 1] == "flow" or between[at - 1] == "flow", "both stages by turns"


def test_a_piece_gives_its_slot_back_before_its_audio_is_made(small: Rig) -> None:
    """So as many utterances as there are slots can draw ids while others are voiced."""
    stepped = Stepped(small, WHOLE)
    keys = [stepped.say(Request(ONE_PIECE, i), "first") for i in range(N_SLOTS + 1)]
    while not any(job.stream.earlier for job in stepped.core._jobs.values()):
        assert stepped.core.step()
    (voiced,) = [job for job in stepped.core._jobs.values() if job.stream.earlier]
    assert voiced.stream.slot is None and n_empty(small.model.cache) >= 1
    stepped.run()
    assert set(keys) <= set(stepped.ended) and stepped.is_empty()


def test_cancelling_after_any_step_leaves_nothing(small: Rig) -> None:
    n_steps = 0
    while True:
        stepped = Stepped(small, WHOLE)
        key = stepped.say(Request("Yes. Thank you for calling us. No, it has left.", 3), "first")
        ended_by_itself = stepped.run(n_steps) < n_steps
        stepped.cancel(key)
        stepped.run()
        assert stepped.ended[key].error is None and stepped.is_empty() and not stepped.core._jobs, n_steps
        if ended_by_itself:
            break
        n_steps += 13
    assert n_steps > 50


def test_word_timings_of_later_pieces_follow_the_earlier_ones(small: Rig) -> None:
    stepped = Stepped(small, WHOLE)
    key = stepped.say(REQUESTS[1], VOICES[1])
    stepped.run()
    timings = [timing for chunk in stepped.heard[key] for timing in chunk.timings]
    starts = [timing.start_sample for timing in timings]
    assert starts == sorted(starts) and len(timings) == len(THREE_PIECES.split())
    assert timings[-1].end_sample == len(pcm(stepped.heard[key]))


def test_a_piece_that_fails_ends_its_utterance_only(small: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = Stepped(small, WHOLE)
    good, bad = stepped.say(REQUESTS[0], VOICES[0]), stepped.say(Request(THREE_PIECES, 77), VOICES[1])
    flow = small.model.flow
    begin = type(flow).begin

    def refuse(self: object, requests: list[BlockRequest]) -> object:
        if any(request.stream.seed == 78 for request in requests):
            raise RuntimeError("the second piece")
        return begin(self, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(type(flow), "begin", refuse)
    stepped.run()
    assert stepped.ended[good].error is None
    assert "the second piece" in str(stepped.ended[bad].error) and stepped.heard[bad]
    assert stepped.is_empty() and not stepped.core._jobs


def test_speech_without_an_end_fails_and_frees_its_slot(small: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_SPEECH_TOKENS", 10)
    stepped = Stepped(small, WHOLE)
    key = stepped.say(REQUESTS[1], VOICES[1])
    stepped.run()
    assert "did not come to an end after" in str(stepped.ended[key].error)
    assert stepped.is_empty() and not stepped.core._jobs


def test_a_listener_who_takes_nothing_stops_the_work_after_two_pieces(small: Rig) -> None:
    stepped = Stepped(small, WHOLE, ahead=AheadLimits(audio_ms=200))
    key = stepped.say(Request(" ".join([THREE_PIECES] * 3), 2), "first")
    stepped.run()
    (job,) = stepped.core._jobs.values()
    assert job.held_ms >= 200 and key not in stepped.ended
    n_heard = len(stepped.heard[key])
    assert stepped.run() == 0, "the core is idle"
    stepped.run(taking=[key])
    assert key in stepped.ended and len(stepped.heard[key]) > 3 * n_heard and stepped.is_empty()


def test_the_next_piece_is_due_after_the_piece_before_it(small: Rig) -> None:
    """So a call that waits for its first audio is served before it."""
    stepped = Stepped(small, WHOLE)
    stepped.say(REQUESTS[1], VOICES[1], deadline_ns=10**9)
    while not (jobs := [job for job in stepped.core._jobs.values() if job.stream.earlier and job.stream.piece]):
        assert stepped.core.step()
    (job,) = jobs
    needs = {need.stage: need.due_ns for need in job.needs(UNBOUNDED, True)}
    assert job.stream.earlier is not None
    length_ns = len(job.stream.earlier.tokens) * 10**9 // 50
    assert needs[Stage.PREFILL] == needs[Stage.FLOW] + length_ns == 10**9 + length_ns
