"""Twilio Media Streams; Twilio is the WebSocket client (docs/protocol/twilio.md).

All audio is 8 kHz μ-law, base64 in JSON.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from telephony_tts.wire.media_stream import MediaStreamCodec, StreamKeys
from telephony_tts.wire.signed_address import spellings, utf8


class TwilioCodec(MediaStreamCodec):
    """The codec of one media leg."""

    keys = StreamKeys(
        "Twilio",
        stream="streamSid",
        call="callSid",
        parameters="customParameters",
        media_format="mediaFormat",
        rate="sampleRate",
        formats={"audio/x-mulaw": ("ulaw", (8000,))},
    )


def signature(auth_token: str, url: str, params: Mapping[str, str] | None = None) -> str:
    """X-Twilio-Signature of a request: base64(HMAC-SHA1(auth_token, url + each form name and value, by name)).

    Source: https://www.twilio.com/docs/usage/security. A WebSocket handshake has no form, so `params` is empty.
    """
    signed = url + "".join(name + value for name, value in sorted((params or {}).items()))
    digest = hmac.digest(utf8(auth_token), utf8(signed), "sha1")
    return base64.b64encode(digest).decode()


def verify(auth_token: str, url: str, header: str | None) -> bool:
    """Whether `header` signs the handshake for `url`, the public wss:// address Twilio dialled.

    Twilio signs with or without the port, depending on the product. So both forms of `url` are tried, as in Twilio's
    own libraries. With an empty token every signature is refused.
    """
    if not auth_token or not header:
        return False
    given = utf8(header)
    matches = [hmac.compare_digest(signature(auth_token, spelling).encode(), given) for spelling in spellings(url)]
    return any(matches)
