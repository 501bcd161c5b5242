"""How the audio of a call that ARI rules gets to the server: over which external media of Asterisk."""

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
from telephony_tts import logs

_log = logs.get(__name__)
_BROKEN = 1006
"""The close code of a connection that broke."""


class CallMedia(Protocol):
    """One call's. `over` is called, once or more, when it ends by itself."""

    async def open(self) -> dict[str, str]:
        """Get ready; returns the arguments of Asterisk's channels/externalMedia. Raises OSError."""

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        """The channel is there; `body` is what Asterisk tells of it. Raises ValueError."""

    def digit(self, digit: str) -> None:
        """The caller has pressed a key."""

    async def close(self, reason: str) -> None:
        """Leave nothing behind. Idempotent."""


class WebSocketClientMedia:
    """Asterisk dials the server by a section of websocket_client.conf: nothing of it passes through here."""

    def __init__(self, ari: AriConfig) -> None:
        self._ari = ari

    async def open(self) -> dict[str, str]:
        return {**_websocket(self._ari), "external_host": self._ari.websocket_client, "connection_type": "client"}

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        """Asterisk is dialling."""

    def digit(self, digit: str) -> None:
        """The media WebSocket tells it to the server (DTMF_END); told here as well it would be told twice."""

    async def close(self, reason: str) -> None:
        """It ends with its channel."""


class WebSocketServerMedia:
    """Asterisk waits to be dialled, and the server is told to (PROTOCOL.md §9.5)."""

    def __init__(self, ari: AriConfig, server: TtsServerConfig, over: OnOver) -> None:
        self._ari = ari
        self._server = server
        self._over = over
        self._served: asyncio.Task[None] | None = None

    async def open(self) -> dict[str, str]:
        return {**_websocket(self._ari), "external_host": "INCOMING", "connection_type": "server"}

    def created(self, body: object, call: str, parameters: Mapping[str, str]) -> None:
        media_id = a.variable_of(body, "MEDIA_WEBSOCKET_CONNECTION_ID")
        if not media_id:
            raise ValueError("Asterisk tells no MEDIA_WEBSOCKET_CONNECTION_ID; it must be 22.6, 23 or newer")
        url = f"{self._ari.incoming_url}/{quote(media_id, safe='-')}"
        self._served = asyncio.get_running_loop().create_task(self._be_dialled(url, call))

    def digit(self, digit: str) -> None:
        """The media WebSocket tells it to the server (DTMF_END); told here as well it would be told twice."""

    async def close(self, reason: str) -> None:
        if self._served is not None:
            self._served.cancel()
            await asyncio.wait((self._served,))

    async def _be_dialled(self, url: str, call: str) -> None:
        """Have `url` dialled, and stay until the server has done with it. Raises nothing."""
        try:
            leg = await s.join(replace(self._server, url=dial_url(self._server.url, url)))
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


def media_of(ari: AriConfig, server: TtsServerConfig, over: OnOver) -> CallMedia:
    """The kind that is configured."""
    if ari.media == "rtp":
        return RtpMedia(ari, server, over)
    return WebSocketClientMedia(ari) if ari.media == "websocket_client" else WebSocketServerMedia(ari, server, over)


def dial_url(server_url: str, asterisk_url: str) -> str:
    """The address at which the server that has /media/native at `server_url` is told to dial `asterisk_url`."""
    parts = urlsplit(server_url)
    path = parts.path.removesuffix("/").removesuffix("/media/native") + "/media/asterisk"
    query = f"{parts.query}&" if parts.query else ""
    return urlunsplit((parts.scheme, parts.netloc, path, f"{query}dial={quote(asterisk_url, safe='')}", ""))


def _websocket(ari: AriConfig) -> dict[str, str]:
    # In JSON the channel's variables, and so the call's name, come with the first message.
    return {"transport": "websocket", "encapsulation": "none", "format": ari.format, "transport_data": "f(json)"}
