"""The environment of the client packages: made once, made again for another list, and drivers that fail loudly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import environment
import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own with a list of one small package; the path of the list."""
    listed = tmp_path / "list.txt"
    listed.write_text("sniffio==1.3.1\n")
    monkeypatch.setattr(environment, "PEERS", tmp_path / "peers")
    monkeypatch.setattr(environment, "REQUIREMENTS", listed)
    return listed


def can_import(python: Path, name: str) -> bool:
    return subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


def test_it_is_made_once_and_again_when_the_list_changed(elsewhere: Path) -> None:
    python = environment.bots_python()
    assert can_import(python, "sniffio")
    (python.parent / "witness").touch()
    assert environment.bots_python() == python
    assert (python.parent / "witness").exists(), "it was made again for the same list"
    elsewhere.write_text("typing-extensions==4.16.0\n")
    assert environment.bots_python() == python
    assert can_import(python, "typing_extensions")
    assert not can_import(python, "sniffio"), "the old list's packages are still there"


def test_an_installation_that_failed_is_tried_again(elsewhere: Path) -> None:
    good = elsewhere.read_text()
    elsewhere.write_text("sniffio==0.0.0\n")
    with pytest.raises(AssertionError, match="the clients were not installed"):
        environment.bots_python()
    elsewhere.write_text(good)
    assert can_import(environment.bots_python(), "sniffio")


def test_a_driver_that_gives_up_says_why_and_what_it_saw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With this interpreter, as a driver of no client needs no client's packages."""
    monkeypatch.setattr(environment, "bots_python", lambda: Path(environment.sys.executable))
    monkeypatch.setattr(environment, "DRIVERS", tmp_path)
    (tmp_path / "reporting.py").symlink_to(environment.HERE / "drivers" / "reporting.py")
    script = tmp_path / "waits.py"
    script.write_text(
        "from reporting import Ear, arguments, report\n"
        "options = arguments(rate=8)\n"
        "ear = Ear(options.rate * 2 / 1000, options.within)\n"
        "print('a client that prints')\n"
        "ear.audio(b'\\x01\\x02', turn=1)\n"
        "for step in options.steps: ear.wait_in_thread(step)\n"
    )
    heard = environment.drive("waits.py", "http://127.0.0.1:1", "hear:100", "--rate", "8")
    assert [(event["event"], event["audio"], event["turn"]) for event in heard] == [("audio", b"\x01\x02", 1)]
    with pytest.raises(AssertionError, match=r"(?s)ended with 1.*\"event\": \"audio\".*gave up on 'wait:done'"):
        environment.drive("waits.py", "http://127.0.0.1:1", "wait:done", "--within", "0.2")
    with pytest.raises(AssertionError, match=r"(?s)longer than 1 s.*\"event\": \"audio\".*a client that prints"):
        environment.drive("waits.py", "http://127.0.0.1:1", "wait:done", "--within", "20", timeout_s=1)
