"""Compares HiFT with the reference vectors, and the vocoder in chunks with the whole utterance."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import parity_vocoder as parity
import pytest
import torch
from reference_vocoder import n_bytes, push, whole_audio
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import vocoder_names
from telephony_tts.engines.cosyvoice2.model.config import SAMPLES_PER_FRAME, VocoderConfig
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, UpstreamJoint
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Reach, Vocoder

VECTORS = Path(__file__).parents[1] / "vectors" / "hift"
CONFIG = parity.read_config(VECTORS)
N_CHANNELS = CONFIG.n_harmonics + 1


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(VECTORS / "tiny_hift.pt", weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def vocoder(state: dict[str, Tensor]) -> Vocoder:
    return Vocoder.from_state(CONFIG, state)


@pytest.fixture(scope="module")
def steady(state: dict[str, Tensor]) -> Vocoder:
    """float32 with a pitch in float64, which gives the same phase for any chunks."""
    return Vocoder.from_state(CONFIG, state, wide=torch.float64)


@pytest.fixture(scope="module")
def exact(state: dict[str, Tensor]) -> Vocoder:
    """float64 throughout: a difference here is not a rounding error."""
    return Vocoder.from_state(CONFIG, state, torch.float64, torch.float64)


@pytest.fixture(scope="module")
def offline() -> dict[str, Tensor]:
    return parity.read_arrays(VECTORS / "hift_offline.npz")


def random_mel(n_frames: int, seed: int = 0) -> Tensor:
    return 1.2 * torch.randn(1, CONFIG.d_mel, n_frames, generator=torch.Generator().manual_seed(seed))


def noise(seed: int = 7) -> CounterNoise:
    return CounterNoise(seed, N_CHANNELS)


def stream(joint: ContinuousJoint | UpstreamJoint, mel: Tensor, sizes: list[int]) -> Tensor:
    """Pushes the mel in chunks of `sizes`, and the rest as the last chunk."""
    parts, start = [], 0
    for size in sizes:
        parts.append(push(joint, mel[:, :, start : start + size]))
        start += size
    parts.append(push(joint, mel[:, :, start:], last=True))
    return torch.cat(parts, 1)


def level_db(difference: Tensor, signal: Tensor) -> float:
    return 20 * math.log10(float(difference.square().mean().sqrt() / signal.square().mean().sqrt()) + 1e-12)


def assert_within(checks: Iterator[parity.Check]) -> None:
    results = list(checks)
    assert results
    assert not [result for result in results if not result[1] <= result[2]]


# --- against the vectors


@pytest.mark.slow
def test_each_stage_equals_the_reference(vocoder: Vocoder, offline: dict[str, Tensor]) -> None:
    assert_within(parity.check_offline(vocoder, parity.roundings(vocoder, VECTORS), offline))


def test_the_cross_fade_equals_the_reference() -> None:
    assert_within(parity.check_cross_fade(parity.read_arrays(VECTORS / "crossfade.npz")))


@pytest.mark.slow
def test_upstreams_joint_gives_the_recorded_number_of_samples(vocoder: Vocoder) -> None:
    schedule = json.loads((VECTORS / "driver_schedule.json").read_text())
    assert_within(parity.check_sample_counts(vocoder, schedule))


# --- loading


def test_every_spelling_of_the_checkpoint_loads_the_same(
    state: dict[str, Tensor], vocoder: Vocoder, offline: dict[str, Tensor]
) -> None:
    old = {
        key.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): value
        for key, value in state.items()
    }
    trained = {f"generator.{key}": value for key, value in state.items()} | {
        "discriminator.0.weight": torch.zeros(3),
        "epoch": torch.tensor(4),
    }
    folded = {key: value for key, value in state.items() if "parametrizations" not in key}
    for key, v in state.items():
        if key.endswith("original1"):
            name = key.removesuffix(".parametrizations.weight.original1")
            g = state[f"{name}.parametrizations.weight.original0"]
            folded[f"{name}.weight"] = v * g / v.flatten(1).norm(dim=1)[:, None, None]
    want = vocoder.decode(offline["mel"], offline["source"], 0, 50)
    for variant in (old, trained, folded, {**state, "step": torch.tensor(9)}):
        got = Vocoder.from_state(CONFIG, vocoder_names(variant)).decode(offline["mel"], offline["source"], 0, 50)
        assert parity.error(got, want) < 1e-4


def test_one_error_lists_every_tensor_that_does_not_fit(state: dict[str, Tensor]) -> None:
    broken = {**state, "conv_pre.bias": torch.zeros(3), "foreign": torch.zeros(1)}
    del broken["ups.1.bias"], broken["resblocks.0.convs1.0.parametrizations.weight.original0"]
    with pytest.raises(ValueError, match="does not fit") as caught:
        Vocoder.from_state(CONFIG, broken)
    message = str(caught.value)
    assert "conv_pre.bias is [3] and should be [64]" in message
    assert "missing ups.1.bias" in message
    assert "missing resblocks.0.convs1.0.parametrizations.weight.original0" in message
    assert "unexpected foreign" in message


# --- receptive field


def changed_frames(before: Tensor, after: Tensor, per_frame: int) -> tuple[int, int]:
    """The first and the last frame that differ."""
    differs = ((before - after).abs() > 0).flatten(0, -2).any(0).nonzero()[:, 0]
    return int(differs[0]) // per_frame, int(differs[-1]) // per_frame


@pytest.mark.slow
def test_the_stated_reach_is_what_the_graph_sees(exact: Vocoder) -> None:
    reach, n, at = exact.reach, 80, 40
    assert reach == Reach.of(VocoderConfig()), "the sizes of the channels do not matter"
    assert (reach.f0, reach.decode, reach.lookahead) == (5, 15, 20)
    mel = random_mel(n).double()
    other = mel.clone()
    other[:, :, at] += 5
    assert changed_frames(exact.f0(mel), exact.f0(other), 1) == (at - 5, at + 5)
    source, _ = exact.excite(exact.f0(mel), 0, None, noise(), last=True)
    first, last = changed_frames(exact.decode(mel, source, 0, n), exact.decode(other, source, 0, n), SAMPLES_PER_FRAME)
    assert at - first in (13, 14) and last - at in (13, 14)
    moved = source.clone()
    moved[:, :, at * SAMPLES_PER_FRAME : (at + 1) * SAMPLES_PER_FRAME] += 1
    first, last = changed_frames(exact.decode(mel, source, 0, n), exact.decode(mel, moved, 0, n), SAMPLES_PER_FRAME)
    assert at - first in (14, 15) and last - at in (14, 15)


def test_the_longest_wait_of_audio_is_the_lookahead(exact: Vocoder) -> None:
    n, at = 60, 40
    mel = random_mel(n).double()
    known = whole_audio(exact, mel, noise())
    other = mel.clone()
    other[:, :, at:] += 5
    first, _ = changed_frames(known, whole_audio(exact, other, noise()), SAMPLES_PER_FRAME)
    assert at - first in (19, 20)
    assert at - first <= exact.reach.lookahead
    short = ContinuousJoint(exact, noise(), exact.reach.lookahead - 1)
    assert parity.error(stream(short, mel, [40]), known) > 1e-9


def test_a_decoded_range_equals_that_range_of_the_whole(exact: Vocoder) -> None:
    mel = random_mel(60).double()
    source, _ = exact.excite(exact.f0(mel), 0, None, noise(), last=True)
    whole = exact.decode(mel, source, 0, 60)
    for first, until in ((0, 1), (20, 21), (25, 40), (50, 60)):
        left, right = max(0, first - 15), min(60, until + 15)
        piece = source[:, :, left * SAMPLES_PER_FRAME : right * SAMPLES_PER_FRAME]
        got = exact.decode(mel[:, :, left:right], piece, first - left, until - left)
        assert parity.error(got, whole[:, first * SAMPLES_PER_FRAME : until * SAMPLES_PER_FRAME]) < 1e-7


# --- chunked = whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_chunks_give_the_whole_utterance(exact: Vocoder, seed: int) -> None:
    rng = random.Random(seed)
    n_frames = rng.choice([3, 21, 64, 111])
    sizes: list[int] = []
    while sum(sizes) < n_frames:
        sizes.append(min(rng.choice([0, 1, 2, 6, 20, 33, 50]), n_frames - sum(sizes)))
    if seed % 2:
        sizes.pop()
    mel = random_mel(n_frames, seed).double()
    got = stream(ContinuousJoint(exact, noise()), mel, sizes)
    assert parity.error(got, whole_audio(exact, mel, noise())) < 2e-7


@pytest.mark.slow
def test_chunks_in_float32_differ_by_rounding(steady: Vocoder, vocoder: Vocoder) -> None:
    mel = random_mel(150)
    whole = whole_audio(steady, mel, noise())
    assert parity.error(stream(ContinuousJoint(steady, noise()), mel, [50, 50]), whole) < 2e-4
    narrow = stream(ContinuousJoint(vocoder, noise()), mel, [50, 50])
    assert parity.error(narrow, whole_audio(vocoder, mel, noise())) < 5e-2  # the phase drifts by the pitch's rounding
    assert parity.error(narrow, whole) < 5e-2


def test_audio_comes_as_soon_as_it_is_final(steady: Vocoder) -> None:
    joint = ContinuousJoint(steady, noise())
    counts = [push(joint, random_mel(n)).shape[1] // SAMPLES_PER_FRAME for n in (20, 1, 50, 0)]
    assert counts == [0, 1, 50, 0]
    assert push(joint, random_mel(0), last=True).shape == (1, 20 * SAMPLES_PER_FRAME)


def test_no_frame_and_one_frame(steady: Vocoder) -> None:
    for joint in (ContinuousJoint(steady, noise()), UpstreamJoint(steady, noise())):
        assert push(joint, random_mel(0), last=True).shape == (1, 0)
    assert whole_audio(steady, random_mel(0), noise()).shape == (1, 0)
    one = random_mel(1)
    want = whole_audio(steady, one, noise())
    assert want.shape == (1, SAMPLES_PER_FRAME)
    assert parity.error(push(ContinuousJoint(steady, noise()), one, last=True), want) < 1e-5


def test_work_and_memory_per_chunk_do_not_grow(steady: Vocoder, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    decode: Callable[..., Tensor] = steady.decode

    def counted(mel: Tensor, *rest: object) -> Tensor:
        widths.append(mel.shape[2])
        return decode(mel, *rest)

    monkeypatch.setattr(steady, "decode", counted)
    joint = ContinuousJoint(steady, noise())
    held = []
    for i in range(12):
        push(joint, random_mel(25, i))
        held.append(n_bytes(joint))
    assert widths[-1] == 25 + 2 * steady.reach.decode
    assert len(set(widths[2:])) == 1 and len(set(held[2:])) == 1
    assert held[-1] < 150_000


@pytest.mark.slow
def test_two_interleaved_streams_equal_each_alone_and_do_not_change_the_model(
    steady: Vocoder, state: dict[str, Tensor]
) -> None:
    mels = [random_mel(70, 1), random_mel(70, 2)]
    for make in (
        lambda seed: ContinuousJoint(steady, noise(seed)),
        lambda seed: ContinuousJoint(steady, noise(seed), 8),
        lambda seed: UpstreamJoint(steady, noise(seed)),
    ):
        alone = [stream(make(i), mel, [30, 20]) for i, mel in enumerate(mels)]
        joints = [make(0), make(1)]
        parts: list[list[Tensor]] = [[], []]
        for start, end in ((0, 30), (30, 50), (50, 70)):
            for i in (1, 0):
                parts[i].append(push(joints[i], mels[i][:, :, start:end], last=end == 70))
        for i in (0, 1):
            assert torch.equal(torch.cat(parts[i], 1), alone[i])
    fresh = Vocoder.from_state(CONFIG, state, wide=torch.float64)
    assert torch.equal(whole_audio(fresh, mels[0], noise()), whole_audio(steady, mels[0], noise()))


def test_a_batch_equals_its_rows(steady: Vocoder) -> None:
    mel = torch.cat([random_mel(20, 1), random_mel(20, 2)])
    both = whole_audio(steady, mel, lambda first, n: noise()(first, n).expand(2, -1, -1))
    for row in (0, 1):
        assert parity.error(both[row : row + 1], whole_audio(steady, mel[row : row + 1], noise())) < 2e-4


# --- less look-ahead


@pytest.mark.slow
def test_a_shorter_hold_deviates_within_bounds_and_only_near_the_joints(exact: Vocoder) -> None:
    mel = random_mel(160).double()
    whole = whole_audio(exact, mel, noise())
    for hold, bound_db in ((8, -17), (12, -27), (16, -60), (18, -100)):
        difference = stream(ContinuousJoint(exact, noise(), hold), mel, [50, 50]) - whole
        assert level_db(difference, whole) < bound_db
        frames = difference.view(-1, SAMPLES_PER_FRAME).abs().amax(1)
        off = {frame for frame, value in enumerate(frames.tolist()) if value > 1e-6}
        near = {frame for end in (50, 100) for frame in range(end - exact.reach.lookahead, end - hold + 1)}
        assert off <= near


def test_a_shorter_hold_fades_from_the_provisional_audio_to_the_final_audio(exact: Vocoder) -> None:
    mel = random_mel(90).double()
    got = stream(ContinuousJoint(exact, noise(), 8), mel, [50])
    fade = slice(42 * SAMPLES_PER_FRAME, 43 * SAMPLES_PER_FRAME)
    old = push(ContinuousJoint(exact, noise(), 7), mel[:, :, :50])[:, fade]
    new = whole_audio(exact, mel, noise())[:, fade]
    assert parity.error(old, new) > 1e-3
    weight = (torch.arange(SAMPLES_PER_FRAME) + 0.5) / SAMPLES_PER_FRAME
    assert parity.error(got[:, fade], old * (1 - weight) + new * weight) < 1e-6


def test_the_hold_may_change_between_chunks(exact: Vocoder) -> None:
    mel = random_mel(100).double()
    joint = ContinuousJoint(exact, noise(), 8)
    first = push(joint, mel[:, :, :20])
    assert first.shape == (1, 12 * SAMPLES_PER_FRAME)
    joint.hold_frames = None
    rest = [push(joint, mel[:, :, 20:28]), push(joint, mel[:, :, 28:60]), push(joint, mel[:, :, 60:], last=True)]
    assert [part.shape[1] // SAMPLES_PER_FRAME for part in rest] == [0, 28, 60]
    difference = torch.cat([first, *rest], 1) - whole_audio(exact, mel, noise())
    assert difference[:, 13 * SAMPLES_PER_FRAME :].abs().max() < 2e-7


def test_a_hold_that_would_change_spoken_pitch_is_refused(vocoder: Vocoder) -> None:
    with pytest.raises(ValueError, match="at least 6"):
        ContinuousJoint(vocoder, noise(), 5)


# --- source


def test_the_phase_is_as_precise_after_a_minute(steady: Vocoder) -> None:
    """A constant pitch over many calls: the source must equal the closed form at the end too."""
    hz, n_frames = 217.3, 3000
    quiet = lambda first, n: torch.zeros(1, n, N_CHANNELS)  # noqa: E731
    f0 = torch.full((1, 50), hz, dtype=torch.float64)
    sines = None
    for first in range(0, n_frames, 50):
        source, sines = steady.excite(f0, first, sines, quiet, last=False)
    n = source.shape[2]
    # The phase at a frame's centre counts the whole frame, hence the shift by half of one; see `excite`.
    at = torch.arange(n_frames * 480 - 240 - n, n_frames * 480 - 240, dtype=torch.float64) + 240.5
    cycles = at[:, None] * hz * torch.arange(1, N_CHANNELS + 1) / 24_000
    want = steady.mix(CONFIG.sine_amplitude * torch.sin(2 * math.pi * cycles)[None])
    assert parity.error(source, want) < 1e-8


def test_noise_is_normal_and_depends_on_seed_and_position_only() -> None:
    whole = noise(1)(0, 60_000)
    assert torch.equal(noise(1)(1234, 77), whole[:, 1234 : 1234 + 77])
    assert abs(float(whole.mean())) < 0.01 and abs(float(whole.std()) - 1) < 0.01
    assert abs(float(whole.pow(4).mean()) - 3) < 0.1
    assert float(whole.abs().max()) < 5.3
    for other in (noise(2)(0, 60_000), noise(1 + 2**32)(0, 60_000), noise(1)(1, 60_000), whole.roll(1, 2)):
        assert abs(float((whole * other).mean())) < 0.01


# --- number types


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound_db"), [(torch.float16, -30), (torch.bfloat16, -15)])
def test_half_precision_stays_near_and_keeps_the_pitch(
    vocoder: Vocoder, state: dict[str, Tensor], offline: dict[str, Tensor], dtype: torch.dtype, bound_db: float
) -> None:
    half = Vocoder.from_state(CONFIG, state, dtype)
    assert half.conv_dtype == dtype
    assert torch.equal(half.f0(offline["mel"]), vocoder.f0(offline["mel"]))
    got = half.decode(offline["mel"], offline["source"], 0, 50)
    assert got.dtype == torch.float32
    assert level_db(got - offline["audio"], offline["audio"]) < bound_db
    mel = random_mel(60)
    streamed = stream(ContinuousJoint(half, noise()), mel, [30])
    assert level_db(streamed - whole_audio(half, mel, noise()), streamed) < bound_db


# --- upstream's joint


def test_upstreams_joint_is_the_specified_recipe(vocoder: Vocoder) -> None:
    """A second implementation of specification 6.1, in numpy where possible."""
    mel = random_mel(60)
    table = noise()(0, 60 * SAMPLES_PER_FRAME)
    got = stream(UpstreamJoint(vocoder, parity.table_noise(table)), mel, [30, 20])

    def run(mel: Tensor, cached: Tensor | None) -> tuple[Tensor, np.ndarray]:
        f0 = vocoder.f0(mel)
        source = vocoder.mix(vocoder.restarted_sines(f0, 0, parity.table_noise(table)))
        if cached is not None:
            source = torch.cat([cached, source[:, :, 3840:]], 2)
        return source, vocoder.decode(mel, source, 0, mel.shape[2])[0].numpy()

    window = np.hamming(7680)
    source, speech = run(mel[:, :, :30], None)
    want = [speech[:-3840]]
    for start, end in ((30, 50), (50, 60)):
        tail = speech[-3840:]
        source, speech = run(mel[:, :, start - 8 : end], source[:, :, -3840:])
        speech[:3840] = speech[:3840] * window[:3840] + tail * window[3840:]
        want.append(speech if end == 60 else speech[:-3840])
    assert parity.error(got, torch.from_numpy(np.concatenate(want))[None]) < 1e-6
    assert got.shape[1] == 60 * SAMPLES_PER_FRAME


def test_upstreams_joint_refuses_a_chunk_it_cannot_cut(vocoder: Vocoder) -> None:
    with pytest.raises(ValueError, match="8 mel frames"):
        push(UpstreamJoint(vocoder, noise()), random_mel(7))
