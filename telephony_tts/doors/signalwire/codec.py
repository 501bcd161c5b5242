"""SignalWire's `<Stream>` (docs/protocol/signalwire.md): Twilio's dialect with more formats, and with tones to send."""

from __future__ import annotations

from telephony_tts.wire.fields import Wire
from telephony_tts.wire.media_stream import MediaStreamCodec, StreamKeys
from telephony_tts.wire.messages import MediaStart, MediaTones, ToMedia


class SignalWireCodec(MediaStreamCodec):
    """The codec of one media leg."""

    keys = StreamKeys(
        "SignalWire",
        stream="streamSid",
        call="callSid",
        parameters="customParameters",
        media_format="mediaFormat",
        rate="sampleRate",
        formats={"audio/x-mulaw": ("ulaw", (8000,)), "audio/x-l16": ("pcm", (16000, 24000, 8000))},
    )

    def __init__(self) -> None:
        super().__init__()
        self._dtmf_head = b""

    def _begin(self, stream: str, start: MediaStart) -> None:
        super()._begin(stream, start)
        self._dtmf_head = f'{{"event":"dtmf","streamSid":{stream},"dtmf":{{"digit":"'.encode()

    def encode(self, message: ToMedia) -> Wire:
        if isinstance(message, MediaTones) and self.stream is not None:
            return self._dtmf_head + message.digits.encode() + b'"}}', True
        return super().encode(message)
