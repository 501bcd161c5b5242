"""The connection to Asterisk's ARI: one WebSocket for requests, their answers and events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from websockets.exceptions import InvalidMessage, InvalidStatus, InvalidURI, WebSocketException

from sip_bridge import metrics
from sip_bridge.ari import messages as a
from sip_bridge.ari.config import AriConfig
from sip_bridge.peer_input import BadInput
from sip_bridge.reconnect import NotConnected
from telephony_tts.runtime import logs
from telephony_tts.transport.connection import Dial, DialledConnection

_log = logs.get(__name__)
_CLOSE_TIMEOUT_S = 1.0
_PING_S = 5.0
_MAX_MESSAGE_BYTES = 8 << 20
"""The list of all channels comes as one message."""

OnEvent = Callable[[a.ChannelEvent], None]


class AriLost(NotConnected):
    """Asterisk cannot be reached, or has not answered; the message says why and what to do."""


class AriRefused(Exception):
    """Asterisk has answered a request with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AriConnection:
    """Sends requests with `request`; events go to the callback of `listen`, in order."""

    def __init__(self, connection: DialledConnection, request_timeout_s: float) -> None:
        self._connection = connection
        self._request_timeout_s = request_timeout_s
        self._asked: dict[str, asyncio.Future[a.AriAnswer]] = {}
        self._n_asked = 0
        self._on_event: OnEvent | None = None
        self._bad_input = BadInput()
        self._waiting: list[a.ChannelEvent] = []
        self.replaced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when another client has taken the application. Requests are still answered, but no events come."""
        connection.left.add_done_callback(lambda _: self._forget_asked())
        connection.listen(self._on_message, lambda is_writable: None)

    @property
    def left(self) -> asyncio.Future[None]:
        """Done when the connection is closed or lost."""
        return self._connection.left

    @property
    def why_left(self) -> str:
        """Why the connection ended, for the log."""
        theirs, ours = self._connection.protocol.close_rcvd, self._connection.protocol.close_sent
        if theirs is not None:
            return f"Asterisk has closed the connection: {theirs.code} {theirs.reason}".strip()
        if ours is not None and ours.code != 1000:  # a message that is too long, a ping that is not answered
            return f"the connection to Asterisk was closed by us: {ours.code} {ours.reason}"
        return "the connection to Asterisk is lost"

    def listen(self, on_event: OnEvent) -> None:
        """Deliver events from now on, first those that came before."""
        self._on_event = on_event
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._deliver(event, on_event)

    async def request(
        self, method: str, *path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Any:
        """Send a request; returns the JSON of the answer. Raises AriRefused, AriLost."""
        if self.left.done():
            raise AriLost("the connection to Asterisk is lost")
        self._n_asked += 1
        request_id = str(self._n_asked)
        uri = "/".join(quote(part, safe="") for part in path)
        answered = self._asked[request_id] = asyncio.get_running_loop().create_future()
        self._connection.send_now(a.request(request_id, method, uri, query, body), True)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                answer = await answered
        except TimeoutError:
            metrics.ARI_REQUESTS_FAILED.labels("timeout").inc()
            raise AriLost(f"Asterisk has not answered {method} {path[0]} for {self._request_timeout_s:g} s") from None
        finally:
            self._asked.pop(request_id, None)
        if 200 <= answer.status < 300:
            return answer.body
        message = answer.body.get("message") if isinstance(answer.body, dict) else None
        metrics.ARI_REQUESTS_FAILED.labels("refused").inc()
        raise AriRefused(answer.status, f"{method} {path[0]}: {answer.status} {str(message or '')[:200]}".strip())

    async def close(self) -> None:
        """Close the connection, within a second."""
        self._connection.end(1000, "")
        try:
            await self._connection.close()
        finally:
            self._connection.transport.abort()

    def _on_message(self, payload: bytes, is_text: bool) -> None:
        message = a.decode(payload)
        if isinstance(message, a.AriAnswer):
            answered = self._asked.get(message.request_id)
            if answered is not None and not answered.done():
                answered.set_result(message)
        elif isinstance(message, a.ApplicationReplaced):
            if not self.replaced.done():
                self.replaced.set_result(None)
        elif isinstance(message, a.BadAriMessage):
            self._bad_input.report(_log, "ari_message", message.why)
        elif message is not None and self._on_event is not None:
            self._deliver(message, self._on_event)
        elif message is not None:
            self._waiting.append(message)

    def _deliver(self, event: a.ChannelEvent, on_event: OnEvent) -> None:
        try:
            on_event(event)
        except Exception:
            # A fault with one call's event must not end the connection of all calls.
            _log.exception("event_crashed")

    def _forget_asked(self) -> None:
        for answered in self._asked.values():
            if not answered.done():
                metrics.ARI_REQUESTS_FAILED.labels("lost").inc()
                answered.set_exception(AriLost("the connection to Asterisk was lost"))


async def connect_ari(ari: AriConfig) -> tuple[AriConnection, str]:
    """Connect as the application and ask for Asterisk's version. Raises AriLost."""
    query = urlencode({"app": ari.app, "subscribeAll": "false"})
    account = base64.b64encode(f"{ari.user}:{ari.password or ''}".encode()).decode()
    try:
        socket = await Dial(
            f"{ari.url.rstrip('/')}/events?{query}",
            additional_headers={"Authorization": f"Basic {account}"},
            max_size=_MAX_MESSAGE_BYTES,
            open_timeout=ari.request_timeout_s,
            ping_interval=_PING_S,
            close_timeout=_CLOSE_TIMEOUT_S,
        )
    except InvalidStatus as error:
        raise AriLost(_refusal(error.response.status_code)) from None
    except TimeoutError:
        raise AriLost(f"Asterisk accepts at ari.url and has not answered for {ari.request_timeout_s:g} s") from None
    except InvalidURI:
        raise AriLost("ari.url is not the address of a WebSocket") from None  # it may hold a secret
    except ConnectionRefusedError as error:
        raise AriLost(f"no Asterisk at ari.url: {error.strerror}; is its HTTP server enabled in http.conf?") from None
    except (OSError, InvalidMessage, WebSocketException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise AriLost(f"no Asterisk at ari.url: {why}") from None
    assert isinstance(socket, DialledConnection)
    connection = AriConnection(socket, ari.request_timeout_s)
    try:
        told = await connection.request("GET", "asterisk", "info", query={"only": "system"})
    except AriRefused as error:
        await connection.close()
        raise AriLost(f"Asterisk does not report its version: {error}") from None
    except AriLost as error:
        await connection.close()
        raise AriLost(f"{error}; requests over the WebSocket need Asterisk 22.4 or newer") from None
    except BaseException:
        await connection.close()
        raise
    system = told.get("system") if isinstance(told, dict) else None
    return connection, str(system.get("version") if isinstance(system, dict) else "unknown")[:80]


def _refusal(status: int) -> str:
    hint = {
        401: "; set ari.user and ari.password as in Asterisk's ari.conf",
        403: "; the user of ari.conf must not be read_only",
        404: "; ari.url must end with /ari, and res_ari be loaded and enabled in ari.conf",
    }.get(status, "")
    return f"Asterisk answers HTTP {status}{hint}"
