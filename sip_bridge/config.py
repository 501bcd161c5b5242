"""Every setting of the bridge, its default, and the one place that reads its file and environment.

`load()` merges, weakest first: the defaults below, a YAML file, the environment, the caller's overrides. One
`ConfigError` lists every problem at once. Secrets appear neither in the repr of a section nor in an error.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from sip_bridge.ari.config import ORIGINATE_TOKEN_VARIABLE, PASSWORD_VARIABLE, AriConfig
from sip_bridge.freeswitch.config import ESL_PASSWORD_VARIABLE, FreeSwitchConfig
from telephony_tts.runtime.schema import Between, OneOf, Url, read_section, show
from telephony_tts.runtime.settings_tree import put_given, raise_problems, read_tree

Port = Annotated[int, Between(0, 65_535)]
Seconds = Annotated[float, Between(0.001, 3_600)]

TOKEN_VARIABLE = "TELEPHONY_SIP_BRIDGE_TOKEN"

_SECRETS = {
    "server.token": TOKEN_VARIABLE,
    "ari.password": PASSWORD_VARIABLE,
    "ari.originate.token": ORIGINATE_TOKEN_VARIABLE,
    "freeswitch.password": ESL_PASSWORD_VARIABLE,
}
"""Which setting comes from which environment variable."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TtsServerConfig:
    """The telephony-tts server. The URL may hold a secret, so it is left out of the repr."""

    url: Annotated[str, Url(("ws", "wss"))] = field(default="ws://127.0.0.1:8080/media/native", repr=False)
    token: str | None = field(default=None, repr=False)
    lead_ms: Annotated[int, Between(0, 1_000)] = 100
    connect_timeout_s: Annotated[float, Between(0.1, 60)] = 4.0
    slow_reader_s: Seconds = 2.0
    ping_interval_s: Seconds = 20.0

    def conflicts(self) -> Iterator[str]:
        if self.token is not None and (not self.token.isascii() or not self.token.isprintable() or " " in self.token):
            yield "token: must be visible ASCII characters without spaces"


@dataclass(frozen=True, slots=True)
class AudioSocketConfig:
    """Where Asterisk connects, and from which addresses. Without `rate_hz` a call has the rate of its first audio."""

    host: str = "127.0.0.1"
    port: Port = 9092
    allowed: tuple[str, ...] = ("127.0.0.0/8", "::1")
    rate_hz: Annotated[int | None, OneOf((8_000, 16_000, 24_000, 48_000))] = None
    max_calls: Annotated[int, Between(1, 100_000)] = 200
    uuid_timeout_s: Seconds = 3.0
    slow_reader_s: Seconds = 2.0
    max_queue_ms: Annotated[int, Between(200, 60_000)] = 3_000

    @property
    def networks(self) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(text) for text in self.allowed)

    def conflicts(self) -> Iterator[str]:
        for text in self.allowed:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                yield f"allowed: {show(text)} is wrong ({error}); expected an address or a network such as 10.1.0.0/16"
        if not self.allowed:
            yield "allowed: is empty, so no call could come in; expected addresses or networks"

    def allows(self, peer: str) -> bool:
        """Whether a connection from the address `peer` may come in."""
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """/healthz, /readyz and /metrics."""

    host: str = "127.0.0.1"
    port: Port = 9093


@dataclass(frozen=True, slots=True)
class BridgeLogConfig:
    level: Annotated[str, OneOf(("debug", "info", "warning", "error"))] = "info"
    format: Annotated[str, OneOf(("json", "text"))] = "json"

    @property
    def spoken_text(self) -> bool:
        """False: no text passes through the bridge, so none can be logged."""
        return False


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    server: TtsServerConfig = field(default_factory=TtsServerConfig)
    audiosocket: AudioSocketConfig = field(default_factory=AudioSocketConfig)
    ari: AriConfig = field(default_factory=AriConfig)
    freeswitch: FreeSwitchConfig = field(default_factory=FreeSwitchConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    log: BridgeLogConfig = field(default_factory=BridgeLogConfig)
    drain_s: Annotated[float, Between(0, 3_600)] = 30.0

    def conflicts(self) -> Iterator[str]:
        if self.audiosocket.max_queue_ms < self.server.lead_ms + 160:
            yield f"audiosocket.max_queue_ms: must be at least server.lead_ms + 160 ({self.server.lead_ms + 160})"
        if self.ari.enabled and self.ari.password is None:
            yield f"ari.password: is needed, as in Asterisk's ari.conf; or set {PASSWORD_VARIABLE}"
        if self.freeswitch.enabled and self.freeswitch.password is None:
            yield f"freeswitch.password: is needed, as in event_socket.conf.xml; or set {ESL_PASSWORD_VARIABLE}"


def load(
    path: str | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BridgeConfig:
    """Read the settings. `overrides` has dotted keys ("audiosocket.port"). Raises ConfigError, one line per problem."""
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    tree = {} if path is None else read_tree(path, BridgeConfig, problems)
    put_given(tree, {key: environ.get(variable) or None for key, variable in _SECRETS.items()})
    put_given(tree, overrides or {})
    config = read_section(BridgeConfig, tree, problems)
    raise_problems(path, problems)
    return config
