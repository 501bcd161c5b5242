"""A stand-in for Asterisk's ARI: requests and events on one WebSocket, and an RTP port for each external media.

Channels and bridges are only names. It answers as Asterisk 22.10 does, and fails when a test asks for it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from bridge_rig import until
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

USER, PASSWORD, APP = "bridge", "s3cret", "tts"
SETTINGS = {
    "ari__enabled": True, "ari__user": USER, "ari__password": PASSWORD, "ari__app": APP, "ari__media": "rtp",
    "ari__originate__token": "who-may-call",
}  # fmt: skip


class Port(asyncio.DatagramProtocol):
    """Asterisk's end of the RTP of one call."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.come_from: set[tuple[str, int]] = set()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.packets.append(data)
        self.come_from.add(addr)

    @property
    def number(self) -> int:
        return int(self.transport.get_extra_info("sockname")[1])


class StandinAri:
    """`channels` has the live channels by id; `asked` has every request as "METHOD path"."""

    def __init__(self) -> None:
        self.channels: dict[str, dict[str, Any]] = {}
        self.bridges: dict[str, list[str]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        self.ports: dict[str, Port] = {}
        self.bridge_ports: dict[str, tuple[str, int]] = {}
        """The address to which the bridge wants its RTP, by media channel."""
        self.formats: dict[str, str] = {}
        """The format of the audio, by media channel."""
        self.asked: list[str] = []
        self.tones: list[tuple[str, str, str, str]] = []
        """Tones that were sent: (channel, digits, duration, between)."""
        self.queries: dict[str, dict[str, str]] = {}
        """The query of the last request of each kind."""
        self.mute: set[str] = set()
        """Requests that get no answer, as the method and the last part of the path."""
        self.refuse: dict[str, tuple[int, str]] = {}
        self.media_answers = True
        self.n_connections = 0
        self.dead = False
        self.first: ServerConnection | None = None
        self._client: ServerConnection | None = None
        self._listener: Any = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/ari"

    @property
    def port(self) -> int:
        return int(self._listener.sockets[0].getsockname()[1])

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[StandinAri]:
        async with serve(
            self._handle, "127.0.0.1", port, process_request=self._answer_handshake, compression=None, close_timeout=1
        ) as self._listener:
            try:
                yield self
            finally:
                for each in self.ports.values():
                    each.transport.close()

    # ---------------------------------------------------------------- actions of a test

    async def call(self, channel_id: str, number: str = "123", **variables: str) -> None:
        """A caller enters the application."""
        await until(lambda: self._client is not None, "the bridge has connected")
        self.variables[channel_id] = variables
        self._add(channel_id, "PJSIP/phone", "Ring", number)
        await self.event("StasisStart", channel_id, args=[])

    async def hang_up(self, channel_id: str, cause: int = 16) -> None:
        await self._end(channel_id, cause)

    async def answer(self, channel_id: str) -> None:
        """The called endpoint answers."""
        self.channels[channel_id]["state"] = "Up"
        await self.event("StasisStart", channel_id, args=[])

    async def transfer(self, channel_id: str, other: str) -> None:
        """A blind transfer by the caller: another channel takes its place in the bridge, and rings."""
        self._add(other, "Local/200@phones-00000000;1", "Down", "")
        await self.event("StasisStart", other, args=[], replace_channel=self.channels[channel_id])
        for ids in self.bridges.values():
            ids[:] = [other if each == channel_id else each for each in ids]

    async def state(self, channel_id: str, state: str) -> None:
        self.channels[channel_id]["state"] = state
        await self.event("ChannelStateChange", channel_id)

    async def event(self, kind: str, channel_id: str, **more: Any) -> None:
        channel = self.channels.get(channel_id, {"id": channel_id})
        await self.send({"type": kind, "application": APP, "channel": channel, **more})

    async def send(self, message: dict[str, Any] | str | bytes) -> None:
        if self._client is not None:
            with suppress(ConnectionClosed):
                await self._client.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def cut(self) -> None:
        """Break the connection; Asterisk keeps its state."""
        assert self._client is not None
        self._client.transport.abort()

    def restart(self) -> None:
        """Restart like a killed Asterisk: without channels, bridges and the connection."""
        self.channels.clear()
        self.bridges.clear()
        self.cut()

    async def bridged(self, n: int = 1) -> None:
        """Wait until this many calls have both channels in their bridge."""
        await until(lambda: sum(len(ids) == 2 for ids in self.bridges.values()) == n, f"{n} calls are bridged")

    async def empty(self) -> None:
        """Wait until nothing is left of any call."""
        await until(lambda: not self.channels and not self.bridges, f"nothing left of {self.channels} {self.bridges}")

    def media_of(self, bridge_no: int = 0) -> str:
        ids = list(self.bridges.values())[bridge_no]
        return next(each for each in ids if each.endswith("-media"))

    # -------------------------------------------------------------------- answers and events

    def _answer_handshake(self, connection: ServerConnection, request: Request) -> Response | None:
        parts = urlsplit(request.path)
        if self.dead:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "starting\n")
        if parts.path != "/ari/events":
            return connection.respond(HTTPStatus.NOT_FOUND, "no such path\n")
        wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {wanted}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "who?\n")
        assert parse_qs(parts.query)["app"] == [APP]
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        self.first = self.first or connection
        replaced, self._client = self._client, connection
        self.n_connections += 1
        if replaced is not None:
            await replaced.send(json.dumps({"type": "ApplicationReplaced", "application": APP}))
        try:
            async for data in connection:
                message = json.loads(data)
                assert message["type"] == "RESTRequest", message
                await self._request(connection, message)
        except ConnectionClosed:
            pass
        finally:
            if self._client is connection:
                self._client = None

    async def _request(self, connection: ServerConnection, message: dict[str, Any]) -> None:
        method, path = message["method"], [unquote(part) for part in message["uri"].split("/")]
        query = {item["name"]: item["value"] for item in message.get("query_strings", [])}
        body = json.loads(message.get("message_body") or "{}")
        key = f"{method} {path[-1] if len(path) != 2 or path[1] == 'externalMedia' else path[0]}"
        self.asked.append(f"{method} {'/'.join(path)}")
        self.queries[key] = query
        if key in self.mute:
            return
        after: list[Callable[[], Any]] = []
        if key in self.refuse:
            status, told = self.refuse[key][0], {"message": self.refuse[key][1]}
        else:
            status, told = await self._do(method, path, query, body, after)
        answer = {"type": "RESTResponse", "request_id": message["request_id"], "status_code": status}
        if told is not None:
            answer["message_body"] = json.dumps(told)
        try:
            await connection.send(json.dumps(answer))
        except ConnectionClosed:
            return
        for each in after:
            await each()

    async def _do(
        self, method: str, path: list[str], query: dict[str, str], body: dict[str, Any], after: list[Callable[[], Any]]
    ) -> tuple[int, Any]:
        match method, *path:
            case "GET", "asterisk", "info":
                return 200, {"system": {"version": "22.10.1", "entity_id": "x"}}
            case "GET", "channels":
                return 200, list(self.channels.values())
            case "GET", "bridges":
                return 200, [{"id": key, "channels": ids} for key, ids in self.bridges.items()]
            case "PUT", "applications", _, "eventFilter":
                assert "RESTResponse" in {item["type"] for item in body["allowed"]}, "it would filter its answers"
                return 200, {}
            case "POST", "channels", "externalMedia":
                return 200, await self._external_media(query, body, after)
            case "POST", "channels":
                self.variables[query["channelId"]] = body.get("variables", {})
                self._add(query["channelId"], query["endpoint"], "Down", "")
                return 200, self.channels[query["channelId"]]
            case "POST", "bridges":
                self.bridges[query["bridgeId"]] = []
                return 200, {"id": query["bridgeId"], "channels": []}
            case "DELETE", "bridges", key:
                known = self.bridges.pop(key, None) is not None
                return (204, None) if known else (404, {"message": "Bridge not found"})
            case "POST", "bridges", key, "addChannel":
                if query["channel"] not in self.channels:
                    return 400, {"message": "Channel not found"}
                self.bridges[key].append(query["channel"])
                return 204, None
            case _, "channels", channel_id, *_ if channel_id not in self.channels:
                return 404, {"message": "Channel not found"}
            case "GET", "channels", channel_id, "variable":
                value = self.variables.get(channel_id, {}).get(query["variable"])
                return (200, {"value": value}) if value is not None else (404, {"message": "Variable not found"})
            case "POST", "channels", channel_id, "answer":
                self.channels[channel_id]["state"] = "Up"
                return 204, None
            case "POST", "channels", channel_id, "dtmf":
                self.tones.append((channel_id, query["dtmf"], query["duration"], query["between"]))
                return 204, None
            case ("DELETE", "channels", channel_id) | ("POST", "channels", channel_id, "continue"):
                after.append(lambda: self._end(channel_id, 16))
                return 204, None
        return 404, {"message": "no such request"}

    async def _external_media(
        self, query: dict[str, str], body: dict[str, Any], after: list[Callable[[], Any]]
    ) -> dict[str, Any]:
        channel_id = query["channelId"]
        self.variables[channel_id] = body.get("variables", {})
        self._add(channel_id, "UnicastRTP/x", "Down", "")
        self.formats[channel_id] = query["format"]
        told = {}
        if query["transport"] == "udp":
            loop = asyncio.get_running_loop()
            _, port = await loop.create_datagram_endpoint(Port, local_addr=("127.0.0.1", 0))
            self.ports[channel_id] = port
            host, _, number = query["external_host"].rpartition(":")
            self.bridge_ports[channel_id] = (host, int(number))
            told = {"UNICASTRTP_LOCAL_ADDRESS": "127.0.0.1", "UNICASTRTP_LOCAL_PORT": str(port.number)}
        elif query["connection_type"] == "server":
            told = {"MEDIA_WEBSOCKET_CONNECTION_ID": f"id-of-{channel_id}"}
        if self.media_answers:
            after.append(lambda: self.event("StasisStart", channel_id, args=[]))
        return {**self.channels[channel_id], "channelvars": told}

    def _add(self, channel_id: str, name: str, state: str, number: str) -> None:
        self.channels[channel_id] = {
            "id": channel_id, "name": name, "state": state, "caller": {"name": "", "number": number},
            "dialplan": {"exten": "702", "app_name": "Stasis", "app_data": APP},
        }  # fmt: skip

    async def _end(self, channel_id: str, cause: int) -> None:
        for ids in self.bridges.values():
            if channel_id in ids:
                ids.remove(channel_id)
        channel = self.channels.pop(channel_id, {"id": channel_id})
        if channel_id in self.ports:
            self.ports.pop(channel_id).transport.close()
        for kind in ("StasisEnd", "ChannelDestroyed"):
            await self.send({"type": kind, "channel": channel, "cause": cause, "cause_txt": "x", "application": APP})


@asynccontextmanager
async def standin_ari() -> AsyncIterator[StandinAri]:
    async with StandinAri().running() as asterisk:
        yield asterisk
