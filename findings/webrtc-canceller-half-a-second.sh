#!/bin/sh
# WebRTC's echo canceller cancels an echo that comes 500 ms late by 61 dB, and one that comes 550 ms late not at all.
#
# aec-audio-processing 1.0.1 (WebRTC's audio processing for Python), 8 and 16 kHz, only the canceller on, stream delay 0.
# The far end is noise with the slope and the pauses of speech, the near end only its echo, 10.5 dB down. Neither a call
# nor an error tells that nothing is cancelled. Echoes of mobile telephones and Bluetooth are often later than that.
#
# Seen on 2026-11-29, Python 3.11, x86-64; dB by which the last 10 s of 30 s of echo are weaker than before:
#    8000 Hz: 100 ms 44.3, 500 ms 61.4, 550 ms 0.5, 800 ms 0.4
#   16000 Hz: 100 ms 61.4, 500 ms 61.2, 550 ms 0.4, 800 ms 0.4
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet aec-audio-processing==1.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from aec_audio_processing import AudioProcessor


def far_end(rate_hz, seconds):
    random = np.random.default_rng(1)
    n = rate_hz * seconds
    spectrum = np.fft.rfft(random.standard_normal(n))
    hz = np.fft.rfftfreq(n, 1 / rate_hz)
    spectrum *= (hz > 100) * np.minimum(1, 500 / np.maximum(hz, 1))
    is_on = np.repeat(random.uniform(0, 1, n // (rate_hz // 8) + 1) > 0.35, rate_hz // 8)[:n]
    fade = np.hanning(rate_hz // 20)
    sound = np.fft.irfft(spectrum, n) * np.convolve(is_on, fade / fade.sum(), "same")
    return sound / np.sqrt(np.mean(sound**2)) * 2500


def cancelled_db(rate_hz, delay_ms):
    far = far_end(rate_hz, 30)
    n_late, n_frame = rate_hz * delay_ms // 1000, rate_hz // 100
    echo = np.concatenate([np.zeros(n_late), far[:-n_late]]) * 0.3
    canceller = AudioProcessor(enable_aec=True, enable_ns=False, enable_agc=False, enable_vad=False)
    canceller.set_stream_format(rate_hz, 1, rate_hz, 1)
    canceller.set_reverse_stream_format(rate_hz, 1)
    canceller.set_stream_delay(0)
    left = b""
    for at in range(0, len(far), n_frame):
        canceller.process_reverse_stream(far[at : at + n_frame].astype(np.int16).tobytes())
        left += canceller.process_stream(echo[at : at + n_frame].astype(np.int16).tobytes())
    last = slice(-10 * rate_hz, None)
    after = np.frombuffer(left, np.int16).astype(float)[last]
    return 10 * np.log10(np.mean(echo[last] ** 2) / (np.mean(after**2) + 1e-9))


changed = False
for rate_hz in (8000, 16000):
    for delay_ms in (100, 500, 550, 800):
        db = cancelled_db(rate_hz, delay_ms)
        as_seen = db > 30 if delay_ms <= 500 else db < 3
        changed |= not as_seen
        print(f"{rate_hz} Hz, {delay_ms} ms: {db:.1f} dB{'' if as_seen else '   CHANGED'}")
raise SystemExit(changed)
PYTHON
