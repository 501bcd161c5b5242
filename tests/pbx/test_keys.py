"""The reader of keys finds what a telephone sends, when it was sent, and nothing in speech."""

from __future__ import annotations

import numpy as np
import pytest
from conversation import CALLER, TEXT
from keys import keys_in
from speaking_server import spoken

from telephony_tts.audio.g711 import Pcm, decode_ulaw, encode_ulaw

ROWS, COLUMNS, KEYS = (697, 770, 852, 941), (1209, 1336, 1477, 1633), "123A456B789C*0#D"


def tones(keys: str, on_ms: int = 100, off_ms: int = 100, rate_hz: int = 8000) -> Pcm:
    parts = []
    for key in keys:
        row, column = divmod(KEYS.index(key), 4)
        t = np.arange(rate_hz * on_ms // 1000) / rate_hz
        wave = 4000 * np.sin(2 * np.pi * ROWS[row] * t) + 5000 * np.sin(2 * np.pi * COLUMNS[column] * t)
        parts += [wave, np.zeros(rate_hz * off_ms // 1000)]
    return np.rint(np.concatenate(parts)).astype(np.int16)


@pytest.mark.parametrize("rate_hz", [8000, 16_000])
@pytest.mark.parametrize("on_ms", [60, 100, 240])
def test_every_key_is_read_with_its_time(on_ms: int, rate_hz: int) -> None:
    pcm = np.concatenate([np.zeros(rate_hz // 2, np.int16), tones(KEYS, on_ms, 100, rate_hz)])
    if rate_hz == 8000:
        pcm = decode_ulaw(encode_ulaw(pcm))
    found = keys_in(pcm, rate_hz)
    assert "".join(each.key for each in found) == KEYS
    for n, each in enumerate(found):
        assert abs(each.start_ms - (500 + n * (on_ms + 100))) <= 10 and abs(each.end_ms - each.start_ms - on_ms) <= 15
        assert each.low_db == pytest.approx(-18.3, abs=1) and each.high_db == pytest.approx(-16.3, abs=1)


def test_a_key_twice_is_two_keys() -> None:
    assert [each.key for each in keys_in(tones("11#", 80, 60))] == ["1", "1", "#"]


@pytest.mark.parametrize("text", [TEXT, CALLER])
def test_speech_has_no_key(text: str) -> None:
    assert keys_in(spoken(text)) == []


def test_one_tone_alone_is_no_key() -> None:
    wave = 8000 * np.sin(2 * np.pi * 697 / 8000 * np.arange(4000))
    assert keys_in(np.rint(wave).astype(np.int16)) == []
