"""The address of a handshake as a platform may have signed it."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(wss?|https?)://(\[[^\]]*\]|[^/?#:@\[]+)(?::[0-9]*)?([/?#].*)?", re.DOTALL)


def spellings(url: str) -> tuple[str, ...]:
    """`url` unchanged, without its port, and with the scheme's default port."""
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        return (url,)
    scheme, host, path = parts.groups(default="")
    port = 443 if scheme in ("wss", "https") else 80
    return (url, f"{scheme}://{host}{path}", f"{scheme}://{host}:{port}{path}")


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
