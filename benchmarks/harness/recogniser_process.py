"""Whisper on one CPU thread, as a process with packages of its own: `recogniser.py` starts it and speaks to it.

Its argument is the folder of the model. On standard input comes a line of JSON with "language" and "n_samples", then so
many 16-bit samples at 16 kHz. The answer is a line of JSON with "text". Mandarin is given in simplified characters.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import opencc  # type: ignore[import-not-found]
from faster_whisper import WhisperModel  # type: ignore[import-not-found]


def main() -> None:
    model = WhisperModel(sys.argv[1], device="cpu", compute_type="int8", cpu_threads=1)
    simplified = opencc.OpenCC("t2s")
    while header := sys.stdin.buffer.readline():
        asked = json.loads(header)
        pcm = np.frombuffer(sys.stdin.buffer.read(2 * asked["n_samples"]), "<i2")
        segments, _ = model.transcribe(
            pcm.astype(np.float32) / 32768, language=asked["language"], beam_size=1, temperature=0.0,
            condition_on_previous_text=False, without_timestamps=True,
        )  # fmt: skip
        text = "".join(segment.text for segment in segments)
        print(json.dumps({"text": simplified.convert(text) if asked["language"] == "zh" else text}), flush=True)


main()
