"""Dials an Asterisk that waits for a media WebSocket (`INCOMING`), when a program that controls Asterisk asks for it.

The program opens `/media/asterisk?dial=URL`, as the bridge does with ARI. Its socket controls the call: when either
ends, so does the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, urlsplit

from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from telephony_tts.transport.call import EngineCatalog
from telephony_tts.transport.connection import CallConnection, Dial, DialledConnection, DirectConnection
from telephony_tts.transport.media_leg import MediaLeg, serve_media
from telephony_tts.transport.registry import Registry
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.sound_fetch import has_control
from telephony_tts.wire.fields import CALL_NAME, clean
from telephony_tts.wire.query import MAX_OPTIONS

_PATH = "/media/asterisk"
_OPEN_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 2.0


def dial_in(path: str) -> str | None:
    """The address to dial in a request target such as `/media/asterisk?dial=ws://…`; None for any other target."""
    address, _, query = path.partition("?")
    if address != _PATH:
        return None
    try:
        pairs = parse_qsl(query.partition("#")[0], max_num_fields=MAX_OPTIONS)
    except ValueError:
        return None
    return next((clean(raw) for name, raw in reversed(pairs) if name == "dial"), None)


def call_of_dial(path: str) -> str | None:
    """The call that such a target also names with `call`; None without a valid one."""
    try:
        pairs = parse_qsl(path.partition("?")[2].partition("#")[0], max_num_fields=MAX_OPTIONS)
    except ValueError:
        return None
    named = next((clean(raw) for name, raw in reversed(pairs) if name == "call"), "")
    return named if CALL_NAME.fullmatch(named) else None


def may_dial(url: str, allowed: Sequence[str]) -> bool:
    """Whether the address is one of `allowed`, or lies in a folder of theirs. A server that dials any address would let
    its clients reach hosts that only the server can reach."""
    try:
        asked = urlsplit(url)
        beginnings = [urlsplit(each) for each in allowed]
        has_one = has_control(url)
    except ValueError:
        return False
    if has_one or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return False  # a space would end the request's target early
    if asked.scheme not in ("ws", "wss") or ".." in asked.path.split("/") or "%" in asked.path:
        return False
    return any(
        (asked.scheme, asked.netloc) == (each.scheme, each.netloc)
        and (asked.path == each.path or asked.path.startswith(f"{each.path.rstrip('/')}/"))
        for each in beginnings
    )


async def serve_dialled(
    control: CallConnection,
    url: str,
    allowed: Sequence[str],
    make: Callable[[DirectConnection, TransportSettings], MediaLeg],
    settings: TransportSettings,
    registry: Registry,
    catalog: EngineCatalog,
) -> None:
    """Dial `url`, if it is one of `allowed`, and serve the leg that `make` builds, as long as `control` is open."""
    control.listen(lambda payload, is_text: None, lambda flag: None)
    if not may_dial(url, allowed):
        control.log.warning("dial_refused")  # the address may hold a secret
        control.end(4400, "the address is not listed in asterisk.dial in the server's configuration")
        return
    try:
        connection = await Dial(
            url,
            subprotocols=[Subprotocol("media")],
            max_size=settings.server.max_message_bytes,
            ping_interval=settings.server.ping_interval_s,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=_CLOSE_TIMEOUT_S,
        )
    except (OSError, TimeoutError, WebSocketException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        control.log.error("asterisk_unreachable", why=why)
        control.end(1011, f"Asterisk: {why}")
        return
    assert isinstance(connection, DialledConnection)
    connection.log = control.log
    connection.watch_slow_reader(settings.server.slow_reader_s)
    leg = make(connection, settings)
    control.left.add_done_callback(lambda _: leg.end(1000, "the socket that asked for the dial has closed"))
    try:
        await serve_media(
            leg, settings, registry, catalog, trusted=True, may_begin=control.may_begin, key=control.key
        )
    finally:
        close = connection.protocol.close_sent
        if leg.call is None and close is not None and close.code >= 1011:
            # No call began: Asterisk sent nothing, or there was no room.
            control.end(1011 if close.code == 4400 else close.code, f"Asterisk: {close.reason}")
        control.end(1000, "the call has ended")
        await connection.close()
