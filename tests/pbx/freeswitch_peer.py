"""A real FreeSWITCH on loopback, if `freeswitch-peer` has built one, and our bridge as a process beside it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from asterisk_peer import free_port
from peer_process import PeerFailed, PeerProcess, wait_until
from phones import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve().parent / "freeswitch-peer"
PREFIX = ROOT / ".peers" / "freeswitch"
PASSWORD = "change-me"
_READY_S = 30.0
_RTP_PORTS = 200

needs_freeswitch = pytest.mark.skipif(
    not (PREFIX / ".built").exists(),
    reason="no FreeSWITCH in .peers/freeswitch: `tests/pbx/freeswitch-peer build SOURCES` makes one from its sources",
)


class FreeSwitch:
    """One running FreeSWITCH with the files of configs/freeswitch. Extension 716 is 700 with wide band."""

    def __init__(self, folder: Path, server_port: int, last_resort_s: int) -> None:
        self.sip_port, self.esl_port = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
        self._folder = folder
        first = random.randrange(10_000, 30_000, _RTP_PORTS)
        (folder / "peer").write_text(f"{self.esl_port} {PREFIX}\n")
        values = {
            "SIP_PORT": self.sip_port, "ESL_PORT": self.esl_port,
            "RTP_FIRST": first, "RTP_LAST": first + _RTP_PORTS - 1,
            "MEDIA_URL": f"ws://127.0.0.1:{server_port}/media/freeswitch", "LAST_RESORT_S": last_resort_s,
        }  # fmt: skip
        given = [f"{name}={value}" for name, value in values.items()]
        self.process = PeerProcess("freeswitch", ["env", *given, str(SCRIPT), "run", str(folder), str(PREFIX)], folder)

    def command(self) -> list[str]:
        """The words in front of a command of FreeSWITCH's API, instead of `fs_cli -x`."""
        return [str(SCRIPT), "cli", str(self._folder)]

    def cli(self, command: str) -> str:
        """The output of a command of FreeSWITCH's API. Raises PeerFailed."""
        ran = subprocess.run(
            [*self.command(), command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if ran.returncode:
            raise PeerFailed(f"FreeSWITCH said of {command!r}: {(ran.stdout + ran.stderr).strip()[-500:]}")
        return ran.stdout.strip()

    def wait_ready(self) -> None:
        def ready() -> bool:
            if not self.process.running():
                raise PeerFailed(f"FreeSWITCH ended while it started:\n{self.process.written()}")
            with contextlib.suppress(PeerFailed):
                return "RUNNING" in self.cli("sofia status")
            return False

        wait_until(ready, "FreeSWITCH is ready", _READY_S)

    def n_channels(self) -> int:
        return int(self.cli("show channels count").split()[0])

    def log(self, n_chars: int = 6000) -> str:
        return (self._folder / "log" / "freeswitch.log").read_text(errors="replace")[-n_chars:]


@contextmanager
def freeswitch(server_port: int, last_resort_s: int = 60) -> Iterator[FreeSwitch]:
    """Run a FreeSWITCH whose dialplan streams to that server. After the body nothing of it is left."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="freeswitch-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        running = FreeSwitch(folder, server_port, last_resort_s)
        stack.callback(running.process.stop)
        running.wait_ready()
        yield running


class BridgeProcess:
    """telephony-sip-bridge, which a test may kill."""

    def __init__(self, folder: Path, esl_port: int, settings: dict[str, str]) -> None:
        self.http_port = free_port(socket.SOCK_STREAM)
        flags = {
            "server.url": "ws://127.0.0.1:9/", "audiosocket.port": "0", "http.port": str(self.http_port),
            "freeswitch.enabled": "true", "freeswitch.port": str(esl_port), "freeswitch.password": PASSWORD, **settings,
        }  # fmt: skip
        words = [word for name, value in flags.items() for word in ("--set", f"{name}={value}")]
        paths = f"PYTHONPATH={os.pathsep.join(sys.path)}"
        self.process = PeerProcess("bridge", ["env", paths, sys.executable, "-m", "sip_bridge.cli", *words], folder)

    def is_ready(self) -> bool:
        address = f"http://127.0.0.1:{self.http_port}/readyz"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return True
        return False

    def wait_ready(self) -> None:
        wait_until(self.is_ready, "the bridge is ready", TIMEOUT_S)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def log(self) -> str:
        return self.process.written(20_000)


@contextmanager
def bridge_process(switch: FreeSwitch, **settings: str) -> Iterator[BridgeProcess]:
    """Run a bridge and wait until it is connected. `settings` are keys with "__" for the dot."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="bridge-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        given = {name.replace("__", "."): value for name, value in settings.items()}
        running = BridgeProcess(folder, switch.esl_port, given)
        stack.callback(running.process.stop)
        running.wait_ready()
        yield running
