"""Deterministic signals, and measures of signals."""

from __future__ import annotations

import numpy as np

from telephony_tts.audio.encoder import Encoder
from telephony_tts.audio.g711 import Pcm


def tone(hz: float, n: int, rate_hz: int = 24_000, amplitude: float = 10_000.0, phase: float = 0.0) -> Pcm:
    return np.rint(amplitude * np.sin(2 * np.pi * hz * np.arange(n) / rate_hz + phase)).astype(np.int16)


def square(hz: float, n: int, rate_hz: int = 24_000) -> Pcm:
    """Full scale both ways."""
    half_period = rate_hz / (2 * hz)
    return np.where((np.arange(n) // half_period) % 2 == 0, 32_767, -32_768).astype(np.int16)


def speech_like(n: int, rate_hz: int = 24_000, seed: int = 1, rms: float = 3_000.0) -> Pcm:
    """Noise with the long-term slope of speech (flat to 500 Hz, then -9 dB an octave), four syllables a second."""
    noise = np.fft.rfft(np.random.default_rng(seed).standard_normal(n))
    hz = np.fft.rfftfreq(n, 1 / rate_hz)
    noise *= (hz > 80) * np.minimum(1.0, (np.maximum(hz, 1.0) / 500) ** -1.5)
    sound = np.fft.irfft(noise, n)
    sound *= 0.55 - 0.45 * np.cos(2 * np.pi * 4 * np.arange(n) / rate_hz)
    return np.clip(np.rint(sound * rms / np.sqrt(np.mean(sound**2))), -32_768, 32_767).astype(np.int16)


def chunks(pcm: Pcm, n: int) -> list[Pcm]:
    return [pcm[i : i + n] for i in range(0, len(pcm), n)]


def take_all(encoder: Encoder) -> list[bytes]:
    frames = []
    while (frame := encoder.take_frame()) is not None:
        frames.append(frame)
    return frames


def rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def db(ratio: float) -> float:
    return float(20 * np.log10(max(ratio, 1e-12)))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """The normalised correlation at zero shift, so a signal that is late by one sample is different."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))
