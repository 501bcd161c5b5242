"""A client in a process of its own that sends one message very often and counts the answers: URL MESSAGE N.

In the test's process, reading the answers would take the event loop's time from the neighbouring call.
"""

from __future__ import annotations

import json
import sys

from raw_peer import frame
from websockets.sync.client import connect


def main(url: str, message: str, n: int) -> None:
    """Print how many events came back before the last pong."""
    said = json.loads(message)
    with connect(url, compression=None, proxy=None, max_queue=None) as peer:
        peer.recv()
        peer.socket.sendall(frame(said) * n + frame({"type": "ping", "id": "end"}))
        n_events = 0
        while True:
            event = json.loads(peer.recv(timeout=20))
            if event["type"] == "pong" and event.get("id") == "end":
                break
            n_events += 1
    print(n_events)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
