"""Chunks of several utterances in one call: each equals the utterance alone, and equal shapes are one batch."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from reference_vocoder import raise_failure
from test_vocoder import CONFIG, VECTORS, noise, parity, random_mel, stream
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, Joint, UpstreamJoint, push_chunks
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder

State = dict[str, Tensor]
SIZES = ((30, 20, 33), (30, 20, 33), (44, 0, 12), (30, 26, 9))
"""Chunks of four utterances. The first two always have equal shapes, the fourth only in its first chunk."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def state() -> State:
    loaded: State = torch.load(VECTORS / "tiny_hift.pt", weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def vocoder(state: State) -> Vocoder:
    return Vocoder.from_state(CONFIG, state)


@pytest.fixture(scope="module")
def exact(state: State) -> Vocoder:
    return Vocoder.from_state(CONFIG, state, torch.float64, torch.float64)


def joints_of(vocoder: Vocoder, kind: str, n: int) -> list[Joint]:
    make: dict[str, Callable[[int], Joint]] = {
        "continuous": lambda seed: ContinuousJoint(vocoder, noise(seed)),
        "fast": lambda seed: ContinuousJoint(vocoder, noise(seed), 8),
        "upstream": lambda seed: UpstreamJoint(vocoder, noise(seed)),
    }
    return [make[kind](seed) for seed in range(n)]


def sizes_of(kind: str) -> tuple[tuple[int, ...], ...]:
    """The upstream joint refuses chunks of less than 8 frames before the last."""
    return tuple(tuple(max(size, 8) for size in sizes) for sizes in SIZES) if kind == "upstream" else SIZES


def pushed_together(
    joints: list[Joint], mels: list[Tensor], sizes: tuple[tuple[int, ...], ...], **how: bool
) -> list[Tensor]:
    parts: list[list[Tensor]] = [[] for _ in joints]
    for turn in range(len(sizes[0])):
        starts = [sum(of[:turn]) for of in sizes]
        chunks = [mel[:, :, at : at + of[turn]] for mel, at, of in zip(mels, starts, sizes, strict=True)]
        lasts = [turn == len(of) - 1 for of in sizes]
        for i, audio in enumerate(push_chunks(joints, chunks, lasts, raise_failure, **how)):
            assert audio is not None
            parts[i].append(audio)
    return [torch.cat(of, 1) for of in parts]


def alone(joints: list[Joint], mels: list[Tensor], sizes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    return [stream(joint, mel, list(of[:-1])) for joint, mel, of in zip(joints, mels, sizes, strict=True)]


def mels_of(sizes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    return [random_mel(sum(of), seed) for seed, of in enumerate(sizes)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["continuous", "fast", "upstream"])
def test_on_a_cpu_each_equals_itself_alone_to_the_bit(vocoder: Vocoder, kind: str) -> None:
    sizes = sizes_of(kind)
    got = pushed_together(joints_of(vocoder, kind, 4), mels_of(sizes), sizes)
    for ours, want in zip(got, alone(joints_of(vocoder, kind, 4), mels_of(sizes), sizes), strict=True):
        assert want.shape[1] and torch.equal(ours, want)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["continuous", "fast", "upstream"])
def test_in_one_batch_each_equals_itself_alone_within_rounding(exact: Vocoder, vocoder: Vocoder, kind: str) -> None:
    sizes = sizes_of(kind)
    for model, tolerance in ((exact, 2e-7), (vocoder, 2e-4)):
        got = pushed_together(joints_of(model, kind, 4), mels_of(sizes), sizes, batched=True)
        for ours, want in zip(got, alone(joints_of(model, kind, 4), mels_of(sizes), sizes), strict=True):
            assert parity.error(ours, want) < tolerance


def test_equal_shapes_are_one_batch_and_the_rest_runs_one_by_one(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pitch in float64: in float32 each is computed alone."""
    vocoder, other = (Vocoder.from_state(CONFIG, state, wide=torch.float64) for _ in range(2))
    rows: list[tuple[Vocoder, int]] = []
    for model in (vocoder, other):

        def counted(
            mel: Tensor,
            *rest: object,
            decode: Callable[..., Tensor] = model.decode,
            of: Vocoder = model,
        ) -> Tensor:
            rows.append((of, mel.shape[0]))
            return decode(mel, *rest)

        monkeypatch.setattr(model, "decode", counted)
    joints = [*joints_of(vocoder, "continuous", 4), *joints_of(other, "continuous", 2)]
    mels = [random_mel(n, i) for i, n in enumerate((40, 40, 33, 12, 40, 33))]
    audios = push_chunks(joints, mels, [False] * 6, raise_failure, batched=True)
    assert sorted((of is other, n) for of, n in rows) == [(False, 1), (False, 2), (True, 1), (True, 1)]
    assert [audio.shape for audio in audios if audio is not None] == [(1, 480 * n) for n in (20, 20, 13, 0, 20, 13)]
    rows.clear()
    push_chunks(joints, [random_mel(0)] * 6, [True] * 6, raise_failure)
    assert [n for _, n in rows] == [1] * 6
    assert push_chunks([], [], [], raise_failure) == []


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", ["continuous", "upstream"])
def test_non_finite_values_stay_in_their_own_audio(vocoder: Vocoder, kind: str, batched: bool) -> None:
    sizes = ((30, 20), (30, 20), (30, 20))
    mels = mels_of(sizes)
    clean = pushed_together(joints_of(vocoder, kind, 3), mels, sizes, batched=batched)
    for value in (math.nan, math.inf):
        broken = [mel.clone() for mel in mels]
        broken[1][0, 3, 12] = value
        got = pushed_together(joints_of(vocoder, kind, 3), broken, sizes, batched=batched)
        assert not got[1].isfinite().all()
        for i in (0, 2):
            assert torch.equal(got[i], clean[i])


def test_a_call_that_is_refused_changes_nothing(vocoder: Vocoder) -> None:
    first, second = joints = joints_of(vocoder, "upstream", 2)
    mel = random_mel(30)
    with pytest.raises(ValueError, match="8 mel frames"):
        push_chunks(joints, [mel, mel[:, :, :7]], [False, False], raise_failure)
    with pytest.raises(ValueError, match="one chunk at a time"):
        push_chunks([first, second, first], [mel] * 3, [False] * 3, raise_failure)
    with pytest.raises(ValueError, match="shorter"):
        push_chunks(joints, [mel], [False], raise_failure)
    got = pushed_together(joints, [mel, mel], ((10, 20), (10, 20)))
    assert torch.equal(got[1], stream(joints_of(vocoder, "upstream", 2)[1], mel, [10]))


@pytest.mark.parametrize("kind", ["continuous", "fast", "upstream"])
def test_a_joint_is_freed_with_the_last_reference_to_it(vocoder: Vocoder, kind: str) -> None:
    """Without the garbage collector: the memory of an interrupted utterance is free at once."""
    gc.collect()
    gc.disable()
    try:
        joints = joints_of(vocoder, kind, 2)
        audios = push_chunks(joints, [random_mel(40)] * 2, [False] * 2, raise_failure, batched=True)
        gone = [weakref.ref(joint) for joint in joints]
        del joints
        assert [ref() for ref in gone] == [None, None]
        assert audios[0] is not None and audios[0].shape[1]
    finally:
        gc.enable()
