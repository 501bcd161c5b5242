"""What the reader of frames takes for a letter of a turn, and what not."""

from __future__ import annotations

import numpy as np
import pytest

from telephony_tts.audio.dtmf import tones
from telephony_tts.audio.g711 import encode_ulaw
from telephony_tts.engines.fake.engine import render
from torture.letters import LETTERS, MS_PER_LETTER, FrameReader

_NOISE_SD = 1_200
"""The sound under the speech in the torture's calls has 1,000: 4,000 at -12 dB."""


@pytest.mark.parametrize("ptime_ms", [10, 20, 40])
def test_keys_over_noise_are_no_letters_and_letters_over_noise_are(ptime_ms: int) -> None:
    """The high tone of "*" is 17 Hz from the tone of "a": a soak took such a frame for a turn that had ended."""
    noise = np.random.default_rng(3)
    reader, n_frame = FrameReader(), 8 * ptime_ms

    def heard(pcm: np.ndarray) -> list[str]:
        louder = (pcm + noise.normal(0, _NOISE_SD, len(pcm))).clip(-32_000, 32_000).astype(np.int16)
        return [reader.letter(encode_ulaw(louder[at : at + n_frame])) for at in range(0, len(pcm), n_frame)]

    keys = np.concatenate(list(tones("123A456B789C*0#D" * 20, 8000, 80, 40)))
    assert set(heard(keys)) == {""}
    for letter in LETTERS:
        spoken = render(letter * 6, sample_rate_hz=8000, ms_per_char=MS_PER_LETTER, speed=1.0)
        found = heard(spoken)
        assert set(found) <= {letter, ""} and found.count(letter) > 0.9 * len(found)
