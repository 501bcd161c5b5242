"""An Asterisk with the files of configs/asterisk, at other ports."""

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
    """Run an Asterisk with configs/asterisk. The given addresses of the server and the bridge replace those in the
    files, and free ports replace those of Asterisk.

    Raises AssertionError if the files do not have an address that must be replaced.
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
