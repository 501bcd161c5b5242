"""A real Asterisk with our server and our bridge: started in order, placed on cores, and stopped.

Asterisk has the configuration that users copy (configs/asterisk), and calls come in at its extensions. The other
programs come from tests/pbx.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.pbx_peers import Asterisk, Bot, Bots, PeerFailed, PeerProcess, free_port, shipped_asterisk, wait_until
from harness.process import cpu_times_s, place

_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EXTENSIONS = {"websocket": "700", "audiosocket": "701", "ari": "702"}
"""The way of the audio to its extension in the shipped dialplan."""
_ARI_PASSWORD = "change-this"
"""The password in the shipped ari.conf."""
_READY_S = 60.0

Placement = Mapping[str, int | None]
"""A process's name to its core; None means all cores."""
_FIRST = "bridge"
"""With "realtime" this process runs before the others. The bridge writes a frame every 20 ms, while the server sends
ahead of time; processes of one real-time priority wait for each other for up to 100 ms."""


@dataclass(frozen=True, slots=True)
class PbxSetup:
    """The running Asterisk, server and bridge. The server dials a bot for each call that comes."""

    asterisk: Asterisk
    bots: Bots
    pids: dict[str, int]

    def next_bot(self, within_s: float = 10.0) -> Bot:
        """The bot of the next call that has come. Raises PeerFailed."""
        try:
            return self.bots.next(within_s)
        except queue.Empty:
            why = f"the server has dialled no bot within {within_s:g} s. Asterisk's log:\n{self.asterisk.log(1500)}"
            raise PeerFailed(why) from None

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by process; `phones` is this process."""
        return {name: cpu_times_s(pid)[0] for name, pid in {**self.pids, "phones": os.getpid()}.items()}


def embedded_voice(port: int, bot_url: str) -> list[str]:
    """The command of the server as `make run` starts it."""
    config = str(_CONFIGS / "server.yaml")
    flags = ["--config", config, "--port", str(port), "--set", f"bot.url={bot_url}"]
    return [sys.executable, "-m", "telephony_tts", "serve", *flags]


def tones(port: int, bot_url: str) -> list[str]:
    """The command of the server with the fake engine, whose tones cost nothing."""
    settings = {"server.port": port, "bot.url": bot_url, "engines.default": "fake"}
    script = str(Path(__file__).resolve().with_name("serve.py"))
    return [sys.executable, script, "--instant", *_flags(settings)]


def bridge_command(server_url: str, port: int, http_port: int, ari_port: int | None = None) -> list[str]:
    """The command of the bridge as users start it; `ari_port` is Asterisk's."""
    settings: dict[str, object] = {
        "server.url": server_url, "audiosocket.port": port, "http.port": http_port, "drain_s": 1,
    }  # fmt: skip
    if ari_port is not None:
        url = f"ws://127.0.0.1:{ari_port}/ari"
        settings |= {"ari.enabled": "true", "ari.url": url, "ari.password": _ARI_PASSWORD}
    config = str(_CONFIGS / "sip_bridge.yaml")
    return [sys.executable, "-m", "sip_bridge.cli", "--config", config, *_flags(settings)]


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@contextmanager
def pbx_setup(engine: str, placement: Placement, priority: int | str = 0) -> Iterator[PbxSetup]:
    """`engine` is "embedded" or "tones"; `placement` has server, bridge and asterisk. Raises PeerFailed."""
    bots = Bots()
    port, audiosocket, http_port = (free_port(socket.SOCK_STREAM) for _ in range(3))
    with ExitStack() as running:
        running.callback(bots.close)
        command = (embedded_voice if engine == "embedded" else tones)(port, bots.url)
        server = running.enter_context(program("server", command, port))
        address = f"ws://127.0.0.1:{port}/media"
        asterisk = running.enter_context(shipped_asterisk(f"{address}/asterisk", f"127.0.0.1:{audiosocket}"))
        command = bridge_command(f"{address}/native", audiosocket, http_port, asterisk.http_port)
        bridge = running.enter_context(program("bridge", command, http_port))
        pids = {"server": server.pid, "bridge": bridge.pid, "asterisk": asterisk.pid}
        for name, pid in pids.items():
            place(pid, placement[name], priority, 2 if name == _FIRST else 1)
        yield PbxSetup(asterisk, bots, pids)


@contextmanager
def program(name: str, command: Sequence[str], http_port: int) -> Iterator[PeerProcess]:
    """Start one of our programs and wait until it is ready. Raises PeerFailed."""
    with tempfile.TemporaryDirectory() as folder:
        process = PeerProcess(name, command, Path(folder))
        try:
            wait_until(lambda: _is_ready(http_port) or not process.running(), f"the {name} is ready", _READY_S)
            if not process.running():
                raise PeerFailed(f"the {name} has ended:\n{process.written()}")
            yield process
        finally:
            process.stop()


def _is_ready(http_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # HTTPError is one
        return False


def placement_words(placement: Placement) -> dict[str, str]:
    """A placement in words, for the result."""
    return {name: "all cores" if core is None else f"core {core}" for name, core in placement.items()}
