"""Our bridge in a thread of this process, controlling a real Asterisk by ARI."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from asterisk_peer import Asterisk
from peer_process import wait_until

from sip_bridge.app import SipBridge
from sip_bridge.config import load

TIMEOUT_S = 10.0
TOKEN = "who-may-call"


class AriBridge:
    def __init__(self, bridge: SipBridge, http_port: int) -> None:
        self.http_port = http_port
        self._bridge = bridge

    @property
    def n_calls(self) -> int:
        return len(self._bridge._calls)

    def ready(self) -> tuple[int, str]:
        """What /readyz answers."""
        return self._ask(urllib.request.Request(f"http://127.0.0.1:{self.http_port}/readyz"))

    def wait_ready(self, within_s: float = TIMEOUT_S) -> None:
        wait_until(lambda: self.ready()[0] == 200, "the bridge is ready", within_s)

    def originate(self, token: str = TOKEN, **order: Any) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of an answer to POST /originate."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}/originate", json.dumps(order).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )  # fmt: skip
        status, body = self._ask(request)
        return status, json.loads(body)

    def _ask(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextmanager
def ari_bridge(asterisk: Asterisk, server_port: int, **settings: Any) -> Iterator[AriBridge]:
    """Run a connected bridge during the body. Afterwards it must have no call and stop when asked. `settings` are
    those of `ari`."""
    given = {
        "server.url": f"ws://127.0.0.1:{server_port}/media/native",
        "audiosocket.port": 0,
        "http.port": 0,
        "drain_s": 1.0,
        "ari.enabled": True,
        "ari.url": f"ws://127.0.0.1:{asterisk.http_port}/ari",
        "ari.user": "tts",
        "ari.password": "tts",
        "ari.app": "tts",
        "ari.websocket_client": "tts_media",
        "ari.originate.token": TOKEN,
        **{f"ari.{key.replace('__', '.')}": value for key, value in settings.items()},
    }
    started: queue.Queue[AriBridge | BaseException] = queue.Queue()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        bridge = SipBridge(load(None, given, {}))
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with bridge.running() as listening:
            stop.append(lambda: loop.call_soon_threadsafe(over.set))
            started.put(AriBridge(bridge, listening.http_port))
            await over.wait()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left: {left}"

    failed: list[BaseException] = []

    def body() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            failed.append(error)
            started.put(error)

    thread = threading.Thread(target=body, name="bridge")
    thread.start()
    running = started.get(timeout=TIMEOUT_S)
    if isinstance(running, BaseException):
        raise running
    try:
        running.wait_ready()
        yield running
        wait_until(lambda: not running.n_calls, "the bridge has no call left", 5)
    finally:
        for each in stop:
            each()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "the bridge has not ended"
    if failed:
        raise failed[0]
