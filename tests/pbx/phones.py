"""Telephones with exact timing: sipp, which is not ours, does the signalling, our own end the RTP.

    with exchange() as media, calling(media, asterisk.sip_port, "echo") as (phone,):
        phone.wait_answered()
        phone.rtp.say(encode_ulaw(speech))
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asterisk_peer import free_port, installed
from peer_process import PeerFailed, PeerProcess, wait_until
from rtp_end import DTMF_PAYLOAD_TYPE, PAYLOAD_TYPES, RtpEnd, RtpExchange

TIMEOUT_S = 10.0
_END_S = 3.0
_N_TRIES = 3
_SCENARIOS = Path(__file__).resolve().parent / "sipp_scenarios"
_ENCODINGS = {"ulaw": "PCMU", "alaw": "PCMA", "g722": "G722"}
_REFUSALS = (400, 401, 403, 404, 408, 480, 481, 484, 486, 487, 488, 500, 501, 502, 503, 504, 600, 603)

_TOLD = """\
{method} sip:phone@127.0.0.1:{port} SIP/2.0\r
Via: SIP/2.0/UDP 127.0.0.1:{own_port};branch=z9hG4bK{own_port}\r
From: <sip:test@127.0.0.1>;tag=test\r
To: <sip:phone@127.0.0.1:{port}>\r
Call-ID: {call_id}\r
CSeq: 1000 {method}\r
{headers}Content-Length: 0\r
\r
"""


class Phone:
    """One call of a phone. Times are monotonic nanoseconds, None until it happens."""

    def __init__(self, rtp: RtpEnd, sip_port: int, silent: bool) -> None:
        self.rtp = rtp
        self.answered_ns: int | None = None
        self.ended_ns: int | None = None
        self.refused: int | None = None
        """SIP's status code, if the other side did not take the call."""
        self.failed: str | None = None
        """What went wrong, if the call did not end properly."""
        self.process: PeerProcess
        """The sipp process, which it shares with the other phones of its line."""
        self._silent = silent
        self._sip_port = sip_port
        self._call_id: str | None = None
        self._hanging_up = False
        self._cseq = self._agreed = 1

    def wait_answered(self, within_s: float = TIMEOUT_S) -> None:
        """Wait for the answer. Raises PeerFailed, also if the call was refused."""
        wait_until(lambda: self.answered_ns is not None or self._over(), "the call is answered", within_s)
        if self.answered_ns is None:
            raise PeerFailed(f"the call was not answered: {self.refused or self.failed or 'it ended'}")

    def wait_ended(self, within_s: float = TIMEOUT_S) -> None:
        """Wait until one side has hung up and the other confirmed. Raises PeerFailed if the call ended otherwise."""
        wait_until(self._over, "the call has ended", within_s)
        if self.failed is not None:
            raise PeerFailed(self.failed)

    def wait_heard(self, n_packets: int, within_s: float = TIMEOUT_S) -> None:
        """Wait for this many packets of audio."""
        wait_until(lambda: len(self.rtp.audio_packets()) >= n_packets, f"{n_packets} packets of audio", within_s)

    def wait_said(self, within_s: float = TIMEOUT_S) -> None:
        """Wait until everything queued has been sent."""
        wait_until(lambda: self.rtp.n_queued() == 0, "all is said", within_s)

    def hang_up(self) -> None:
        """Hang up from this side; the call must have been answered."""
        if self.answered_ns is None:
            raise PeerFailed("a call that was not answered cannot be hung up")
        if self._over() or self._hanging_up:
            return
        self._hanging_up = True
        self.rtp.stop()
        self._tell("INFO")

    def hold(self, direction: str = "sendonly") -> None:
        """Put the call on hold by a re-INVITE, and send nothing."""
        self.rtp.pause()
        self._ask(Direction=direction)

    def unhold(self) -> None:
        """Take the call back."""
        self._ask(Direction="sendrecv")
        self.rtp.go_on()

    def transfer(self, extension: str) -> None:
        """Transfer the other side to an extension of its own, without asking there first."""
        self._ask(Transfer=extension)

    def _ask(self, **what: str) -> None:
        """Have sipp send a request in the call, and wait until the other side has agreed."""
        self._cseq += 1
        self._tell("MESSAGE", **what, CSeq=str(self._cseq))
        wait_until(lambda: self._agreed == self._cseq or self._over(), "the other side agrees", TIMEOUT_S)

    def _tell(self, method: str, **headers: str) -> None:
        """Tell sipp, outside of any call, what this phone does next."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as messenger:
            messenger.bind(("127.0.0.1", 0))
            lines = "".join(f"X-{name}: {value}\r\n" for name, value in headers.items())
            told = _TOLD.format(
                method=method, headers=lines, port=self._sip_port, own_port=messenger.getsockname()[1],
                call_id=self._call_id,
            )  # fmt: skip
            messenger.sendto(told.encode(), ("127.0.0.1", self._sip_port))

    def _over(self) -> bool:
        return self.ended_ns is not None or self.failed is not None

    # ------------------------------------------------------------------- what sipp reports, in the exchange's thread

    def _invited(self, call_id: str) -> None:
        self._call_id = call_id

    def _answered(self, port: str) -> None:
        self.answered_ns = time.monotonic_ns()
        self.rtp.start(int(port), silent=self._silent)

    def _agreed_to(self, cseq: str) -> None:
        self._agreed = int(cseq)

    def _refused(self, code: str) -> None:
        self.refused = int(code)

    def _ended(self, _: str) -> None:
        self.rtp.stop()
        self.ended_ns = time.monotonic_ns()

    def _lost(self, why: str) -> None:
        if not self._over():
            self.rtp.stop()
            self.failed = why


@contextmanager
def calling(
    media: RtpExchange, sip_port: int, *extensions: str, codec: str = "ulaw", silent: bool = False
) -> Iterator[list[Phone]]:
    """A phone for each extension, which calls it at once. All calls end with the body.

    `silent` phones send nothing while they have nothing to say. Raises PeerFailed, debian_packages.PeerUnavailable.
    """
    lines = [f"{{port}};{extension}" for extension in extensions]
    with _sipp(media, "caller.xml", sip_port, lines, codec, silent, {}) as (phones, _):
        yield phones


@contextmanager
def waiting(
    media: RtpExchange, sip_port: int, n_phones: int = 1, *, codec: str = "ulaw", silent: bool = False, ring_ms: int = 0
) -> Iterator[tuple[list[Phone], int]]:
    """Phones that answer calls of the Asterisk at `sip_port`, and the port they listen at, one number for all.

    The first call is the first phone's. Otherwise like `calling`.
    """
    with _sipp(media, "callee.xml", sip_port, ["{port}"] * n_phones, codec, silent, {"RING_MS": str(ring_ms)}) as line:
        yield line


@contextmanager
def _sipp(
    media: RtpExchange, scenario: str, sip_port: int, lines: list[str], codec: str, silent: bool, values: dict[str, str]
) -> Iterator[tuple[list[Phone], int]]:
    unpacked = installed()
    n = len(lines)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="phones-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ends = [RtpEnd(media, codec) for _ in lines]
        for end in ends:
            stack.callback(end.close)
        own_port = free_port(socket.SOCK_DGRAM)  # behind the ends, which would take it before sipp does
        phones = [Phone(end, own_port, silent) for end in ends]
        calls = [line.format(port=end.port) for line, end in zip(lines, ends, strict=True)]
        (folder / "calls.csv").write_text("\n".join(["SEQUENTIAL", *calls, ""]))
        (folder / "scenario.xml").write_text(_filled((_SCENARIOS / scenario).read_text(), codec, values))
        outgoing = scenario == "caller.xml"
        if outgoing:
            for number, phone in enumerate(phones, 1):
                phone._invited(f"{number}-{folder.name}")
        told_read, told_write = os.pipe()
        stack.callback(os.close, told_read)
        try:
            process = PeerProcess(
                "sipp",
                unpacked.command(
                    "usr/bin/sipp", f"127.0.0.1:{sip_port}", "-i", "127.0.0.1", "-p", str(own_port), "-nostdin",
                    "-sf", "scenario.xml", "-inf", "calls.csv", "-m", str(n), "-l", str(n), "-r", str(max(10, n)),
                    "-cid_str", f"%u-{folder.name}", "-trace_logs", "-log_file", f"/dev/fd/{told_write}",
                    "-trace_err", "-error_file", "errors",
                ),
                folder, pass_fds=[told_write],
            )  # fmt: skip
        finally:
            os.close(told_write)
        stack.callback(process.stop)
        os.set_blocking(told_read, False)
        for phone in phones:
            phone.process = process
        ear = _Ear(media, told_read, phones, folder)
        media.watch(told_read, ear.read)
        stack.callback(media.unwatch, told_read)
        if not outgoing:
            wait_until(lambda: _listens(own_port) or not process.running(), "sipp listens", TIMEOUT_S)
            if not process.running():
                raise PeerFailed(f"sipp does not listen:\n{ear.errors()}\n{process.written(1000)}")
        stack.callback(_end_calls, phones, process)
        yield phones, own_port


def _end_calls(phones: list[Phone], process: PeerProcess) -> None:
    """Hang up the answered calls. sipp cancels the calls that are still ringing."""
    for phone in phones:
        if phone.answered_ns is not None:
            phone.hang_up()
    with contextlib.suppress(PeerFailed):
        wait_until(lambda: all(phone._over() for phone in phones if phone.answered_ns), "all have hung up", _END_S)
    if not all(phone._over() for phone in phones):
        for _ in range(2):
            process.signal(signal.SIGUSR1)
            process.wait(0.2)
    process.wait(_END_S)


class _Ear:
    """Reads sipp's log, a line for each thing that happens to a call."""

    def __init__(self, media: RtpExchange, descriptor: int, phones: list[Phone], folder: Path) -> None:
        self._media = media
        self._descriptor = descriptor
        self._phones = phones
        self._folder = folder
        self._text = ""

    def read(self) -> None:
        try:
            data = os.read(self._descriptor, 65_536)
        except BlockingIOError:
            return
        if not data:  # sipp has ended
            self._media.unwatch(self._descriptor)
            for phone in self._phones:
                phone._lost(f"sipp gave the call up:\n{self.errors()}")
            return
        *lines, self._text = (self._text + data.decode(errors="replace")).split("\n")
        for line in lines:
            what, _, rest = line.strip().partition(" ")
            number, _, value = rest.partition(" ")
            if what in ("invited", "answered", "agreed_to", "refused", "ended"):
                getattr(self._phones[int(number) - 1], f"_{what}")(value.strip())

    def errors(self) -> str:
        path = self._folder / "errors"
        return path.read_text(errors="replace")[-1500:] if path.exists() else "(sipp told no error)"


