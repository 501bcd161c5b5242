#!/bin/sh
# WebRTC's voice detector in its strictest mode (3) takes the ringing tones of China, the United Kingdom and North America
# for speech in every frame, and those of most of Europe and of Japan in almost none: 450 Hz is speech, 425 Hz is not.
#
# webrtcvad-wheels 2.0.14.post1, frames of 20 ms at 8 kHz, steady tones of 4 s at -20 dBov. Modes 0 and 1 take all of them
# for speech. So a bot that was tried on European lines meets the fault with its first transfer in China.
#
# Seen on 2026-11-29, Python 3.11, x86-64; share of frames that are speech, modes 0 to 3:
#   China 450 Hz                    1.00 1.00 1.00 1.00
#   United Kingdom 400 + 450 Hz     1.00 1.00 1.00 1.00
#   North America 440 + 480 Hz      1.00 1.00 1.00 1.00
#   most of Europe 425 Hz           1.00 1.00 0.03 0.03
#   Japan 400 Hz (without its beat) 1.00 1.00 0.03 0.02
#   busy, North America 480 + 620   1.00 1.00 1.00 0.02
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webrtcvad-wheels==2.0.14.post1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import webrtcvad

TONES = {
    "China 450 Hz": ((450,), "1111"),
    "United Kingdom 400 + 450 Hz": ((400, 450), "1111"),
    "North America 440 + 480 Hz": ((440, 480), "1111"),
    "most of Europe 425 Hz": ((425,), "1100"),
    "Japan 400 Hz (without its beat)": ((400,), "1100"),
    "busy, North America 480 + 620": ((480, 620), "1110"),
}
changed = False
seconds = np.arange(4 * 8000) / 8000
for name, (tones_hz, expected) in TONES.items():
    tone = sum(np.sin(2 * np.pi * hz * seconds) for hz in tones_hz)
    pcm = (tone / np.sqrt(np.mean(tone**2)) * 3276.8).astype(np.int16)
    shares = []
    for mode in range(4):
        detector = webrtcvad.Vad(mode)
        frames = [pcm[at : at + 160].tobytes() for at in range(0, len(pcm), 160)]
        shares.append(float(np.mean([detector.is_speech(frame, 8000) for frame in frames])))
    as_seen = "".join(str(int(share > 0.5)) for share in shares) == expected
    changed |= not as_seen
    print(f"{name:32}", *(f"{share:.2f}" for share in shares), "" if as_seen else "CHANGED")
raise SystemExit(changed)
PYTHON
