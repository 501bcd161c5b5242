"""Voice activity: Silero's network on telephone audio, 32 ms at a time (docs/adr/0011-voice-activity.md)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.g711 import Pcm
from telephony_tts.runtime.errors import AudioError

RATE_HZ = 8000
WINDOW_SAMPLES = 256
WINDOW_MS = 1000 * WINDOW_SAMPLES // RATE_HZ
MODEL_FILE = Path(__file__).with_name("silero_vad.onnx")

_CONTEXT_SAMPLES = 32
"""The network gets each window with the end of the window before it."""
_STATE_SHAPE = (2, 1, 128)

State = npt.NDArray[np.float32]


def import_runtime() -> None:
    """Import what VoiceModel needs, before an event loop runs: the import lets no other thread run for 0.1 s.
    VoiceModel reports a broken installation."""
    with suppress(Exception):
        import onnxruntime  # noqa: F401


class VoiceModel:
    """The network, one for all calls: it keeps no state between calls of it. Loading takes about 0.1 s.

    Raises AudioError if the file or onnxruntime cannot be used.
    """

    def __init__(self, file: Path = MODEL_FILE) -> None:
        try:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            self._session = onnxruntime.InferenceSession(
                file.read_bytes(), sess_options=options, providers=["CPUExecutionProvider"]
            )
        # Errors of onnxruntime have no common class but Exception. A wrong installation raises ImportError or OSError.
        except Exception as error:
            raise AudioError(
                f"the voice model cannot be loaded ({error}); install telephony-tts again, or leave barge_in off"
            ) from error
        self._rate_hz = np.array(RATE_HZ, np.int64)

    def __call__(self, window: npt.NDArray[np.float32], state: State) -> tuple[float, State]:
        """The probability of speech in `window` (shape [1, 288], full scale is 1.0), and the stream's next state."""
        inputs: dict[str, Any] = {"input": window, "state": state, "sr": self._rate_hz}
        probability, after = self._session.run(None, inputs)
        return float(probability[0, 0]), after


class VoiceActivity:
    """The voice activity of one stream of windows."""

    def __init__(self, model: VoiceModel) -> None:
        self._model = model
        self._input = np.zeros((1, _CONTEXT_SAMPLES + WINDOW_SAMPLES), np.float32)
        self._state: State = np.zeros(_STATE_SHAPE, np.float32)

    def feed(self, pcm: Pcm) -> float:
        """The probability, 0 to 1, that the next WINDOW_SAMPLES of the stream are speech."""
        self._input[0, :_CONTEXT_SAMPLES] = self._input[0, -_CONTEXT_SAMPLES:]
        self._input[0, _CONTEXT_SAMPLES:] = pcm
        self._input[0, _CONTEXT_SAMPLES:] *= 1 / 32768
        probability, self._state = self._model(self._input, self._state)
        return probability


def level_dbov(pcm: Pcm) -> float:
    """Mean power in dB below the overload point, -100 for silence."""
    samples = pcm.astype(np.float32)
    power = float(np.dot(samples, samples)) / max(1, len(pcm))
    return float(10 * np.log10(power / 32768.0**2)) if power > 0.1 else -100.0