def _filled(scenario: str, codec: str, values: dict[str, str]) -> str:
    kind = PAYLOAD_TYPES[codec]
    description = [
        "v=0", "o=phone 1 1 IN IP4 [local_ip]", "s=-", "c=IN IP4 [local_ip]", "t=0 0",
        f"m=audio [field0] RTP/AVP {kind} {DTMF_PAYLOAD_TYPE}",
        f"a=rtpmap:{kind} {_ENCODINGS[codec]}/8000", f"a=rtpmap:{DTMF_PAYLOAD_TYPE} telephone-event/8000",
        f"a=fmtp:{DTMF_PAYLOAD_TYPE} 0-15", "a=ptime:20", "a=sendrecv",
    ]  # fmt: skip
    refusals = [
        f'<recv response="{code}" optional="true" next="refused">'
        f'<action><log message="refused [call_number] {code}"/></action></recv>'
        for code in _REFUSALS
    ]
    changed = [
        line.replace("phone 1 1", "phone 1 [$number]").replace("sendrecv", "[$direction]") for line in description
    ]
    filled = {
        "SDP": "\n      ".join(description), "CHANGED_SDP": "\n      ".join(changed),
        "REFUSALS": "\n  ".join(refusals), **values,
    }  # fmt: skip
    for name, value in filled.items():
        scenario = scenario.replace(f"@{name}@", value)
    return scenario


def _listens(port: int) -> bool:
    """Whether any process has this UDP port, as the kernel lists it."""
    wanted = f":{port:04X} "
    return any(wanted in line for line in Path("/proc/net/udp").read_text().splitlines()[1:])
