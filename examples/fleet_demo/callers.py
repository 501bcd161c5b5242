"""Callers that hear one sentence after the other, and note how long they waited for each frame."""

from __future__ import annotations

import json
import threading
import time

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

TEXT = "Thank you for calling. Your order was sent this morning, and it will arrive tomorrow before noon."
MESSAGE_S = 20.0


class Caller(threading.Thread):
    """One call, until `stop` is set. The turn that is spoken then is heard to its end."""

    def __init__(self, name: str, port: int, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._address = f"ws://127.0.0.1:{port}/v1/stream?audio=binary"
        self._ends = stop
        self.n_done = 0
        self.n_replaced = 0
        """Sentences that more than one replica spoke."""
        self.errors: list[str] = []
        self.longest_wait_ms = 0.0
        """The longest time between two frames of a turn; 20 ms where nothing happens."""

    def run(self) -> None:
        try:
            with connect(self._address, proxy=None) as bot:
                while not self._ends.is_set():
                    self._hear(bot)
        except (OSError, TimeoutError, WebSocketException) as error:
            self.errors.append(f"the connection: {error or type(error).__name__}")

    def _hear(self, bot: ClientConnection) -> None:
        """One turn to its end."""
        bot.send(json.dumps({"type": "say", "text": TEXT}))
        last_s: float | None = None
        while True:
            message = bot.recv(timeout=MESSAGE_S)
            if isinstance(message, bytes):
                now_s = time.monotonic()
                if last_s is not None:
                    self.longest_wait_ms = max(self.longest_wait_ms, 1000 * (now_s - last_s))
                last_s = now_s
                continue
            event = json.loads(message)
            if event["type"] == "sentence":
                self.n_replaced += len(event.get("engines", ())) > 1
            elif event["type"] == "error":
                self.errors.append(event["message"])
                return
            elif event["type"] == "done":
                self.n_done += 1
                return
