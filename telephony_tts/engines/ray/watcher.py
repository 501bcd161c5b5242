"""The program of a process beside a front: it tells where the replicas of an application are, whenever that changes.

The front reads its standard output: JSON lines with `replicas`, or with a `problem`. It is a process of its own because
a connection to Ray brings threads that take CPU from calls, and because a driver ends when its cluster ends. It ends
when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from telephony_tts.engines.ray.reach import connect, said
from telephony_tts.engines.ray.replicas import NAMESPACE, directory_name
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import shell_command

POLL_S = 2.0
"""A question waits so long for a change."""
ANSWER_S = 10.0
PAUSE_S = 0.5
SILENT_S = 15
"""Without an answer for so long this process ends, and the front starts another one: a connection to a head that died
does not reach the next head."""
UNKNOWN_S = 60
"""The same while the cluster answers that it has no such application: it may be the answer of another cluster."""


class _Progress:
    """When this process must end."""

    def __init__(self) -> None:
        self._end_ns = 0
        self.until(UNKNOWN_S)

    def until(self, seconds: int) -> None:
        self._end_ns = monotonic_ns() + seconds * NS_PER_S

    def end_in_time(self) -> None:
        """Run this in a thread: Ray may wait in its own code."""
        pause = threading.Event()
        while monotonic_ns() < self._end_ns:
            pause.wait(PAUSE_S)
        _say(problem="the Ray cluster does not answer; connecting anew")
        os._exit(1)


def main() -> None:
    """The arguments: the address of the cluster, and the application's name."""
    address, app = sys.argv[1], sys.argv[2]
    progress = _Progress()
    for work in (_end_with_the_front, progress.end_in_time):
        threading.Thread(target=work, daemon=True).start()
    try:
        ray = connect(address, namespace=NAMESPACE)
    except Exception as error:
        _say(problem=f"the Ray cluster at {address} cannot be used: {said(error)}")
        os._exit(1)
    try:
        _watch(ray, app, progress)
    except Exception as error:  # a connection by ray:// that was lost raises ConnectionError, and cannot be used again
        _say(problem=f"the Ray cluster at {address} was lost: {said(error)}")
        os._exit(1)


def _watch(ray: Any, app: str, progress: _Progress) -> None:
    pause = threading.Event()
    version: int | None = None
    directory: Any = None
    progress.until(UNKNOWN_S)
    while True:
        try:
            if directory is None:
                directory = ray.get_actor(directory_name(app), namespace=NAMESPACE)
            answer = ray.get(directory.changed_since.remote(version, POLL_S), timeout=ANSWER_S)
            if answer is not None:
                version, replicas = answer
                _say(replicas=replicas)
            progress.until(SILENT_S)
            continue
        except ValueError:
            start = shell_command("telephony-tts ray up")
            _say(problem=f"no application {app!r} runs on this Ray cluster; start it: {start}")
        except (ray.exceptions.RayError, TimeoutError) as error:
            _say(problem=f"the list of replicas is not there: {said(error)}")
        directory = version = None
        pause.wait(PAUSE_S)


def _say(**what: Any) -> None:
    try:
        print(json.dumps(what), flush=True)
    except OSError:
        os._exit(0)  # the front is gone


def _end_with_the_front() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
