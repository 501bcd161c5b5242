from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from telephony_tts.audio import g711
from telephony_tts.runtime.errors import AudioError

ALL_CODES = bytes(range(256))
ALL_SAMPLES = np.arange(-32_768, 32_768).astype(np.int16)


def expand_ulaw(code: int) -> int:
    """ITU-T G.711 table 2a, in the 16-bit scaling of G.191: inverted bits, bias 132, eight segments."""
    code = ~code & 0xFF
    magnitude = (((code & 0x0F) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return -magnitude if code & 0x80 else magnitude


def expand_alaw(code: int) -> int:
    """ITU-T G.711 table 1a in 16-bit scaling: even bits inverted, the sign bit set for positive values."""
    code ^= 0x55
    segment = code >> 4 & 7
    magnitude = ((code & 0x0F) << 4) + 8
    if segment:
        magnitude = magnitude + 0x100 << segment - 1
    return magnitude if code & 0x80 else -magnitude


@pytest.mark.parametrize(("decode", "expand"), [(g711.decode_ulaw, expand_ulaw), (g711.decode_alaw, expand_alaw)])
def test_decoding_is_the_itu_table(decode, expand):
    assert decode(ALL_CODES).tolist() == [expand(code) for code in range(256)]


@pytest.mark.parametrize(
    ("encode", "decode"), [(g711.encode_ulaw, g711.decode_ulaw), (g711.encode_alaw, g711.decode_alaw)]
)
def test_every_sample_gets_the_level_of_its_cell(encode, decode):
    levels = np.unique(decode(ALL_CODES).astype(np.int64))
    coded = decode(encode(ALL_SAMPLES)).astype(np.int64)
    gaps = np.diff(levels)
    cell = np.maximum(np.append(gaps, 0), np.insert(gaps, 0, 0))[np.searchsorted(levels, coded)]
    inside = (levels[0] <= ALL_SAMPLES) & (levels[-1] >= ALL_SAMPLES)
    # A level stands in the middle of its cell; audioop's rounding of negative samples adds at most one 13-bit unit.
    assert np.all(np.abs(coded - ALL_SAMPLES)[inside] <= cell[inside] / 2 + 8)
    assert np.all(np.diff(coded) >= 0), "a louder sample must never get a quieter code"
    assert coded[0] == levels[0] and coded[-1] == levels[-1]


def test_decoded_codes_encode_to_themselves():
    for encode, decode in ((g711.encode_ulaw, g711.decode_ulaw), (g711.encode_alaw, g711.decode_alaw)):
        again = encode(decode(ALL_CODES))
        changed = {code: new for code, new in zip(ALL_CODES, again, strict=True) if code != new}
        assert changed in ({}, {0x7F: 0xFF}), "only mu-law has two codes for zero"


def test_silence_bytes():
    silence = np.zeros(3, np.int16)
    assert g711.encode_ulaw(silence) == b"\xff\xff\xff" == g711.ULAW_SILENCE * 3
    assert g711.encode_alaw(silence) == b"\xd5\xd5\xd5" == g711.ALAW_SILENCE * 3
    assert g711.decode_ulaw(b"").size == 0 and g711.encode_ulaw(silence[:0]) == b""


def test_a_strided_view_is_read_in_its_own_order():
    ramp = np.arange(-3_000, 3_000, 100).astype(np.int16)
    assert g711.encode_ulaw(ramp[::-2]) == g711.encode_ulaw(ramp[::-2].copy())


@pytest.mark.parametrize(
    "foreign",
    [np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros((2, 2), np.int16), np.int16(3), [1, 2, 3], b"\x00\x00"],
)
def test_foreign_audio_is_refused(foreign):
    with pytest.raises(AudioError):
        g711.encode_ulaw(foreign)
    with pytest.raises(AudioError):
        g711.encode_alaw(foreign)


@pytest.mark.slow
def test_the_import_is_silent_and_silences_nothing_else():
    program = "import telephony_tts.audio.g711, warnings; warnings.warn('mine', DeprecationWarning)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.strip().endswith("DeprecationWarning: mine")
