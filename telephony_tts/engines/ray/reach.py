"""Whether something listens at the address of a Ray cluster. Ray itself takes a minute to say that nothing does."""

from __future__ import annotations

import re
import socket

CONNECT_S = 5.0
_HOST_PORT = re.compile(r"(?:ray://)?(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")


def check_reachable(address: str) -> None:
    """Raises ConnectionError. An address without host and port, such as "auto", is left to Ray."""
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match[1] or match[2], int(match[3])), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing answers there: {getattr(error, 'strerror', None) or error}") from error
