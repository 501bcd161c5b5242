"""The client of the server's /media/native (docs/protocol/native-media.md). Connecting waits; sending never does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from websockets.exceptions import InvalidMessage, InvalidStatus, InvalidURI, WebSocketException

from sip_bridge import metrics
from sip_bridge.config import TtsServerConfig
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.transport.connection import Dial, DialledConnection

RATES_HZ = (8_000, 16_000, 24_000, 48_000)
"""The rates that the server can send. The bridge resamples to any other rate."""

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 1.0
_CLOSE_TIMEOUT_S = 2.0
_MAX_MESSAGE_BYTES = 65_536
_LOST = 1006
_DIGITS = re.compile("[0-9*#A-Dw]{1,64}")
_MAX_TONE_MS = 1_000


def server_rate_hz(socket_hz: int) -> int:
    """The rate to ask the server for: the socket's own if the server has it, else the next higher one of the server."""
    if socket_hz in RATES_HZ:
        return socket_hz
    return 16_000 if socket_hz < 16_000 else 48_000


@dataclass(frozen=True, slots=True)
class LegStart:
    """The `start` message to the server. Audio is s16 little-endian at `rate_hz`, in frames of `ptime_ms`.

    `dtmf`: the telephone's platform can send the bot's tones, so the server need not.
    """

    call: str
    rate_hz: int
    ptime_ms: int
    lead_ms: int
    parameters: dict[str, str]
    dtmf: bool = False


@dataclass(frozen=True, slots=True)
class ServerSpeech:
    pcm: bytes


@dataclass(frozen=True, slots=True)
class ServerMark:
    name: str


@dataclass(frozen=True, slots=True)
class ServerClear:
    pass


@dataclass(frozen=True, slots=True)
class ServerDigits:
    """Tones to send to the telephone now: `w` is a pause of half a second, the others last `on_ms` with `off_ms`
    between them."""

    digits: str
    on_ms: int
    off_ms: int


@dataclass(frozen=True, slots=True)
class ServerComplaint:
    """The server's `error` message: it did not understand a message of the bridge."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BadServerMessage:
    """A message of the server that cannot be used. `kind` is one of metrics.BAD_INPUT."""

    kind: str
    why: str


FromServer = ServerSpeech | ServerMark | ServerClear | ServerDigits | ServerComplaint | BadServerMessage


def end_reason(close_code: int) -> str:
    """Why a call ended, by the close code of the server: one of metrics.ENDS."""
    if close_code == 1000:
        return "finished"
    if close_code == 1001:
        return "server_draining"
    return "server_refused" if close_code == 1013 or 4000 <= close_code <= 4999 else "server_lost"


class NotJoined(Exception):
    """The server cannot be joined. `reason` is one of metrics.ENDS; the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ServerLeg:
    """A connection to the server. No message is delivered before `start`."""

    def __init__(self, connection: DialledConnection) -> None:
        self._connection = connection
        self._has_started = False

    @property
    def left(self) -> asyncio.Future[None]:
        """Done as soon as either side has closed the connection, or it broke."""
        return self._connection.left

    @property
    def close_code(self) -> int:
        """The server's close code; 1006 if the connection broke."""
        close = self._connection.protocol.close_rcvd
        return close.code if close is not None else _LOST

    @property
    def close_reason(self) -> str:
        close = self._connection.protocol.close_rcvd
        if close is not None:
            return close.reason
        ours = self._connection.protocol.close_sent
        if ours is None or ours.code == 1000:
            return "the connection broke"
        return f"closed by us: {ours.code} {ours.reason}"  # a message that is too long, a ping that is not answered

    def start(self, start: LegStart, on_message: Callable[[FromServer, int], None]) -> None:
        """Start the call. `on_message` gets each message of the server and the time in ns."""
        self._has_started = True
        message: dict[str, object] = {
            "type": "start",
            "call": start.call,
            "codec": "pcm",
            "rate_hz": start.rate_hz,
            "ptime_ms": start.ptime_ms,
            "lead_ms": start.lead_ms,
            "parameters": start.parameters,
        }
        if start.dtmf:
            message["dtmf"] = True
        self._send(message)
        self._connection.listen(
            lambda payload, is_text: on_message(decode(payload, is_text), monotonic_ns()), lambda is_writable: None
        )

    def send_audio(self, pcm: bytes) -> bool:
        """Send the caller's audio. False if it was dropped because the server does not read."""
        if self._connection.paused:
            return False
        self._connection.send_now(pcm, False)
        return True

    def report_mark(self, name: str) -> None:
        self._send({"type": "mark", "name": name})

    def send_digit(self, digit: str) -> None:
        self._send({"type": "dtmf", "digit": digit})

    def send_hold(self, is_on: bool) -> None:
        self._send({"type": "hold", "state": "started" if is_on else "ended"})

    def leave(self, reason: str) -> None:
        """Tell the server why the telephone call ended, and close. Idempotent."""
        if not self.left.done():
            if self._has_started:
                self._send({"type": "stop", "reason": reason})
            self._connection.end(1000, "")

    async def close(self) -> None:
        """Wait until the connection is closed, at most two seconds."""
        try:
            await self._connection.close()
        finally:
            self._connection.transport.abort()

    def _send(self, message: dict[str, object]) -> None:
        self._connection.send_now(json.dumps(message, separators=(",", ":")).encode(), True)


