"""How well a machine that answers is told from a person: beeps that were missed, and sounds that were taken for one.

All cases are generated: beeps of many frequencies, lengths and levels behind a greeting of the embedded voices, in both
G.711 codecs and with noise; speech, keys, tones of the network and chords without a beep. They go through a session as
from a media leg. The last part is the CPU time of the beep detector alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
from harness import report
from harness.process import cores

from telephony_tts.audio.beep import HIGHEST_HZ, LONGEST_MS, LOWEST_HZ, SHORTEST_MS, BeepDetector
from telephony_tts.audio.dtmf import tones
from telephony_tts.audio.g711 import Pcm, decode_alaw, encode_alaw, encode_ulaw
from telephony_tts.audio.voice_activity import WINDOW_SAMPLES, VoiceModel
from telephony_tts.engines.api import Engine, Utterance
from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.session.session import Session
from telephony_tts.session.settings import CallerSettings, SessionSettings
from telephony_tts.wire import messages as m

_EXAMPLES = """examples:
  python benchmarks/voice_mail.py
  python benchmarks/voice_mail.py --cases 2000 --seed 2
"""
_RATE_HZ = 8000
_FRAME = 160
_VOICES = ("heart", "en-us", "en-gb", "de", "fr-fr", "cmn")
_GREETINGS = (
    "Hello, you have reached the voice mail of John Smith. I cannot take your call right now. Please leave a message "
    "after the tone, and I will call you back as soon as I can.",
    "Hi, this is Anna. I'm away until the fourteenth. Leave your name and number and I'll ring you. Have a lovely day!",
    "The person you are trying to reach is not available. At the tone, please record your message. When you have "
    "finished recording, you may hang up, or press one for more options.",
    "Our office is closed. We are open Monday to Friday, from nine to five. Who are you? You too? Mmm, yes, no. Ooh!",
)
_PERSONS = (
    "Hello?", "Yes?", "Hello, Anna speaking.", "John Smith.", "Good morning, how can I help?",
    "Thank you for calling Miller and Sons, this is Anna, how may I help you today?",
)  # fmt: skip

Wave = npt.NDArray[np.float64]


@dataclass(frozen=True)
class VoiceMailCase:
    """Audio of a caller's side. `beep` is (its end in ms, its length in ms, its frequency in Hz), None without one."""

    wave: Wave
    codec: str
    about: dict[str, str]
    beep: tuple[float, float, float] | None = None


