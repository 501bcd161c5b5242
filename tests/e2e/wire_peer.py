"""Peers of a server without sockets: their bytes go to the server's own protocols, and its bytes come back.

What a peer sends is there at once, so a test says exactly what runs before what.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from http_peer import request
from rig import Rig
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

PEER, OURS = ("127.0.0.1", 50_000), ("127.0.0.1", 8080)


class WirePeer(asyncio.Transport):
    """One connection. It is the transport that the server writes to."""

    def __init__(self, rig: Rig) -> None:
        super().__init__({"peername": PEER, "sockname": OURS})
        rig.make_http()
        self._is_closing = False
        self._is_read = True
        self._held: list[bytes] = []
        self._protocol: asyncio.Protocol
        accepted = rig.server._accepted()
        assert isinstance(accepted, asyncio.Protocol)
        self.set_protocol(accepted)
        accepted.connection_made(self)

    def send(self, data: bytes) -> None:
        """The server gets these bytes, now if it reads."""
        if self._is_read and not self._is_closing:
            self._protocol.data_received(data)
        else:
            self._held.append(data)

    def leave(self) -> None:
        """The connection is lost."""
        self.abort()

    def came(self, data: bytes) -> None:
        """The server has sent this."""
        raise NotImplementedError

    # -------------------------------------------------- as the server sees it

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.came(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(lambda: self._protocol.connection_lost(None))

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._is_read = False

    def resume_reading(self) -> None:
        self._is_read = True
        held, self._held = self._held, []
        for data in held:
            self.send(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class WireSocket(WirePeer):
    """A WebSocket. Its messages go behind its handshake without waiting for the answer."""

    def __init__(self, rig: Rig, path: str, headers: dict[str, str], *messages: dict[str, Any] | str) -> None:
        self._client = ClientProtocol(parse_uri(f"ws://127.0.0.1:8080{path}"))
        self.status: int | None = None
        self.texts: list[str] = []
        self.close_code: int | None = None
        super().__init__(rig)
        handshake = self._client.connect()
        handshake.headers.update(headers)
        self._client.send_request(handshake)
        whole = b"".join(self._client.data_to_send())
        for message in messages:
            text = message if isinstance(message, str) else json.dumps(message)
            whole += Frame(Opcode.TEXT, text.encode()).serialize(mask=True)
        self.send(whole)

    def tell(self, text: str) -> None:
        """Send one more message."""
        self.send(Frame(Opcode.TEXT, text.encode()).serialize(mask=True))

    def came(self, data: bytes) -> None:
        self._client.receive_data(data)
        for event in self._client.events_received():
            if isinstance(event, Response):
                self.status = event.status_code
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self.texts.append(bytes(event.data).decode())
            elif isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                self.close_code = Close.parse(bytes(event.data)).code
        for answer in self._client.data_to_send():
            if answer:
                asyncio.get_running_loop().call_soon(self.send, answer)


class WireRequest(WirePeer):
    """An HTTP request with a JSON body."""

    def __init__(self, rig: Rig, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.answer = b""
        super().__init__(rig)
        whole = json.dumps(body).encode()
        self.send(request("POST", path, whole, Content_Type="application/json", Connection="close", **headers))

    @property
    def status(self) -> int | None:
        first = self.answer.split(b" ", 2)
        return int(first[1]) if len(first) > 2 else None

    def came(self, data: bytes) -> None:
        self.answer += data
