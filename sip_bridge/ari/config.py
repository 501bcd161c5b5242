"""The settings of ARI: the connection to Asterisk, the media of its calls, and who may start outgoing calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

from sip_bridge.ari.formats import AUTO
from telephony_tts.runtime.schema import Between, OneOf, Spelt, Url, show

PASSWORD_VARIABLE = "TELEPHONY_SIP_BRIDGE_ARI_PASSWORD"
ORIGINATE_TOKEN_VARIABLE = "TELEPHONY_SIP_BRIDGE_ORIGINATE_TOKEN"

FORMATS = (AUTO, "ulaw", "alaw", "g722", "slin", "slin16", "slin24", "slin48")
_OF_RTP = (AUTO, "ulaw", "alaw", "g722")

MAX_VARIABLES = 15
MAX_ORDER_VARIABLES = 40
"""With the parameters that every call has, they stay below the 64 of docs/protocol/native-media.md."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")

_Name = Annotated[str, Spelt(r"[A-Za-z0-9_.-]{1,64}", "1 to 64 of the characters A-Z a-z 0-9 _ . -")]
_Port = Annotated[int, Between(0, 65_535)]


def is_variable(name: str) -> bool:
    """Whether `name` is a channel variable. Asterisk would run a dialplan function that is set or read by name."""
    return _VARIABLE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class OriginateConfig:
    """Starting outgoing calls over HTTP. Without a token this is off."""

    token: str | None = field(default=None, repr=False)
    endpoints: tuple[str, ...] = ("PJSIP/",)
    ring_timeout_s: Annotated[int, Between(1, 600)] = 30

    def conflicts(self) -> Iterator[str]:
        if self.token is not None and (len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()):
            yield "token: must be at least 8 visible ASCII characters"
        for text in self.endpoints:
            if not re.fullmatch(r"[A-Za-z0-9]+/[!-~]*", text):
                yield f"endpoints: {show(text)} is wrong; expected the beginning of an endpoint, such as PJSIP/"


@dataclass(frozen=True, slots=True)
class AriConfig:
    """A Stasis application. The URL may hold a secret, so it is left out of the repr."""

    enabled: bool = False
    url: Annotated[str, Url(("ws", "wss"))] = field(default="ws://127.0.0.1:8088/ari", repr=False)
    user: Annotated[str, Spelt(r"[!-9;-~]{1,80}", "visible ASCII characters without a colon")] = "telephony-tts"
    password: str | None = field(default=None, repr=False)
    app: _Name = "telephony-tts"
    media: Annotated[str, OneOf(("websocket_client", "websocket_server", "rtp"))] = "websocket_client"
    websocket_client: _Name = "telephony_tts"
    media_url: Annotated[str | None, Url(("ws", "wss"))] = None
    format: Annotated[str, OneOf(FORMATS)] = "ulaw"
    rtp_host: Annotated[str, Spelt(r"[0-9A-Fa-f.:]{2,45}", "an IP address of this machine")] = "127.0.0.1"
    rtp_first_port: _Port = 0
    rtp_last_port: _Port = 0
    call_variable: str = "TTS_CALL"
    variables: tuple[str, ...] = ()
    after_bot: Annotated[str, OneOf(("continue", "hangup"))] = "continue"
    max_calls: Annotated[int, Between(1, 100_000)] = 200
    request_timeout_s: Annotated[float, Between(0.1, 60)] = 5.0
    setup_timeout_s: Annotated[float, Between(0.1, 60)] = 10.0
    lost_timeout_s: Annotated[float, Between(0, 3_600)] = 10.0
    originate: OriginateConfig = field(default_factory=OriginateConfig)

    @property
    def asterisk_host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def incoming_url(self) -> str:
        """The address at which the server dials Asterisk for media."""
        if self.media_url is not None:
            return self.media_url.rstrip("/")
        return re.sub(r"/ari/?$", "", self.url.partition("?")[0]) + "/media"

    def conflicts(self) -> Iterator[str]:
        for key, names in (("call_variable", (self.call_variable,)), ("variables", self.variables)):
            for name in names:
                if not is_variable(name):
                    yield f"{key}: {show(name)} is wrong; expected the name of a channel variable"
        if len(self.variables) > MAX_VARIABLES:
            yield f"variables: are {len(self.variables)}; at most {MAX_VARIABLES} fit"
        if self.media == "rtp" and self.format not in _OF_RTP:
            yield f"format: {show(self.format)} is not possible with media rtp: Asterisk takes {', '.join(_OF_RTP[1:])}"
        if self.media != "rtp" and self.format == "g722":
            yield "format: g722 is for media rtp; for wide band over a WebSocket use slin16"
        first, last = self.rtp_first_port, self.rtp_last_port
        if (first == 0) != (last == 0) or first > last or 0 < first < 1024 or (first and last - first < 1):
            yield "rtp_first_port: must be below rtp_last_port and from 1024 on, or both 0 for any free port"
