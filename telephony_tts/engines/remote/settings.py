"""The section `engines.remote`: engine servers, and what encrypts the connection to them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from telephony_tts.engines.remote.addresses import parse_addresses
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.schema import Between


@dataclass(frozen=True, slots=True)
class EngineTlsFiles:
    """PEM files for TLS between a front and an engine server. `ca` signed the other side's certificate; `cert` and
    `key` are this side's own. A front needs `ca`, an engine server `cert` and `key`."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def conflicts(self) -> Iterator[str]:
        if (self.cert is None) != (self.key is None):
            yield f"{'cert' if self.cert is None else 'key'}: missing; a certificate and its key go together"


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """An engine in another process or on another machine, which `telephony-tts engine serve` serves. Without `target`
    it is off. Several targets, separated by commas, are replicas of one engine."""

    target: str | None = None
    token: str | None = field(default=None, repr=False)
    tls: EngineTlsFiles = field(default_factory=EngineTlsFiles)
    start_timeout_s: Annotated[float, Between(0.1, 3_600)] = 60.0

    def conflicts(self) -> Iterator[str]:
        if self.target is None:
            return
        try:
            addresses = parse_addresses(self.target)
        except ConfigError as error:
            yield f"target: {error.message}"
            return
        for address in addresses:
            if not address.is_local and self.token is None:
                yield f"token: missing; {address} is on another machine. Set the same token there and here"
                break
        if self.tls.cert is not None and self.tls.ca is None:
            yield "tls.ca: missing; without it a front cannot know the engine server by its certificate"

    @property
    def targets(self) -> tuple[str, ...]:
        """The addresses, as gRPC names them."""
        return () if self.target is None else tuple(map(str, parse_addresses(self.target)))
