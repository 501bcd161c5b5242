"""The HTTP side of the listening socket: a FastAPI application, served by uvicorn's protocol on accepted connections.

`transport/incoming.py` accepts the connections and decides which of them come here.
"""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from telephony_tts.http_api.application import application
from telephony_tts.http_api.voices import Voices
from telephony_tts.transport.request_head import MAX_HEAD_BYTES
from telephony_tts.transport.server import Server

_KEEP_ALIVE_S = 30
_CLOSE_S = 5.0


class HttpServer:
    """Serves the requests of `app`. Its own paths are those of its routes, and what lies below them."""

    def __init__(self, app: FastAPI) -> None:
        paths = [*app.openapi()["paths"], app.docs_url, app.openapi_url]
        self._paths = tuple({path.partition("{")[0].rstrip("/") for path in paths if path})
        self._config = Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = self._config.encoded_headers

    def owns(self, path: str) -> bool:
        return any(path == fixed or path.startswith(fixed + "/") for fixed in self._paths)

    def connection(self) -> asyncio.Protocol:
        return H11Protocol(self._config, self._state, {})

    async def close(self) -> None:
        """Close idle connections, and end the requests that still run."""
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=_CLOSE_S)
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=_CLOSE_S)
        for connection in list(self._state.connections):
            connection.transport.abort()


def http_server(server: Server, voices: Voices | None = None) -> HttpServer:
    """The HTTP side of `server`. `voices` adds and removes voices; None if the server cannot."""
    return HttpServer(application(server, voices))
