"""`telephony-tts engine status` against a real engine server, and without one."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from telephony_tts.cli.main import main

pytestmark = pytest.mark.slow

TONES = ("--set", "engines.default=fake")


@contextmanager
def engine_server() -> Iterator[str]:
    """A process with `engine serve`, and its address."""
    command = [sys.executable, "-m", "telephony_tts", "engine", "serve", "--listen", "127.0.0.1:0", *TONES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            found = re.search(r" on (127\.0\.0\.1:\d+)$", served.stdout.readline().strip())
            assert found is not None
            yield found[1]
            served.send_signal(signal.SIGTERM)
            assert served.wait(20) == 0
        finally:
            served.kill()


def test_a_server_that_is_ready_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with engine_server() as address:
        assert main(["engine", "status", address]) == 0
        assert re.match(r"ready: \d+ voices?, 0 speaking, 0 waiting, load 0\.\d\d\n$", capsys.readouterr().out)
        assert main(["engine", "status", f"{address},127.0.0.1:1"]) == 0, "one of several is enough"
        assert main(["engine", "status", "--set", f"engines.remote.target={address}"]) == 0


def test_without_a_server_it_fails_within_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # this port does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["engine", "status", address, "--within-s", "0.5"]) == 1
    told = capsys.readouterr().err
    assert "no engine was ready within 0.5 s" in told and address in told


@pytest.mark.parametrize(("given", "says"), [((), "no address; give one such as"), (("nowhere",), "is not an address")])
def test_a_wrong_address_is_refused(given: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "status", *given]) == 2
    assert says in capsys.readouterr().err