def main() -> None:
    flags = report.parser("voice_mail", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--cases", type=int, default=800, help="generated beeps (default %(default)s)")
    flags.add_argument("--seed", type=int, default=1, help="of the random numbers (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=9, help="repeats of the measure of time (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.cases, chosen.repeat = 6, 1
    os.sched_setaffinity(0, {cores()[0]})
    voices = _VOICES[:2] if chosen.quick else _VOICES
    texts = (*_GREETINGS[:2], _PERSONS[0], _PERSONS[-1]) if chosen.quick else (*_GREETINGS, *_PERSONS)
    said = asyncio.run(_render(voices, texts))
    greetings = [said[voice, text] for voice in voices for text in _GREETINGS if text in texts]
    rng = np.random.default_rng(chosen.seed)
    model = VoiceModel()
    results: dict[str, Any] = {"beeps": _beeps(chosen.cases, greetings, rng, model)}
    results["without_a_beep"] = _without(said, rng, model, quick=chosen.quick)
    results["greetings"] = _hints(said, voices, model)
    results["us_per_20_ms"] = _cost(chosen, greetings[0])
    report.table(
        "beeps: missed of all", ("group", "missed", "of", "end off by ms, p95"),
        [(name, each["missed"], each["n"], each["end_error_ms_p95"]) for name, each in results["beeps"].items()],
    )
    report.table(
        "no beep: false alarms", ("sound", "beeps", "sounds", "seconds"),
        [(name, each["beeps"], each["n"], each["seconds"]) for name, each in results["without_a_beep"].items()],
    )
    hints = [(name, each["hints"], each["n"]) for name, each in results["greetings"].items()]
    report.table("hint by the greeting", ("who", "hints", "of"), hints)
    report.table("detector of beeps alone (median)", ("sound", "µs per 20 ms"), list(results["us_per_20_ms"].items()))
    report.save(chosen, results)


async def _render(voices: tuple[str, ...], texts: tuple[str, ...]) -> dict[tuple[str, str], Wave]:
    """The texts in the embedded voices, at 8 kHz, with -20 dBov on average."""
    engines: list[Engine] = [HibariEngine(n_workers=1), EspeakEngine(n_workers=1)]
    found = {}
    for engine in engines:
        await engine.start()
        for voice in (voice for voice in voices if voice in {each.name for each in engine.voices}):
            for text in texts:
                chunks = [chunk async for chunk in engine.synthesize(Utterance(id="u", text=text, voice=voice))]
                wave = np.concatenate([chunk.pcm for chunk in chunks]) / 32768
                wave = soxr.resample(wave, chunks[0].sample_rate_hz, _RATE_HZ, "HQ")
                found[voice, text] = wave * 0.1 / np.sqrt(np.square(wave[np.abs(wave) > 0.005]).mean())
        await engine.close()
    return found


# ------------------------------------------------------------------------- cases


def sine(frequencies_hz: tuple[float, ...], length_ms: float, dbov: float, phase: float = 0.0) -> Wave:
    """Sines of equal level, together `dbov`."""
    times_s = np.arange(round(length_ms * _RATE_HZ / 1000)) / _RATE_HZ
    level = np.sqrt(2 / len(frequencies_hz)) * 10 ** (dbov / 20)
    wave: Wave = level * sum(np.sin(2 * np.pi * hz * times_s + phase * (n + 1)) for n, hz in enumerate(frequencies_hz))
    return wave


def rest(length_ms: float) -> Wave:
    return np.zeros(round(length_ms * _RATE_HZ / 1000))


def beep_cases(n_cases: int, greetings: list[Wave], rng: np.random.Generator) -> Iterator[VoiceMailCase]:
    """A greeting, a pause, a beep and silence, with noise."""
    for _ in range(n_cases):
        hz = float(np.exp(rng.uniform(np.log(LOWEST_HZ), np.log(HIGHEST_HZ))))
        length_ms, dbov = float(rng.uniform(SHORTEST_MS, LONGEST_MS)), float(rng.uniform(-36, -8))
        snr_db = float(rng.choice([np.inf, 30, 20, 15, 10]))
        greeting = greetings[rng.integers(len(greetings))]
        before = np.concatenate((rest(300), greeting[-4 * _RATE_HZ :], rest(rng.uniform(0, 800))))
        beep = sine((hz,), length_ms, dbov, rng.uniform(0, 6))
        ramp = np.linspace(0, 1, round(rng.choice([1, 16, 80])))
        beep[: len(ramp)] *= ramp
        beep[-len(ramp) :] *= ramp[::-1]
        wave = np.concatenate((before, beep, rest(1500)))
        wave += rng.standard_normal(len(wave)) * 10 ** ((dbov - snr_db) / 20)
        about = {
            "codec": str(rng.choice(["ulaw", "alaw"])),
            "noise": "none" if np.isinf(snr_db) else f"{snr_db:.0f} dB below the beep",
            "length": "120 to 200 ms" if length_ms < 200 else "200 to 500 ms" if length_ms < 500 else "500 ms to 1 s",
            "level": "-36 to -26 dBov" if dbov < -26 else "-26 to -8 dBov",
            "frequency": "350 to 600 Hz" if hz < 600 else "600 to 1200 Hz" if hz < 1200 else "1200 to 2200 Hz",
        }
        yield VoiceMailCase(wave, about["codec"], about, ((len(before) + len(beep)) / 8, length_ms, hz))


def other_sounds(
    said: dict[tuple[str, str], Wave], rng: np.random.Generator, *, quick: bool
) -> Iterator[tuple[str, list[Wave]]]:
    """Kinds of sounds without a beep. Each sound is followed by silence, as a beep is."""
    n = 2 if quick else 60
    yield "speech", [wave for (_, text), wave in said.items() if text in _GREETINGS][: 2 if quick else None]
    yield "speech, 12 dB weaker", [w * 0.25 for (_, t), w in said.items() if t in _GREETINGS][: 2 if quick else None]
    vowels = [wave[at : at + 2400] for wave in said.values() for at in range(0, len(wave) - 2400, 2400)]
    yield "speech cut off after 300 ms", vowels[: 4 if quick else None]
    keys = "1" if quick else "0123456789*#ABCD"
    yield "keys of the telephone", [
        np.concatenate(list(tones(key, _RATE_HZ, ms, 400))) / 32768 * 10 ** (db / 20)
        for key in keys for ms in (60, 100, 250, 500) for db in (0, -15)
    ]  # fmt: skip
    yield "ring back 440 + 480 Hz, 2 s", [sine((440, 480), 2000, -20, each) for each in rng.uniform(0, 6, n)]
    yield "ring back 400 + 450 Hz, 400 ms", [sine((400, 450), 400, -20, each) for each in rng.uniform(0, 6, n)]
    yield "busy 480 + 620 Hz, 500 ms", [sine((480, 620), 500, -20, each) for each in rng.uniform(0, 6, n)]
    yield "chords of three notes, 150 to 900 ms", [_chord(rng, (0, 4, 7)) for _ in range(n)]
    yield "two notes together, 150 to 900 ms", [_chord(rng, (0, int(rng.integers(1, 12)))) for _ in range(n)]
    yield "melodies of notes with overtones", [_melody(rng) for _ in range(n)]
    yield "white noise in bursts", [rng.standard_normal(4000) * 0.1 for _ in range(n)]
    yield "one tone of 1.2 to 3 s", [sine((hz,), rng.uniform(1200, 3000), -20) for hz in rng.uniform(350, 2200, n)]
    yield "tone below 330 or above 2250 Hz", [sine((hz,), 400, -20) for hz in (150, 250, 320, 330, 2250, 2300, 3000)]
    # These are steady tones of a beep's length. Only what came before could tell them from a beep.
    yield "fax calling tone 1100 Hz, 500 ms (a beep by its sound)", [sine((1100,), 500, -20)] * 5
    yield "busy 425 Hz, 480 ms (a beep by its sound)", [sine((425,), 480, -20)] * 5
    yield "special information tones (the last is a beep by its sound)", [
        np.concatenate([sine((hz,), 330, -20) for hz in (950, 1400, 1800)])
    ] * 5


def _chord(rng: np.random.Generator, steps: tuple[int, ...]) -> Wave:
    root_hz, length_ms = rng.uniform(350, 900), rng.uniform(150, 900)
    return sine(tuple(root_hz * 2 ** (step / 12) for step in steps), length_ms, -20, rng.uniform(0, 6))


def _melody(rng: np.random.Generator) -> Wave:
    """Eight notes without a rest, each with two overtones."""
    notes = []
    for _ in range(8):
        hz, length_ms = 350 * 2 ** (rng.integers(0, 14) / 12), rng.uniform(120, 400)
        note = sum(sine((hz * k,), length_ms, -20 - 8 * (k - 1)) for k in (1, 2, 3))
        notes.append(note * np.linspace(1, 0.5, len(note)))
    return np.concatenate(notes)


# ----------------------------------------------------------------------- judgement


def _heard(wave: Wave, codec: str, model: VoiceModel) -> list[m.AnsweringMachineHeard]:
    """What the bot is told of this audio."""
    session = Session(
        SessionSettings(codec=codec, caller=CallerSettings(answering_machine=True)), 0, voice_model=lambda: model
    )
    session.attach_media(0, marks=False, clears=True)
    pcm = np.clip(np.rint(wave * 32767), -32768, 32767).astype(np.int16)
    payload = encode_ulaw(pcm) if codec == "ulaw" else encode_alaw(pcm)
    found = []
    for n, at in enumerate(range(0, len(payload) - _FRAME + 1, _FRAME)):
        now_ns = n * 20_000_000
        session.receive(m.MediaAudio(payload[at : at + _FRAME], n * 20), now_ns)
        found += [each for each in session.poll(now_ns) if isinstance(each, m.AnsweringMachineHeard)]
    return found


def _beeps(n_cases: int, greetings: list[Wave], rng: np.random.Generator, model: VoiceModel) -> dict[str, Any]:
    groups: dict[str, list[tuple[bool, float]]] = {}
    n_other = 0
    for case in beep_cases(n_cases, greetings, rng):
        assert case.beep is not None
        end_ms, _, hz = case.beep
        told = [each for each in _heard(case.wave, case.codec, model) if each.cause == "beep"]
        right = [
            each for each in told
            if abs((each.beep_hz or 0) - hz) < 10 and abs((each.beep_at_ms or 0) - end_ms) < 60
        ]  # fmt: skip
        n_other += len(told) - len(right)
        error_ms = abs((right[0].beep_at_ms or 0) - end_ms) if right else 0.0
        for name in ("all", *(f"{kind}: {value}" for kind, value in case.about.items())):
            groups.setdefault(name, []).append((bool(right), error_ms))
    results: dict[str, Any] = {}
    for name in sorted(groups, key=lambda name: (name != "all", name)):
        errors_ms = [error_ms for is_right, error_ms in groups[name] if is_right]
        results[name] = {
            "n": len(groups[name]),
            "missed": sum(not is_right for is_right, _ in groups[name]),
            "end_error_ms_p95": round(float(np.percentile(errors_ms, 95)), 1) if errors_ms else None,
        }
    results["all"]["false_alarms_in_the_greetings"] = n_other
    return results


def _without(
    said: dict[tuple[str, str], Wave], rng: np.random.Generator, model: VoiceModel, *, quick: bool
) -> dict[str, Any]:
    results = {}
    for name, waves in other_sounds(said, rng, quick=quick):
        n_beeps, seconds = 0, 0.0
        for n, wave in enumerate(waves):
            whole = np.concatenate((rest(500), wave, rest(600)))
            n_beeps += sum(each.cause == "beep" for each in _heard(whole, ("ulaw", "alaw")[n % 2], model))
            seconds += len(whole) / _RATE_HZ
        results[name] = {"n": len(waves), "beeps": n_beeps, "seconds": round(seconds, 1)}
    return results


def _hints(said: dict[tuple[str, str], Wave], voices: tuple[str, ...], model: VoiceModel) -> dict[str, Any]:
    """How often the length of the first words says "machine"."""
    results = {}
    kinds = {"machine": _GREETINGS, "person, short": _PERSONS[:-1], "person, a long phrase": _PERSONS[-1:]}
    for who, texts in kinds.items():
        heard = [said[voice, text] for voice in voices for text in texts if (voice, text) in said]
        waves = [np.concatenate((wave, rest(1000))) for wave in heard]
        told = [any(each.cause == "greeting" for each in _heard(wave, "ulaw", model)) for wave in waves]
        results[who] = {"n": len(told), "hints": sum(told)}
    return results


def _cost(chosen: argparse.Namespace, speech: Wave) -> dict[str, float]:
    rng = np.random.default_rng(1)
    sounds: dict[str, Wave] = {
        "silence": rest(10_000), "speech": speech, "noise": rng.standard_normal(80_000) * 0.05,
        "one tone": sine((700,), 10_000, -20),
    }  # fmt: skip
    results = {}
    for name, wave in sounds.items():
        pcm: Pcm = decode_alaw(encode_alaw(np.clip(wave * 32767, -32768, 32767).astype(np.int16)))
        windows = [pcm[at : at + WINDOW_SAMPLES] for at in range(0, len(pcm) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES)]
        spent = []
        for _ in range(chosen.repeat):
            detector, begun_ns = BeepDetector(), time.thread_time_ns()
            for window in windows:
                detector.feed(window)
            spent.append((time.thread_time_ns() - begun_ns) / len(windows) / 1000 * 20 / 32)
        results[name] = round(statistics.median(spent), 1)
    return results


if __name__ == "__main__":
    main()
