"""Dials the bot of a call: the server is the WebSocket client. Roles and messages stay as in PROTOCOL.md."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from websockets.exceptions import InvalidURI, WebSocketException

from telephony_tts.runtime import metrics
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import Dial, DialledConnection
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.stream_leg import ready
from telephony_tts.wire import messages as m
from telephony_tts.wire.native import NativeCodec

_RETRY_S = 0.25
_CLOSE_TIMEOUT_S = 2.0


async def dial_bot(call: Call, settings: TransportSettings) -> None:
    """Connect to `bot_url`, retrying until the timeout, and serve the bot until its socket is gone. It has the key of
    the media leg. If a bot has come by itself meanwhile, the call is that one's."""
    connection = await _connect(call, settings)
    if connection is None:
        return
    try:
        if call.first_bots_key is not None:
            connection.end(4409, "the call already has a bot")
            return
        call.admit_bot(call.key)
        codec = NativeCodec("none", call.id)
        call.session.new_bot(settings.speech.limits)
        connection.log = call.log
        connection.watch_slow_reader(settings.server.slow_reader_s)
        call.keep_unread(connection)
        call.join_bot(connection, codec.encode, ready(call))
        call.receive(m.Configure(inbound=settings.bot.inbound))
        received = metrics.RECEIVED_BYTES.labels(leg="bot")

        def on_message(payload: bytes, is_text: bool) -> None:
            received.inc(len(payload))
            call.receive(codec.decode(payload, is_text))

        connection.listen(on_message, lambda flag: None)
        await connection.left
    finally:
        call.bot_left(connection, f"closed with {connection.protocol.close_code or 'no code'}")
        try:
            await connection.close()
        except asyncio.CancelledError:
            connection.transport.abort()
            raise


async def _connect(call: Call, settings: TransportSettings) -> DialledConnection | None:
    """The connection to the bot. None if the bot cannot be reached; the call is over then."""
    assert settings.bot.url is not None
    joint = "&" if "?" in settings.bot.url else "?"
    why = "no answer"
    try:
        async with asyncio.timeout(settings.bot.connect_timeout_s):
            while True:
                try:
                    connection = await Dial(
                        f"{settings.bot.url}{joint}call={quote(call.id, safe='')}",
                        additional_headers=(
                            {"Authorization": f"Bearer {settings.bot.token}"} if settings.bot.token else {}
                        ),
                        max_size=settings.server.max_message_bytes,
                        ping_interval=settings.server.ping_interval_s,
                        close_timeout=_CLOSE_TIMEOUT_S,
                    )
                    assert isinstance(connection, DialledConnection)
                    return connection
                except (OSError, RuntimeError) as error:
                    # A bot that is starting refuses connections for a moment, and so may the machine refuse a thread.
                    why = getattr(error, "strerror", None) or str(error)
                    await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        pass
    except InvalidURI:
        why = "bot.url is not a valid address"  # the address may hold a secret, so it is not logged
    except (WebSocketException, ValueError) as error:
        why = str(error)
    call.log.error("bot_unreachable", why=why)
    if call.first_bots_key is None:  # otherwise a bot connected by itself meanwhile
        call.finish(1011, "the bot cannot be reached")
    return None
