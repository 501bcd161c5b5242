"""A real Asterisk on loopback, for the demo and the tests: Debian's packages, no root, in a temporary folder."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import debian_packages
from debian_packages import Unpacked
from peer_process import PeerFailed, PeerProcess, wait_until

CONFIGURATION = Path(__file__).resolve().parent / "asterisk_conf"
_PEERS = Path(__file__).resolve().parents[2] / ".peers"
# One folder for all: the phones share most of Asterisk's libraries. Debian 12 has no Asterisk: use a later suite.
_PACKAGES = ("asterisk", "sip-tester", "baresip-core")
_SUITE = "forky"

_NOWHERE = "127.0.0.1:1"
"""An address where nothing listens, for everything that a test does not name."""

_READY_S = 20.0
_CLI_S = 5.0
_N_RTP_PORTS = 400
_OWN_PORTS = range(30_000, 32_768)
"""Linux chooses ports from 32768 on for sockets that do not ask for one. It would give away a port of ours while its
owner restarts, or before its owner has bound it."""
_N_TRIES = 3
_PLACEHOLDER = re.compile(r"@([A-Z][A-Z_]*)@")


class PortTaken(PeerFailed):
    """Asterisk could not bind one of its ports, and would run without it."""


def installed() -> Unpacked:
    """Asterisk and the phones, unpacked on first use. Raises debian_packages.PeerUnavailable."""
    unpacked = debian_packages.install(_PEERS / "asterisk", _PACKAGES, _SUITE)
    english = unpacked.folder / "usr" / "share" / "asterisk" / "sounds" / "en"
    if not english.is_symlink():  # a maintainer script would create it
        scratch = english.with_name(f"en.{random.getrandbits(32):x}")
        scratch.symlink_to("en_US_f_Allison")
        scratch.replace(english)
    return unpacked


class Asterisk:
    """One running Asterisk.

    `sip_port` accepts calls of every phone on loopback into the context `phones` (asterisk_conf/extensions.conf).
    `http_port` has ARI (application `tts`, user and password `tts`) and incoming WebSockets.
    """

    def __init__(
        self, unpacked: Unpacked, folder: Path, values: Mapping[str, str], configuration: Sequence[Path]
    ) -> None:
        self.folder = folder
        self._unpacked = unpacked
        self._values = dict(values)
        self._configuration = tuple(configuration)
        for part in ("etc", "log", "cache", "varlib/agi-bin", "varlib/keys", "spool/tmp", "spool/recording"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self._render()
        self._process = PeerProcess("asterisk", self.command("-f"), folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def process(self) -> PeerProcess:
        """The process, for tests that send it signals or watch it end."""
        return self._process

    @property
    def sip_port(self) -> int:
        return int(self._values["SIP_PORT"])

    @property
    def http_port(self) -> int:
        return int(self._values["HTTP_PORT"])

    def cli(self, command: str) -> str:
        """The output of a command of Asterisk's console. Raises PeerFailed if Asterisk does not answer."""
        try:
            ran = subprocess.run(
                self.command("-rx", command), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=_CLI_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"Asterisk did not answer {command!r} within {_CLI_S:g} s") from None
        if ran.returncode:
            raise PeerFailed(f"Asterisk's console said of {command!r}: {(ran.stdout + ran.stderr).strip()[-500:]}")
        return ran.stdout

    def channels(self) -> list[str]:
        """The names of the live channels."""
        concise = self.cli("core show channels concise")
        return [line.partition("!")[0] for line in concise.splitlines() if "!" in line]

    def wait_for_no_channel(self, within_s: float = 5.0) -> None:
        """Wait until no channel is left. Raises PeerFailed with those that are."""
        try:
            wait_until(lambda: not self.channels(), "no channel left", within_s)
        except PeerFailed:
            raise PeerFailed(f"channels left after {within_s:g} s: {self.channels()}\n{self.log()}") from None

    def variable(self, name: str) -> str:
        """A global variable of the dialplan, empty if it is not set."""
        found = re.search(rf"^ +{re.escape(name)}=(.*)$", self.cli("dialplan show globals"), re.M)
        return found[1].strip() if found else ""

    def log(self, n_chars: int = 4000) -> str:
        """The end of the log, with the steps of the dialplan and the received digits."""
        path = self.folder / "log" / "full"
        return path.read_text(errors="replace")[-n_chars:] if path.exists() else self._process.written(n_chars)

    def complaints(self) -> list[str]:
        """The warnings and errors in the log."""
        return [line for line in self.log(1 << 20).splitlines() if re.search(r"\] (WARNING|ERROR)\[", line)]

    def configure(self, **values: str) -> None:
        """Set other values for the names in the configuration files and reload them; live calls are unchanged."""
        self._values.update(values)
        self._render()
        for command in ("module reload res_websocket_client.so", "dialplan reload"):
            self.cli(command)

    def wait_ready(self) -> None:
        """Wait until Asterisk has started. Raises PeerFailed, or PortTaken."""

        def ready() -> bool:
            if not self._process.running():
                raise PeerFailed(f"Asterisk ended while it started:\n{self._process.written()}")
            if not (self.folder / "asterisk.ctl").exists():
                return False
            try:
                return "fully booted" in self.cli("core waitfullybooted")
            except PeerFailed:
                return False

        try:
            wait_until(ready, "Asterisk is ready", _READY_S)
        except PeerFailed as error:
            raise PeerFailed(f"{error}\n{self._process.written()}") from None
        taken = [line for line in self.complaints() if "Address already in use" in line]
        if taken:
            raise PortTaken("\n".join(taken))

    def stop(self) -> None:
        """End Asterisk by its process id, even if it hangs."""
        self._process.stop(self._ask_to_stop)

    def _ask_to_stop(self) -> None:
        # The console may end with Asterisk or hang. Whether Asterisk has ended is checked afterwards.
        with contextlib.suppress(PeerFailed):
            self.cli("core stop now")

    def command(self, *arguments: str) -> list[str]:
        """The words that run the program `asterisk` with this Asterisk's configuration."""
        return self._unpacked.command("usr/sbin/asterisk", "-C", str(self.folder / "etc" / "asterisk.conf"), *arguments)

    def _render(self) -> None:
        paths = [path for folder in self._configuration for path in sorted(folder.glob("*.conf"))]
        texts = {path.name: path.read_text() for path in paths}
        missing = sorted({name for text in texts.values() for name in _PLACEHOLDER.findall(text)} - set(self._values))
        if missing:
            raise PeerFailed(f"the Asterisk configuration needs values for {', '.join(missing)}")
        for name, text in texts.items():
            filled = _PLACEHOLDER.sub(lambda found: self._values[found[1]], text)
            (self.folder / "etc" / name).write_text(filled)


