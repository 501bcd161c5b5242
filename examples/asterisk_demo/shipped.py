"""An Asterisk configured by the files a user copies, at ports of its own."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asterisk_peer import Asterisk, asterisk, free_port

FILES = Path(__file__).resolve().parents[2] / "configs" / "asterisk"


@contextmanager
def shipped_asterisk(
    media_uri: str, audiosocket: str = "127.0.0.1:1", *, sip_port: int | None = None
) -> Iterator[Asterisk]:
    """configs/asterisk, where our server's and our bridge's addresses, and Asterisk's own ports, are others: those
    given, or free ones.

    Raises AssertionError where the files do not have an address that is to be another.
    """
    sip_port = sip_port or free_port(socket.SOCK_DGRAM)
    http_port = free_port(socket.SOCK_STREAM)
    others = {
        "ws://127.0.0.1:8080/media/asterisk": media_uri,
        "127.0.0.1:9092": audiosocket,
        "127.0.0.1:5060": f"127.0.0.1:{sip_port}",
        "bindport = 8088": f"bindport = {http_port}",
    }
    with tempfile.TemporaryDirectory() as folder:
        found = set()
        for file in FILES.glob("*.conf"):
            text = file.read_text()
            for ours, theirs in others.items():
                found |= {ours} & {ours if ours in text else None}
                text = text.replace(ours, theirs)
            (Path(folder) / file.name).write_text(text)
        assert found == set(others), f"not in configs/asterisk: {set(others) - found}"
        with asterisk([Path(folder)], SIP_PORT=str(sip_port), HTTP_PORT=str(http_port)) as running:
            yield running
