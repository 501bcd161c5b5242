"""How the audio of an ARI call gets to the server: the kinds of external media in Asterisk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from sip_bridge import server_leg as s
from sip_bridge.ari import messages as a
from sip_bridge.ari.config import AriConfig
from sip_bridge.config import TtsServerConfig
from sip_bridge.rtp.media import OnOver, RtpMedia
from sip_bridge.speech.server_side import OnDigits
from telephony_tts.runtime import logs

_log = logs.get(__name__)
_BROKEN = 1006
"""The close code of a broken connection."""


class CallMedia(Protocol):
    """The media of one call. It calls `over`, once or more, when it ends by itself."""

    async def open(self, format: str) -> dict[str, str]:
        """Get ready for audio in `format`; returns the query of Asterisk's channels/externalMedia. Raises OSError."""

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        """Asterisk has created the channel; `body` is its answer. Raises ValueError for a bad `body`."""

    def digit(self, digit: str) -> None:
        """The caller has pressed a key."""

    def hold(self, is_on: bool) -> None:
        """The telephone is on hold from now on, or not any more: it plays nothing meanwhile."""

    async def close(self, reason: str) -> None:
        """Close everything. Idempotent."""


class _WebSocketMedia:
    def digit(self, digit: str) -> None:
        """Nothing to do: the media WebSocket sends digits to the server itself (DTMF_END)."""

    def hold(self, is_on: bool) -> None:
        """Nothing to do: the media WebSocket has no message for it, and the bridge no connection to the server."""


class WebSocketClientMedia(_WebSocketMedia):
    """Asterisk dials the server by a section of websocket_client.conf. The bridge sees none of the audio."""

    def __init__(self, ari: AriConfig) -> None:
        self._ari = ari

    async def open(self, format: str) -> dict[str, str]:
        return {**_websocket(format), "external_host": self._ari.websocket_client, "connection_type": "client"}

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        """Nothing to do: Asterisk dials."""

    async def close(self, reason: str) -> None:
        """Nothing to do: the WebSocket ends with its channel."""


class WebSocketServerMedia(_WebSocketMedia):
    """Asterisk waits for a connection, and the bridge asks the server to dial it (docs/protocol/asterisk.md)."""

    def __init__(self, ari: AriConfig, server: TtsServerConfig, over: OnOver) -> None:
        self._ari = ari
        self._server = server
        self._over = over
        self._served: asyncio.Task[None] | None = None

    async def open(self, format: str) -> dict[str, str]:
        return {**_websocket(format), "external_host": "INCOMING", "connection_type": "server"}

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        media_id = a.variable_of(body, "MEDIA_WEBSOCKET_CONNECTION_ID")
        if not media_id:
            raise ValueError("Asterisk gives no MEDIA_WEBSOCKET_CONNECTION_ID; it must be 22.6, 23 or newer")
        url = f"{self._ari.incoming_url}/{quote(media_id, safe='-')}"
        self._served = asyncio.get_running_loop().create_task(self._have_dialled(url, call))

    async def close(self, reason: str) -> None:
        if self._served is not None:
            self._served.cancel()
            await asyncio.wait((self._served,))

    async def _have_dialled(self, url: str, call: str) -> None:
        """Ask the server to dial `url`, and stay until that connection ends. Raises nothing."""
        try:
            leg = await s.join(replace(self._server, url=dial_url(self._server.url, url, call)))
            try:
                await asyncio.wait((leg.left,))
                code = leg.close_code
            finally:
                leg.leave("hangup")
                await leg.close()
            self._over(*self._end(code, leg.close_reason))
        except s.NotJoined as error:
            self._over(error.reason, str(error))
        except Exception:
            _log.exception("call_crashed", call=call)
            self._over("failed", None)

    def _end(self, code: int, reason: str) -> tuple[str, str | None]:
        """Why the call ended, by the server's close code and reason."""
        end = s.end_reason(code)
        if end in ("finished", "server_draining"):
            return end, None
        if code == 4400:
            return end, f"{reason}: add {self._ari.incoming_url} there"
        if end == "server_refused":
            return end, f"{code} {reason}"
        return (end, reason) if code == _BROKEN else ("media_failed", f"the server answers {code} {reason}")


def media_of(ari: AriConfig, server: TtsServerConfig, over: OnOver, on_digits: OnDigits) -> CallMedia:
    """The configured kind of media. `on_digits` sends the bot's tones to the telephone. With a WebSocket the bridge
    does not get them, and the server puts them into the audio."""
    if ari.media == "rtp":
        return RtpMedia(ari, server, over, on_digits)
    return WebSocketClientMedia(ari) if ari.media == "websocket_client" else WebSocketServerMedia(ari, server, over)


def dial_url(server_url: str, asterisk_url: str, call: str) -> str:
    """The request to the server to dial `asterisk_url`. `server_url` is the address of its /media/native. `call` is the
    call's name: a server of several processes must know it before it dials."""
    parts = urlsplit(server_url)
    path = parts.path.removesuffix("/").removesuffix("/media/native") + "/media/asterisk"
    query = f"{parts.query}&" if parts.query else ""
    query += f"dial={quote(asterisk_url, safe='')}&call={quote(call, safe='')}"
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _websocket(format: str) -> dict[str, str]:
    # With JSON the first message has the channel's variables, and with them the call's name.
    return {"transport": "websocket", "encapsulation": "none", "format": format, "transport_data": "f(json)"}
