"""Dials the bot for a call: the server is the WebSocket client, the roles and messages stay those of PROTOCOL.md."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import broadcast
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from telephony_tts import metrics
from telephony_tts.transport.call import Call
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.stream_leg import ready
from telephony_tts.wire import messages as m
from telephony_tts.wire.native import NativeCodec

_RETRY_S = 0.25
_CLOSE_TIMEOUT_S = 2.0


async def dial_bot(call: Call, settings: TransportSettings) -> None:
    """Connect to `bot_url`, retrying until the timeout, and serve the bot until its socket is gone."""
    assert settings.bot_url is not None
    joint = "&" if "?" in settings.bot_url else "?"
    url = f"{settings.bot_url}{joint}call={quote(call.id, safe='')}"
    headers = {"Authorization": f"Bearer {settings.bot_token}"} if settings.bot_token else {}
    try:
        async with asyncio.timeout(settings.bot_connect_timeout_s):
            socket = await _connect(url, headers, settings)
    except (TimeoutError, InvalidHandshake, InvalidURI) as error:
        call.log.error("bot_unreachable", why=str(error) or "timed out")
        call.finish(1011, "the bot cannot be reached")
        return
    leg = _DialledBot(socket)
    codec = NativeCodec("none", call.id, settings.speech.limits.turn_chars, settings.bot_inbound)
    try:
        call.join_bot(leg, codec.encode, ready(call, "none"))
        call.receive(m.Configure(inbound=settings.bot_inbound))
        received = metrics.RECEIVED_BYTES.labels(leg="bot")
        async for data in socket:
            received.inc(len(data))
            call.receive(codec.decode(data, isinstance(data, str)))
    except ConnectionClosed:
        pass
    finally:
        call.bot_left(f"closed with {socket.close_code}")
        await socket.close(*leg.last_word)


async def _connect(url: str, headers: dict[str, str], settings: TransportSettings) -> ClientConnection:
    while True:
        try:
            return await connect(
                url,
                additional_headers=headers,
                compression=None,
                max_size=settings.max_message_bytes,
                ping_interval=settings.ping_interval_s,
                close_timeout=_CLOSE_TIMEOUT_S,
                proxy=None,
            )
        except OSError:
            # A bot that is just starting refuses the connection for a moment.
            await asyncio.sleep(_RETRY_S)


class _DialledBot:
    """The bot's socket as a leg. Only events travel on it, so it needs no flow control of its own."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.last_word = (1000, "")

    def send_now(self, payload: bytes, is_text: bool) -> None:
        broadcast((self._socket,), payload, text=is_text)

    def end(self, code: int, reason: str) -> None:
        """The call ends, and with it `dial_bot`, which closes the socket with these."""
        self.last_word = (code, reason)
