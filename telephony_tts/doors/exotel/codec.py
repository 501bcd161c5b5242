"""Exotel's AgentStream, the Voicebot applet; Exotel is the WebSocket client (docs/protocol/exotel.md).

Twilio's dialect with other names. Exotel wants messages of at least 3,200 bytes, in multiples of 320. So frames are
sent together, and the last ones of a turn are filled up with silence.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from telephony_tts.wire.media_stream import MediaStreamCodec, StreamKeys, whole
from telephony_tts.wire.messages import MediaStart
from telephony_tts.wire.query import MAX_OPTIONS

PTIME_MS = 20
UNIT_BYTES = 320
LEAST_BYTES = {"pcm": 3200, "ulaw": 1600}
"""The least audio in a message. Exotel's figure is that for PCM. It says 100 ms, which is true at 16 kHz; at 8 kHz it
is 200 ms, so μ-law gets these too."""
LEAST_MS = 100
_SLACK_MS = 100
_PCM = ("pcm", (8000, 16000, 24000))


class ExotelCodec(MediaStreamCodec):
    """The codec of one media leg. `rate_hz` is the rate that the address asks for; `start` may name another. Frames are
    sent `lead_ms` ahead of real time, or more if that is too little for two messages."""

    keys = StreamKeys(
        "Exotel",
        stream="stream_sid",
        call="call_sid",
        parameters="custom_parameters",
        media_format="media_format",
        rate="sample_rate",
        # Exotel's pages and its users' recordings name the same samples in several ways.
        formats={
            "raw/slin": _PCM, "audio/x-raw": _PCM, "slin": _PCM, "base64": _PCM, "audio/x-l16": _PCM, "audio/l16": _PCM,
            "audio/x-mulaw": ("ulaw", (8000,)),
        },
        facts=("from", "to"),
    )  # fmt: skip

    def __init__(self, rate_hz: int | None = None, lead_ms: int = 0) -> None:
        super().__init__()
        self._rate_hz = rate_hz
        self._lead_ms = lead_ms
        self.bulk_bytes = 0
        """The audio of a message: whole frames and whole units. Known after `start`."""
        self.bytes_per_ms = 0

    def _default_rate_hz(self, rates_hz: tuple[int, ...]) -> int | None:
        return self._rate_hz if self._rate_hz in rates_hz else super()._default_rate_hz(rates_hz)

    def _started(self, call: str, stream: str, codec: str, rate_hz: int, parameters: dict[str, str]) -> MediaStart:
        self.bytes_per_ms = rate_hz * (2 if codec == "pcm" else 1) // 1000
        frame_bytes = PTIME_MS * self.bytes_per_ms
        self.bulk_bytes = LEAST_MS // PTIME_MS * frame_bytes
        while self.bulk_bytes % UNIT_BYTES or self.bulk_bytes < LEAST_BYTES[codec]:
            self.bulk_bytes += frame_bytes
        bulk_ms = self.bulk_bytes // self.bytes_per_ms
        # The frames of one message may wait for the rest of it, while the peer plays the message before.
        lead_ms = max(self._lead_ms, 2 * bulk_ms + _SLACK_MS)
        return MediaStart(call, stream, codec, rate_hz, parameters, PTIME_MS, lead_ms, bulk_ms)


def rate_in(path: str) -> int | None:
    """The rate of a request target such as `/media/exotel?sample-rate=16000`; None if it names none."""
    try:
        pairs = parse_qsl(path.partition("?")[2].partition("#")[0], max_num_fields=MAX_OPTIONS)
    except ValueError:
        return None
    return next((whole(raw) for name, raw in reversed(pairs) if name == "sample-rate"), None)
