"""Two echo cancellers at 8 kHz, as a process: WebRTC's (aec-audio-processing) and Speex's (Debian's libspeexdsp1).

Each request is a line of JSON: the canceller's name and the length of two pieces of mu-law, which follow: the caller's
audio, and what we played at the same time. The answer is the caller's audio without the echo, as int16, and before it a
line of JSON with the CPU time for each 20 ms in microseconds.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import numpy as np
from barge_in_rules import decoded

_SPEEX_TAIL_MS = 1_000


def webrtc(line: Any, ours: Any) -> Any:
    """It finds delays of up to about 0.5 s by itself."""
    from aec_audio_processing import AudioProcessor

    canceller = AudioProcessor(enable_aec=True, enable_ns=False, enable_agc=False, enable_vad=False)
    canceller.set_stream_format(8000, 1, 8000, 1)
    canceller.set_reverse_stream_format(8000, 1)
    canceller.set_stream_delay(0)
    cleaned = []
    for at in range(0, len(line) - 79, 80):
        canceller.process_reverse_stream(ours[at : at + 80].tobytes())
        cleaned.append(canceller.process_stream(line[at : at + 80].tobytes()))
    return np.frombuffer(b"".join(cleaned), np.int16)


def speex(line: Any, ours: Any) -> Any:
    speexdsp = ctypes.CDLL("libspeexdsp.so.1")
    speexdsp.speex_echo_state_init.restype = ctypes.c_void_p
    state = ctypes.c_void_p(speexdsp.speex_echo_state_init(160, 8 * _SPEEX_TAIL_MS))
    speexdsp.speex_echo_ctl(state, 24, ctypes.byref(ctypes.c_int(8000)))  # the sampling rate
    cleaned = np.zeros_like(line)
    out = np.zeros(160, np.int16)
    for at in range(0, len(line) - 159, 160):
        heard, played = line[at : at + 160].copy(), ours[at : at + 160].copy()
        speexdsp.speex_echo_cancellation(state, *(ctypes.c_void_p(each.ctypes.data) for each in (heard, played, out)))
        cleaned[at : at + 160] = out
    return cleaned


def main() -> None:
    while request := sys.stdin.buffer.readline():
        name, n_bytes = json.loads(request)
        line, ours = (decoded(sys.stdin.buffer.read(n_bytes)) for _ in range(2))
        begun = time.thread_time()
        cleaned = {"webrtc aec": webrtc, "speex": speex}[name](line, ours)
        us = (time.thread_time() - begun) * 1e6 * 160 / len(line)
        sys.stdout.buffer.write(json.dumps([cleaned.nbytes, us]).encode() + b"\n" + cleaned.tobytes())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