@contextmanager
def asterisk(configuration: Sequence[Path] = (), **values: str) -> Iterator[Asterisk]:
    """Run an Asterisk. After the body nothing of it is left, even if the body raises.

    `values` fill the names between at signs in the configuration: SIP_PORT, HTTP_PORT, RTP_FIRST and RTP_LAST (free
    ports by default), MEDIA_URI (the address that chan_websocket dials) and AUDIOSOCKET (host:port). Files in the
    folders of `configuration` replace those of the same name. Raises PeerFailed, debian_packages.PeerUnavailable.
    """
    unpacked = installed()
    for n_left in reversed(range(_N_TRIES)):
        with ExitStack() as stack:
            # A short path, not the folder of the test: the path of a Unix socket has at most 107 characters.
            folder = Path(tempfile.mkdtemp(prefix="asterisk-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            chosen = {
                **_free_ports(),
                "MEDIA_URI": f"ws://{_NOWHERE}/media",
                "AUDIOSOCKET": _NOWHERE,
                **values,
                "RUN": str(folder),
                "PREFIX": str(unpacked.folder),
            }
            running = Asterisk(unpacked, folder, chosen, [CONFIGURATION, *configuration])
            stack.callback(running.stop)
            try:
                running.wait_ready()
            except PortTaken:
                # Another process took a port that was free a moment ago: try others. A given port may become free.
                if not n_left:
                    raise
                continue
            yield running
            return


def _free_ports() -> dict[str, str]:
    first = _free_rtp_range()
    return {
        "SIP_PORT": str(free_port(socket.SOCK_DGRAM)),
        "HTTP_PORT": str(free_port(socket.SOCK_STREAM)),
        "RTP_FIRST": str(first),
        "RTP_LAST": str(first + _N_RTP_PORTS - 1),
    }


def free_port(kind: socket.SocketKind) -> int:
    """A port of loopback that is free now, and that no socket gets unless it asks for this very port."""
    for port in random.SystemRandom().sample(_OWN_PORTS, len(_OWN_PORTS)):
        with socket.socket(socket.AF_INET, kind) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PeerFailed(f"no free port between {_OWN_PORTS[0]} and {_OWN_PORTS[-1]}")


def _free_rtp_range() -> int:
    """The first port of a free range below the kernel's own choices. Asterisk skips ports that are taken later."""
    for _ in range(50):
        first = random.randrange(10_000, 30_000, _N_RTP_PORTS)
        with ExitStack() as probes:
            try:
                for port in range(first, first + _N_RTP_PORTS, 10):
                    probes.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise PeerFailed("no free range of UDP ports for RTP between 10000 and 30000")
