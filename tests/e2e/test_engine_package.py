"""An engine of another package, installed by pip: it speaks in the real server, and its settings have errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import served

from telephony_tts.audio.wav import read_wav

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HZ = 700.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that has the example package."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "examples" / "engine_package", source)  # a build writes beside its source
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(target), str(source)], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def telephony_tts(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "telephony_tts", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def test_it_speaks_in_the_real_server(
    installed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", installed["PYTHONPATH"])
    own = ("--set", "engines.default=beep", "--set", f"engines.beep.hz={HZ}")
    with served.process(*own, log=tmp_path / "log") as (_, port):
        address = f"http://127.0.0.1:{port}/tts/stream?text=One%20two%20three."
        with urllib.request.urlopen(address, timeout=20) as answer:
            (tmp_path / "heard.wav").write_bytes(answer.read())
    heard = read_wav(str(tmp_path / "heard.wav"))
    samples = np.frombuffer(heard.payload, np.int16).astype(float)
    spectrum = np.abs(np.fft.rfft(samples))
    assert abs(spectrum.argmax() * heard.rate_hz / len(samples) - HZ) < 10
    loud = np.abs(samples) > 1_000
    n_beeps = np.count_nonzero(np.diff(np.flatnonzero(loud)) > heard.rate_hz * 0.03) + 1
    assert n_beeps == 3, "a beep for each word"


def test_its_settings_are_read_as_strictly_as_ours(installed: dict[str, str]) -> None:
    wrong = telephony_tts(installed, "voices", "--set", "engines.beep.hz=1", "--set", "engines.default=beep")
    assert wrong.returncode == 2 and "engines.beep.hz: 1 is wrong; expected a number from 100 to 3000" in wrong.stderr
    listed = telephony_tts(installed, "voices", "--set", "engines.default=beep", "--set", "engines.hibari.workers=0")
    assert "beep/sine " in listed.stdout and listed.stderr == ""


def test_without_the_package_its_name_is_an_error(installed: dict[str, str]) -> None:
    plain = {**installed, "PYTHONPATH": str(ROOT)}
    refused = telephony_tts(plain, "voices", "--set", "engines.default=beep")
    assert refused.returncode == 2 and "engines.default: 'beep' is wrong; expected one of hibari, " in refused.stderr


def test_two_packages_with_an_engine_of_one_name_are_refused(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "twin-1.0.dist-info").mkdir()
    (tmp_path / "twin-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: twin\nVersion: 1.0\n")
    points = "[telephony_tts.engines]\ntwin = beep_engine:PLUGIN\n"
    (tmp_path / "twin-1.0.dist-info" / "entry_points.txt").write_text(points)
    both = {**installed, "PYTHONPATH": os.pathsep.join([str(tmp_path), installed["PYTHONPATH"]])}
    refused = telephony_tts(both, "voices")
    why = "engines.beep: two installed packages have an engine of this name; uninstall one of them"
    assert refused.returncode == 2 and why in refused.stderr
