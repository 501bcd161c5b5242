import math
from pathlib import Path

import pytest
import torch
from parity_front import check_features, check_text

from telephony_tts.engines.cosyvoice2.text import text_rules
from telephony_tts.engines.cosyvoice2.voices.features import flow_mel, kaldi_fbank, resample, whisper_mel

torch.set_num_threads(1)
VECTORS = Path(__file__).parents[1] / "vectors" / "front"


@pytest.mark.parametrize("row", list(check_features(VECTORS)), ids=lambda row: str(row[0]))
def test_features_are_the_reference_s(row: tuple[str, float, float]) -> None:
    _, error, tolerance = row
    assert error <= tolerance


@pytest.mark.parametrize("row", list(check_text(VECTORS)), ids=lambda row: str(row[0]))
def test_text_rules_are_the_reference_s(row: tuple[str, float, float]) -> None:
    _, n_different, _ = row
    assert n_different == 0


@pytest.mark.parametrize("n", [24_000, 24_001, 24_479, 24_480])
def test_lengths(n: int) -> None:
    wave = torch.randn(n, generator=torch.Generator().manual_seed(0))
    assert flow_mel(wave).shape == (n // 480, 80)
    assert whisper_mel(wave).shape == (128, n // 160)
    assert kaldi_fbank(wave).shape == (1 + (n - 400) // 160, 80)


@pytest.mark.parametrize(("from_hz", "to_hz"), [(48_000, 24_000), (44_100, 16_000), (16_000, 24_000), (22_050, 24_000)])
def test_resampling_keeps_a_tone(from_hz: int, to_hz: int) -> None:
    seconds, hz = 0.25, 440.0
    tone = torch.sin(2 * math.pi * hz * torch.arange(int(from_hz * seconds)) / from_hz)
    got = resample(tone, from_hz, to_hz)
    want = torch.sin(2 * math.pi * hz * torch.arange(len(got)) / to_hz)
    assert len(got) == math.ceil(len(tone) * to_hz / from_hz)
    inner = slice(100, -100)
    assert float((got[inner] - want[inner]).abs().max()) < 2e-3


def test_resampling_to_the_same_rate_is_nothing() -> None:
    wave = torch.randn(100)
    assert torch.equal(resample(wave, 24_000, 24_000), wave)


def test_silence_has_finite_features() -> None:
    silence = torch.zeros(24_000)
    for features in (flow_mel(silence), whisper_mel(silence), kaldi_fbank(silence)):
        assert bool(features.isfinite().all())


# ------------------------------------------------------- where the reference's rules fail

ODD = (" ", "\n\t ", "。”你好。", "”", "。", "...", "", "🙂🙂", "²", "٣", "1" * 40, "a ", "你 ")


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("frontend", [True, False])
def test_the_rules_take_any_text(text: str, frontend: bool) -> None:
    assert all(isinstance(part, str) for part in text_rules.normalize(text, len, frontend))
    assert isinstance(text_rules.spell(text), str)


def test_a_piece_may_have_just_the_largest_length() -> None:
    first, second, third = "一" * 64 + "。", "二" * 14 + "。", "三" * 29 + "。"
    assert text_rules.split_paragraph(first + second + third, len, "zh") == [first + second, third]
    assert text_rules.split_paragraph("一" + first + second + third, len, "zh") == ["一" + first, second + third]


def test_whitespace_is_nothing_to_say() -> None:
    assert text_rules.normalize(" \n", len) == []


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("0", "zero"),
        ("100", "one hundred"),
        ("1000", "one thousand"),
        ("1001", "one thousand and one"),
        ("1234", "one thousand, two hundred and thirty-four"),
        ("1000000", "one million"),
        ("2000300", "two million, three hundred"),
        ("5000006", "five million and six"),
        ("1" + "0" * 36, "one" + " zero" * 36),
    ],
)
def test_numbers_in_words(digits: str, words: str) -> None:
    assert text_rules.number_words(digits) == words
