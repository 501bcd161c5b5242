"""Genesys Cloud's Audio Connector."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from telephony_tts.doors.genesys.codec import RATE_HZ
from telephony_tts.doors.genesys.http_signature import SignatureVerifier
from telephony_tts.doors.genesys.leg import GenesysLeg
from telephony_tts.runtime.clock import unix_s
from telephony_tts.transport.door import Door, Handshake, IsNew, MediaSide, SignatureCheck, only
from telephony_tts.transport.media_leg import call_of


@dataclass(frozen=True, slots=True)
class GenesysSettings:
    """The section `genesys`. With `api_key` and `client_secret`, which is base64 as in Genesys's console, each media
    connection must be signed with them."""

    api_key: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)

    @property
    def secret(self) -> bytes:
        """The key of the signatures. Empty if there is none, or if `client_secret` is not base64."""
        try:
            return base64.b64decode(self.client_secret or "", validate=True)
        except ValueError:
            return b""

    def conflicts(self) -> Iterator[str]:
        if (self.api_key is None) != (self.client_secret is None):
            missing = "api_key" if self.api_key is None else "client_secret"
            yield f"{missing}: missing; the API key and the client secret go together"
        elif self.client_secret is not None and not self.secret:
            yield "client_secret: not base64; take it from the integration's settings as it stands there"


class _Signatures:
    def __init__(self, api_key: str, secret: bytes, is_new: IsNew) -> None:
        self._verifier = SignatureVerifier(api_key, secret, is_new)

    def flaw(self, handshake: Handshake, bearer: str) -> str | None:
        headers = {name.lower(): only(handshake.headers, name) for name in handshake.headers}
        dialled = urlsplit(handshake.public_url or "")
        target = dialled.path.rstrip("/") + handshake.target
        authorities = tuple(name.lower() for name in (headers.get("host", ""), dialled.netloc) if name)
        return self._verifier.flaw(headers, target, authorities, unix_s())

    def use(self, handshake: Handshake, bearer: str) -> str | None:
        return None  # `flaw` remembers the nonce


def _signature(settings: GenesysSettings, is_new: IsNew) -> SignatureCheck | None:
    return None if settings.api_key is None else _Signatures(settings.api_key, settings.secret, is_new)


DOOR = Door(
    "genesys",
    media=MediaSide(
        GenesysLeg, lambda connection, settings: GenesysLeg(connection, call_of(connection)), (RATE_HZ,), _signature,
        reads_options=True,
    ),
    settings=GenesysSettings,
    environment={
        "TELEPHONY_TTS_GENESYS_API_KEY": "api_key",
        "TELEPHONY_TTS_GENESYS_CLIENT_SECRET": "client_secret",
    },
    secret="client_secret",
)  # fmt: skip
