"""What it costs to listen for the caller's voice: per 20 ms of a call in the event loop, and of the network alone.

The session gets 8 kHz μ-law audio as from a media leg, 20 ms at a time, on one core. The cases are a silent line,
noise, a caller who speaks, and our own speech that comes back as an echo. The times are CPU times of this one thread,
which also runs the network.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import report
from harness.process import cores

from telephony_tts.audio.g711 import decode_ulaw, encode_ulaw
from telephony_tts.audio.voice_activity import WINDOW_SAMPLES, VoiceModel
from telephony_tts.engines.api import Chunk
from telephony_tts.engines.hibari.model import HibariModel
from telephony_tts.session.effects import Pull, Synthesize
from telephony_tts.session.session import Session
from telephony_tts.session.settings import BargeInSettings, SessionSettings
from telephony_tts.wire import messages as m

_EXAMPLES = """examples:
  python benchmarks/voice_activity.py
  python benchmarks/voice_activity.py --note "nothing else was running"
"""
_FRAME_NS = 20_000_000
_TEXT = "Your parcel left the depot on Tuesday and should arrive before noon, if nothing comes between."


def main() -> None:
    flags = report.parser("voice_activity", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--seconds", type=int, default=30, help="length of the simulated call (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=9, help="repeats of each measure (default %(default)s)")
    flags.add_argument("--batches", default="1,8,64", help="numbers of windows computed together, separated by commas")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.repeat, chosen.batches = 2, 1, "1,2"
    os.sched_setaffinity(0, {cores()[0]})
    begun = time.perf_counter()
    model = VoiceModel()
    load_ms = (time.perf_counter() - begun) * 1000
    speech = HibariModel().speak(_TEXT)
    results: dict[str, Any] = {
        "load_ms": round(load_ms, 1),
        "us_per_20_ms": _calls(chosen, model, speech.pcm, speech.sample_rate_hz),
        "us_per_window": {
            f"{n} together": round(_network(model, int(n), chosen), 2) for n in chosen.batches.split(",")
        },
    }
    rows = [(f"{part}: {name}", us) for part in ("us_per_20_ms", "us_per_window") for name, us in results[part].items()]
    report.table("the caller's voice (medians)", ("what", "µs"), rows)
    report.save(chosen, results)


def _calls(chosen: argparse.Namespace, model: VoiceModel, pcm: np.ndarray, rate_hz: int) -> dict[str, float]:
    silence = [b"\xff" * 160] * (chosen.seconds * 50)
    noise = np.random.default_rng(1).standard_normal(160 * len(silence)) * 60
    ulaw = encode_ulaw(np.resize(pcm[:: rate_hz // 8000], 160 * len(silence)).astype(np.int16))
    voice = [ulaw[at : at + 160] for at in range(0, len(ulaw), 160)]
    lines = [encode_ulaw(np.rint(noise[n * 160 : n * 160 + 160]).astype(np.int16)) for n in range(len(silence))]
    off, on = BargeInSettings(), BargeInSettings(enabled=True, hold_off_ms=10_000_000)
    chunk = Chunk(pcm, rate_hz)
    other = Chunk(pcm[::-1].copy(), rate_hz)  # sounds like speech, and is not what the caller says
    work: dict[str, Callable[[], float]] = {
        "off, caller speaks": lambda: _call(off, model, voice, None),
        "on, nothing on the line": lambda: _call(on, model, silence, None),
        "on, noise of -55 dBov": lambda: _call(on, model, lines, None),
        "on, caller speaks": lambda: _call(on, model, voice, None),
        "off, we speak": lambda: _call(off, model, silence, chunk),
        "on, both speak": lambda: _call(on, model, voice, other),
        "on, we speak with an echo": lambda: _call(on, model, lines, chunk, echo=0.2),
    }
    return {name: round(statistics.median(each() for _ in range(chosen.repeat)), 2) for name, each in work.items()}


def _call(
    barge_in: BargeInSettings, model: VoiceModel, line: list[bytes], ours: Chunk | None, echo: float = 0.0
) -> float:
    """Microseconds in the session per frame of `line`. With `ours` that chunk is spoken repeatedly, with encoding."""
    session = Session(SessionSettings(barge_in=barge_in), 0, voice_model=lambda: model)
    session.attach_media(0, marks=False, clears=True)
    now_ns = spent_ns = 0
    echoes = [bytes(160)] * 5
    for frame in line:
        if echo:
            mixed = decode_ulaw(frame) + decode_ulaw(echoes.pop(0)) * echo
            frame = encode_ulaw(np.rint(mixed).astype(np.int16))
        if ours is not None and not session.turns:
            session.receive(m.Say(_TEXT), now_ns)
        begun_ns = time.thread_time_ns()
        session.receive(m.MediaAudio(frame, now_ns // 1_000_000), now_ns)
        effects = session.poll(now_ns)
        spent_ns += time.thread_time_ns() - begun_ns
        while effects:
            more: list[Any] = []
            for effect in effects:
                if isinstance(effect, m.Frame):
                    echoes.append(effect.payload)
                elif isinstance(effect, Synthesize | Pull):
                    name = effect.utterance.id if isinstance(effect, Synthesize) else effect.utterance_id
                    if isinstance(effect, Synthesize):
                        session.audio(name, ours or Chunk(np.zeros(0, np.int16), 8000), now_ns)
                    session.audio_ended(name, now_ns)
                    more += session.poll(now_ns)
            effects = more
        while len(echoes) < 5:
            echoes.append(b"\xff" * 160)
        now_ns += _FRAME_NS
    return spent_ns / len(line) / 1000


def _network(model: VoiceModel, n: int, chosen: argparse.Namespace) -> float:
    """Microseconds of the network for each window of a batch of `n`."""
    window, state = np.zeros((n, 32 + WINDOW_SAMPLES), np.float32), np.zeros((2, n, 128), np.float32)
    n_runs = 20 if chosen.quick else 500
    spent = []
    for _ in range(chosen.repeat):
        begun_ns = time.thread_time_ns()
        for _ in range(n_runs):
            model(window, state)
        spent.append((time.thread_time_ns() - begun_ns) / n_runs / n / 1000)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
