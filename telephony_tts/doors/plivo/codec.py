"""Plivo audio streams; Plivo is the WebSocket client (docs/protocol/plivo.md).

A mark is a `checkpoint`, which comes back as `playedStream` if its audio was really played. After `clearAudio` the
checkpoints that wait do not come back.
"""

from __future__ import annotations

import base64
import hmac
from typing import Any

from telephony_tts.wire.fields import Fields, Wire, parse_object
from telephony_tts.wire.media_stream import MediaStreamCodec, StreamKeys
from telephony_tts.wire.messages import Invalid, MediaStart, MediaTones, ToMedia
from telephony_tts.wire.signed_address import spellings, utf8

_HEADER_PREFIX = "X-PH-"
"""Plivo's prefix of header names, which may stand before the names of extra headers."""


class PlivoCodec(MediaStreamCodec):
    """The codec of one media leg."""

    keys = StreamKeys(
        "Plivo",
        stream="streamId",
        call="callId",
        parameters="extra_headers",
        media_format="mediaFormat",
        rate="sampleRate",
        formats={"audio/x-mulaw": ("ulaw", (8000,)), "audio/x-l16": ("pcm", (8000, 16000))},
        mark="playedStream",
        ignored=("connected", "clearedAudio"),
    )

    def _custom_parameters(self, f: Fields, start: Fields) -> Any:
        """The extra headers: JSON in a string, beside `start`. Any other string is one parameter."""
        given = f.get("extra_headers") or start.get("extra_headers")
        if isinstance(given, str):
            parsed = parse_object(given)
            given = {"extra_headers": given} if isinstance(parsed, Invalid) else parsed
        if not isinstance(given, dict):
            return {}
        return {name[len(_HEADER_PREFIX) :] if name.upper().startswith(_HEADER_PREFIX) else name: value
                for name, value in given.items()}  # fmt: skip

    def _mark_fields(self, f: Fields) -> Fields:
        return f

    def _begin(self, stream: str, start: MediaStart) -> None:
        head = f'"streamId":{stream}'
        encoding = "audio/x-l16" if start.codec == "pcm" else "audio/x-mulaw"
        form = f'"contentType":"{encoding}","sampleRate":{start.rate_hz}'
        self._media_head = f'{{"event":"playAudio",{head},"media":{{{form},"payload":"'.encode()
        self._mark_head, self._mark_tail = f'{{"event":"checkpoint",{head},"name":', "}"
        self._clear = f'{{"event":"clearAudio",{head}}}'.encode()

    def encode(self, message: ToMedia) -> Wire:
        if isinstance(message, MediaTones) and self.stream is not None:
            return b'{"event":"sendDTMF","dtmf":"' + message.digits.encode() + b'"}', True
        return super().encode(message)


def signature_v3(auth_token: str, url: str, nonce: str) -> str:
    """X-Plivo-Signature-V3 of a GET request: base64(HMAC-SHA256(auth_token, url + "." + nonce)).

    Source: plivo 4.63 for Python. The query of `url` is in the order of its names.
    """
    return base64.b64encode(hmac.digest(utf8(auth_token), utf8(f"{url}.{nonce}"), "sha256")).decode()


def verify_v3(auth_token: str, url: str, header: str | None, nonce: str | None) -> bool:
    """Whether `header` signs the handshake for `url`, the public wss:// address that Plivo dialled.

    The header may hold several signatures, separated by commas. With an empty token every signature is refused.
    """
    if not auth_token or not header or not nonce:
        return False
    given = [utf8(each.strip()) for each in header.split(",")[:8]]
    wanted = [signature_v3(auth_token, spelling, nonce).encode() for spelling in _signed_forms(url)]
    return any([hmac.compare_digest(each, right) for each in given for right in wanted])


def _signed_forms(url: str) -> list[str]:
    """The forms of an address that may be signed: Plivo's stream SDK verifies the address with http:// and /websocket
    behind it, while its documents speak of the address itself."""
    address, mark, query = url.partition("?")
    if mark:
        query = "&".join(sorted(query.split("&")))
    scheme, _, rest = address.partition("://")
    schemes = (scheme, "http", "https") if scheme in ("ws", "wss") else (scheme,)
    forms = []
    for each in schemes:
        for spelling in spellings(f"{each}://{rest}"):
            forms += [f"{spelling}{mark}{query}", f"{spelling}{mark}{query}/websocket"]
    return list(dict.fromkeys(forms))
