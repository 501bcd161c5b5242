"""A door: all that one platform or vendor needs to be served here. Each is a folder of `doors` with a record.

The transport, the HTTP interface, the configuration and the metrics read the records. None of them knows a door by its
name, so a new one is a new folder, and the server works without any one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from websockets.datastructures import Headers

if TYPE_CHECKING:
    from telephony_tts.runtime.errors import TelephonyTTSError
    from telephony_tts.transport.call import EngineCatalog
    from telephony_tts.transport.connection import CallConnection
    from telephony_tts.transport.media_leg import MediaLeg
    from telephony_tts.transport.registry import Registry
    from telephony_tts.transport.request_head import RequestHead
    from telephony_tts.transport.settings import TransportSettings
    from telephony_tts.wire.vendor import Refused, VendorDialect

MEDIA = "/media/"
"""Where the paths of media legs begin. The name of the door follows."""


def only(headers: Headers, name: str) -> str:
    """A header's value. Empty if it is there twice: a proxy may have checked only one of the two."""
    values = headers.get_all(name)
    return values[0] if len(values) == 1 else ""


@dataclass(frozen=True, slots=True)
class Handshake:
    """A handshake whose signature is checked. `target` is its path with the query, `public_url` the setting."""

    target: str
    headers: Headers
    public_url: str | None

    @property
    def base(self) -> str:
        """The address that the platform dialled, without the path."""
        return self.public_url or f"wss://{only(self.headers, 'Host')}"

    @property
    def url(self) -> str:
        return self.base.rstrip("/") + self.target


class SignatureCheck(Protocol):
    """Checks the handshakes of one account."""

    def flaw(self, handshake: Handshake, bearer: str) -> str | None:
        """What is wrong with the signature; None if it is valid. `bearer` is the token of `Authorization`."""

    def use(self, handshake: Handshake, bearer: str) -> str | None:
        """Remember a valid signature that may be used once. What is wrong, if it was used before.

        It is called when the leg is let in: a platform that was told to come again may send the same handshake.
        """


IsNew = Callable[[str], bool]
"""Remembers a text that may be used once. False if a process of this server has had it before."""


def unsigned(header: str, handshake: Handshake) -> str:
    """The message for a handshake that `header` does not sign."""
    return f"{header} does not sign {handshake.base}; is server.public_url what the carrier dials?"


def _no_check(settings: Any, is_new: IsNew) -> SignatureCheck | None:
    return None


