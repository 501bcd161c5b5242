"""G.722 through PyAV: what is decoded is what was said, up to 7 kHz, whatever the pieces of the stream."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.g722 import RATE_HZ, G722Decoder, G722Encoder
from telephony_tts.runtime.errors import AudioError, FormatUnavailable


def tone(hz: float, n: int = 16_000) -> Pcm:
    return np.rint(6000 * np.sin(2 * np.pi * hz / RATE_HZ * np.arange(n))).astype(np.int16)


def level(pcm: Pcm, hz: float) -> float:
    """The amplitude of a tone in the second half."""
    part = pcm[len(pcm) // 2 :].astype(float)
    wave = np.exp(-2j * np.pi * hz / RATE_HZ * np.arange(len(part)))
    return float(2 * abs(part @ wave) / len(part))


@pytest.mark.parametrize("hz", [300, 1000, 3500, 5500, 6800])
def test_a_tone_of_the_wide_band_keeps_its_level(hz: float) -> None:
    codes = G722Encoder().feed(tone(hz))
    assert len(codes) == 8000
    assert level(G722Decoder().feed(codes), hz) == pytest.approx(6000, rel=0.05)


def test_a_frame_of_20_ms_becomes_160_bytes_at_once() -> None:
    encoder, decoder = G722Encoder(), G722Decoder()
    for n in range(5):
        codes = encoder.feed(tone(700)[n * 320 :][:320])
        assert len(codes) == 160 and len(decoder.feed(codes)) == 320


@pytest.mark.slow
@given(st.lists(st.integers(1, 700), min_size=1, max_size=12))
def test_the_stream_does_not_depend_on_its_pieces(lengths: list[int]) -> None:
    said = tone(900, sum(lengths) // 320 * 320 or 320)
    whole = G722Encoder().feed(said)
    encoder, decoder, codes, heard, at = G722Encoder(), G722Decoder(), b"", [], 0
    for n in [*lengths, 320]:
        codes += encoder.feed(said[at : at + n])
        at += n
    assert codes == whole
    for first in range(0, len(codes), 33):
        heard.append(decoder.feed(codes[first : first + 33]))
    assert np.array_equal(np.concatenate(heard), G722Decoder().feed(whole))


def test_no_samples_and_no_bytes_are_nothing() -> None:
    assert G722Encoder().feed(np.zeros(0, np.int16)) == b""
    assert len(G722Decoder().feed(b"")) == 0


@given(st.binary(min_size=1, max_size=400))
def test_any_bytes_are_decoded(codes: bytes) -> None:
    assert len(G722Decoder().feed(codes)) == 2 * len(codes)


def test_other_samples_are_refused() -> None:
    with pytest.raises(AudioError, match="int16"):
        G722Encoder().feed(np.zeros(320, np.float32))  # type: ignore[arg-type]


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    for kind in (G722Encoder, G722Decoder):
        with pytest.raises(FormatUnavailable, match=r"\.venv/bin/pip install -e '\.\[formats\]'"):
            kind()
