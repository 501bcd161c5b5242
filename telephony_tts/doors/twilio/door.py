"""Twilio Media Streams."""

from __future__ import annotations

from dataclasses import dataclass, field

from telephony_tts.doors.twilio.codec import TwilioCodec, verify
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, Handshake, IsNew, MediaSide, SignatureCheck, only, unsigned
from telephony_tts.transport.media_leg import MediaLeg

_SIGNATURE = "X-Twilio-Signature"


@dataclass(frozen=True, slots=True)
class TwilioSettings:
    """The section `twilio`. With `auth_token` each media connection must carry a valid X-Twilio-Signature."""

    auth_token: str | None = field(default=None, repr=False)


class TwilioLeg(MediaLeg):
    kind = "twilio"

    def __init__(self, connection: CallConnection) -> None:
        super().__init__(connection, TwilioCodec())


class _Signatures:
    def __init__(self, auth_token: str) -> None:
        self._auth_token = auth_token

    def flaw(self, handshake: Handshake, bearer: str) -> str | None:
        is_signed = verify(self._auth_token, handshake.url, only(handshake.headers, _SIGNATURE))
        return None if is_signed else unsigned(_SIGNATURE, handshake)

    def use(self, handshake: Handshake, bearer: str) -> str | None:
        return None  # nothing in it is for one use


def _signature(settings: TwilioSettings, is_new: IsNew) -> SignatureCheck | None:
    return None if settings.auth_token is None else _Signatures(settings.auth_token)


DOOR = Door(
    "twilio",
    media=MediaSide(
        TwilioLeg, lambda connection, settings: TwilioLeg(connection), TwilioCodec.keys.rates_hz, _signature,
        token_in_start=True,
    ),
    settings=TwilioSettings,
    environment={"TELEPHONY_TTS_TWILIO_AUTH_TOKEN": "auth_token"},
    secret="auth_token",
)  # fmt: skip
