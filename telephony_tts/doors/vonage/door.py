"""Vonage's WebSocket endpoint of a voice call."""

from __future__ import annotations

from dataclasses import dataclass, field

from telephony_tts.doors.vonage.codec import RATES_HZ, TokenVerifier, VonageCodec, token_identity
from telephony_tts.runtime.clock import unix_s
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, Handshake, IsNew, MediaSide, SignatureCheck
from telephony_tts.transport.media_leg import MediaLeg, call_of


@dataclass(frozen=True, slots=True)
class VonageSettings:
    """The section `vonage`. With `signature_secret` each media connection must carry a JWT signed with it."""

    signature_secret: str | None = field(default=None, repr=False)


class VonageLeg(MediaLeg):
    kind = "vonage"

    def __init__(self, connection: CallConnection, call: str | None) -> None:
        """`call` is the call's name if the address has it."""
        super().__init__(connection, VonageCodec(call))


class _Signatures:
    def __init__(self, secret: str, is_new: IsNew) -> None:
        self._tokens = TokenVerifier(secret)
        self._is_new = is_new

    def flaw(self, handshake: Handshake, bearer: str) -> str | None:
        return self._tokens.flaw(bearer, unix_s())

    def use(self, handshake: Handshake, bearer: str) -> str | None:
        if not self._is_new(token_identity(bearer).hex()):
            return "the JWT was used before, or cannot be kept: see the server's log"
        self._tokens.use(bearer, unix_s())
        return None


def _signature(settings: VonageSettings, is_new: IsNew) -> SignatureCheck | None:
    return None if settings.signature_secret is None else _Signatures(settings.signature_secret, is_new)


DOOR = Door(
    "vonage",
    media=MediaSide(
        VonageLeg, lambda connection, settings: VonageLeg(connection, call_of(connection)), RATES_HZ, _signature,
        reads_options=True,
    ),
    settings=VonageSettings,
    environment={"TELEPHONY_TTS_VONAGE_SIGNATURE_SECRET": "signature_secret"},
    secret="signature_secret",
)  # fmt: skip
