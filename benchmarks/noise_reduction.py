"""Noise reduction of recordings: what is gained on speech of the embedded voice with noise of a known level.

  pauses_db   how much lower the pauses are
  si_sdr_db   how much nearer the result is to the clean speech (scale-invariant signal to distortion ratio). A figure
              below 0 means that the reduction has done more harm than good
  rtf         compute seconds for each second of the recording, on one core

Each row is a kind of noise and its distance to the speech. With --noisereduce the package of that name is measured in
the same run, also limited to 20 dB: pip install --target DIR noisereduce.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from harness import report
from harness.process import cores

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.cosyvoice2.voices.noise_reduction import REDUCTION_DB, reduced
from telephony_tts.engines.cosyvoice2.voices.voice import Recording
from telephony_tts.engines.hibari.engine import HibariEngine

_EXAMPLES = """examples:
  python benchmarks/noise_reduction.py
  python benchmarks/noise_reduction.py --noisereduce DIR
"""
_TEXT = "Thank you for calling. Your parcel is on its way and arrives tomorrow. Is there anything else I can do?"
_HZ = 24_000
_SILENCE_S = 0.5

Reduce = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    flags = report.parser("noise_reduction", __doc__ or "", _EXAMPLES)
    flags.add_argument("--snr-db", default="30,20,12", help="distances of the noise, by comma (default %(default)s)")
    flags.add_argument("--noisereduce", metavar="DIR", default="", help="where that package is installed")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.snr_db = "20"
    os.sched_setaffinity(0, {cores()[0]})
    torch.set_num_threads(1)
    methods: dict[str, Reduce] = {"afftdn": _afftdn}
    if chosen.noisereduce:
        methods["noisereduce"] = _noisereduce(chosen.noisereduce)
    clean = asyncio.run(_speech())
    results = [
        {"noise": name, "snr_db": snr_db, "reduced": {method: _gain(clean, noise, snr_db, reduce)
                                                      for method, reduce in methods.items()}}
        for name, noise in _noises(clean.size).items()
        for snr_db in map(float, chosen.snr_db.split(","))
    ]  # fmt: skip
    header = ["noise", "SNR dB", *(f"{method}: {figure}" for method in methods for figure in _FIGURES)]
    rows = [
        (row["noise"], row["snr_db"], *(row["reduced"][method][figure] for method in methods for figure in _FIGURES))
        for row in results
    ]
    report.table("noise reduction", header, rows)
    chosen.noisereduce = bool(chosen.noisereduce)
    report.save(chosen, results)


_FIGURES = ("pauses_db", "si_sdr_db", "rtf")


async def _speech() -> np.ndarray:
    """Clean speech, float32 at 24 kHz, with silence around it."""
    engine = HibariEngine()
    await engine.start()
    try:
        async with aclosing(engine.synthesize(Utterance("1", _TEXT, engine.voices[0].name))) as chunks:
            pcm = np.concatenate([chunk.pcm async for chunk in chunks])
    finally:
        await engine.close()
    silence = np.zeros(int(_SILENCE_S * _HZ), np.float32)
    return np.concatenate((silence, pcm.astype(np.float32) / 32768, silence))


def _noises(n: int) -> dict[str, np.ndarray]:
    """Kinds of noise: a hiss, a room with a fan, and a hum of the mains with its harmonics."""
    hiss = np.random.default_rng(0).standard_normal(n)
    hz = np.maximum(np.fft.rfftfreq(n, 1 / _HZ), 30)
    room = np.fft.irfft(np.fft.rfft(hiss) / np.sqrt(hz), n)
    seconds = np.arange(n) / _HZ
    hum = sum(np.sin(2 * np.pi * 50 * k * seconds + k) / k for k in range(1, 9)) + 0.1 * hiss
    return {"white": hiss, "pink": room, "hum": hum}


def _gain(clean: np.ndarray, noise: np.ndarray, snr_db: float, reduce: Reduce) -> dict[str, float]:
    speech_power = np.mean(np.square(clean[np.abs(clean) > 0.003]))
    scaled = noise * np.sqrt(speech_power / np.mean(np.square(noise)) / 10 ** (snr_db / 10))
    noisy = (clean + scaled).astype(np.float32)
    began_s = time.process_time()
    out = reduce(noisy)
    spent_s = time.process_time() - began_s
    n = int(_SILENCE_S * _HZ)
    pauses = [10 * np.log10(np.mean(np.square(wave[n // 4 : 3 * n // 4])) + 1e-12) for wave in (noisy, out)]
    gain = _si_sdr_db(clean, out) - _si_sdr_db(clean, noisy)
    figures = (pauses[0] - pauses[1], gain, spent_s * _HZ / clean.size)
    return {name: round(float(value), 4 if name == "rtf" else 1) for name, value in zip(_FIGURES, figures, strict=True)}


def _si_sdr_db(clean: np.ndarray, wave: np.ndarray) -> float:
    scale = float(clean @ wave) / float(clean @ clean)
    rest = wave - scale * clean
    return float(10 * np.log10(scale**2 * float(clean @ clean) / float(rest @ rest)))


def _afftdn(noisy: np.ndarray) -> np.ndarray:
    out: np.ndarray = reduced(Recording(torch.from_numpy(noisy), _HZ)).wave.numpy()
    return out


def _noisereduce(folder: str) -> Reduce:
    """Its stationary gate. It is given the first half second as the noise, which ours has to find."""
    sys.path.append(str(Path(folder)))
    package: Any = importlib.import_module("noisereduce")

    def reduce(noisy: np.ndarray) -> np.ndarray:
        noise = noisy[: int(_SILENCE_S * _HZ)]
        share = 1 - 10 ** (-REDUCTION_DB / 20)
        out = package.reduce_noise(noisy, _HZ, y_noise=noise, stationary=True, prop_decrease=share)
        return np.asarray(out, np.float32)

    return reduce


if __name__ == "__main__":
    main()