def _no_flaw(target: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class MediaSide:
    """The telephone's side of a door: a WebSocket with the audio of a call, at `/media/NAME`.

    `make` builds the leg of a connection. `rates_hz` are the rates of speech that the platform takes. `signature` makes
    what checks handshakes from the section of the settings; None: a token is checked. `flaw_of_target` says what is
    wrong with a request target. `call_in` names the call of a request head, for servers with several processes.
    `control` serves a connection that controls a call instead of carrying it; None: this request is not for such a
    connection.
    """

    leg: type[MediaLeg]
    make: Callable[[CallConnection, TransportSettings], MediaLeg]
    rates_hz: tuple[int, ...]
    signature: Callable[[Any, IsNew], SignatureCheck | None] = _no_check
    token_in_start: bool = False
    """Whether the token may come in the first message."""
    reads_options: bool = False
    """Whether the address has the options of `wire.query`, such as `call`."""
    flaw_of_target: Callable[[str], str | None] = _no_flaw
    call_in: Callable[[RequestHead], str | None] | None = None
    control: (
        Callable[[CallConnection, TransportSettings, Registry, EngineCatalog], Coroutine[Any, Any, None] | None] | None
    ) = None
    page: str = ""
    """Its page in docs/protocol, here and below; the name of the door if it is empty."""

    @property
    def is_signed(self) -> bool:
        """Whether the platform signs its handshakes, so that they can be checked."""
        return self.signature is not _no_check


@dataclass(frozen=True, slots=True)
class Vendor:
    """The bot's side of a door: another vendor's WebSocket, and how a connection to it begins.

    `open` gets the request target. `refuse` makes the vendor's answer from an HTTP status, our code and a message.
    `own_voice` matches the vendor's names for voices: such a voice is the default one unless `vendors.voice_names` maps
    it.
    """

    name: str
    path: re.Pattern[str]
    open: Callable[[str], VendorDialect | Refused]
    refuse: Callable[[int, str, str], Refused]
    own_voice: re.Pattern[str]
    key_may_follow: bool = False
    """A client may send its key in the first message."""
    turn_idle_s: int | None = None
    """The vendor's own limit of the time that a turn may wait for text. The shorter of it and the server's counts."""
    repeats_silent_turns: bool = False
    """A client asks again for a turn of which it has heard nothing for some seconds, on the same socket."""
    page: str = ""


@dataclass(frozen=True, slots=True)
class HttpRoutes:
    """The HTTP requests of a door. `begins` are the beginnings of its paths.

    `routes` makes a `fastapi.APIRouter` from `http_api.responses.HttpApi`. `refusal` makes the response to an error in
    the vendor's form; None for the paths whose errors have our form. Both import FastAPI themselves.
    """

    begins: tuple[str, ...]
    routes: Callable[[Any], Any]
    refusal: Callable[[str], Callable[[TelephonyTTSError], Any] | None] = lambda path: None
    page: str = ""


def _no_doubts(section: Any, speech: Any) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Door:
    """The record of a door. `name` is that of its folder, its section in the configuration and its metrics."""

    name: str
    media: MediaSide | None = None
    bots: tuple[Vendor, ...] = ()
    http: HttpRoutes | None = None
    settings: type[Any] | None = None
    """The dataclass of its section in the configuration."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of its secrets, and the keys in its section."""
    secret: str = ""
    """The key in its section that is set only where the platform connects from the internet."""
    doubts: Callable[[Any, Any], Iterator[str]] = _no_doubts
    """Settings that are probably not meant, from its section and the section `speech`."""
    key_headers: tuple[str, ...] = ()
    """Headers in which its clients send their key, beside `Authorization`."""
    key_options: tuple[str, ...] = ()
    """Options of the address that are keys."""


_CALL_PREFIX = re.compile(r"/calls/([^/?#]*)(?=/)")


def split_call(target: str) -> tuple[str | None, str]:
    """(the call that a target such as `/calls/CA1/v1/speak?model=x` joins, the rest of the target).

    Most clients of vendors add their own path and query to a base URL, so it cannot carry `?call=`.
    """
    prefix = _CALL_PREFIX.match(target)
    return (None, target) if prefix is None else (prefix[1], target[prefix.end() :])


def open_dialect(vendor: Vendor, target: str) -> VendorDialect | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    call, target = split_call(target)
    dialect = vendor.open(target)
    if call is not None and hasattr(dialect, "options"):  # a refusal has none
        dialect.options = replace(dialect.options, call=call)
    return dialect


class Doors:
    """The doors of a server."""

    def __init__(self, doors: Iterable[Door] = ()) -> None:
        self.all = tuple(doors)
        self.media = {f"{MEDIA}{door.name}": door.media for door in self.all if door.media is not None}
        """The telephone's sides by their paths."""
        self.vendors = tuple(vendor for door in self.all for vendor in door.bots)
        self.key_headers = tuple(dict.fromkeys(name for door in self.all for name in door.key_headers))
        self.key_options = tuple(dict.fromkeys(name for door in self.all for name in door.key_options))

    def media_of(self, target: str) -> MediaSide | None:
        """The telephone's side of the door whose WebSocket this request target is."""
        return self.media.get(target.partition("?")[0])

    def vendor_of(self, target: str) -> Vendor | None:
        """The vendor whose WebSocket this request target is."""
        path = split_call(target)[1].partition("?")[0]
        return next((vendor for vendor in self.vendors if vendor.path.fullmatch(path)), None)

    def of_http(self, path: str) -> str:
        """The name of the door whose HTTP requests have this path; "http" for our own."""
        for door in self.all:
            if door.http is not None and path.startswith(door.http.begins):
                return door.name
        return "http"

    @property
    def bot_names(self) -> tuple[str, ...]:
        """The doors by which texts come in, as the metrics name them."""
        names = [vendor.name for vendor in self.vendors]
        names += [door.name for door in self.all if door.http is not None]
        return tuple(dict.fromkeys(("native", "http", *names)))

    @property
    def media_kinds(self) -> tuple[str, ...]:
        """Where a call's frames may go, as the metrics name it: to the bot's socket, to a media leg that joined the
        bot, to an HTTP client, or to a media leg of a door."""
        return ("stream", "joined", "http", *(side.leg.kind for side in self.media.values()))
