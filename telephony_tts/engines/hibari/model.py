"""The hibari network as a function: English text in, trimmed PCM and word timings out. No threads, no event loop.

It does not use the package's `Hibari` class, which reports no durations and makes its own session.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from telephony_tts.engines import onnx_graph
from telephony_tts.engines.front_ends.english import aligned, english_reader
from telephony_tts.engines.speech import SpokenPiece, share_time, trimmed
from telephony_tts.engines.words import words

SAMPLE_RATE_HZ = 24_000

_DURATIONS = "/Clip_output_0"
"""The node of hibari 0.2.1 with the duration of each phoneme."""
_N_SAMPLES_PER_DURATION = 600
"""A unit of the durations is 25 ms."""
_ONSET_MS = 40.0
"""At speed 1 a word begins this much before its duration says: the median of 15 word starts after a pause.

Divided by the speed it fits 0.7 (57 against a measured 62, 22 starts) and is too much for 1.6 (25 against 0, 7 starts).
"""
_SILENCE_DBFS = -55.0
"""30 dB below hibari's speech. The loudest 5 ms that was cut before an onset had -59 dBFS, in 17 sentences."""


class HibariModel:
    """Loads everything in its constructor (about 0.5 s). Several threads may call `speak` at once."""

    def __init__(self) -> None:
        from hibari import dsp
        from hibari.voices import DEFAULT, voice_path

        self._dsp = dsp
        self.english = english_reader()
        model = Path(voice_path(DEFAULT, download_missing=False)).read_bytes()
        self._session, self.has_durations = _open(model)
        if self.has_durations:
            self.has_durations = self._durations_add_up()

    def speak(
        self,
        text: str,
        *,
        speed: float = 1.0,
        seed: int = 0,
        trail_ms: float = 120.0,
        sounds: Sequence[tuple[int, int, str]] = (),
    ) -> SpokenPiece:
        """Speak at most a few hundred characters. Silence is cut to 10 ms before and to `trail_ms` after.

        `sounds` has words of the text with their IPA: (start, end, IPA). The PCM is empty if the text has nothing to
        say. The same arguments give the same samples.
        """
        reading = self.english.read(text, sounds)
        if len(reading.ids) < 3:
            return SpokenPiece(np.zeros(0, np.int16), SAMPLE_RATE_HZ)
        wave, durations = self._run(reading.ids, speed, seed)
        pcm = np.round(np.clip(wave, -1.0, 1.0) * 32767.0).astype(np.int16)
        if durations is None:
            timings = share_time(words(text), 0, len(pcm))
        else:
            n_early = round(_ONSET_MS / speed * SAMPLE_RATE_HZ / 1000)
            edges = np.concatenate(([0], np.cumsum(durations))) * _N_SAMPLES_PER_DURATION - n_early
            timings = aligned(text, reading, edges.astype(int).tolist())
        return trimmed(SpokenPiece(pcm, SAMPLE_RATE_HZ, tuple(timings), durations is None), _SILENCE_DBFS, trail_ms)

    def _run(
        self, ids: Sequence[int], speed: float, seed: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        feeds = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        outputs = self._session.run(None, feeds)
        durations = outputs[6].reshape(-1) if self.has_durations else None
        spectra = [output[0] for output in outputs[:6]]
        return self._dsp.synth(*spectra, np.random.default_rng(seed)), durations

    def _durations_add_up(self) -> bool:
        for speed in (1.0, 1.5):
            ids = self.english.read("Hello, how can I help you today?").ids
            wave, durations = self._run(ids, speed, 0)
            if durations is None or durations.shape != (len(ids),):
                return False
            if abs(int(durations.sum()) * _N_SAMPLES_PER_DURATION - len(wave)) > _N_SAMPLES_PER_DURATION:
                return False
        return True


def _open(model: bytes) -> tuple[Any, bool]:
    """A session; the durations are a seventh output if the graph has that node."""
    try:
        return onnx_graph.session(model + onnx_graph.output(_DURATIONS)), True
    except Exception:
        return onnx_graph.session(model), False
