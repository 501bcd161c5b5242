"""Which web pages may use the server. A browser sends the page's origin in `Origin`; programs send no `Origin`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

_AUTHORITY = r"(?P<host>\[[0-9a-f:.]+\]|[^][:/?#@\s]+)(?::(?P<port>[0-9]{1,5}))?"
_HOST = re.compile(_AUTHORITY)
_PAGE = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://" + _AUTHORITY)
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_PRIVATE_ENDINGS = (".localhost", ".internal", ".local", ".test", ".home.arpa")
"""Top-level names that no registry gives away (RFC 6761, RFC 6762, RFC 8375, and ICANN's `internal`)."""


class Origin(NamedTuple):
    """The part of a page's address before its path. `port` is None for schemes without a default port."""

    scheme: str
    host: str
    port: int | None


def parse_origin(text: str) -> Origin | None:
    """Parse an origin. None for other text, such as "null", which browsers send for files and sandboxed frames."""
    found = _PAGE.fullmatch(text.lower())
    if found is None:
        return None
    scheme, port = found["scheme"], found["port"]
    return Origin(scheme, found["host"], int(port) if port else _PORTS.get(scheme))


def is_allowed(
    origin: str, host: str, local_address: str, listed: Sequence[str], public_url: str | None, *, has_tokens: bool
) -> bool:
    """Whether a page may open this connection.

    `origin` and `host` are the request's headers, `local_address` is the server's end of the connection. `listed` has
    origins, or "*" for all. Pages of the request's host and of `public_url` may open it too. `has_tokens`: the server
    also asks for a token.
    """
    if "*" in listed:
        return True
    page = parse_origin(origin)
    if page is None:
        return False
    if page in map(parse_origin, listed):
        return True
    ours = public_url and parse_origin("/".join(public_url.split("/", 3)[:3]))
    if ours and page[1:] == ours[1:]:
        return True
    named = _HOST.fullmatch(host.lower())
    if named is None or named["host"] != page.host:
        return False
    # A Host without a port means the default port. Only a proxy may know whether that is 80 or 443.
    if page.port not in ((int(named["port"]),) if named["port"] else _PORTS.values()):
        return False
    # DNS rebinding: evil.example can resolve to any address of the server, and its page then has the same host as its
    # requests. So a host name proves nothing on loopback, or to a server that asks for no token.
    if is_loopback(page.host):
        return True
    return not is_loopback(local_address) and (has_tokens or _is_address(page.host))


def may_be_rebound(host: str, local_address: str, listed: Sequence[str], public_url: str | None) -> bool:
    """Whether a request without `Origin` may come from a page that uses DNS rebinding: its `host` is a name that
    anyone could have registered, and it came to `local_address` on loopback.

    Browsers send no `Origin` with a GET to the page's own host. Names of the operator, in `listed` and `public_url`,
    are trusted, and so are names that no public registry gives away.
    """
    named = _HOST.fullmatch(host.lower())
    if named is None or not is_loopback(local_address) or "*" in listed:
        return False
    name = named["host"].rstrip(".")
    if _is_address(name) or "." not in name or name.endswith(_PRIVATE_ENDINGS):
        return False
    ours = [*listed, *(["/".join(public_url.split("/", 3)[:3])] if public_url else [])]
    return all(page is None or page.host != name for page in map(parse_origin, ours))


def _is_address(host: str) -> bool:
    """Whether `host` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or an address always means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
