"""The commands of README.md and README.zh.md, and those of docs/zh that need no telephone, run as a reader would.

tests/e2e/test_wscat.py types the lines for wscat. What would install or fetch is not run here: `make -n` shows what
make would do, and extras of pip are looked up. tests/test_own_voice_pages.py has the commands of a voice of one's own.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import tomllib
import urllib.request
from pathlib import Path

import pytest
from page_commands import ROOT, PageCommands, here, made

from telephony_tts.audio.wav import read_wav

pytestmark = pytest.mark.slow

READMES = pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def spans(page: str) -> list[str]:
    """The code inside the text of a page, without its blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def ran(command: str, folder: Path) -> str:
    done = subprocess.run(
        shlex.split(here(command)), cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@READMES
def test_say_writes_speech_and_doctor_reports(page: str, tmp_path: Path) -> None:
    (say,) = [span for span in spans(page) if span.startswith(".venv/bin/telephony-tts say ")]
    ran(say, tmp_path)
    spoken = read_wav(tmp_path / "out.wav")
    assert (spoken.codec, spoken.rate_hz) == ("ulaw", 8000) and len(spoken.payload) > 8000
    (doctor,) = [span for span in spans(page) if span == ".venv/bin/telephony-tts doctor"]
    assert "hibari" in ran(doctor, tmp_path)


@READMES
def test_run_starts_a_server_that_is_ready(page: str) -> None:
    """In Chinese also the command that loads the Mandarin voice at the start."""
    commands = [PageCommands(ROOT / page).take("^make run")]
    commands += [span for span in spans(page) if span.startswith("make run ")]
    shown = [started(command) for command in commands]
    assert ["voice hibari/heart" in shown[0], *("voice kokoro/" in each for each in shown[1:])] == [True] * len(shown)
    assert len(shown) == (2 if page == "README.zh.md" else 1)


def started(command: str) -> str:
    """The line that says that the server is ready, with another port than the page's; /healthz answers then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = subprocess.Popen(
        [*shlex.split(made(command)), "--port", str(port)], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert served.stdout is not None
        line = next(line for line in served.stdout if "is ready" in line)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            assert answer.status == 200
        return line
    finally:
        served.kill()
        served.communicate()


@READMES
def test_make_and_pip_know_what_the_page_names(page: str) -> None:
    names = [span for span in [*spans(page), *PageCommands(ROOT / page).left] if span.startswith("make ")]
    assert len(names) >= 4
    for name in names:
        assert made(name), name
    extras = [re.search(r"pip install -e '\.\[(\w+)\]'$", span) for span in spans(page) if "pip install" in span]
    assert len(extras) >= 5
    assert [found for found in extras if found is None or found[1] not in EXTRAS] == []


def test_the_chinese_page_shows_how_a_sentence_is_read(tmp_path: Path) -> None:
    shown = ran(PageCommands(ROOT / "docs/zh/asterisk.md").take("say --show"), tmp_path)
    (read,) = [json.loads(line) for line in shown.splitlines()]
    assert "一千二百八十" in read["reading"] and "huan2 kuan3" in read["pinyin"]
