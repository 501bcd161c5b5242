"""Where engine servers are: the addresses of a setting or a flag. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from telephony_tts.runtime.errors import ConfigError

EXAMPLES = "unix:/run/telephony-tts/engine.sock or 10.0.0.5:8090"
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """`path` of a Unix socket, or `host` and `port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: a Unix socket or the loopback address."""
        if self.path:
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def parse_address(text: str) -> EngineAddress:
    """Read one address. Raises ConfigError, whose message says what is expected."""
    text = text.strip()
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or "\0" in path:
            raise ConfigError(f"{text!r} has no absolute path; expected an address such as {EXAMPLES}")
        # The system's own limit (sockaddr_un) is 108 bytes with the zero behind it.
        if len(path.encode("utf-8", "surrogateescape")) > 107:
            raise ConfigError(f"{text!r} is too long; the path of a Unix socket has at most 107 bytes")
        return EngineAddress(path=path)
    match = _HOST_PORT.fullmatch(text)
    if match is None or not 0 <= int(match[2]) <= 65_535:
        raise ConfigError(f"{text!r} is not an address; expected one such as {EXAMPLES}")
    return EngineAddress(host=match[1], port=int(match[2]))


def parse_addresses(text: str) -> tuple[EngineAddress, ...]:
    """Read addresses that are separated by commas. Raises ConfigError."""
    found = tuple(dict.fromkeys(parse_address(each) for each in text.split(",") if each.strip()))
    if not found:
        raise ConfigError(f"no address; expected one such as {EXAMPLES}")
    for address in found:
        if not address.path and address.port == 0:
            raise ConfigError(f"{address} has no port; expected an address such as {EXAMPLES}")
    return found
