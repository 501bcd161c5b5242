"""The examples that README and examples/README.md show, each run against a real server as a user would."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
import urllib.parse
import urllib.request
import wave
from collections.abc import Iterator
from pathlib import Path

import environment
import numpy as np
import numpy.typing as npt
import pytest
from rig import decoded
from served import process
from twilio_peer import calling

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPOKEN = "Hello, this is your bank. Your balance is forty two dollars."
pytestmark = [pytest.mark.peer, pytest.mark.slow]

Pcm = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with process("--set", "engines.default=hibari", "--set", "engines.hibari.workers=2") as (_, port):
        yield port


def run(*command: str | Path, folder: Path, timeout_s: float = 60) -> str:
    ended = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def read_wav(path: Path) -> tuple[Pcm, int]:
    with wave.open(str(path)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32)
        return pcm, file.getframerate()


def rendered(port: int, text: str, rate_hz: int) -> Pcm:
    """The same text by another way: `/tts/stream`."""
    query = urllib.parse.urlencode({"text": text, "format": "pcm", "sample_rate": rate_hz})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/tts/stream?{query}", timeout=30) as answer:
        return np.frombuffer(answer.read(), "<i2").astype(np.float32)


def assert_same_speech(one: Pcm, other: Pcm) -> None:
    """The same samples but for silence at the end."""
    n = min(one.size, other.size)
    assert n > 8_000 and abs(one.size - other.size) < 0.1 * n
    assert np.corrcoef(one[:n], other[:n])[0, 1] > 0.99


def test_the_native_bot_learns_what_was_heard(port: int, tmp_path: Path) -> None:
    shown = run(sys.executable, EXAMPLES / "bot_native.py", "--server", f"ws://127.0.0.1:{port}", folder=tmp_path)
    lines = shown.splitlines()
    assert "sentence t0 Hello, this is your bank." in lines and "done t0 " in lines
    (cleared,) = [line for line in lines if line.startswith("cleared t1")]
    heard = cleared.removeprefix("cleared t1").strip()
    whole = "Your balance is forty two dollars and fifty cents today. Anything else?"
    assert whole.startswith(heard) and heard != whole


@pytest.mark.parametrize(("script", "scheme"), [("bot_pipecat.py", "ws"), ("bot_livekit.py", "http")])
def test_the_bots_of_frameworks_get_the_speech(script: str, scheme: str, port: int, tmp_path: Path) -> None:
    python = environment.bots_python()
    run(python, EXAMPLES / script, "--server", f"{scheme}://127.0.0.1:{port}", folder=tmp_path)
    pcm, rate_hz = read_wav(tmp_path / "speech.wav")
    assert_same_speech(pcm, rendered(port, SPOKEN, rate_hz))


@pytest.mark.parametrize(("script", "scheme"), [("bot_pipecat.py", "ws"), ("bot_livekit.py", "http")])
def test_with_a_call_the_carrier_gets_the_speech_and_the_bot_silence(
    script: str, scheme: str, port: int, tmp_path: Path
) -> None:
    python = environment.bots_python()
    command = [python, EXAMPLES / script, "--server", f"{scheme}://127.0.0.1:{port}", "--call", "CA1"]

    async def main() -> list[bytes]:
        async with calling(f"ws://127.0.0.1:{port}/media/twilio", "CA1") as phone:
            await phone.start()
            await asyncio.to_thread(run, *command, folder=tmp_path)
            await phone.hang_up()
            return phone.played

    heard = decoded(asyncio.run(main())).astype(np.float32)
    assert_same_speech(heard, rendered(port, SPOKEN, 8_000))
    silence, _ = read_wav(tmp_path / "speech.wav")
    assert not silence.any() and abs(silence.size - heard.size) < 0.1 * heard.size


def curl_commands() -> list[str]:
    """Each curl command of the page, on one line."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^curl .*$", page, re.MULTILINE)


@pytest.mark.parametrize("command", curl_commands())
def test_the_curl_commands_write_the_speech(command: str, port: int, tmp_path: Path) -> None:
    words = [word.replace(":8080", f":{port}") for word in shlex.split(command)]
    run(*words, "--fail", "--silent", "--show-error", folder=tmp_path)
    data = (tmp_path / "speech.wav").read_bytes()
    assert data[:4] == b"RIFF"
    pcm = np.frombuffer(data[44:], "<i2").astype(np.float32)  # the length in the header is open
    assert_same_speech(pcm, rendered(port, "Hello, this is your bank.", 24_000))


def test_each_example_is_named_and_each_has_a_test() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("__", "README"))}
    assert files == set(re.findall(r"^\| \[([\w.]+)\]", page, re.MULTILINE))
    assert len(curl_commands()) == 2
