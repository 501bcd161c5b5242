"""Lowers the steady noise of a recording: a fan, a hum, a hiss. FFmpeg's filter afftdn does it, through PyAV, the extra
[denoise] (docs/adr/0030-noise-reduction.md).

The filter learns the noise from the quietest stretch of the recording and subtracts it in each band. It does not help
against an echo, music or other voices.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch

from telephony_tts.engines.cosyvoice2.voices.recording_check import LOUD_SHARE
from telephony_tts.engines.cosyvoice2.voices.voice import Recording, frame_levels_db
from telephony_tts.runtime.errors import AudioError, EngineUnavailable, how_to_get

DENOISED = ("denoised_by", "denoised_db")
"""What the provenance of a voice says: by what the noise was reduced, and by how many dB in the quietest stretch."""
REDUCTION_DB = 20
"""The most by which a band is lowered. More makes the rest of the noise warble."""
PAUSE_FRAMES = 30
"""Frames of 10 ms from which the noise is learned."""
MIN_PAUSE_DB = 10.0
"""How far the pause lies below the speech at least. What lies above that is speech, and would be removed."""
SILENT_DBFS = -75.0
"""A quieter pause has no noise that anyone could hear."""
_FLOOR_DBFS = (-80.0, -20.0)
"""What the filter accepts."""
_LISTEN_S = 0.5
"""The filter settles for so long, and then learns for twice as long."""
_MAX_DELAY_S = 0.1
_PUSH_SAMPLES = 4_096


def reduced(recording: Recording) -> Recording:
    """The recording with less noise, of the same length and at the same places. Its provenance has `DENOISED`.

    Raises AudioError if there is no noise or if it cannot be told from the speech, and EngineUnavailable without PyAV.
    """
    try:
        import av
    except ImportError as error:
        raise EngineUnavailable(f"noise reduction needs the package av: {how_to_get('denoise')}") from error
    wave = recording.wave.numpy()
    start, end, pause_dbfs = _pause(recording)
    lowered = torch.from_numpy(_filtered(wave, recording.rate_hz, wave[start:end], pause_dbfs))
    gain_db = pause_dbfs - _level_dbfs(lowered[start:end].numpy())
    done = dict(zip(DENOISED, (f"afftdn of FFmpeg {av.ffmpeg_version_info}", f"{gain_db:.1f}"), strict=True))
    return Recording(lowered, recording.rate_hz, recording.n_channels, {**recording.provenance, **done})


def _pause(recording: Recording) -> tuple[int, int, float]:
    """The quietest stretch: its first sample, the one after its last, and its level in dBFS. Raises AudioError."""
    levels = frame_levels_db(recording.wave, recording.rate_hz)
    if levels.numel() < PAUSE_FRAMES:
        raise AudioError(f"the recording lasts {recording.seconds:.2f} s, too short to find its noise")
    power = (10.0 ** (levels / 10.0)).unfold(0, PAUSE_FRAMES, 1).mean(dim=1)
    first = int(power.argmin())
    pause_dbfs = float(10.0 * power[first].log10())
    if pause_dbfs < SILENT_DBFS:
        raise AudioError("the pauses of the recording are silent already: there is no noise to reduce")
    if float(levels.quantile(LOUD_SHARE)) - pause_dbfs < MIN_PAUSE_DB:
        raise AudioError(
            f"the recording has no pause of {PAUSE_FRAMES / 100:g} s, so its noise cannot be told from the speech: "
            "record a moment of silence before the first word"
        )
    n = max(recording.rate_hz // 100, 1)
    return first * n, (first + PAUSE_FRAMES) * n, pause_dbfs


def _filtered(wave: Any, rate_hz: int, noise: Any, noise_dbfs: float) -> Any:
    """`wave`, float32 [N], without what is like `noise`."""
    filtering = _NoiseFilter(rate_hz, noise_dbfs)
    # Forwards and backwards, so that the joints make no clicks.
    steady = np.resize(np.concatenate((noise, noise[::-1])), int(3 * _LISTEN_S * rate_hz))
    n_settling = int(_LISTEN_S * rate_hz)
    filtering.push(steady[:n_settling])
    filtering.learn(steady[n_settling:])
    filtering.push(wave)
    filtering.push(steady[: int(_MAX_DELAY_S * rate_hz)])
    out = filtering.finish()[steady.size :]
    delay = _delay(wave, out, int(_MAX_DELAY_S * rate_hz))
    return np.ascontiguousarray(out[delay : delay + wave.size]).clip(-1.0, 1.0)


class _NoiseFilter:
    """FFmpeg's afftdn for one channel of samples, in order."""

    def __init__(self, rate_hz: int, noise_dbfs: float) -> None:
        from av.filter import Graph

        floor_dbfs = min(max(noise_dbfs, _FLOOR_DBFS[0]), _FLOOR_DBFS[1])
        self._rate_hz = rate_hz
        self._n_pushed = 0
        self._out: list[Any] = []
        graph: Any = Graph()
        base = Fraction(1, rate_hz)
        self._source = graph.add_abuffer(format="flt", sample_rate=rate_hz, layout="mono", time_base=base)
        self._afftdn = graph.add("afftdn", f"noise_reduction={REDUCTION_DB}:noise_floor={floor_dbfs:.1f}")
        one_format = graph.add("aformat", "sample_fmts=flt")
        self._sink = graph.add("abuffersink")
        self._source.link_to(self._afftdn)
        self._afftdn.link_to(one_format)
        one_format.link_to(self._sink)
        graph.configure()
        self._graph = graph

    def learn(self, noise: Any) -> None:
        """Take these samples for the noise."""
        self._afftdn.process_command("sample_noise", "start")
        self.push(noise)
        self._afftdn.process_command("sample_noise", "stop")

    def push(self, samples: Any) -> None:
        from av import AudioFrame

        for start in range(0, samples.size, _PUSH_SAMPLES):
            piece = np.ascontiguousarray(samples[None, start : start + _PUSH_SAMPLES], dtype=np.float32)
            frame = AudioFrame.from_ndarray(piece, format="flt", layout="mono")
            frame.sample_rate, frame.pts = self._rate_hz, self._n_pushed
            self._n_pushed += piece.size
            self._source.push(frame)
            self._pull()

    def finish(self) -> Any:
        """All that came out, float32 [N]."""
        self._source.push(None)
        self._pull()
        return np.concatenate(self._out)

    def _pull(self) -> None:
        import av

        try:
            while True:
                self._out.append(self._sink.pull().to_ndarray().reshape(-1))
        except (av.error.BlockingIOError, av.error.EOFError):
            return


def _delay(wave: Any, out: Any, most: int) -> int:
    """By how many samples `out` lags behind `wave`. FFmpeg does not tell the delay of this filter."""
    n = 1 << int(wave.size + most).bit_length()
    spectrum = np.fft.rfft(out[: wave.size + most], n) * np.conj(np.fft.rfft(wave, n))
    return int(np.fft.irfft(spectrum, n)[:most].argmax())


def _level_dbfs(samples: Any) -> float:
    return float(10.0 * np.log10(np.mean(np.square(samples)) + 1e-12))
