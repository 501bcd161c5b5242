"""benchmarks/barge_in_by_voice.py: its sounds, its figures, and a tiny run on the recorded prompts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import barge_in_by_voice as benchmark
from harness import telephone_sound as sound

pytestmark = pytest.mark.slow


def test_levels_are_those_of_the_telephone_network() -> None:
    """0 dBm0 is a sine of -3.17 dBFS (G.711)."""
    sine = 10 ** (-3.17 / 20) * np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
    assert sound.loudness_dbm0(sine) == pytest.approx(0, abs=0.02)
    assert sound.loudness_dbm0(sound.at_level(sine, -25)) == pytest.approx(-25, abs=0.01)


@pytest.mark.parametrize("name", sorted(sound.NOISES.keys() - {"babble", "music on hold", "distant speech"}))
def test_a_generated_noise_has_its_length_and_level(name: str) -> None:
    wave = sound.noise(name, 3, -25)
    assert len(wave) == 3 * 8000 and sound.loudness_dbm0(wave) == pytest.approx(-25, abs=0.1)


def test_an_echo_is_late_and_weak_and_each_sentence_of_it_a_little_later() -> None:
    wave = 0.1 * np.sin(2 * np.pi * 400 * np.arange(32_000) / 8000)
    wave[12_000:16_000] = 0
    echo = sound.echo(wave, 300, 12)
    assert sound.loudness_dbm0(echo) == pytest.approx(sound.loudness_dbm0(wave) - 12, abs=0.5)
    is_loud = np.abs(echo) > 0.01
    begins = [int(np.argmax(is_loud)), 15_000 + int(np.argmax(is_loud[15_000:]))]
    assert all(0 <= begin - at <= 180 for begin, at in zip(begins, (2400, 18_400), strict=True))


def test_a_caller_is_missed_if_nothing_stops_the_bot_until_half_a_second_behind_the_prompt() -> None:
    calls = [benchmark.Call(b"", b"", 5000.0, 7000.0) for _ in range(4)]
    figures = benchmark._heard(calls, [[5240.0, 6000.0], [4000.0, 5300.0], [4990.0], [7020.0]])
    assert figures == {"callers": 4, "missed": 2, "p50_ms": 270, "p90_ms": 294}


@pytest.mark.peer
def test_a_tiny_run_writes_the_figures_of_the_product(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, benchmark.__file__, "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    results = {result["case"]: result["rules"]["ours"] for result in json.loads(out.read_text())["results"]}
    assert results["silence -20"]["missed"] == 0 and results["only hum -25"]["false"] == 0