def decode(payload: bytes, is_text: bool) -> FromServer:
    """Read one message of the server. Never raises."""
    if not is_text:
        if not payload or len(payload) % 2:
            return BadServerMessage("server_audio", f"{len(payload)} bytes are not a whole number of samples")
        return ServerSpeech(payload)
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return BadServerMessage("server_message", f"a message of {len(payload)} bytes is not JSON")
    kind = message.get("type") if isinstance(message, dict) else None
    if kind == "clear":
        return ServerClear()
    if kind == "mark" and isinstance(message.get("name"), str):
        return ServerMark(message["name"])
    if kind == "dtmf" and (digits := digits_in(message)) is not None:
        return digits
    if kind == "error":
        return ServerComplaint(str(message.get("code"))[:80], str(message.get("message"))[:400])
    return BadServerMessage("server_message", f"a message of type {str(kind)[:80]!r} is not known or lacks a field")


def digits_in(message: dict[str, object]) -> ServerDigits | None:
    """The tones of a message of the server; None if they cannot be sent."""
    digits = message.get("digits")
    times_ms = [message.get(name, 100) for name in ("on_ms", "off_ms")]
    if not isinstance(digits, str) or not _DIGITS.fullmatch(digits):
        return None
    on_ms, off_ms = (time if isinstance(time, int) and 0 < time <= _MAX_TONE_MS else 100 for time in times_ms)
    return ServerDigits(digits, on_ms, off_ms)


async def join(server: TtsServerConfig) -> ServerLeg:
    """Connect to the server and retry for up to `connect_timeout_s`. Raises NotJoined.

    Only a server that does not answer is tried again. A refusal is final: the server knows how long it will be busy,
    and the call can go on in the dialplan.
    """
    end_ns = monotonic_ns() + round(server.connect_timeout_s * NS_PER_S)
    pause_s = _FIRST_RETRY_S
    while True:
        left_s = (end_ns - monotonic_ns()) / NS_PER_S
        try:
            return ServerLeg(await _connect(server, max(0.001, left_s)))
        except InvalidStatus as error:
            raise NotJoined("server_refused", _refusal(error)) from None
        except (OSError, InvalidMessage) as error:  # TimeoutError is an OSError
            why = getattr(error, "strerror", None) or str(error) or "no answer"
        except InvalidURI:
            # The address may hold a secret, so the message leaves it out.
            raise NotJoined("server_unreachable", "server.url is not the address of a WebSocket") from None
        except (WebSocketException, ValueError) as error:
            raise NotJoined("server_unreachable", str(error)) from None
        if monotonic_ns() + round(pause_s * NS_PER_S) >= end_ns:
            raise NotJoined("server_unreachable", f"no server at server.url: {why}")
        metrics.CONNECT_RETRIES.inc()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_RETRY_S)


async def _connect(server: TtsServerConfig, within_s: float) -> DialledConnection:
    connection = await Dial(
        server.url,
        additional_headers={"Authorization": f"Bearer {server.token}"} if server.token else {},
        max_size=_MAX_MESSAGE_BYTES,
        open_timeout=within_s,
        ping_interval=server.ping_interval_s,
        close_timeout=_CLOSE_TIMEOUT_S,
    )
    assert isinstance(connection, DialledConnection)
    connection.watch_slow_reader(server.slow_reader_s)
    return connection


def _refusal(error: InvalidStatus) -> str:
    status = error.response.status_code
    body = bytes(error.response.body or b"")[:200].decode("utf-8", "replace").strip()
    hint = {
        401: "; set server.token or TELEPHONY_SIP_BRIDGE_TOKEN",
        403: "; set server.token or TELEPHONY_SIP_BRIDGE_TOKEN",
        404: "; server.url must end with /media/native",
    }.get(status, "")
    return f"the server answers HTTP {status} ({body}){hint}"
