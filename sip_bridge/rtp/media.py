"""A call's media as RTP: Asterisk's packets on one side, the server's /media/native on the other, and the pacing.

    Asterisk ── RTP ──► RtpReceiver ──► server        Asterisk ◄── a packet every 20 ms ── SpeechQueue ◄── server
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.ari import messages as a
from sip_bridge.ari.config import AriConfig
from sip_bridge.audiosocket.pacer import FRAME_MS, FRAME_NS, Pacer
from sip_bridge.audiosocket.speech_queue import SpeechQueue
from sip_bridge.config import TtsServerConfig
from sip_bridge.rtp.packets import SAMPLES_PER_MS, RtpReceiver, RtpSender
from telephony_tts import logs
from telephony_tts.audio.g711 import ULAW_SILENCE, decode_ulaw, encode_ulaw
from telephony_tts.clock import NS_PER_MS, NS_PER_S, monotonic_ns

_log = logs.get(__name__)

RATE_HZ = 8_000
_FRAME_SAMPLES = FRAME_MS * SAMPLES_PER_MS
_MAX_QUEUE_MS = 3_000
_MAX_MARKS = 1_000
_MAX_DIGITS_PER_S = 20
_MAX_READ = 32
_MAX_PACKET_BYTES = 2_048
_N_SILENT_AT_END = 5
"""Packets of silence behind the last speech: what a phone still has in its jitter buffer is heard."""

OnOver = Callable[[str, str | None], None]
"""(reason, why)"""


class RtpMedia:
    """Our own end of the RTP. Packets are taken from Asterisk's port alone, and sent to it from where they come in."""

    def __init__(self, ari: AriConfig, server: TtsServerConfig, over: OnOver) -> None:
        self._ari = ari
        self._settings = server
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._remote: tuple[str, int] | None = None
        self._sender = RtpSender(secrets.randbits(16), secrets.randbits(32), secrets.randbits(32))
        self._receiver = RtpReceiver()
        self._queue = SpeechQueue(RATE_HZ, RATE_HZ)
        self._leg: s.ServerLeg | None = None
        self._early_digits: deque[str] = deque(maxlen=_MAX_DIGITS_PER_S)
        self._digits_ns: deque[int] = deque(maxlen=_MAX_DIGITS_PER_S)
        self._pacer: Pacer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._finishing: str | None = None
        self._n_silent = 0
        self._waiting_since_ns: int | None = None
        self._complained: set[str] = set()
        self._counted: dict[str, int] = {}
        self._served: asyncio.Task[None] | None = None
        self.log = _log

    async def open(self) -> dict[str, str]:
        """Take a port; returns what Asterisk is told of it. Raises OSError where there is none."""
        first, last = self._ari.rtp_first_port, self._ari.rtp_last_port
        # Used as it is: a call that is cancelled while a transport is being made would leave one behind.
        self._socket = taken = _bind(self._ari.rtp_host, first, last)
        self._loop.add_reader(taken.fileno(), self._readable)
        host = f"[{self._ari.rtp_host}]" if ":" in self._ari.rtp_host else self._ari.rtp_host
        port = taken.getsockname()[1]
        return {"external_host": f"{host}:{port}", "transport": "udp", "encapsulation": "rtp", "format": "ulaw"}

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        """Asterisk has its end. From now on it hears us, and the server of the call. Raises ValueError."""
        self.log = _log.bind(call=call).limited(logs.LineLimit.of_call())
        host, port = a.variable_of(body, "UNICASTRTP_LOCAL_ADDRESS"), a.variable_of(body, "UNICASTRTP_LOCAL_PORT")
        if not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError("Asterisk does not tell the port of its RTP; is chan_rtp loaded?")
        if host in ("", "0.0.0.0", "::"):
            host = self._ari.asterisk_host
        self._remote = (_numeric(host), int(port))
        self._pacer = Pacer(monotonic_ns())
        self._tick()
        self._served = self._loop.create_task(self._be_served(call, dict(parameters)))

    def digit(self, digit: str) -> None:
        """A digit of the caller; those that come before the server are kept."""
        now_ns = monotonic_ns()
        if len(self._digits_ns) == _MAX_DIGITS_PER_S and now_ns - self._digits_ns[0] < NS_PER_S:
            self._bad("digit_flood", f"more than {_MAX_DIGITS_PER_S} digits in a second; the rest is left out")
            return
        self._digits_ns.append(now_ns)
        if self._leg is not None:
            self._leg.send_digit(digit)
        else:
            self._early_digits.append(digit)

    async def close(self, reason: str) -> None:
        """Leave nothing. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pacer = None
        if self._leg is not None:
            self._leg.leave(reason)
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._served is not None:
            self._served.cancel()
            await asyncio.wait((self._served,))

    # ------------------------------------------------------------ the server

    async def _be_served(self, call: str, parameters: dict[str, str]) -> None:
        try:
            leg = await s.join(self._settings)
            try:
                leg.start(s.LegStart(call, RATE_HZ, FRAME_MS, self._settings.lead_ms, parameters), self._on_server)
                self._leg = leg
                while self._early_digits:
                    leg.send_digit(self._early_digits.popleft())
                await asyncio.wait((leg.left,))
                self._server_left(leg)
            finally:
                leg.leave("hangup")
                await leg.close()
        except s.NotJoined as error:
            self._over(error.reason, str(error))
        except Exception:
            self.log.exception("call_crashed")
            self._over("failed", None)

    def _server_left(self, leg: s.ServerLeg) -> None:
        if leg.close_code in (1000, 1001):
            self._finishing = "finished" if leg.close_code == 1000 else "server_draining"
        else:
            refused = leg.close_code == 1013 or 4000 <= leg.close_code <= 4999
            self._over("server_refused" if refused else "server_lost", f"{leg.close_code} {leg.close_reason}")

    def _on_server(self, message: s.FromServer, now_ns: int) -> None:
        match message:
            case s.ServerSpeech(pcm=pcm):
                if not self._queue.n_queued:
                    self._waiting_since_ns = now_ns
                self._queue.add(pcm)
                if self._queue.queued_ms > _MAX_QUEUE_MS:
                    self._over("queue_overflow", f"{round(self._queue.queued_ms)} ms of speech wait for Asterisk")
            case s.ServerMark(name=name):
                if self._queue.n_marks >= _MAX_MARKS:
                    self._bad("server_mark_flood", f"more than {_MAX_MARKS} marks wait; the rest is left out")
                    return
                self._queue.mark(name)
                self._report_marks()
            case s.ServerClear():
                self._queue.clear()
                self._waiting_since_ns = None
            case s.ServerComplaint(code=code, message=text):
                self.log.warning("server_complains", code=code, why=text)
            case s.BadServerMessage(kind=kind, why=why):
                self._bad(kind, why)

    def _report_marks(self) -> None:
        if self._leg is not None and self._queue.n_marks:
            for name in self._queue.reached():
                self._leg.report_mark(name)

    # ---------------------------------------------------------- to Asterisk

    def _tick(self) -> None:
        self._timer = None
        if self._pacer is None:
            return
        try:
            self._send_due(monotonic_ns())
        except Exception:
            self.log.exception("call_crashed")
            self._over("failed", None)
        if self._pacer is not None:
            wait_ns = self._pacer.next_ns - monotonic_ns() + NS_PER_MS // 2
            self._timer = self._loop.call_later(max(0, wait_ns) / NS_PER_S, self._tick)

    def _send_due(self, now_ns: int) -> None:
        assert self._pacer is not None
        was_ns = self._pacer.next_ns
        n_due, late_ns = self._pacer.due(now_ns)
        if n_due:
            metrics.FRAME_LATENESS_MS.observe(late_ns / NS_PER_MS)
            for _ in range(n_due):
                self._send_frame(now_ns)
            n_skipped = (self._pacer.next_ns - was_ns) // FRAME_NS - n_due
            self._sender.skip(n_skipped * _FRAME_SAMPLES)
            self._report_marks()
        self._hear(self._receiver.due(now_ns), now_ns)

    def _send_frame(self, now_ns: int) -> None:
        codes = b""
        if self._queue.n_queued:
            metrics.QUEUE_MS.observe(self._queue.queued_ms)
            codes = encode_ulaw(np.frombuffer(self._queue.take(_FRAME_SAMPLES), "<i2").astype(np.int16))
        if codes:
            metrics.SPEECH_FRAMES.inc()
            if self._waiting_since_ns is not None:
                metrics.SPEECH_DELAY_MS.observe((now_ns - self._waiting_since_ns) / NS_PER_MS)
                self._waiting_since_ns = None
            self._n_silent = 0
        else:
            metrics.SILENCE_FRAMES.inc()
            self._n_silent += 1
            if self._finishing is not None and self._n_silent >= _N_SILENT_AT_END:
                self._over(self._finishing, None)
        packet = self._sender.packet(codes.ljust(_FRAME_SAMPLES, ULAW_SILENCE))
        if self._socket is not None and self._remote is not None:
            try:
                self._socket.sendto(packet, self._remote)
            except BlockingIOError:
                pass  # a full buffer is a lost packet, as on any network
            except OSError as error:
                if "not_sent" not in self._complained:
                    self._complained.add("not_sent")
                    self.log.warning("rtp_not_sent", to=self._remote[0], why=error.strerror)

    # -------------------------------------------------------- from Asterisk

    def _readable(self) -> None:
        """Take what has come, and leave the other calls their turn."""
        try:
            for _ in range(_MAX_READ):
                if self._socket is None:
                    return
                try:
                    data, addr = self._socket.recvfrom(_MAX_PACKET_BYTES)
                except OSError:
                    return
                # One that is cut off here is longer than any network takes without fragments.
                self._received(data if len(data) < _MAX_PACKET_BYTES else b"", addr)
        except Exception:
            self.log.exception("call_crashed")
            self._over("failed", None)

    def _received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        now_ns = monotonic_ns()
        if self._remote is None:
            return  # who may send is not known yet
        if addr[1] != self._remote[1] or _address(addr[0]) != self._remote[0]:
            self._bad("rtp_stranger", f"an RTP packet from {addr[0]}:{addr[1]}, which is not Asterisk's end")
            return
        self._hear(self._receiver.feed(data, now_ns), now_ns)
        self._count()

    def _hear(self, codes: bytes, now_ns: int) -> None:
        if not codes or self._leg is None:
            return
        pcm = decode_ulaw(codes).astype("<i2").tobytes()
        if not self._leg.send_audio(pcm):
            metrics.CALLER_BYTES_DROPPED.inc(len(pcm))
        metrics.CALLER_DELAY_MS.observe((monotonic_ns() - now_ns) / NS_PER_MS)

    def _count(self) -> None:
        receiver = self._receiver
        now = {"lost": receiver.n_lost, "late": receiver.n_late, "doubled": receiver.n_doubled}
        for kind, n in now.items():
            metrics.RTP_PACKETS_MISSED.labels(kind).inc(n - self._counted.get(kind, 0))
        self._counted.update(now)
        if receiver.n_unreadable != self._counted.get("unreadable", 0):
            self._counted["unreadable"] = receiver.n_unreadable
            self._bad("rtp_unreadable", "a packet is no RTP, or not in mu-law")

    def _bad(self, kind: str, why: str) -> None:
        metrics.BAD.labels(kind).inc()
        if kind not in self._complained:
            self._complained.add(kind)
            self.log.warning("bad_input", kind=kind, why=why)


def _address(host: str) -> str:
    """An address as the socket tells it."""
    if host == "localhost":
        return "127.0.0.1"
    return host.removeprefix("::ffff:").strip("[]")


def _numeric(host: str) -> str:
    """The address that packets are compared with and sent to; a name would be looked up for each. Raises ValueError."""
    address = _address(host)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        why = f"Asterisk does not tell the address of its RTP; put an IP address into ari.url, not {host[:80]}"
        raise ValueError(why) from None
    return address


def _bind(host: str, first: int, last: int) -> socket.socket:
    """A UDP socket at a free even port (RFC 3550 §11) from `first` to `last`, any where they are 0. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    n_even = (last - first) // 2 + 1
    start = secrets.randbelow(n_even)
    ports = [0] * 20 if not first else [first + first % 2 + 2 * ((start + k) % n_even) for k in range(n_even)]
    for port in ports:
        taken = socket.socket(family, socket.SOCK_DGRAM)
        try:
            if port <= last or not first:
                with contextlib.suppress(OSError):
                    taken.bind((host, port))
                    if taken.getsockname()[1] % 2 == 0:
                        taken.setblocking(False)
                        return taken
        except BaseException:
            taken.close()
            raise
        taken.close()
    raise OSError(f"no free UDP port at {host}" + (f" from {first} to {last}" if first else ""))


def is_port_free(host: str, port: int) -> bool:
    """Whether `host` is an address of this machine and nobody has the UDP port there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True
