"""Fetching a sound by its address, for `play` with `url`. Blocking: the store of sounds calls it in a thread.

A bot may name any address, and the server stands in the operator's network. So only addresses that begin as the
operator allows are fetched, no redirect is followed, and a host that resolves to a private address is refused, unless
the operator allowed that address itself. What is fetched is bounded by its size and by a time for all of it.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import SoundError

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses that are in use on the Internet. Python counts some others as global too, such as site-local ones.
"""
_MOST_DECODINGS = 4
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PIECE_BYTES = 64 << 10
_HEADERS = {"Accept": "audio/*, */*;q=0.1", "Accept-Encoding": "identity"}
_TYPES = re.compile(r"audio/|application/(ogg|octet-stream|x-wav)\b|binary/octet-stream|video/(mp4|webm|ogg)", re.I)
"""What a server may call a sound. Without a type it is read too; the decoder decides."""


@dataclass(frozen=True, slots=True)
class SoundAddress:
    """The parts of an address. `target` is what stands in the request: path and query."""

    scheme: str
    host: str
    port: int
    path: str
    target: str

    @classmethod
    def of(cls, url: str) -> SoundAddress:
        """Raises ValueError for what is not a plain http or https address."""
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        if not port or not parts.hostname or "@" in parts.netloc or not url.isascii() or not url.isprintable():
            raise ValueError("it is not an address with http or https")
        if " " in url or "\\" in url or any(map(_steps_up, _readings(parts.path))):
            raise ValueError("its path is not plain")
        if has_control(url):
            raise ValueError("it has a control character")
        path = parts.path or "/"
        return cls(parts.scheme, parts.hostname, port, path, f"{path}?{parts.query}" if parts.query else path)

    @property
    def shown(self) -> str:
        """For messages: a query may have a secret."""
        return f"{self.scheme}://{self.host}{self.path}"

    def is_within(self, allowed: SoundAddress) -> bool:
        same = (self.scheme, self.host, self.port) == (allowed.scheme, allowed.host, allowed.port)
        return same and self.path.startswith(allowed.path)

    @property
    def names_the_machine(self) -> bool:
        """Whether the host is an IP address or localhost, so that the operator who allowed it meant that machine."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return self.host == "localhost"
        return True


def _readings(text: str) -> Iterator[str]:
    """How servers on the way may read a part of an address: some decode it more than once. Raises ValueError for one
    that is encoded too often."""
    for _ in range(_MOST_DECODINGS):
        yield text
        text, before = unquote(text), text
        if text == before:
            return
    raise ValueError("it is encoded too often")


def _steps_up(path: str) -> bool:
    """Whether some server may read a step to the folder above in a decoded path: some drop what stands behind a
    semicolon, or read a backslash as a slash."""
    return any(step.partition(";")[0] == ".." for step in path.replace("\\", "/").split("/"))


def has_control(url: str) -> bool:
    """Whether some server may read a control character: one may end the address there, or begin a new header."""
    return any(_CONTROL.search(reading) for reading in _readings(url))


def fetch_sound(url: str, allowed: Sequence[str], max_bytes: int, within_s: float) -> bytes:
    """The content of `url`, if it begins with one of `allowed`. Raises SoundError."""
    try:
        address = SoundAddress.of(url)
    except ValueError as error:
        raise SoundError(f"the sound's address cannot be used: {error}") from error
    if not any(_allows(prefix, address) for prefix in allowed):
        raise SoundError(f"{address.shown} is not fetched: the server's sounds.urls allows no address that begins so")
    until_ns = monotonic_ns() + round(within_s * NS_PER_S)
    try:
        return _fetched(address, max_bytes, until_ns)
    except (OSError, http.client.HTTPException) as error:
        is_late = isinstance(error, TimeoutError) or monotonic_ns() >= until_ns
        why = f"it takes longer than {within_s:g} s (sounds.fetch_s)" if is_late else str(error) or type(error).__name__
        raise SoundError(f"{address.shown} cannot be fetched: {why[:200]}") from error


def _allows(prefix: str, address: SoundAddress) -> bool:
    try:
        return address.is_within(SoundAddress.of(prefix))
    except ValueError:
        return False


class _TlsConnection(http.client.HTTPConnection):
    """A connection whose socket has TLS already. `Host` names its port unless it is this one."""

    default_port = _PORTS["https"]


def _fetched(address: SoundAddress, max_bytes: int, until_ns: int) -> bytes:
    sock = _connected(address, until_ns)
    kind_of_connection = _TlsConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind_of_connection(address.host, address.port)
    connection.sock, connection.auto_open = sock, 0
    response: http.client.HTTPResponse | None = None
    watch: threading.Timer | None = None
    try:
        # The time of a socket counts from each byte, so a server that sends one now and then would hold the thread.
        watch = threading.Timer(_left_s(until_ns), _shut, (sock,))
        watch.daemon = True
        watch.start()
        connection.request("GET", address.target, headers=_HEADERS)
        response = connection.getresponse()
        if response.status != 200:
            raise SoundError(f"{address.shown} cannot be fetched: its server answered {response.status}")
        kind = response.headers.get("Content-Type", "")
        if kind and not _TYPES.match(kind.strip()):
            raise SoundError(f"{address.shown} is not a sound: its server calls it {kind[:60]}")
        pieces: list[bytes] = []
        n_bytes = 0
        while piece := response.read1(_PIECE_BYTES):
            pieces.append(piece)
            n_bytes += len(piece)
            if n_bytes > max_bytes:
                raise SoundError(f"{address.shown} has more than {max_bytes} bytes (sounds.max_mb)")
        _left_s(until_ns)  # what was cut off by the time looks like its end
        promised = response.headers.get("Content-Length", "")
        if promised.isdecimal() and n_bytes < int(promised):
            raise SoundError(f"{address.shown} is not complete: {n_bytes} of {promised} bytes came")
        return b"".join(pieces)
    finally:
        if watch is not None:
            watch.cancel()
        if response is not None:
            response.close()
        connection.close()
        sock.close()


def _connected(address: SoundAddress, until_ns: int) -> socket.socket:
    """A socket that is connected to an address that was checked: a second look-up might give another one.

    The addresses of the host are tried in their order, each for an equal share of the time that is left.
    """
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    usable = [item for item in found if address.names_the_machine or _is_public(str(item[4][0]))]
    failure = OSError("its host has no public address (an address of your own network has to stand in sounds.urls)")
    for n_tried, (family, kind, protocol, _, place) in enumerate(usable):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # this machine does not have the address family
            failure = error
            continue
        try:
            sock.settimeout(_left_s(until_ns) / (len(usable) - n_tried))
            sock.connect(place)
        except OSError as error:
            failure = error
            sock.close()
            continue
        return _secured(sock, address, until_ns)
    raise failure


def _secured(sock: socket.socket, address: SoundAddress, until_ns: int) -> socket.socket:
    """The connected socket, with TLS if the address has https."""
    try:
        sock.settimeout(_left_s(until_ns))
        if address.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)
        sock.settimeout(_left_s(until_ns))
    except BaseException:
        sock.close()
        raise
    return sock


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = _inner_address(found) if isinstance(found, ipaddress.IPv6Address) else None
    if isinstance(found, ipaddress.IPv6Address) and found not in _GLOBAL_UNICAST and found not in _NAT64:
        return False
    return all(each.is_global and not each.is_multicast for each in (found, inner) if each is not None)


def _inner_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets to this one reach through a gateway, which may be a private one: IPv4-mapped,
    NAT64 (RFC 6052), 6to4, Teredo."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo is not None else None)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _left_s(until_ns: int) -> float:
    left_s = (until_ns - monotonic_ns()) / NS_PER_S
    if left_s <= 0:
        raise TimeoutError
    return left_s
