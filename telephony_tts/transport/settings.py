"""The settings of the server, and the sections of the configuration that they come from.

`telephony_tts.app.config` reads the sections `server`, `limits`, `bot`, `vendors` and `sounds` straight into the
classes here, so each setting and its allowed values are declared once. A door has the class of its own section.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from telephony_tts.experiments.running import Experiments
from telephony_tts.ops.keys.key import NO_KEY, Key, KeyRing
from telephony_tts.runtime.schema import Between, OneOf, Spelt, Url, show
from telephony_tts.session.settings import CallLimits, Count, SessionSettings
from telephony_tts.session.sound_source import FindSound
from telephony_tts.transport.call_catalog import VoiceOwners
from telephony_tts.transport.door import Door, Doors

Section = TypeVar("Section")
Seconds = Annotated[float, Between(0.001, 86_400)]

ORIGIN = Spelt(
    r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[1-9][0-9]{0,4})?",
    'an origin as browsers send it, in lower case and without a path: "https://console.example.com"; or "*" for all',
)


_SOUND_URL = Url(("http", "https"))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; both or neither. The first line of `passphrase_file` is the passphrase of an encrypted key."""

    cert: str | None = None
    key: str | None = None
    passphrase_file: str | None = None

    def conflicts(self) -> Iterator[str]:
        if (self.cert is None) != (self.key is None):
            yield f"{'cert' if self.cert is None else 'key'}: missing; a certificate and its key go together"
        elif self.key is None and self.passphrase_file is not None:
            yield "key: missing; passphrase_file is for an encrypted key"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The section `server`: the listening socket and who may use it. Without `tokens` everyone who reaches it may.

    `tokens` is the union of the file's list, the lines of `tokens_file`, TELEPHONY_TTS_TOKENS and `supervisor_tokens`,
    with which people also listen to calls, end them and play recordings in the console. `open` allows a public server
    without tokens (`app.settings.why_tokens_are_needed`); it makes no token optional. `origins` lists web pages that
    may use the server, beside those of its own host and of `public_url`; "*" allows all.

    `processes` front processes share the port; "auto" is one for each core. What they must agree on is in
    `runtime_folder`, or in memory. `console` serves the page `/console/`.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Between(0, 65_535)] = 8080
    tokens: tuple[str, ...] = field(default=(), repr=False)
    tokens_file: str | None = None
    supervisor_tokens: tuple[str, ...] = field(default=(), repr=False)
    open: bool = False
    metrics_without_token: bool = True
    tls: TlsFiles = field(default_factory=TlsFiles)
    public_url: Annotated[str | None, Url(("wss", "ws", "https", "http"))] = None
    origins: tuple[str, ...] = ()
    drain_s: Annotated[float, Between(0, 3_600)] = 30.0
    drain_calls_s: Annotated[float, Between(0, 86_400)] = 0.0
    max_message_bytes: Annotated[int, Between(1_024, 16_777_216)] = 65_536
    slow_reader_s: Seconds = 5.0
    ping_interval_s: Seconds = 20.0
    processes: Annotated[int | Literal["auto"], Between(1, 64)] = 1
    runtime_folder: str | None = None
    console: bool = True

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can connect to `host`. Any name but localhost counts as public."""
        return _is_loopback(self.host)

    @property
    def is_public_elsewhere(self) -> bool:
        """Whether `public_url` says that a proxy or a tunnel leads here from other machines."""
        return self.public_url is not None and not _is_loopback(urlsplit(self.public_url).hostname or "")

    def conflicts(self) -> Iterator[str]:
        for origin in self.origins:
            if origin != "*" and not ORIGIN.accepts(origin):
                yield f"origins: {show(origin)} is wrong; expected {ORIGIN.expected('text')}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class ServerLimits(CallLimits):
    """The section `limits`: what the server and each call may use. Beyond a limit there is a clear error, so that the
    other calls do not become slower."""

    calls: Count = 200
    call_claim_s: Seconds = 20.0
    max_frame_lateness_ms: Annotated[int, Between(1, 10_000)] = 100


@dataclass(frozen=True, slots=True)
class BotSettings:
    """The section `bot`. With `url` the server dials the bot for each media call.

    The URL may carry a secret, so it is not shown.
    """

    url: Annotated[str | None, Url(("ws", "wss"))] = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    connect_timeout_s: Seconds = 5.0
    inbound: Annotated[str, OneOf(("none", "base64", "binary"))] = "none"


@dataclass(frozen=True, slots=True)
class VendorSettings:
    """The section `vendors`: bots that speak the protocols of other vendors, and HTTP clients.

    Audio on such a socket is sent at most `burst_ahead_s` beyond what would be playing. `voice_names` maps a
    vendor's name for a voice to one of ours. A bot that joined a call may come back within `rejoin_s`, because
    some frameworks open a new socket after each interruption. `http_streams` is how many HTTP requests may be spoken
    at once, beside the calls. `request_chars` and `request_bytes` limit the text and the body of one request.
    """

    burst_ahead_s: Annotated[float, Between(0.1, 600)] = 10.0
    rejoin_s: Annotated[float, Between(0, 3_600)] = 60.0
    voice_names: Mapping[str, str] = field(default_factory=dict)
    http_streams: Count = 256
    request_chars: Count = 100_000
    request_bytes: Count = 32_000_000


@dataclass(frozen=True, slots=True)
class SoundSettings:
    """The section `sounds`: what `play` can play, beside the sounds that are included.

    A sound is a file in `folder` of at most `max_mb` and `max_s`. At most `memory_mb` of sounds are kept in memory, at
    the rates that calls asked for. A bot may also name an address that begins with one of `urls`; it is fetched within
    `fetch_s`.
    """

    folder: str | None = None
    max_s: Annotated[float, Between(0.01, 3_600)] = 600.0
    max_mb: Annotated[int, Between(1, 1_000)] = 32
    memory_mb: Annotated[int, Between(1, 100_000)] = 128
    urls: tuple[str, ...] = ()
    fetch_s: Annotated[float, Between(0.1, 60)] = 5.0

    def conflicts(self) -> Iterator[str]:
        for url in self.urls:
            if not _SOUND_URL.accepts(url):
                yield f"urls: {show(url)} is wrong; expected the beginning of addresses: https://example.com/sounds/"


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """What the transport gets once, at start-up: sections of the configuration, and objects made from them.

    `speech` is what a call starts with. `find_sound` finds the sounds of the section `sounds`. `keys` are the tokens of
    `server` and the named keys; both change while the server runs, as `experiments` do. `token_lexicons` has the names
    of the lexicons for bots with a token, `key_lexicons` those for bots with a named key. `owners` knows whose voices
    are whose. `tls` has the loaded certificate of `server.tls`. `doors` are the ways in, `sections` their
    settings by their names.
    """

    speech: SessionSettings = field(default_factory=SessionSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: ServerLimits = field(default_factory=ServerLimits)
    bot: BotSettings = field(default_factory=BotSettings)
    vendors: VendorSettings = field(default_factory=VendorSettings)
    doors: Doors = field(default_factory=Doors)
    sections: Mapping[str, Any] = field(default_factory=dict, repr=False)
    find_sound: FindSound | None = None
    token_lexicons: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    key_lexicons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: KeyRing = field(default_factory=KeyRing)
    experiments: Experiments = field(default_factory=Experiments)
    owners: VoiceOwners | None = None
    tls: ssl.SSLContext | None = None
    media_start_s: float = 10.0

    def lexicons_for(self, keys: Iterable[bytes], key: Key = NO_KEY) -> tuple[str, ...]:
        """The names of the lexicons for a bot that presents these tokens, of which `key` is known."""
        of_key = self.key_lexicons.get(key.name, ()) if key.name else ()
        if not self.token_lexicons:
            return of_key
        given = list(keys)
        of_tokens = tuple(
            name
            for token, names in self.token_lexicons.items()
            if any([hmac.compare_digest(token.encode(), key) for key in given])
            for name in names
        )
        return of_key + of_tokens

    def section(self, door: Door) -> Any:
        """The section of the configuration that belongs to a door. None if the door has no settings."""
        if door.settings is None:
            return None
        return self.sections[door.name] if door.name in self.sections else door.settings()

    def of(self, kind: type[Section]) -> Section:
        """The section of the configuration that is a `kind`, the class of a door's settings."""
        return next((each for each in self.sections.values() if isinstance(each, kind)), kind())
