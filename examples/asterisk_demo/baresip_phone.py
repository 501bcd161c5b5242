"""baresip as a telephone: it plays a file and records what it hears, behind its own jitter buffer.

The recording begins with the first packet and has no gaps for lost ones. For tests of gaps use tests/pbx/phones.py.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import wave
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from asterisk_peer import installed
from debian_packages import Unpacked
from peer_process import PeerFailed, PeerProcess, wait_until

from telephony_tts.audio.g711 import Pcm

RATE_HZ = 8000
_SPARE_S = 5.0
_LEAD_S = 0.5
"""Silence before it speaks, so that nothing is lost while the other side connects."""
_TCP_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""
_ENCODINGS = {"ulaw": "pcmu", "alaw": "pcma"}

_CONFIG = """\
poll_method epoll
sip_listen 127.0.0.1:{port}
sip_trans_def udp
net_interface 127.0.0.1
audio_path /nonexistent
audio_player aufile,{folder}/played.wav
audio_source aufile,{folder}/said.wav
audio_alert aufile,/dev/null
audio_srate 8000
audio_channels 1
audio_buffer 20-160
audio_buffer_mode adaptive
ausrc_srate 8000
auplay_srate 8000
rtcp_mux no
jitter_buffer_delay 2-10
rtp_stats no
module_path {modules}
module g711.so
module aufile.so
module sndfile.so
snd_path {folder}
module_tmp account.so
module_app menu.so
"""


class Baresip:
    """One call of the phone."""

    def __init__(self, process: PeerProcess, folder: Path, port: int) -> None:
        self.port = port
        self._process = process
        self._folder = folder

    def wait_ready(self, within_s: float = 10.0) -> None:
        """Wait until it can be called."""
        ready = "baresip is ready"
        wait_until(lambda: ready in self.written() or not self._process.running(), ready, within_s)
        if not self._process.running():
            raise PeerFailed(f"baresip ended while it started:\n{self.written()}")

    def wait_ended(self, within_s: float) -> None:
        """Wait until it has ended by itself and its recording is complete."""
        if not self._process.wait(within_s):
            raise PeerFailed(f"baresip still runs after {within_s:g} s:\n{self.written()}")

    def heard(self) -> Pcm:
        """The samples that it has decoded, after its end. Raises PeerFailed if it has recorded nothing."""
        recordings = sorted(self._folder.glob("dump-*-dec.wav"))
        if not recordings:
            raise PeerFailed(f"baresip recorded nothing:\n{self.written()}")
        with wave.open(str(recordings[-1])) as recording:
            if (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) != (RATE_HZ, 1, 2):
                raise PeerFailed(f"baresip recorded something else than 8 kHz mono: {recording.getparams()}")
            return np.frombuffer(recording.readframes(recording.getnframes()), "<i2").astype(np.int16)

    def written(self) -> str:
        """The end of its output."""
        return self._process.written()

    def listening(self) -> set[int]:
        """The TCP ports on which it listens."""
        opened = Path(f"/proc/{self._process.pid}/fd")
        inodes = {os.readlink(each).removeprefix("socket:[").rstrip("]") for each in opened.iterdir()}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == _TCP_LISTEN and row[9] in inodes}


@contextmanager
def baresip(sip_port: int, extension: str | None, said: Pcm, seconds: int, *, codec: str = "ulaw") -> Iterator[Baresip]:
    """A phone that plays `said` (8 kHz) half a second after it is connected, and ends `seconds` after its start.

    It calls `extension`, or answers every call if that is None.

    Raises PeerFailed, debian_packages.PeerUnavailable.
    """
    unpacked = installed()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="baresip-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        port = free_sip_port()
        _write_settings(folder, unpacked, port, sip_port, codec)
        _write_speech(folder / "said.wav", said, seconds + _SPARE_S)
        # baresip needs the slash for commands of more than one letter.
        dial = [] if extension is None else ["-e", f"/dial sip:{extension}@127.0.0.1:{sip_port}"]
        options = ["-4", "-f", str(folder), "-n", "127.0.0.1", "-t", str(seconds), *dial]
        process = PeerProcess("baresip", unpacked.command("usr/bin/baresip", *options), folder)
        stack.callback(process.stop)
        yield Baresip(process, folder, port)


def free_sip_port() -> int:
    """A port that is free for UDP and TCP, and free as the next port for TLS, which baresip 1.1 always binds.

    It lies below the kernel's own choices and above the RTP ports of `asterisk_peer`, so that nothing else takes it
    before baresip starts.
    """
    for _ in range(50):
        port = random.randrange(30_200, 32_700, 2)
        wanted = ((socket.SOCK_DGRAM, port), (socket.SOCK_STREAM, port), (socket.SOCK_STREAM, port + 1))
        with ExitStack() as probes:
            try:
                for kind, number in wanted:
                    probes.enter_context(socket.socket(socket.AF_INET, kind)).bind(("127.0.0.1", number))
            except OSError:
                continue
            return port
    raise PeerFailed("no free pair of ports for baresip's SIP and TLS between 30200 and 32700")


def _write_settings(folder: Path, unpacked: Unpacked, port: int, sip_port: int, codec: str) -> None:
    modules = unpacked.folder / "usr" / "lib" / "baresip" / "modules"
    (folder / "config").write_text(_CONFIG.format(port=port, folder=folder, modules=modules))
    (folder / "accounts").write_text(
        f"<sip:phone@127.0.0.1:{sip_port}>;regint=0;audio_codecs={_ENCODINGS[codec]};ptime=20;answermode=auto\n"
    )
    (folder / "contacts").write_text("")


def _write_speech(path: Path, said: Pcm, seconds: float) -> None:
    """Write a file that is longer than the call: baresip hangs up at the end of the file."""
    lead = np.zeros(round(_LEAD_S * RATE_HZ), np.int16)
    rest = np.zeros(max(0, round(seconds * RATE_HZ) - len(lead) - len(said)), np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(np.concatenate([lead, said, rest]).astype("<i2").tobytes())
