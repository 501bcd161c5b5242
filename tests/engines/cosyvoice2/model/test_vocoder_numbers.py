"""The vocoder's arithmetic: rounding in the mixed mode, the snake, and noise that never changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from reference_vocoder import whole_audio
from test_vocoder import CONFIG, N_CHANNELS, VECTORS, level_db, noise, parity, random_mel, stream
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(VECTORS / "tiny_hift.pt", weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def vocoder(state: dict[str, Tensor]) -> Vocoder:
    return Vocoder.from_state(CONFIG, state)


@pytest.fixture(scope="module")
def offline() -> dict[str, Tensor]:
    return parity.read_arrays(VECTORS / "hift_offline.npz")


def test_noise_is_the_same_for_ever_and_goes_on_past_32_bits() -> None:
    """Recorded from the 64-bit implementation: a seed sounds the same in every version and on every device."""
    want = [0.4493905, -0.3362852, 0.1485753, 0.1440470, -0.0812777, 0.4249020, -0.0674594, -0.2015995, -0.4351764]
    assert noise(7)(0, 1)[0, 0].tolist() == pytest.approx(want, abs=1e-6)
    assert noise(7)(10**9, 1)[0, 0, :3].tolist() == pytest.approx([1.41806865, 1.68126440, -0.09826536], abs=1e-6)
    for bits in (31, 32):
        at = 2**bits // N_CHANNELS - 5
        whole = noise(3)(at, 10)
        assert torch.equal(torch.cat([noise(3)(at, 5), noise(3)(at + 5, 5)], 1), whole)
        assert whole.unique().numel() == 10 * N_CHANNELS


@pytest.mark.slow
def test_mixed_rounds_in_the_residual_blocks_alone(
    vocoder: Vocoder, state: dict[str, Tensor], offline: dict[str, Tensor]
) -> None:
    mixed, throughout = Vocoder.mixed(CONFIG, state), Vocoder.from_state(CONFIG, state, torch.bfloat16)
    assert mixed.conv_dtype == torch.bfloat16
    assert mixed.residual_dtype == mixed.source_dtype == torch.float32
    assert Vocoder.mixed(CONFIG, state, torch.float64).source_dtype == torch.float64
    mel, source, want = offline["mel"], offline["source"], offline["audio"]
    # Our kernels add the same float32 products in another order, and with AVX2 that moves the pitch by 1e-4 Hz. A
    # bfloat16 product is wrong by 4e-3.
    torch.testing.assert_close(mixed.f0(mel), vocoder.f0(mel), rtol=1e-5, atol=1e-3)
    ours: dict[str, Tensor] = {}
    full: dict[str, Tensor] = {}
    got = mixed.decode(mel, source, 0, 50, ours)
    vocoder.decode(mel, source, 0, 50, full)
    assert all(value.dtype == torch.float32 for value in ours.values())
    for name in ("conv_pre", "ups0"):
        torch.testing.assert_close(ours[name], full[name], rtol=1e-5, atol=1e-5)
    assert not torch.equal(ours["ups1"], full["ups1"])
    level = level_db(got - want, want)
    assert level < -20 and level < level_db(throughout.decode(mel, source, 0, 50) - want, want) - 3
    mel, steady = random_mel(60), Vocoder.mixed(CONFIG, state, torch.float64)
    streamed = stream(ContinuousJoint(steady, noise()), mel, [30])
    assert level_db(streamed - whole_audio(steady, mel, noise()), streamed) < -40


def test_the_snake_is_what_the_specification_says(vocoder: Vocoder, state: dict[str, Tensor]) -> None:
    x = 30 * torch.randn(1, 500, CONFIG.d_base // 2, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    alpha = state["resblocks.0.activations1.0.alpha"].double()
    want = x.double() + (alpha * x.double()).sin().square() / (alpha + 1e-9)
    for rows in (x, x.transpose(1, 2).contiguous().transpose(1, 2), x[:, 3:-4]):
        got = vocoder._layers.stages[0].blocks[0].steps[0].snake1(rows)
        assert torch.equal(x, before)
        assert parity.error(got, want if rows.shape == want.shape else want[:, 3:-4]) < 2e-5
