"""Connects to a Ray cluster, and tells why that failed. The commands and the watcher beside a front use it."""

from __future__ import annotations

import re
import socket
from typing import Any

CONNECT_S = 5.0
TRIES = 3
"""So often a connection by `ray://` is tried. The head starts a process for each such client, and gRPC may crash that
process while it is forked (ray-project/ray#63202)."""
_HOST_PORT = re.compile(r"(?:ray://)?(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")
_TRACEBACK = "Traceback (most recent call last):"
_MOST_CHARS = 600


def connect(address: str, **options: Any) -> Any:
    """The package `ray`, connected to the cluster. Raises ConnectionError and errors of Ray."""
    check_reachable(address)  # before Ray is imported, which takes a second of computing
    import ray

    for n in range(1, TRIES + 1):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
            break
        except ConnectionAbortedError as error:
            if n == TRIES:
                raise ConnectionError(
                    f"{said(error)[:400]} ({TRIES} tries). If that file is empty, gRPC crashed the process: start the "
                    "head with GRPC_ENABLE_FORK_SUPPORT=0 in its environment"
                ) from error
    return ray


def check_reachable(address: str) -> None:
    """Raises ConnectionError if nothing listens. Ray itself takes a minute to say so.

    An address without host and port, such as "auto", is left to Ray.
    """
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match[1] or match[2], int(match[3])), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing answers there: {getattr(error, 'strerror', None) or error}") from error


def said(error: BaseException | str) -> str:
    """What an error says, in one line. Of a traceback inside it, the exception at its end."""
    text = str(error)
    before, traceback, _ = text.partition(_TRACEBACK)
    lines = _lines(before)[:3]
    if traceback:
        # The calls are indented, and the exception is not.
        _, _, last = text.rpartition(_TRACEBACK)
        rest = last.splitlines()[1:]
        n_calls = next((n for n, line in enumerate(rest) if line.strip() and not line[0].isspace()), 0)
        lines += _lines("\n".join(rest[n_calls:]))[:2]
    return " ".join(lines)[:_MOST_CHARS].rstrip(".") or type(error).__name__


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
