"""Plivo's audio streaming; Vobiz speaks it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from telephony_tts.doors.plivo.codec import PlivoCodec, verify_v3
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, Handshake, IsNew, MediaSide, SignatureCheck, only, unsigned
from telephony_tts.transport.media_leg import MediaLeg

_SIGNATURE, _NONCE = "X-Plivo-Signature-V3", "X-Plivo-Signature-V3-Nonce"
_MAX_NONCES = 65_536


@dataclass(frozen=True, slots=True)
class PlivoSettings:
    """The section `plivo`. With `auth_token` each media connection must carry a valid X-Plivo-Signature-V3."""

    auth_token: str | None = field(default=None, repr=False)


class PlivoLeg(MediaLeg):
    kind = "plivo"
    sends_dtmf = True

    def __init__(self, connection: CallConnection) -> None:
        super().__init__(connection, PlivoCodec())


class _Signatures:
    def __init__(self, auth_token: str, is_new: IsNew) -> None:
        self._auth_token = auth_token
        self._is_new = is_new
        self._nonces: dict[str, None] = {}
        """The nonces of the last handshakes: one of them again is a replay."""

    def flaw(self, handshake: Handshake, bearer: str) -> str | None:
        nonce, header = only(handshake.headers, _NONCE), only(handshake.headers, _SIGNATURE)
        if nonce not in self._nonces and verify_v3(self._auth_token, handshake.url, header, nonce):
            return None
        return unsigned(_SIGNATURE, handshake)

    def use(self, handshake: Handshake, bearer: str) -> str | None:
        nonce = only(handshake.headers, _NONCE)
        if not self._is_new(nonce):
            return f"{_NONCE} was used before, or cannot be kept: see the server's log"
        self._nonces[nonce] = None
        if len(self._nonces) > _MAX_NONCES:
            del self._nonces[next(iter(self._nonces))]
        return None


def _signature(settings: PlivoSettings, is_new: IsNew) -> SignatureCheck | None:
    return None if settings.auth_token is None else _Signatures(settings.auth_token, is_new)


DOOR = Door(
    "plivo",
    media=MediaSide(
        PlivoLeg, lambda connection, settings: PlivoLeg(connection), PlivoCodec.keys.rates_hz, _signature,
        token_in_start=True,
    ),
    settings=PlivoSettings,
    environment={"TELEPHONY_TTS_PLIVO_AUTH_TOKEN": "auth_token"},
    secret="auth_token",
)  # fmt: skip
