"""The columns that a range of audio needs: exactly these, wherever the range is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_vocoder import CONFIG, VECTORS, noise, parity, random_mel
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import SAMPLES_PER_FRAME, VocoderConfig
from telephony_tts.engines.cosyvoice2.model.vocoder.reach import ColumnSpan, spans
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder

N_FRAMES = 60
PIECES = ((0, 60), (0, 1), (0, 24), (25, 26), (14, 40), (30, 47), (59, 60))


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def exact() -> Vocoder:
    """float64 throughout: columns out of reach change nothing, not even by rounding."""
    state: dict[str, Tensor] = torch.load(VECTORS / "tiny_hift.pt", weights_only=True)
    return Vocoder.from_state(CONFIG, state, torch.float64, torch.float64)


@pytest.fixture(scope="module")
def mel() -> Tensor:
    return random_mel(N_FRAMES).double()


@pytest.fixture(scope="module")
def source(exact: Vocoder, mel: Tensor) -> Tensor:
    return exact.excite(exact.f0(mel), 0, None, noise(), last=True)[0]


@pytest.mark.parametrize(("first", "until"), PIECES)
def test_a_range_equals_that_range_of_the_whole(
    exact: Vocoder, mel: Tensor, source: Tensor, first: int, until: int
) -> None:
    whole = exact.decode(mel, source, 0, N_FRAMES)[:, first * SAMPLES_PER_FRAME : until * SAMPLES_PER_FRAME]
    assert parity.error(exact.decode(mel, source, first, until), whole) < 1e-7


@pytest.mark.parametrize(("first", "until"), PIECES)
def test_the_spans_are_read_to_their_ends_and_not_beyond(
    exact: Vocoder, mel: Tensor, source: Tensor, first: int, until: int
) -> None:
    """NaN beyond a span does not reach the audio. NaN at the end of a span does, unless the layer ends there."""
    need = spans(CONFIG, N_FRAMES, first, until)
    want = exact.decode(mel, source, first, until)

    def only(whole: Tensor, span: ColumnSpan, inner: int) -> Tensor:
        kept = torch.full_like(whole, torch.nan)
        begin, end = span.first + inner * (span.first > 0), span.until - inner * (span.until < span.n)
        kept[:, :, begin:end] = whole[:, :, begin:end]
        return kept

    assert parity.error(exact.decode(only(mel, need.mel, 0), only(source, need.samples, 0), first, until), want) == 0
    if (first, until) == (0, N_FRAMES):
        return
    assert exact.decode(only(mel, need.mel, 1), source, first, until).isnan().any()
    # One column of the spectrum is 4 samples. The window of 16 samples is zero at its end.
    assert exact.decode(mel, only(source, need.samples, 4), first, until).isnan().any()


def test_a_second_in_the_middle_costs_little_more_than_a_second() -> None:
    """Chunks of 50 frames and official sizes: columns where the source is added and output columns of each stage."""
    need = spans(VocoderConfig(), 80, 15, 65)
    assert [len(stage.inside) for stage in need.stages] == [555, 2165, 6129]
    assert [len(stage.out) for stage in need.stages] == [435, 2045, 6009]
    assert [len(stage.before) for stage in need.stages] == [72, 435, 2045]
    assert len(need.post) == 50 * 120 + 3


def test_the_whole_utterance_needs_each_column_once() -> None:
    need = spans(VocoderConfig(), 7, 0, 7)
    assert need.mel == ColumnSpan(0, 7, 7) and need.samples == ColumnSpan(0, 3360, 3360)
    for stage, n in zip(need.stages, (56, 280, 841), strict=True):
        assert stage.inside == stage.source == stage.out == ColumnSpan(0, n, n)
    assert need.post == ColumnSpan(0, 841, 841)
