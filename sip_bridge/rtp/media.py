"""The media of an ARI call as RTP: Asterisk's packets on one side, the server's /media/native on the other.

    Asterisk ── RTP ──► RtpReceiver ──► ServerSide ──► server
    Asterisk ◄── a packet every 20 ms ── RtpSender ◄── ServerSide ◄── server
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.ari import messages as a
from sip_bridge.ari.config import AriConfig
from sip_bridge.config import TtsServerConfig
from sip_bridge.peer_input import TOO_MANY_DIGITS
from sip_bridge.rtp.codec import rtp_codec
from sip_bridge.rtp.concealment import Concealment
from sip_bridge.rtp.packets import TICKS_PER_MS, RtpAudio, RtpReceiver, RtpSender
from sip_bridge.speech.frame_timer import FrameTimer
from sip_bridge.speech.pacer import FRAME_MS, Pacer
from sip_bridge.speech.server_side import OnDigits, ServerSide
from sip_bridge.speech.speech_queue import SAMPLE_BYTES, SpeechQueue
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns
from telephony_tts.runtime.logs import EventLogger

_log = logs.get(__name__)

_FRAME_TICKS = FRAME_MS * TICKS_PER_MS
_MAX_QUEUE_MS = 3_000
_MAX_READ = 32
_MAX_PACKET_BYTES = 2_048
OnOver = Callable[[str, str | None], None]
"""(reason, why)"""


class RtpMedia:
    """The bridge's end of the RTP. One socket receives packets, from Asterisk's port only, and sends to that port."""

    def __init__(self, ari: AriConfig, server: TtsServerConfig, over: OnOver, on_digits: OnDigits) -> None:
        self._ari = ari
        self._settings = server
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._remote: tuple[str, int] | None = None
        self._use("ulaw")
        self._server = ServerSide(self._end, _log, _MAX_QUEUE_MS, on_digits=on_digits)
        self._packets = FrameTimer(self._send_due, self._crashed)
        self._has_logged_not_sent = False
        self._counted: dict[str, int] = {}
        self._served: asyncio.Task[None] | None = None

    @property
    def log(self) -> EventLogger:
        return self._server.log

    def _use(self, format: str) -> None:
        self._codec = codec = rtp_codec(format)
        self._frame_samples = codec.rate_hz * FRAME_MS // 1000
        self._sender = RtpSender(
            secrets.randbits(16), secrets.randbits(32), secrets.randbits(32), codec.payload_type
        )
        self._receiver = RtpReceiver(codec.payload_type)
        self._concealment = Concealment(codec.rate_hz)

    async def open(self, format: str = "ulaw") -> dict[str, str]:
        """Bind a UDP port; returns the query of channels/externalMedia. Raises OSError if no port is free.

        `format` is one of `rtp.codec.FORMATS`. Raises FormatUnavailable if its codec is not installed.
        """
        self._use(format)
        first, last = self._ari.rtp_first_port, self._ari.rtp_last_port
        # A plain socket: a call that is cancelled while asyncio creates a transport would leave the transport open.
        self._socket = taken = _bind(self._ari.rtp_host, first, last)
        self._loop.add_reader(taken.fileno(), self._on_readable)
        host = f"[{self._ari.rtp_host}]" if ":" in self._ari.rtp_host else self._ari.rtp_host
        port = taken.getsockname()[1]
        return {"external_host": f"{host}:{port}", "transport": "udp", "encapsulation": "rtp", "format": format}

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        """Asterisk has created its end: send to it, and join the server. Raises ValueError for a bad `body`."""
        self._server.log = _log.bind(call=call).limited(logs.LineLimit.of_call())
        host, port = a.variable_of(body, "UNICASTRTP_LOCAL_ADDRESS"), a.variable_of(body, "UNICASTRTP_LOCAL_PORT")
        if not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError("Asterisk does not report the port of its RTP; is chan_rtp loaded?")
        if host in ("", "0.0.0.0", "::"):
            host = self._ari.asterisk_host
        self._remote = (_numeric(host), int(port))
        self._packets.start()
        rate_hz = self._codec.rate_hz
        start = s.LegStart(call, rate_hz, FRAME_MS, self._settings.lead_ms, dict(parameters), dtmf=True)

        async def prepare() -> tuple[s.LegStart, SpeechQueue]:
            return start, SpeechQueue(rate_hz, rate_hz)

        self._served = self._loop.create_task(self._server.serve(self._settings, prepare))

    def digit(self, digit: str) -> None:
        """A digit of the caller. Digits are kept until the server has joined."""
        if not self._server.send_digit(digit, monotonic_ns()):
            self._server.report_bad("digit_flood", TOO_MANY_DIGITS)

    def hold(self, is_on: bool) -> None:
        """The telephone is on hold from now on, or not any more."""
        self._server.send_hold(is_on)

    async def close(self, reason: str) -> None:
        """Leave the server and close the socket. Idempotent."""
        self._packets.stop()
        self._server.leave(reason)
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._served is not None:
            self._served.cancel()
            await asyncio.wait((self._served,))

    def _end(self, reason: str, why: str | None, code: int | None) -> None:
        self._over(reason, why if code is None else f"{code} {why}")

    def _crashed(self) -> None:
        self.log.exception("call_crashed")
        self._over("failed", None)

    # ---------------------------------------------------------- to Asterisk

    def _send_due(self, pacer: Pacer, now_ns: int) -> None:
        n_due, late_ns = pacer.due(now_ns)
        if n_due:
            metrics.FRAME_LATENESS_MS.observe(late_ns / NS_PER_MS)
            for _ in range(n_due):
                self._send_frame(now_ns)
            self._sender.skip(pacer.n_skipped * _FRAME_TICKS)
            self._server.report_marks()
        self._send_caller_audio(self._receiver.due(now_ns), now_ns)

    def _send_frame(self, now_ns: int) -> None:
        pcm = self._server.take_frame(self._frame_samples, now_ns)
        packet = self._sender.packet(self._codec.encode(pcm.ljust(self._frame_samples * SAMPLE_BYTES, b"\0")))
        if self._socket is not None and self._remote is not None:
            try:
                self._socket.sendto(packet, self._remote)
            except BlockingIOError:
                pass  # a full send buffer loses the packet, as any network may
            except OSError as error:
                if not self._has_logged_not_sent:
                    self._has_logged_not_sent = True
                    self.log.warning("rtp_not_sent", to=self._remote[0], why=error.strerror)

    # -------------------------------------------------------- from Asterisk

    def _on_readable(self) -> None:
        """Read waiting packets, but only `_MAX_READ` at a time: the other calls need their turn."""
        try:
            for _ in range(_MAX_READ):
                if self._socket is None:
                    return
                try:
                    data, addr = self._socket.recvfrom(_MAX_PACKET_BYTES)
                except OSError:
                    return
                # A packet that fills the buffer may be cut off, and is longer than any network carries unfragmented.
                self._on_packet(data if len(data) < _MAX_PACKET_BYTES else b"", addr)
        except Exception:
            self._crashed()

    def _on_packet(self, data: bytes, addr: tuple[Any, ...]) -> None:
        now_ns = monotonic_ns()
        if self._remote is None:
            return  # Asterisk's address is not known yet
        if addr[1] != self._remote[1] or _address(addr[0]) != self._remote[0]:
            why = f"an RTP packet from {addr[0]}:{addr[1]}, which is not Asterisk's end"
            self._server.report_bad("rtp_stranger", why)
            return
        self._send_caller_audio(self._receiver.feed(data, now_ns), now_ns)
        self._count_missed()

    def _send_caller_audio(self, audio: RtpAudio, now_ns: int) -> None:
        if audio and self._server.has_joined:
            self._server.send_audio(b"".join(map(self._decoded, audio)), now_ns)

    def _decoded(self, audio: bytes | int) -> bytes:
        if isinstance(audio, int):
            return self._concealment.missing(audio * self._codec.rate_hz // (1000 * TICKS_PER_MS))
        return self._concealment.heard(self._codec.decode(audio))

    def _count_missed(self) -> None:
        receiver = self._receiver
        now = {"lost": receiver.n_lost, "late": receiver.n_late, "doubled": receiver.n_doubled}
        for kind, n in now.items():
            metrics.RTP_PACKETS_MISSED.labels(kind).inc(n - self._counted.get(kind, 0))
        self._counted.update(now)
        if receiver.n_unreadable != self._counted.get("unreadable", 0):
            self._counted["unreadable"] = receiver.n_unreadable
            self._server.report_bad("rtp_unreadable", "a packet is not RTP, or not in the call's format")


def _address(host: str) -> str:
    """An address in the form in which the socket reports it."""
    if host == "localhost":
        return "127.0.0.1"
    return host.removeprefix("::ffff:").strip("[]")


def _numeric(host: str) -> str:
    """The IP address to receive from and to send to. Raises ValueError for a name: each use would look it up."""
    address = _address(host)
    try:
        ipaddress.ip_address(address)
    except ValueError:
        why = f"Asterisk does not report the address of its RTP; put an IP address into ari.url, not {host[:80]}"
        raise ValueError(why) from None
    return address


def _bind(host: str, first: int, last: int) -> socket.socket:
    """A UDP socket at a free even port (RFC 3550 §11) from `first` to `last`, or any if they are 0. Raises OSError."""
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
    """Whether `host` is an address of this machine and its UDP port `port` is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True
